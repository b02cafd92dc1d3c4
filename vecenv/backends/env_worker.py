"""`EnvWorkerBackend`: step envs through user-defined workers with the interface of tianshou's `EnvWorker`."""

from __future__ import annotations

import contextlib
import copy
import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vecenv.backends.backend import Answers, Backend, EnvCall, Taken, WorkerInfo
from vecenv.backends.host.env_access import own_copy, plain_copy, wrapper_classes
from vecenv.backends.host.env_host import ATTRIBUTES, EnvReport, own_actions, own_report
from vecenv.backends.host.failure import Failure, capture, describe
from vecenv.backends.host.row_writer import Extra, RowWriter
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.arena import Arena, Layout
from vecenv.errors import WorkerDiedError

ENDED = (EOFError, ConnectionError, WorkerDiedError)
"""Exceptions of a worker whose env does not exist any more."""
REQUIRED = ("send", "recv", "wait", "get_env_attr", "set_env_attr", "seed", "render", "close")


class EnvWorker(ABC):
    """One env, wherever it runs: subclass it to define your own worker (contract of tianshou's EnvWorker).

    `send(None, **kwargs)` starts a reset, `send(action)` a step, `recv` returns its result, and `wait` returns the
    workers that have one. `get_env_attr` answers for the outermost wrapper: observations are checked against the space
    that it returns. A worker whose env is elsewhere has a `call` of its own, which runs the method there. A worker that
    raises an EOFError, ConnectionError or WorkerDiedError, or that is not `is_alive` any more, has lost its env: the
    next reset of the env closes it, and `worker_fn` makes another one.
    """

    result: Any
    """The result of `recv`, for subclasses whose `send` leaves it here."""

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        self._env_fn = env_fn
        self.is_closed = False
        self.is_reset = False

    @functools.cached_property
    def action_space(self) -> Any:
        """The action space that the env had when it was first asked for."""
        return self.get_env_attr("action_space")

    @abstractmethod
    def get_env_attr(self, key: str) -> Any:
        """An attribute of the env."""

    @abstractmethod
    def set_env_attr(self, key: str, value: Any) -> None:
        """Set an attribute of the env."""

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """The attribute of the env, called with the arguments if it can be called; TypeError for a method of a copy of
        the env, which `get_env_attr` returns where it is pickled on its way.
        """
        if not callable(value := self.get_env_attr(name)):
            return value
        known = vars(self).setdefault("_methods_of_the_env", set())  # duck-typed workers have no __init__ of ours
        if name not in known and getattr(value, "__self__", None) is not getattr(
            self.get_env_attr(name), "__self__", None
        ):
            raise TypeError(
                f"get_env_attr({name!r}) of {type(self).__name__} returned a method of a copy of the env, so that a "
                f"call would not reach the env: define call(name, *args, **kwargs) in {type(self).__name__}, which "
                "calls it where the env is"
            )
        known.add(name)
        return value(*args, **kwargs)

    @abstractmethod
    def send(self, action: Any, **kwargs: Any) -> None:
        """Start a step, or for the action None a reset."""

    def recv(self) -> Any:
        """The result of what `send` started: (obs, info), or (obs, reward, terminated, truncated, info)."""
        return self.result

    def reset(self, **kwargs: Any) -> Any:
        """Reset the env and wait for it."""
        self.send(None, **kwargs)
        return self.recv()

    def step(self, action: Any) -> Any:
        """Step the env and wait for it."""
        self.send(action)
        return self.recv()

    @staticmethod
    def wait(workers: list[Any], wait_num: int, timeout: float | None = None) -> list[Any]:
        """The workers that have a result: at least `wait_num`, or those that have one after `timeout` seconds."""
        return workers

    def seed(self, seed: int | None = None) -> Any:
        """Seed the action space; where a subclass does not seed the env as well, the vector env resets it with the
        seed.
        """
        return None if self.action_space is None else self.action_space.seed(seed)

    @abstractmethod
    def render(self, **kwargs: Any) -> Any:
        """A frame of the env."""

    def is_alive(self) -> bool:
        """True if the env exists: asked when it fails and by `alive()`; here by `self.process`, where there is one."""
        is_alive = getattr(getattr(self, "process", None), "is_alive", None)
        return is_alive is None or bool(is_alive())

    @abstractmethod
    def close_env(self) -> None:
        """Close the env, once."""

    def close(self) -> None:
        """Close the env unless it is closed."""
        if not self.is_closed:
            self.is_closed = True
            self.close_env()


