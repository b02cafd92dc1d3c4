"""The state of an env, to go back to: of the emulator (ALE), of the physics (MuJoCo), or as the env itself has it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from vecenv.backends.host.layers import layers

ALONG_EPISODES = (
    "_elapsed_steps", "_has_reset", "autoreset", "timesteps", "obs_queue", "observation_queue", "last_action",
    "is_sticky_actions", "num_repeats", "repeats_taken", "discounted_reward", "episode_returns", "episode_lengths",
    "lives", "game_over",
)  # fmt: skip
"""What wrappers of gymnasium keep along an episode (TimeLimit, FrameStackObservation, NormalizeReward, ...): part of
the state, so that the episode goes on and ends as it would have."""

PHYSICS = (
    "time", "qpos", "qvel", "act", "ctrl", "qfrc_applied", "xfrc_applied", "mocap_pos", "mocap_quat", "userdata",
    "qacc_warmstart",
)  # fmt: skip
"""What MuJoCo's next step depends on; all else is computed from it (mjSTATE_INTEGRATION). The last one is an input and
a result of `set_state`, and so is put back after it."""


def get_state(env: Any) -> tuple[Any, list[dict[str, Any]]]:
    """The state of the innermost layer that has one, and what each layer keeps along the episode.

    Raises NotImplementedError for an env without `get_state` and `set_state`, `clone_state` and `restore_state`
    (ale-py), or the `model`, `data` and `set_state` of gymnasium's MuJoCo envs.
    """
    layer = _layer_with_state(env)
    if _has(layer, "get_state", "set_state"):
        state = layer.get_state()
    elif _has(layer, "clone_state", "restore_state"):
        state = layer.clone_state(include_rng=True)
    else:
        state = {name: np.copy(getattr(layer.data, name)) for name in PHYSICS}
    return state, [_episode_state(each) for each in layers(env)]


def _episode_state(layer: Any) -> dict[str, Any]:
    """What the layer keeps along the episode: as it says itself (a TransformedEnv), or as wrappers of gymnasium do."""
    if _has(layer, "episode_state", "set_episode_state"):
        state: dict[str, Any] = layer.episode_state()
        return state
    return copy.deepcopy({name: each for name, each in vars(layer).items() if name in ALONG_EPISODES})


def set_state(env: Any, state: tuple[Any, list[dict[str, Any]]]) -> None:
    """Go back to what `get_state` returned, of this env or of one that was made in the same way; ValueError for
    anything else.
    """
    stack = layers(env)
    if not isinstance(state, tuple) or len(state) != 2 or len(state[1]) != len(stack):
        raise ValueError(
            f"set_state() takes what get_state() of an env with the same wrappers returned, got {type(state).__name__} "
            f"for {env}"
        )
    layer, (inner, kept) = _layer_with_state(env), state
    if _has(layer, "get_state", "set_state"):
        layer.set_state(inner)
    elif _has(layer, "clone_state", "restore_state"):
        layer.restore_state(inner)
    else:
        for name in PHYSICS:
            _put(layer.data, name, inner[name])
        layer.set_state(inner["qpos"], inner["qvel"])
        _put(layer.data, PHYSICS[-1], inner[PHYSICS[-1]])
    for each, own in zip(stack, kept, strict=True):
        if _has(each, "episode_state", "set_episode_state"):
            each.set_episode_state(own)
        else:
            vars(each).update(copy.deepcopy(own))


def _put(data: Any, name: str, value: np.ndarray) -> None:
    if value.ndim:
        getattr(data, name)[...] = value
    else:
        setattr(data, name, float(value))


def _layer_with_state(env: Any) -> Any:
    stack = layers(env)
    for layer in reversed(stack):
        physics = _has(layer, "set_state") and hasattr(layer, "model") and hasattr(layer, "data")
        if _has(layer, "get_state", "set_state") or _has(layer, "clone_state", "restore_state") or physics:
            return layer
    raise NotImplementedError(
        f"{type(stack[-1]).__name__} has no state that can be taken and set: define get_state() and set_state(state)"
    )


def _has(layer: Any, *methods: str) -> bool:
    return all(callable(getattr(type(layer), name, None)) for name in methods)
