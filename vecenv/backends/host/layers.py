"""The layers of an env: its wrappers, and the env itself."""

from __future__ import annotations

from typing import Any

import numpy as np


def is_env(value: Any) -> bool:
    """Whether it can be stepped and reset."""
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
