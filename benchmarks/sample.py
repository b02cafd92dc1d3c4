"""Result of a timed run of a contender or a loop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """Number of env steps and the time they took. Resets take time but are not steps."""

    steps: int
    calls: int
    wall: float
    cpu_main: float
    """CPU seconds of all threads of the process that calls `step`, without its workers."""
    p50: float = 0.0
    """Median seconds of a call of `step`, with the resets that it causes."""
    p99: float = 0.0
    foreign: float = 0.0
    """Mean number of CPUs that other programs used during the run."""
    outside: float = 0.0
    """Seconds of `wall` in which the caller learned or paused. Only for loops of users."""

    @property
    def rate(self) -> float:
        return self.steps / self.wall

    @property
    def rollout_rate(self) -> float:
        """Steps per second while the caller collects."""
        return self.steps / (self.wall - self.outside) if self.wall > self.outside else 0.0

    @property
    def learning_rate(self) -> float:
        """Steps per second while the caller learns."""
        return self.steps / self.outside if self.outside else 0.0

    @property
    def cpu_per_call(self) -> float:
        return self.cpu_main / self.calls if self.calls else 0.0
