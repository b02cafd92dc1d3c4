"""`ActorPool`: start Ray actors, call them, watch them, and replace actors that die.

An actor answers its calls in order, so only its oldest call is waited for: what comes after a call that fails is lost
with the actor, and nothing is taken twice. Whatever fails, the actor is killed before anything else is done, because a
call that has taken too long still runs.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from collector.cluster.actor_config import ActorConfig
from collector.cluster.cluster_stats import ActorFailure, ActorStats
from collector.cluster.rollout_actor import Columns, RolloutActor, RolloutReport, Started
from vecenv import EnvStepError, RemoteTraceback, VectorEnvError, WorkerDiedError, WorkerTimeoutError
from vecenv.extending import (
    RayCluster,
    add_note,
    cause_of,
    end_actor,
    is_loss,
    make_actor,
    unreachable_nodes,
    unscheduled,
)

CLOSE_LIMIT = 5.0
"""Seconds that actors have for closing their vector envs before they are killed."""
logger = logging.getLogger("vecenv")


class ActorCall(NamedTuple):
    """A call that an actor has not answered yet."""

    kind: str
    """"placement" (any answer: it runs), "start", "rollout", or "reset" (a call of all actors)."""
    reference: Any
    number: int
    """Calls of all actors are numbered in the order in which they were made."""
    frames: int


@dataclass
class Actor:
    """One place among the actors, which a restarted actor keeps."""

    index: int
    handle: Any = None
    calls: deque[ActorCall] = field(default_factory=deque)
    started: Started | None = None
    """The answer of its `start`."""
    restarts_in_a_row: int = 0
    """Restarts since its last rollout."""
    restarts_since_seed: int = 0
    """Restarts since the last `set_seed` of the collector."""
    dropped: bool = False
    has_no_place: bool = False
    """True if the cluster had no place for its replacement; it waits for one, and is not asked for rollouts."""
    weights: Any = None
    """Reference to the weights that it was sent last; None: none were sent."""
    next_index: int = 0
    """Index above those of all episodes in the rollouts that have arrived."""
    in_progress: list[int] = field(default_factory=list)
    """The `traj_ids` of the episodes that go on in its next rollout."""
    oldest_since: float = 0.0
    stats: ActorStats = field(init=False)

    def __post_init__(self) -> None:
        self.stats = ActorStats(actor=self.index)

    @property
    def rollouts(self) -> int:
        """Rollouts that it was asked for and that have not arrived."""
        return sum(call.kind == "rollout" for call in self.calls)

    @property
    def starts(self) -> bool:
        """True until its `start` has returned."""
        return bool(self.calls) and self.calls[0].kind in ("placement", "start")

    @property
    def env_ids(self) -> tuple[int, ...]:
        """The ids of its envs among those of all actors; none before the first `start` has returned."""
        env_num = 0 if self.started is None else self.started.env_num
        return tuple(range(self.index * env_num, (self.index + 1) * env_num))

    def pop(self) -> ActorCall:
        """Remove the oldest call."""
        self.oldest_since = time.monotonic()
        self.stats.in_flight -= self.calls[0].frames
        return self.calls.popleft()

    def clear(self) -> int:
        """Remove all calls; returns their frames."""
        frames, self.stats.in_flight = self.stats.in_flight, 0
        self.calls.clear()
        return frames

    def figures(self) -> ActorStats:
        """Return a copy of the figures."""
        state = (
            "dropped"
            if self.dropped
            else "no place"
            if self.has_no_place
            else "starts"
            if self.starts
            else "collects"
            if self.calls
            else "waits"
        )
        return replace(self.stats, state=state)

    def __str__(self) -> str:
        """Name the actor, where it runs, and its envs."""
        where = f"pid {self.stats.pid} on {self.stats.node}" if self.stats.pid else "not placed yet"
        ids = self.env_ids
        envs = f"; envs {ids[0]} to {ids[-1]}" if ids else ""
        return f"actor {self.index} ({where}{envs})"


class Arrived(NamedTuple):
    """A rollout that was asked for. Its arrays are read-only, and lie in Ray's store."""

    actor: Actor
    report: RolloutReport
    columns: Columns
    frames: int


