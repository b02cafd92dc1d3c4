"""The rollout actors of a collector: started, asked, watched, and replaced when they die.

An actor answers its calls in order, so only its oldest call is waited for: what comes after a call that fails is lost
with the actor, and nothing is taken twice. Whatever fails, the actor is killed before anything else is done, because a
call that has taken too long still runs.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from collector.cluster.actor_calls import ActorCalls, Call
from collector.cluster.cluster_stats import ActorFailure
from collector.cluster.packed_rollout import Columns
from collector.cluster.rollout_actor import RolloutActor
from vecenv.backends.host.failure import add_note
from vecenv.errors import EnvStepError, RemoteTraceback, VectorEnvError, WorkerDiedError, WorkerTimeoutError
from vecenv.ray_cluster import RayCluster, cause_of, end_actor, is_loss, make_actor, unscheduled

CLOSE_LIMIT = 5.0
"""Seconds that actors have for closing their vector envs before they are killed."""
logger = logging.getLogger("vecenv")


class Limits(NamedTuple):
    """How long actors may take, and what happens to those that fail."""

    start_timeout: float
    rollout_timeout: float | None
    on_worker_failure: str
    max_restarts: int
    after_restarts: str = "raise"
    """What happens to an actor that has failed `max_restarts` times in a row: "raise" or "drop"."""


class Arrived(NamedTuple):
    """A rollout that an actor has collected. Its arrays are read-only, and lie in Ray's store."""

    actor: ActorCalls
    report: Any
    """A `Report`; the answer of the method, where another one was asked for."""
    frames: int
    """Steps that the actor was asked for."""
    columns: Columns


