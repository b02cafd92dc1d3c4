"""`ActorPool`: starts and calls Ray actors, and replaces actors that fail.

An actor answers its calls in order, so the pool waits only for the oldest call of each actor. The pool kills an actor
that fails (`ActorConfig.on_worker_failure`), because an overdue call would keep running. All unanswered calls of the
actor are lost.
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
from vecenv.errors import add_note
from vecenv.ray_cluster import (
    RayCluster,
    cause_of,
    end_actor,
    is_loss,
    make_actor,
    missing_package,
    unreachable_nodes,
    unscheduled,
)

CLOSE_LIMIT = 5.0
logger = logging.getLogger("vecenv")


class ActorCall(NamedTuple):
    kind: str
    """"placement" (an answer shows that the actor runs), "start", "rollout", or "reset" (a call of any method by
    `ActorPool.run`).
    """
    reference: Any
    number: int
    frames: int


@dataclass
class Actor:
    """Record of an actor, kept when the actor restarts."""

    index: int
    handle: Any = None
    calls: deque[ActorCall] = field(default_factory=deque)
    started: Started | None = None
    restarts_in_a_row: int = 0
    restarts_since_seed: int = 0
    dropped: bool = False
    has_no_place: bool = False
    """True if the actor waits for resources after `start_timeout`."""
    weights: Any = None
    next_index: int = 0
    """Index above all episodes in this actor's rollouts. Each env counts its own episodes."""
    in_progress: list[int] = field(default_factory=list)
    """Episode ids (not env ids) of the unfinished episodes, which the next rollout continues."""
    oldest_since: float = 0.0
    """`time.monotonic()` at which the wait for the oldest call began."""
    stats: ActorStats = field(init=False)

    def __post_init__(self) -> None:
        self.stats = ActorStats(actor=self.index)

    @property
    def rollouts(self) -> int:
        return sum(call.kind == "rollout" for call in self.calls)

    @property
    def starts(self) -> bool:
        return bool(self.calls) and self.calls[0].kind in ("placement", "start")

    @property
    def env_ids(self) -> tuple[int, ...]:
        """Ids of this actor's envs, unique in the pool; empty until the actor has started."""
        env_num = 0 if self.started is None else self.started.env_num
        return tuple(range(self.index * env_num, (self.index + 1) * env_num))

    def pop(self) -> ActorCall:
        self.oldest_since = time.monotonic()
        self.stats.in_flight -= self.calls[0].frames
        return self.calls.popleft()

    def clear(self) -> int:
        frames, self.stats.in_flight = self.stats.in_flight, 0
        self.calls.clear()
        return frames

    def figures(self) -> ActorStats:
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
        where = f"pid {self.stats.pid} on {self.stats.node}" if self.stats.pid else "not placed yet"
        ids = self.env_ids
        envs = f"; envs {ids[0]} to {ids[-1]}" if ids else ""
        return f"actor {self.index} ({where}{envs})"


class ReceivedRollout(NamedTuple):
    """Rollout with arrays that are read-only views of Ray's object store."""

    actor: Actor
    report: RolloutReport
    columns: Columns

    @property
    def frames(self) -> int:
        return self.report.frames


