"""`SharedState`: named arrays that envs in several processes update. Each update is complete or absent.

    header   one byte: which of the two buffers is the current one; the pid of the holder of the lock
    buffer 0 the arrays, one after the other
    buffer 1 the same

An update copies the current buffer over the other one, changes it there, and makes it the current one by writing that
byte, last. A process that is killed half-way leaves the byte, and so the arrays, as they were.

Protocol of a wrapper or a transform with such a state (running statistics, counters)::

    class Counter(gymnasium.Wrapper):
        def __init__(self, env):
            super().__init__(env)
            self._state = SharedState({"count": np.zeros(())})  # its own, until it is given another

        def shared_state(self):
            return self._state.read()

        def bind_shared_state(self, state):
            self._state = state

        def step(self, action):
            with self._state.update() as arrays:
                arrays["count"] += 1
            return self.env.step(action)

`EnvCreator` gives all envs that it makes one state, in memory that their processes share.
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
"""Seconds after which an update gives up because another one, in a process that is stopped or hangs, does not end."""
TRIES = 50
"""Tries of a held lock before a wait, with the CPU given away between: an update takes microseconds."""
HEADER, PID_AT = 64, 8

Form = tuple[tuple[str, tuple[int, ...], str], ...]
"""The name, shape and dtype of each array."""


@runtime_checkable
class Stateful(Protocol):
    """An env, a wrapper or a transform with state that envs may share (see the text of the module)."""

    def shared_state(self) -> Mapping[str, np.ndarray]:
        """The arrays of the state, by name; always of the same names, shapes and dtypes (not object)."""

    def bind_shared_state(self, state: SharedState) -> None:
        """Read and update `state` from now on, whose arrays have these names, shapes and dtypes; discard one's own.

        `state` may have been updated by other envs already: it is not to be overwritten.
        """


class _Hold:
    """Record of how a thread takes and gives back a lock. `frame`: the frame that makes the update."""

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
        """The result of each step, once it has been made: step and record are one call of C, so none is unknown."""
        self.first = threading.Lock()
        """Taken by the first of the helper and this thread, to decide for whom the helper waits."""

    def is_stale(self, at: FrameType | None) -> bool:
        """Return whether an interrupt has ended the update, seen from a call that the frame `at` makes."""
        if at is not None and at is self.frame and at.f_lasti == self.at:
            return True  # the same statement again
        while at is not None and at is not self.frame:
            at = at.f_back
        return at is None

    def decide(self) -> bool:
        """Leave what the helper obtains to the helper, which gives it back; False if it has obtained the lock."""
        if not self.decided:
            self.decided.extend(map(self.first.acquire, (False,)))
        return self.decided[0]


class ProcessLock:
    """The lock of the file `fd`, which it owns from now on, or (None) a lock of this process alone.

    A record lock (`fcntl.lockf`) belongs to a process: the system releases it when the process ends, however it ends,
    and as soon as the process closes *any* descriptor of the file: hold one descriptor a process. It does not exclude
    threads of one process from each other, which a lock of `threading` in front of it does.

    A thread records that it takes the lock before it does. If an interrupt ends its update without giving the lock
    back, the thread finds the record at its next update, or at its next call of a vector env (`free_stale_locks`).
    """

    def __init__(self, fd: int | None) -> None:
        self.fd = fd
        self.renew()
        _locks.add(self)
        if fd is not None:
            weakref.finalize(self, os.close, fd).atexit = False

    def renew(self) -> None:
        """In a forked process: no thread of the original is here to release it."""
        self._threads = threading.Lock()

    def acquire(self, timeout: float, frame: FrameType) -> _Hold | None:
        """Take the lock; None if it is held for `timeout` seconds, RuntimeError in the thread that has it."""
        hold = _Hold(self, frame)
        if (old := holds.get(hold.key)) is not None:
            if not old.is_stale(frame):
                raise RuntimeError("this thread is in an update of the shared state already: make one after the other")
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
        """Wait in a thread, because the system's own wait has no timeout. One that comes too late gives the lock back,
        and until then no other thread of this process obtains it.
        """
        obtained = SimpleQueue[None]()

        def wait() -> None:
            assert self.fd is not None
            while not hold.first.locked():
                with suppress(OSError):  # EDEADLK: for the kernel the threads of a process hold and wait as one
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
        """Give the lock back, as far as it was taken."""
        if hold.taken and hold.taken[0] and not hold.given_back and not (hold.helper and hold.decide()):
            if self.fd is not None:
                fcntl.lockf(self.fd, fcntl.LOCK_UN)
            hold.given_back.extend(starmap(self._threads.release, ((),)))
        if holds.get(hold.key) is hold:
            del holds[hold.key]
        hold.frame = None  # which may refer to the hold


holds: dict[tuple[int, int], _Hold] = {}
"""By thread and lock: the locks that are being taken, held or given back. Empty nearly always."""


def free_stale_locks(frame: FrameType) -> None:
    """Give back the locks that this thread still holds after an interrupt; `frame` is not part of an update."""
    for key, hold in list(holds.items()):
        if key[0] == threading.get_ident() and hold.is_stale(frame):
            hold.lock.release(hold)


def _lock_at_once(fd: int) -> bool:
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # the two answers that POSIX allows
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
    """Named arrays of fixed shapes and dtypes that begin as copies of `arrays`.

    Without `share` the state is that of this process: its threads may use it, and copies and pickles of it are
    independent. With `share` it lies in unnamed shared memory: forked processes have the same state, and processes that
    are being started get it through the pickle of what refers to it. Pickled at another time it is a TypeError, because
    the memory has no name by which it could be found; a deep copy is an independent state that is not shared.

    Raises TypeError for an array of objects, and SharedMemoryError where there is no memory.

    >>> state = SharedState({"sum": np.zeros(2), "count": np.zeros(())})
    >>> with state.update() as arrays:
    ...     arrays["sum"] += [3.0, 4.0]
    ...     arrays["count"] += 1
    >>> state.read()
    {'sum': array([3., 4.]), 'count': array(1.)}
    """

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
        """The name, shape and dtype of each array."""
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
        """True if it lies in memory that processes can share."""
        return self._lock.fd is not None

    @contextmanager
    def update(self) -> Iterator[dict[str, np.ndarray]]:
        """Change the state: `with state.update() as arrays`, in place or by `arrays[name] = value`.

        No other update or `read`, of any process, comes in between. What was changed counts from the end of the block;
        if that is left by an exception, or the process is killed in it, nothing was. The arrays are valid in the block
        alone. Raises TimeoutError after 60 seconds in which another process is inside one update, RuntimeError inside
        of another update of the same state by this thread.
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
        """The arrays as they were after one and the same update: copies. Raises as `update`."""
        hold = self._acquire(sys._getframe())
        try:
            return {name: view.copy() for name, view in self._views[self._current[0]].items()}
        finally:
            self._lock.release(hold)

    def _acquire(self, frame: FrameType) -> _Hold:
        if (hold := self._lock.acquire(LOCK_TIMEOUT, frame)) is None:
            raise TimeoutError(
                f"{self!r} has been locked for {LOCK_TIMEOUT:g} s by process {self._holder[0]}, which is stopped or "
                "hangs in an update; end it, and the state is free again"
            )
        self._holder[0] = os.getpid()
        return hold

    def __repr__(self) -> str:
        arrays = ", ".join(f"{name}: {np.dtype(dtype).name}{list(shape)}" for name, shape, dtype in self.form)
        return f"SharedState({arrays}{', shared' if self.shared else ''})"

    def __copy__(self) -> SharedState:  # a shallow one would be a second lock on the same memory
        return SharedState(self.read())

    def __deepcopy__(self, memo: Any) -> SharedState:
        return SharedState(self.read())

    def __reduce__(self) -> Any:
        if self._lock.fd is None:
            return SharedState, (self.read(),)
        if (states := getattr(_pickling, "states", None)) is not None:
            states[self._token] = self
            return _find, (self._token,)
        if may_travel():
            return _attach, (self._token, self.form, Descriptor(self._lock.fd), self.read())
        raise TypeError(
            f"{self!r} lies in memory without a name, which only processes that are being started from this one can be "
            "given: pass it in the env_fns of a vector env or the args of multiprocessing.Process, or use "
            "EnvCreator(..., share_memory=False), whose envs each have a state of their own"
        )


