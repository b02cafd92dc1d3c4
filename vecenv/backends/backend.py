"""`Backend`: the interface between the engine and the place in which envs run."""

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
    """Results of a round that are not in the rows of the arena."""

    extras: dict[int, Extra]
    infos: Sequence[InfoColumns] = ()
    """Infos that came in info rows. If an env also has an extra, the info of the extra wins."""


NOTHING_BESIDES = Taken({})
"""Result of a round without extras. Shared by all rounds, so do not change it."""


class WorkerInfo(NamedTuple):
    """Ids of a worker's envs, its process (None for this process), and the seconds that it spent in rounds."""

    ids: Sequence[int]
    pid: int | None
    busy_seconds: float


class EnvCall:
    """Operation that was started on the envs `ids`. `found` maps an env id to its value or Failure, once it has
    answered.

    Pass `values`, with one value per env, if all envs have answered already.
    """

    def __init__(self, ids: Sequence[int], op: str, values: Sequence[Any] | None = None) -> None:
        self.ids, self.op = ids, op
        self.found: dict[int, Any] = {} if values is None else dict(zip(ids, values, strict=True))
        self.discarded = False
        """True if no answer will come, because the call was interrupted."""

    def done(self) -> bool:
        """Return True if all envs have answered, as `Backend.wait` asks."""
        return len(self.found) == len(self.ids) or self.discarded

    def values(self) -> list[Any]:
        """Return the values in the order of the ids."""
        return [self.found[i] for i in self.ids]


