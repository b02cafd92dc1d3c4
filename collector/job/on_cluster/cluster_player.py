"""The driver's side of a job on a Ray cluster: gives episodes to actors, and puts the lines of their shards into the
manifest.

An episode is handed out, then it has ended, then it is recorded. What an actor had that died and is not recorded is
handed out again; so each episode of the plan is in the manifest once, whichever actors play, and whatever becomes of
them.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from collector.cluster.actor_config import ActorConfig
from collector.cluster.actor_pool import Actor, ActorPool
from collector.job.head import SAME, check_unchanged, notes_on
from collector.job.job import Job
from collector.job.on_cluster.connecting import device_of_actors
from collector.job.on_cluster.episode_actor import ActorReport, EpisodeActor
from collector.job.plan import Plan
from collector.job.playing import JobFailedError, check_budget
from collector.job.stopping import Stopping
from collector.store.head import HEAD, LARGEST_HEAD
from collector.store.manifest import read_manifest
from collector.store.writer import StoreWriter
from vecenv.ray_cluster import RayCluster, free_places

MOST_DEATHS = 10
"""Actors that may die while they have one and the same episode."""
NOTICE_WITHIN = 0.5
"""Seconds in which a signal is noticed while no actor answers."""
LAST_COMMITS = 12.0
"""Seconds that actors have, after a signal or an error, for the round in progress and the commit of what is whole."""


@dataclass
class Hand:
    """What an actor has to play, and has played."""

    restarts: int = 0
    """Restarts of the actor that are taken into account."""
    numbers: dict[int, None] = field(default_factory=dict)
    """Handed out, in this order, and not back."""
    ended: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Length and return of the episodes that have ended and are not recorded."""
    pace: int = 0
    """Episodes that ended in its last call."""
    to_open: bool = False
    """Whether it has played a first batch and is still to open the folder."""


