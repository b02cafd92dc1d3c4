"""`Backend`: the interface between the engine and the place where envs live."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vecenv.backends.host.env_access import own_copy
from vecenv.backends.host.env_host import EnvReport
from vecenv.backends.host.failure import died_failure
from vecenv.backends.host.row_writer import Extra
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.arena import Arena, Layout
from vecenv.backends.memory.infos import InfoColumns
from vecenv.errors import WorkerDiedError


class Taken(NamedTuple):
    """The results of a round that are not in the rows of the arena."""

    extras: dict[int, Extra]
    infos: Sequence[InfoColumns] = ()
    """Infos that came in info rows; the extra of an env, if it has one, comes before them."""


NOTHING_BESIDES = Taken({})
"""No extras: every row is complete. Never written to."""


class WorkerInfo(NamedTuple):
    """Facts about a worker: the envs that it hosts, its process (None: this one), its seconds in rounds."""

    ids: Sequence[int]
    pid: int | None
    busy_seconds: float


class EnvCall:
    """An operation that was started on the envs `ids`. `found`: the value of each, or its Failure, once it is there.

    `values`: those of envs that have answered at once, one each.
    """

    def __init__(self, ids: Sequence[int], op: str, values: Sequence[Any] | None = None) -> None:
        self.ids, self.op = ids, op
        self.found: dict[int, Any] = {} if values is None else dict(zip(ids, values, strict=True))
        self.discarded = False
        """True if no answer will come, because another call was interrupted."""

    def done(self) -> bool:
        """True once all have answered; `Backend.wait` takes it."""
        return len(self.found) == len(self.ids) or self.discarded

    def values(self) -> list[Any]:
        """The values, in the order of the ids."""
        return [self.found[i] for i in self.ids]


class Backend(ABC):
    """Hosts envs, carries rounds of operations to them, and their results back.

    The loop in which the engine uses it:

        reports = backend.start(env_fns, num_workers, eager)
        arena = backend.bind(common_layout(...))
        payloads = backend.encode(ids, ops, actions, payloads)  # may refuse: nothing was done yet
        arena.action[ids] = actions
        backend.send(ids, ops, payloads)                              # one operation an env; does not wait for envs
        backend.wait(lambda: all_done(arena.status), deadline)
        taken = backend.take(ids)                                     # and the rows of arena
        call = backend.call(ids, "render", args)
        backend.wait(call.done, None), call.values()
        backend.close(timeout)

    An env is in one of these states, of which its status byte shows idle, busy and done:

        idle    -- send -->     busy    the status byte is an opcode
        busy    -- answer -->   done    the row is written, the status byte is DONE or above
        done    -- take -->     idle
        any     -- death -->    lost    its worker has ended: `lost[i]` is the finished exception; what the env was
                                        asked for is answered by a Failure
        lost    -- restart -->  idle    a new env, which has to be reset
        any     -- close -->    closed  waits that are in progress raise ClosedError

    A backend guarantees: (1) the answer to every operation arrives exactly once, as a row and a status byte, or as an
    `Extra` with a Failure; (2) `wait` returns within 0.1 s of the death of a worker; (3) `close` returns in bounded
    time, whatever happened before. An exception of a signal handler (KeyboardInterrupt) may end any method between two
    bytecodes: then the engine calls `resynchronise` before anything else but `close`.
    """

    num_workers: int
    """Number of workers that share the envs; set by `start`."""
    autoresets: bool = False
    """True if steps with `opcodes.AUTORESET` are understood."""
    takes_objects: bool = True
    """True if an action may be any object; else it is an array of its space's dtype."""
    hosts_here: bool = False
    """True if envs are in this process, or may be: then they may share objects with the caller."""
    copies: bool = True
    """True if the arguments and results of calls, and the options of resets, are copied for envs in this process.

    Facades set it to False, because the original libraries share these objects.
    """
    arena: Arena
    """The arena that `bind` returned."""

    def __init__(self) -> None:
        self.lost: dict[int, BaseException] = {}
        """Envs that do not exist any more, with the reason; `restart` brings them back."""

    @property
    def workers(self) -> list[WorkerInfo]:
        """Facts about each worker, as far as known."""
        return []

    @property
    def own_stats(self) -> dict[str, Any]:
        """Entries of `stats()` of the vector env."""
        return {}

    @abstractmethod
    def start(self, env_fns: Sequence[Callable[[], Any]], num_workers: int | None, eager: bool) -> list[EnvReport]:
        """Make the envs, and return a report of each. Raises the error of a constructor with nothing left running.

        `num_workers` None leaves the number to the backend. `eager` asks to announce each env as it finishes, not each
        worker.
        """

    @abstractmethod
    def bind(self, layout: Layout) -> Arena:
        """Reserve the memory for the batch, once, after `start`; returns the parent's view of it."""

    def encode(
        self, ids: Sequence[int], ops: int | np.ndarray, actions: Any, payloads: Mapping[int, Any]
    ) -> Mapping[int, Any]:
        """Prepare for travel what does not fit the arena in a round or call, before anything has a side effect.

        `actions` are the rows (k, ...) that the arena is about to take, or None. Raises TypeError or ValueError, with
        the env named, for what cannot travel. This one is for envs in this process: it copies, and rejects nothing.
        """
        resets = np.equal(ops, opcodes.RESET_KWARGS)
        if self.copies or not resets.any():
            return {i: own_copy(payload) for i, payload in payloads.items()}
        shares = dict(zip(ids, np.broadcast_to(resets, len(ids)).tolist(), strict=True))
        return {i: _own_dicts(payload) if shares[i] else own_copy(payload) for i, payload in payloads.items()}

    @abstractmethod
    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        """Start an operation on each of the idle envs `ids` (None: all): one opcode for all, or a uint8 array (k,)."""

    @abstractmethod
    def wait(self, done: Callable[[], bool] | None, deadline: float | None) -> float:
        """Return when `done()` holds or the deadline (of time.monotonic) has passed: the seconds that it took.

        None as `done` only notices deaths, without waiting. Rounds and calls are waited for alike. ClosedError if
        `close` or `end_wait` is called meanwhile.
        """

    @abstractmethod
    def take(self, ids: Sequence[int] | None) -> Taken:
        """The results of envs that have answered (None for all), which become idle."""

    @abstractmethod
    def call(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> EnvCall:
        """Start `ENV_CALLS[op]` on idle envs, in all workers at once, with one tuple of arguments an env."""

    def resynchronise(self, deadline: float) -> None:
        """After an interrupted call: discard operations, answers and calls in progress, so that all envs are idle.

        Envs whose worker does not return by the deadline (of time.monotonic) are lost. This one is for backends that
        can be interrupted only between two messages.
        """
        status = self.arena.status

        def busy() -> list[int]:
            return np.flatnonzero((status > opcodes.IDLE) & (status < opcodes.DONE)).tolist()

        self.wait(lambda: not busy(), deadline)
        for i in busy():
            error = self.lost[i] = unreturned(i, [i], i)
            error.env_id, error.env_ids = i, (i,)
        self.take(None)

    def ended(self) -> Collection[int]:
        """The envs that do not exist any more. Another thread may ask: nothing is changed."""
        return self.lost

    def end_wait(self) -> None:  # noqa: B027  most backends have no waits that could be ended
        """End the wait of another thread with a ClosedError; `close` follows."""

    def restart(self, env_id: int) -> Sequence[int]:
        """Replace the worker of an env, which is lost, by a new one; returns the ids of its block.

        All envs of the block exist again, idle, and have to be reset. Raises what their constructors raise.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot restart envs")

    @abstractmethod
    def close(self, timeout: float) -> list[str]:
        """End everything within `timeout` seconds, by force if need be; returns a line for each problem.

        Legal in any state, also before `start`, twice, and from another thread or a signal handler.
        """


def _own_dicts(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a reset with a dict of options of their own, whose values are the caller's objects."""
    return {name: dict(value) if isinstance(value, dict) else value for name, value in kwargs.items()}


def unreturned(env_id: int, block: Sequence[int], running: int) -> WorkerDiedError:
    """The error of an env whose worker was ended because its env `running` did not return from an interrupted call."""
    subject = (
        f"env {env_id}"
        if env_id == running
        else f"env {env_id} is lost because env {running}, which shares its worker,"
    )
    return WorkerDiedError(
        f"{subject} did not return from an interrupted call, so the worker of envs {list(block)} was ended; "
        f"reset({env_id}) starts it again"
    )


class Answers:
    """The results that have arrived at a backend: status bytes in the arena, and extras beside it."""

    def __init__(self, arena: Arena) -> None:
        self.status = arena.status
        self.extras: dict[int, Extra] = {}

    def put(self, env_id: int, extra: Extra | None) -> None:
        """Note the answer of an env: its row is written, `extra` holds the rest."""
        if extra is not None:
            self.extras[env_id] = extra
        self.status[env_id] = opcodes.DONE if extra is None else opcodes.DONE_EXTRA

    def fail(self, i: int, error: BaseException, began: bool = True) -> None:
        """Answer for an env whose worker has ended, if it runs an operation, which had `began` perhaps."""
        if self.busy(i):
            self.put(i, Extra(failure=died_failure(i, "step", error, began)))

    def take(self, ids: Sequence[int] | None) -> Taken:
        """The extras of these envs (None for all), which become idle."""
        if ids is None:
            self.status[...] = opcodes.IDLE
            if not self.extras:
                return NOTHING_BESIDES
            extras, self.extras = self.extras, {}
        else:
            self.status[list(ids)] = opcodes.IDLE
            extras = {i: self.extras.pop(i) for i in ids if i in self.extras}
        return Taken(extras)

    def busy(self, i: int) -> bool:
        """True if the env runs an operation and has not answered."""
        return bool(opcodes.IDLE < self.status[i] < opcodes.DONE)
