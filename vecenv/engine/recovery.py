"""`Recovery`: records which envs have failed, and applies `on_error`."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.backends.backend import Backend, Taken
from vecenv.backends.host.failure import Failure, died_failure
from vecenv.backends.host.row_writer import Extra, Final
from vecenv.backends.ipc import opcodes
from vecenv.engine.mark import Mark
from vecenv.errors import VectorEnvError, add_note, how_to_reset, is_bystander

WINDOW = 60.0
logger = logging.getLogger("vecenv")
logger.addHandler(logging.NullHandler())


class Recovery:
    """Errors of failed envs until their reset, and the budget of failures.

    With on_error="restart", a failed step becomes a truncated row with reward 0, and a failed reset is retried. Each
    env has a budget of `max_restarts` failures per minute. If a worker ends, its envs are lost, and the env that was
    running is charged. If no env was running, all failed envs of the worker are charged.
    """

    def __init__(self, backend: Backend, on_error: Any, max_restarts: Any, mark: Mark) -> None:
        if on_error not in ("raise", "restart"):
            raise ValueError(f'on_error must be "raise" or "restart", got {on_error!r}')
        if isinstance(max_restarts, bool) or not isinstance(max_restarts, int) or max_restarts < 1:
            raise ValueError(f"max_restarts must be a positive integer, got {max_restarts!r}")
        self._backend, self.mark = backend, mark
        self._max_restarts = max_restarts
        self._times: dict[int, deque[float]] = {}
        self.absorbs = on_error == "restart"
        self.errors: dict[int, BaseException] = {}
        self._traces: dict[int, tuple[BaseException, TracebackType | None]] = {}
        self.rows: dict[int, Extra] = {}
        """Truncated rows, by env id, that answer steps of failed envs, until the caller receives these rows."""
        self.restarts = 0
        self.absorbed = 0
        self.resets: dict[int, dict[str, Any]] = {}
        self._autoresets = np.zeros(0, np.bool_)
        self.withheld = set[int]()
        """Ids of envs that are stepping, and get a new worker at the end of their episode."""
        self._last: list[tuple[np.ndarray, np.ndarray]] = []
        """Observation arrays of the arena, each with a copy from before each env's last round."""
        self._changing = np.zeros(0, np.bool_)
        """Envs whose last round may not have been returned to the caller."""

    def record_lost(self) -> None:
        if self._backend.lost and (lost := [i for i in self._backend.lost if i not in self.errors]):
            logger.warning("envs %s are lost: %s", lost, str(self._backend.lost[lost[0]]))
            for i in lost:
                self.errors[i] = self._backend.lost[i]

    def record_interrupted(self, ids: list[int]) -> None:
        """Record that these envs need a reset after an interrupted call."""
        self.resets, self.rows, self.withheld = {}, {}, set()
        self.restore_observations(np.flatnonzero(self._changing))
        for i in ids:
            reason = f"env {i} has not been reset since a call was interrupted"
            self.errors[i] = VectorEnvError(f"{reason}; {how_to_reset(i)}")

    def exception_of(self, failure: Failure) -> BaseException:
        pid = next((worker.pid for worker in self._backend.workers if failure.env_id in worker.ids), None)
        return failure.exception(pid)

    def check(self, i: int) -> None:
        error = self.errors.get(i)
        if error is not None:
            if hasattr(error, "partial"):
                error.partial = None  # the caller already has the results of the failed call
            # Each raise would lengthen the traceback, whose frames keep objects alive. So restore the first traceback.
            first, trace = self._traces.get(i, (None, None))
            if first is not error:
                self._traces[i] = error, (trace := error.__traceback__)
                add_note(error, f"env {i} failed in an earlier call and was not stepped: {how_to_reset(i)}")
            raise error.with_traceback(trace)

    def restart_lost(self, asked: Iterable[int]) -> None:
        """Restart the lost envs in `asked` before a reset. Retry failing constructors within the budget, then raise."""
        if not self._backend.lost:
            return
        for i in asked:
            while i in self._backend.lost:
                try:
                    self._restart(i)
                except Exception as error:
                    if not self._may_absorb(i):
                        self._add_budget_note(i, error)
                        self.mark.owner = 0
                        raise

    def discard_errors(self, asked: Iterable[int]) -> None:
        if self.errors:
            for i in asked:
                self.errors.pop(i, None)
                self._traces.pop(i, None)

    def recycle(self) -> None:
        """Begin or continue to replace a worker, before a call changes anything else."""
        if self._backend.recycles:
            self.mark.take()
            try:
                self._backend.recycle()
            except Exception:  # of the caller's function
                self.mark.owner = 0
                raise
            self.mark.owner = 0

    def mark_moves(self, ids: np.ndarray | None, ops: int) -> Any:
        """Add MOVE to the opcode of each env that gets a new worker at the end of its episode."""
        moving = self._backend.moving
        if not moving:
            return ops
        asked = np.arange(len(self._backend.arena.status)) if ids is None else ids
        return np.where(np.isin(asked, list(moving)), np.uint8(ops | opcodes.MOVE), np.uint8(ops))

    def prepare(self, ids: np.ndarray | None, ops: Any) -> Any:
        """Withhold autoresets of envs with MOVE, and save observations. Return the opcodes to send."""
        if isinstance(ops, np.ndarray) and (moves := (ops & np.uint8(opcodes.MOVE)) > 0).any():
            self.withheld |= set((moves.nonzero()[0] if ids is None else ids[moves]).tolist())
            ops = np.where(moves, ops & np.uint8(opcodes.PLAIN & ~opcodes.MOVE), ops)
        if self.absorbs:
            self._save_observations(ids, ops)
        return ops

    def _save_observations(self, ids: np.ndarray | None, ops: Any) -> None:
        """Copy the observations of these envs (`None`: all), because a failing env may leave its row half written."""
        if not len(self._autoresets):
            self._autoresets = np.zeros(len(self._backend.arena.status), np.bool_)
        self._autoresets[... if ids is None else ids] = ops & opcodes.AUTORESET
        self._changing = self._backend.arena.status != opcodes.IDLE
        self._changing[... if ids is None else ids] = True
        if not self._last:
            self._last = [(array, np.zeros_like(array)) for array in nest.leaves(self._backend.arena.obs)]
        for array, kept in self._last:
            if ids is None:
                kept[...] = array
            else:
                kept[ids] = array[ids]

    def restore_observations(self, ids: Any) -> None:
        for array, kept in self._last:
            array[ids] = kept[ids]

    def answer_failed(self, ids: np.ndarray, ops: Any) -> tuple[np.ndarray, np.ndarray]:
        """Answer the steps of failed envs with truncated rows. Return the ids and ops of the remaining envs."""
        ops = np.broadcast_to(np.asarray(ops, dtype=np.uint8), ids.shape)
        stepped = np.isin(ops & np.uint8(opcodes.PLAIN), (opcodes.STEP, opcodes.STEP_OBJECT))
        failed = stepped & np.isin(ids, list(self.errors))
        for i in ids[failed].tolist():
            self.rows[i] = self._truncated_row(i)
            self._backend.arena.status[i] = opcodes.DONE
        return ids[~failed], ops[~failed]

    def absorb_failures(self, extras: dict[int, Extra], answered: Collection[int]) -> list[int]:
        """Absorb failures within the budget. Return the ids of envs whose failure must be raised.

        `answered`: envs that `answer_failed` has answered.
        """
        failed, resets = [], self.resets
        for i, extra in extras.items():
            failure = extra.failure
            if failure is not None:
                failure.op = "reset" if i in resets or failure.stepped else "step"
                self.errors[i] = self.exception_of(failure)
                if not failure.stepped:
                    self.restore_observations([i])
                free = self.absorbs and is_bystander(self.errors[i])
                if i in resets and (not failure.began or free or self._may_absorb(i)):
                    extra = self._retry_reset(i, resets[i])
                elif i not in resets and (free or self._may_absorb(i)):
                    self.absorbed += free
                    extra = extra._replace(failure=None) if failure.stepped else self._truncated_row(i)
            absorbed = extra.failure is None and (failure is not None or i in answered)
            if absorbed and i not in resets and (self._autoresets[i] or i in self.withheld):
                extra = self._next_episode(i, extra)
            if extra.failure is not None:
                failed.append(i)
                self._add_budget_note(i, self.errors[i])
            extras[i] = extra
        return failed

    def begin_episodes(self, asked: Sequence[int], taken: Taken) -> tuple[Taken, list[int]]:
        """Reset envs with withheld autoresets in their new worker. Return the results, and the failed envs."""
        arena, extras = self._backend.arena, dict(taken.extras)
        withheld = self.withheld.intersection(asked)
        self.withheld -= withheld
        ended = [
            i
            for i in asked
            if i in withheld
            and (arena.terminated[i] or arena.truncated[i])
            and ((extra := extras.get(i)) is None or (extra.failure is None and extra.final is None))
        ]
        self._backend.move(ended)
        for i in ended:
            last = extras.get(i) or Extra(next((infos[i] for infos in taken.infos if i in infos), None))
            extras[i] = self._next_episode(i, last)
        return taken._replace(extras=extras), [i for i in ended if extras[i].failure is not None]

    def _next_episode(self, i: int, last: Extra) -> Extra:
        arena = self._backend.arena
        rows = [(obs, final) for obs, final in zip(nest.leaves(arena.obs), nest.leaves(arena.final), strict=True)]
        arrays = [(obs, final) for obs, final in rows if obs.dtype != object]
        for obs, final in arrays:
            final[i] = obs[i]
        objects = last.objects or [obs[i] for obs, _ in rows if obs.dtype == object]
        outcome = arena.reward[i], arena.terminated[i], arena.truncated[i]
        first = self._retry_reset(i, {} if arena.seed[i] < 0 else {"seed": int(arena.seed[i])})
        arena.reward[i], arena.terminated[i], arena.truncated[i] = outcome
        if first.failure is None:
            return first._replace(reward=last.reward, final=Final(objects, last.info or {}))
        for obs, final in arrays:
            obs[i] = final[i]
        first.failure.stepped = True
        return last._replace(failure=first.failure)

    def _retry_reset(self, i: int, kwargs: dict[str, Any]) -> Extra:
        while True:
            extra = self._try_reset(i, {i: kwargs} if kwargs else {})
            if extra.failure is None:
                return extra
            self.errors[i] = self.exception_of(extra.failure)
            if not self._may_absorb(i):
                self.restore_observations([i])
                return extra

    def _try_reset(self, i: int, args: Mapping[int, Any]) -> Extra:
        try:
            if i in self._backend.lost:
                self._restart(i)
        except Exception as error:
            return Extra(failure=died_failure(i, "reset", error))
        self.discard_errors([i])
        op, backend = opcodes.RESET_KWARGS if args else opcodes.RESET, self._backend
        backend.send(np.array([i]), op, backend.encode([i], op, None, args))
        backend.wait(lambda: backend.arena.status[i] >= opcodes.DONE, None)
        taken = backend.take([i])
        return taken.extras.get(i) or Extra(next((infos[i] for infos in taken.infos), None))

    def _restart(self, i: int) -> None:
        """Restart the worker of a lost env. First record all errors, because the backend forgets them."""
        self.record_lost()
        block = self._backend.restart(i)
        self.restarts += 1
        logger.info("the worker of envs %s was restarted", list(block))

    def _truncated_row(self, i: int) -> Extra:
        error, arena = self.errors[i], self._backend.arena
        arena.reward[i], arena.terminated[i], arena.truncated[i] = 0.0, False, True
        return Extra(info={"restarted": True, "error": f"{type(error).__name__}: {error}"})

    def _may_absorb(self, i: int) -> bool:
        """Charge a failure to the budget of env i. Return False if no budget is left."""
        if not self.absorbs or self._is_spent(i):
            return False
        self._times.setdefault(i, deque(maxlen=self._max_restarts)).append(time.monotonic())
        self.absorbed += 1
        return True

    def _is_spent(self, i: int) -> bool:
        times = self._times.get(i)
        return times is not None and len(times) == times.maxlen and time.monotonic() - times[0] < WINDOW

    def _add_budget_note(self, i: int, error: BaseException) -> None:
        if self.absorbs and self._is_spent(i):
            add_note(
                error,
                f"env {i} had already failed {self._max_restarts} times within a minute "
                f"(max_restarts={self._max_restarts}), so this failure is raised in spite of "
                f'on_error="restart"; {how_to_reset(i)}',
            )