class EnvWorkerBackend(Backend):
    """Drives one worker an env; `worker_fn(env_fn)` makes it."""

    hosts_here = True

    def __init__(self, worker_fn: Callable[[Callable[[], Any]], Any]) -> None:
        super().__init__()
        self._worker_fn = worker_fn
        self.env_workers: list[Any] = []

    @property
    def workers(self) -> list[WorkerInfo]:
        return [WorkerInfo([i], None, 0.0) for i in range(len(self.env_workers))]

    def start(self, env_fns: Sequence[Callable[[], Any]], num_workers: int | None, eager: bool) -> list[EnvReport]:
        self.num_workers = len(env_fns)
        self._env_fns = env_fns
        for env_fn in env_fns:
            self.env_workers.append(self._worker_fn(env_fn))
            _check_worker(self.env_workers[-1])
        kinds = {type(worker) for worker in self.env_workers}
        if len(kinds) > 1:
            raise TypeError(f"worker_fn returned workers of several classes, {sorted(kind.__name__ for kind in kinds)}")
        reports = [own_report([_attr_or_none(w, name) for name in ATTRIBUTES]) for w in self.env_workers]
        self._spaces = [report.observation_space for report in reports]
        return reports

    def bind(self, layout: Layout) -> Arena:
        self.arena = Arena.build(layout, len(self.env_workers))
        self._answers = Answers(self.arena)
        self._rows = RowWriter(layout, self._spaces, self.arena, keep=copy.deepcopy)
        self._resetting = np.zeros(len(self.env_workers), dtype=np.bool_)
        return self.arena

    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        env_ids = np.arange(len(self.env_workers)) if ids is None else ids
        actions = [None] * len(self.env_workers)
        if self.arena.action is not None:
            actions = own_actions(self.arena.action, len(actions))
        for i, op in zip(env_ids.tolist(), np.broadcast_to(ops, env_ids.shape).tolist(), strict=True):
            self._resetting[i] = op in (opcodes.RESET, opcodes.RESET_KWARGS)
            self.arena.status[i] = op
            try:
                if self._resetting[i]:
                    self.env_workers[i].send(None, **(payloads[i] if op == opcodes.RESET_KWARGS else {}))
                else:
                    self.env_workers[i].send(payloads[i] if op == opcodes.STEP_OBJECT else actions[i])
            except KeyboardInterrupt:  # the user's own
                raise
            except BaseException as error:
                self._answers.put(i, Extra(failure=self._failure(error, i)))

    def wait(self, done: Callable[[], bool] | None, deadline: float | None) -> float:
        if done is None:
            for i in np.flatnonzero(self.arena.status == opcodes.IDLE).tolist():
                self._note_end(i, None)
            return 0.0
        begin = time.perf_counter()
        wait = type(self.env_workers[0]).wait
        while not done():
            in_flight = [i for i in range(len(self.env_workers)) if self._answers.busy(i)]
            timeout = None if deadline is None else deadline - time.monotonic()
            if not in_flight or (timeout is not None and timeout <= 0):
                break
            ready = wait([self.env_workers[i] for i in in_flight], 1, timeout)
            for i in in_flight:
                if any(worker is self.env_workers[i] for worker in ready):
                    self._answers.put(i, self._receive(i))
        return time.perf_counter() - begin

    def take(self, ids: Sequence[int] | None) -> Taken:
        return self._answers.take(ids)

    def _receive(self, i: int) -> Extra | None:
        try:
            result = self.env_workers[i].recv()
            return self._rows.write_reset(i, result) if self._resetting[i] else self._rows.write_step(i, result)
        except Exception as error:
            return Extra(failure=self._failure(error, i))

    def _failure(self, error: BaseException, i: int) -> Failure:
        self._note_end(i, error)
        return capture(error, i, "reset" if self._resetting[i] else "step", local=True)

    def _note_end(self, i: int, error: BaseException | None) -> None:
        """Note that the env is lost, if its worker has ended, as the error says or the worker itself."""
        worker = self.env_workers[i]
        if i in self.lost or not (isinstance(error, ENDED) or not _is_alive(worker)):
            return
        reason = "" if error is None else f" ({describe(error)})"
        lost = self.lost[i] = WorkerDiedError(
            f"env {i} is lost: its worker has ended{reason}; reset({i}) makes it usable again, with a new worker."
        )
        lost.env_id, lost.env_ids = i, (i,)

    def ended(self) -> list[int]:
        return [i for i, worker in enumerate(self.env_workers) if i in self.lost or not _is_alive(worker)]

    def restart(self, env_id: int) -> Sequence[int]:
        old = self.env_workers[env_id]
        with contextlib.suppress(Exception):  # it has ended, or does not return
            if callable(kill := getattr(getattr(old, "process", None), "kill", None)):
                kill()
            old.close()
        new = self._worker_fn(self._env_fns[env_id])
        _check_worker(new)
        self.env_workers[env_id] = new
        self.lost.pop(env_id, None)
        return [env_id]

    def call(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> EnvCall:
        values = []
        for i, a in zip(ids, args, strict=True):
            try:
                value = _call(self.env_workers[i], op, own_copy(a) if self.copies else a)
                values.append(plain_copy(value) if self.copies else value)
            except Exception as error:
                self._note_end(i, error)
                values.append(capture(error, i, op, local=True))
        return EnvCall(ids, op, values)

    def close(self, timeout: float) -> list[str]:
        problems = []
        for i, worker in enumerate(self.env_workers):
            try:
                worker.close()
            except Exception as error:
                problems.append(f"the worker of env {i} failed in close(): {type(error).__name__}: {error}")
        return problems


def backend_maker(worker_fn: Any, backend: Any, again: bool = False) -> Callable[[], Backend]:
    """A function that makes the backend that is meant; TypeError for none, for two and for what is none.

    `again`: it is called more than once, so that a `Backend` itself is a TypeError.
    """
    if (worker_fn is None) == (backend is None):
        raise TypeError(
            "pass either worker_fn, which makes a worker of each env_fn, or backend; "
            "or use DummyVectorEnv, SubprocVectorEnv or ShmemVectorEnv"
        )
    if callable(worker_fn):
        return functools.partial(EnvWorkerBackend, worker_fn)
    if isinstance(backend, Backend):
        if again:
            raise TypeError(f"with lazy=True backend must be a function that makes one, got {backend!r}")
        return lambda: backend
    if not callable(backend) or (isinstance(backend, type) and not issubclass(backend, Backend)):
        raise TypeError(f"worker_fn must be callable and backend a Backend, got {worker_fn!r} and {backend!r}")
    return functools.partial(_made_by, backend)


def _made_by(make: Callable[[], Any]) -> Backend:
    if not isinstance(backend := make(), Backend):
        raise TypeError(f"backend must be a Backend or a function that makes one, got {make!r}, which made {backend!r}")
    return backend


def _is_alive(worker: Any) -> bool:
    return bool(getattr(type(worker), "is_alive", EnvWorker.is_alive)(worker))


def _check_worker(worker: Any) -> None:
    """TypeError for what `worker_fn` returned if it is no EnvWorker."""
    missing = [name for name in REQUIRED if not callable(getattr(worker, name, None))]
    if missing:
        raise TypeError(f"worker_fn returned {worker!r}, which is no EnvWorker: it lacks {missing}")


def _call(worker: Any, op: str, args: tuple[Any, ...]) -> Any:
    if op == "call":
        name, positional, keywords = args
        if name in ("__setattr__", "set_wrapper_attr"):  # what `get_env_attr` returns may be a copy's
            return worker.set_env_attr(*positional)
        return getattr(type(worker), "call", EnvWorker.call)(worker, name, *positional, **keywords)
    if op == "render":
        return worker.render(**args[0])
    if op == "has_attr":
        return _has_attr(worker, *args)
    if op == "wrapper_classes":  # of an env in this process; a worker's envs elsewhere cannot be looked into
        return wrapper_classes(getattr(worker, "env", None))
    value = getattr(worker, op)(*args)
    if op != "seed":
        return value
    return getattr(worker.seed, "__func__", None) is EnvWorker.seed  # which seeds the action space only


def _has_attr(worker: Any, name: str) -> bool:
    try:
        worker.get_env_attr(name)
    except AttributeError:
        return False
    return True


def _attr_or_none(worker: Any, name: str) -> Any:
    with contextlib.suppress(AttributeError):
        return worker.get_env_attr(name)
