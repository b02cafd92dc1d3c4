"""`SharedState`: named arrays that envs in several processes update, for example running statistics.

    header   a byte with the index of the current buffer; the pid of the process that last took the lock
    buffer 0 the arrays, one after the other
    buffer 1 the same

An update copies the current buffer into the other buffer, and changes the copy. Then it writes the header's byte, which
makes the copy current. If a process is killed before this write, the current arrays are unchanged.

A wrapper or transform with such a state has two methods (`Stateful`)::

    class Counter(gymnasium.Wrapper):
        def __init__(self, env):
            super().__init__(env)
            self._state = SharedState({"count": np.zeros(())})

        def shared_state(self):
            return self._state.read()

        def bind_shared_state(self, state):
            self._state = state

        def step(self, action):
            with self._state.update() as arrays:
                arrays["count"] += 1
            return self.env.step(action)

`EnvCreator` gives the same state, in shared memory, to all envs that it makes.
"""

from __future__ import annotations

import _thread
import contextlib
import fcntl
import mmap
import os
import secrets
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import repeat, starmap
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from vecenv.backends.ipc.serialization import Descriptor, may_travel
from vecenv.backends.memory.shared_memory import anonymous_file, reserve

LOCK_TIMEOUT = 60.0
"""Seconds that updates and reads wait for the lock."""
TRIES = 50
HEADER, PID_AT = 64, 8

Form = tuple[tuple[str, tuple[int, ...], str], ...]


@runtime_checkable
class Stateful(Protocol):
    def shared_state(self) -> Mapping[str, np.ndarray]:
        """Return the arrays by name. Names, shapes and dtypes (not object) never change."""

    def bind_shared_state(self, state: SharedState) -> None:
        """Use `state`, which has equal names, shapes and dtypes, instead of the private state.

        Do not reset `state`, because other envs may have updated the arrays already.
        """


class _Hold:
    """Record of how a thread takes and releases a lock. `frame` runs the code that updates or reads the state."""

    def __init__(self, lock: ProcessLock, frame: FrameType) -> None:
        self.lock, self.at = lock, frame.f_lasti
        self.frame: FrameType | None = frame
        self.key = threading.get_ident(), id(lock)
        self.taken, self.helper, self.decided, self.given_back = (
            deque[bool](),
            deque[int](),
            deque[bool](),
            deque[Any](),
        )
        """Results of four steps: take the thread lock, start a helper thread (see `ProcessLock._wait`), acquire
        `first`, release the thread lock. A single C call does and records a step, so no interrupt comes between.
        """
        self.first = threading.Lock()
        """Lock that the helper tries to acquire after the process lock, and this thread at the end of the wait. If this
        thread is first, the helper releases the process lock.
        """

    def is_stale(self, at: FrameType | None) -> bool:
        """Return True if an interrupt has ended the update. `at` is the frame of the calling code."""
        if at is not None and at is self.frame and at.f_lasti == self.at:
            return True
        while at is not None and at is not self.frame:
            at = at.f_back
        return at is None

    def decide(self) -> bool:
        """Tell the helper to release the process lock. Return False if this thread already has the process lock."""
        if not self.decided:
            self.decided.extend(map(self.first.acquire, (False,)))
        return self.decided[0]


