"""Engine: runs rounds of operations on the envs of a backend, and keeps what is known of them.

BaseVectorEnv, facades, collectors
    |  exchange / send, receive / reset / call / close
Engine: checks, status bytes, recovery, results, counters
    |  the eight methods of the seam
Backend: envs in this process, in threads, in worker processes, ...
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.backends.base import NOTHING_BESIDES, Backend, Call, Taken
from vecenv.backends.host.failure import Failure
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.layout import Layout, Leaf, common_layout
from vecenv.engine import lifetime
from vecenv.engine.actions import batch_actions
from vecenv.engine.checks import check_spaces_equal
from vecenv.engine.lifetime import Lifetime
from vecenv.engine.recovery import Recovery
from vecenv.engine.results import Results
from vecenv.engine.round_requests import BOOL, mixed_ops, reset_arguments, reset_rows
from vecenv.engine.statistics import Statistics
from vecenv.errors import ClosedError, ConcurrentCallError, Partial, VectorEnvError

NO_ARGUMENTS: dict[str, Any] = {}
INTERRUPTS = (KeyboardInterrupt, SystemExit)
"""What handlers of signals raise in the middle of a call, most of all for Ctrl-C."""
DRAIN_TIMEOUT = 5.0
"""Seconds that a reset waits for the envs of an interrupted call before it starts their workers again."""

Received = tuple["np.ndarray | None", "list[int]", Taken]
"""(ids or None for all, the same as a list, the results): what `Results.rows` makes a batch of."""


class Engine:
    """Runs rounds on `backend`: the machinery of one vector env, without its public face.

    A round is started by `send` and ended by `receive`; `exchange` is both for a round of all envs. Guarantees: what is
    refused leaves every env untouched; the failure of one env loses no result of another (`error.partial`); an
    interrupted call (KeyboardInterrupt) abandons the results in flight, and its envs accept only a reset. One thread
    at a time; another one may call `close`, `alive`, `stats` and `waiting_ids`.

    Arguments are those of `BaseVectorEnv`; `name` is the name of the vector env's class for messages, `warns` whether
    an engine that is dropped unclosed warns.
    """

    def __init__(
        self,
        backend: Backend,
        env_fns: Sequence[Callable[[], Any]],
        *,
        wait_num: int | None = None,
        timeout: float | None = None,
        num_workers: int | None = None,
        copy: bool = True,
        stack_obs: bool = True,
        on_error: str = "raise",
        max_restarts: int = 5,
        strict: bool = False,
        check_spaces: bool = False,
        check_actions: bool = False,
        name: str = "Engine",
        warns: bool = True,
    ) -> None:
        n = self.env_num = len(env_fns)
        self.wait_num = n if wait_num is None else wait_num
        self.timeout = timeout
        self.is_async = self.wait_num != n or timeout is not None
        self.closed = False
        self._name, self._forks = name, lifetime.forks
        self._backend = backend
        self._strict, self._check_actions = strict, check_actions
        self.recovery = Recovery(backend, on_error, max_restarts)
        layout = self._open(env_fns, num_workers, check_spaces, warns)
        self.num_workers, self.autoresets = backend.num_workers, backend.autoresets
        self._action_layout = layout.action
        self._plain: tuple[Any, Any] = (None, None)
        """Shape and dtype of actions of all envs that need no second look."""
        if isinstance(layout.action, Leaf) and not strict and not check_actions:
            self._plain = (n, *layout.action.shape), layout.action.dtype
        self.all_ids = list(range(n))
        spaced = any(report.observation_space is not None for report in self.reports)
        self.results = Results(self.arena, layout, self.all_ids, copy=copy, stack_obs=stack_obs, spaced=spaced)
        self.statistics = Statistics()
        self._unreset = np.ones(n, dtype=np.bool_)
        """`strict`: the envs that need a reset before their next step."""
        self._order: list[np.ndarray | None] = []
        """The ids of each round in flight, as they were asked for (None: all)."""
        self._resets_in_flight: dict[int, dict[str, Any]] = {}
        """The envs that are being reset, with their arguments."""
        self._abandoned: set[int] = set()
        """The envs whose results an interrupted call left in flight."""
        self._status: Any = self.arena.status.data
        """The status byte of each env: the only record of what is in flight."""
        self._all_done, self._all_idle = bytes([opcodes.DONE]) * n, bytes([opcodes.IDLE]) * n
        self._all_answered = self._enough(n)

    def _open(self, env_fns: Sequence[Any], num_workers: int | None, check_spaces: bool, warns: bool) -> Layout:
        """Make the envs and the memory for their batches, or close what was made of them."""
        # Before anything is started, so that an interrupted constructor leaves nothing behind.
        self._lifetime = Lifetime(self, self._backend, self._name, warns)
        try:
            self.reports = self._backend.start(env_fns, num_workers, self.is_async)
            if check_spaces:
                check_spaces_equal(self.reports)
            layout = common_layout([r.observation_space for r in self.reports], [r.action_space for r in self.reports])
            self.arena = self._backend.bind(layout)
        except BaseException:
            self.closed = True
            self._lifetime.discard()
            self._backend.close(lifetime.CLOSE_TIMEOUT)
            raise
        return layout

    # Rounds.

    def exchange(self, action: Any, reset: Any = None, autoreset: bool = False) -> Taken:
        """A round of all envs, from its start to its results, which are rows of the arena and what is returned.

        `action` has one row an env; envs in `reset` (ids, or a mask) are reset instead.
        """
        begin = perf_counter()
        try:
            if not self._start_plain(action, reset, autoreset):
                self._start_steps(None, action, reset, autoreset, NO_ARGUMENTS)
            try:
                waited = self._backend.wait(self._all_answered, None)
                taken = self._backend.take(None)
            except Exception as error:
                self.abandon(error, self.all_ids)
                raise
            if taken is not NOTHING_BESIDES or self._strict or self._resets_in_flight or self.recovery.rows:
                taken = self._settle(None, self.all_ids, taken)
        except INTERRUPTS as error:
            self.abandon(error, self.all_ids)
            raise
        seconds, statistics = perf_counter() - begin, self.statistics
        statistics.wait_seconds += waited
        statistics.dispatch_seconds += seconds - waited
        statistics.round_seconds.append(seconds)
        return taken

    def send(self, action: Any, ids: np.ndarray | None, reset: Any, autoreset: bool, kwargs: dict[str, Any]) -> None:
        """Check a round of the envs `ids` (None: all) and start it; `kwargs` go to the envs in `reset`."""
        begin = perf_counter()
        try:
            if action is None:
                self.check_open()
                self._start_resets(ids, kwargs)
            elif ids is not None or kwargs or not self._start_plain(action, reset, autoreset):
                self._start_steps(ids, action, reset, autoreset, kwargs)
            self._order.append(ids)
        except INTERRUPTS as error:
            self.abandon(error, self.all_ids if ids is None else ids.tolist())
            raise
        self.statistics.dispatch_seconds += perf_counter() - begin

    def receive(self) -> Received:
        """Wait for what is in flight, or as much of it as `wait_num` and `timeout` say, and take it."""
        self.check_open()
        whole = len(self._order) == 1 and self._order[0] is None and not self.is_async
        before = self.all_ids if whole else self.waiting_ids
        try:
            return self._receive()
        except INTERRUPTS as error:
            self.abandon(error, before)
            raise

    def _receive(self) -> Received:
        order = self._order
        if len(order) == 1 and order[0] is None and not self.is_async:
            self._wait(self._all_answered, None)
            self._order = []
            return None, self.all_ids, self._take(None, self.all_ids)
        in_flight = self.in_flight
        if in_flight == 0:
            raise RuntimeError("step(None): no step is in flight; call step(action) or send(action) first")
        need = min(self.wait_num, in_flight) if self.is_async else in_flight
        self._wait(self._enough(need), self.timeout)
        if self.is_async and not (one := self._enough(1))():
            self._wait(one, None)
        ids = self._finished_ids()
        asked = ids.tolist()
        return ids, asked, self._take(ids, asked)

    def reset(self, ids: np.ndarray | None, kwargs: dict[str, Any]) -> tuple[Any, np.ndarray]:
        """Reset these envs (None: all) and wait for them, also in async mode: (obs, info)."""
        self.check_open()
        asked = self.all_ids if ids is None else ids.tolist()
        try:
            self._start_resets(ids, kwargs)
            self._wait(self._answered(asked), None)
            extras = self._take(ids, asked).extras
            return self.results.obs(ids, extras), self.results.info(asked, extras)
        except INTERRUPTS as error:
            self.abandon(error, asked)
            raise

    # The start of a round.

    def _start_plain(self, action: Any, reset: Any, autoreset: bool) -> bool:
        """Start the round that nearly every round is: all envs, actions as the arena has them, `reset` None or a mask.

        False if it is another, or if anything is out of the ordinary: then nothing is done, and `_start_steps` does
        the same after more questions. It is here because most of the caller's time went into them.
        """
        shape, dtype = self._plain
        if (
            action.__class__ is not np.ndarray
            or action.shape != shape
            or action.dtype is not dtype
            or self.closed
            or self._forks != lifetime.forks
            or self._status.tobytes() != self._all_idle
            or self._backend.lost
            or self.recovery.errors
            or (autoreset and not self.autoresets)
        ):
            return False
        ops: Any = opcodes.STEP_RESET if autoreset else opcodes.STEP
        resets = 0
        if reset is not None:
            if reset.__class__ is not np.ndarray or reset.dtype is not BOOL or reset.shape != self.arena.status.shape:
                return False
            if chosen := reset.nonzero()[0].tolist():
                ops, resets = mixed_ops(ops, reset, opcodes.RESET), len(chosen)
        self.arena.action[...] = action
        if resets:
            self._resets_in_flight = dict.fromkeys(chosen, NO_ARGUMENTS)  # of idle envs there is none in flight
        statistics = self.statistics
        statistics.rounds += 1
        statistics.resets += resets
        statistics.steps += self.env_num - resets
        try:
            self._backend.send(None, ops, NO_ARGUMENTS)  # type: ignore[arg-type]
        except Exception as error:
            self.abandon(error, self.all_ids)
            raise
        return True

    def _start_steps(
        self, ids: np.ndarray | None, action: Any, reset: Any, autoreset: bool, kwargs: dict[str, Any]
    ) -> None:
        self.check_open()
        resets = None if reset is None else reset_rows(ids, reset, self.env_num)
        if autoreset and not self.autoresets:
            raise TypeError(
                f"{self._name} cannot reset an env in the round of its last step (autoreset=True); use reset(id), or "
                "step(action, reset=terminated | truncated) in the next round"
            )
        asked = self.all_ids if ids is None else ids.tolist()
        batch = batch_actions(action, asked, self._action_layout)
        if self._check_actions:
            self._refuse_bad_actions(asked, batch, resets)
        self._check_ready(ids, resets)
        objects = batch.__class__ is list
        ops: Any = opcodes.STEP_OBJECT if objects else opcodes.STEP
        payloads: dict[int, Any] = dict(zip(asked, batch, strict=True)) if objects else {}
        if autoreset:
            ops |= opcodes.AUTORESET
        chosen = [] if resets is None else resets.nonzero()[0].tolist()
        args: dict[int, dict[str, Any]] = {}
        if chosen:
            chosen = chosen if ids is None else ids[resets].tolist()
            args = reset_arguments(chosen, kwargs)
            for i in chosen if objects else ():
                del payloads[i]
            if kwargs:
                payloads.update(args)
            ops = mixed_ops(ops, resets, opcodes.RESET_KWARGS if kwargs else opcodes.RESET)  # type: ignore[arg-type]
        elif kwargs:
            raise TypeError(f"send() got {sorted(kwargs)}, which are for resets, but no ids to reset")
        encoded = self._backend.codec.encode(asked, ops, None if objects else batch, payloads)
        if not objects:
            nest.put(self.arena.action, ... if ids is None else ids, batch)
        if chosen:
            self._begin_resets(args)
        self._start(ids, ops, encoded)
        self.statistics.steps += len(asked) - len(chosen)

    def _start_resets(self, ids: np.ndarray | None, kwargs: dict[str, Any]) -> None:
        if self._abandoned:
            self._drain(ids)
        self.check_idle(ids)
        asked = self.all_ids if ids is None else ids.tolist()
        args = reset_arguments(asked, kwargs)
        op = opcodes.RESET_KWARGS if kwargs else opcodes.RESET
        encoded = self._backend.codec.encode(asked, op, None, args if kwargs else NO_ARGUMENTS)  # type: ignore[arg-type]
        self._backend.wait(None, None)  # what ended while it was idle is started again at once
        self._begin_resets(args)
        self._start(ids, op, encoded)

    def _begin_resets(self, args: dict[int, dict[str, Any]]) -> None:
        """These envs are being reset; those that failed begin anew, and lost ones are started again first."""
        self.recovery.start_again(args)
        self.recovery.forget(args)
        self._resets_in_flight.update(args)
        self.statistics.resets += len(args)

    def _start(self, ids: np.ndarray | None, ops: Any, encoded: Mapping[int, Any]) -> None:
        """Hand a checked round to the backend; envs that failed answer at once."""
        self.statistics.rounds += 1
        asked = np.arange(self.env_num) if ids is None else ids
        if self.recovery.errors:
            all_ops = np.broadcast_to(np.asarray(ops, dtype=np.uint8), asked.shape)
            left = self.recovery.answer_failed(asked, all_ops, self.arena.status)
            ids, ops = asked[left], all_ops[left]
            encoded = {i: encoded[i] for i in ids.tolist() if i in encoded}
        if ids is None or len(ids):
            try:
                self._backend.send(ids, ops, encoded)
            except Exception as error:
                self.abandon(error, asked.tolist())
                raise

    # The end of a round.

    def _wait(self, done: Callable[[], bool], timeout: float | None) -> None:
        try:
            waited = self._backend.wait(done, None if timeout is None else time.monotonic() + timeout)
        except Exception as error:
            self.abandon(error)
            raise
        self.statistics.wait_seconds += waited
        self.statistics.round_seconds.append(waited)

    def wait_for_all(self, deadline: float | None) -> bool:
        """Wait until the deadline (of time.monotonic) for all that is in flight; takes nothing. Returns whether it is
        there.
        """
        done = self._enough(self.in_flight)
        try:
            self._backend.wait(done, deadline)
        except Exception as error:
            self.abandon(error)
            raise
        return done()

    def _enough(self, need: int) -> Callable[[], bool]:
        """A test whether `need` envs have answered, quick enough to spin on."""
        status, all_done = self._status, self._all_done
        if self._abandoned:
            ids = [i for i in self.all_ids if i not in self._abandoned]
            return lambda: sum(status[i] >= opcodes.DONE for i in ids) >= need

        def enough() -> bool:
            raw = status.tobytes()
            return raw == all_done or len(raw.translate(None, opcodes.NOT_DONE)) >= need

        return enough

    def _answered(self, asked: list[int]) -> Callable[[], bool]:
        """A test whether these envs have answered."""
        if self.in_flight == len(asked):
            return self._enough(len(asked))
        status = self._status
        return lambda: all(status[i] >= opcodes.DONE for i in asked)

    def _finished_ids(self) -> np.ndarray:
        """The envs to return now: in the order in which they were sent when all are back, else in ascending order."""
        order, self._order = self._order, []
        if not self.is_async:
            parts = [np.arange(self.env_num) if part is None else part for part in order]
            if sum(map(len, parts)) == self.in_flight:
                return np.concatenate(parts)
        answered = self.arena.status >= opcodes.DONE
        if self._abandoned:
            answered[list(self._abandoned)] = False
        return np.flatnonzero(answered)

    def _take(self, ids: np.ndarray | None, asked: list[int]) -> Taken:
        """Take the answers of these envs; raises for those that failed, with the results of the others."""
        try:
            taken = self._backend.take(None if ids is None else asked)
        except Exception as error:
            self.abandon(error, asked)
            raise
        return self._settle(ids, asked, taken)

    def _settle(self, ids: np.ndarray | None, asked: list[int], taken: Taken) -> Taken:
        """Note what the results say of the envs, and do what `on_error` says about failures."""
        if self.recovery.rows:
            rows, self.recovery.rows = self.recovery.rows, {}
            taken = taken._replace(extras={**taken.extras, **rows})
        extras = taken.extras
        if self._backend.lost:
            self.recovery.note_lost()
        failed = []
        if extras:
            self.results.check_rewards(asked, extras)
            if any(extra.failure is not None for extra in extras.values()):
                try:
                    failed = self.recovery.settle(extras, self._resets_in_flight)
                except Exception as error:
                    self.abandon(error, asked)
                    raise
        if self._strict:
            self._note_ends(ids, taken)
        if failed:
            self._raise_failures(failed, asked, taken)
        if self._resets_in_flight:
            self._end_resets(ids, asked)
        return taken

    def _note_ends(self, ids: np.ndarray | None, taken: Taken) -> None:
        """`strict`: which envs need a reset now."""
        rows: Any = ... if ids is None else ids
        if taken.columns is not None:
            self._unreset[rows] = taken.columns[2] | taken.columns[3]
        else:
            self._unreset[rows] = self.arena.terminated[rows] | self.arena.truncated[rows]
        self._unreset[[i for i, extra in taken.extras.items() if extra.final is not None]] = False

    def _end_resets(self, ids: np.ndarray | None, asked: list[int]) -> None:
        if ids is None:
            self._resets_in_flight = {}
        else:
            for i in asked:
                self._resets_in_flight.pop(i, None)

    def _raise_failures(self, failed: list[int], asked: list[int], taken: Taken) -> None:
        """Raise the first failure (a cause before its consequences); the results of the other envs are in `partial`."""
        partial, extras = None, taken.extras
        lost = {i for i in failed if not extras[i].failure.stepped}  # type: ignore[union-attr]
        if good := [i for i in asked if i not in lost]:
            others = Taken({i: extras[i] for i in good if i in extras})
            partial = Partial(np.array(good), *self.results.rows(np.array(good), good, others))
        errors = self.recovery.errors
        first = min(failed, key=lambda i: (getattr(errors[i], "bystander", False), i))
        self._end_resets(np.array(asked), asked)
        errors[first].partial = partial  # type: ignore[attr-defined]
        raise errors[first]

    # Interrupted calls.

    def abandon(self, error: BaseException, asked: Sequence[int] = ()) -> None:
        """A call was interrupted: what is in flight is discarded, and its envs, and those `asked`, need a reset."""
        if self.closed:
            if not isinstance(error, ClosedError) and isinstance(error, Exception):
                self.check_open()  # another thread takes it all apart
            return
        if isinstance(error, (ClosedError, ConcurrentCallError, Warning)):
            return
        in_flight = set(self.waiting_ids)
        self._abandoned |= in_flight
        self._order, self._resets_in_flight = [], {}
        for i in sorted(in_flight.union(asked)):
            self.recovery.errors[i] = VectorEnvError(
                f"env {i} was in a call that {type(error).__name__} interrupted, and its result was discarded; "
                f"reset({i}) makes it usable again"
            )
        self._backend.wait(None, None)  # finds the workers whose messages were torn apart

    def _drain(self, ids: np.ndarray | None) -> None:
        """Discard the results of interrupted calls; an env that does not answer soon gets a new worker."""
        chosen = self._abandoned.intersection(self.all_ids if ids is None else ids.tolist())
        status, backend = self._status, self._backend
        backend.wait(lambda: all(status[i] >= opcodes.DONE for i in chosen), time.monotonic() + DRAIN_TIMEOUT)
        for i in sorted(chosen):
            if status[i] < opcodes.DONE:
                for j in backend.restart(i):
                    if j not in chosen and status[j] == opcodes.IDLE:
                        text = f"env {j} was made anew because env {i}, which shares its worker, did not return"
                        self.recovery.errors.setdefault(j, VectorEnvError(f"{text}; reset({j}) makes it usable again"))
                self.recovery.restarts += 1
        backend.take(sorted(chosen))
        self._abandoned -= chosen

    # Checks.

    def check_open(self) -> None:
        """ClosedError after `close`, and in a forked copy of the process."""
        if self.closed:
            raise ClosedError(f"Methods of {self._name} cannot be called after close.")
        if self._forks != lifetime.forks:
            raise ClosedError(
                f"this vector env belongs to process {self._lifetime.pid} and cannot be used in process {os.getpid()}; "
                "make one here"
            )

    def check_idle(self, ids: np.ndarray | None) -> None:
        """RuntimeError, with the env named, if one of these envs (None: any) is still stepping."""
        if self._status.tobytes() == self._all_idle:
            return
        busy = self.arena.status[... if ids is None else ids] != opcodes.IDLE
        if busy.any():
            first = int(np.flatnonzero(busy)[0] if ids is None else ids[busy][0])
            if first in self._abandoned:
                self.recovery.check(first)
            raise RuntimeError(
                f"Cannot interact with environment {first} which is stepping now: env {first} is still stepping; "
                "wait for it with step(None)"
                + (", or pass only the ids that were returned: step(action, id)" if self.is_async else "")
            )

    def _check_ready(self, ids: np.ndarray | None, resets: np.ndarray | None) -> None:
        """RuntimeError for envs that are stepping, have failed or, if `strict`, need a reset."""
        if self._abandoned and (self.recovery.absorbs or resets is not None):
            self._drain(ids)
        self.check_idle(ids)
        if self._backend.lost:
            self.recovery.note_lost()
        rows: Any = ... if ids is None else ids
        wrong = (
            self._unreset[rows].copy() if self._strict else np.zeros(self.env_num if ids is None else len(ids), bool)
        )
        if self.recovery.errors and not self.recovery.absorbs:
            wrong |= np.isin(np.arange(self.env_num) if ids is None else ids, list(self.recovery.errors))
        if resets is not None:
            wrong &= ~resets
        for row in wrong.nonzero()[0].tolist():
            i = row if ids is None else int(ids[row])
            if not self.recovery.absorbs:
                self.recovery.check(i)
            raise RuntimeError(
                f"env {i} has not been reset, or its episode is over; call reset({i}) first (strict=True)"
            )

    def _refuse_bad_actions(self, asked: Sequence[int], batch: Any, resets: np.ndarray | None) -> None:
        for row, i in enumerate(asked):
            action = batch[row] if batch.__class__ is list else nest.take(batch, row)
            space = self.reports[i].action_space
            ignored = resets is not None and resets[row]
            if space is not None and not ignored and not space.contains(action):
                raise ValueError(
                    f"action for env {i} is {action!r}, which is not in its action space {space} (check_actions=True)"
                )

    # State.

    @property
    def backend(self) -> Backend:
        """Where the envs live."""
        return self._backend

    @property
    def in_flight(self) -> int:
        """How many envs were started and have not been taken."""
        return self.env_num - self._status.tobytes().count(opcodes.IDLE) - len(self._abandoned)

    @property
    def waiting_ids(self) -> list[int]:
        """The envs in flight."""
        return [i for i in self.all_ids if self._status[i] != opcodes.IDLE and i not in self._abandoned]

    @property
    def failed_ids(self) -> list[int]:
        """The envs that failed and accept nothing but a reset."""
        waiting = self.waiting_ids
        return [i for i in sorted(self.recovery.errors) if i not in waiting]

    @property
    def ready_ids(self) -> list[int]:
        """The envs that can be stepped."""
        return [i for i in self.all_ids if self._status[i] == opcodes.IDLE and i not in self.recovery.errors]

    def alive(self) -> list[bool]:
        """Whether each env exists: False for those whose worker has ended. Does not wait."""
        self.check_open()
        self._backend.wait(None, None)
        return [i not in self._backend.lost for i in self.all_ids]

    def stats(self) -> dict[str, Any]:
        """Counts and seconds since the start (see `BaseVectorEnv.stats`)."""
        self.check_open()
        return self.statistics.summary(self._backend.workers, self.recovery.restarts, self.recovery.absorbed)

    # Calls of envs besides steps and resets.

    def start_call(self, ids: np.ndarray | None, op: str, args: Sequence[tuple[Any, ...]]) -> Call:
        """Start an operation (of `ENV_CALLS`) on idle envs, with one tuple of arguments an env."""
        self.check_open()
        self.check_idle(ids)
        asked = self.all_ids if ids is None else ids.tolist()
        if self._backend.lost:
            self.recovery.note_lost()
            for i in asked:
                if i in self._backend.lost:
                    self.recovery.check(i)
        return self._backend.call(asked, op, args)

    def wait_for_call(self, call: Call, deadline: float | None) -> bool:
        """Wait until the deadline (of time.monotonic) for the answers of a call; returns whether they are there."""
        self._backend.wait(call.done, deadline)
        return call.done()

    def finish_call(self, call: Call) -> list[Any]:
        """Wait for the answers of all envs; the first failure is raised once all have answered."""
        if not call.done():
            self._backend.wait(call.done, None)
        values = call.values()
        if self._backend.lost:
            self.recovery.note_lost()
        for value in values:
            if isinstance(value, Failure):
                raise value.exception(next((w.pid for w in self._backend.workers if value.env_id in w.ids), None))
        return values

    def call(self, ids: np.ndarray | None, op: str, args: tuple[Any, ...]) -> list[Any]:
        """Run an operation on idle envs, in all workers at once; what each returned."""
        return self.finish_call(self.start_call(ids, op, [args] * (self.env_num if ids is None else len(ids))))

    def seed(self, seeds: Sequence[int | None]) -> None:
        """Seed each env and its action space with its entry, None leaves it as it is."""
        chosen = [i for i, s in enumerate(seeds) if s is not None]
        if not chosen:
            return
        were_reset = self.finish_call(self.start_call(np.array(chosen), "seed", [(seeds[i],) for i in chosen]))
        for i, was_reset in zip(chosen, were_reset, strict=True):
            if was_reset is not False:  # None: it was made anew, and has to be reset
                self._unreset[i] = was_reset is None
            if (space := self.reports[i].action_space) is not None:
                space.seed(seeds[i])

    # Life.

    def close(self) -> None:
        """Close all envs and end the workers: at most 5 seconds, then by force. A second call does nothing."""
        if self.closed:
            return
        self.closed = True
        try:
            self._lifetime.close()
        finally:
            # The memory goes with the last view of it that the caller holds, not with this object.
            for name in ("arena", "results", "recovery", "_status", "_all_answered", "_backend"):
                self.__dict__.pop(name, None)
