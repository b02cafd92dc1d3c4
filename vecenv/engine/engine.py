"""`Engine`: runs rounds on the envs of a backend. A round is one operation (step or reset) of some envs.

BaseVectorEnv, facades, collectors
    |  exchange, send, receive, reset
Engine: checks, status bytes, recovery, results, counters
    |  send, wait, take
Backend: envs in this process, in threads, in worker processes, ...

An env is in flight from the start of its operation until the caller gets the result.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from time import perf_counter
from typing import Any

import numpy as np

from vecenv.actions import Actions, TensorActions
from vecenv.arguments import as_autoreset, check_spaces_equal, reset_arguments, reset_rows
from vecenv.backends.backend import NO_EXTRAS, Backend, Taken
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.arena import ColumnArena
from vecenv.engine import lifetime
from vecenv.engine.env_calls import EnvCalls
from vecenv.engine.lifetime import Lifetime
from vecenv.engine.mark import BROKEN, RECOVERY_TIMEOUT, Mark, is_one_call
from vecenv.engine.recovery import Recovery
from vecenv.engine.results import Form, Results, Statistics
from vecenv.engine.status import EnvStatus
from vecenv.errors import ClosedError
from vecenv.layout import Layout, Leaf, common_layout
from vecenv.spaces import separate_generators

NO_ARGUMENTS: dict[str, Any] = {}
ARRAY = np.ndarray
HOLD_MEMORY = ["arena", "results", "recovery", "status", "calls", "backend"]


class Dropped:
    """Stands for the objects that `close` drops, because another thread may have passed `check_open` before."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __getattr__(self, name: str) -> Any:
        raise ClosedError(self._text)


