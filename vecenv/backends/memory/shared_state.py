"""`SharedState`: named arrays that envs in several processes update, for example running statistics.

Each thread of each process has a slot in the shared memory, and writes only there. A slot has the sum of the changes by
its owner, and the state is the sum of all slots (see `state_rows`). So no process waits for another. If a process ends,
its changes stay, and another process may continue the slot.

    counts      number of finished updates per slot
    buffers     four rows per slot. Update n writes row n % 4, so readers have the time of two updates to copy a row

An update writes its count last. If a process is killed or interrupted before, the update has no effect.

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

import fcntl
import mmap
import os
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np

from vecenv.backends.ipc.serialization import Descriptor, may_travel
from vecenv.backends.ipc.waiting import fence
from vecenv.backends.memory.shared_memory import anonymous_file, extend, reserve
from vecenv.backends.memory.state_rows import Form, Row, RowLayout, form_of
from vecenv.portability import IN_ORDER

SLOTS = 1024
"""Number of threads, in all processes together, that can update a shared state. Unused slots need no memory."""
BUFFERS = 4
"""Rows per slot."""
PURPOSE = "the state that envs share"
OWN, OTHERS = 0, 1
"""Slots of a state that is not shared. `StateCopies` writes the second one."""


@runtime_checkable
class Stateful(Protocol):
    def shared_state(self) -> Mapping[str, np.ndarray]:
        """Return the arrays by name. Names, shapes and dtypes (integers or floats) never change."""

    def bind_shared_state(self, state: SharedState) -> None:
        """Use `state`, which has equal names, shapes and dtypes, instead of the private state.

        Do not reset `state`, because other envs may have updated the arrays already.
        """


class SharedState:
    """Named arrays of fixed shapes and dtypes (integers and floats), initially `arrays`.

    Copies are independent. Without `share`, the state belongs to this process, where one thread at a time may update
    the state, and pickles are independent too.

    With `share`, the arrays lie in unnamed shared memory. Forked processes share them, and so do processes that get the
    state in their arguments. Any other pickling raises TypeError.

    Integers are exact up to 2**53. Raises TypeError for other dtypes, and SharedMemoryError if memory is short.

    >>> state = SharedState({"sum": np.zeros(2), "count": np.zeros(())})
    >>> with state.update() as arrays:
    ...     arrays["sum"] += [3.0, 4.0]
    ...     arrays["count"] += 1
    >>> state.read()
    {'sum': array([3., 4.]), 'count': array(1.)}
    """

    def __init__(self, arrays: Mapping[str, Any], share: bool = False) -> None:
        form, fd = form_of(arrays), anonymous_file("vecenv-state") if share else None
        self._map(form, fd, secrets.token_hex(8) if share else "", new=True)
        self._begin_generation(1, arrays)

    def _map(self, form: Form, fd: int | None, token: str, new: bool = False) -> None:
        self.form, self.rows, self._fd, self._token = form, RowLayout(form), fd, token
        slots = 2 if fd is None else SLOTS
        size = 8 * slots * (1 + BUFFERS * self.rows.size)
        memory: Any = bytearray(size)
        if fd is not None:
            weakref.finalize(self, os.close, fd).atexit = False
            memory = reserve(fd, size, PURPOSE, 8 * slots) if new else mmap.mmap(fd, size)
            _open_states[token] = self
        self._counts = np.ndarray((slots,), np.int64, memory)
        self._buffers = np.ndarray((slots, BUFFERS, self.rows.size), np.float64, memory, 8 * slots)
        self._forget_slots()

    def _forget_slots(self) -> None:
        """Start without slots, as a new process."""
        self._slots: dict[int, int] = {}
        """Slots by thread (ident). A new thread may have the ident, and thus the slot, of a thread that has ended."""
        self._untried = deque(range(len(self._counts)))

    @property
    def shared(self) -> bool:
        """True if the arrays lie in memory that processes can share."""
        return self._fd is not None

    @contextmanager
    def update(self) -> Iterator[dict[str, np.ndarray]]:
        """Change the state in a `with` block: `arrays[name] += ...` in place, or `arrays[name] = value`.

        The arrays are copies of the current state. At the end of the block, their changes are added, unless
        the block raises or the process is killed. Other processes may update the state meanwhile. So two processes may
        get equal values of a counter, and a maximum does not add up: give each env an element of its own instead.
        """
        self._own_slot()  # raises before the block begins
        before = self.total()
        after = before.copy()
        arrays = self.rows.arrays_of(after)
        yield arrays
        self.rows.write(after, arrays)
        self.add(after, before)

    def read(self) -> dict[str, np.ndarray]:
        """Return copies of all arrays, never from the middle of an update."""
        return self.rows.arrays_of(self.total())

    def replace(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set all arrays. An update that another process has not finished yet has no effect."""
        self._begin_generation((self.generation // SLOTS + 1) * SLOTS + self._own_slot(), arrays)

    def _begin_generation(self, number: float, arrays: Mapping[str, Any]) -> None:
        row = np.zeros(self.rows.size)
        row[0] = number
        self.rows.write(row, arrays)
        self.write(self._own_slot(), row)

    def total(self) -> Row:
        """Return the sum of all slots, which is the current state."""
        row = self.rows.sum(self._used_rows())
        self.rows.settle(row)
        return row

    def sum_without(self, row: Row) -> Row:
        """Return the sum of all slots minus `row`."""
        return self.rows.sum(np.vstack([self._used_rows(), self.rows.negative(row)]))

    @property
    def generation(self) -> float:
        """Number of the newest generation. Each `replace` begins a generation."""
        used = self._used_slots()
        newest: float = self._buffers[used, self._counts[used] % BUFFERS, 0].max()
        return newest

    def own(self) -> Row:
        """Return a copy of the row in the slot of this thread."""
        slot = self._own_slot()
        row: Row = self._buffers[slot, self._counts[slot] % BUFFERS].copy()
        return row

    def add(self, after: Row, before: Row) -> None:
        """Add the difference of two rows to the slot of this thread."""
        own = self.own()
        if own.tobytes() == before.tobytes():  # no other slot has changed the state
            self.write(self._own_slot(), after)
        elif after.tobytes() != before.tobytes():  # because sums are rounded
            self.write(self._own_slot(), self.rows.sum(np.array([after, self.rows.negative(before), own])))

    def write(self, slot: int, row: Row) -> None:
        """Make `row` the content of a slot of this thread."""
        count = int(self._counts[slot]) + 1
        self._buffers[slot, count % BUFFERS] = row
        if not IN_ORDER:
            fence()
        self._counts[slot] = count

    def _used_rows(self) -> np.ndarray:
        """Return copies of the rows in all slots that were ever used."""
        used = self._used_slots()
        while True:
            counts = self._counts[used]
            if not IN_ORDER:
                fence()
            rows: np.ndarray = self._buffers[used, counts % BUFFERS]
            if not IN_ORDER:
                fence()
            if (self._counts[used] - counts).max() < BUFFERS - 1:
                return rows

    def _used_slots(self) -> np.ndarray:
        return self._counts.copy().nonzero()[0]  # a copy, because `nonzero` raises if a count changes meanwhile

    def _own_slot(self) -> int:
        ident = threading.get_ident()
        if self._fd is not None and ident not in self._slots:
            self._slots[ident] = self._claim_slot(self._fd)
        return self._slots.get(ident, OWN)

    def _claim_slot(self, fd: int) -> int:
        """Lock a free slot. The system frees the slots of a process when the process ends."""
        for _ in range(len(self._untried)):
            slot = self._untried.popleft()
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
            except (BlockingIOError, PermissionError):  # POSIX allows either
                self._untried.append(slot)
            else:
                extend(fd, 8 * SLOTS + 8 * BUFFERS * self.rows.size * (slot + 1), PURPOSE)
                return slot
        raise RuntimeError(f"more than {SLOTS} threads, of all processes together, update {self!r}; use fewer workers")

    def __repr__(self) -> str:
        arrays = ", ".join(f"{name}: {np.dtype(dtype).name}{list(shape)}" for name, shape, dtype in self.form)
        return f"SharedState({arrays}{', shared' if self.shared else ''})"

    def __copy__(self) -> SharedState:  # a shallow copy would have the same slots
        return SharedState(self.read())

    def __deepcopy__(self, memo: Any) -> SharedState:
        return SharedState(self.read())

    @classmethod
    def _attach(cls, token: str, form: Form, descriptor: Descriptor | None, row: Row) -> SharedState:
        """Return the state that arrived with the arguments of this process.

        A process on another machine receives no descriptor, and gets a private state that begins with `row`.
        """
        if (known := _open_states.get(token)) is not None:
            return known  # keep the descriptor, because closing it would free the slots of this process
        self = cls.__new__(cls)
        self._map(form, None if descriptor is None else descriptor.fd, token)
        if descriptor is None:
            self.write(OTHERS, row)
            _open_states[token] = self
        return self

    def __reduce__(self) -> Any:
        if self._fd is None:
            return SharedState, (self.read(),)
        if (states := getattr(_pickling, "states", None)) is not None:
            states[self._token] = self
            return _find, (self._token,)
        if may_travel():
            return SharedState._attach, (self._token, self.form, Descriptor(self._fd), self.total())
        raise TypeError(
            f"{self!r} lies in memory without a name, which only a process that is starting can receive: pass the "
            "state in the env_fns of a vector env or the args of multiprocessing.Process, or use "
            "EnvCreator(..., share_memory=False), which gives each env a separate state"
        )


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
"""Shared states by token. A state has one object per process, because closing a descriptor frees the slots."""


def _forget_slots_of_parent() -> None:
    for state in list(_open_states.values()):
        state._forget_slots()


os.register_at_fork(after_in_child=_forget_slots_of_parent)


def _find(token: str) -> SharedState:
    if (state := _open_states.get(token)) is None:
        raise RuntimeError(
            "this pickle refers to a shared state that this process does not have. Only the workers of the vector env "
            "for which the pickle was made can load the pickle"
        )
    return state
