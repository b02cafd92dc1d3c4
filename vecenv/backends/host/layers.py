"""The layers of an env: its wrappers, and the env itself."""

from __future__ import annotations

from typing import Any


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
