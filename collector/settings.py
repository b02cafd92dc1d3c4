"""What the arguments of a collector mean: checked and resolved once, before anything is built."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from gymnasium import Env, spaces


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
    if storing is not None or policy is not None:
        from collector.tensors import resolve_device

        storing, policy = (None if each is None else resolve_device(each) for each in (storing, policy))
    return Devices(storing, policy, None if env is None else "cpu")


def whole(name: str, number: Any) -> int:
    """A number of things; floats that are whole (1e6) are such numbers too. Raises `TypeError` for all others."""
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
    """A limit: None and numbers below one mean that there is none, which is 0."""
    return 0 if number is None else max(0, whole(name, number))


def all_frames(total_frames: Any, frames_per_batch: int) -> int:
    """`total_frames`: -1 for a collector without end, which None and negative numbers stand for.

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
                f"environment {env_id} already has a 'step_count' in its observations, so it counts its own steps; "
                "rename it, or leave max_frames_per_traj out"
            )


def make_vector_env(source: Any, kwargs: dict[str, Any] | None, make: Callable[[list[Callable[[], Any]]], Any]) -> Any:
    """The vector environment that `source` is or makes; `make` puts single environments into one.

    Raises `RuntimeError` for `kwargs` where there is nothing left to call with them, and `TypeError` for what is
    neither, such as a vector environment with the methods of another library.
    """
    kwargs = kwargs or {}
    if isinstance(source, Sequence) and len(source) == 1 and hasattr(source[0], "step") and not callable(source[0]):
        source = source[0]
    if isinstance(source, Sequence):
        for env_id, each in enumerate(source):
            if not callable(each):
                raise TypeError(
                    f"create_env_fn[{env_id}] must be a callable that makes an environment; got {each!r}: "
                    "pass lambda: make_env() instead of make_env()"
                )
        return make([partial(each, **kwargs) for each in source])
    if not callable(source) and not hasattr(source, "step"):
        raise TypeError(f"create_env_fn must be a vector env, a callable that makes one, or a list; got {source!r}")
    if isinstance(source, type) or not hasattr(source, "step"):
        source = source(**kwargs)
        if other := _is_other_vector_env(source):
            source.close()
            raise TypeError(other)
    elif kwargs:
        raise RuntimeError(
            f"kwargs were passed to {source} but they can't be set, for it is already made: {kwargs}; "
            "pass a callable that makes the environment"
        )
    elif other := _is_other_vector_env(source):
        raise TypeError(other)
    return source if hasattr(source, "env_num") else make([lambda: source])


def _is_other_vector_env(source: Any) -> str | None:
    """What to pass instead, where this is a vector environment that collectors cannot step."""
    tensors = sys.modules.get("collector.torch_vector_env")
    if tensors is not None and isinstance(source, tensors.TorchVectorEnv):
        return "collectors move observations themselves: pass the vector env without TorchVectorEnv around it"
    if isinstance(source, Env) or hasattr(source, "env_num") or not hasattr(source, "num_envs"):
        return None
    multi_agent, rows = sys.modules.get("vecenv.envs.multi_agent"), getattr(source, "unwrapped", source)
    if multi_agent is not None and isinstance(getattr(rows, "env", rows), multi_agent.MultiAgentVectorEnv):
        return (
            f"{type(source).__name__} steps many agents in each environment, and collectors step one agent an "
            "environment: pass a list of functions that make a PettingZooEnv(...) each (of a ParallelEnv: "
            "PettingZooEnv(pettingzoo.utils.parallel_to_aec(env)))"
        )
    inner = getattr(source, "venv", None)
    instead = "its `.venv`" if hasattr(inner, "env_num") else "a list of callables that make one environment each"
    return (
        f"{type(source).__name__} is a vector env of another kind (gymnasium's or Stable-Baselines3's), which resets "
        f"by itself: pass {instead}"
    )
