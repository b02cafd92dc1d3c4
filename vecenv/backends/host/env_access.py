"""Access to an env beyond step and reset: wrappers, attributes, seeds, frames, saved states.

A layer is a wrapper of an env, or the innermost env.
"""

from __future__ import annotations

import copy
import inspect
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from vecenv.backends.ipc.serialization import loads_by_value


def is_env(value: Any) -> bool:
    return callable(getattr(value, "step", None)) and callable(getattr(value, "reset", None))


def is_coroutine_env(env: Any) -> bool:
    """Return True if `reset` or `step` of `env` is a coroutine function (`async def`)."""
    return any(inspect.iscoroutinefunction(getattr(env, name, None)) for name in ("reset", "step"))


def layers(env: Any) -> list[Any]:
    """Return the layers of an env, outermost first.

    A layer that is its own `unwrapped` is the innermost, even if it has an attribute `env`.
    """
    found = [env]
    while getattr(found[-1], "unwrapped", None) is not found[-1]:
        inner = _vars(found[-1]).get("env")
        if not is_env(inner) or any(inner is layer for layer in found):
            break
        found.append(inner)
    return found


def parts(env: Any) -> list[Any]:
    return [part for layer in layers(env) for part in (layer, *_transforms_of(_vars(layer).get("transform")))]


def _transforms_of(transform: Any) -> list[Any]:
    """Return the parts of a chain, which is an object with a list `transforms`, or [transform].

    Nothing else is iterated, because an env may use the name `transform` for a matrix or a generator.
    """
    chain = _vars(transform).get("transforms")
    return [part for each in chain for part in _transforms_of(each)] if isinstance(chain, list) else [transform]


def learning(env: Any, alone: bool = False) -> tuple[str, ...]:
    """Return the class names of transforms and gymnasium wrappers that still update statistics in each step.

    `alone`: leave out transforms whose statistics envs share.
    """
    return tuple(
        type(part).__name__
        for part in parts(env)
        if (_has(part, "freeze") and getattr(part, "frozen", None) is False and not (alone and _is_shared(part)))
        or (hasattr(type(part), "update_running_mean") and part.update_running_mean is True)
    )


def _is_shared(part: Any) -> bool:
    return getattr(part, "is_shared", False) is True


RENDER_PATIENCE = 5.0
_rendering = threading.RLock()


def find_attr(env: Any, name: str) -> Any:
    """Return the attribute of the outermost layer that has it, or raise AttributeError."""
    cause = None
    for layer in layers(env):
        try:
            return getattr(layer, name)
        except AttributeError as error:
            cause = error
    raise AttributeError(f"{type(layer).__name__} has no attribute {name!r}, nor has any wrapper around it: {cause}")


def has_attr(env: Any, name: str) -> bool:
    try:
        find_attr(env, name)
    except AttributeError:
        return False
    return True


def set_attr(env: Any, name: str, value: Any) -> None:
    """Set the attribute in the outermost layer that has it, or else in the innermost env."""
    for layer in (stack := layers(env)):
        # An attribute that a wrapper's `__getattr__` forwards belongs to a layer inside.
        if layer is stack[-1] or name in _vars(layer) or hasattr(type(layer), name):
            setattr(layer, name, value)
            return


def wrapper_classes(env: Any) -> list[str]:
    names = []
    while isinstance(env, gymnasium.Wrapper):
        names += [f"{cls.__module__}.{cls.__qualname__}" for cls in type(env).__mro__]
        env = env.env
    return names