class Backend(ABC):
    """Place that hosts envs. A backend carries operations to the envs, and their results back.

    The engine uses a backend in this order:

        reports = backend.start(env_fns, num_workers, eager)
        arena = backend.bind(common_layout(...))
        payloads = backend.encode(ids, ops, actions, payloads)  # may raise; nothing has happened yet
        arena.action[ids] = actions
        backend.send(ids, ops, payloads)                        # one operation per env; does not wait
        backend.wait(lambda: all_done(arena.status), deadline)
        taken = backend.take(ids)                               # the other results are rows of the arena
        call = backend.call(ids, "render", args)
        backend.wait(call.done, None), call.values()
        backend.close(timeout)

    States of an env. Its status byte shows idle, busy and done:

        idle    -- send -->     busy    the status byte is an opcode
        busy    -- answer -->   done    the row is written, the status byte is DONE or above
        done    -- take -->     idle
        any     -- death -->    lost    its worker has ended: `lost[i]` is the exception to raise, and a running
                                        operation is answered by a Failure
        lost    -- restart -->  idle    a new env, which needs a reset
        any     -- close -->    closed  waits in progress raise ClosedError

    Guarantees of every backend:

    - Every operation is answered exactly once: by a row and a status byte, or by an `Extra` with a Failure.
    - `wait` returns within 0.1 s after a worker dies.
    - `close` returns in bounded time, in every state.

    A signal handler may raise (KeyboardInterrupt) between any two bytecodes of a method. The engine then calls
    `resynchronise` or `close` before any other method.
    """

    num_workers: int
    """Number of workers that share the envs. `start` sets this attribute."""
    autoresets: bool = False
    """True if the backend supports steps with `opcodes.AUTORESET`."""
    takes_objects: bool = True
    """True if an action may be any object. If False, an action is an array with the dtype of its space."""
    hosts_here: bool = False
    """True if envs may run in this process, and may therefore share objects with the caller."""
    copies: bool = True
    """True if arguments and results of calls, and options of resets, are copied for envs in this process.

    Facades set this attribute to False, because the original libraries share these objects.
    """
    arena: Arena
    """Arena that `bind` returned."""

    def __init__(self) -> None:
        self.lost: dict[int, BaseException] = {}
        """Exception of each env that is lost. `restart` recreates these envs."""

    @property
    def workers(self) -> list[WorkerInfo]:
        """Return facts about each worker, as far as known."""
        return []

    @property
    def own_stats(self) -> dict[str, Any]:
        """Return the entries that the backend adds to `stats()` of the vector env."""
        return {}

    @abstractmethod
    def start(self, env_fns: Sequence[Callable[[], Any]], num_workers: int | None, eager: bool) -> list[EnvReport]:
        """Make the envs and return their reports. If a constructor raises, end all workers and raise its error.

        If `num_workers` is None, the backend chooses the number. `eager` asks workers to announce each env when it
        finishes, instead of all envs of the worker together.
        """

    @abstractmethod
    def bind(self, layout: Layout) -> Arena:
        """Reserve the memory for the batch, and return the parent's view. Called once, after `start`."""

    def encode(
        self, ids: Sequence[int], ops: int | np.ndarray, actions: Any, payloads: Mapping[int, Any]
    ) -> Mapping[int, Any]:
        """Prepare payloads, which are the parts of a round or call that do not fit the arena, before any side effect.

        `actions` are the rows (k, ...) that the engine is about to write into the arena, or None. Raises TypeError or
        ValueError with the env id if a payload cannot travel. This implementation is for envs in this process: it
        copies.
        """
        resets = np.equal(ops, opcodes.RESET_KWARGS)
        if self.copies or not resets.any():
            return {i: own_copy(payload) for i, payload in payloads.items()}
        shares = dict(zip(ids, np.broadcast_to(resets, len(ids)).tolist(), strict=True))
        return {i: _own_dicts(payload) if shares[i] else own_copy(payload) for i, payload in payloads.items()}

    @abstractmethod
    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        """Start an operation on the idle envs `ids` (None for all): one opcode for all, or a uint8 array (k,)."""

    @abstractmethod
    def wait(self, done: Callable[[], bool] | None, deadline: float | None) -> float:
        """Wait until `done()` is true or `deadline` (time.monotonic) has passed, and return the seconds that it took.

        If `done` is None, only look for dead workers, without waiting. Raises ClosedError if another thread calls
        `close` or `end_wait`.
        """

    @abstractmethod
    def take(self, ids: Sequence[int] | None) -> Taken:
        """Return the results of envs that have answered (None for all). These envs become idle."""

    @abstractmethod
    def call(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> EnvCall:
        """Start `ENV_CALLS[op]` on idle envs, in all workers in parallel, with one tuple of arguments per env."""

    def resynchronise(self, deadline: float) -> None:
        """Discard all operations, answers and calls after an interrupted call, so that all envs are idle.

        An env is lost if its worker does not return by `deadline` (time.monotonic). This implementation is for backends
        that can be interrupted only between two messages.
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
        """Return the envs that do not exist any more. Another thread may call this, so do not change any state."""
        return self.lost

    def end_wait(self) -> None:  # noqa: B027  most backends have no waits that could be ended
        """End the wait of another thread with a ClosedError. A call of `close` follows."""

    def restart(self, env_id: int) -> Sequence[int]:
        """Replace the worker of a lost env, and return the ids of its block.

        All envs of the block exist then. They are idle and need a reset. Raises the errors of their constructors.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot restart envs")

    @abstractmethod
    def close(self, timeout: float) -> list[str]:
        """End all workers within `timeout` seconds, by force if needed. Return a line for each problem.

        May be called in any state: before `start`, twice, from another thread, or from a signal handler.
        """


def _own_dicts(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the dict of options in the arguments of a reset. The values of the options stay the caller's objects."""
    return {name: dict(value) if isinstance(value, dict) else value for name, value in kwargs.items()}


def unreturned(env_id: int, block: Sequence[int], running: int) -> WorkerDiedError:
    """Return the error of an env that is lost because env `running` did not return from an interrupted call."""
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
    """Answers that have arrived at a backend: status bytes in the arena, and extras."""

    def __init__(self, arena: Arena) -> None:
        self.status = arena.status
        self.extras: dict[int, Extra] = {}

    def put(self, env_id: int, extra: Extra | None) -> None:
        """Record the answer of an env whose row is written. `extra` has the rest."""
        if extra is not None:
            self.extras[env_id] = extra
        self.status[env_id] = opcodes.DONE if extra is None else opcodes.DONE_EXTRA

    def fail(self, i: int, error: BaseException, began: bool = True) -> None:
        """Record a Failure for an env whose worker has ended, if the env is busy. `began`: the operation may have
        started.
        """
        if self.busy(i):
            self.put(i, Extra(failure=died_failure(i, "step", error, began)))

    def take(self, ids: Sequence[int] | None) -> Taken:
        """Return the extras of these envs (None for all), and make the envs idle."""
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
        return bool(opcodes.IDLE < self.status[i] < opcodes.DONE)
