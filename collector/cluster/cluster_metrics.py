"""`ClusterMetrics`: report the figures of a `RayCollector` as metrics of Ray, which Prometheus and Grafana read."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from collector.cluster.cluster_stats import ClusterStats
from vecenv.extending import make_counter

FIGURES = {
    "delivered": ("vecenv_frames", "Steps that the driver has taken over."),
    "lost": ("vecenv_frames_lost", "Steps that were lost with an actor."),
    "restarts": ("vecenv_restarts", "Restarts of actors."),
    "collecting": ("vecenv_collecting_seconds", "Seconds that actors spent collecting."),
    "waiting": ("vecenv_waiting_seconds", "Seconds in which actors had nothing to do."),
}
"""Name and description of the metric of each figure in `ActorStats`."""
EVERY = 1.0
"""Seconds between two reports."""


class ClusterMetrics:
    """Counters with the tag `actor`, and the counter `vecenv_episodes`."""

    def __init__(self) -> None:
        self._counters = {name: make_counter(*texts, tags=("actor",)) for name, texts in FIGURES.items()}
        self._episodes = make_counter("vecenv_episodes", "Episodes that have ended.")
        self._reported = Counter[tuple[int, str]]()
        self._ended = 0
        self._due = 0.0

    def report(self, episodes: int, stats: Callable[[], ClusterStats]) -> None:
        """Add the episodes of a batch, and report all figures if a second has passed."""
        self._ended += episodes
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + EVERY
        for actor in stats().actors:
            for name, counter in self._counters.items():
                news = getattr(actor, name) - self._reported[actor.actor, name]
                if news > 0:
                    counter.inc(news, {"actor": str(actor.actor)})
                    self._reported[actor.actor, name] += news
        if self._ended:
            self._episodes.inc(self._ended)
            self._ended = 0