class ActorPool:
    """`count` actors on a Ray cluster.

    start_arguments: returns the arguments of `RolloutActor.start` for an actor.
    """

    def __init__(
        self,
        cluster: RayCluster,
        count: int,
        config: ActorConfig,
        start_arguments: Callable[[Actor], tuple[Any, ...]],
    ) -> None:
        self._ray, self._config, self._options = cluster.ray, config, config.ray_options()
        self._start_arguments = start_arguments
        self.actors = [Actor(index) for index in range(count)]
        self.failures: deque[ActorFailure] = deque(maxlen=100)
        self.broken: list[int] = []
        """The `traj_ids` of the episodes that broke off with their actor; for the caller to empty."""
        self._calls = 0
        self._starting = True

    def start(self) -> None:
        """Start all actors. Raises `WorkerTimeoutError` where that takes too long, and what `start` raises."""
        for actor in self.actors:
            self._launch(actor)
        while any(actor.calls for actor in self.actors):
            self.next_answer()
        self._starting = False

    @property
    def alive(self) -> list[Actor]:
        """The actors that are not dropped."""
        return [actor for actor in self.actors if not actor.dropped]

    @property
    def usable(self) -> list[Actor]:
        """The actors that are not dropped and do not wait for a place."""
        return [actor for actor in self.alive if not actor.has_no_place]

    @property
    def frames_in_flight(self) -> int:
        """Steps that actors were asked for and that have not arrived."""
        return sum(actor.stats.in_flight for actor in self.actors)

    def ask(self, actor: Actor, frames: int, *arguments: Any) -> None:
        """Ask for a rollout of so many frames; the arguments are those of `RolloutActor.collect`."""
        self._call(actor, "rollout", "collect", arguments, frames)

    def next_answer(self, timeout: float | None = None) -> Arrived | None:
        """Wait until an actor has answered its oldest call, or has failed, at most `timeout` seconds. Answers come in
        the order in which they were asked for, as far as several are there.

        Returns the rollout, if it is one; None else, also where nothing is asked for. Raises what the
        code of an actor raises, which goes on, and the failure of an actor where it is not absorbed.
        """
        busy = sorted((actor for actor in self.actors if actor.calls), key=lambda actor: actor.calls[0].number)
        if not busy:
            return None
        now = time.monotonic()
        end = min(math.inf if timeout is None else now + timeout, *(self._deadline(actor) for actor in busy))
        wait = None if end == math.inf else max(0.0, end - now)
        references = [actor.calls[0].reference for actor in busy]
        ready, _ = self._ray.wait(references, num_returns=1, timeout=wait, fetch_local=False)
        if ready:  # the first of those in the list that are ready
            return self._take(busy[references.index(ready[0])])
        overdue = next((actor for actor in busy if self._deadline(actor) <= time.monotonic()), None)
        if overdue is not None:
            failure = self._timeout_error(overdue)
            if overdue.calls[0].kind == "placement" and not self._starting and self._may_wait(overdue):
                self._await_place(overdue, failure)
            else:
                self._fail(overdue, failure)
        return None

    def _may_wait(self, actor: Actor) -> bool:
        """Return whether a replacement may wait for a place, because others collect meanwhile."""
        return self._config.on_worker_failure == "restart" and any(other is not actor for other in self.usable)

    def _await_place(self, actor: Actor, failure: VectorEnvError) -> None:
        """Ask for a place again: the nodes may be others by now."""
        self._kill(actor)
        actor.stats.lost += actor.clear()
        if not actor.has_no_place:
            actor.has_no_place = True
            logger.warning("%s waits for a place, and the others collect: %s", actor, failure)
        self._launch(actor)

    def run(self, method: str, arguments: Callable[[Actor], tuple[Any, ...]]) -> None:
        """Call a method of each actor, and wait for all. What they were collecting is discarded. An actor that fails
        meanwhile is restarted with its start arguments, and is not called.
        """
        for actor in self.alive:
            if actor.has_no_place:  # its start arguments are those of now
                self._kill(actor)
                actor.stats.lost += actor.clear()
                self._launch(actor)
            else:
                self._call(actor, "reset", method, arguments(actor))
        while any(call.kind == "reset" for actor in self.actors for call in actor.calls):
            if (arrived := self.next_answer()) is not None:
                arrived.actor.stats.discarded += arrived.frames
        for actor in self.actors:
            actor.in_progress = []

    def close(self) -> None:
        """Close the vector envs, and end all actors: after some seconds, whatever they do."""
        alive = [actor for actor in self.alive if actor.handle is not None]
        made = [actor for actor in alive if not actor.starts]
        left = [call.reference for actor in alive for call in actor.calls]
        for actor in alive:
            actor.stats.discarded += actor.clear()
        if not self._ray.is_initialized():
            return  # the program has shut Ray down, and the actors with it
        if closing := [actor.handle.close.remote() for actor in made]:
            self._ray.wait(closing, num_returns=len(closing), timeout=CLOSE_LIMIT, fetch_local=False)
        if left:  # Ray prints errors that were not fetched
            for reference in self._ray.wait(left, num_returns=len(left), timeout=0, fetch_local=False)[0]:
                with suppress(Exception):
                    self._ray.get(reference, timeout=0)
        for actor in alive:
            self._kill(actor)

    def _launch(self, actor: Actor) -> None:
        actor.handle, actor.weights = make_actor(RolloutActor, self._options, actor.index, len(self.actors)), None
        self._call(actor, "placement", "whereabouts", ())
        self._call(actor, "start", "start", self._start_arguments(actor))

    def _call(self, actor: Actor, kind: str, method: str, arguments: tuple[Any, ...], frames: int = 0) -> None:
        reference = getattr(actor.handle, method).remote(*arguments)
        if not actor.calls:
            actor.oldest_since = time.monotonic()
        self._calls += 1
        actor.calls.append(ActorCall(kind, reference, self._calls, frames))
        actor.stats.requested += frames
        actor.stats.in_flight += frames

    def _limit(self, actor: Actor) -> float:
        """Seconds that the oldest call may take."""
        limit = self._config.start_timeout if actor.starts else self._config.rollout_timeout
        return math.inf if limit is None else limit

    def _deadline(self, actor: Actor) -> float:
        return actor.oldest_since + self._limit(actor)

    def _take(self, actor: Actor) -> Arrived | None:
        """Take the answer to the oldest call, which is ready."""
        try:
            value = self._ray.get(actor.calls[0].reference, timeout=self._config.rollout_timeout)
        except Exception as error:
            self._fail(actor, self._failure_of(actor, error))
            return None
        call = actor.pop()
        if call.kind == "placement":
            actor.stats.pid, actor.stats.node = value
            actor.has_no_place = False
        elif call.kind == "start":
            actor.started = value
        elif call.kind == "rollout":
            report, columns = value
            return Arrived(actor, report, columns, call.frames)
        return None

    # Failures.

    def _failure_of(self, actor: Actor, error: Exception) -> VectorEnvError:
        """Return the failure of the actor that an exception of `ray.get` means. Raises what the code of an actor has
        raised, and what means neither.
        """
        if is_loss(error):
            reason = str(error).strip()
            return _named(actor, WorkerDiedError, f"{actor} died during its {actor.calls[0].kind}: {reason}")
        if isinstance(error, self._ray.exceptions.GetTimeoutError):
            return _named(actor, WorkerTimeoutError, f"the rollout of {actor} did not arrive within rollout_timeout")
        cause = cause_of(error)
        if cause is error:
            raise error
        trace = RemoteTraceback(getattr(error, "traceback_str", str(error)))
        if isinstance(cause, (WorkerDiedError, WorkerTimeoutError)):
            # The envs' own worker is gone, and with it the vector env of the actor.
            failure = _named(actor, type(cause), f"in {actor}: {cause}")
            failure.__cause__ = trace
            return failure
        actor.stats.lost += actor.pop().frames  # that call is over; the actor is not
        if isinstance(cause, self._ray.exceptions.RayError):  # the exception itself could not be pickled
            cause = EnvStepError(str(cause))
        ids = actor.env_ids
        add_note(cause, f"raised in {actor}" + (f"; its env 0 is env {ids[0]} here" if ids else ""))
        raise cause from trace

    def _timeout_error(self, actor: Actor) -> VectorEnvError:
        """The failure of an actor whose oldest call has taken too long."""
        kind, limit = actor.calls[0].kind, self._limit(actor)
        if kind == "placement":
            waiting = sum(bool(each.calls) and each.calls[0].kind == "placement" for each in self.actors)
            return WorkerTimeoutError(unscheduled(waiting, len(self.actors), self._options, limit))
        text = f"{actor} has taken more than rollout_timeout={limit:g} s; it is killed"
        if kind == "start":
            text = f"{actor} has not made its vector env within start_timeout={limit:g} s"
        return _named(actor, WorkerTimeoutError, text)

    def _fail(self, actor: Actor, failure: VectorEnvError) -> None:
        """Kill an actor that has failed, and do what `on_worker_failure` says; raises the failure if that is so."""
        self._kill(actor)
        self.broken += actor.in_progress
        actor.in_progress, lost, config = [], actor.clear(), self._config
        actor.stats.lost += lost
        # A node that is silent, and that Ray still lists, is no fault of the program.
        answer = "raise" if self._starting and not unreachable_nodes() else config.on_worker_failure
        if answer == "restart" and actor.restarts_in_a_row >= config.max_restarts:
            answer = "raise"
            add_note(failure, f"it was restarted {actor.restarts_in_a_row} times without a rollout (max_restarts)")
        if answer == "drop" and len(self.alive) == 1:
            answer = "raise"
            add_note(failure, "it was the last actor; the others were dropped before")
        reason, stats = str(failure).partition("\n")[0], actor.stats
        self.failures.append(ActorFailure(actor.index, actor.env_ids, stats.node, stats.pid, reason, lost, answer))
        logger.warning("%s; %son_worker_failure: %s", reason, f"{lost} frames lost; " if lost else "", answer)
        if answer == "raise":
            raise failure
        if answer == "drop":
            actor.dropped = True
            return
        stats.restarts += 1
        actor.restarts_in_a_row += 1
        actor.restarts_since_seed += 1
        self._launch(actor)

    def _kill(self, actor: Actor) -> None:
        """End an actor by Ray, which then reports no death to the terminal; nothing where it is gone."""
        handle, actor.handle = actor.handle, None
        if handle is not None:
            end_actor(handle)


def _named(actor: Actor, kind: type[VectorEnvError], text: str) -> VectorEnvError:
    """An error that names the envs and the process of the actor."""
    failure = kind(text)
    failure.env_ids, failure.pid, failure.op = actor.env_ids, actor.stats.pid or None, "rollout"
    failure.env_id = next(iter(failure.env_ids), None)
    return failure