class ProcessLock:
    """Lock between processes with the file `fd`, or between threads of this process if `fd` is `None`. Owns `fd`.

    The system releases a record lock (`fcntl.lockf`) when the process ends, or closes *any* descriptor of the file. So
    a process may hold only one descriptor per file. A `threading` lock excludes other threads of the process.

    A thread records a `_Hold` before taking the lock. If an interrupt such as Ctrl-C ends the update, the thread's next
    update or vector env call releases the lock (`free_stale_locks`).
    """

    def __init__(self, fd: int | None) -> None:
        self.fd = fd
        self.renew()
        _locks.add(self)
        if fd is not None:
            weakref.finalize(self, os.close, fd).atexit = False

    def renew(self) -> None:
        """Replace the thread lock in a forked process, where the thread that holds the lock does not exist."""
        self._threads = threading.Lock()

    def acquire(self, timeout: float, frame: FrameType) -> _Hold | None:
        """Take the lock, or return None after `timeout` seconds. Raises RuntimeError if this thread holds the lock."""
        hold = _Hold(self, frame)
        if (old := holds.get(hold.key)) is not None:
            if not old.is_stale(frame):
                raise RuntimeError("this thread is already in an update of this shared state: end that update first")
            self.release(old)
        holds[hold.key] = hold
        deadline = time.monotonic() + timeout
        hold.taken.extend(map(self._threads.acquire, (True,), (timeout,)))
        if hold.taken[0] and (self.fd is None or any(map(_lock_at_once, repeat(self.fd, TRIES)))):
            return hold
        if hold.taken[0] and self._wait(max(0.0, deadline - time.monotonic()), hold):
            return hold
        self.release(hold)
        return None

    def _wait(self, timeout: float, hold: _Hold) -> bool:
        """Wait in a helper thread, because `fcntl.lockf` has no timeout. A helper that is too late frees the lock."""
        obtained = SimpleQueue[None]()

        def wait() -> None:
            assert self.fd is not None
            while not hold.first.locked():
                with suppress(OSError):  # a false EDEADLK: for the kernel, the threads of a process are one owner
                    fcntl.lockf(self.fd, fcntl.LOCK_EX)
                    break
            if hold.first.acquire(blocking=False):
                obtained.put(None)
            else:
                fcntl.lockf(self.fd, fcntl.LOCK_UN)
                self._threads.release()

        hold.helper.extend(starmap(_thread.start_new_thread, ((wait, ()),)))
        with suppress(Empty):
            obtained.get(timeout=timeout)
        return not hold.decide()

    def release(self, hold: _Hold) -> None:
        if hold.taken and hold.taken[0] and not hold.given_back and not (hold.helper and hold.decide()):
            if self.fd is not None:
                fcntl.lockf(self.fd, fcntl.LOCK_UN)
            hold.given_back.extend(starmap(self._threads.release, ((),)))
        if holds.get(hold.key) is hold:
            del holds[hold.key]
        hold.frame = None  # breaks a reference cycle, because the frame may refer to the hold


holds: dict[tuple[int, int], _Hold] = {}


def free_stale_locks(frame: FrameType) -> None:
    """Release locks that this thread still holds after an interrupt. Keep locks of updates that contain `frame`."""
    for key, hold in list(holds.items()):
        if key[0] == threading.get_ident() and hold.is_stale(frame):
            hold.lock.release(hold)


def _lock_at_once(fd: int) -> bool:
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX allows either
        os.sched_yield()
        return False
    return True


_locks: weakref.WeakSet[ProcessLock] = weakref.WeakSet()


def _renew_locks() -> None:
    holds.clear()
    for lock in list(_locks):
        lock.renew()


os.register_at_fork(after_in_child=_renew_locks)


