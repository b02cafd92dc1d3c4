"""Where the frames of a `RayCollector` went, and what each of its actors does."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class ActorFailure:
    """One entry of the report on actors that died, or did not answer in time."""

    actor: int
    env_ids: tuple[int, ...]
    node: str
    pid: int
    reason: str
    frames_lost: int
    answer: str
    """What was done about it: "restart", "drop" or "raise"."""


@dataclass(frozen=True)
class ActorStats:
    """One actor, its restarts included. Frames count whole rollouts, from when they are asked for:
    `requested == delivered + lost + discarded + in_flight`.
    """

    actor: int
    state: str
    """"starts", "collects", "waits" or "dropped"."""
    node: str
    pid: int
    requested: int = 0
    delivered: int = 0
    """Steps that the driver has taken over; each once."""
    lost: int = 0
    """Steps of the rollouts that an actor had been asked for when it was killed: it may not have taken all of them."""
    discarded: int = 0
    """Steps of rollouts that `set_seed`, `reset` or `load_state_dict` made worthless."""
    in_flight: int = 0
    restarts: int = 0
    collecting: float = 0.0
    """Seconds."""
    waiting: float = 0.0
    """Seconds in which the actor had nothing to do."""

    @property
    def steps_per_second(self) -> float:
        """Steps a second while it collects."""
        return self.delivered / self.collecting if self.collecting else 0.0

    @property
    def waiting_share(self) -> float:
        """The share of its time in which the actor had nothing to do."""
        seconds = self.collecting + self.waiting
        return self.waiting / seconds if seconds else 0.0


HEADINGS = ("actor", "node", "pid", "state", "frames", "lost", "in flight", "steps/s", "waiting", "restarts")


@dataclass(frozen=True)
class ClusterStats:
    """All actors of a `RayCollector`; `print(stats)` is a table, and so is `rich.print(stats)`."""

    actors: tuple[ActorStats, ...]
    weight_puts: int
    """How often weights were put into the object store: at most once a version."""
    failures: tuple[ActorFailure, ...]
    """The last failures of actors, 100 at most."""

    @property
    def requested(self) -> int:
        """Steps that actors were asked for: `delivered + lost + discarded + in_flight`."""
        return self._total("requested")

    @property
    def delivered(self) -> int:
        """Steps that the driver has taken over; each once."""
        return self._total("delivered")

    @property
    def lost(self) -> int:
        """Steps of rollouts that were lost with an actor."""
        return self._total("lost")

    @property
    def discarded(self) -> int:
        """Steps of rollouts that `set_seed`, `reset` or `load_state_dict` made worthless."""
        return self._total("discarded")

    @property
    def in_flight(self) -> int:
        """Steps of rollouts that are being collected, or wait in the object store."""
        return self._total("in_flight")

    @property
    def restarts(self) -> int:
        """Restarts of actors."""
        return self._total("restarts")

    def rows(self) -> list[tuple[str, ...]]:
        """The table: a row for each actor, and their total, under `HEADINGS`."""
        rows = [
            (
                str(each.actor),
                each.node,
                str(each.pid),
                each.state,
                f"{each.delivered:,}",
                f"{each.lost:,}",
                f"{each.in_flight:,}",
                f"{each.steps_per_second:,.0f}",
                f"{100 * each.waiting_share:.0f} %",
                str(each.restarts),
            )
            for each in self.actors
        ]
        speed = sum(each.steps_per_second for each in self.actors if each.state != "dropped")
        total = f"{self.delivered:,}", f"{self.lost:,}", f"{self.in_flight:,}", f"{speed:,.0f}", "", str(self.restarts)
        return [*rows, ("all", "", "", "", *total)]

    def __str__(self) -> str:
        rows = [HEADINGS, *self.rows()]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
        return "\n".join("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows)

    def __rich__(self) -> Any:
        from collector.cluster.display import as_table  # here, because it needs rich

        return as_table(self)

    def _total(self, name: str) -> int:
        assert name in {each.name for each in fields(ActorStats)}
        return sum(getattr(each, name) for each in self.actors)
