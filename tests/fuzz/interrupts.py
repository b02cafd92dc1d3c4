"""KeyboardInterrupt at any moment of any call: no later call hangs, and after `reset` all rows are right.

Most programs raise the interrupt at the k-th moment of a call at which Python looks for signals, and sometimes a second
interrupt later. Such a program can be repeated and shrunk. Other programs send a signal to all processes, as Ctrl-C
does. Signals and calls of worker processes depend on the machine, so their findings may not be repeatable.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from collector import SyncDataCollector
from tests.fuzz.driver import SMALL, Program
from tests.fuzz.envs import Told, normed
from tests.support.coroutine_envs import CoroutineVectorEnv
from tests.support.interrupts import call_with_signal, interrupted
from tests.support.leaky import always, await_new_worker
from vecenv import (
    DummyVectorEnv,
    EnvCreator,
    GymnasiumVectorEnv,
    ShmemVectorEnv,
    SubprocVectorEnv,
    ThreadVectorEnv,
    TransformedVectorEnv,
    VectorEnvNormObs,
)
from vecenv.facades.to_sb3 import SB3VecEnv
from vecenv.transforms import CatFrames, Compose, StepCounter

KINDS = ["plain", "objects", "norm", "transforms", "creator", "gymnasium", "sb3", "collector"]
BACKENDS: dict[str, Any] = {
    "dummy": DummyVectorEnv,
    "thread": ThreadVectorEnv,
    "coroutines": CoroutineVectorEnv,
    "shmem": ShmemVectorEnv,
    "subproc": SubprocVectorEnv,
    "shmem, one worker": partial(ShmemVectorEnv, num_workers=1),
    "subproc, one worker": partial(SubprocVectorEnv, num_workers=1),
    "shmem, new workers": partial(ShmemVectorEnv, num_workers=1, recycle_after=always),
    "subproc, new workers": partial(SubprocVectorEnv, recycle_after=always),
}
N = 3
AT = st.integers(1, 40) | st.integers(1, 600)
HOW = st.sampled_from(["once", "once", "twice", "signal"])
CALLS = ["step", "step", "partial", "autoreset", "halves", "reset", "seed", "call", "state", "alive", "stats", "shared"]


class Fuzz(Program):
    """After an interrupt `usable` is False, until a reset of all envs.

    `sent` are the ids and actions of a `send` whose `recv` was interrupted.
    """

    steps = 15
    patience = 20.0

    @initialize(kind=st.sampled_from(KINDS), backend=st.sampled_from(list(BACKENDS)), n=st.integers(1, N))
    def make(self, kind: str, backend: str, n: int) -> None:
        self.kind, self.n, self.creator = kind, n, None
        fns: Any = [partial(Told, i, kind == "objects") for i in range(n)]
        if kind == "creator":
            self.creator = EnvCreator(partial(normed, 0))
            fns = [self.creator] * n
        venv = self.venv = BACKENDS[backend](fns)
        self.envs: Any = venv
        if kind == "norm":
            self.envs = VectorEnvNormObs(venv)
        elif kind == "transforms":
            chain = Compose(CatFrames(2, -1, in_keys=["observation"], out_keys=["frames"]), StepCounter())
            self.envs = TransformedVectorEnv(venv, chain)
        elif kind == "gymnasium":
            self.envs = GymnasiumVectorEnv(venv, autoreset_mode="SameStep")
        elif kind == "sb3":
            self.envs = SB3VecEnv(venv)
        elif kind == "collector":
            self.envs = SyncDataCollector(venv, frames_per_batch=2 * n)
        self.usable, self.at, self.seeds, self.sent = False, [0] * n, [0] * n, None
        if kind != "collector":
            self.begin(5)

    def close(self) -> None:
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # a worker that had to be killed
            if hasattr(self, "envs"):
                self.envs.shutdown() if self.kind == "collector" else self.envs.close()

    # The oracle.

    def begin(self, seed: int) -> None:
        """Reset all envs, after which all rows are right."""
        if self.sent is not None:
            self.receive_sent()
        if self.kind == "sb3":
            self.envs.seed(seed)
            obs, infos = self.envs.reset(), None
        else:
            obs, infos = self.envs.reset(seed=seed)
        self.usable, self.at, self.seeds = True, [0] * self.n, [seed + i for i in range(self.n)]
        self.check(obs, range(self.n), [-1] * self.n, infos)

    def check(self, obs: Any, ids: Any, actions: Any, infos: Any) -> None:
        """The rows of these envs are at `self.at`, after these actions."""
        told = [0] * self.n if self.creator else range(self.n)
        want = [[told[i], self.seeds[i], self.at[i], action] for i, action in zip(ids, actions, strict=True)]
        rows: Any = obs
        if isinstance(obs, dict):
            rows = obs["x" if "x" in obs else "observation"]
        if self.kind == "norm":
            assert np.isfinite(rows).all(), rows
            return
        assert rows.tolist() == want, f"the rows are {rows.tolist()}, expected {want}"
        times = [row[2] for row in want]
        if self.kind == "objects":
            assert obs["text"].tolist() == [str(t) for t in times], f"the texts are {obs['text']}, expected {times}"
        if self.kind == "transforms":
            assert obs["step_count"].ravel().tolist() == times, f"counts {obs['step_count']}, expected {times}"
            assert obs["frames"][:, 4:].tolist() == want, "the last frame"
        if isinstance(infos, np.ndarray):
            assert [info["at"] for info in infos] == times, f"the infos are {infos}, expected {times}"

    def advance(self, ids: Any) -> None:
        for i in ids:
            self.at[i] += 1

    def receive_sent(self) -> None:
        """Receive a round that an interrupt between `send` and `recv` has left in flight: its rows are whole."""
        (ids, actions), self.sent = self.sent, None
        if waiting := self.venv.waiting_id:
            assert waiting == sorted(ids), f"in flight are {waiting}, sent were {ids}"
            obs, *_, infos = self.envs.recv()
            self.advance(ids)
            self.check(obs, ids, actions, infos)

    # The operations.

    @precondition(lambda self: self.usable and self.sent is None and self.venv.engine.backend.recycles)
    @rule()
    def start_new_worker(self) -> None:
        await_new_worker(self.venv)

    @rule(
        call=st.sampled_from(CALLS),
        how=HOW,
        at=AT | st.just(10**9),
        later=AT,
        value=SMALL,
        ids=st.lists(st.integers(0, N - 1), min_size=1, unique=True),
    )
    def operation(self, call: str, how: str, at: int, later: int, value: int, ids: list[int]) -> None:
        if self.kind == "collector":
            self.collect(how, at, later)
            return
        if not self.usable or max(self.at) >= 4:
            self.begin(value)
        ids = [i for i in ids if i < self.n] or [0]
        everywhere = self.kind in ("gymnasium", "sb3") or call in ("step", "autoreset")
        ids = list(range(self.n)) if everywhere else ids
        was_interrupted, result = self.interrupted(how, at, later, lambda: self.perform(call, value, ids))
        if was_interrupted:
            self.usable = False
            self.after_interrupt(value)
        elif result is not None:
            obs, actions, infos = result
            self.check(obs, ids, actions, infos)

    def interrupted(self, how: str, at: int, later: int, call: Callable[[], Any]) -> tuple[bool, Any]:
        """Make the call with interrupts; returns whether one came, and the result."""
        if how == "signal":
            pids = [worker.pid for worker in self.venv.engine.backend.workers if worker.pid not in (None, os.getpid())]
            return call_with_signal(call, at * 2e-6, pids if later % 2 else [])
        raised, result = interrupted(call, at, *([later] if how == "twice" else []), at_looks=True)
        return raised > 0, result

    def perform(self, call: str, value: int, ids: list[int]) -> Any:
        """(obs, actions, infos) of a call that returns rows."""
        envs, actions = self.envs, [value + i for i in ids]
        if self.kind == "gymnasium" or (self.kind == "sb3" and call in ("step", "partial", "autoreset")):
            if max(self.at) >= 3:
                self.usable = False  # the next step would begin an episode without a seed
                return None
            obs, *_, infos = envs.step(np.array(actions))
            self.advance(ids)
            return obs, actions, None
        if call in ("step", "partial", "autoreset", "halves"):
            if call == "halves" and self.kind != "sb3":
                self.sent = ids, actions
                envs.send(actions, ids)
                obs, *_, infos = envs.recv()
                self.sent = None
            elif self.kind == "sb3":
                envs.step_async(np.array(actions))
                if max(self.at) >= 3:
                    self.usable = False  # the step stays pending, until a reset drops it
                    return None
                return self.sb3_wait(ids, actions)
            elif max(self.at) < 3 or call != "autoreset":
                obs, *_, infos = envs.step(actions, ids, autoreset=call == "autoreset")
            else:
                return None
            self.advance(ids)
            return obs, actions, infos
        if self.kind == "sb3":
            envs.env_method("echo", value)
            return None
        if call == "reset":
            obs, infos = envs.reset(ids, seed=value)
            for i in ids:
                self.at[i], self.seeds[i] = 0, value + i
            return obs, [-1] * len(ids), infos
        self.other(call, value, ids)
        return None

    def sb3_wait(self, ids: list[int], actions: list[int]) -> Any:
        obs, *_ = self.envs.step_wait()
        self.advance(ids)
        return obs, actions, None

    def other(self, call: str, value: int, ids: list[int]) -> None:
        envs = self.envs
        if call == "seed":
            self.usable = False
            envs.seed(value)
        elif call == "call":
            got = envs.call("echo", value, id=ids)
            assert got == [(0 if self.creator else i, value) for i in ids], got
        elif call == "state":
            envs.set_state(envs.get_state(ids), ids)
        elif call == "alive":
            assert envs.alive() == [True] * self.n
        elif call == "stats":
            envs.stats()
        elif call == "shared" and self.creator is not None:
            self.creator.state_dict()

    def after_interrupt(self, value: int) -> None:
        """A call without a reset raises, or returns rows of this call."""
        if self.kind in ("gymnasium", "sb3", "norm", "transforms"):
            return
        actions = [900 - value - i for i in range(self.n)]
        try:
            obs, *_ = self.envs.step(actions)
        except RuntimeError:
            return
        rows = obs["x" if "x" in obs else "observation"] if isinstance(obs, dict) else obs
        assert rows[:, 3].tolist() == actions, f"stale rows {rows.tolist()} of the actions {actions}"

    def collect(self, how: str, at: int, later: int) -> None:
        """A batch: each transition is one step of its env."""
        _, batch = self.interrupted(how, at, later, self.envs.next)
        if batch is not None:
            obs, after = np.asarray(batch.obs), np.asarray(batch.next.obs)
            assert (after[..., 2] == obs[..., 2] + 1).all(), f"{obs[..., 2]} is followed by {after[..., 2]}"
            assert (after[..., 3] == np.asarray(batch.action)).all(), "the actions"
            assert (obs[..., 0] == np.arange(self.n)[:, None]).all(), "the envs"
