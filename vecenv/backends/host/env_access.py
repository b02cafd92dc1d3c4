"""Access one env beyond step and reset: wrappers, attributes, seeds, frames, saved states."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np


def is_env(value: Any) -> bool:
    """True if it can be stepped and reset."""
    return callable(getattr(value, "step", None)) and callable(getattr(value, "reset", None))


def layers(env: Any) -> list[Any]:
    """The env and what it wraps, outermost first. An env that calls itself the innermost wraps nothing: its
    attribute `env`, if any, is ignored.
    """
    found = [env]
    while getattr(found[-1], "unwrapped", None) is not found[-1]:
        inner = getattr(found[-1], "__dict__", {}).get("env")
        if not is_env(inner) or any(inner is layer for layer in found):
            break
        found.append(inner)
    return found


def parts(env: Any) -> list[Any]:
    """The layers of an env, each followed by its transforms (`transform`: one, or an iterable of them)."""
    return [part for layer in layers(env) for part in (layer, *_transforms_of(getattr(layer, "transform", None)))]


def learning(env: Any) -> tuple[str, ...]:
    """The classes of its wrappers and transforms whose statistics change with each step: transforms that can be frozen
    and are not, and gymnasium's wrappers with a running mean.
    """
    return tuple(
        type(part).__name__
        for part in parts(env)
        if (getattr(part, "frozen", None) is False and callable(getattr(part, "freeze", None)))
        or getattr(part, "update_running_mean", None) is True
    )


def _transforms_of(transform: Any) -> list[Any]:
    """The transform, or those in it, to any depth. What is no transform has no state, and is not looked into."""
    iterable = hasattr(transform, "__iter__") or hasattr(transform, "__getitem__")
    if not iterable or isinstance(transform, (str, bytes, np.ndarray)):
        return [transform]
    return [part for each in transform for part in _transforms_of(each)]


RENDER_PATIENCE = 5.0
"""Seconds that a thread waits for its turn to render."""
_rendering = threading.RLock()


def _has_rules(layer: Any, method: str) -> bool:
    """Return whether the layer has a method `get_wrapper_attr` or `set_wrapper_attr` other than gymnasium's."""
    gymnasiums = (None, getattr(gymnasium.Env, method), getattr(gymnasium.Wrapper, method))
    return getattr(type(layer), method, None) not in gymnasiums


def find_attr(env: Any, name: str) -> Any:
    """Return the attribute `name` of the env or of the first wrapper that has it; AttributeError if none has.

    A layer with a `get_wrapper_attr` of its own decides for the layers below.
    """
    for layer in layers(env):
        if _has_rules(layer, "get_wrapper_attr"):
            return layer.get_wrapper_attr(name)
        if hasattr(layer, name):
            return getattr(layer, name)
    raise AttributeError(f"{type(layers(env)[-1]).__name__} has no attribute {name!r}, nor has any wrapper around it")


def has_attr(env: Any, name: str) -> bool:
    """Return whether `find_attr` finds the attribute."""
    try:
        find_attr(env, name)
    except AttributeError:
        return False
    return True


def set_attr(env: Any, name: str, value: Any) -> None:
    """Set the attribute where `find_attr` finds it; a new one goes to the innermost env.

    A layer with a `set_wrapper_attr` of its own decides for the layers below.
    """
    for layer in (stack := layers(env)):
        if _has_rules(layer, "set_wrapper_attr"):
            layer.set_wrapper_attr(name, value)
            return
        if hasattr(layer, name) or layer is stack[-1]:
            setattr(layer, name, value)
            return


def wrapper_classes(env: Any) -> list[str]:
    """Return the names, with their modules, of the classes of all gymnasium wrappers around the env, bases included."""
    names = []
    while isinstance(env, gymnasium.Wrapper):
        names += [f"{cls.__module__}.{cls.__qualname__}" for cls in type(env).__mro__]
        env = env.env
    return names


def call_attr(env: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The attribute, called with the arguments if it can be called (as gymnasium's `call`)."""
    value = find_attr(env, name)
    return value(*args, **kwargs) if callable(value) else value


def seed_env(env: Any, seed: int) -> bool:
    """Seed the env, if it has a `seed` of its own, and its action space.

    Returns whether it has none, so that a reset has to seed it (as tianshou).
    """
    own_seed = next((layer.seed for layer in layers(env) if callable(getattr(layer, "seed", None))), None)
    if own_seed is not None:
        own_seed(seed)
    action_space = getattr(env, "action_space", None)
    if action_space is not None:
        action_space.seed(seed)
    return own_seed is None


def render_env(env: Any, kwargs: dict[str, Any]) -> Any:
    """One frame, the caller's to keep."""
    frame = render_in_turn(lambda: env.render(**kwargs))
    return frame.copy() if isinstance(frame, np.ndarray) else frame


def render_in_turn(render: Callable[[], Any]) -> Any:
    """Return `render()`, called while no other thread is in this function.

    pygame's gfxdraw, with which gymnasium's envs draw, releases the interpreter lock and fills polygons through one
    buffer of the whole process. A thread that holds its turn for RENDER_PATIENCE seconds does not draw, it hangs: then
    the others no longer wait for it.
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
"""Attributes that wrappers of gymnasium (TimeLimit, FrameStackObservation, NormalizeReward, ...) keep along an episode:
part of the state, so that the episode goes on and ends as it would have."""

PHYSICS = (
    "time", "qpos", "qvel", "act", "ctrl", "qfrc_applied", "xfrc_applied", "mocap_pos", "mocap_quat", "userdata",
    "qacc_warmstart",
)  # fmt: skip
"""Arrays that MuJoCo's next step depends on; all else is computed from them (mjSTATE_INTEGRATION). The last one is an
input and a result of `set_state`, and so is put back after it."""


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
    """State along the episode: as the layer gives it (a TransformedEnv), or that of wrappers of gymnasium."""
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


def own_copy(value: Any) -> Any:
    """A copy, because the caller may still change what it passed; the value itself where it cannot be copied."""
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def plain_copy(value: Any) -> Any:
    """A copy of data, as from a worker; any other object is the env's original, for inspection while debugging."""
    return own_copy(value) if isinstance(value, (np.ndarray, list, dict, set, tuple)) else value


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
}
