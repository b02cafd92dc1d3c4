"""`Engine`: run rounds of operations on the envs of a backend.

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
from vecenv.backends.backend import NOTHING_BESIDES, Backend, Taken
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.arena import Layout, Leaf, common_layout
from vecenv.engine import lifetime
from vecenv.engine.actions import Actions
from vecenv.engine.arguments import as_autoreset, check_spaces_equal, reset_arguments, reset_rows
from vecenv.engine.env_calls import EnvCalls
from vecenv.engine.lifetime import Lifetime
from vecenv.engine.recovery import Recovery
from vecenv.engine.results import Results, Statistics
from vecenv.engine.status import INTERRUPTS, EnvStatus
from vecenv.errors import ClosedError, ConcurrentCallError
from vecenv.spaces import separate_generators

NO_ARGUMENTS: dict[str, Any] = {}
HOLD_MEMORY = ["arena", "results", "recovery", "status", "calls", "backend"]

Received = tuple["np.ndarray | None", "list[int]", Taken]
"""(ids or None for all, the ids as a list, the results): the arguments of `Results.rows`."""


class Engine:
    """Runs rounds on `backend`: the machinery of one vector env, without its public methods.

    A round is started by `send` and ended by `receive`; `exchange` is both for a round of all envs. What it
    guarantees is in docs/semantics.md. One thread at a time; another one may call `close`, `alive`, `stats` and
    `waiting_ids`.

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
        self.closed, self.usable = False, True
        """False after `close`, and in a forked copy of the process."""
        self._name, self.backend = name, backend
        self.recovery = Recovery(backend, on_error, max_restarts)
        self._absorbs = self.recovery.absorbs
        layout = self._open(env_fns, num_workers, check_spaces, warns)
        self.num_workers, self.autoresets = backend.num_workers, backend.autoresets
        action_spaces = [report.action_space for report in self.reports]
        self.actions = Actions(layout.action, action_spaces, backend.takes_objects, check_actions)
        self._plain_shape, self._plain_dtype = None, None
        """Of a batch of actions for all envs that needs no conversion."""
        if isinstance(layout.action, Leaf) and not strict and not check_actions:
            self._plain_shape, self._plain_dtype = (n, *layout.action.shape), layout.action.dtype
        spaced = any(report.observation_space is not None for report in self.reports)
        self.status = EnvStatus(backend, self.recovery, self.is_async, strict)
        self.all_ids = self.status.all_ids
        self.results = Results(
            self.arena, layout, self.recovery, self.status, copy=copy, stack_obs=stack_obs, spaced=spaced
        )
        self.calls = EnvCalls(backend, self.recovery, self.reports, self.status)
        self.statistics = Statistics(n)
        self._order: list[np.ndarray | None] = []
        """The ids of each round in flight, as they were asked for (None: all)."""

    def _open(self, env_fns: Sequence[Any], num_workers: int | None, check_spaces: bool, warns: bool) -> Layout:
        """Make the envs and the memory for their batches; if that fails, close what was made."""
        # Before anything is started, so that an interrupted constructor leaves nothing behind.
        self._lifetime = Lifetime(self, self.backend, self._name, warns)
        try:
            self.reports = self.backend.start(env_fns, num_workers, self.is_async)
            separate_generators([report.action_space for report in self.reports])
            if check_spaces:
                check_spaces_equal(self.reports)
            layout = common_layout([r.observation_space for r in self.reports], [r.action_space for r in self.reports])
            self.arena = self.backend.bind(layout)
            self.arena.seed[...], self._seeded = -1, False
        except BaseException:
            self.closed, self.usable = True, False
            self._lifetime.discard()
            self.backend.close(lifetime.CLOSE_TIMEOUT)
            raise
        return layout

    def exchange(self, action: Any, reset: Any = None, autoreset: Any = False) -> Taken:
        """Run a round of all envs; its results are the rows of the arena and the `Taken` that is returned.

        `action` has one row an env; envs in `reset` (ids, or a mask) are reset instead.
        """
        begin = perf_counter()
        try:
            plain = self._start_steps(None, action, reset, autoreset, NO_ARGUMENTS)
            try:
                waited = self.backend.wait(self.status.all_answered, None)
                taken = self.backend.take(None)
            except Exception as error:
                self.abandon(error, self.all_ids)
                raise
            if taken is not NOTHING_BESIDES or not plain or self.results.checks_scalars:
                taken = self.results.settle(None, self.all_ids, taken)
        except INTERRUPTS as error:
            self.abandon(error, self.all_ids)
            raise
        seconds, statistics = perf_counter() - begin, self.statistics
        statistics.wait_seconds += waited
        statistics.call_seconds += seconds
        statistics.round_seconds.append(seconds)
        return taken

    def send(self, action: Any, ids: np.ndarray | None, reset: Any, autoreset: Any, kwargs: dict[str, Any]) -> None:
        """Check a round of the envs `ids` (None: all) and start it; `kwargs` go to the envs in `reset`."""
        begin = perf_counter()
        try:
            if action is None:
                self.check_open()
                self._start_resets(ids, kwargs)
            else:
                self._start_steps(ids, action, reset, autoreset, kwargs)
            self._order.append(ids)
        except INTERRUPTS as error:
            self.abandon(error, self.all_ids if ids is None else ids.tolist())
            raise
        self.statistics.call_seconds += perf_counter() - begin

    def receive(self) -> Received:
        """Wait for what is in flight, or as much of it as `wait_num` and `timeout` require, and take it."""
        self.check_open()
        whole = len(self._order) == 1 and self._order[0] is None and not self.is_async
        before = self.all_ids if whole else self.status.waiting_ids
        try:
            if whole:
                self._wait(self.status.all_answered, None)
                self._order = []
                return None, self.all_ids, self._take(None, self.all_ids)
            in_flight = self.status.in_flight
            if in_flight == 0:
                raise RuntimeError("step(None): no step is in flight; call step(action) or send(action) first")
            need = min(self.wait_num, in_flight) if self.is_async else in_flight
            self._wait(self.status.enough(need), None if self.timeout is None else time.monotonic() + self.timeout)
            if self.is_async and not (one := self.status.enough(1))():
                self._wait(one, None)
            order, self._order = self._order, []
            ids = self.status.finished_ids(order)
            asked = ids.tolist()
            return ids, asked, self._take(ids, asked)
        except INTERRUPTS as error:
            self.abandon(error, before)
            raise

    def reset(self, ids: np.ndarray | None, kwargs: dict[str, Any]) -> tuple[Any, np.ndarray]:
        """Reset these envs (None: all) and wait for them, also in async mode: (obs, info)."""
        self.check_open()
        asked = self.all_ids if ids is None else ids.tolist()
        try:
            self._start_resets(ids, kwargs)
            self._wait(self.status.answered(asked), None)
            taken = self._take(ids, asked)
            return self.results.obs(ids, taken.extras), self.results.info(asked, taken)
        except INTERRUPTS as error:
            self.abandon(error, asked)
            raise

    def _start_steps(
        self, ids: np.ndarray | None, action: Any, reset: Any, autoreset: Any, kwargs: dict[str, Any]
    ) -> bool:
        """Check a round of steps and start it; returns True if there is nothing to settle after it but extras.

        Most checks, which took most of the caller's time, are left out of a plain round: of all envs, which are ready,
        with actions in the arena's shape and dtype.
        """
        plain = (
            ids is None
            and action.__class__ is np.ndarray
            and action.shape == self._plain_shape
            and (
                action.dtype is self._plain_dtype or action.dtype == self._plain_dtype
            )  # equal ones may be two objects
            and self.usable
            and self.status.bytes.tobytes() == self.status.all_idle
            and not (self.backend.lost or self.recovery.errors or kwargs)
        )
        ops: Any = opcodes.STEP
        encoded: Mapping[int, Any] = NO_ARGUMENTS  # type: ignore[assignment]
        resets, chosen = (None, []) if reset is None else reset_rows(ids, reset, self.env_num)
        if autoreset is not False:
            autoreset = as_autoreset(autoreset, self.env_num if ids is None else len(ids))
        if not plain:
            self.check_open()
            asked = self.all_ids if ids is None else ids.tolist()
            action = self.actions.batch(action, asked, resets)
            if self.status.abandoned and (self._absorbs or resets is not None):
                self.status.drain(ids)
            self.status.check_steps(ids, resets)
            if action.__class__ is list:
                ops, encoded = opcodes.STEP_OBJECT, dict(zip(asked, action, strict=True))
        if autoreset is not False:
            ops |= opcodes.AUTORESET
            if autoreset is not True or self._seeded or not self.autoresets:
                self._seed_next(... if ids is None else ids, autoreset)
        args: dict[int, dict[str, Any]] = NO_ARGUMENTS  # type: ignore[assignment]
        if resets is not None and chosen:
            args = reset_arguments(chosen, kwargs)
            encoded = {**encoded, **args} if kwargs else {i: encoded[i] for i in encoded if i not in args}
            ops = np.where(resets, np.uint8(opcodes.RESET_KWARGS if kwargs else opcodes.RESET), np.uint8(ops))
        elif kwargs:
            raise TypeError(f"send() got {sorted(kwargs)}, which are for resets, but no ids to reset")
        if plain:
            self.arena.action[...] = action
        elif action.__class__ is list:
            encoded = self.backend.encode(asked, ops, None, encoded)
        else:
            encoded = self.backend.encode(asked, ops, action, encoded)
            nest.put(self.arena.action, ... if ids is None else ids, action)
        if args:
            self._begin_resets(args)
            plain = False
        self._start(ids, ops, encoded)
        return plain

    def _seed_next(self, rows: Any, seeds: Any) -> None:
        """Note the seeds with which these envs are reset in the round of their last step; True: none."""
        if not self.autoresets:
            raise TypeError(
                f"{self._name} cannot reset an env in the round of its last step (autoreset=True); use reset(id), or "
                "step(action, reset=terminated | truncated) in the next round"
            )
        if (given := seeds.__class__ is np.ndarray) or self._seeded:
            self.arena.seed[rows], self._seeded = seeds if given else -1, True

    def _start_resets(self, ids: np.ndarray | None, kwargs: dict[str, Any]) -> None:
        if self.status.abandoned:
            self.status.drain(ids)
        self.status.check_idle(ids)
        asked = self.all_ids if ids is None else ids.tolist()
        args = reset_arguments(asked, kwargs)
        op = opcodes.RESET_KWARGS if kwargs else opcodes.RESET
        encoded = self.backend.encode(asked, op, None, args if kwargs else NO_ARGUMENTS)  # type: ignore[arg-type]
        self.backend.wait(None, None)  # notices workers that died idle, to restart them now
        self._begin_resets(args)
        self._start(ids, op, encoded)

    def _begin_resets(self, args: dict[int, dict[str, Any]]) -> None:
        """Restart the lost ones of these envs, and note that all of them are being reset."""
        self.recovery.restart_lost(args)
        self.recovery.discard_errors(args)
        self.recovery.resets.update(args)
        self.statistics.resets += len(args)

    def _start(self, ids: np.ndarray | None, ops: Any, encoded: Mapping[int, Any]) -> None:
        """Send a checked round to the backend; envs that failed answer at once."""
        self.statistics.rounds += 1
        if ids is not None:
            self.statistics.left_out += self.env_num - len(ids)
        if self._absorbs:
            self.recovery.keep_rows(ids, ops)
            if self.recovery.errors:
                ids, ops = self.recovery.answer_failed(np.arange(self.env_num) if ids is None else ids, ops)
                encoded = {i: encoded[i] for i in ids.tolist() if i in encoded}
                if not len(ids):
                    return
        try:
            self.backend.send(ids, ops, encoded)
        except Exception as error:
            self.abandon(error, self.all_ids if ids is None else ids.tolist())
            raise

    def _wait(self, done: Callable[[], bool], deadline: float | None) -> None:
        """Wait until the deadline (of time.monotonic)."""
        try:
            waited = self.backend.wait(done, deadline)
        except Exception as error:
            self.abandon(error)
            raise
        self.statistics.wait_seconds += waited
        self.statistics.call_seconds += waited
        self.statistics.round_seconds.append(waited)

    def wait_for_all(self, deadline: float | None) -> bool:
        """Wait until the deadline (of time.monotonic) for all that is in flight; returns whether all has arrived."""
        done = self.status.enough(self.status.in_flight)
        self._wait(done, deadline)
        return done()

    def _take(self, ids: np.ndarray | None, asked: list[int]) -> Taken:
        """Take the answers of these envs; raises for those that failed, with the results of the others."""
        try:
            taken = self.backend.take(None if ids is None else asked)
        except Exception as error:
            self.abandon(error, asked)
            raise
        return self.results.settle(ids, asked, taken)

    def abandon(self, error: BaseException, asked: Sequence[int] = ()) -> None:
        """After an exception ended a call: discard what is in flight; its envs, and those `asked`, need a reset."""
        if self.closed:
            if not isinstance(error, ClosedError) and isinstance(error, Exception):
                self.check_open()  # another thread has closed the engine
        elif not isinstance(error, (ClosedError, ConcurrentCallError, Warning)):
            self._order, self.recovery.resets, self.recovery.rows = [], {}, {}
            self.status.abandon(error, asked)

    def check_open(self) -> None:
        """ClosedError after `close`, and in a forked copy of the process."""
        if self.usable:
            return
        if self.closed:
            raise ClosedError(f"Methods of {self._name} cannot be called after close.")
        raise ClosedError(
            f"this vector env belongs to process {self._lifetime.pid} and cannot be used in process {os.getpid()}; "
            "make one here"
        )

    def alive(self) -> list[bool]:
        """Return for each env if it exists: False if its worker has ended. Does not wait."""
        self.check_open()
        self.backend.wait(None, None)
        return [i not in self.backend.lost for i in self.all_ids]

    def stats(self) -> dict[str, Any]:
        """Counts and seconds since the start (see `BaseVectorEnv.stats`)."""
        self.check_open()
        backend, recovery = self.backend, self.recovery
        return self.statistics.summary(backend.workers, recovery.restarts, recovery.absorbed) | backend.own_stats

    def close(self) -> None:
        """Close all envs and end the workers: at most 5 seconds, then by force. A second call does nothing."""
        if self.closed:
            return
        self.closed, self.usable = True, False
        try:
            self._lifetime.close()
        finally:
            # The memory is freed with the last view of it that the caller holds, not with this object.
            for name in HOLD_MEMORY:
                self.__dict__.pop(name, None)
