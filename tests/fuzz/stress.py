"""64 envs in 16 threads: rounds of some envs, resets, calls, envs that raise or hang, `close` by another thread.

Each row is checked against its env's episode, step and action, so that a lost, repeated or stale row is found. This
fuzzer is most useful on free-threaded Python. Timing decides the outcome, so a seed may not reproduce a finding.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import numpy as np
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.fuzz.driver import Program
from tests.fuzz.envs import Told
from vecenv import ClosedError, ThreadVectorEnv

N, THREADS = 64, 16
RAISES, HANGS = 998, 999
HANG = 1.0
"""Seconds after which an env that hangs is abandoned. It returns after twice as long, when nothing may use its row."""


class Broken(Exception):
    """The error of an env that was asked to raise."""


class Wild(Told):
    """Told, with actions that raise or hang, and an object in its infos."""

    def step(self, action: Any) -> Any:
        if action == RAISES:
            raise Broken(self.id)
        if action == HANGS:
            time.sleep(2 * HANG)
        *result, info = super().step(action)
        return *result, {**info, "self": {self.id}}


class Fuzz(Program):
    """The oracle: by env, the seed of the episode, the number of the step, and whether it may be stepped."""

    steps = 25
    patience = 120.0
    phases = (Phase.generate,)

    @initialize(wait_num=st.sampled_from([None, 1, 8]), hangs=st.booleans())
    def make(self, wait_num: int | None, hangs: bool) -> None:
        self.venv = ThreadVectorEnv(
            [partial(Wild, i, length=None) for i in range(N)],
            wait_num=wait_num,
            num_workers=THREADS,
            step_timeout=HANG if hangs else None,
        )
        self.hangs, self.seed = hangs, 0
        self.first, self.at = [0] * N, [0] * N
        self.sent: dict[int, int] = {}
        self.closed = False
        self.reset(list(range(N)))

    def close(self) -> None:
        if hasattr(self, "venv"):
            self.venv.close()

    def reset(self, ids: list[int]) -> None:
        self.seed += 1
        obs, infos = self.venv.reset(ids, seed=[self.seed + i for i in ids])
        for i, row, info in zip(ids, obs.tolist(), infos, strict=True):
            self.first[i], self.at[i] = self.seed + i, 0
            assert row == [i, self.seed + i, 0, -1], f"env {i} after its reset: {row}"
            assert info["env_id"] == i

    def undisturbed(self) -> list[int]:
        """The envs whose thread has nothing to do: a hung env of their block would fail them."""
        busy = {i * THREADS // N for i in self.venv.waiting_id}
        return [i for i in range(N) if i * THREADS // N not in busy]

    def receive(self) -> None:
        """One `recv`, whose rows and failures are taken off `sent`."""
        try:
            obs, _, _, _, infos = self.venv.recv()
            ids = [info["env_id"] for info in infos]
        except (Broken, TimeoutError) as error:
            partial_rows: Any = error.partial  # type: ignore[union-attr]
            ids, obs, infos = [], np.zeros((0, 4)), []
            if partial_rows is not None:
                ids, obs, infos = partial_rows.env_id.tolist(), partial_rows.obs, partial_rows.info
        for i, row, info in zip(ids, obs.tolist(), infos, strict=True):
            self.at[i] += 1
            assert row == [i, self.first[i], self.at[i], self.sent.pop(i)], f"env {i}: {row} is not step {self.at[i]}"
            assert (info["at"], info["self"]) == (self.at[i], {i}), f"the info of env {i}: {info}"
        for i in self.venv.failed_id:
            self.sent.pop(i, None)

    @rule(seed=st.integers(0, 2**20), share=st.floats(0.1, 1.0), wild=st.sampled_from([0, 0, 0.02, 0.1]))
    def round(self, seed: int, share: float, wild: float) -> None:
        if self.closed:
            return
        rng = np.random.default_rng(seed)
        ready = [i for i in self.venv.ready_id if rng.random() < share]
        if ready:
            actions = rng.integers(0, 900, len(ready))
            odd = rng.random(len(ready)) < wild
            actions[odd] = np.where(rng.random(odd.sum()) < 0.1, HANGS, RAISES) if self.hangs else RAISES
            self.venv.send(actions, ready)
            self.sent |= dict(zip(ready, actions.tolist(), strict=True))
        for _ in range(rng.integers(0, 3) if self.venv.engine.is_async else 9):
            if self.venv.waiting_id:
                self.receive()

    @rule(seed=st.integers(0, 2**20))
    def reset_some(self, seed: int) -> None:
        if not self.closed:
            rng, failed = np.random.default_rng(seed), set(self.venv.failed_id)
            if ids := [i for i in self.undisturbed() if i in failed or rng.random() < 0.2]:
                self.reset(ids)

    @rule(value=st.integers())
    def call(self, value: int) -> None:
        if not self.closed and (ids := [i for i in self.undisturbed() if i in self.venv.ready_id]):
            assert self.venv.call("echo", value, id=ids) == [(i, value) for i in ids]

    @rule()
    def finish(self) -> None:
        while not self.closed and self.venv.waiting_id:
            self.receive()
        assert self.closed or not self.sent, f"lost: {self.sent}"

    @rule(microseconds=st.integers(0, 5000), often=st.integers(0, 9))
    def close_meanwhile(self, microseconds: int, often: int) -> None:
        if self.closed or often:
            return
        self.finish()
        self.closed = True

        def close() -> None:
            time.sleep(microseconds / 1e6)
            self.venv.close()

        thread = threading.Thread(target=close)
        thread.start()
        try:
            while True:
                if self.venv.failed_id:
                    self.venv.reset(self.venv.failed_id)
                self.venv.step([0] * N, list(range(N)))
                while self.venv.waiting_id:
                    self.venv.recv()
        except ClosedError:
            thread.join()
