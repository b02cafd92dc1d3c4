"""Statistics of a `RayCollector`, as a table, a progress bar and Ray metrics."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from vecenv.ray_cluster import make_counter

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


class ProgressBar:
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
        alive = sum(each.state not in ("dropped", "no place") for each in stats.actors)
        text = f"{frames:,} frames  {stats.steps_per_second:,.0f} steps/s  {alive} actors"
        if stats.restarts:
            text += f"  {stats.restarts} restarts"
        self._bar.update(self._task, completed=frames, description=text)

    def close(self) -> None:
        self._bar.stop()


COUNTERS = {
    "delivered": ("vecenv_frames", "Steps in finished batches."),
    "lost": ("vecenv_frames_lost", "Steps that an actor did not deliver."),
    "restarts": ("vecenv_restarts", "Restarts of actors."),
    "collecting": ("vecenv_collecting_seconds", "Seconds that actors spent collecting."),
    "waiting": ("vecenv_waiting_seconds", "Seconds in which actors had nothing to do."),
}
"""Name and description of each metric, by field of `ActorStats`."""
REPORT_INTERVAL = 1.0


class ClusterMetrics:
    """Reporter of `COUNTERS` per actor, and of `vecenv_episodes`, as Ray metrics for Prometheus and Grafana."""

    def __init__(self) -> None:
        self._counters = {name: make_counter(*texts, tags=("actor",)) for name, texts in COUNTERS.items()}
        self._episodes = make_counter("vecenv_episodes", "Episodes that have ended.")
        self._reported = Counter[tuple[int, str]]()
        self._ended = 0
        self._due = 0.0

    def report(self, episodes: int, stats: Callable[[], ClusterStats]) -> None:
        """Add the episodes of a batch. Report all metrics at most once per second."""
        self._ended += episodes
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + REPORT_INTERVAL
        for actor in stats().actors:
            for name, counter in self._counters.items():
                news = getattr(actor, name) - self._reported[actor.actor, name]
                if news > 0:
                    counter.inc(news, {"actor": str(actor.actor)})
                    self._reported[actor.actor, name] += news
        if self._ended:
            self._episodes.inc(self._ended)
            self._ended = 0
