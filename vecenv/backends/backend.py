"""`Backend`: interface through which `vecenv.engine` runs envs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vecenv.backends.host.env_access import copy_if_possible
from vecenv.backends.host.env_host import EnvReport
from vecenv.backends.host.failure import died_failure, one_of
from vecenv.backends.host.row_writer import Extra
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.arena import Arena
from vecenv.errors import RESTARTS, WorkerDiedError, how_to_reset
from vecenv.layout import Layout


class Taken(NamedTuple):
    """Results of a round besides the arena's observations, rewards and flags."""

    extras: dict[int, Extra]
    """By env id: results that do not fit a row."""
    infos: Sequence[Any] = ()
    """`InfoColumns` that workers wrote into the arena, or the `RoundInfos` of a `ColumnArena`.

    An info in `extras` takes precedence.
    """


NO_EXTRAS = Taken({})
"""Shared result of rounds without extras and infos. Do not change its dict."""


class WorkerInfo(NamedTuple):
    """Facts about a worker. `recycle_after` may be a function of this object."""

    ids: Sequence[int]
    pid: int | None
    """Process id, or `None` if unknown or this process."""
    busy_seconds: float
    """Seconds in rounds."""
    episodes: int = 0
    """Episodes per env that have ended since the worker's start. 0 for envs in this process."""
    memory: int = 0
    """Bytes of the worker and its child processes at the last reset of an env. 0 for envs in this process."""


class EnvCall:
    """Call of `ENV_CALLS[op]`, for example "render", on the envs `ids`.

    `found` has the value or Failure of each env that has answered. Pass `values` if all envs have answered already.
    """

    def __init__(self, ids: Sequence[int], op: str, values: Sequence[Any] | None = None) -> None:
        self.ids, self.op = ids, op
        self.found: dict[int, Any] = {} if values is None else dict(zip(ids, values, strict=True))
        self.discarded = False
        """True if no further answer will come, because `resynchronise` has discarded the call."""

    def done(self) -> bool:
        return len(self.found) == len(self.ids) or self.discarded

    def values(self) -> list[Any]:
        return [self.found[i] for i in self.ids]


