"""The state of an env, to go back to: of the emulator (ALE), of the physics (MuJoCo), or as the env itself has it."""

from __future__ import annotations

from typing import Any

import numpy as np

from vecenv.backends.host.layers import layers

STEPS_TAKEN = "_elapsed_steps"
"""How gymnasium's TimeLimit counts: part of the state, so that the episode ends when it would have."""

PHYSICS = (
    "time", "qpos", "qvel", "act", "ctrl", "qfrc_applied", "xfrc_applied", "mocap_pos", "mocap_quat", "userdata",
    "qacc_warmstart",
)  # fmt: skip
"""What MuJoCo's next step depends on; all else is computed from it (mjSTATE_INTEGRATION). The last one is an input and
a result of `set_state`, and so is put back after it."""


def get_state(env: Any) -> tuple[Any, list[int | None]]:
    """The state of the innermost layer that has one, and the steps that each TimeLimit has counted.

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
    return state, [vars(each).get(STEPS_TAKEN) for each in layers(env)]


def set_state(env: Any, state: tuple[Any, list[int | None]]) -> None:
    """Go back to what `get_state` returned, of this env or of one that was made in the same way."""
    layer, (inner, taken) = _layer_with_state(env), state
    if _has(layer, "get_state", "set_state"):
        layer.set_state(inner)
    elif _has(layer, "clone_state", "restore_state"):
        layer.restore_state(inner)
    else:
        for name in PHYSICS:
            _put(layer.data, name, inner[name])
        layer.set_state(inner["qpos"], inner["qvel"])
        _put(layer.data, PHYSICS[-1], inner[PHYSICS[-1]])
    for each, steps in zip(layers(env), taken, strict=True):
        if steps is not None:
            setattr(each, STEPS_TAKEN, steps)


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
