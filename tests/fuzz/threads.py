"""Other threads call `alive`, `stats`, `waiting_id` and `close` at random moments: no call is harmed.

Timing decides the outcome, so findings are not shrunk, and a seed may not reproduce a finding.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from functools import partial
from typing import Any, NamedTuple

import psutil
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.fuzz.driver import Program
from tests.fuzz.envs import Told
from tests.support.threads import beside
from vecenv import ClosedError, DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv

N = 4
ASKED = {
    "alive": lambda venv: venv.alive(),
    "stats": lambda venv: venv.stats(),
    "waiting": lambda venv: venv.waiting_id,
}


class Slow(Told):
    """Takes at least `pause` seconds for a step."""

    def __init__(self, id: int, pause: float) -> None:
        super().__init__(id)
        self.pause = pause

    def step(self, action: Any) -> Any:
        time.sleep(self.pause)
        return super().step(action)


class InFlight(NamedTuple):
    """The envs in flight, until a time of `time.monotonic`."""

    ids: list[int]
    until: float


class Fuzz(Program):
    """Each rule is a few rounds with another thread beside them.

    `in_flight` says what the other thread may expect, or is None if a change is in progress.
    """

    steps = 6
    patience = 30.0
    phases = (Phase.generate,)

    @initialize(
        backend=st.sampled_from([DummyVectorEnv, ThreadVectorEnv, ShmemVectorEnv, SubprocVectorEnv]),
        n=st.integers(1, N),
        workers=st.integers(1, N),
        wait_num=st.sampled_from([None, None, 1]),
        pause=st.sampled_from([0.0, 0.0, 0.001]),
    )
    def make(self, backend: Any, n: int, workers: int, wait_num: int | None, pause: float) -> None:
        options = {} if backend is DummyVectorEnv else {"num_workers": min(n, workers)}
        self.n, self.interval, self.before = n, sys.getswitchinterval(), set(psutil.Process().children())
        sys.setswitchinterval(1e-5)
        self.pause = pause
        self.in_flight: InFlight | None = None
        self.venv = backend([partial(Slow, i, pause) for i in range(n)], wait_num=wait_num, **options)
        self.pids = [worker.pid for worker in self.venv.engine.backend.workers]
        self.closed = False

    def close(self) -> None:
        if hasattr(self, "venv"):
            sys.setswitchinterval(self.interval)
            self.venv.close()

    def rounds(self, turns: int, seed: int) -> None:
        """Rounds of every kind, with rows that are checked."""
        venv, n = self.venv, self.n
        obs, _ = venv.reset(seed=seed)
        assert obs.tolist() == [[i, seed + i, 0, -1] for i in range(n)], f"after reset: {obs.tolist()}"
        at = [0] * n
        idle = self.in_flight = InFlight([], math.inf)
        for turn in range(turns):
            ids = [i for i in range(n) if (i + turn) % 3 or n == 1]
            if turn % 4 == 3:
                assert venv.call("echo", turn) == [(i, turn) for i in range(n)], "echo"
            elif turn % 4 == 2:
                ids = list(range(n))
            self.in_flight = None
            soonest = time.monotonic() + self.pause  # no env can have finished its step before
            venv.send([turn] * len(ids), ids)
            self.in_flight = InFlight(ids, soonest)
            waiting = set(ids)
            while waiting:
                obs, *_, info = venv.recv()
                for row, each in zip(obs.tolist(), info, strict=True):
                    i = each["env_id"]
                    at[i] += 1
                    waiting.remove(i)
                    assert row == [i, seed + i, at[i], turn], f"env {i} in turn {turn}: {row}, expected step {at[i]}"
                    assert each["at"] == at[i], f"the info of env {i} is {each}"
            self.in_flight = idle
        self.in_flight = None

    @rule(
        asked=st.lists(st.sampled_from(list(ASKED)), min_size=1, max_size=3),
        turns=st.integers(5, 60),
        seed=st.integers(0, 99),
    )
    def ask(self, asked: list[str], turns: int, seed: int) -> None:
        if self.closed:
            return
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                for name in asked:
                    before = self.in_flight
                    value: Any = ASKED[name](self.venv)  # type: ignore[no-untyped-call]
                    assert name != "alive" or value == [True] * self.n, f"alive() is {value}"
                    is_known = before is not None and time.monotonic() < before.until and self.in_flight is before
                    if name == "waiting" and before is not None and is_known:
                        assert value == before.ids, f"waiting_id is {value}, in flight are {before.ids}"

        thread, errors = beside(ask)
        try:
            self.rounds(turns, seed)
        finally:
            over.set()
            thread.join()
        if errors:
            raise errors[0]
        pids = [worker.pid for worker in self.venv.engine.backend.workers]
        assert pids == self.pids, f"the workers were {self.pids} and are {pids}"
        assert self.venv.stats()["restarts"] == 0, "a worker was started again"

    @rule(microseconds=st.integers(0, 20_000), seed=st.integers(0, 99))
    def close_meanwhile(self, microseconds: int, seed: int) -> None:
        if self.closed:
            return
        self.closed = True

        def close() -> None:
            time.sleep(microseconds / 1e6)
            self.venv.close()

        thread, errors = beside(close)
        try:
            while True:
                self.rounds(10, seed)
        except ClosedError:
            pass
        thread.join()
        if errors:
            raise errors[0]
        left = {child for child in psutil.Process().children() if child.pid in self.pids and child.is_running()}
        _, left = psutil.wait_procs(left - self.before, timeout=3)
        assert not left, f"close() has left {left}"
