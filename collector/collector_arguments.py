"""Check and normalise the arguments of a collector."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from gymnasium import spaces


def resolve_devices(device: Any, storing: Any, policy: Any, env: Any) -> tuple[Any, Any, Any]:
    """The devices of batches, policy and envs; None where none was given.

    `device` fills in what is not given (as torchrl's collectors). Where no storing device is given, batches are stored
    where both policy and envs are. Raises `ValueError` for an `env_device` other than the CPU.
    """
    if env is not None and str(env) != "cpu":
        raise ValueError(f"envs run on the CPU: env_device must be None or 'cpu', got {env!r}")
    storing, policy, env = (device if each is None else each for each in (storing, policy, env))
    if storing is None and env is not None and str(env) == str(policy):
        storing = env
    if storing is not None or policy is not None:
        from collector.device.tensors import resolve_device

        storing, policy = (None if each is None else resolve_device(each) for each in (storing, policy))
    return storing, policy, None if env is None else "cpu"


def whole(name: str, number: Any) -> int:
    """A whole number, which may be a float (1e6). Raises `TypeError` for all others."""
    if isinstance(number, float) and number.is_integer():
        return int(number)
    try:
        return operator.index(number)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {number!r}") from None


def at_least_one(name: str, number: Any) -> int:
    """A whole number above zero. Raises `TypeError` and `ValueError` for all others."""
    count = whole(name, number)
    if count < 1:
        raise ValueError(f"{name} must be at least 1, got {count}")
    return count


def limit(name: str, number: Any) -> int:
    """A limit, or 0 for none, which None and numbers below one mean."""
    return 0 if number is None else max(0, whole(name, number))


def all_frames(total_frames: Any, frames_per_batch: int) -> int:
    """`total_frames`, or -1 for a collector without end, which None and negative numbers mean.

    Raises `ValueError` for zero, and where batches do not divide the total.
    """
    total_frames = -1 if total_frames is None else max(-1, whole("total_frames", total_frames))
    if total_frames == 0:
        raise ValueError("total_frames must be at least 1, or -1 for a collector without end; got 0")
    if total_frames > 0 and total_frames % frames_per_batch:
        raise ValueError(
            f"total_frames={total_frames} is not a multiple of frames_per_batch={frames_per_batch}; "
            f"use {-(-total_frames // frames_per_batch) * frames_per_batch}, or another frames_per_batch"
        )
    return total_frames


def check_step_count(observation_spaces: Sequence[Any]) -> None:
    """Raise `ValueError` where observations have an entry of the name under which steps are counted."""
    for env_id, space in enumerate(observation_spaces):
        if isinstance(space, spaces.Dict) and "step_count" in space.spaces:
            raise ValueError(
                f"env {env_id} already has a 'step_count' in its observations, so it counts its own steps; "
                "rename it, or do not pass max_frames_per_traj"
            )