def call_attr(env: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = find_attr(env, name)
    if not callable(value):
        return value
    return render_in_turn(lambda: value(*args, **kwargs)) if name == "render" else value(*args, **kwargs)


def seed_env(env: Any, seed: int) -> bool:
    """Seed the action space, and the env if a layer has `seed`. Return True if a reset must seed the env.

    Raises TypeError if `seed` is a coroutine function.
    """
    own_seed = next(filter(callable, (getattr(layer, "seed", None) for layer in layers(env))), None)
    if inspect.iscoroutinefunction(own_seed):
        raise TypeError(
            f"seed() of {env!r} is a coroutine function, which vecenv does not await: leave seed() out, and vecenv "
            "seeds the env by reset(seed=...)"
        )
    if own_seed is not None:
        own_seed(seed)
    action_space = getattr(env, "action_space", None)
    if action_space is not None:
        action_space.seed(seed)
    return own_seed is None


def render_env(env: Any, kwargs: dict[str, Any]) -> Any:
    frame = render_in_turn(lambda: env.render(**kwargs))
    return frame.copy() if isinstance(frame, np.ndarray) else frame


def render_in_turn(render: Callable[[], Any]) -> Any:
    """Call `render` while no other thread renders, and return the frame.

    gymnasium's envs draw with pygame's gfxdraw, which releases the interpreter lock but has one buffer per process.
    After RENDER_PATIENCE seconds, a thread renders anyway, because the other thread probably hangs.
    """
    is_alone = _rendering.acquire(timeout=RENDER_PATIENCE)
    try:
        return render()
    finally:
        if is_alone:
            _rendering.release()


ALONG_EPISODES = (
    "_elapsed_steps", "_has_reset", "autoreset", "timesteps", "obs_queue", "observation_queue", "last_action",
    "is_sticky_actions", "num_repeats", "repeats_taken", "discounted_reward", "episode_returns", "episode_lengths",
    "lives", "game_over",
)  # fmt: skip
"""Attributes of gymnasium's wrappers that change during an episode. A saved state includes them."""

PHYSICS = (
    "time", "qpos", "qvel", "act", "ctrl", "qfrc_applied", "xfrc_applied", "mocap_pos", "mocap_quat", "userdata",
    "qacc_warmstart",
)  # fmt: skip
"""Fields of MuJoCo's `data` that determine the next step (mjSTATE_INTEGRATION). The env's `set_state` changes the last
field, so vecenv writes this field again.
"""


def get_state(env: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Return the state of the innermost layer that can save its state, and each layer's state of the running episode.

    Raises NotImplementedError unless a layer has one of these sets of attributes:

    - `get_state` and `set_state`
    - `clone_state` and `restore_state` (ale-py)
    - `model`, `data` and `set_state` (gymnasium's MuJoCo envs)
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
    if _has(layer, "episode_state", "set_episode_state"):
        state: dict[str, Any] = layer.episode_state()
        return state
    return copy.deepcopy({name: each for name, each in _vars(layer).items() if name in ALONG_EPISODES})


def set_state(env: Any, state: tuple[Any, list[dict[str, Any]]]) -> None:
    """Restore a state that `get_state` returned for an env with the same layers.

    Raises ValueError if `state` is something else or has a different number of layers, NotImplementedError as
    `get_state`.
    """
    stack = layers(env)
    inner, kept = state if isinstance(state, tuple) and len(state) == 2 else (None, None)
    if not isinstance(kept, list) or len(kept) != len(stack):
        raise ValueError(
            f"set_state() expects the result of get_state() of an env with the same wrappers, got a "
            f"{type(state).__name__} for {env}"
        )
    layer = _layer_with_state(env)
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
        _set_episode_state(each, own)


def _set_episode_state(layer: Any, state: dict[str, Any]) -> None:
    if _has(layer, "episode_state", "set_episode_state"):
        layer.set_episode_state(state)
    else:
        _vars(layer).update(copy.deepcopy(state))


def _vars(layer: Any) -> dict[str, Any]:
    return getattr(layer, "__dict__", {})  # extension modules and slots have no `__dict__`


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
        f"{type(stack[-1]).__name__} cannot save its state: define get_state() and set_state(state)"
    )


def _has(layer: Any, *methods: str) -> bool:
    return all(callable(getattr(type(layer), name, None)) for name in methods)


ACROSS_EPISODES = ("_np_random_seed", "obs_rms", "return_rms", "rewards_running_mean", "episode_count", "episode_id")
"""Attributes of gymnasium's wrappers and envs that outlast an episode, besides random generators."""
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)


Carried = tuple[dict[str, Any], dict[str, Any], list[Any], list[Any], Any]


def carry(env: Any) -> list[Carried]:
    """Return what an env keeps from one episode to the next, for `adopt`.

    These are the random generators of layers, spaces and ale-py, the statistics of gymnasium's wrappers, and the
    statistics of transforms unless envs share them.
    """
    found = []
    for layer in layers(env):
        kept = {name: value for name, value in _vars(layer).items() if isinstance(value, GENERATORS)}
        kept |= {name: _vars(layer)[name] for name in ACROSS_EPISODES if name in _vars(layer)}
        emulator = layer.clone_state(include_rng=True) if _has(layer, "clone_state", "restore_state") else None
        spaces = [_vars(space).get("_np_random") for space in _spaces(layer)]
        learnt = [
            part.state_dict() if _learns(part) else None for part in _transforms_of(_vars(layer).get("transform"))
        ]
        found.append((kept, _episode_state(layer), spaces, learnt, emulator))
    return found


def adopt(env: Any, state: Sequence[Carried] | None, attributes: Sequence[bytes]) -> None:
    """Continue for another env with the same layers: set its `carry`, and what `set_env_attr` has set."""
    for blob in attributes:
        set_attr(env, *loads_by_value(blob))
    for layer, (kept, of_episode, generators, learnt, emulator) in zip(layers(env), state or (), strict=False):
        _vars(layer).update(kept)
        _set_episode_state(layer, of_episode)
        for space, generator in zip(_spaces(layer), generators, strict=True):
            _vars(space)["_np_random"] = generator
        for part, statistics in zip(_transforms_of(_vars(layer).get("transform")), learnt, strict=True):
            if statistics:
                part.load_state_dict(statistics)
        if emulator is not None:
            layer.restore_state(emulator)


def _learns(part: Any) -> bool:
    return _has(part, "state_dict", "load_state_dict") and not _is_shared(part)


def _spaces(layer: Any) -> list[gymnasium.Space[Any]]:
    found, ahead = [], [value for value in _vars(layer).values() if isinstance(value, gymnasium.Space)]
    while ahead:
        found.append(space := ahead.pop())
        children = getattr(space, "spaces", ())
        ahead += children.values() if isinstance(children, dict) else children
    return found


def copy_if_possible(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def copy_data(value: Any) -> Any:
    """Copy an array or container. Return any other object itself, so that the caller can debug the env's object."""
    return copy_if_possible(value) if isinstance(value, (np.ndarray, list, dict, set, tuple)) else value


ENV_CALLS: dict[str, Callable[..., Any]] = {
    "get_env_attr": find_attr,
    "has_attr": has_attr,
    "wrapper_classes": wrapper_classes,
    "set_env_attr": set_attr,
    "call": call_attr,
    "seed": seed_env,
    "render": render_env,
    "get_state": get_state,
    "set_state": set_state,
    "carry": carry,
    "adopt": adopt,
}