def form_of(arrays: Mapping[str, np.ndarray]) -> Form:
    """The names, shapes and dtypes of arrays; TypeError for one that memory cannot hold."""
    for name, array in arrays.items():
        if np.asarray(array).dtype.hasobject:
            raise TypeError(f"the state {name!r} is an array of objects, which cannot be shared; use numbers")
    return tuple((name, np.shape(array), np.asarray(array).dtype.str) for name, array in arrays.items())


@contextmanager
def pickled_by_name() -> Iterator[dict[str, SharedState]]:
    """In the block (of one thread), pickles refer to shared states by name; those that they refer to are returned.

    Where such a pickle is loaded, the states must have arrived before it, in the pickle of the process's arguments.
    """
    states: dict[str, SharedState] = {}
    outer, _pickling.states = getattr(_pickling, "states", None), states
    try:
        yield states
    finally:
        _pickling.states = outer


_pickling = threading.local()
_open_states: weakref.WeakValueDictionary[str, SharedState] = weakref.WeakValueDictionary()
"""The shared states of this process: one object each, because a process may hold one descriptor of each alone."""


def _find(token: str) -> SharedState:
    """The state that this process has by that name."""
    if (state := _open_states.get(token)) is None:
        raise RuntimeError(
            "this pickle refers to a shared state that this process does not have: it was made for the workers of a "
            "vector env, and can be loaded there alone"
        )
    return state


def _attach(token: str, form: Form, descriptor: Descriptor | None, arrays: Mapping[str, np.ndarray]) -> SharedState:
    """The state that has arrived with the arguments of this process; on another machine, where no descriptor can
    arrive, one of this process that begins with `arrays`.
    """
    if (known := _open_states.get(token)) is not None:
        if descriptor is not None:
            os.close(descriptor.fd)
        return known
    if descriptor is None:
        _open_states[token] = alone = SharedState(arrays)
        return alone
    state: SharedState = SharedState.__new__(SharedState)
    state._map(form, mmap.mmap(descriptor.fd, _size(form)), descriptor.fd, token)
    return state


def _buffer(form: Form) -> np.dtype:
    """The layout of a buffer: a field for each array, by its number."""
    return np.dtype([(str(k), dtype, shape) for k, (_, shape, dtype) in enumerate(form)], align=True)


def _size(form: Form) -> int:
    return HEADER + 2 * _buffer(form).itemsize
