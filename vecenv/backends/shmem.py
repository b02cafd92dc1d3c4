"""ShmemBackend: worker processes that write into an arena in shared memory.

    parent                                        worker
    ------                                        ------
    write actions, then the post boxes
    go.release()                        ->        (spins a little, then sleeps on `go`)
    (spins a little, then polls)                  steps the envs of its block, writes rows
                                        <-        writes the post boxes, then the bell (an eventfd)
                                        <-        ANSWERS frame with the extras, only if there are any

Nothing is pickled and no frame is sent in a round whose infos are empty. A go or a bell is only a hint to look at the post boxes, so one
too many does no harm and none can get lost: both are counted by the kernel.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import pickle
import platform
import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vecenv.backends import arena as box
from vecenv.backends import channel as ch
from vecenv.backends.arena import Arena, anonymous_file, arena_bytes, reserve
from vecenv.backends.channel import Channel, Frame
from vecenv.backends.control import CALLS
from vecenv.backends.failure import Failure
from vecenv.backends.host import EnvHost, EnvReport
from vecenv.backends.launch import Descriptor
from vecenv.backends.layout import Layout
from vecenv.backends.process import ProcessBackend, Worker
from vecenv.backends.rows import Extra
from vecenv.backends.worker import Boot, Server

WORKER_SPINS = 200
"""How often a worker looks for its next round, giving the CPU away each time, before it sleeps."""
PARENT_SPINS = 200
"""The same for the parent and the end of a round."""
LONG_ROUND = 1e-3
"""Rounds that take longer (seconds) are not worth spinning for: the parent sleeps at once."""

# x86 lets a store be seen only after the stores before it; elsewhere a system call and the interpreter lock taken anew order them.
_fence: Callable[[], None] = (lambda: None) if platform.machine() in ("x86_64", "AMD64") else os.sched_yield


@dataclass
class Link:
    """What a worker shares with the parent besides its channel."""

    memory: Descriptor
    bell: Descriptor
    go: Any
    envs: int


class ShmemServer(Server):
    """Serves rounds from the post boxes."""

    def __init__(self, boot: Boot, host: EnvHost, link: Channel) -> None:
        super().__init__(boot, host, link)
        self._shared: Link = boot.link
        self._handled = 0
        self._payloads: dict[int, bytes] = {}

    def bind(self, layout: Layout) -> None:
        self._memory = mmap.mmap(self._shared.memory.fd, arena_bytes(layout, self._shared.envs))
        block = Arena.build(layout, self._shared.envs, self._memory).block(self.first_id, self.first_id + self.count)
        self._block = block
        self._mail = memoryview(block.mail)
        self._all_step = bytes([box.STEP]) * self.count
        self._all_done = bytes([box.DONE]) * self.count
        self.host.bind(layout, block)

    def serve(self) -> None:
        acquire = self._shared.go._semlock.acquire
        sched_yield = os.sched_yield
        while True:
            for _ in range(WORKER_SPINS):
                if acquire(False):
                    break
                sched_yield()
            else:
                acquire(True)
            if self.line[CALLS] != self._handled and self._read_frame():
                return
            self.timed(self._round)

    def _read_frame(self) -> bool:
        """Handle the next frame; returns True if it was CLOSE."""
        frame = self.link.read()
        self._handled += 1
        if frame.kind == ch.PAYLOADS:
            self._payloads.update(pickle.loads(frame.payload))
            return False
        return self.handle(frame)

    def _round(self) -> None:
        """Do what the post boxes ask for."""
        asked = self._mail.tobytes()
        if asked == self._all_step and not self.eager:
            assert self._block.action is not None
            extras = self.host.step_all(list(self._block.action.copy()))
            if extras:
                self._publish(range(self.count), extras)
            else:
                _fence()
                self._mail[:] = self._all_done
                self._ring()
            return
        extras = {}
        done = []
        for j, op in enumerate(asked):
            if not box.IDLE < op < box.DONE:
                continue
            done.append(j)
            if (extra := self._run(j, op)) is not None:
                extras[j] = extra
            if self.eager:
                self._publish(done, extras)
                extras, done = {}, []
        if done:
            self._publish(done, extras)

    def _run(self, j: int, op: int) -> Extra | None:
        if op == box.STEP:
            assert self._block.action is not None
            return self.host.step(j, self._block.action[j].copy())
        if op == box.RESET:
            return self.host.reset(j, {})
        while j not in self._payloads:
            self._read_frame()
        name = "step" if op == box.STEP_OBJECT else "reset"
        payload = self.load_payload(j, name, self._payloads.pop(j))
        if isinstance(payload, Failure):
            return Extra(failure=payload)
        return self.host.step(j, payload) if op == box.STEP_OBJECT else self.host.reset(j, payload)

    def _publish(self, done: Any, extras: dict[int, Extra]) -> None:
        """Announce the answers first, then send the extras: the parent reads them while we write."""
        payload = self.extras_payload(extras) if extras else b""
        _fence()
        for j in done:
            self._mail[j] = box.DONE_EXTRA if j in extras else box.DONE
        self._ring()
        if payload:
            self.link.write(ch.ANSWERS, 0, payload)

    def _ring(self) -> None:
        os.eventfd_write(self._shared.bell.fd, 1)


class ShmemBackend(ProcessBackend):
    """Workers on shared memory; see the module for how a round travels."""

    server = ShmemServer

    def start(self, env_fns: Sequence[Callable[[], Any]], num_workers: int, eager: bool) -> list[EnvReport]:
        self._memory_fd = self.own_fd(anonymous_file("vecenv-arena"))
        self._bell = self.own_fd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        self._poller.register(self._bell, select.POLLIN)
        self._go: list[Any] = []
        self._round_time = 0.0
        return super().start(env_fns, num_workers, eager)

    def _link(self, worker: Worker) -> Link:
        go = multiprocessing.get_context(self._method).Semaphore(0)
        self._go[worker.index : worker.index + 1] = [go]
        self._release = [semaphore._semlock.release for semaphore in self._go]
        return Link(Descriptor(self._memory_fd), Descriptor(self._bell), go, len(self._makers))

    def _reserve(self, layout: Layout) -> Arena:
        n = len(self._makers)
        size = arena_bytes(layout, n)
        self._memory = reserve(self._memory_fd, size, f"{n} envs of {size / n / 2**20:.2f} MiB")
        self._uniform = {op: bytes([op]) * n for op in (box.STEP, box.RESET)}
        return Arena.build(layout, n, self._memory)

    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        if payloads:
            self._send_payloads(payloads)
        _fence()
        if ids is None and isinstance(ops, int) and ops in self._uniform:
            self._mail[:] = self._uniform[ops]
            for release in self._release:
                release()
            return
        rows = slice(None) if ids is None else ids
        self.arena.mail[rows] = ops
        for w in set(self._worker_of[rows].tolist()):
            self._release[w]()

    def _send_payloads(self, payloads: Mapping[int, Any]) -> None:
        for worker in self.workers:
            mine = {i - worker.start: payload for i, payload in payloads.items() if i in worker.ids}
            if mine and worker.alive:
                self._post(worker, ch.PAYLOADS, 0, pickle.dumps(mine))

    def _wake(self, worker: Worker) -> None:
        self._release[worker.index]()

    def wait(self, done: Callable[[], bool], deadline: float | None) -> None:
        begin = time.perf_counter()
        if self._round_time < LONG_ROUND:
            sched_yield = os.sched_yield
            for _ in range(PARENT_SPINS):
                if done():
                    break
                sched_yield()
        if not done():
            self.poll_until(done, deadline)
        self._round_time += 0.1 * (time.perf_counter() - begin - self._round_time)

    def _on_signal(self, fd: int) -> None:
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            pass

    def take(self, ids: Any) -> dict[int, Extra]:
        self._await_extras(range(self._n) if ids is None else ids)
        return super().take(ids)

    def _await_extras(self, ids: Any) -> None:
        """The post boxes are filled before the extras are sent: wait for those that are still on their way."""
        if self._mail.tobytes().count(box.DONE_EXTRA) == 0:
            return
        missing = [i for i in ids if self._mail[i] == box.DONE_EXTRA]
        self.poll_until(lambda: all(i in self._extras for i in missing), None)

    def _on_answers(self, worker: Worker, frame: Frame) -> None:
        late = {i - worker.start for i in worker.ids if self._mail[i] == box.DONE_EXTRA and i not in self._extras}
        self._load_extras(worker, frame.payload, late)

    def nudge(self) -> None:
        """Say again that there is something in the post boxes, after `send` was interrupted."""
        for release in self._release:
            release()
