"""Statistics of a `RayCollector`: frames and actors, as numbers, a table and a progress bar."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

HEADINGS = ("actor", "node", "pid", "state", "frames", "lost", "in flight", "steps/s", "waiting", "restarts")


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
    """The action that followed: "restart", "drop" or "raise"."""


@dataclass(kw_only=True)
class FrameCounts:
    """Steps of whole rollouts: `requested == delivered + lost + discarded + in_flight` at all times."""

    requested: int = 0
    delivered: int = 0
    """Steps that the driver has taken over; each once."""
    lost: int = 0
    """Steps of the rollouts that an actor had been asked for when it was killed, and of a rollout that raised an error:
    the actor may not have taken all of them."""
    discarded: int = 0
    """Steps of rollouts that were in flight at `set_seed`, `reset`, `load_state_dict` or `shutdown`, and of a batch
    that an exception ended."""
    in_flight: int = 0
    """Steps of rollouts that are being collected, or wait in the object store."""
    restarts: int = 0


@dataclass(kw_only=True)
class ActorStats(FrameCounts):
    """One actor, its restarts included."""

    actor: int
    state: str = "waits"
    """"starts", "collects", "waits", "no place" or "dropped"."""
    node: str = "?"
    pid: int = 0
    collecting: float = 0.0
    """Seconds spent collecting."""
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


@dataclass(kw_only=True)
class ClusterStats(FrameCounts):
    """All actors of a `RayCollector`, and the sums of their counts; `print(stats)` is a table."""

    actors: tuple[ActorStats, ...]
    weight_puts: int = 0
    """Number of times that weights were put into the object store: at most once a version."""
    failures: tuple[ActorFailure, ...] = ()
    """The last failures of actors, 100 at most."""

    def __post_init__(self) -> None:
        for each in fields(FrameCounts):
            setattr(self, each.name, sum(getattr(actor, each.name) for actor in self.actors))

    @property
    def steps_per_second(self) -> float:
        """Steps a second of all actors that are not dropped."""
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


class ProgressBar:
    """Shows on the terminal the frames that are collected, and how fast actors are; needs rich."""

    def __init__(self, total: int, console: Any = None) -> None:
        try:
            from rich import progress
        except ImportError as error:
            raise ImportError("progress=True needs rich: pip install vecenv[job]") from error
        columns = progress.BarColumn(bar_width=16), progress.TaskProgressColumn(), progress.TimeRemainingColumn(True)
        self._bar = progress.Progress(progress.TextColumn("{task.description}"), *columns, console=console)
        self._task = self._bar.add_task("starting", total=total if total > 0 else None)
        self._bar.start()

    def show(self, frames: int, stats: ClusterStats) -> None:
        """Show how far the collector is."""
        alive = sum(each.state not in ("dropped", "no place") for each in stats.actors)
        text = f"{frames:,} frames  {stats.steps_per_second:,.0f} steps/s  {alive} actors"
        if stats.restarts:
            text += f"  {stats.restarts} restarts"
        self._bar.update(self._task, completed=frames, description=text)

    def close(self) -> None:
        """Leave the last state on the terminal."""
        self._bar.stop()