class ClusterPlayer:
    """Plays what is left of a plan, as `Player` does, by actors on a cluster.

    `open_folder(head)` is called with the head that the first actor reports, and returns the writer that keeps the
    manifest; `on_report(report)` after each report; `on_lost(episodes)` with the lengths and returns of those that were
    reported as ended and are to be played again.
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        stop: Stopping,
        cluster: RayCluster,
        actors: int | None,
        folder: Path,
        open_folder: Callable[[dict[str, Any]], StoreWriter],
        on_report: Callable[[ActorReport], None],
        on_lost: Callable[[list[tuple[int, float]]], None],
    ) -> None:
        self._job, self._plan, self._stop, self._folder = job, plan, stop, Path(os.path.abspath(folder))
        self._open_folder, self._on_report, self._on_lost = open_folder, on_report, on_lost
        self._device = device_of_actors(job)
        gpus = 1 if self._device == "cuda" else 0
        config = ActorConfig(
            num_cpus=job.num_workers or 1,
            num_gpus=gpus,
            start_timeout=120.0,
            rollout_timeout=None,
            after_restarts="drop",
        )
        count = max(1, free_places(config.ray_options())) if actors is None else actors
        self.actors = min(count, job.episodes or count)
        """How many there are."""
        self._pool = ActorPool(cluster, self.actors, config, self._start_arguments, EpisodeActor)
        self._hands = [Hand() for _ in range(self.actors)]
        self._deaths: Counter[int] = Counter()
        self._writer: StoreWriter | None = None
        self._head: dict[str, Any] = {}
        self._digest = ""
        self._recorded: set[str] = set()
        self.frames = 0
        """Steps taken, those of episodes that are not whole too."""
        self.retried = 0
        """How often an episode was played again alone."""
        self.skipped_before = 0
        """Episodes that earlier runs of the job have given up."""
        self.skipped: dict[int, str] = {}
        """Episodes that were given up, with the last error of each."""
        self.notes: dict[str, None] = {}
        """What there is to know about the actors."""

    def play(self) -> None:
        """Play until the plan is complete and its episodes are in the manifest, or a signal came.

        Raises as `Player.play`; `DatasetError` where an actor cannot write to the folder, `WorkerDiedError` and
        `WorkerTimeoutError` where the last actor could not be started again. Whole episodes until then are in the
        manifest, but for those of actors that do not answer.
        """
        if self._is_over():
            return
        try:
            try:
                with self._stop.leaving_in_time():
                    self._pool.start()
            except KeyboardInterrupt:  # what Ray makes of `OutOfTime`
                if self._stop.is_stopped:
                    return
                raise
            while not self._is_over():
                try:
                    self._play()
                except Exception:
                    with suppress(Exception):  # the first error is raised
                        self._flush(stopping=True)
                    raise
                self._flush(stopping=False)
        finally:
            self._pool.close()
            for hand in self._hands:  # so that the plan is what is in the manifest
                self._lose(hand)

    @property
    def failures(self) -> int:
        """Actors that died or did not answer."""
        return len(self._pool.failures)

    def _is_over(self) -> bool:
        return self._is_complete() or self._stop.is_stopped

    def _is_complete(self) -> bool:
        return self._plan.is_complete and not any(self._needs_flush(hand) for hand in self._hands)

    def _needs_flush(self, hand: Hand) -> bool:
        """Whether it has episodes that are not recorded, and belong to the job as far as is known."""
        complete, end = self._plan.is_complete, self._plan.end
        return any(not complete or number < end for number in hand.ended)

    # Asking.

    def _start_arguments(self, actor: Actor) -> tuple[Any, ...]:
        skipped = self.skipped_before + len(self.skipped)
        return self._job, str(self._folder), self._device, skipped, os.getcwd(), sys.path

    def _play(self) -> None:
        """Have all episodes played, or as many as there are until a signal."""
        while not (self._plan.is_complete or self._stop.is_stopped):
            for actor in self._pool.alive:
                if not actor.calls:
                    self._ask(actor)
            self._answer(NOTICE_WITHIN)

    def _ask(self, actor: Actor) -> None:
        """Ask an actor that has nothing to do for what is next."""
        hand = self._hands[actor.index]
        if self._ask_to_open(actor):
            return
        # As many as it can begin at once, and what it may end in the next two calls.
        wanted = max(0, self._job.num_envs + 2 * hand.pace - len(hand.numbers))
        fresh = [number for number, _ in islice(self._plan, wanted)]
        hand.numbers.update(dict.fromkeys(fresh))
        if hand.numbers:
            self._pool.ask(actor, "play", fresh, len(fresh) == wanted)
        elif hand.ended:  # it has nothing to do, perhaps for long
            self._pool.ask(actor, "flush")

    def _ask_to_open(self, actor: Actor) -> bool:
        hand = self._hands[actor.index]
        asked, hand.to_open = hand.to_open, False
        if asked:
            self._pool.ask(actor, "open", self._digest, self._recorded)
        return asked

    def _flush(self, stopping: bool) -> None:
        """Have what is whole recorded: at the end all that the job needs; after a signal or an error, in time."""
        until = time.monotonic() + LAST_COMMITS
        alive = [actor for actor in self._pool.alive if actor.handle is not None]
        asked = [actor for actor in alive if self._needs_flush(self._hands[actor.index])]
        for actor in asked:
            self._ask_to_open(actor)
            self._pool.ask(actor, "flush")
        first: Exception | None = None
        while any(actor.calls for actor in asked):
            stopping = stopping or self._stop.is_stopped
            if stopping and time.monotonic() >= until:
                break
            if not stopping:
                until = time.monotonic() + LAST_COMMITS
            try:
                self._answer(NOTICE_WITHIN)
            except Exception as error:
                first, stopping = first or error, True
        if first is not None:
            raise first

    # Answers.

    def _answer(self, timeout: float) -> None:
        """Take the next answer, if there is one in time."""
        answer = self._pool.next_answer(timeout)
        self._take_back()
        if answer is not None:
            self._take(answer.actor, answer.value)

    def _take(self, actor: Actor, report: ActorReport) -> None:
        hand, plan = self._hands[actor.index], self._plan
        if report.head is not None:
            self._take_head(actor, report.head)
        for number, length, total in report.ended:
            hand.numbers.pop(number, None)
            hand.ended[number] = length, total
            plan.finished(number, length)
        if report.frames:
            hand.pace = len(report.ended)
        self.frames += report.frames
        self.retried += report.retried
        if report.ended or report.lines:
            actor.restarts_in_a_row = 0
        self._record(hand, report)
        self._skip(hand, report.skipped)
        self._on_report(report)

    def _take_head(self, actor: Actor, head: dict[str, Any]) -> None:
        """Open the folder with the first head; the others are to be the same."""
        head = {**head, "job": msgspec.to_builtins(self._job), "ran_on": {**head["ran_on"], "actors": self.actors}}
        if self._writer is None:
            self._head, self._recorded = head, set()
            self._writer = self._open_folder(head)
            self._recorded = {shard.path for shard in read_manifest(self._writer.opened).shards}
            self._digest = hashlib.sha256(self._writer.opened.read(HEAD, LARGEST_HEAD)).hexdigest()
        else:
            check_unchanged(self._folder, *({name: each[name] for name in SAME} for each in (self._head, head)))
            for note in notes_on(self._head, head):
                self.notes[f"on the node {actor.stats.node} {note}"] = None
        self._hands[actor.index].to_open = True

    def _record(self, hand: Hand, report: ActorReport) -> None:
        """Put the lines of an actor's commits into the manifest."""
        if not report.lines:
            return
        assert self._writer is not None
        self._writer.record(report.lines)
        for line in report.lines:
            if "shard" not in line:
                continue
            self._recorded.add(line["shard"])
            for number, length in zip(line["episodes"], line["lengths"], strict=True):
                hand.numbers.pop(number, None)
                if hand.ended.pop(number, None) is None:  # its report was lost with an error
                    self._plan.finished(number, length)

    def _skip(self, hand: Hand, skipped: dict[int, str]) -> None:
        for number, reason in skipped.items():
            self.skipped[number] = reason
            check_budget(self._job, self.skipped_before + len(self.skipped), number, reason)
            hand.numbers.pop(number, None)
            self._plan.finished(number, 0)

    def _take_back(self) -> None:
        """Hand out once more what the actors had that have failed since the last time."""
        for actor, hand in zip(self._pool.actors, self._hands, strict=True):
            if actor.stats.restarts == hand.restarts and not (actor.dropped and (hand.numbers or hand.ended)):
                continue
            self._deaths.update(list(hand.numbers))
            self._hands[actor.index] = Hand(restarts=actor.stats.restarts)
            self._lose(hand)
            if found := sorted(number for number in hand.numbers if self._deaths[number] >= MOST_DEATHS):
                episodes = f"one of the episodes {str(found[:20])[1:-1]}" if len(found) > 1 else f"episode {found[0]}"
                raise JobFailedError(
                    f"{MOST_DEATHS} actors have died while they had {episodes}; the last failure: "
                    f"{self._pool.failures[-1].reason}. An env that ends its process does so; with backend = "
                    '"shmem" the process is not the actor\'s, and the episode is skipped and counted'
                )

    def _lose(self, hand: Hand) -> None:
        self._plan.lost(hand.ended)
        self._plan.again(hand.numbers)
        self._on_lost(list(hand.ended.values()))
