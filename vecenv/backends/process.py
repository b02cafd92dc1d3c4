"""`ProcessBackend`: steps envs in workers outside of this process. Base class of Subproc, Command, Shmem and Ray.

engine -- send, wait, take, call --> ProcessBackend: results, calls, lost envs
                                       |-- its subclass carries steps, resets, and their results
                                       '-- WorkerPool: starts workers, receives messages (frames), detects deaths
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from vecenv.backends.backend import NO_EXTRAS, Answers, Backend, EnvCall, Taken, WorkerInfo, unreturned
from vecenv.backends.host.env_host import EnvReport
from vecenv.backends.host.failure import Failure, died_failure, read_value
from vecenv.backends.host.row_writer import RESET_IN_ARENA, Extra
from vecenv.backends.ipc import messages, opcodes
from vecenv.backends.ipc.messages import Frame
from vecenv.backends.ipc.serialization import dumps, dumps_by_value
from vecenv.backends.ipc.waiting import fence
from vecenv.backends.memory.arena import Arena
from vecenv.backends.memory.infos import InfoReader
from vecenv.backends.memory.shared_memory import A_ROUND, DOING, ELSEWHERE, FRAMES, SENDING
from vecenv.backends.pool.watchdog import Watchdog
from vecenv.backends.pool.worker_handle import WorkerHandle, suspects_of
from vecenv.backends.pool.worker_pool import WorkerPool
from vecenv.backends.recycling import Recycler, Rule, info_of
from vecenv.backends.worker.round_server import RoundServer, advice
from vecenv.errors import CLOSED_MEANWHILE, ClosedError, WorkerWarnings
from vecenv.layout import Layout
from vecenv.portability import IN_ORDER
from vecenv.spinning_threads import SpinningThreads, is_enabled

REVIEW_WAITS = 8


class ProcessBackend(Backend):
    """Backend with a pool of workers. `options` are arguments of the pool."""

    autoresets = True
    pool_type: Callable[..., WorkerPool]
    server: type[RoundServer]
    """Class that serves rounds in the workers."""

    def __init__(
        self,
        start_timeout: float,
        step_timeout: float | None = None,
        release_openmp: bool = True,
        rule: Rule | None = None,
        spare_envs: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        pool = self.pool = self.pool_type(start_timeout, step_timeout, **options)
        self._code = pool.code
        pool.spare_envs = spare_envs
        self._recycler = None if rule is None else Recycler(rule, self)
        self.recycles = rule is not None
        self._watchdog = Watchdog(step_timeout, pool.kill)
        self._ends_spinning = release_openmp
        self._spinning: SpinningThreads | None = None
        self._engaged: SpinningThreads | None = None
        self._answers: Answers
        self._requests: dict[int, tuple[WorkerHandle, EnvCall, Sequence[int]]] = {}
        """CALL frames without a reply, by frame number, with the ids of their envs."""
        self._number = 0
        self._warnings = WorkerWarnings()
        self._epoch = 0
        self._unsynced: set[WorkerHandle] = set()
        """Workers that have not answered the last SYNC frame. Their results belong to an interrupted call."""
        self._waits = REVIEW_WAITS
        self._last_wait = 0.0

    @property
    def workers(self) -> list[WorkerInfo]:
        return [info_of(worker) for worker in self.pool.serving]

    @property
    def moving(self) -> Collection[int]:
        return () if self._recycler is None else self._recycler.moving

    @property
    def own_stats(self) -> dict[str, Any]:
        recycled = {} if self._recycler is None else self._recycler.stats()
        return recycled if self._spinning is None else recycled | self._spinning.stats()

    @property
    def processes(self) -> list[Any]:
        return [getattr(worker, "process", None) for worker in self.pool.serving]

    def start(self, env_fns: Sequence[Callable[[], Any]], num_workers: int | None, eager: bool) -> list[EnvReport]:
        n = self._n = len(env_fns)
        self.num_workers = num_workers = num_workers or self.pool.default_num_workers(n, eager)
        self._eager = eager
        if eager:  # answers of other envs end waits early, so check for hangs after each wait
            self._waits = 1
        self.pool.open(self, num_workers, n, eager)
        if self._ends_spinning and not eager and is_enabled():
            self._spinning = SpinningThreads(num_workers)
        self._open()
        return self.pool.start(env_fns)

    def _open(self) -> None:
        """Prepare for workers, which are not started yet."""

    def server_args(self, worker: WorkerHandle) -> Any:
        """Return the arguments of `server` for a worker that starts."""

    def _build(self, layout: Layout) -> Arena:
        return Arena.build(layout, self._n)

    def _serve(self, worker: WorkerHandle) -> None:
        """Prepare for a worker that has just made its envs, or has received envs from another worker."""

    @abstractmethod
    def _send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        """Send operations (see `Backend.send`)."""

    @abstractmethod
    def _spin(self, done: Callable[[], bool]) -> bool:
        """Busy-wait, and return `done()`. May return False without a wait."""

    def _take_rows(self, worker: WorkerHandle, payload: bytes | bytearray) -> bytes | bytearray | memoryview:
        """Copy rows from an ANSWERS message to the arena. Return the encoded results that do not fit rows."""
        return payload

    def bind(self, layout: Layout) -> Arena:
        self._setup = self._code.dumps(layout)
        arena = self._build(layout)
        arena.owner[...] = self.pool.worker_of
        self.pool.worker_of = arena.owner
        self.arena, self._answers = arena, Answers(arena)
        self._status: Any = arena.status.data
        self._infos = InfoReader(arena.info, self.pool.worker_of)
        self._all_done = bytes([opcodes.DONE]) * self._n
        self._all_infos = bytes([opcodes.DONE_INFO]) * self._n
        for worker in self.pool.serving:
            self.set_up(worker)
        return arena

    def set_up(self, worker: WorkerHandle) -> None:
        """Let a worker that has made its envs serve rounds."""
        self._watchdog.discard(worker)
        self._serve(worker)
        self.pool.post(worker, messages.SETUP, 0, self._setup)

    def encode(
        self, ids: Sequence[int], ops: int | np.ndarray, actions: Any, payloads: Mapping[int, Any]
    ) -> Mapping[int, Any]:
        blobs: dict[int, bytes] = {}
        for i, payload in payloads.items():
            if id(payload) not in blobs:
                try:
                    blob = dumps(payload)
                    is_ours = b"__main__" in blob and self.pool.pickles  # workers do not run the script
                    blobs[id(payload)] = dumps_by_value(payload) if is_ours else blob
                except Exception as error:
                    text = f"the action or argument for env {i} cannot be sent to its worker: {error}"
                    raise TypeError(text) from error
        return {i: blobs[id(payload)] for i, payload in payloads.items()}

    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        if self._engaged is not None:
            self._engaged.before_round()
        self._send(ids, ops, payloads)
        if self.lost:
            self._answer_lost()

    def wait(self, done: Callable[[], bool] | None, deadline: float | None) -> float:
        begin = perf_counter()
        if done is None:  # only read arrived frames
            self.pool.handle_events(self.pool.events(None))
        elif not self._spin(done):
            self._sleep(done, deadline)
        waited = self._last_wait = perf_counter() - begin
        self._waits -= 1
        if not self._waits:
            self._review()
        return waited

    def _sleep(self, done: Callable[[], bool], deadline: float | None) -> None:
        pool, check_at = self.pool, self._watchdog.start()
        while not done():
            events = pool.events(check_at if deadline is None else min(check_at, deadline))
            if pool.closing:  # by another thread or a signal handler
                raise ClosedError(CLOSED_MEANWHILE)
            pool.handle_events(events)
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                return
            if now >= check_at:
                check_at = self._watchdog.check(self._unanswered())

    def _review(self) -> None:
        spinning = self._spinning
        if spinning is not None:
            if spinning.engaged:
                spinning.after_round()
            else:
                spinning.review(REVIEW_WAITS)
            self._engaged = spinning if spinning.engaged else None
        if self._eager and self._watchdog.is_due():
            self._watchdog.check(self._unanswered())
        self._waits = 1 if self._eager or self._engaged is not None else REVIEW_WAITS

    def _unanswered(self) -> dict[WorkerHandle, Sequence[int]]:
        called: dict[WorkerHandle, Sequence[int]] = {worker: worker.ids for worker, _, _ in self._requests.values()}
        called |= {worker: worker.ids for worker in self._unsynced if worker.alive}
        return called | {worker: ids for worker in self.pool.workers if (ids := self._pending(worker))}

    def take(self, ids: Sequence[int] | None) -> Taken:
        if not IN_ORDER:  # read the rows after the status bytes
            fence()
        if ids is None and not self._warnings:
            status = self._status.tobytes()
            if status == self._all_done:
                self.arena.status[...] = opcodes.IDLE
                return NO_EXTRAS
            if status == self._all_infos and (infos := self._infos.read(None)) is not None:
                self.arena.status[...] = opcodes.IDLE
                return Taken({}, infos)
        if self._warnings:
            self._warnings.show()
        status, extras = self._status.tobytes(), self._answers.extras
        i = status.find(opcodes.DONE_FINAL)
        while i >= 0:
            extras[i] = RESET_IN_ARENA
            i = status.find(opcodes.DONE_FINAL, i + 1)
        asked = range(self._n) if ids is None else ids
        if opcodes.DONE_EXTRA in status or opcodes.DONE_EXTRA_FINAL in status:  # an `Extra` may arrive later
            self._await_rest(asked)
        if opcodes.DONE_INFO not in status:
            return self._answers.take(ids)
        # Reread the status after each wait, because `_keep_infos` may change it.
        while (infos := self._infos.read([i for i in asked if self._status[i] == opcodes.DONE_INFO])) is None:
            self._await_rest(asked)
        return Taken(self._answers.take(ids).extras, infos)

    def _await_rest(self, ids: Sequence[int]) -> None:
        if missing := list(filter(self._lacks_rest, ids)):
            self._sleep(lambda: not any(map(self._lacks_rest, missing)), None)

    def resynchronise(self, deadline: float) -> None:
        pool = self.pool
        pool.resume()
        if self._recycler is not None:
            self._recycler.resynchronise()
            self._infos.assign(pool.worker_of)
            for worker in pool.serving:
                self._serve(worker)
        for worker in pool.workers:
            lost = [i for i in worker.hosted if i in self.lost]
            if worker.alive and lost:  # its restart was interrupted
                pool.kill(worker, None)
            elif not worker.alive and len(lost) < len(worker.hosted):
                self.on_loss(worker)
        for _, call, _ in self._requests.values():
            call.discarded = True
        self._requests = {}
        self._epoch += 1
        self._unsynced = {worker for worker in pool.workers if worker.alive}
        for worker in list(self._unsynced):
            counted = worker.line[FRAMES] + 1  # an interrupt may have left a counted frame unsent
            pool.request(worker, messages.SYNC, self._epoch, counted.to_bytes(8, "little"))
        self._sleep(lambda: not any(worker.alive for worker in self._unsynced), deadline)
        for worker in [worker for worker in self._unsynced if worker.alive]:
            pool.kill(worker, partial(unreturned, block=worker.ids, suspects=suspects_of(worker, worker.ids)))
        self._unsynced = set()
        self._answers.extras.clear()
        self.arena.status[...] = opcodes.IDLE

    def on_frame(self, worker: WorkerHandle, frame: Frame) -> None:
        if frame.kind == messages.SYNCED:
            if frame.number == self._epoch:
                self._unsynced.discard(worker)
        elif frame.kind in (messages.ANSWERS, messages.REPLY) and worker in self._unsynced:
            pass
        elif frame.kind == messages.ANSWERS:
            extras = self._take_rows(worker, frame.payload)
            for j, blob in self._code.loads(extras) if extras else ():
                parts = read_value(blob, i := worker.start + j, "step", self._code.unpack)
                self._answers.extras[i] = (
                    Extra(failure=parts) if isinstance(parts, Failure) else Extra.from_tuples(parts)
                )
        elif frame.kind == messages.INFO_SCHEMA:
            self._infos.learn(worker.index, frame.number, *self._code.loads(frame.payload))
        elif frame.kind == messages.REPLY:
            if (found := self._requests.pop(frame.number, None)) is not None:
                for j, blob in self._code.loads(frame.payload).items():
                    i = worker.start + j
                    found[1].found[i] = read_value(blob, i, found[1].op, self._code.unpack)
        elif frame.kind == messages.WARNING:
            self._warnings.append(self._code.loads(frame.payload) + advice(self._n, self.num_workers * len(worker.ids)))

    def call(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> EnvCall:
        blobs, call = self.encode(ids, 0, None, dict(zip(ids, args, strict=True))), EnvCall(ids, op)
        if self._recycler is not None and op == "set_env_attr":
            for i, (name, _) in zip(ids, args, strict=True):
                self._recycler.attributes.setdefault(i, {})[name] = blobs[i]
        for w in sorted({int(self.pool.worker_of[i]) for i in ids}):
            worker = self.pool.workers[w]
            self.request(worker, call, worker.own(blobs))
        return call

    def request(self, worker: WorkerHandle, call: EnvCall, blobs: Mapping[int, bytes]) -> None:
        """Send the encoded arguments of a call to a worker, by index of the env."""
        ids = [worker.start + j for j in blobs]
        if worker.alive:
            self._number += 1
            self._requests[self._number] = worker, call, ids
            self.pool.request(worker, messages.CALL, self._number, self._code.dumps((call.op, blobs)))
        else:
            self._fail(call, worker, ids)

    def _fail(self, call: EnvCall, worker: WorkerHandle, ids: Sequence[int]) -> None:
        call.found.update({i: died_failure(i, call.op, self.lost.get(i) or worker.death(i)) for i in ids})

    def on_loss(self, worker: WorkerHandle) -> None:
        # If a worker dies before its envs are made, the pool raises.
        if hasattr(self, "arena") and isinstance(worker.ready, list):
            pending = self._pending(worker)
            self._keep_infos(worker, pending)
            began = worker.line[DOING] in (A_ROUND, SENDING, ELSEWHERE)
            self.lost.update({i: worker.death(i) for i in worker.hosted})
            for i in pending:
                self._answers.put(i, Extra(failure=died_failure(i, "step", self.lost[i], began)))
        for number, (asked, call, ids) in list(self._requests.items()):
            if asked is worker:
                self._fail(call, worker, ids)
                del self._requests[number]

    def _keep_infos(self, worker: WorkerHandle, pending: Sequence[int]) -> None:
        """Copy an ended worker's infos, because a restarted worker gives schemas new numbers."""
        in_rows = [i for i in worker.hosted if self._status[i] == opcodes.DONE_INFO and i not in pending]
        for infos in self._infos.read(in_rows) or ():
            for i, info in infos.items():
                self._answers.put(i, Extra(info))
        self._infos.forget(worker.index)

    def _answer_lost(self) -> None:
        for i, error in self.lost.items():
            self._answers.fail(i, error, began=False)

    def _pending(self, worker: WorkerHandle) -> list[int]:
        return [i for i in worker.hosted if self._answers.busy(i) or self._lacks_rest(i)]

    def _lacks_rest(self, i: int) -> bool:
        if self._status[i] == opcodes.DONE_INFO:
            return self._infos.read([i]) is None
        extra_follows = self._status[i] in (opcodes.DONE_EXTRA, opcodes.DONE_EXTRA_FINAL)
        return extra_follows and i not in self._answers.extras

    def restart(self, env_id: int) -> Sequence[int]:
        worker = self.pool.workers[int(self.pool.worker_of[env_id])]
        new = None if self._recycler is None else self._recycler.restarts(worker)
        ids = worker.hosted
        if new is not None:
            self.assign(ids, new)
        else:
            try:
                self.pool.launch([worker])
                self.pool.await_ready([worker])
                self.set_up(worker)
            except BaseException:
                if worker.alive:
                    self.pool.kill(worker, None)
                raise
        for i in ids:  # keep the status bytes, which may announce earlier answers
            self.lost.pop(i, None)
        return ids

    def recycle(self) -> None:
        if self._recycler is not None:
            self._recycler.review()

    def move(self, ids: Sequence[int]) -> None:
        if self._recycler is not None:
            self._recycler.move(ids)

    def assign(self, ids: Sequence[int], worker: WorkerHandle) -> None:
        """Let a worker serve the envs `ids`."""
        self.pool.assign(ids, worker)
        self._infos.assign(self.pool.worker_of)
        self._serve(worker)

    def ended(self) -> set[int]:
        ended = {i for worker in self.pool.serving if not worker.alive or worker.seems_ended() for i in worker.hosted}
        return ended.union(self.lost)

    def end_wait(self) -> None:
        self.pool.end_wait()

    def close(self, timeout: float) -> list[str]:
        return self.pool.close(timeout)