class Backend(ABC):
    """Place where envs run. The engine uses a backend in this order:

        reports = backend.start(env_fns, num_workers, eager)
        arena = backend.bind(common_layout(...))
        payloads = backend.encode(ids, ops, actions, payloads)
        arena.action[ids] = actions
        backend.send(ids, ops, payloads)
        backend.wait(lambda: all_done(arena.status), deadline)
        taken = backend.take(ids)
        call = backend.call(ids, "render", args)
        backend.wait(call.done, None), call.values()
        backend.close(timeout)

    States of an env. The status byte shows idle, busy and done:

        idle    -- send -->     busy    the status byte is an opcode
        busy    -- answer -->   done    the row is written, the status byte is DONE or above
        done    -- take -->     idle
        any     -- death -->    lost    `lost[i]` is the exception to raise; a running operation becomes a Failure
        lost    -- restart -->  idle    a new env, which needs a reset
        any     -- close -->    closed  waits in progress raise ClosedError

    Every backend guarantees:

    - Every operation is answered exactly once: by a row, with an `Extra` if needed, or by a Failure.
    - If a worker dies during `wait`, each of the worker's envs is answered by a Failure.

    A KeyboardInterrupt may end a method at any bytecode. The engine's next call is then `resynchronise` or `close`.
    """

    num_workers: int
    autoresets: bool = False
    """True if a step can also reset envs when their episodes end (`opcodes.AUTORESET`)."""
    seeds_autoresets = True
    """True if these resets take seeds from the arena."""
    takes_objects: bool = True
    """True if an action may be any object. If False, an action has the dtype of its space."""
    takes_tensors: bool = False
    """True if actions may be tensors, which stay on their device."""
    recycles: bool = False
    """True if workers are replaced between episodes."""
    hosts_here: bool = False
    """True if envs may run in this process, and may share objects with the caller."""
    copies: bool = True
    """True if reset options, and arguments and results of `call`, are copied for envs in this process.

    The gymnasium and SB3 facades set this to False, because these libraries do not copy.
    """
    arena: Arena

    def __init__(self) -> None:
        self.lost: dict[int, BaseException] = {}

    @property
    def workers(self) -> list[WorkerInfo]:
        """One entry per worker."""
        return []

    @property
    def moving(self) -> Collection[int]:
        """Ids of the envs that `move` would give to a new worker."""
        return ()

    @property
    def own_stats(self) -> dict[str, Any]:
        """Additional entries for `stats()` of the vector env."""
        return {}

    @abstractmethod
    def start(self, env_fns: Sequence[Callable[[], Any]], num_workers: int | None, eager: bool) -> list[EnvReport]:
        """Make the envs and return their reports. Raises the errors of constructors; the engine then calls `close`.

        If `num_workers` is None, the backend chooses. If `eager`, a worker answers for each env right after the env's
        step, else for all envs together.
        """

    @abstractmethod
    def bind(self, layout: Layout) -> Arena:
        """Allocate the arena for envs with this layout, and return it."""

    def encode(
        self, ids: Sequence[int], ops: int | np.ndarray, actions: Any, payloads: Mapping[int, Any]
    ) -> Mapping[int, Any]:
        """Prepare payloads (actions and arguments that do not fit the arena), before any side effect of the round.

        `actions`: rows (k, ...) for the arena, or None. Raises TypeError, ValueError or RuntimeError if the round
        cannot run.
        """
        resets = np.equal(ops, opcodes.RESET_KWARGS)
        if self.copies or not resets.any():
            return {i: copy_if_possible(payload) for i, payload in payloads.items()}
        shares = dict(zip(ids, np.broadcast_to(resets, len(ids)).tolist(), strict=True))
        return {
            i: _copy_options(payload) if shares[i] else copy_if_possible(payload) for i, payload in payloads.items()
        }

    @abstractmethod
    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        """Start an operation on the idle envs `ids` (`None`: all). `ops`: an opcode, or uint8 opcodes (k,)."""

    @abstractmethod
    def wait(self, done: Callable[[], bool] | None, deadline: float | None) -> float:
        """Wait until `done()` is True or until `deadline` (time.monotonic). Return the seconds of the wait.

        If `done` is None, only look for dead workers. Raises ClosedError if another thread calls `close` or `end_wait`.
        """

    @abstractmethod
    def take(self, ids: Sequence[int] | None) -> Taken:
        """Return the results of the envs `ids` (`None`: all), which have answered. These envs become idle."""

    @abstractmethod
    def call(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> EnvCall:
        """Start `ENV_CALLS[op]` on the idle envs `ids`. `args` has a tuple of arguments per env."""

    def resynchronise(self, deadline: float) -> None:
        """Make all envs idle after an interrupted call: discard operations, answers and calls.

        An env is lost if its worker has not finished the interrupted operation by `deadline` (time.monotonic).

        This default waits for busy envs. Override it if an interrupt can lose an answer.
        """
        status = self.arena.status

        def busy() -> list[int]:
            return np.flatnonzero((status > opcodes.IDLE) & (status < opcodes.DONE)).tolist()

        self.wait(lambda: not busy(), deadline)
        for i in busy():
            error = self.lost[i] = unreturned(i, [i], [i])
            error.env_id, error.env_ids = i, (i,)
        self.take(None)

    def recycle(self) -> None:  # noqa: B027
        """Begin or continue to replace a worker. Raises the exceptions of the caller's function `recycle_after`."""

    def move(self, ids: Sequence[int]) -> None:  # noqa: B027
        """Give the envs of `ids` in `moving`, which are idle and need a reset, to their new worker."""

    def ended(self) -> Collection[int]:
        """Return the ids of envs that no longer exist. Any thread may call this, so change no state."""
        return self.lost

    def end_wait(self) -> None:  # noqa: B027
        """Make `wait` in another thread raise ClosedError. Called before `close`."""

    def abandon_envs(self, timeout: float) -> None:  # noqa: B027
        """At the end of the program, end the threads within `timeout` seconds. Do not close the envs."""

    def restart(self, env_id: int) -> Sequence[int]:
        """Replace the worker of a lost env. Return the ids of the new envs, which need a reset.

        Raises the errors of constructors.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot restart envs")

    @abstractmethod
    def close(self, timeout: float) -> list[str]:
        """End all workers, after `timeout` seconds by force if possible. Return a line for each problem.

        May be called in any state, twice, from any thread, or from a signal handler.
        """


def _copy_options(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: dict(value) if isinstance(value, dict) else value for name, value in kwargs.items()}


def unreturned(env_id: int, block: Sequence[int], suspects: Sequence[int]) -> WorkerDiedError:
    subject = (
        f"env {env_id}"
        if [env_id] == list(suspects)
        else f"env {env_id} is lost because {one_of(suspects)}, which share{'s' * (len(suspects) == 1)} its worker,"
    )
    return WorkerDiedError(
        f"{subject} did not return from an interrupted call, so the worker of envs {list(block)} was ended; "
        f"{how_to_reset(env_id, RESTARTS)}"
    )


class Answers:
    """Status bytes of envs, and the received results that do not fit rows (`Extra`)."""

    def __init__(self, arena: Arena) -> None:
        self.status = arena.status
        self.extras: dict[int, Extra] = {}

    def put(self, env_id: int, extra: Extra | None) -> None:
        if extra is not None:
            self.extras[env_id] = extra
        self.status[env_id] = opcodes.DONE if extra is None else opcodes.DONE_EXTRA

    def fail(self, i: int, error: BaseException, began: bool = True) -> None:
        if self.busy(i):
            self.put(i, Extra(failure=died_failure(i, "step", error, began)))

    def take(self, ids: Sequence[int] | None) -> Taken:
        if ids is None:
            self.status[...] = opcodes.IDLE
            if not self.extras:
                return NO_EXTRAS
            extras, self.extras = self.extras, {}
        else:
            self.status[list(ids)] = opcodes.IDLE
            extras = {i: self.extras.pop(i) for i in ids if i in self.extras}
        return Taken(extras)

    def busy(self, i: int) -> bool:
        return bool(opcodes.IDLE < self.status[i] < opcodes.DONE)
