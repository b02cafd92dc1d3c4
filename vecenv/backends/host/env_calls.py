"""Calls of one env besides step and reset: attributes through its wrappers, seeds, frames, states."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from vecenv.backends.host.env_states import get_state, set_state
from vecenv.backends.host.layers import layers

RENDER_PATIENCE = 5.0
"""Seconds that a thread waits for its turn to render."""
_rendering = threading.RLock()


def find_attr(env: Any, name: str) -> Any:
    """The attribute `name` of the env or of the first wrapper that has it; AttributeError if none has."""
    for layer in layers(env):
        if hasattr(layer, name):
            return getattr(layer, name)
    raise AttributeError(f"{type(layers(env)[-1]).__name__} has no attribute {name!r}, nor has any wrapper around it")


def set_attr(env: Any, name: str, value: Any) -> None:
    """Set the attribute where `find_attr` finds it; a new one goes to the innermost env."""
    stack = layers(env)
    target = next((layer for layer in stack if hasattr(layer, name)), stack[-1])
    setattr(target, name, value)


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
    """What `render` returns, called while no other thread is in this function.

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


ENV_CALLS: dict[str, Callable[..., Any]] = {
    "get_env_attr": find_attr,
    "set_env_attr": set_attr,
    "call": call_attr,
    "seed": seed_env,
    "render": render_env,
    "get_state": get_state,
    "set_state": set_state,
}
