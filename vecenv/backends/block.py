"""`Block`: envs of `ThreadBackend` that share a worker, which is a thread, or a task of an event loop."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any

from vecenv.backends.backend import Answers, EnvCall
from vecenv.backends.host.env_host import EnvHost
from vecenv.backends.host.row_writer import Extra
from vecenv.backends.ipc import opcodes
from vecenv.backends.ipc.waiting import fence
from vecenv.backends.memory.arena import Arena
from vecenv.backends.memory.shared_memory import BUSY_NS, LINE, NOTHING
from vecenv.backends.pool.worker_handle import Watched
from vecenv.layout import Layout
from vecenv.portability import IN_ORDER

if TYPE_CHECKING:
    from vecenv.backends.thread import ThreadBackend


class Block(Watched):
    """Envs of one worker. After `abandon`, the worker uses no further env.

    When the running env returns, the worker closes all envs, unless `closes_envs` is False, and ends.
    """

    post: Callable[[Callable[[], Any] | None], Any]
    """Function that lets the worker call a function after the earlier ones. `None` ends the worker."""

    is_bystander = False
    """True if an env of another block keeps these envs waiting."""

    def __init__(self, index: int, ids: range, backend: ThreadBackend, host: EnvHost) -> None:
        super().__init__(index, ids)
        self.alive = True
        self.problems: list[str] = []
        self.closes_envs = True
        self.line = [NOTHING] * LINE
        self.everyone: Sequence[int] = range(len(ids))
        self._backend = backend
        self._lock = RLock()
        """Held while an answer is delivered, so that `abandon` waits for the delivery."""
        self._host = host
        self._host.progress = self.line

    @abstractmethod
    def round(self, asked: bytes, payloads: Mapping[int, Any]) -> Any:
        """Run a round in the worker."""

    @abstractmethod
    def call(self, call: EnvCall, args: Mapping[int, tuple[Any, ...]]) -> Any:
        """Answer a call in the worker. `args` by env id."""

    @property
    @abstractmethod
    def has_ended(self) -> bool:
        """True if the worker has ended or is abandoned. Any thread may read this."""

    @property
    def envs(self) -> list[Any]:
        return self._host.envs

    @property
    def busy_seconds(self) -> float:
        line = self.line
        try:  # without the lock, because an interrupt could leave it locked
            return line[BUSY_NS] / 1e9
        except IndexError:  # `abandon` has just emptied this list, and replaced it by a copy
            return self.line[BUSY_NS] / 1e9

    def bind(self, layout: Layout, rows: Arena, answers: Answers, own: Arena | None = None) -> None:
        """Use `rows`, this block's part of the batch's arena, for actions, seeds and delivered results.

        The envs write into `own` (default: a new arena), so that an abandoned worker cannot change the batch.
        """
        own = Arena.build(layout, len(self.ids)) if own is None else own
        own.seed = rows.seed
        self._rows, self._answers = rows, answers
        self._outputs = list(zip(rows.outputs(), own.outputs(), strict=True))
        self._finals = list(zip(rows.finals(), own.finals(), strict=True))
        self.post(partial(self._host.bind, layout, own))

    def abandon(self) -> None:
        with self._lock:
            self.alive = False
            numbers: list[int] = self._host.progress
            if self.line is numbers:
                self.line = numbers.copy()
            # From now on, `EnvHost`'s write to this list before each use of an env raises IndexError.
            numbers.clear()
        self.post(None)

    def deliver(self, callback: Callable[..., None], *args: Any) -> None:
        """Call `callback(*args)`, unless the block is abandoned."""
        with self._lock:
            if self.alive:
                callback(*args)
        self._backend.wake()

    def write(self, places: Sequence[int], extras: dict[int, Extra]) -> None:
        """Copy the results of the envs with the indexes `places` to the batch."""
        rows: Any = ... if places is self.everyone else places
        for to, own in self._outputs:
            to[rows] = own if rows is ... else own[rows]
        for j, extra in extras.items():
            self._answers.extras[self.start + j] = extra
            for to, own in () if extra.final is None else self._finals:
                to[j] = own[j]
        if not IN_ORDER:
            fence()
        self._rows.status[rows] = opcodes.DONE
