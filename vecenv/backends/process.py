"""ProcessBackend: what the backends with worker processes share of rounds and calls."""

from __future__ import annotations

import pickle
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle

from vecenv.backends.host.failure import Failure, died_failure, unreadable
from vecenv.backends.host.row_writer import RENEWED, Extra
from vecenv.backends.ipc import messages, opcodes
from vecenv.backends.ipc.control_block import A_ROUND, DOING, NOTHING, PROGRESS, SENDING
from vecenv.backends.ipc.messages import Frame
from vecenv.backends.ipc.serialization import dumps
from vecenv.backends.memory.arena import Arena
from vecenv.backends.memory.layout import Layout
from vecenv.backends.pool.requests import Call, Request
from vecenv.backends.pool.worker_handle import WorkerProcess
from vecenv.backends.pool.worker_pool import Workers
from vecenv.backends.shield import shield
from vecenv.caller_warnings import warn_caller


class ProcessBackend(Workers):
    """Blocks of envs in worker processes, and their arena."""

    autoresets = True
    _bound = False
    _noted = False
    _number = 0
    """Of the last request."""

    def bind(self, layout: Layout) -> Arena:
        self._layout = layout
        self._n = len(self._makers)
        self.arena = self._reserve(layout)
        self._status: Any = self.arena.status.data
        self._all_done = bytes([opcodes.DONE]) * self._n
        self._bound = True
        for worker in self.workers:
            self._post_frame(worker, messages.SETUP, 0, pickle.dumps(layout))
        return self.arena

    @abstractmethod
    def _reserve(self, layout: Layout) -> Arena:
        """The parent's arena."""

    # Rounds.

    def encode(self, payloads: Mapping[int, Any]) -> dict[int, bytes]:
        # What is one object for several envs is pickled once, and a worker gets it once: each env unpickles its own.
        blobs: dict[int, bytes] = {}
        for i, payload in payloads.items():
            if id(payload) not in blobs:
                try:
                    blobs[id(payload)] = self._pickled(payload)
                except Exception as error:
                    told = f"the action or argument for env {i} cannot be sent to its worker: {error}"
                    raise TypeError(told) from error
        return {i: blobs[id(payload)] for i, payload in payloads.items()}

    def _pickled(self, payload: Any) -> bytes:
        blob = dumps(payload)
        if b"__main__" in blob and not self._forked:
            return cloudpickle.dumps(payload)  # by value: workers do not run the user's script
        return blob

    def take(self, ids: Sequence[int] | None) -> dict[int, Extra]:
        if ids is None and self._status.tobytes() == self._all_done and not self._notes:
            self.arena.status[...] = opcodes.IDLE
            return {}
        return super().take(ids)

    def finish(self, ids: Sequence[int] | None) -> None:
        if self._notes:
            self._show_notes()
        status = self._status.tobytes()
        i = status.find(opcodes.DONE_FINAL)
        while i >= 0:
            self._extras[i] = RENEWED
            i = status.find(opcodes.DONE_FINAL, i + 1)
        if opcodes.DONE_EXTRA in status or opcodes.DONE_EXTRA_FINAL in status:  # the extras may still be on their way
            asked = range(self._n) if ids is None else ids
            missing = [i for i in asked if self._lacks_extra(i)]
            self.poll_until(lambda: all(i in self._extras for i in missing), None)

    def _show_notes(self) -> None:
        """Warn of the first note that ever came: other workers say the same."""
        note = self._notes[0]
        self._notes.clear()
        if not self._noted:
            self._noted = True  # shown here, where a warning that is turned into an exception does no harm
            warn_caller(note)

    def _load_extras(self, worker: WorkerProcess, payload: bytes, expected: set[int]) -> None:
        """Take the extras of a worker's round, of envs among `expected`. One that cannot be read fails its env."""
        try:
            extras = pickle.loads(payload)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if len(expected) > 1:
                self._ask_again(worker, {worker.start + j for j in expected})
                return
            extras = {j: Extra(failure=unreadable(error, worker.start + j, "step")) for j in expected}
        for j in expected & extras.keys():
            self._extras[worker.start + j] = extras[j]
            for request in worker.requests.values():
                request.extras_of.discard(worker.start + j)

    def _ask_again(self, worker: WorkerProcess, ids: set[int]) -> None:
        """Have the extras of these envs sent again, each pickled alone; until then they are still on their way."""
        for request in worker.requests.values():
            ids -= request.extras_of
        self._request(worker, messages.RESEND, b"").extras_of = ids

    def _on_reply(self, worker: WorkerProcess, frame: Frame) -> None:
        request = worker.requests.pop(frame.number)
        request.reply = frame.payload
        if request.extras_of:
            extras = request.values("step")
            for i in request.extras_of:
                extra = extras[i]
                self._extras[i] = Extra(failure=extra) if isinstance(extra, Failure) else extra

    def review(self, waited: float) -> None:
        if self._placement is not None:
            self._placement.look(waited, self.workers)
        if self._eager and self.watchdog.is_due():  # others get on, so nobody waits for long enough to look
            self.watchdog.look(self._owing())

    # Calls.

    def _request(self, worker: WorkerProcess, kind: int, payload: bytes) -> Request:
        """Post a frame that the worker will reply to; settled at once where it has ended."""
        request = Request(worker.start)
        with shield:
            if worker.alive:
                self._number += 1
                worker.requests[self._number] = request
                self._post(worker, kind, self._number, payload)
            else:
                request.lost = self._reasons(worker)
        return request

    def ask(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> Call:
        blobs = self.encode(dict(zip(ids, args, strict=True)))
        payloads = []
        for w in sorted({int(self._worker_of[i]) for i in ids}):
            worker = self.workers[w]
            payloads.append((worker, pickle.dumps((op, worker.own(blobs)))))
        return Call(ids, op, [self._request(worker, messages.CALL, payload) for worker, payload in payloads])

    def await_answers(self, asked: Call, deadline: float | None) -> bool:
        def settled() -> bool:
            return all(request.is_settled for request in asked.requests)

        def owing() -> list[WorkerProcess]:
            return [worker for worker in self.workers if any(r in asked.requests for r in worker.requests.values())]

        self.poll_until(settled, deadline, owing)
        return settled()

    def answers(self, asked: Call) -> list[Any | Failure]:
        values: dict[int, Any] = {}
        for request in asked.requests:
            values |= request.values(asked.op)
        return [values[i] for i in asked.ids]

    # The end of a worker.

    def _answer_lost(self) -> None:
        """Answer for those that were asked though their worker had ended: it was not seen before the round was sent."""
        for i, error in self.lost.items():
            if opcodes.IDLE < self._status[i] < opcodes.DONE:
                self.answer(i, Extra(failure=died_failure(i, "step", error, began=False)))

    def _on_loss(self, worker: WorkerProcess) -> None:
        # If it died while the vector env was made or started again, that fails.
        if self._bound and isinstance(worker.ready, list) and not self._closing:
            self._note_loss(worker)
        for request in worker.requests.values():
            request.lost = self._reasons(worker)
        worker.requests.clear()

    def _note_loss(self, worker: WorkerProcess) -> None:
        """The envs of a worker are lost, and what they were asked for is answered by that."""
        pending = self._pending(worker)
        line = self.control.line(worker.index)
        began = line[DOING] in (A_ROUND, SENDING)
        running = None if line[DOING] in (NOTHING, SENDING) else worker.start + line[PROGRESS] % len(worker.ids)
        idle = "sending what its envs returned" if line[DOING] == SENDING else "idle"
        for i in worker.ids:
            self.lost[i] = worker.reason.told_to(i) if worker.reason is not None else worker.death(i, running, idle)
        for i in pending:
            self.answer(i, Extra(failure=died_failure(i, "step", self.lost[i], began)))

    def _reasons(self, worker: WorkerProcess) -> dict[int, BaseException]:
        """Why the envs of a worker are lost."""
        return {i: self.lost[i] for i in worker.ids if i in self.lost}

    def _pending(self, worker: WorkerProcess) -> list[int]:
        return [i for i in worker.ids if opcodes.IDLE < self._status[i] < opcodes.DONE or self._lacks_extra(i)]

    def _lacks_extra(self, i: int) -> bool:
        """Whether the env has answered, but for an extra that is still on its way."""
        return self._status[i] in (opcodes.DONE_EXTRA, opcodes.DONE_EXTRA_FINAL) and i not in self._extras

    def restart(self, env_id: int) -> None:
        worker = self.workers[int(self._worker_of[env_id])]
        if not worker.alive:
            self._start_again(worker)
        for i in worker.ids:  # what they had answered before stays to be taken
            self.lost.pop(i, None)

    def _start_again(self, worker: WorkerProcess) -> None:
        """Until it serves, or nothing is left of it."""
        try:
            self._launch(worker, self._registered())
            self._await_ready([worker])
            self._post_frame(worker, messages.SETUP, 0, pickle.dumps(self._layout))
        except BaseException:
            if worker.alive:
                self.kill(worker, None)
            raise
