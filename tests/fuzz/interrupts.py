"""KeyboardInterrupt at any instant of any call: no later call hangs, and after `reset` all rows are right again.

An interrupt is raised at the k-th instant of a call at which Python looks for signals, so a program can be repeated and
shrunk. With worker processes the number of instants depends on the machine: there a finding may come without a seed.
"""

from __future__ import annotations

import dis
import os
import sys
import warnings
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

import collector
import vecenv
from collector import SyncDataCollector
from tests.fuzz.driver import Program
from tests.fuzz.envs import Told, normed
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
from vecenv.transforms import CatFrames, Compose, StepCounter

PACKAGES = tuple(str(Path(str(package.__file__)).parent) + os.sep for package in (vecenv, collector))
LOOKS = {
    number for number, name in enumerate(dis.opname) if "CALL" in name or name == "RESUME" or "JUMP_BACKWARD" in name
} - {dis.opmap.get("JUMP_BACKWARD_NO_INTERRUPT", -1)}
"""Instructions before or after which Python, or a function in C, runs the handlers of signals."""
KINDS = ["plain", "objects", "norm", "transforms", "creator", "gymnasium", "sb3", "collector"]
BACKENDS: dict[str, Any] = {
    "dummy": DummyVectorEnv,
    "thread": ThreadVectorEnv,
    "shmem": ShmemVectorEnv,
    "subproc": SubprocVectorEnv,
    "shmem, one worker": partial(ShmemVectorEnv, num_workers=1),
    "subproc, one worker": partial(SubprocVectorEnv, num_workers=1),
}
N = 3
SMALL = st.integers(0, 99)
AT = st.integers(0, 40) | st.integers(0, 600)
CALLS = ["step", "step", "partial", "autoreset", "halves", "reset", "seed", "call", "state", "alive", "stats", "shared"]


class Interrupt:
    """Raise KeyboardInterrupt at instant number `at` of the block, in the code of vecenv."""

    def __init__(self, at: int) -> None:
        self.left, self.raised = at, False
        self.last: dict[FrameType, int] = {}
        self.codes: dict[CodeType, bytes] = {}

    def __enter__(self) -> Interrupt:
        sys.settrace(self.called)
        return self

    def called(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGES):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.instruction

    def instruction(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            code = self.codes.get(frame.f_code)
            if code is None:
                code = self.codes[frame.f_code] = frame.f_code.co_code
            now, before = code[frame.f_lasti], self.last.get(frame)
            self.last[frame] = now
            if now in LOOKS or before in LOOKS:
                self.left -= 1
                if self.left < 0:
                    sys.settrace(None)
                    self.raised = True
                    raise KeyboardInterrupt
        return self.instruction

    def __exit__(self, kind: Any, *_: Any) -> bool:
        sys.settrace(None)
        self.last.clear()
        return kind is KeyboardInterrupt


class Fuzz(Program):
    """After an interrupt `usable` is False, until a reset of all envs."""

    steps = 15
    patience = 12.0

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
            from vecenv import SB3VecEnv

            self.envs = SB3VecEnv(venv)
        elif kind == "collector":
            self.envs = SyncDataCollector(venv, frames_per_batch=2 * n)
        self.usable, self.at, self.seeds = False, [0] * n, [0] * n
        if kind != "collector":
            self.begin(5)

    def close(self) -> None:
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # a worker that had to be killed
            if hasattr(self, "envs"):
                self.envs.shutdown() if self.kind == "collector" else self.envs.close()

    # The oracle.

    def begin(self, seed: int) -> None:
        """Reset all envs, after which all rows are right."""
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

    # The operations.

    @rule(
        call=st.sampled_from(CALLS),
        at=AT | st.just(10**9),
        value=SMALL,
        ids=st.lists(st.integers(0, N - 1), min_size=1, unique=True),
    )
    def operation(self, call: str, at: int, value: int, ids: list[int]) -> None:
        if self.kind == "collector":
            self.collect(at)
            return
        if not self.usable or max(self.at) >= 4:
            self.begin(value)
        ids = [i for i in ids if i < self.n] or [0]
        everywhere = self.kind in ("gymnasium", "sb3") or call in ("step", "autoreset")
        ids = list(range(self.n)) if everywhere else ids
        result: Any = None
        with Interrupt(at) as interrupt:
            result = self.perform(call, value, ids)
        if interrupt.raised:
            self.usable = False
            self.after_interrupt(value)
        elif result is not None:
            obs, actions, infos = result
            self.check(obs, ids, actions, infos)

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
                envs.send(actions, ids)
                obs, *_, infos = envs.recv()
            elif self.kind == "sb3":
                envs.step_async(np.array(actions))
                return None if max(self.at) >= 3 else self.sb3_wait(ids, actions)
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

    def collect(self, at: int) -> None:
        """A batch: each transition is one step of its env."""
        batch: Any = None
        with Interrupt(at):
            batch = self.envs.next()
        if batch is not None:
            obs, after = np.asarray(batch.obs), np.asarray(batch.next.obs)
            assert (after[..., 2] == obs[..., 2] + 1).all(), f"{obs[..., 2]} is followed by {after[..., 2]}"
            assert (after[..., 3] == np.asarray(batch.action)).all(), "the actions"
            assert (obs[..., 0] == np.arange(self.n)[:, None]).all(), "the envs"
