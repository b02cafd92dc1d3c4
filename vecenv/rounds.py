"""Rounds: how the operations of a call become a round, and the answers become rows. The half behind BaseVectorEnv."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from vecenv.access import EnvAccess
from vecenv.backends.base import REVIEW_ROUNDS
from vecenv.backends.host.env_host import own_actions
from vecenv.backends.host.row_writer import Extra
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.layout import Leaf
from vecenv.engine.actions import batch_actions
from vecenv.engine.ids import as_ids
from vecenv.engine.results import HandOver
from vecenv.engine.seeding import spread_seeds
from vecenv.errors import ClosedError, Partial

BOOL = np.dtype(np.bool_)
NO_ARGUMENTS: dict[str, Any] = {}


class Rounds(EnvAccess):
    """Sends rounds and collects them; the state is set up by BaseVectorEnv."""

    wait_num: int
    _all_done: bytes
    _all_answered: Callable[[], bool]
    _order: list[np.ndarray | None]
    """The ids of each round in flight, as they were asked for (None: all)."""
    _action_leaf: Leaf | None
    _hand_over: HandOver
    _resets_in_flight: dict[int, dict[str, Any]]
    """The envs that are being reset, with what they were asked with."""
    _strict: bool
    _check_actions: bool

    _plain_actions: tuple[tuple[int, ...] | None, np.dtype | None] = None, None
    """Shape and dtype of actions of all envs that need no second look."""
    _steps_plainly: bool = False
    """Whether `step` with such actions may do without `send` and `recv`."""

    # What is sent.

    def _exchange(self, action: Any, reset: Any, autoreset: bool) -> Mapping[int, Extra] | None:
        """A plain round from its begin to its end; None if it is another: then nothing is done."""
        begin = perf_counter()
        if not self._send_plainly(action, reset, autoreset):
            return None
        self._dispatch_time += perf_counter() - begin
        self._wait(self._all_answered, None)
        return self._take(None, self._all_ids)

    def _send_plainly(self, action: Any, reset: Any, autoreset: bool) -> bool:
        """Send the round that nearly every round is: all envs, actions as the arena has them, `reset` None or a mask.

        False if it is another, or if anything is out of the ordinary: then nothing is done. The other methods do
        what this one does too, after more questions; it is here because most of the caller's time went into them.
        """
        shape, dtype = self._plain_actions
        if (
            action.__class__ is not np.ndarray
            or action.shape != shape
            or action.dtype is not dtype
            or self._status.tobytes() != self._all_idle
            or self._backend.lost
            or self._recovery.errors
            or (autoreset and not self._backend.autoresets)
        ):
            return False
        ops: Any = opcodes.STEP_RESET if autoreset else opcodes.STEP
        chosen: list[int] = []
        if reset is not None:
            if reset.__class__ is not np.ndarray or reset.dtype is not BOOL or reset.shape != self._arena.status.shape:
                return False
            if chosen := reset.nonzero()[0].tolist():
                ops = _mixed(ops, reset, opcodes.RESET)
        self._arena.action[...] = action  # type: ignore[index]
        if chosen:
            self._resets_in_flight = dict.fromkeys(chosen, NO_ARGUMENTS)  # of an idle env there is none in flight
            self._resets += len(chosen)
        self._send(None, ops, {})
        self._steps += self.env_num - len(chosen)
        return True

    def _send_steps(
        self,
        ids: np.ndarray | None,
        action: Any,
        resets: np.ndarray | None,
        autoreset: bool,
        kwargs: dict[str, Any],
    ) -> None:
        asked = self._all_ids if ids is None else ids.tolist()
        batch = batch_actions(action, asked, self._action_leaf, wide=True)
        if self._check_actions:
            self._refuse_bad_actions(asked, batch, resets)
        self._check_ready(ids, resets)
        ops: Any = opcodes.STEP
        payloads: dict[int, Any] = {}
        is_array = batch.__class__ is np.ndarray
        if not is_array:
            ops, payloads = opcodes.STEP_OBJECT, dict(zip(asked, batch, strict=True))
        elif batch.dtype != self._action_leaf.dtype:  # type: ignore[union-attr]
            ops |= opcodes.WIDE
        if autoreset:
            ops |= opcodes.AUTORESET
        chosen = [] if resets is None else resets.nonzero()[0].tolist()
        if chosen:
            chosen = chosen if ids is None else ids[resets].tolist()
            args = self._reset_arguments(chosen, kwargs)
            for i in chosen if payloads else ():
                del payloads[i]
            if kwargs:
                payloads.update(args)
            ops = _mixed(ops, resets, opcodes.RESET_KWARGS if kwargs else opcodes.RESET)
        elif kwargs:
            raise TypeError(f"send() got {sorted(kwargs)}, which are for resets, but no ids to reset")
        encoded = self._backend.encode(payloads) if payloads else {}
        if is_array:
            self._arena.action[... if ids is None else ids] = batch  # type: ignore[index]
        if chosen:
            self._begin_reset(args)
        self._send(ids, ops, encoded)
        self._steps += len(asked) - len(chosen)

    def _send_resets(self, ids: np.ndarray | None, kwargs: dict[str, Any]) -> None:
        self._check_not_busy(ids)
        args = self._reset_arguments(self._all_ids if ids is None else ids.tolist(), kwargs)
        encoded = self._backend.encode(args) if kwargs else {}
        self._backend.look()  # what ended while it was idle is started again at once, not found out by asking
        self._begin_reset(args)
        self._send(ids, opcodes.RESET_KWARGS if kwargs else opcodes.RESET, encoded)

    def _send(self, ids: np.ndarray | None, ops: Any, encoded: Mapping[int, Any]) -> None:
        """Hand a checked round to the backend; envs that failed answer at once."""
        self._rounds += 1
        try:
            if self._recovery.errors:
                asked = np.arange(self.env_num) if ids is None else ids
                all_ops = np.broadcast_to(np.asarray(ops, dtype=np.uint8), asked.shape)
                left = self._recovery.answer_failed(asked, all_ops)
                ids, ops = asked[left], all_ops[left]
                encoded = {i: encoded[i] for i in ids.tolist() if i in encoded}
            if ids is None or len(ids):
                self._backend.send(ids, ops, encoded)
        except BaseException:
            # Interrupted: in flight is what reached the status bytes.
            self._resets_in_flight = {
                i: a for i, a in self._resets_in_flight.items() if self._status[i] != opcodes.IDLE
            }
            self._backend.nudge()
            raise

    def _begin_reset(self, args: dict[int, dict[str, Any]]) -> None:
        """Note that these envs are being reset; those that failed begin anew, and lost ones are started again first."""
        self._recovery.start_again(args)
        self._recovery.forget(args)
        self._resets_in_flight.update(args)
        self._resets += len(args)

    def _reset_arguments(self, asked: list[int], kwargs: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """The arguments of the reset of each env."""
        if "seed" not in kwargs:
            return dict.fromkeys(asked, kwargs)
        seeds = spread_seeds(kwargs["seed"], asked)
        return {i: {**kwargs, "seed": seed} for i, seed in zip(asked, seeds, strict=True)}

    def _reset_rows(self, ids: np.ndarray | None, reset: Any) -> np.ndarray:
        """Which rows of a round are resets, as a mask."""
        mask = np.asarray(reset)
        if mask.dtype is BOOL and mask.shape == (self.env_num,):
            if ids is None:
                return mask
            mask = np.flatnonzero(mask)
        if mask.size == 0:
            return np.zeros(self.env_num if ids is None else len(ids), dtype=np.bool_)
        chosen = as_ids(mask, self.env_num)
        asked = np.arange(self.env_num) if ids is None else ids
        is_chosen = np.zeros(self.env_num, dtype=np.bool_)
        is_chosen[chosen] = True
        rows = is_chosen[asked]
        if rows.sum() != len(chosen):
            raise ValueError(f"reset={chosen.tolist()} must be among the envs of this round, {asked.tolist()}")
        return rows

    # What comes back.

    def _wait(self, done: Callable[[], bool], timeout: float | None) -> None:
        begin = perf_counter()
        try:
            self._backend.wait(done, None if timeout is None else time.monotonic() + timeout)
        except Exception as error:
            if not isinstance(error, ClosedError):
                self._check_open()  # another thread may be taking it all apart
            raise
        waited = self._backend.waited = perf_counter() - begin
        self._wait_time += waited
        if not self._rounds % REVIEW_ROUNDS:
            self._backend.review(self._wait_time)

    def _enough(self, need: int) -> Callable[[], bool]:
        """A test whether `need` envs have answered, quick enough to spin on."""
        status, all_done = self._status, self._all_done

        def enough() -> bool:
            raw = status.tobytes()
            return raw == all_done or len(raw.translate(None, opcodes.NOT_DONE)) >= need

        return enough

    def _answered(self, asked: list[int]) -> Callable[[], bool]:
        """A test whether these envs have answered."""
        if self._in_flight() == len(asked):
            return self._enough(len(asked))
        status = self._status
        return lambda: all(status[i] >= opcodes.DONE for i in asked)

    def _finished_ids(self) -> tuple[np.ndarray, list[int]]:
        """The envs to return now: in the order in which they were sent when all are back, else as they are found."""
        order, self._order = self._order, []
        if not self.is_async:
            parts = [np.arange(self.env_num) if part is None else part for part in order]
            if sum(map(len, parts)) == np.count_nonzero(self._arena.status):
                ids = np.concatenate(parts)
                return ids, ids.tolist()
        ids = np.flatnonzero(self._arena.status >= opcodes.DONE)
        return ids, ids.tolist()

    def _take(self, ids: np.ndarray | None, asked: list[int]) -> Mapping[int, Extra]:
        """Take the answers of these envs, which are in the arena and in what is returned; raises for those that failed,
        with the results of the others.
        """
        extras = self._backend.take(None if ids is None else asked)
        if self._backend.lost:
            self._recovery.note_lost()
        failed = []
        if extras and any(extra.failure is not None for extra in extras.values()):
            failed = self._absorb(asked, extras)
        if self._strict:
            rows: Any = ... if ids is None else ids
            self._unreset[rows] = self._arena.terminated[rows] | self._arena.truncated[rows]
            self._unreset[[i for i, extra in extras.items() if extra.final is not None]] = False
        if failed:
            self._raise_failures(failed, asked, extras)
        if self._resets_in_flight:
            if ids is None:
                self._resets_in_flight = {}
            else:
                self._forget_resets(asked)
        return extras

    def _absorb(self, asked: list[int], extras: dict[int, Extra]) -> list[int]:
        """`Recovery.settle`, which starts workers and waits: where it is interrupted, all have still to be taken."""
        try:
            return self._recovery.settle(extras, self._resets_in_flight)
        except BaseException:
            self._backend.nudge()
            for i in asked:
                if self._status[i] == opcodes.IDLE:  # not asked once more
                    self._backend.answer(i, extras.get(i))
            raise

    def _forget_resets(self, asked: list[int]) -> None:
        for i in asked:
            self._resets_in_flight.pop(i, None)

    def _raise_failures(self, failed: list[int], asked: list[int], extras: Mapping[int, Extra]) -> None:
        """Raise the first failure (a cause before its consequences); the results of the other envs are in `partial`."""
        partial = None
        lost = {i for i in failed if not extras[i].failure.stepped}  # type: ignore[union-attr]
        if good := [i for i in asked if i not in lost]:
            rows = self._hand_over.rows(np.array(good), good, {i: extras[i] for i in good if i in extras})
            partial = Partial(np.array(good), *rows)
        errors = self._recovery.errors
        first = min(failed, key=lambda i: (getattr(errors[i], "bystander", False), i))
        self._forget_resets(asked)
        errors[first].partial = partial  # type: ignore[attr-defined]
        raise errors[first]

    # Checks.

    def _check_ready(self, ids: np.ndarray | None, resets: np.ndarray | None) -> None:
        """RuntimeError for envs that are stepping, have failed or, if `strict`, need a reset."""
        self._check_not_busy(ids)
        if self._backend.lost:
            self._recovery.note_lost()
        if not self._recovery.errors and not self._strict:
            return
        for row, i in enumerate(self._all_ids if ids is None else ids.tolist()):
            if resets is not None and resets[row]:
                continue
            if not self._recovery.absorbs:
                self._recovery.check(i)
            if self._strict and self._unreset[i]:
                raise RuntimeError(
                    f"env {i} has not been reset, or its episode is over; call reset({i}) first (strict=True)"
                )

    def _refuse_bad_actions(self, asked: Sequence[int], batch: Any, resets: np.ndarray | None) -> None:
        if isinstance(batch, np.ndarray):
            batch = own_actions(batch, self._action_leaf.dtype)  # type: ignore[union-attr]
        for row, (i, action) in enumerate(zip(asked, batch, strict=True)):
            space = self._reports[i].action_space
            ignored = resets is not None and resets[row]
            if space is not None and not ignored and not space.contains(action):
                raise ValueError(
                    f"action for env {i} is {action!r}, which is not in its action space {space} (check_actions=True)"
                )


def _mixed(op: int, resets: Any, reset: int) -> np.ndarray:
    """The operation of each row: `reset` for those in the mask `resets`, `op` for the others."""
    ops = np.empty(len(resets), dtype=np.uint8)
    ops.fill(op)
    ops[resets] = reset
    return ops
