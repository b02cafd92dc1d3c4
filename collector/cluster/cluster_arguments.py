"""The arguments of `RayCollector`, checked before anything is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from collector.batch.info_columns import check_info_keys
from vecenv.engine.arguments import check_count, check_timeout

OF_ACTORS = {
    "backend",
    "compile_policy",
    "cudagraph_policy",
    "env_device",
    "exploration_mode",
    "exploration_type",
    "info_keys",
    "max_frames_per_traj",
    "policy_threads",
    "reset_at_each_iter",
    "reset_when_done",
    "set_truncated",
}
"""Arguments of `SyncDataCollector` that go on to the actors as they are."""


def check_options(options: Mapping[str, Any]) -> None:
    """TypeError for an argument that actors do not take."""
    if unknown := options.keys() - OF_ACTORS:
        raise TypeError(f"RayCollector has no arguments {sorted(unknown)}; beside its own it takes {sorted(OF_ACTORS)}")
    check_info_keys(options.get("info_keys"))


def check_sources(make_venv: Any, policy: Any) -> None:
    """TypeError where the order is mixed up, or `make_venv` makes nothing."""
    if hasattr(policy, "env_num"):
        raise TypeError(f"{policy!r} is passed as the policy: make_venv comes first, then the policy")
    many = isinstance(make_venv, Sequence) and not isinstance(make_venv, str)
    if (not callable(make_venv) and not many) or (hasattr(make_venv, "step") and not isinstance(make_venv, type)):
        raise TypeError(
            f"make_venv must be a callable that makes a vector env in each actor, or a list of callables that make an "
            f"env each; got {make_venv!r}"
        )


def check_failure_policy(on_worker_failure: str) -> str:
    """ValueError for one that does not exist."""
    if on_worker_failure not in ("restart", "drop", "raise"):
        raise ValueError(f'on_worker_failure must be "restart", "drop" or "raise", got {on_worker_failure!r}')
    return on_worker_failure


def check_gpus(policy_device: Any, num_gpus: float) -> None:
    """ValueError for policies on GPUs that the actors do not have."""
    if str(policy_device).startswith("cuda") and not num_gpus:
        raise ValueError(
            f"policy_device={str(policy_device)!r} needs a GPU in each actor, and num_gpus is 0: pass num_gpus=1, "
            "or a fraction such as 0.25, so that four actors share one"
        )


def kwargs_of_actors(
    create_env_kwargs: Mapping[str, Any] | Sequence[dict[str, Any]] | None, count: int
) -> Sequence[dict[str, Any]]:
    """The keyword arguments of each actor; ValueError for a list of another length."""
    if create_env_kwargs is None or isinstance(create_env_kwargs, Mapping):
        return [dict(create_env_kwargs or {})] * count
    if len(create_env_kwargs) != count:
        raise ValueError(
            f"create_env_kwargs has {len(create_env_kwargs)} entries for {count} actors; pass one dict, or a list with "
            "one for each actor"
        )
    return create_env_kwargs


def check_depth(max_in_flight: int | None, sync: bool) -> int:
    """How many rollouts an actor may be asked for; ValueError for more than one with `sync`."""
    depth = check_count("max_in_flight", (1 if sync else 2) if max_in_flight is None else max_in_flight)
    if sync and depth > 1:
        raise ValueError("max_in_flight above 1 needs sync=False: a rollout would begin with old weights")
    return depth


def check_straggler_timeout(straggler_timeout: float | None, sync: bool) -> float | None:
    """ValueError for one without `sync`."""
    if straggler_timeout is not None and not sync:
        raise ValueError("straggler_timeout needs sync=True: without it no batch waits for a slow actor")
    return check_timeout(straggler_timeout, "straggler_timeout")
