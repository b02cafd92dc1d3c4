"""`EnvWorkerBackend`: steps envs through user-defined workers, with the interface of tianshou's `EnvWorker`."""

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
from vecenv.backends.host.env_access import copy_data, copy_if_possible, wrapper_classes
from vecenv.backends.host.env_checks import check_spaces
from vecenv.backends.host.env_host import ATTRIBUTES, EnvReport, copy_actions, make_report
from vecenv.backends.host.failure import Failure, capture, describe
from vecenv.backends.host.row_writer import Extra, RowWriter
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.arena import Arena
from vecenv.errors import RESTARTS, WorkerDiedError, how_to_reset
from vecenv.layout import Layout

ENDED = (EOFError, ConnectionError, WorkerDiedError)
REQUIRED = ("send", "recv", "wait", "get_env_attr", "set_env_attr", "seed", "render", "close")


class EnvWorker(ABC):
    """Worker with one env. Subclass it to define a kind of worker, as with tianshou's EnvWorker.

    - `get_env_attr` must read the outermost wrapper, because observations must fit its `observation_space`.
    - If the env is in another process, override `call`, so that methods run there.
    - The env is lost if a method of the worker raises EOFError, ConnectionError or WorkerDiedError, or if `is_alive`
      returns False. The env's next reset closes the worker, and calls `worker_fn` to make a new worker.
    """

    result: Any

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        self._env_fn = env_fn
        self.is_closed = False
        self.is_reset = False

    @functools.cached_property
    def action_space(self) -> Any:
        return self.get_env_attr("action_space")

    @abstractmethod
    def get_env_attr(self, key: str) -> Any:
        """Return an attribute of the env."""

    @abstractmethod
    def set_env_attr(self, key: str, value: Any) -> None:
        """Set an attribute of the env."""

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the env, or return an attribute that is not callable.

        Raises TypeError if `get_env_attr` returns a method of a copy of the env.
        """
        if not callable(value := self.get_env_attr(name)):
            return value
        known = vars(self).setdefault("_methods_of_the_env", set())  # duck-typed workers do not call our __init__
        if name not in known and getattr(value, "__self__", None) is not getattr(
            self.get_env_attr(name), "__self__", None
        ):
            raise TypeError(
                f"get_env_attr({name!r}) of {type(self).__name__} returned a method of a copy of the env, so the "
                f"call would not reach the env: define {type(self).__name__}.call(name, *args, **kwargs), and let it "
                "call the method in the env's process"
            )
        known.add(name)
        return value(*args, **kwargs)

    @abstractmethod
    def send(self, action: Any, **kwargs: Any) -> None:
        """Start a step, or a reset with `kwargs` if the action is `None`."""

    def recv(self) -> Any:
        """Return the result of `send`: (obs, info), or (obs, reward, terminated, truncated, info)."""
        return self.result

    def reset(self, **kwargs: Any) -> Any:
        """Reset the env, and wait for the result."""
        self.send(None, **kwargs)
        return self.recv()

    def step(self, action: Any) -> Any:
        """Step the env, and wait for the result."""
        self.send(action)
        return self.recv()

    @staticmethod
    def wait(workers: list[Any], wait_num: int, timeout: float | None = None) -> list[Any]:
        """Return the workers with results: at least `wait_num`, or fewer after `timeout` seconds."""
        return workers

    def seed(self, seed: int | None = None) -> Any:
        """Seed the action space. Unless a subclass overrides this, the vector env then resets the env with the seed."""
        return None if self.action_space is None else self.action_space.seed(seed)

    @abstractmethod
    def render(self, **kwargs: Any) -> Any:
        """Return a frame of the env."""

    def is_alive(self) -> bool:
        """Return True if the env exists. The default is `self.process.is_alive()`, or True without a `process`."""
        is_alive = getattr(getattr(self, "process", None), "is_alive", None)
        return is_alive is None or bool(is_alive())

    @abstractmethod
    def close_env(self) -> None:
        """Close the env. Called once."""

    def close(self) -> None:
        """Call `close_env` once."""
        if not self.is_closed:
            self.is_closed = True
            self.close_env()


class EnvWorkerBackend(Backend):
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
        reports = [make_report([_attr_or_none(w, name) for name in ATTRIBUTES]) for w in self.env_workers]
        for i, report in enumerate(reports):
            check_spaces(report, f"env_fns[{i}]()")
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
            actions = copy_actions(self.arena.action, len(actions))
        for i, op in zip(env_ids.tolist(), np.broadcast_to(ops, env_ids.shape).tolist(), strict=True):
            self._resetting[i] = op in (opcodes.RESET, opcodes.RESET_KWARGS)
            self.arena.status[i] = op
            try:
                if self._resetting[i]:
                    self.env_workers[i].send(None, **(payloads[i] if op == opcodes.RESET_KWARGS else {}))
                else:
                    self.env_workers[i].send(payloads[i] if op == opcodes.STEP_OBJECT else actions[i])
            except KeyboardInterrupt:
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
        worker = self.env_workers[i]
        if i in self.lost or not (isinstance(error, ENDED) or not _is_alive(worker)):
            return
        reason = "" if error is None else f" ({describe(error)})"
        lost = self.lost[i] = WorkerDiedError(
            f"env {i} is lost: its worker has ended{reason}; {how_to_reset(i, RESTARTS)}"
        )
        lost.env_id, lost.env_ids = i, (i,)

    def ended(self) -> list[int]:
        return [i for i, worker in enumerate(self.env_workers) if i in self.lost or not _is_alive(worker)]

    def restart(self, env_id: int) -> Sequence[int]:
        old = self.env_workers[env_id]
        with contextlib.suppress(Exception):  # methods of an ended worker may raise
            if callable(kill := getattr(getattr(old, "process", None), "kill", None)):
                kill()
            old.close()
        new = self._worker_fn(self._env_fns[env_id])
        _check_worker(new)
        self.env_workers[env_id] = new
        self.lost.pop(env_id, None)
        return [env_id]

    def abandon_envs(self, timeout: float) -> None:
        self.close(timeout)  # because a worker may own a process

    def call(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> EnvCall:
        values = []
        for i, a in zip(ids, args, strict=True):
            try:
                value = _call(self.env_workers[i], op, copy_if_possible(a) if self.copies else a)
                values.append(copy_data(value) if self.copies else value)
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


def backend_maker(worker_fn: Any, backend: Any, several: bool = False) -> Callable[[], Backend]:
    """Return a function that makes the backend.

    If `several`, the result is called several times, so `backend` must be a function.

    Raises TypeError unless exactly one of `worker_fn` and `backend` is given, and valid.
    """
    if (worker_fn is None) == (backend is None):
        raise TypeError(
            "pass either worker_fn, which makes a worker for each env_fn, or backend; "
            "or use DummyVectorEnv, SubprocVectorEnv or ShmemVectorEnv"
        )
    if callable(worker_fn):
        return functools.partial(EnvWorkerBackend, worker_fn)
    if isinstance(backend, Backend):
        if several:
            raise TypeError(f"with lazy=True, backend must be a function that makes the backend, got {backend!r}")
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
    missing = [name for name in REQUIRED if not callable(getattr(worker, name, None))]
    if missing:
        raise TypeError(f"worker_fn returned {worker!r}, which is not an EnvWorker: it lacks {missing}")


def _call(worker: Any, op: str, args: tuple[Any, ...]) -> Any:
    if op == "call":
        name, positional, keywords = args
        if name in ("__setattr__", "set_wrapper_attr"):  # `call` could set the attribute in a copy of the env
            return worker.set_env_attr(*positional)
        return getattr(type(worker), "call", EnvWorker.call)(worker, name, *positional, **keywords)
    if op == "render":
        return worker.render(**args[0])
    if op == "has_attr":
        return _has_attr(worker, *args)
    if op == "wrapper_classes":
        return wrapper_classes(getattr(worker, "env", None))
    value = getattr(worker, op)(*args)
    if op != "seed":
        return value
    return getattr(worker.seed, "__func__", None) is EnvWorker.seed


def _has_attr(worker: Any, name: str) -> bool:
    try:
        worker.get_env_attr(name)
    except AttributeError:
        return False
    return True


def _attr_or_none(worker: Any, name: str) -> Any:
    with contextlib.suppress(AttributeError):
        return worker.get_env_attr(name)