class SharedState:
    """Named arrays of fixed shapes and dtypes, initially `arrays`.

    Copies are independent. Without `share`, the state belongs to this process, and pickles are independent too.

    With `share`, the arrays lie in unnamed shared memory. Forked processes share them, and so do processes that get the
    state in their arguments. Any other pickling raises TypeError.

    Raises TypeError for an array of objects, and SharedMemoryError if memory is short.

    >>> state = SharedState({"sum": np.zeros(2), "count": np.zeros(())})
    >>> with state.update() as arrays:
    ...     arrays["sum"] += [3.0, 4.0]
    ...     arrays["count"] += 1
    >>> state.read()
    {'sum': array([3., 4.]), 'count': array(1.)}
    """

    loads = 0
    """Number of `EnvCreator.load_state_dict` calls in this process. Remote workers get a loaded state at once."""

    def __init__(self, arrays: Mapping[str, Any], share: bool = False) -> None:
        values = {name: np.asarray(value) for name, value in arrays.items()}
        form = form_of(values)
        if share:
            fd = anonymous_file("vecenv-state")
            try:
                memory: Any = reserve(fd, _size(form), "the state that envs share")
            except BaseException:
                os.close(fd)
                raise
            self._map(form, memory, fd, secrets.token_hex(8))
        else:
            self._map(form, bytearray(_size(form)), None, "")
        for name, value in values.items():
            self._views[0][name][...] = value

    def _map(self, form: Form, memory: Any, fd: int | None, token: str) -> None:
        self.form = form
        self._token = token
        self._lock = ProcessLock(fd)
        self._current = np.ndarray((1,), np.uint8, memory)
        self._holder = np.ndarray((1,), np.int64, memory, PID_AT)
        layout = _buffer(form)
        self._bytes = np.ndarray((2, layout.itemsize), np.uint8, memory, HEADER)
        both = np.ndarray((2,), layout, memory, HEADER)
        self._views = [{each[0]: both[str(k)][at, ...] for k, each in enumerate(form)} for at in (0, 1)]
        if token:
            _open_states[token] = self

    @property
    def shared(self) -> bool:
        """True if the arrays lie in memory that processes can share."""
        return self._lock.fd is not None

    @contextmanager
    def update(self) -> Iterator[dict[str, np.ndarray]]:
        """Change the state in a `with` block: `arrays[name] += ...` in place, or `arrays[name] = value`.

        Other updates and reads wait meanwhile. The changes take effect at the end of the block, unless the block raises
        or the process is killed. Do not use the arrays after the block. Raises TimeoutError after 60 seconds of
        waiting, and RuntimeError inside an update of the same state by this thread.
        """
        frame: Any = sys._getframe(1)
        while frame.f_code.co_filename == contextlib.__file__:
            frame = frame.f_back
        hold = self._acquire(frame)
        try:
            current = self._current[0]
            following = 1 - int(current)
            self._bytes[following] = self._bytes[current]
            views = self._views[following]
            arrays = dict(views)
            yield arrays
            for name, view in views.items():
                if arrays[name] is not view:
                    view[...] = arrays[name]
            self._current[0] = following
        finally:
            self._lock.release(hold)

    def read(self) -> dict[str, np.ndarray]:
        """Return copies of all arrays, never from the middle of an update. Raises the errors of `update`."""
        hold = self._acquire(sys._getframe())
        try:
            return {name: view.copy() for name, view in self._views[self._current[0]].items()}
        finally:
            self._lock.release(hold)

    def _acquire(self, frame: FrameType) -> _Hold:
        if (hold := self._lock.acquire(LOCK_TIMEOUT, frame)) is None:
            raise TimeoutError(
                f"{self!r} has been locked for {LOCK_TIMEOUT:g} s by process {self._holder[0]}, which is stopped or "
                "hangs in an update; end that process to free the state"
            )
        self._holder[0] = os.getpid()
        return hold

    def __repr__(self) -> str:
        arrays = ", ".join(f"{name}: {np.dtype(dtype).name}{list(shape)}" for name, shape, dtype in self.form)
        return f"SharedState({arrays}{', shared' if self.shared else ''})"

    def __copy__(self) -> SharedState:  # a shallow copy would be a second lock on the same memory
        return SharedState(self.read())

    def __deepcopy__(self, memo: Any) -> SharedState:
        return SharedState(self.read())

    @classmethod
    def _attach(
        cls, token: str, form: Form, descriptor: Descriptor | None, arrays: Mapping[str, np.ndarray]
    ) -> SharedState:
        """Return the state that arrived with the arguments of this process.

        A process on another machine receives no descriptor, and gets a private state with the values `arrays`.
        """
        if (known := _open_states.get(token)) is not None:
            if descriptor is not None:
                os.close(descriptor.fd)
            return known
        if descriptor is None:
            _open_states[token] = alone = cls(arrays)
            return alone
        self = cls.__new__(cls)
        self._map(form, mmap.mmap(descriptor.fd, _size(form)), descriptor.fd, token)
        return self

    def __reduce__(self) -> Any:
        if self._lock.fd is None:
            return SharedState, (self.read(),)
        if (states := getattr(_pickling, "states", None)) is not None:
            states[self._token] = self
            return _find, (self._token,)
        if may_travel():
            return SharedState._attach, (self._token, self.form, Descriptor(self._lock.fd), self.read())
        raise TypeError(
            f"{self!r} lies in memory without a name, which only a process that is starting can receive: pass the "
            "state in the env_fns of a vector env or the args of multiprocessing.Process, or use "
            "EnvCreator(..., share_memory=False), which gives each env a separate state"
        )


def form_of(arrays: Mapping[str, np.ndarray]) -> Form:
    for name, array in arrays.items():
        if np.asarray(array).dtype.hasobject:
            raise TypeError(f"the state {name!r} is an array of objects, which cannot be shared; use numbers")
    return tuple((name, np.shape(array), np.asarray(array).dtype.str) for name, array in arrays.items())


@contextmanager
def pickled_by_name() -> Iterator[dict[str, SharedState]]:
    """Pickle only tokens of shared states in the `with` block (in this thread). Yield the pickled states by token.

    Only a process with these states in its arguments can load such a pickle.
    """
    states: dict[str, SharedState] = {}
    outer, _pickling.states = getattr(_pickling, "states", None), states
    try:
        yield states
    finally:
        _pickling.states = outer


_pickling = threading.local()
_open_states: weakref.WeakValueDictionary[str, SharedState] = weakref.WeakValueDictionary()
"""Shared states by token. A state has one object, because a process may hold only one descriptor of the file."""


def _find(token: str) -> SharedState:
    if (state := _open_states.get(token)) is None:
        raise RuntimeError(
            "this pickle refers to a shared state that this process does not have. Only the workers of the vector env "
            "for which the pickle was made can load the pickle"
        )
    return state


def _buffer(form: Form) -> np.dtype:
    return np.dtype([(str(k), dtype, shape) for k, (_, shape, dtype) in enumerate(form)], align=True)


def _size(form: Form) -> int:
    return HEADER + 2 * _buffer(form).itemsize
