"""One actor as the driver sees it: the calls it has not answered, and what became of those it has."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from collector.cluster.cluster_stats import ActorStats
from collector.cluster.packed_rollout import Columns
from collector.cluster.rollout_actor import Report, Started


@dataclass
class Call:
    """A call that an actor has not answered yet. It answers its calls in their order."""

    kind: str
    """"place" (any answer: it runs), "start", "control", "collect", or "ask" (any other method)."""
    reference: Any
    limit: float | None
    """Seconds that it may take once it is the oldest."""
    number: int
    """Calls of all actors are numbered in the order in which they were made."""
    frames: int = 0
    columns: Any = None
    """A reference to the arrays of a rollout."""


@dataclass
class ActorCalls:
    """One place among the actors, which a restarted actor keeps."""

    index: int
    handle: Any = None
    calls: deque[Call] = field(default_factory=deque)
    started: Started | None = None
    dropped: bool = False
    restarts: int = 0
    restarts_in_a_row: int = 0
    """Since the last rollout."""
    pid: int = 0
    node: str = "?"
    stamp: Any = (0, 0)
    """Of the weights that it was sent last."""
    next_index: int = 0
    """Its envs have begun no episode with this index or a later one, as far as rollouts have come."""
    in_progress: list[int] = field(default_factory=list)
    """The `traj_ids` of the episodes that go on in its next rollout."""
    requested: int = 0
    delivered: int = 0
    lost: int = 0
    discarded: int = 0
    collecting: float = 0.0
    waiting: float = 0.0
    _since: float = 0.0

    def add(self, call: Call) -> None:
        """Note a call that has been made."""
        if not self.calls:
            self._since = time.monotonic()
        self.calls.append(call)
        self.requested += call.frames

    def pop(self) -> Call:
        """Forget the oldest call: it is answered."""
        self._since = time.monotonic()
        return self.calls.popleft()

    def note_rollout(self, report: Report, frames: int, columns: Columns, actors: int) -> None:
        """Note that a rollout has arrived, and which episodes go on in the next one."""
        self.delivered += frames
        self.collecting += report.seconds
        self.waiting += report.waited
        self.restarts_in_a_row = 0
        traj_ids, goes_on = columns["traj_ids"], ~(columns["terminated"][-1] | columns["truncated"][-1])
        self.in_progress = traj_ids[-1][goes_on].tolist()
        self.next_index = max(self.next_index, int(traj_ids.max()) // (traj_ids.shape[1] * actors) + 1)

    def lose(self) -> int:
        """Forget all calls: the actor is gone. Returns the frames that are lost."""
        frames = sum(call.frames for call in self.calls)
        self.lost += frames
        self.calls.clear()
        self.in_progress = []
        return frames

    def take_back(self, frames: int) -> None:
        """Count frames that have arrived as discarded."""
        self.delivered -= frames
        self.discarded += frames

    def discard(self) -> None:
        """Forget all calls: they are not waited for."""
        self.discarded += sum(call.frames for call in self.calls)
        self.calls.clear()

    @property
    def deadline(self) -> float | None:
        """When the oldest call has taken too long, by `time.monotonic`."""
        limit = self.calls[0].limit
        return None if limit is None else self._since + limit

    @property
    def rollouts(self) -> int:
        """Rollouts that it was asked for and that have not arrived."""
        return sum(call.kind == "collect" for call in self.calls)

    def stats(self) -> ActorStats:
        """A copy of the figures."""
        state = "dropped" if self.dropped else "waits"
        if self.calls:
            state = "starts" if self.calls[0].kind in ("place", "start") else "collects"
        return ActorStats(
            actor=self.index,
            state=state,
            node=self.node,
            pid=self.pid,
            requested=self.requested,
            delivered=self.delivered,
            lost=self.lost,
            discarded=self.discarded,
            in_flight=sum(call.frames for call in self.calls),
            restarts=self.restarts,
            collecting=self.collecting,
            waiting=self.waiting,
        )
