"""`Recycler`: replaces workers between the episodes of their envs (`recycle_after`), one worker at a time.

    idle --(a worker is due)--> starting --(its envs are made)--> moving --(all envs have moved)--> ending --> idle

While the new worker starts, the old worker continues. Then each env moves when it is reset: the env in the new worker
gets the random generators of the env in the old worker, and plays the next episode. The old worker ends after its last
env has moved. If memory is short, the old worker ends first, when all its envs are reset at the same time.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from vecenv.arguments import as_recycle_after
from vecenv.backends.backend import EnvCall, WorkerInfo
from vecenv.backends.host.failure import Failure
from vecenv.backends.ipc import messages
from vecenv.backends.memory.shared_memory import BUSY_NS, MEMORY, RESETS
from vecenv.backends.pool.worker_handle import WorkerHandle
from vecenv.backends.system_limits import available_memory
from vecenv.errors import warn_caller

if TYPE_CHECKING:
    from vecenv.backends.process import ProcessBackend

Rule = Callable[[WorkerInfo], Any]
"""Function that returns why a worker is to be replaced ("episodes", "memory" or "function"), or ""."""
SHARE = 0.02
"""Maximum part of the time that the checks take."""
LEAST_INTERVAL = 0.02
ROOM = 2
"""A new worker starts before the old worker ends if this many times the memory of a new worker is available."""
PLACE_TIMEOUT = 10.0
"""Seconds until the old actor ends first, because Ray has no room for another actor."""
RETRY = 60.0
"""Seconds until the next try, if a new worker could not start, or if the old worker could not end first."""
END_TIMEOUT = 5.0
"""Seconds that an old worker may take to close its envs."""
logger = logging.getLogger("vecenv")


def recycle_rule(recycle_after: Any) -> Rule | None:
    """Return the rule for the argument `recycle_after`. Raises TypeError or ValueError for a wrong argument."""
    kind, limit = as_recycle_after(recycle_after)
    rules: dict[str, Rule | None] = {
        "": None,
        "episodes": lambda worker: worker.episodes >= limit,
        "memory": lambda worker: worker.memory > limit,
        "function": limit,
    }
    rule = rules[kind]
    return None if rule is None else lambda worker: kind if rule(worker) else ""


def info_of(worker: WorkerHandle) -> WorkerInfo:
    line, count = worker.line, max(len(worker.ids), 1)
    # The first reset of an env begins its first episode.
    episodes = max(line[RESETS] - count, 0) // count
    return WorkerInfo(worker.hosted, worker.pid, line[BUSY_NS] / 1e9, episodes, line[MEMORY])


class Recycler:
    def __init__(self, rule: Rule, backend: ProcessBackend) -> None:
        backend.pool.extra_workers = 1
        self._rule, self._backend, self._pool = rule, backend, backend.pool
        self._old: WorkerHandle | None = None
        """Worker that is being replaced."""
        self._new: WorkerHandle | None = None
        """Worker that takes the place of `_old`, or `None` if `_old` must end first."""
        self._ending: WorkerHandle | None = None
        self.moving: Collection[int] = ()
        """Ids of the envs that move when they are reset."""
        self.attributes: dict[int, dict[str, bytes]] = {}
        """Pickled arguments of `set_env_attr`, by env id and name, because a new env needs these attributes too."""
        self._reason, self._counts = "", Counter[str]()
        self._next = self._deadline = 0.0
        self._turn = 0
        """Place of the worker that is replaced first if several are due."""
        self._fresh = 0
        """Bytes of a new worker."""

    def stats(self) -> dict[str, Any]:
        return {"recycled": self._counts.total(), "recycled_because": dict(self._counts)}

    def review(self) -> None:
        """Begin or continue a replacement. Raises the exceptions of the rule."""
        if self._ending is not None:
            self._await_end(self._ending)
        elif self._old is None:
            self._find()
        elif self._new is not None and not self.moving:
            self._await_start(self._old, self._new)
        elif self._new is None and time.monotonic() > self._deadline:
            self._cancel(None)  # the envs were not reset in one call, so look for memory again

    def _find(self) -> None:
        begin = time.monotonic()
        if begin < self._next:
            return
        serving = self._pool.serving
        in_turn = [*serving[self._turn :], *serving[: self._turn]]
        workers = [worker for worker in in_turn if worker.alive and isinstance(worker.ready, list)]
        if not self._counts:
            self._fresh = self._fresh or max((worker.line[MEMORY] for worker in workers), default=0)
        due = next(((worker, reason) for worker in workers if (reason := self._rule(info_of(worker)))), None)
        now = time.monotonic()
        self._next = now + max(LEAST_INTERVAL, (now - begin) / SHARE) if self._fresh else 0.0
        if due is not None:
            worker, self._reason = due
            if self._reason == "memory" and not self._counts and worker.line[RESETS] <= len(worker.ids):
                raise ValueError(
                    f"the new worker of envs {list(worker.ids)} already has {worker.line[MEMORY] / 2**20:.0f} MiB, "
                    "more than recycle_after allows; pass a larger size"
                )
            self._turn = worker.place + 1
            self._start(worker)

    def _start(self, old: WorkerHandle) -> None:
        self._old = old
        available = available_memory()
        if available is not None and available < ROOM * self._fresh:
            self._end_first(old)
            return
        new = self._new = next(worker for worker in self._pool.workers if not worker.hosted)
        self._deadline = time.monotonic() + self._pool.start_timeout
        new.take_block_of(old)
        self._pool.is_shared = True
        try:
            self._pool.launch([new])
        except Exception as error:
            self._give_up(new, error)

    def _end_first(self, old: WorkerHandle) -> None:
        self.moving = old.hosted if len(old.hosted) == 1 else ()
        self._deadline = time.monotonic() + RETRY

    def _await_start(self, old: WorkerHandle, new: WorkerHandle) -> None:
        self._pool.handle_events(self._pool.events(None))
        try:
            is_ready = self._pool.are_ready([new], self._deadline)
        except Exception as error:
            self._give_up(new, error)
            return
        if is_ready:
            self._backend.set_up(new)
            self.moving = old.hosted
        elif new.pid is None and time.monotonic() > self._deadline - self._pool.start_timeout + PLACE_TIMEOUT:
            self._pool.kill(new, None)
            self._new = None
            self._end_first(old)

    def _give_up(self, new: WorkerHandle, error: BaseException) -> None:
        self._next = time.monotonic() + RETRY
        self._cancel(new)
        warn_caller(
            f"a new worker for envs {list(new.ids)} could not start, so the old worker continues (recycle_after tries "
            f"again in {RETRY:g} s): {error}"
        )

    def _cancel(self, new: WorkerHandle | None) -> None:
        self._old = self._new = None
        self.moving = ()
        if new is not None and new.alive:
            self._pool.kill(new, None)
        self._pool.is_shared = self._ending is not None

    def move(self, ids: Sequence[int]) -> None:
        """Let the new worker serve the envs of `ids` that wait for it. They must be idle and need a reset."""
        old, new, lost = self._old, self._new, self._backend.lost
        if old is None or (new is not None and not self.moving):
            return
        chosen = [i for i in ids if i in old.hosted and i not in lost]
        if not chosen or (new is None and len(chosen) < len(old.hosted)):
            return
        carried = self._values(self._request(old, "carry", dict.fromkeys(chosen, ())))
        states = {i: (state, list(self.attributes.get(i, {}).values())) for i, state in carried.items()}
        if not old.alive:  # a restart follows
            return
        if new is None:
            attributes = dict(self.attributes)  # a restart drops these
            self._end(old)
            self._backend.wait(lambda: not old.alive, self._deadline)
            self._await_end(old, late=True)
            with suppress(Exception):  # then the envs stay lost, and the following reset tries again
                self._backend.restart(chosen[0])
                self._adopt(old, states)
                self.attributes = attributes
            return
        self._adopt(new, states)
        if not new.alive:
            logger.warning("the new worker of envs %s has ended: %s", list(new.ids), new.death(chosen[0]))
            self._next = time.monotonic() + RETRY
            self._cancel(new)
            return
        self._backend.assign(chosen, new)
        self.moving = old.hosted
        if not old.hosted:
            self._end(old)

    def _adopt(self, worker: WorkerHandle, states: dict[int, tuple[Any, ...]]) -> None:
        self._values(self._request(worker, "adopt", states))

    def _request(self, worker: WorkerHandle, op: str, args: dict[int, tuple[Any, ...]]) -> EnvCall:
        call = EnvCall(list(args), op)
        blobs = self._backend.encode(call.ids, 0, None, args)
        self._backend.request(worker, call, {i - worker.start: blob for i, blob in blobs.items()})
        return call

    def _values(self, call: EnvCall) -> dict[int, Any]:
        self._backend.wait(call.done, None)
        for i, value in call.found.items():
            if isinstance(value, Failure):
                logger.warning("env %d: %s failed while its worker was replaced: %s", i, call.op, value.text)
        return {i: None if isinstance(value, Failure) else value for i, value in call.found.items()}

    def _end(self, old: WorkerHandle) -> None:
        self._pool.request(old, messages.CLOSE, 0)
        self._counts[self._reason] += 1
        logger.info("the worker of envs %s (%s) was replaced (%s)", list(old.ids), old.where, self._reason)
        self._ending, self._deadline = old, time.monotonic() + END_TIMEOUT
        self._cancel(None)

    def _await_end(self, old: WorkerHandle, late: bool = False) -> None:
        self._pool.handle_events(self._pool.events(None))
        if old.alive and (late or time.monotonic() > self._deadline):
            self._pool.kill(old, None)
        if not old.alive:
            self._ending, self._pool.is_shared = None, False
            for problem in old.problems or ():
                logger.warning("%s", problem)

    def restarts(self, worker: WorkerHandle) -> WorkerHandle | None:
        """Return the worker that takes the envs of an ended worker, or `None` if the ended worker must start again."""
        new = self._new
        for i in worker.hosted:
            self.attributes.pop(i, None)
        if worker is self._ending:
            self._ending = None
        if worker is not self._old:
            return None
        takes_over = new is not None and new.alive and bool(self.moving)
        if new is not None and not new.alive and new.hosted:  # else two workers would serve the block for ever
            self._backend.assign(new.hosted, worker)
        self._cancel(None if takes_over else new)
        return new if takes_over else None

    def resynchronise(self) -> None:
        """After an interrupt, cancel a replacement unless envs have moved."""
        self._pool.update_hosted()
        old, new = self._old, self._new
        if old is not None and new is not None and new.hosted:
            self.moving = old.hosted
            if not old.hosted and old.alive:
                self._end(old)
        else:
            self._cancel(new)
