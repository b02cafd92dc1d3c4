"""Timing of collectors."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

WORK = {"env": "envs", "policy": "policy", "transfer": "transfers"} | {k: k for k in ("storage", "hooks", "idle")}


class Clock:
    """Seconds per kind of work. `lap(kind)` adds the time since the last lap."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(WORK, 0.0)
        self._last = 0.0

    def begin_batch(self) -> None:
        if not self._last:
            self._last = time.perf_counter()
        self.lap("idle")

    def lap(self, kind: str) -> None:
        now = time.perf_counter()
        self.seconds[kind] += now - self._last
        self._last = now


@dataclass(frozen=True)
class CollectorStats:
    """Seconds per kind of work since the first batch, and counts of steps and episodes.

    >>> print(CollectorStats(env=6.0, policy=2.0, transfer=1.0, storage=0.5, idle=0.5, frames=4000))
    400 frames/s; envs 60 %, policy 20 %, transfers 10 %, storage 5 %, idle 5 %, hooks 0 %
    """

    env: float
    """Sending actions and waiting for envs. While the policy runs, time counts as `policy`."""
    policy: float
    """Calls of the policy. On CUDA, calls only queue operations; `transfer` has the wait."""
    transfer: float
    """Copies between CPU and device, checks of the policy's outputs, and waiting for CUDA."""
    storage: float
    """Writing steps into batches, and finishing batches."""
    idle: float
    """Time between batches, in the caller's code."""
    frames: int
    """Number of collected steps."""
    hooks: float = 0.0
    """Calling the step hook (`on_step=` of `collect`), reading infos, and rendering."""
    broken_episodes: int = 0
    """Number of episodes that ended because their env failed."""
    episodes: int = 0
    """Number of episodes that ended, without broken episodes."""
    mean_return: float = math.nan
    """Mean return of the last 100 of these episodes, or NaN without episodes. A vector of rewards counts with its sum.
    Transforms of rewards, such as `NormalizeReward`, change returns too."""

    @property
    def total(self) -> float:
        """Total seconds."""
        return sum(getattr(self, kind) for kind in WORK)

    @property
    def frames_per_second(self) -> float:
        """Frames per second of total time."""
        return self.frames / self.total if self.total else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """Share of time per kind of work, the largest first."""
        ordered = sorted(WORK, key=lambda kind: -getattr(self, kind))
        return {WORK[kind]: getattr(self, kind) / (self.total or 1.0) for kind in ordered}

    @property
    def bottleneck(self) -> str:
        """Slowest kind of work: "envs", "policy", "transfers", "storage", "hooks" or "idle" (the caller)."""
        return next(iter(self.shares))

    @property
    def bottleneck_share(self) -> str:
        """Bottleneck with its share, for example "envs 60 %"."""
        return _percent(self.bottleneck, self.shares[self.bottleneck])

    def __str__(self) -> str:
        parts = ", ".join(_percent(name, share) for name, share in self.shares.items())
        count = self.broken_episodes
        broken = f"; {count} broken episode{'s' * (count > 1)}" if count else ""
        ended = f"; {self.episodes} episodes, mean return {self.mean_return:g}" if self.episodes else ""
        return f"{self.frames_per_second:,.0f} frames/s; {parts}{ended}{broken}"


def _percent(name: str, share: float) -> str:
    return f"{name} {100 * share:.0f} %"
