"""Other threads call `alive`, `stats`, `waiting_id` and `close` at random moments, and envs raise or hang.

Each row is checked against its env's episode, step and action, so that a lost, repeated or stale row is found. `Stress`
has 64 envs in 16 threads, and is most useful on free-threaded Python. Timing decides the outcome, so findings are not
shrunk, and a seed may not reproduce a finding.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import psutil
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.fuzz.driver import SMALL, Program
from tests.fuzz.envs import Told
from tests.support.threads import beside
from vecenv import ClosedError, DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv

RAISES, HANGS = 998, 999
HANG = 1.0
"""Seconds after which an env that hangs is abandoned. It returns after twice as long, when nothing may use its row."""
ASKED = {
    "alive": lambda venv: venv.alive(),
    "stats": lambda venv: venv.stats(),
    "waiting": lambda venv: venv.waiting_id,
}


class Broken(Exception):
    """The error of an env that was asked to raise."""


class Wild(Told):
    """Told, with actions that raise or hang, steps of at least `pause` seconds, and a set in its infos."""

    def __init__(self, id: int, pause: float) -> None:
        super().__init__(id, length=None)
        self.pause = pause

    def step(self, action: Any) -> Any:
        if action == RAISES:
            raise Broken(self.id)
        time.sleep(2 * HANG if action == HANGS else self.pause)
        *result, info = super().step(action)
        return *result, {**info, "self": {self.id}}


class InFlight(NamedTuple):
    """The envs in flight, until a time of `time.monotonic`."""

    ids: list[int]
    until: float


IDLE = InFlight([], math.inf)
IS_OPEN = precondition(lambda self: not self.closed)


class Fuzz(Program):
    """The oracle: for each env the seed of its episode, the number of its step, and the action that was `sent`.

    `in_flight` says what another thread may expect of `waiting_id`, or is None if that is open.
    """

    steps = 8
    patience = 120.0
    phases = (Phase.generate,)
    backends: ClassVar[Any] = (DummyVectorEnv, ThreadVectorEnv, ShmemVectorEnv, SubprocVectorEnv)
    sizes: ClassVar[Any] = (range(1, 5), range(1, 5))
    """Numbers of envs and of workers."""

    @initialize(data=st.data())
    def make(self, data: Any) -> None:
        def draw(*values: Any) -> Any:
            return data.draw(st.sampled_from(values))

        backend, self.n = draw(*self.backends), draw(*self.sizes[0])
        self.hangs, pause = backend is ThreadVectorEnv and draw(False, True), draw(0.0, 0.0, 0.001)
        options: dict[str, Any] = {"wait_num": draw(None, None, 1, min(self.n, 8))}
        options |= {} if backend is DummyVectorEnv else {"num_workers": min(self.n, draw(*self.sizes[1]))}
        options |= {"step_timeout": HANG} if self.hangs else {}
        self.interval, self.before = sys.getswitchinterval(), set(psutil.Process().children())
        sys.setswitchinterval(1e-5)
        self.venv, self.pause = backend([partial(Wild, i, pause) for i in range(self.n)], **options), pause
        self.workers = self.venv.engine.backend.workers
        self.pids = [worker.pid for worker in self.workers]
        self.seed, self.first, self.at = 0, [0] * self.n, [0] * self.n
        self.sent: dict[int, int] = {}
        self.in_flight: InFlight | None = IDLE
        self.closed = False
        self.reset(list(range(self.n)))

    def close(self) -> None:
        if hasattr(self, "venv"):
            sys.setswitchinterval(self.interval)
            self.venv.close()

    def reset(self, ids: list[int]) -> None:
        self.seed += 1
        self.in_flight = None
        obs, infos = self.venv.reset(ids, seed=[self.seed + i for i in ids])
        for i, row, info in zip(ids, obs.tolist(), infos, strict=True):
            self.first[i], self.at[i] = self.seed + i, 0
            assert row == [i, self.seed + i, 0, -1], f"env {i} after its reset: {row}"
            assert info["env_id"] == i
        self.in_flight = None if self.sent else IDLE

    def undisturbed(self) -> list[int]:
        """Return the envs whose worker has nothing to do: a hung env of their block would fail them."""
        waiting = set(self.venv.waiting_id)
        return sorted(i for worker in self.workers if not waiting & set(worker.ids) for i in worker.ids)

    def receive(self) -> None:
        """Receive once, and take the rows and failures off `sent`."""
        try:
            obs, _, _, _, infos = self.venv.recv()
        except (Broken, TimeoutError) as error:
            rows: Any = error.partial  # type: ignore[union-attr]
            obs, infos = (np.zeros((0, 4)), []) if rows is None else (rows.obs, rows.info)
        for row, info in zip(obs.tolist(), infos, strict=True):
            i = info["env_id"]
            self.at[i] += 1
            assert row == [i, self.first[i], self.at[i], self.sent.pop(i)], f"env {i}: {row} is not step {self.at[i]}"
            assert (info["at"], info["self"]) == (self.at[i], {i}), f"the info of env {i}: {info}"
        for i in self.venv.failed_id:
            self.sent.pop(i, None)

    def send(self, rng: np.random.Generator, share: float, wild: float = 0) -> None:
        """Send actions to some of the ready envs, and receive some rows, or all if the vector env is synchronous."""
        ready = [i for i in self.venv.ready_id if rng.random() < share]
        if ready:
            actions = rng.integers(0, 900, len(ready))
            odd = rng.random(len(ready)) < wild
            actions[odd] = np.where(rng.random(odd.sum()) < 0.1, HANGS, RAISES) if self.hangs else RAISES
            known = self.in_flight is IDLE and not wild
            self.in_flight, soonest = None, time.monotonic() + self.pause  # no env can have finished its step before
            self.venv.send(actions, ready)
            self.sent |= dict(zip(ready, actions.tolist(), strict=True))
            self.in_flight = InFlight(ready, soonest) if known else None
        for _ in range(rng.integers(0, 3) if self.venv.engine.is_async else 9):
            if self.venv.waiting_id:
                self.receive()
        self.in_flight = None if self.sent else IDLE

    @IS_OPEN
    @rule(seed=SMALL, share=st.floats(0.1, 1.0), wild=st.sampled_from([0, 0, 0.02, 0.1]), count=st.integers(1, 9))
    def rounds(self, seed: int, share: float, wild: float, count: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(count):
            self.send(rng, share, wild)

    @IS_OPEN
    @rule(seed=SMALL, share=st.floats(0, 1))
    def reset_some(self, seed: int, share: float) -> None:
        rng, failed = np.random.default_rng(seed), set(self.venv.failed_id)
        if ids := [i for i in self.undisturbed() if i in failed or rng.random() < share]:
            self.reset(ids)

    @IS_OPEN
    @rule(value=st.integers())
    def call(self, value: int) -> None:
        if ids := [i for i in self.undisturbed() if i in self.venv.ready_id]:
            assert self.venv.call("echo", value, id=ids) == [(i, value) for i in ids]

    @rule()
    def finish(self) -> None:
        while not self.closed and self.venv.waiting_id:
            self.receive()
        assert self.closed or not self.sent, f"lost: {self.sent}"
        self.in_flight = IDLE

    @IS_OPEN
    @rule(asked=st.sets(st.sampled_from(list(ASKED)), min_size=1), count=st.integers(5, 60), seed=SMALL)
    def ask(self, asked: set[str], count: int, seed: int) -> None:
        """Another thread asks while envs step. No round is harmed, and no worker is started again."""
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                for name in asked:
                    before = self.in_flight
                    value: Any = ASKED[name](self.venv)  # type: ignore[no-untyped-call]
                    assert name != "alive" or self.hangs or value == [True] * self.n, f"alive() is {value}"
                    is_known = before is not None and time.monotonic() < before.until and self.in_flight is before
                    if name == "waiting" and before is not None and is_known:
                        assert value == before.ids, f"waiting_id is {value}, in flight are {before.ids}"

        thread, errors = beside(ask)
        try:
            self.rounds(seed, 0.7, 0, count)
            self.call(seed)
        finally:
            over.set()
            thread.join()
        if errors:
            raise errors[0]
        assert self.hangs or [worker.pid for worker in self.workers] == self.pids, "a worker was replaced"
        assert self.hangs or self.venv.stats()["restarts"] == 0, "a worker was started again"

    @IS_OPEN
    @rule(microseconds=st.integers(0, 20_000), often=st.integers(0, 3))
    def close_meanwhile(self, microseconds: int, often: int) -> None:
        """Another thread closes the vector env while envs step. No call hangs, and no process is left."""
        if often:
            return
        self.finish()
        self.closed = True

        def close() -> None:
            time.sleep(microseconds / 1e6)
            self.venv.close()

        thread, errors = beside(close)
        try:
            while True:
                self.reset(list(range(self.n)))
                self.send(np.random.default_rng(0), 1.0)
                while self.venv.waiting_id:
                    self.receive()
        except ClosedError:
            pass
        thread.join()
        if errors:
            raise errors[0]
        left = {child for child in psutil.Process().children() if child.pid in self.pids and child.is_running()}
        _, left = psutil.wait_procs(left - self.before, timeout=30)
        assert not left, f"close() has left {left}"


class Stress(Fuzz):
    """Many envs in many threads."""

    steps = 25
    backends = (ThreadVectorEnv,)
    sizes = ((64,), (16,))
