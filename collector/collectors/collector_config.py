"""Checked arguments of a collector, with defaults and devices resolved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from collector.basics.interruptor import Interruptor
from collector.batch.step_extras import check_info_keys
from collector.policy.policy_call import ExplorationType, as_exploration_type
from vecenv.arguments import at_least_one, check_count, whole
from vecenv.errors import warn_caller


@dataclass(frozen=True, eq=False, kw_only=True)
class CollectorConfig:
    """Arguments of `SyncDataCollector`. Counts become int, and `info_keys` a tuple of str.

    Raises `TypeError` and `ValueError` for invalid values.
    """

    frames_per_batch: Any
    total_frames: Any = -1
    """-1: no end."""
    device: Any = None
    """Default of `storing_device` and `policy_device`. With any `device`, `env_device` becomes "cpu"."""
    storing_device: Any = None
    policy_device: Any = None
    env_device: Any = None
    max_frames_per_traj: Any = None
    """`None` becomes 0: no limit."""
    init_random_frames: Any = None
    reset_at_each_iter: bool = False
    postproc: Any = None
    split_trajs: bool | None = None
    exploration_type: ExplorationType = ExplorationType.RANDOM
    exploration_mode: str | None = None
    return_same_td: bool = False
    reset_when_done: bool = True
    interruptor: Any = None
    set_truncated: bool = False
    compile_policy: bool | dict[str, Any] = False
    cudagraph_policy: bool | dict[str, Any] = False
    policy_threads: int | None = 1
    episode_seeds: Iterable[tuple[int, int]] | None = None
    info_keys: Any = None

    def __post_init__(self) -> None:
        frames = at_least_one("frames_per_batch", self.frames_per_batch)
        storing, policy, env = resolve_devices(self.device, self.storing_device, self.policy_device, self.env_device)
        checked: dict[str, Any] = {
            "frames_per_batch": frames,
            "total_frames": check_total_frames(self.total_frames, frames),
            "storing_device": storing,
            "policy_device": policy,
            "env_device": env,
            "init_random_frames": limit("init_random_frames", self.init_random_frames),
        }
        if hasattr(self.postproc, "to") and storing is not None:
            checked["postproc"] = self.postproc.to(storing)
        if not self.reset_when_done:
            raise ValueError("reset_when_done=False is not supported, because envs are always reset: leave it out")
        checked["exploration_type"] = as_exploration_type(self.exploration_type, self.exploration_mode)
        checked["info_keys"] = check_info_keys(self.info_keys)
        if self.reset_at_each_iter:
            self.refuse_with_seeds("reset_at_each_iter")
        checked["max_frames_per_traj"] = limit("max_frames_per_traj", self.max_frames_per_traj)
        checked["interruptor"] = Interruptor() if self.interruptor is None else self.interruptor
        if self.policy_threads is not None:
            checked["policy_threads"] = check_count("policy_threads", self.policy_threads)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, user: str, arguments: Mapping[str, Any]) -> CollectorConfig:
        """Build the config. Arguments that are not fields are ignored. `user`: the collector's name in errors."""
        if arguments["frames_per_batch"] is None:
            raise TypeError(f"{user} needs frames_per_batch=, the steps in a batch of all envs together")
        return cls(**{each.name: arguments[each.name] for each in fields(cls) if each.name in arguments})

    def evaluation_arguments(self) -> dict[str, Any]:
        names = "info_keys", "policy_device", "storing_device", "max_frames_per_traj", "policy_threads"
        return {name: getattr(self, name) for name in names}

    @property
    def is_seeded(self) -> bool:
        return self.episode_seeds is not None

    @property
    def job_seed(self) -> int | None:
        """Seed of random and sampled actions, or `None` without `episode_seeds`."""
        return getattr(self.episode_seeds, "job_seed", 0) if self.is_seeded else None

    def refuse_with_seeds(self, what: str) -> None:
        if self.is_seeded:
            raise ValueError(
                f"{what} cannot be used with episode_seeds: each episode is reset with its own seed and played to its "
                "end; limit the episodes with EpisodeSeeds(job_seed, numbers=range(n))"
            )


def resolve_devices(device: Any, storing: Any, policy: Any, env: Any) -> tuple[Any, Any, Any]:
    """Return the devices of batches, policy and envs (`None`: not given). Each default is `device`.

    If both `policy` and `env` are "cpu", the default of `storing` is also "cpu".
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


def limit(name: str, number: Any) -> int:
    return 0 if number is None else max(0, whole(name, number))


def check_total_frames(total_frames: Any, frames_per_batch: int) -> int:
    """Return `total_frames`, or -1 for `None` and negative values. Warn of an incomplete batch, and refuse 0."""
    total_frames = -1 if total_frames is None else max(-1, whole("total_frames", total_frames))
    if total_frames == 0:
        raise ValueError("total_frames must be at least 1, or -1 for a collector without end; got 0")
    if total_frames > 0 and total_frames % frames_per_batch:
        warn_caller(
            f"total_frames={total_frames} is not a multiple of frames_per_batch={frames_per_batch}: it is rounded up "
            f"to {-(-total_frames // frames_per_batch) * frames_per_batch}, so that all batches are full"
        )
    return total_frames
