"""Backend: the seam between the vector env and the place where its envs live."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vecenv.backends.host.env_host import EnvReport
from vecenv.backends.host.failure import Failure
from vecenv.backends.host.row_writer import Extra
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.arena import Arena
from vecenv.backends.memory.layout import Layout
from vecenv.backends.shield import shield

REVIEW_ROUNDS = 8
"""Rounds between two calls of `Backend.review`."""


class Backend(ABC):
    """Hosts envs, carries rounds of operations to them, and their answers back.

    The loop in which a vector env uses it:

        reports = backend.start(env_fns, num_workers, eager)
        arena = backend.bind(common_layout(...))
        backend.send(ids, ops, payloads)                    # one operation an env, never blocks for long
        backend.wait(lambda: all_done(arena.status), deadline)
        ...                                                 # read the rows of arena
        extras = backend.take(ids)                          # what does not fit a row; the status bytes are idle again
        backend.close(timeout)

    A backend promises: (1) the answer to every operation arrives exactly once, as a row and a status byte that says so
    (`opcodes.DONE` and above), or as an Extra with a Failure; (2) `wait` returns within 0.1 s of the death of a
    worker, the operations of that worker answered by failures and all its envs in `lost`; (3) `close` returns in
    bounded time, whatever happened before.
    """

    num_workers: int = 0
    autoresets: bool = False
    """Whether it knows steps with `opcodes.AUTORESET`."""
    lost: dict[int, BaseException]
    """Envs that do not exist any more, with the reason; `restart` brings them back."""

    arena: Arena
    """What `bind` returned."""

    waited: float = 0.0
    """Seconds that the caller waited for the last round: written by the vector env."""

    def __init__(self) -> None:
        self.lost = {}
        self._extras: dict[int, Extra] = {}
        self._shielded = False

    def raise_shield(self) -> None:
        """Hold Ctrl-C back while something is half done, from now until `lower_shield`: to be called by `start`."""
        shield.acquire()
        self._shielded = True

    def lower_shield(self) -> None:
        """To be called by `close`; the second time it does nothing."""
        if self._shielded:
            self._shielded = False
            shield.release()

    @abstractmethod
    def start(self, env_fns: Sequence[Callable[[], Any]], num_workers: int, eager: bool) -> list[EnvReport]:
        """Make the envs, and return a report of each. Raises the error of a constructor with nothing left running.

        `eager` asks to announce each env as it finishes, not each worker.
        """

    @abstractmethod
    def bind(self, layout: Layout) -> Arena:
        """Reserve the memory for the batch, once, after `start`; returns the parent's view of it."""

    def encode(self, payloads: Mapping[int, Any]) -> dict[int, Any]:
        """Prepare what does not fit the arena, before anything is sent; TypeError if it cannot travel."""
        return dict(payloads)

    @abstractmethod
    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        """Ask the envs `ids` (None for all) for one operation each: one for all, or a uint8 array (k,)."""

    def nudge(self) -> None:
        """`send` was interrupted: make sure that what the status bytes ask for is known."""
        return

    @abstractmethod
    def wait(self, done: Callable[[], bool], deadline: float | None) -> None:
        """Return when `done()` holds or the deadline (of time.monotonic) has passed."""

    def review(self, waited: float) -> None:
        """Another `REVIEW_ROUNDS` rounds are over; the caller has waited so many seconds for all rounds so far."""
        return

    def finish(self, ids: Sequence[int] | None) -> None:
        """Wait for what is still on its way of the answers of these envs (None for all)."""
        return

    def take(self, ids: Sequence[int] | None) -> dict[int, Extra]:
        """The extras of envs that have answered (None for all), all of them; their status bytes become idle."""
        self.finish(ids)
        boxes: Any = ... if ids is None else list(ids)
        if not self._extras:
            self.arena.status[boxes] = opcodes.IDLE
            return {}
        with shield:  # an idle box whose extra is still here, or the reverse, would be a lost answer
            self.arena.status[boxes] = opcodes.IDLE
            if ids is not None:
                return {i: self._extras.pop(i) for i in ids if i in self._extras}
            extras, self._extras = self._extras, {}
            return extras

    def answer(self, env_id: int, extra: Extra | None) -> None:
        """Put the answer of an env into its status byte: the row is written, `extra` holds the rest."""
        if extra is not None:
            self._extras[env_id] = extra
        self.arena.status[env_id] = opcodes.DONE if extra is None else opcodes.DONE_EXTRA

    @abstractmethod
    def ask(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> Any:
        """Start `OPERATIONS[op]` on idle envs, in all workers at once, with one tuple of arguments an env.

        Returns what the next two take: the answers themselves where they are there at once.
        """

    def await_answers(self, asked: Any, deadline: float | None) -> bool:
        """Wait until all have answered; returns False if one has not by the deadline (of time.monotonic)."""
        return True

    def answers(self, asked: Any) -> list[Any | Failure]:
        """The answer of each env, once all have answered."""
        found: list[Any | Failure] = asked
        return found

    def look(self) -> None:
        """Notice workers that have ended, without waiting."""
        return

    def restart(self, env_id: int) -> None:
        """Bring back the worker of a lost env, with new envs for its whole block."""
        raise NotImplementedError(f"{type(self).__name__} cannot restart envs")

    def busy_time(self) -> list[float]:
        """Seconds that each worker has spent in rounds so far, as far as known."""
        return []

    def pid(self, env_id: int) -> int | None:
        """The process that hosts the env, None for this one."""
        return None

    @abstractmethod
    def close(self, timeout: float) -> list[str]:
        """End everything within `timeout` seconds, by force if need be; returns a line for each problem."""
