"""The result of one timed run of one contender, or of one loop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """Environment steps and the clock readings around them. Resets take time but are not steps."""

    steps: int
    calls: int
    wall: float
    cpu_main: float
    """CPU seconds of the process that calls `step`, all its threads, without its workers."""
    p50: float = 0.0
    """Median seconds of one call of `step`, the resets that it caused included."""
    p99: float = 0.0
    foreign: float = 0.0
    """CPUs that everything outside of the contender's process tree kept busy meanwhile."""
    outside: float = 0.0
    """Seconds of `wall` in which the caller learned or paused instead of collecting; for loops of users."""

    @property
    def rate(self) -> float:
        return self.steps / self.wall

    @property
    def rollout_rate(self) -> float:
        """Steps a second while the caller collects."""
        return self.steps / (self.wall - self.outside) if self.wall > self.outside else 0.0

    @property
    def learning_rate(self) -> float:
        """Steps a second while the caller learns from them."""
        return self.steps / self.outside if self.outside else 0.0

    @property
    def cpu_per_call(self) -> float:
        return self.cpu_main / self.calls if self.calls else 0.0
