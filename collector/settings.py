"""What the arguments of a collector mean: checked and resolved once, before anything is built."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from gymnasium import spaces


class Devices(NamedTuple):
    """Where batches, policy and environments are; None: nothing was said."""

    storing: Any
    policy: Any
    env: Any


def resolve_devices(device: Any, storing: Any, policy: Any, env: Any) -> Devices:
    """`device` fills in what is not given (as torchrl's collectors).

    Where no storing device is given, batches are stored where both policy and environments are. Raises `ValueError`
    for an `env_device` other than the CPU.
    """
    if env is not None and str(env) != "cpu":
        raise ValueError(f"environments run on the CPU: env_device must be None or 'cpu', got {env!r}")
    storing, policy, env = (device if each is None else each for each in (storing, policy, env))
    if storing is None and env is not None and str(env) == str(policy):
        storing = env
    if storing is not None:
        from collector.device import resolve_device

        storing = resolve_device(storing)
    return Devices(storing, policy, None if env is None else "cpu")


def check_frames(frames_per_batch: int, total_frames: int) -> None:
    """Raise `ValueError` for numbers below one, and where batches do not divide the total."""
    if frames_per_batch < 1:
        raise ValueError(f"frames_per_batch must be at least 1, got {frames_per_batch}")
    if total_frames == 0:
        raise ValueError("total_frames must be at least 1, or -1 for a collector without end; got 0")
    if total_frames > 0 and total_frames % frames_per_batch:
        raise ValueError(
            f"total_frames={total_frames} is not a multiple of frames_per_batch={frames_per_batch}; "
            f"use {-(-total_frames // frames_per_batch) * frames_per_batch}, or another frames_per_batch"
        )


def positive(number: int | None) -> int:
    """A limit: None and numbers below one mean that there is none, which is 0."""
    return 0 if number is None or number < 0 else number


def check_step_count(observation_spaces: Sequence[Any]) -> None:
    """Raise `ValueError` where observations have an entry of the name under which steps are counted."""
    for env_id, space in enumerate(observation_spaces):
        if isinstance(space, spaces.Dict) and "step_count" in space.spaces:
            raise ValueError(
                f"environment {env_id} already has a 'step_count' in its observations, so it counts its own steps; "
                "rename it, or leave max_frames_per_traj out"
            )


def make_vector_env(source: Any, kwargs: dict[str, Any] | None, make: Callable[[list[Callable[[], Any]]], Any]) -> Any:
    """The vector environment that `source` is or makes; `make` puts single environments into one.

    Raises `RuntimeError` for `kwargs` where there is nothing left to call with them, and `TypeError` for a vector
    environment of tensors.
    """
    kwargs = kwargs or {}
    if isinstance(source, Sequence) and len(source) == 1 and hasattr(source[0], "step") and not callable(source[0]):
        source = source[0]
    if isinstance(source, Sequence):
        return make([partial(each, **kwargs) for each in source])
    if isinstance(source, type) or not hasattr(source, "step"):
        source = source(**kwargs)
    elif kwargs:
        raise RuntimeError(
            f"kwargs were passed to {source} but they can't be set, for it is already made: {kwargs}; "
            "pass a callable that makes the environment"
        )
    tensors = sys.modules.get("collector.torch_vector_env")
    if tensors is not None and isinstance(source, tensors.TorchVectorEnv):
        raise TypeError("collectors move observations themselves: pass the vector env without TorchVectorEnv around it")
    return source if hasattr(source, "env_num") else make([lambda: source])