class ActorPool:
    """Pool of Ray actors. `start_arguments(actor)` returns the arguments of `RolloutActor.start`."""

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
        """Ids of unfinished episodes of killed actors. The caller empties the list."""
        self._calls = 0
        self._starting = True

    def start(self) -> None:
        """Start the actors. Raises `WorkerTimeoutError` if too few start in time."""
        for actor in self.actors:
            self._launch(actor)
        while any(actor.calls for actor in self.usable):
            self.next_answer()
        self._starting = False

    @property
    def alive(self) -> list[Actor]:
        return [actor for actor in self.actors if not actor.dropped]

    @property
    def usable(self) -> list[Actor]:
        return [actor for actor in self.alive if not actor.has_no_place]

    @property
    def frames_in_flight(self) -> int:
        return sum(actor.stats.in_flight for actor in self.actors)

    def ask(self, actor: Actor, frames: int, *arguments: Any) -> None:
        self._call(actor, "rollout", "collect", arguments, frames)

    def next_answer(self, timeout: float | None = None) -> ReceivedRollout | None:
        """Wait at most `timeout` seconds until an actor answers its oldest call or fails.

        Returns a rollout if one has arrived. Raises exceptions of envs and policy, which the actor survives. Also
        raises an actor's failure, unless the actor is restarted or dropped.
        """
        busy = sorted((actor for actor in self.actors if actor.calls), key=lambda actor: actor.calls[0].number)
        if not busy:
            return None
        now = time.monotonic()
        end = min(math.inf if timeout is None else now + timeout, *(self._deadline(actor) for actor in busy))
        wait = None if end == math.inf else max(0.0, end - now)
        references = [actor.calls[0].reference for actor in busy]
        ready, _ = self._ray.wait(references, num_returns=1, timeout=wait, fetch_local=False)
        if ready:
            return self._receive(busy[references.index(ready[0])])
        overdue = next((actor for actor in busy if self._deadline(actor) <= time.monotonic()), None)
        if overdue is not None:
            failure = self._timeout_error(overdue)
            if overdue.calls[0].kind == "placement" and self._may_wait(overdue):
                self._await_place(overdue, failure)
            else:
                self._handle_failure(overdue, failure)
        return None

    def _may_wait(self, actor: Actor) -> bool:
        if self._starting:
            least = self._config.min_actors
            return least is not None and sum(bool(other.stats.pid) for other in self.alive) >= least
        return self._config.on_worker_failure == "restart" and any(other is not actor for other in self.usable)

    def _await_place(self, actor: Actor, failure: VectorEnvError) -> None:
        """Replace an actor that Ray has not placed within `start_timeout`, because other nodes may be reachable now."""
        self._kill(actor)
        actor.stats.lost += actor.clear()
        if not actor.has_no_place:
            actor.has_no_place = True
            logger.warning("%s waits for a place, and the others collect: %s", actor, failure)
        self._launch(actor)

    def run(self, method: str, arguments: Callable[[Actor], tuple[Any, ...]]) -> None:
        """Call a method of each actor, and wait. Discard rollouts that arrive meanwhile.

        An actor that restarts meanwhile is not called again, so its start arguments must have the effect of the call.
        """
        for actor in self.alive:
            if actor.has_no_place:  # its pending start has old arguments
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
        """Close the vector envs, and kill all actors after at most `CLOSE_LIMIT` seconds."""
        alive = [actor for actor in self.alive if actor.handle is not None]
        made = [actor for actor in alive if not actor.starts]
        left = [call.reference for actor in alive for call in actor.calls]
        for actor in alive:
            actor.stats.discarded += actor.clear()
        if not self._ray.is_initialized():
            return  # Ray's shutdown ended the actors
        if closing := [actor.handle.close.remote() for actor in made]:
            self._ray.wait(closing, num_returns=len(closing), timeout=CLOSE_LIMIT, fetch_local=False)
        if left:  # Ray prints every error that is not fetched
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
        limit = self._config.start_timeout if actor.starts else self._config.rollout_timeout
        return math.inf if limit is None else limit

    def _deadline(self, actor: Actor) -> float:
        return actor.oldest_since + self._limit(actor)

    def _receive(self, actor: Actor) -> ReceivedRollout | None:
        try:
            value = self._ray.get(actor.calls[0].reference, timeout=self._config.rollout_timeout)
        except Exception as error:
            self._handle_failure(actor, self._failure_of(actor, error))
            return None
        call = actor.pop()
        if call.kind == "placement":
            actor.stats.pid, actor.stats.node = value
            actor.has_no_place = False
        elif call.kind == "start":
            actor.started = value
        elif call.kind == "rollout":
            report, columns = value
            actor.stats.lost += call.frames - report.frames
            return ReceivedRollout(actor, report, columns)
        return None

    def _failure_of(self, actor: Actor, error: Exception) -> VectorEnvError:
        if is_loss(error):
            reason = missing_package(error) or str(error).strip()
            return _make_error(actor, WorkerDiedError, f"{actor} died during its {actor.calls[0].kind}: {reason}")
        if isinstance(error, self._ray.exceptions.GetTimeoutError):
            return _make_error(
                actor, WorkerTimeoutError, f"the rollout of {actor} did not arrive within rollout_timeout"
            )
        cause = cause_of(error)
        if cause is error:
            raise error
        trace = RemoteTraceback(getattr(error, "traceback_str", str(error)))
        if isinstance(cause, (WorkerDiedError, WorkerTimeoutError)):
            failure = _make_error(actor, type(cause), f"in {actor}: {cause}")
            failure.__cause__ = trace
            return failure
        actor.stats.lost += actor.pop().frames
        if isinstance(cause, self._ray.exceptions.RayError):  # an exception that could not be pickled
            cause = EnvStepError(str(cause))
        ids = actor.env_ids
        add_note(
            cause,
            f"raised in {actor}"
            + (f"; env 0 of this actor is env {ids[0]} among the envs of all actors" if ids else ""),
        )
        raise cause from trace

    def _timeout_error(self, actor: Actor) -> VectorEnvError:
        kind, limit = actor.calls[0].kind, self._limit(actor)
        if kind == "placement":
            waiting = sum(bool(each.calls) and each.calls[0].kind == "placement" for each in self.actors)
            return WorkerTimeoutError(unscheduled(waiting, len(self.actors), self._options, limit))
        text = f"{actor} has taken more than rollout_timeout={limit:g} s; it is killed"
        if kind == "start":
            text = f"{actor} has not made its vector env within start_timeout={limit:g} s"
        return _make_error(actor, WorkerTimeoutError, text)

    def _handle_failure(self, actor: Actor, failure: VectorEnvError) -> None:
        lost, config = self._end(actor), self._config
        # If all nodes answer, a failure at the start is the program's fault.
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
        actor.restarts_in_a_row += 1
        self._restart(actor)

    def move(self, actor: Actor) -> None:
        """Restart an actor elsewhere, because its host ends soon."""
        lost = self._end(actor)
        logger.warning("%s moves, because Ray announces the end of its host; %d frames lost", actor, lost)
        self._restart(actor)

    def _end(self, actor: Actor) -> int:
        self._kill(actor)
        self.broken += actor.in_progress
        actor.in_progress, lost = [], actor.clear()
        actor.stats.lost += lost
        return lost

    def _restart(self, actor: Actor) -> None:
        actor.stats.restarts += 1
        actor.restarts_since_seed += 1
        self._launch(actor)

    def _kill(self, actor: Actor) -> None:
        handle, actor.handle = actor.handle, None
        if handle is not None:
            end_actor(handle)


def _make_error(actor: Actor, kind: type[VectorEnvError], text: str) -> VectorEnvError:
    failure = kind(text)
    failure.env_ids, failure.pid, failure.op = actor.env_ids, actor.stats.pid or None, "rollout"
    failure.env_id = next(iter(failure.env_ids), None)
    return failure