class ActorPool:
    """`count` rollout actors.

    options: for the actors, of `actor_options`. start_arguments: what the actor of an index is started with.
    actor_class: a class with the methods `whereabouts`, `start` and `close` of `RolloutActor`, made with its index and
    `count`.
    """

    def __init__(
        self,
        cluster: RayCluster,
        count: int,
        options: dict[str, Any],
        limits: Limits,
        start_arguments: Callable[[ActorCalls], tuple[Any, ...]],
        actor_class: type = RolloutActor,
    ) -> None:
        self._ray = cluster.ray
        self._actor_class = actor_class
        self._options, self._limits, self._start_arguments = options, limits, start_arguments
        self.actors = [ActorCalls(index) for index in range(count)]
        self.failures: deque[ActorFailure] = deque(maxlen=100)
        self._broken: list[int] = []
        self._calls = 0
        self._starting = True

    def start(self) -> None:
        """Start all actors. Raises `WorkerTimeoutError` where that takes too long, and what `make_venv` raises."""
        for actor in self.actors:
            self._launch(actor)
        while any(actor.calls for actor in self.actors):
            self._answer_one(None)
        self._starting = False

    @property
    def alive(self) -> list[ActorCalls]:
        """The actors that are not dropped."""
        return [actor for actor in self.actors if not actor.dropped]

    @property
    def frames_in_flight(self) -> int:
        """Steps that actors were asked for and that have not arrived."""
        return sum(call.frames for actor in self.actors for call in actor.calls)

    @property
    def rollouts_in_flight(self) -> int:
        """Rollouts that actors were asked for and that have not arrived."""
        return sum(actor.rollouts for actor in self.actors)

    def ask_rollout(self, actor: ActorCalls, frames: int, *arguments: Any) -> None:
        """Ask for a rollout of `frames` steps; the arguments are those of `RolloutActor.collect`."""
        method = actor.handle.collect.options(num_returns=2)
        self._call(actor, "collect", method, arguments, self._limits.rollout_timeout, frames)

    def ask(self, actor: ActorCalls, name: str, *arguments: Any) -> None:
        """Ask for a method that is no rollout; `next_answer` has what it returns."""
        self._call(actor, "ask", getattr(actor.handle, name), arguments, self._limits.rollout_timeout, 0)

    def next_answer(self, timeout: float | None = None) -> tuple[ActorCalls, Any] | None:
        """The next answer to what was asked by `ask`; None and raises as `next_rollout`. An actor whose code has raised
        goes on.
        """
        arrived = self.next_rollout(timeout)
        return None if arrived is None else (arrived.actor, arrived.report)

    def next_rollout(self, timeout: float | None = None) -> Arrived | None:
        """The rollout that has waited longest, as soon as there is one. None after `timeout` seconds, where nothing is
        asked for, and after a failure that took away what was asked for.

        Raises what the code of an actor raises, and the failure of an actor where it is not absorbed.
        """
        until = None if timeout is None else time.monotonic() + timeout
        failures = len(self.failures), sum(actor.restarts for actor in self.actors)
        while True:
            arrived = self._answer_one(until)
            if arrived is not None:
                return arrived
            if failures != (len(self.failures), sum(actor.restarts for actor in self.actors)):
                return None
            if not any(actor.calls for actor in self.actors) or (until is not None and time.monotonic() >= until):
                return None

    def take_broken(self) -> np.ndarray:
        """The `traj_ids` of the episodes that broke off with their actor since the last time."""
        broken, self._broken = self._broken, []
        return np.array(broken, np.int64)

    def run(self, name: str, arguments: Callable[[ActorCalls], tuple[Any, ...]]) -> None:
        """Call a method of each actor, and wait for all. What they were collecting is discarded. An actor that fails
        meanwhile is restarted with its start arguments, and is not called.
        """
        for actor in self.alive:
            method, limit = getattr(actor.handle, name), self._limits.rollout_timeout
            self._call(actor, "control", method, arguments(actor), limit, 0)
        while any(call.kind == "control" for actor in self.actors for call in actor.calls):
            arrived = self._answer_one(None)
            if arrived is not None:
                arrived.actor.take_back(arrived.frames)
        for actor in self.actors:
            actor.in_progress = []

    def close(self) -> None:
        """Close the vector envs, and end all actors: after some seconds, whatever they do."""
        alive = [actor for actor in self.alive if actor.handle is not None]
        made = [actor for actor in alive if not actor.calls or actor.calls[0].kind not in ("place", "start")]
        left = [call.reference for actor in alive for call in actor.calls]
        for actor in alive:
            actor.discard()
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

    # Calls.

    def _launch(self, actor: ActorCalls) -> None:
        limit = self._limits.start_timeout
        actor.handle = make_actor(self._actor_class, self._options, actor.index, len(self.actors))
        actor.stamp = (0, 0)
        self._call(actor, "place", actor.handle.whereabouts, (), limit, 0)
        self._call(actor, "start", actor.handle.start, self._start_arguments(actor), limit, 0)

    def _call(
        self, actor: ActorCalls, kind: str, method: Any, arguments: Iterable[Any], limit: float | None, frames: int
    ) -> None:
        returned = method.remote(*arguments)
        reference, columns = returned if kind == "collect" else (returned, None)
        self._calls += 1
        actor.add(Call(kind, reference, limit, self._calls, frames, columns))

    def _answer_one(self, until: float | None) -> Arrived | None:
        """Wait until an actor has answered its oldest call, or has failed, and see to that; at most until then."""
        # Those that were asked first come first: ray.wait returns the first of the list that are ready.
        busy = sorted((actor for actor in self.actors if actor.calls), key=lambda actor: actor.calls[0].number)
        if not busy:
            return None
        ends = [end for end in (until, *(actor.deadline for actor in busy)) if end is not None]
        timeout = max(0.0, min(ends) - time.monotonic()) if ends else None
        ready, _ = self._ray.wait([actor.calls[0].reference for actor in busy], num_returns=1, timeout=timeout)
        if ready:
            return self._take(next(actor for actor in busy if actor.calls[0].reference == ready[0]))
        now = time.monotonic()
        for actor in busy:
            if actor.deadline is not None and actor.deadline <= now:
                self._fail(actor, self._overdue(actor))
                break
        return None

    def _take(self, actor: ActorCalls) -> Arrived | None:
        """Take the answer to the oldest call, which is ready."""
        call, limit = actor.calls[0], self._limits.rollout_timeout
        try:
            references = [call.reference] if call.columns is None else [call.reference, call.columns]
            answer, *rest = self._ray.get(references, timeout=limit)
        except Exception as error:
            try:
                failure = self._failure_of(actor, error)
            except Exception:
                actor.pop()  # that call is over; the actor is not
                raise
            if failure is None:
                raise
            self._fail(actor, failure)
            return None
        actor.pop()
        if call.kind == "place":
            actor.pid, actor.node = answer
        elif call.kind == "start":
            actor.started = answer
        elif call.kind == "collect":
            (columns,) = rest
            actor.note_rollout(answer, call.frames, columns, len(self.actors))
            return Arrived(actor, answer, call.frames, columns)
        elif call.kind == "ask":
            return Arrived(actor, answer, 0, {})
        return None

    # Failures.

    def _failure_of(self, actor: ActorCalls, error: Exception) -> VectorEnvError | None:
        """The failure of the actor that an exception of `ray.get` means; None where it means something else. Raises
        what the code of the actor raised.
        """
        if is_loss(error):
            reason = str(error).strip()
            return self._named(actor, WorkerDiedError, f"{self._whose(actor)} died while it {_doing(actor)}: {reason}")
        if isinstance(error, self._ray.exceptions.GetTimeoutError):
            text = f"the rollout of {self._whose(actor)} did not arrive within rollout_timeout"
            return self._named(actor, WorkerTimeoutError, text)
        cause = cause_of(error)
        if cause is error:
            return None
        trace = RemoteTraceback(getattr(error, "traceback_str", str(error)))
        if isinstance(cause, (WorkerDiedError, WorkerTimeoutError)) and actor.calls[0].kind != "ask":
            # The envs' own worker is gone, and with it the vector env of the actor.
            failure = self._named(actor, type(cause), f"in {self._whose(actor)}: {cause}")
            failure.__cause__ = trace
            return failure
        if isinstance(cause, self._ray.exceptions.RayError):  # the exception itself could not be pickled
            cause = EnvStepError(str(cause))
        ids = self._env_ids(actor)
        add_note(cause, f"raised in {self._whose(actor)}" + (f"; its env 0 is env {ids[0]} here" if ids else ""))
        raise cause from trace

    def _overdue(self, actor: ActorCalls) -> VectorEnvError:
        call = actor.calls[0]
        assert call.limit is not None
        if call.kind == "place":
            waiting = sum(bool(each.calls) and each.calls[0].kind == "place" for each in self.actors)
            return WorkerTimeoutError(unscheduled(waiting, len(self.actors), self._options, call.limit))
        if call.kind == "start":
            text = f"{self._whose(actor)} has not made its vector env within start_timeout={call.limit:g} s"
        else:
            text = f"{self._whose(actor)} has taken more than rollout_timeout={call.limit:g} s; it is killed"
        return self._named(actor, WorkerTimeoutError, text)

    def _fail(self, actor: ActorCalls, failure: VectorEnvError) -> None:
        """Kill an actor that has failed, and do what `on_worker_failure` says; raises the failure if that is so."""
        self._kill(actor)
        self._broken += actor.in_progress
        lost = actor.lose()
        answer = "raise" if self._starting else self._limits.on_worker_failure
        if answer == "restart" and actor.restarts_in_a_row >= self._limits.max_restarts:
            answer = self._limits.after_restarts
            add_note(failure, f"it was restarted {actor.restarts_in_a_row} times without a rollout (max_restarts)")
        if answer == "drop" and len(self.alive) == 1:
            answer = "raise"
            add_note(failure, "it was the last actor; the others were dropped before")
        reason = str(failure).partition("\n")[0]
        self.failures.append(
            ActorFailure(actor.index, self._env_ids(actor), actor.node, actor.pid, reason, lost, answer)
        )
        frames = f"{lost} frames lost; " if lost else ""
        logger.warning("%s; %son_worker_failure: %s", reason, frames, answer)
        if answer == "raise":
            raise failure
        if answer == "drop":
            actor.dropped = True
            return
        actor.restarts += 1
        actor.restarts_in_a_row += 1
        self._launch(actor)

    def _kill(self, actor: ActorCalls) -> None:
        """End an actor by Ray, which then reports no death to the terminal; nothing where it is gone."""
        handle, actor.handle = actor.handle, None
        if handle is not None:
            end_actor(handle)

    def _named(self, actor: ActorCalls, kind: type[VectorEnvError], text: str) -> VectorEnvError:
        failure = kind(text)
        failure.env_ids, failure.pid, failure.op = self._env_ids(actor), actor.pid or None, "rollout"
        failure.env_id = next(iter(failure.env_ids), None)
        return failure

    def _env_ids(self, actor: ActorCalls) -> tuple[int, ...]:
        env_num = 0 if actor.started is None else actor.started.env_num
        return tuple(range(actor.index * env_num, (actor.index + 1) * env_num))

    def _whose(self, actor: ActorCalls) -> str:
        """The actor, where it runs, and its envs, in words."""
        where = f"pid {actor.pid} on {actor.node}" if actor.pid else "not placed yet"
        ids = self._env_ids(actor)
        return f"actor {actor.index} ({where}" + (f"; envs {ids[0]} to {ids[-1]})" if ids else ")")


def _doing(actor: ActorCalls) -> str:
    kind = actor.calls[0].kind
    return {"collect": "collected", "control": "answered", "ask": "worked"}.get(kind, "started")
