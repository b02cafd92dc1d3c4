"""BaseVectorEnv: many envs behind one object; ids, rounds, waiting, errors. Where the envs live is the backend's business."""

from __future__ import annotations

import atexit
import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vecenv.access import EnvAccess
from vecenv.actions import batch_actions
from vecenv.backends import arena as box
from vecenv.backends.base import Backend
from vecenv.backends.failure import Failure
from vecenv.backends.layout import common_layout
from vecenv.backends.per_env import PerEnvBackend
from vecenv.backends.rows import Extra
from vecenv.checks import (
    check_env_fns,
    check_spaces_equal,
    check_timeout,
    check_wait_num,
    check_workers,
    default_workers,
)
from vecenv.errors import ClosedError, Partial
from vecenv.ids import as_ids
from vecenv.results import HandOver
from vecenv.seeding import spread_seeds
from vecenv.supervision import Supervisor

CLOSE_TIMEOUT = 5.0

Step = tuple[Any, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class BaseVectorEnv(EnvAccess):
    """Runs many envs as one (contract of tianshou's BaseVectorEnv: ids, no autoreset, `wait_num` and `timeout`).

        venv = ShmemVectorEnv([lambda: gym.make("CartPole-v1")] * 8)
        obs, info = venv.reset()
        while True:
            obs, rew, terminated, truncated, info = venv.step(policy(obs))
            done = terminated | truncated
            if done.any():
                obs[done], info[done] = venv.reset(done)

    Arguments:
        env_fns: one callable an env, each called exactly once.
        worker_fn: a class or function that makes an `EnvWorker` of an env_fn, for workers of your own; else `backend` decides.
        wait_num: return from `step` as soon as this many envs are done (1 .. n); more if more are.
        timeout: seconds after which `step` returns what is done; if nothing is, it returns as soon as the first env is.
        backend: a fresh `Backend`.
        num_workers: how many workers share the envs; default: the CPUs that this process may use, or one worker an env with
            `wait_num` or `timeout`.
        copy: False returns views of the arena for full batches, valid until the next call.
        stack_obs: False returns Dict and Tuple observations as an object array of one dict or tuple an env.
        on_error: "raise", or "restart" to turn the failure of an env into a row with truncated=True and info["restarted"]=True, at most
            `max_restarts` times a minute and env.
        strict: refuse to step an env that was not reset, or whose episode is over.
        check_spaces: refuse envs with unequal spaces. check_actions: refuse actions that are not in the action space.

    Guarantees: a call that is refused leaves every env untouched; returned arrays never change later; the failure of one env loses no
    result of another (`error.partial`); every wait ends when a worker dies.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        worker_fn: Callable[[Callable[[], Any]], Any] | None = None,
        wait_num: int | None = None,
        timeout: float | None = None,
        *,
        backend: Backend | None = None,
        num_workers: int | None = None,
        copy: bool = True,
        stack_obs: bool = True,
        on_error: str = "raise",
        max_restarts: int = 5,
        strict: bool = False,
        check_spaces: bool = False,
        check_actions: bool = False,
    ) -> None:
        self.is_closed = False
        self._env_fns = check_env_fns(env_fns)
        n = self.env_num = len(self._env_fns)
        self.wait_num = check_wait_num(wait_num, n)
        self.timeout = check_timeout(timeout)
        self.is_async = self.wait_num != n or timeout is not None
        self._supervisor = Supervisor(on_error, max_restarts, n)
        if (worker_fn is None) == (backend is None):
            raise TypeError(
                "pass either worker_fn, which makes a worker of each env_fn, or backend; or use DummyVectorEnv, ShmemVectorEnv, ..."
            )
        self._backend: Backend = PerEnvBackend(worker_fn) if backend is None else backend  # type: ignore[arg-type]
        workers = default_workers(n, self.is_async) if num_workers is None else check_workers(num_workers, n)
        self._owner = os.getpid()
        # Before anything is started, so that an interrupted constructor leaves nothing behind.
        self._finalizer = weakref.finalize(self, _shut_down, self._backend, type(self).__name__, self._owner)
        try:
            self._reports = self._backend.start(self._env_fns, workers, self.is_async)
            if check_spaces:
                check_spaces_equal(self._reports)
            layout = common_layout(
                [r.observation_space for r in self._reports], [r.action_space for r in self._reports]
            )
            self._arena = self._backend.bind(layout)
        except BaseException:
            self.is_closed = True
            self._finalizer.detach()
            self._backend.close(CLOSE_TIMEOUT)
            raise
        self._action_leaf = layout.action
        spaced = any(r.observation_space is not None for r in self._reports)
        self._hand_over = HandOver(self._arena, layout, n, copy=copy, stack_obs=stack_obs, spaced=spaced)
        self._strict, self._check_actions = strict, check_actions
        self._all_ids = list(range(n))
        self._busy = np.zeros(n, dtype=np.bool_)
        self._unreset = np.ones(n, dtype=np.bool_)
        self._errors: dict[int, BaseException] = {}
        self._order: list[np.ndarray | None] = []
        self._mail = memoryview(self._arena.mail)
        self._all_done = bytes([box.DONE]) * n
        self._in_flight = 0
        self._reset_args: dict[int, dict[str, Any]] = {}
        self._rounds = self._steps = self._resets = 0
        self._dispatch_time = self._wait_time = 0.0

    # Stepping.

    def reset(self, id: Any = None, *, env_id: Any = None, **kwargs: Any) -> tuple[Any, np.ndarray]:
        """Reset the envs `id` (default all) and wait for them, also in async mode; returns (obs, info), rows in the order of `id`.

        `seed`: an int s gives env i the seed s + i, a list has one seed for each env of `id`. Other arguments go to every `reset`. An env
        that failed is started again. Raises RuntimeError for an env that is still stepping.
        """
        self._check_open()
        ids = self._as_ids(id, env_id)
        if (args := self._reset_arguments(ids, kwargs)) is None:
            args = {}
        self._begin_reset(ids)
        self._send(ids, box.RESET_KWARGS if args else box.RESET, args, args)
        mail, asked = self._mail, self._all_ids if ids is None else ids.tolist()
        self._wait(lambda: all(mail[i] >= box.DONE for i in asked), None)
        obs, _, _, _, info = self._collect(ids, asked)
        return obs, info

    def step(self, action: Any, id: Any = None, *, env_id: Any = None, reset: Any = None) -> Step:
        """Step the envs `id` (default all) and return (obs, rew, terminated, truncated, info).

        Row j belongs to env id[j]; with `wait_num` or `timeout` rows come as envs finish and `info[j]["env_id"]` tells which. `action` has
        one row an env, of any array library; None sends nothing and only waits for what is in flight. Envs in `reset` (ids or a mask,
        among `id`) are reset instead of stepped, in the same round; their action is ignored.

        obs: stacked (k, ...), a dict or tuple of such, or an object array for what cannot be stacked; rew: float64 (k,) or (k, m);
        terminated, truncated: bool (k,); info: object array of dicts. There is no autoreset.
        """
        if action is None and reset is None:
            self._check_open()
            if not self.is_async and not self._in_flight:
                raise ValueError(
                    "step(None) waits for steps in flight, which only async mode or send() can have; pass one action for each env"
                )
        else:
            self.send(action, id, env_id=env_id, reset=reset)
        return self.recv()

    def send(self, action: Any, id: Any = None, *, env_id: Any = None, reset: Any = None, **kwargs: Any) -> None:
        """The first half of `step`: check everything, start the envs, return at once. `kwargs` go to the envs in `reset`.

        `send(None, reset=ids)` only resets. Nothing is sent if anything is wrong: ValueError for a wrong number of actions or no action,
        IndexError, TypeError and ValueError for ids, RuntimeError for an env that is still stepping, and the old error of an env that failed.
        """
        self._check_open()
        begin = time.perf_counter()
        if action is None:
            if reset is None:
                raise ValueError("send() needs one action for each env, or ids to reset")
            ids, resets = self._as_ids(reset if id is None and env_id is None else id, env_id), None
            if id is not None or env_id is not None:
                raise ValueError("send(None, id) has nothing to do for these envs; pass actions, or only reset=")
            self._send_resets(ids, kwargs)
        else:
            ids = self._as_ids(id, env_id)
            resets = None if reset is None else self._reset_rows(ids, reset)
            self._send_steps(ids, action, resets, kwargs)
        self._order.append(ids)
        self._dispatch_time += time.perf_counter() - begin

    def recv(self) -> Step:
        """The second half of `step`: wait for what is in flight (all of it, or as `wait_num` and `timeout` say) and return it.

        RuntimeError if nothing is in flight. The error of an env that failed is raised with the others' results in its `partial`.
        """
        self._check_open()
        if self._in_flight == 0:
            raise RuntimeError("step(None): no step is in flight")
        need = min(self.wait_num, self._in_flight) if self.is_async else self._in_flight
        self._wait(self._enough(need), self.timeout)
        if self.is_async and not (one := self._enough(1))():
            self._wait(one, None)
        return self._collect(*self._finished_ids())

    def _enough(self, need: int) -> Callable[[], bool]:
        """A test whether `need` envs have answered, quick enough to spin on."""
        mail, all_done = self._mail, self._all_done

        def enough() -> bool:
            raw = mail.tobytes()
            return raw == all_done or raw.count(box.DONE) + raw.count(box.DONE_EXTRA) >= need

        return enough

    def _finished_ids(self) -> tuple[np.ndarray | None, list[int]]:
        """The envs to return now: in the order in which they were sent when all are back, else as they are found."""
        order, self._order = self._order, []
        if not self.is_async:
            if len(order) == 1 and order[0] is None:
                return None, self._all_ids
            parts = [np.arange(self.env_num) if part is None else part for part in order]
            if sum(map(len, parts)) == np.count_nonzero(self._arena.mail):
                ids = np.concatenate(parts)
                return ids, ids.tolist()
        ids = np.flatnonzero(self._arena.mail >= box.DONE)
        return ids, ids.tolist()

    # What is sent.

    def _send_steps(
        self, ids: np.ndarray | None, action: Any, resets: np.ndarray | None, kwargs: Mapping[str, Any]
    ) -> None:
        asked = self._all_ids if ids is None else ids.tolist()
        batch = batch_actions(action, asked, self._action_leaf)
        if self._check_actions:
            self._refuse_bad_actions(asked, batch)
        self._check_ready(ids, resets)
        payloads: dict[int, Any] = {}
        ops: Any = box.STEP
        if isinstance(batch, list):
            ops, payloads = box.STEP_OBJECT, dict(zip(asked, batch, strict=True))
        else:
            self._write_actions(ids, batch)
        reset_args: dict[int, dict[str, Any]] = {}
        if resets is not None and resets.any():
            chosen = np.flatnonzero(resets) if ids is None else ids[resets]
            reset_args = self._reset_arguments(chosen, kwargs) or {}
            if payloads:
                payloads = {i: p for i, p in payloads.items() if i not in set(chosen.tolist())}
            payloads |= reset_args
            ops = np.full(len(asked), ops, dtype=np.uint8)
            ops[resets] = box.RESET_KWARGS if reset_args else box.RESET
            self._begin_reset(chosen)
        elif kwargs:
            raise TypeError(f"send() got {sorted(kwargs)}, which are for resets, but no ids to reset")
        self._send(ids, ops, payloads, reset_args)
        self._steps += len(asked)

    def _write_actions(self, ids: np.ndarray | None, batch: np.ndarray) -> None:
        assert self._arena.action is not None
        if ids is None:
            self._arena.action[...] = batch
        else:
            self._arena.action[ids] = batch

    def _send_resets(self, ids: np.ndarray | None, kwargs: Mapping[str, Any]) -> None:
        args = self._reset_arguments(ids, kwargs) or {}
        self._begin_reset(ids)
        self._send(ids, box.RESET_KWARGS if args else box.RESET, args, args)

    def _send(
        self, ids: np.ndarray | None, ops: Any, payloads: Mapping[int, Any], reset_args: Mapping[int, dict[str, Any]]
    ) -> None:
        """Hand a checked round to the backend."""
        encoded = self._backend.encode(payloads) if payloads else {}
        self._reset_args.update(reset_args)
        self._busy[_rows_of(ids)] = True
        self._in_flight += self.env_num if ids is None else len(ids)
        self._rounds += 1
        try:
            if self._errors:
                ids, ops = self._answer_for_failed(ids, ops)
            if ids is None or len(ids):
                self._backend.send(ids, ops, encoded)
        except BaseException:
            # Interrupted: in flight is what reached the post boxes.
            self._busy[:] = self._arena.mail != box.IDLE
            self._in_flight = int(self._busy.sum())
            self._backend.nudge()
            self._order.append(np.flatnonzero(self._arena.mail))
            raise

    def _answer_for_failed(self, ids: np.ndarray | None, ops: Any) -> tuple[np.ndarray | None, Any]:
        """on_error="restart": a failed env is not stepped, its row says that it has to be reset. Returns what is left to send."""
        asked = np.arange(self.env_num) if ids is None else ids
        all_ops = np.broadcast_to(np.asarray(ops, dtype=np.uint8), asked.shape)
        failed = np.array(
            [
                i in self._errors and op in (box.STEP, box.STEP_OBJECT)
                for i, op in zip(asked.tolist(), all_ops, strict=True)
            ]
        )
        for i in asked[failed].tolist():
            self._backend.answer(i, self._truncated_row(i, self._errors[i]))
        for i in asked[~failed].tolist():
            self._errors.pop(i, None)
        return (ids, ops) if not failed.any() else (asked[~failed], all_ops[~failed])

    def _begin_reset(self, ids: np.ndarray | None) -> None:
        """Check that the envs can be reset, and start those again that are lost."""
        asked = self._all_ids if ids is None else ids.tolist()
        self._check_not_busy(ids)
        for i in asked:
            while i in self._backend.lost:
                try:
                    self._restart(i)
                except Exception:
                    if not self._supervisor.may_restart(i):
                        raise
        self._resets += len(asked)
        if self._errors:
            for i in asked:
                self._errors.pop(i, None)

    def _restart(self, i: int) -> None:
        """Start the worker of a lost env; the others of its block exist again too, but have to be reset."""
        self._backend.restart(i)
        self._supervisor.restarts += 1

    def _reset_arguments(self, ids: np.ndarray | None, kwargs: Mapping[str, Any]) -> dict[int, dict[str, Any]] | None:
        if not kwargs:
            return None
        asked = self._all_ids if ids is None else ids.tolist()
        seeds = spread_seeds(kwargs.get("seed"), asked)
        return {
            i: {**kwargs, "seed": s} if "seed" in kwargs else dict(kwargs) for i, s in zip(asked, seeds, strict=True)
        }

    def _reset_rows(self, ids: np.ndarray | None, reset: Any) -> np.ndarray:
        """Which rows of a round are resets, as a mask."""
        mask = np.asarray(reset)
        if mask.dtype == np.bool_ and mask.shape == (self.env_num,):
            if ids is None:
                return mask
            mask = np.flatnonzero(mask)
        if mask.size == 0:
            return np.zeros(self.env_num if ids is None else len(ids), dtype=np.bool_)
        chosen = as_ids(mask, self.env_num)
        asked = np.arange(self.env_num) if ids is None else ids
        rows = np.isin(asked, chosen)
        if rows.sum() != len(chosen):
            raise ValueError(f"reset={chosen.tolist()} must be among the envs of this round, {asked.tolist()}")
        return rows

    # What comes back.

    def _wait(self, done: Callable[[], bool], timeout: float | None) -> None:
        begin = time.perf_counter()
        try:
            self._backend.wait(done, None if timeout is None else time.monotonic() + timeout)
        finally:
            self._wait_time += time.perf_counter() - begin

    def _collect(self, ids: np.ndarray | None, asked: list[int]) -> Step:
        """Take the answers of these envs; raises for those that failed, with the results of the others."""
        extras = self._backend.take(None if ids is None else asked)
        self._busy[_rows_of(ids)] = False
        self._in_flight -= len(asked)
        if self._backend.lost:
            self._mark_lost()
        if extras and any(extra.failure is not None for extra in extras.values()):
            extras = {i: self._settle(i, extra) for i, extra in extras.items()}
            failures = {i: extra.failure for i, extra in extras.items() if extra.failure is not None}
            if failures:
                self._raise_failures(failures, asked, extras)
        if self._strict:
            rows = asked if ids is None else ids
            self._unreset[rows] = self._arena.terminated[rows] | self._arena.truncated[rows]
        if self._reset_args:
            for i in asked:
                self._reset_args.pop(i, None)
        return self._rows(ids, asked, extras)

    def _rows(self, ids: np.ndarray | None, asked: list[int], extras: Mapping[int, Extra]) -> Step:
        hand_over = self._hand_over
        terminated, truncated = hand_over.flags(ids)
        return (
            hand_over.obs(ids, extras),
            hand_over.rew(ids, extras),
            terminated,
            truncated,
            hand_over.info(asked, extras),
        )

    def _mark_lost(self) -> None:
        """Envs whose worker ended while they were idle: told at their next use."""
        for i, error in self._backend.lost.items():
            if not self._busy[i]:
                self._errors.setdefault(i, error)

    def _settle(self, i: int, extra: Extra) -> Extra:
        """on_error="restart": an extra without the failure, if the env may be restarted once more."""
        failure = extra.failure
        if failure is None:
            return extra
        error = failure.exception(self._backend.pid(i))
        self._errors[i] = error
        if not self._supervisor.may_restart(i):
            return extra
        if failure.op != "reset":
            return self._truncated_row(i, error)
        while True:
            retried = self._reset_again(i)
            if retried.failure is None:
                return retried
            if not self._supervisor.may_restart(i):
                return retried

    def _reset_again(self, i: int) -> Extra:
        """A reset failed: once more, in a new worker if need be."""
        args = {i: self._reset_args[i]} if i in self._reset_args else {}
        try:
            if i in self._backend.lost:
                self._restart(i)
        except Exception as error:
            return Extra(failure=Failure(i, "reset", type(error).__name__, str(error), "", error=error))
        self._backend.send(np.array([i]), box.RESET_KWARGS if args else box.RESET, self._backend.encode(args))
        self._wait(lambda: self._mail[i] >= box.DONE, None)
        extra = self._backend.take([i]).get(i, Extra())
        if extra.failure is None:
            self._errors.pop(i, None)
        return extra

    def _truncated_row(self, i: int, error: BaseException) -> Extra:
        """The row of a failed env under on_error="restart": the last observation, an episode that was cut off."""
        self._arena.reward[i], self._arena.terminated[i], self._arena.truncated[i] = 0.0, False, True
        return Extra(info={"restarted": True, "error": f"{type(error).__name__}: {error}"})

    def _raise_failures(self, failures: Mapping[int, Failure], asked: list[int], extras: Mapping[int, Extra]) -> None:
        """Raise the first failure (a hang before its consequences); the results of the other envs are in `partial`."""
        good = [i for i in asked if i not in failures]
        partial = None
        if good:
            rows = self._rows(np.array(good), good, {i: extra for i, extra in extras.items() if i in set(good)})
            partial = Partial(np.array(good), *rows)
        for i, failure in failures.items():
            self._errors[i] = failure.exception(self._backend.pid(i))
        first = min(failures, key=lambda i: (not isinstance(self._errors[i], TimeoutError), i))
        error = self._errors[first]
        try:
            error.partial = partial  # type: ignore[attr-defined]
        except Exception:  # a class that takes no attributes
            pass
        raise error

    # Checks.

    def _as_ids(self, id: Any, env_id: Any = None) -> np.ndarray | None:
        """The ids of a call, None for all."""
        if env_id is not None:
            if id is not None:
                raise TypeError("pass id or env_id, which are two names of one argument, not both")
            id = env_id
        return None if id is None else as_ids(id, self.env_num)

    def _wrap_id(self, id: Any = None) -> list[int]:
        """The ids of a call as a list (a name that subclasses written for tianshou use)."""
        ids = self._as_ids(id)
        return list(self._all_ids) if ids is None else ids.tolist()

    def _check_open(self) -> None:
        if self.is_closed:
            raise ClosedError(f"Methods of {type(self).__name__} cannot be called after close.")
        if self._owner != os.getpid():
            raise ClosedError(
                f"this vector env belongs to process {self._owner} and cannot be used in process {os.getpid()}; make one here"
            )

    def _check_not_busy(self, ids: np.ndarray | None) -> None:
        if not self._in_flight:
            return
        busy = self._busy if ids is None else self._busy[ids]
        if busy.any():
            first = int(np.flatnonzero(busy)[0] if ids is None else ids[busy][0])
            raise RuntimeError(
                f"Cannot interact with environment {first} which is stepping now: env {first} is still stepping; wait for it with step(None)."
            )

    def _check_ready(self, ids: np.ndarray | None, resets: np.ndarray | None) -> None:
        """RuntimeError for envs that are stepping; envs to be stepped must not have failed, nor, if `strict`, need a reset."""
        self._check_not_busy(ids)
        if self._backend.lost:
            self._mark_lost()
        if not self._errors and not self._strict:
            return
        for row, i in enumerate(self._all_ids if ids is None else ids.tolist()):
            if resets is not None and resets[row]:
                continue
            if i in self._errors and not self._supervisor.active:
                error = self._errors[i]
                if hasattr(error, "partial"):
                    error.partial = None
                raise error
            if self._strict and self._unreset[i]:
                raise RuntimeError(
                    f"env {i} has not been reset, or its episode is over; call reset({i}) first (strict=True)"
                )

    def _refuse_bad_actions(self, asked: Sequence[int], batch: Any) -> None:
        for i, action in zip(asked, batch, strict=True):
            space = self._reports[i].action_space
            if space is not None and not space.contains(action):
                raise ValueError(
                    f"action for env {i} is {action!r}, which is not in its action space {space} (check_actions=True)"
                )

    # Life.

    def close(self) -> None:
        """Close all envs and end the workers: at most 5 seconds, then by force. A second call does nothing."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._finalizer.detach() is None or self._owner != os.getpid():
            return
        for problem in self._backend.close(CLOSE_TIMEOUT):
            warnings.warn(problem, RuntimeWarning, stacklevel=2)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def __len__(self) -> int:
        return self.env_num

    def __repr__(self) -> str:
        parts = [f"{self.env_num} envs", f"{self.num_workers} workers"]
        if self.is_async:
            parts += [f"wait_num={self.wait_num}", f"timeout={self.timeout}"]
        return f"{type(self).__name__}({', '.join(parts)}{', closed' if self.is_closed else ''})"

    def __reduce__(self) -> Any:
        raise TypeError("vector envs hold processes and cannot be pickled or copied; pickle the env_fns instead")


def _rows_of(ids: np.ndarray | None) -> Any:
    return slice(None) if ids is None else ids


_exiting = False


def _note_exit() -> None:
    global _exiting
    _exiting = True


atexit.register(_note_exit)


def _shut_down(backend: Backend, name: str, owner: int) -> None:
    """End the workers of a vector env that was never closed. Not in a forked copy of the process: they are not its own."""
    if owner != os.getpid():
        return
    if not sys.is_finalizing() and not _exiting:
        warnings.warn(f"unclosed {name}: call close() or use it in a with statement", ResourceWarning, stacklevel=2)
    backend.close(CLOSE_TIMEOUT)
