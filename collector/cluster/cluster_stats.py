"""Statistics of a `RayCollector`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

HEADINGS = ("actor", "node", "pid", "state", "frames", "lost", "in flight", "steps/s", "waiting", "restarts")


@dataclass(frozen=True)
class ActorFailure:
    actor: int
    env_ids: tuple[int, ...]
    node: str
    pid: int
    reason: str
    frames_lost: int
    answer: str
    """Reaction: "restart", "drop" or "raise"."""


@dataclass(kw_only=True)
class FrameCounts:
    """Steps of rollouts. Between batches, `requested == delivered + lost + discarded + in_flight`."""

    requested: int = 0
    """Steps of all requested rollouts."""
    delivered: int = 0
    """Steps in finished batches."""
    lost: int = 0
    """Steps that an actor did not deliver, because it was killed, its rollout raised, or its rollout ended early."""
    discarded: int = 0
    """Steps dropped by `set_seed`, `reset`, `load_state_dict`, `shutdown`, or an exception during a batch."""
    in_flight: int = 0
    """Steps of rollouts in progress or in the object store."""
    restarts: int = 0


@dataclass(kw_only=True)
class ActorStats(FrameCounts):
    actor: int
    state: str = "waits"
    """"starts", "collects", "waits", "no place" (Ray lacks resources) or "dropped"."""
    node: str = "?"
    pid: int = 0
    collecting: float = 0.0
    waiting: float = 0.0
    """Seconds without a call."""

    @property
    def steps_per_second(self) -> float:
        return self.delivered / self.collecting if self.collecting else 0.0

    @property
    def waiting_share(self) -> float:
        seconds = self.collecting + self.waiting
        return self.waiting / seconds if seconds else 0.0


@dataclass(kw_only=True)
class ClusterStats(FrameCounts):
    """Statistics of a `RayCollector`'s actors, and their sums. `str()` is a table."""

    actors: tuple[ActorStats, ...]
    weight_puts: int = 0
    """Number of weight copies put into the object store."""
    failures: tuple[ActorFailure, ...] = ()
    """Last 100 failures."""

    def __post_init__(self) -> None:
        for each in fields(FrameCounts):
            setattr(self, each.name, sum(getattr(actor, each.name) for actor in self.actors))

    @property
    def steps_per_second(self) -> float:
        """Steps per second of all actors that are not dropped."""
        return sum(each.steps_per_second for each in self.actors if each.state != "dropped")

    def __str__(self) -> str:
        rows: list[tuple[Any, ...]] = [HEADINGS]
        for each in self.actors:
            waiting = f"{each.waiting_share:.0%}".replace("%", " %")
            rows.append((each.actor, each.node, each.pid, each.state, *_numbers(each), waiting, each.restarts))
        rows.append(("all", "", "", "", *_numbers(self), "", self.restarts))
        widths = [max(len(str(row[column])) for row in rows) for column in range(len(HEADINGS))]
        return "\n".join("  ".join(str(c).rjust(width) for c, width in zip(row, widths, strict=True)) for row in rows)


def _numbers(stats: ActorStats | ClusterStats) -> tuple[str, ...]:
    return f"{stats.delivered:,}", f"{stats.lost:,}", f"{stats.in_flight:,}", f"{stats.steps_per_second:,.0f}"