class Engine:
    """Core of a vector env.

    `send` starts a round, and `receive` returns results. `step` and `exchange` do both. Only one thread at a time may
    use an engine, but other threads may call `close`, `alive` and `stats`, and read `status.waiting_ids`. See
    `BaseVectorEnv` for the arguments.
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
        mark: Mark | None = None,
    ) -> None:
        n = self.env_num = len(env_fns)
        self.wait_num = n if wait_num is None else wait_num
        self.timeout = timeout
        self.is_async = self.wait_num != n or timeout is not None
        self.closed, self.usable = False, True
        self._name, self.backend = name, backend
        self.mark = Mark() if mark is None else mark
        self.mark.owner, self.mark.closed = 0, None
        self.recovery = Recovery(backend, on_error, max_restarts, self.mark)
        self._prepares = self.recovery.absorbs or backend.recycles
        layout = self._open(env_fns, num_workers, check_spaces, warns)
        self.num_workers, self.autoresets = backend.num_workers, backend.autoresets
        action_spaces = [report.action_space for report in self.reports]
        actions = TensorActions if backend.takes_tensors else Actions
        self.actions: Actions = actions(layout.action, action_spaces, backend.takes_objects, check_actions)
        self._plain_shape, self._plain_dtype = None, None
        """Shape (n, ...) and dtype of actions that need no conversion or check. `None` if no actions qualify."""
        if isinstance(layout.action, Leaf) and not (strict or check_actions or isinstance(self.arena, ColumnArena)):
            self._plain_shape, self._plain_dtype = (n, *layout.action.shape), layout.action.dtype
        self.status = EnvStatus(backend, self.recovery, self.mark, self.is_async, strict)
        self.all_ids = self.status.all_ids
        self.results = Results(self.arena, layout, self.recovery, self.status, copy=copy, stack_obs=stack_obs)
        self.calls = EnvCalls(backend, self.recovery, self.reports, self.status, self.mark)
        self.statistics = Statistics(n)
        self._saw_end = False
        """True if `alive` has noticed the end of a worker whose envs are not in `backend.lost` yet."""

    def _open(self, env_fns: Sequence[Any], num_workers: int | None, check_spaces: bool, warns: bool) -> Layout:
        # `Lifetime` comes before `start`, so that an interrupted constructor leaves no process behind.
        self.lifetime = Lifetime(self, self.backend, self._name, warns)
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
            self.lifetime.discard()
            self.backend.close(lifetime.CLOSE_TIMEOUT)
            raise
        return layout

    def exchange(self, action: Any, reset: Any = None, autoreset: Any = False, form: Form | None = None) -> Any:
        """Step all envs, but reset the envs in `reset`. `form` (default: `Results.rows`) builds the returned batch."""
        mark, me = self.mark, get_ident()
        if mark.owner:
            self.refuse()
        begin = perf_counter()
        try:
            plain = self._start_steps(None, action, reset, autoreset, NO_ARGUMENTS)
            waited = self.backend.wait(self.status.all_answered, None)
            taken = self.backend.take(None)
            results, ids = self.results, self.all_ids
            if taken is not NO_EXTRAS or not plain or results.checks_scalars:
                taken = results.apply_recovery(None, ids, taken)
            rows = results.rows(None, ids, taken) if form is None else form(results, None, taken)
            seconds, statistics = perf_counter() - begin, self.statistics
            statistics.wait_seconds += waited
            statistics.call_seconds += seconds
            statistics.round_seconds.append(seconds)
            mark.owner = 0
        except BaseException as error:
            if mark.owner == me:
                mark.owner = BROKEN
            self.explain(error)
            raise
        return rows

    @is_one_call
    def step(self, action: Any, ids: np.ndarray | None, reset: Any, autoreset: Any, kwargs: dict[str, Any]) -> Any:
        self._send(action, ids, reset, autoreset, kwargs)
        return self._receive()

    def send(self, action: Any, ids: np.ndarray | None, reset: Any, autoreset: Any, kwargs: dict[str, Any]) -> None:
        """Check and start steps of the envs `ids` (`None`: all), or resets if `action` is None.

        `kwargs` are arguments of the envs' `reset`.
        """
        if action is None and (ids is None or len(ids) == self.env_num):
            self.recover()
        self._send_alone(action, ids, reset, autoreset, kwargs)

    def reset(self, ids: np.ndarray | None, kwargs: dict[str, Any]) -> tuple[Any, np.ndarray]:
        """Reset the envs `ids` (`None`: all), and return (obs, info). Wait for all these envs, even with `wait_num`."""
        if ids is None or len(ids) == self.env_num:
            self.recover()
        return self._reset(ids, kwargs)

    @is_one_call
    def _reset(self, ids: np.ndarray | None, kwargs: dict[str, Any]) -> tuple[Any, np.ndarray]:
        self.check_open()
        asked = self.all_ids if ids is None else ids.tolist()
        self._start_resets(ids, kwargs)
        self._wait(self.status.answered(asked), None)
        taken = self._take(ids, asked)
        return self.results.obs(ids, taken.extras), self.results.infos.rows(asked, taken)

    @is_one_call
    def wait_for_all(self, deadline: float | None) -> bool:
        """Wait until `deadline` for all envs in flight. Return True if all have answered."""
        done = self.status.enough(self.status.in_flight)
        self.mark.take()
        self._wait(done, deadline)
        return done()

    def recover(self) -> None:
        """After an interrupted call, discard all results in flight. All envs then need a reset."""
        self.check_open()
        mark = self.mark
        if mark.owner != BROKEN:
            return
        try:
            mark.owner = get_ident()
            self.backend.resynchronise(time.monotonic() + RECOVERY_TIMEOUT)
            self.status.rounds_in_flight = []
            self.recovery.record_interrupted(self.all_ids)
            mark.owner = 0
        except BaseException:
            mark.owner = BROKEN
            raise

    def refuse(self) -> None:
        """Raise the error of a call while `mark.owner` is set."""
        self.check_open()
        self.status.refuse()

    def explain(self, error: BaseException) -> None:
        """Change the error of a call, or add a note, once `mark.owner` is stored."""
        self.mark.explain(error, lambda: self.status.unanswered_ids() if self.num_workers else [])

    def _send(self, action: Any, ids: np.ndarray | None, reset: Any, autoreset: Any, kwargs: dict[str, Any]) -> None:
        begin = perf_counter()
        if action is None:
            self.check_open()
            self._start_resets(ids, kwargs)
        else:
            self._start_steps(ids, action, reset, autoreset, kwargs)
        self.status.rounds_in_flight.append(ids)
        self.statistics.call_seconds += perf_counter() - begin

    _send_alone = is_one_call(_send)

    def _receive(self, by_id: bool = False) -> Any:
        self.check_open()
        status = self.status
        ids: np.ndarray | None = None
        if len(status.rounds_in_flight) == 1 and status.rounds_in_flight[0] is None and not self.is_async:
            asked = self.all_ids
            self.mark.take()
            self._wait(status.all_answered, None)
            self.status.rounds_in_flight = []
        else:
            in_flight = status.in_flight
            if in_flight == 0:
                raise RuntimeError("step(None): no step is in flight; call step(action) or send(action) first")
            self.mark.take()
            need = min(self.wait_num, in_flight) if self.is_async else in_flight
            self._wait(status.enough(need), None if self.timeout is None else time.monotonic() + self.timeout)
            if self.is_async and not (one := status.enough(1))():
                self._wait(one, None)
            ids = status.finished_ids()
            asked = ids.tolist()
        taken = self._take(ids, asked)
        return self.results.rows_by_id(ids, taken) if by_id else self.results.rows(ids, asked, taken)

    receive = is_one_call(_receive)

    def _start_steps(
        self, ids: np.ndarray | None, action: Any, reset: Any, autoreset: Any, kwargs: dict[str, Any]
    ) -> bool:
        """Check and start a round of steps. Return True if the round is plain and has no resets.

        A plain round (all envs ready, actions in the arena's shape and dtype) skips most checks.
        """
        plain = (
            ids is None
            and action.__class__ is ARRAY
            and action.shape == self._plain_shape
            and action.dtype == self._plain_dtype
            and self.usable
            and self.status.bytes.tobytes() == self.status.all_idle
            and not (self.backend.lost or self.recovery.errors or kwargs or self._saw_end)
        )
        ops: Any = opcodes.STEP
        encoded: Mapping[int, Any] = NO_ARGUMENTS  # type: ignore[assignment]
        resets, chosen = (None, []) if reset is None else reset_rows(ids, reset, self.env_num)
        if autoreset is not False:
            autoreset = as_autoreset(autoreset, self.env_num if ids is None else len(ids))
        if not plain:
            self.check_open()
            if self._saw_end:
                self.mark.take()
                self.backend.wait(None, None)
                self._saw_end, self.mark.owner = False, 0
            asked = self.all_ids if ids is None else ids.tolist()
            action = self.actions.batch(action, asked, resets)
            self.status.check_steps(ids, resets)
            if action.__class__ is list:
                ops, encoded = opcodes.STEP_OBJECT, dict(zip(asked, action, strict=True))
        if autoreset is not False:
            ops |= opcodes.AUTORESET
            if autoreset is not True or self._seeded or not self.autoresets:
                self._set_reset_seeds(... if ids is None else ids, autoreset)
            if self._prepares:
                self.recovery.recycle()
                ops = self.recovery.mark_moves(ids, ops)
        args: dict[int, dict[str, Any]] = NO_ARGUMENTS  # type: ignore[assignment]
        if resets is not None and chosen:
            if self._prepares and autoreset is False:
                self.recovery.recycle()
            args = reset_arguments(chosen, kwargs)
            encoded = {**encoded, **args} if kwargs else {i: encoded[i] for i in encoded if i not in args}
            ops = np.where(resets, np.uint8(opcodes.RESET_KWARGS if kwargs else opcodes.RESET), np.uint8(ops))
        elif kwargs and reset is None:
            raise TypeError(f"got {sorted(kwargs)}, which only resets use, but no ids to reset; pass them as reset=ids")
        if plain:
            if (mark := self.mark).owner:
                self.refuse()
            mark.owner = get_ident()
            self.arena.action[...] = action
        else:
            is_list = action.__class__ is list
            encoded = self.backend.encode(asked, ops, None if is_list else action, encoded)
            self.mark.take()
            if not is_list:
                self.arena.put_actions(ids, action)
        if args:
            self._begin_resets(args)
            plain = False
        return self._start(ids, ops, encoded) and plain

    def _set_reset_seeds(self, rows: Any, seeds: Any) -> None:
        """Record the seeds (True: no seeds) for autoresets. Raise TypeError if the backend has no autoreset, or if its
        autoreset takes no seeds.
        """
        if not self.autoresets:
            raise TypeError(
                f"{self._name} cannot reset an env in the round of its last step (autoreset=True); use reset(id), or "
                "step(action, reset=terminated | truncated) in the next round"
            )
        given = seeds.__class__ is np.ndarray
        if given and not self.backend.seeds_autoresets and seeds.max(initial=-1) >= 0:
            raise TypeError(
                f"{self._name} cannot seed an env in the round of its last step (autoreset={seeds.tolist()}); use "
                "autoreset=True, or reset(id, seed=...)"
            )
        if given or self._seeded:
            self.arena.seed[rows], self._seeded = seeds if given else -1, True

    def _start_resets(self, ids: np.ndarray | None, kwargs: dict[str, Any]) -> None:
        self.status.check_idle(ids)
        if self._prepares:
            self.recovery.recycle()
        asked = self.all_ids if ids is None else ids.tolist()
        args = reset_arguments(asked, kwargs)
        op = opcodes.RESET_KWARGS if kwargs else opcodes.RESET
        encoded = self.backend.encode(asked, op, None, args if kwargs else NO_ARGUMENTS)  # type: ignore[arg-type]
        self.mark.take()
        self.backend.wait(None, None)  # records workers that died while idle, for `restart_lost`
        self._begin_resets(args)
        self._start(ids, op, encoded)

    def _begin_resets(self, args: dict[int, dict[str, Any]]) -> None:
        self.backend.move(list(args))
        self.recovery.restart_lost(args)
        self.recovery.discard_errors(args)
        self.recovery.resets.update(args)
        self.statistics.resets += len(args)

    def _start(self, ids: np.ndarray | None, ops: Any, encoded: Mapping[int, Any]) -> bool:
        """Send a round to the backend. With on_error="restart", failed envs get truncated rows instead.

        Return False if `recovery` must see the results.
        """
        self.statistics.rounds += 1
        if ids is not None:
            self.statistics.left_out += self.env_num - len(ids)
        if self._prepares:
            ops = self.recovery.prepare(ids, ops)
            if self.recovery.absorbs and self.recovery.errors:
                ids, ops = self.recovery.answer_failed(np.arange(self.env_num) if ids is None else ids, ops)
                encoded = {i: encoded[i] for i in ids.tolist() if i in encoded}
                if not len(ids):
                    return False
            self.backend.send(ids, ops, encoded)
            return not self.recovery.withheld
        self.backend.send(ids, ops, encoded)
        return True

    def _wait(self, done: Callable[[], bool], deadline: float | None) -> None:
        waited = self.backend.wait(done, deadline)
        self.statistics.wait_seconds += waited
        self.statistics.call_seconds += waited
        self.statistics.round_wait += waited

    def _take(self, ids: np.ndarray | None, asked: list[int]) -> Taken:
        self.statistics.round_seconds.append(self.statistics.round_wait)
        self.statistics.round_wait = 0.0
        return self.results.apply_recovery(ids, asked, self.backend.take(None if ids is None else asked))

    def check_open(self) -> None:
        """Raise ClosedError after `close`, and in a forked copy of the process."""
        if self.usable:
            return
        if self.closed:
            raise ClosedError(self.mark.closed)
        raise ClosedError(
            f"this vector env belongs to process {self.lifetime.pid} and cannot be used in process {os.getpid()}; "
            "make a new vector env in this process"
        )

    def alive(self) -> list[bool]:
        self.check_open()
        ended = self.backend.ended()
        self._saw_end = self._saw_end or len(ended) > len(self.backend.lost)
        return [i not in ended for i in self.all_ids]

    def stats(self) -> dict[str, Any]:
        self.check_open()
        backend, recovery = self.backend, self.recovery
        return self.statistics.summary(backend.workers, recovery.restarts, recovery.absorbed) | backend.own_stats

    def close(self) -> None:
        if self.closed:
            return
        self.mark.closed = f"Methods of {self._name} cannot be called after close."
        self.closed, self.usable = True, False
        try:
            if self.mark.owner:  # another thread may be in a call
                self.backend.end_wait()
                self.mark.await_end(lifetime.CALL_TIMEOUT)
            self.lifetime.close()
        finally:
            # Drop the references, so that the arena is freed when the caller drops the last view.
            self.__dict__.update(dict.fromkeys(HOLD_MEMORY, Dropped(self.mark.closed)))
