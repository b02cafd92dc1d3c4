"""SB3VecEnv against SB3's DummyVecEnv, with the wrappers of Stable-Baselines3."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecCheckNan,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

from tests.fuzz.driver import Program
from tests.fuzz.envs import ACTIONS, SPACES, assert_same, draw, stacked
from tests.fuzz.gymnasium import make, without_times, written_over
from tests.support.cases import LocalWorker
from vecenv import (
    AsyncVectorEnv,
    BaseVectorEnv,
    DummyVectorEnv,
    SB3VecEnv,
    ShmemVectorEnv,
    SubprocVectorEnv,
    SyncVectorEnv,
    ThreadVectorEnv,
    VectorEnvWrapper,
)

N = 4


class ResetsAlone(VectorEnvWrapper):
    """Wrapper whose envs cannot be reset within a step, because it overrides `reset`."""

    def reset(self, id: Any = None, **kwargs: Any) -> Any:
        return super().reset(id, **kwargs)


OURS: dict[str, Any] = {
    "dummy": lambda env_fns: SB3VecEnv(DummyVectorEnv(env_fns)),
    "views": lambda env_fns: SB3VecEnv(DummyVectorEnv(env_fns, copy=False)),
    "shmem": lambda env_fns: SB3VecEnv(ShmemVectorEnv(env_fns)),
    "shmem, one worker": lambda env_fns: SB3VecEnv(ShmemVectorEnv(env_fns, num_workers=1)),
    "subproc": lambda env_fns: SB3VecEnv(SubprocVectorEnv(env_fns, num_workers=1)),
    "thread": lambda env_fns: SB3VecEnv(ThreadVectorEnv(env_fns)),
    "wrapper": lambda env_fns: SB3VecEnv(VectorEnvWrapper(DummyVectorEnv(env_fns))),
    "async": lambda env_fns: SB3VecEnv(AsyncVectorEnv(env_fns)),
    "sync": lambda env_fns: SB3VecEnv(SyncVectorEnv(env_fns, autoreset_mode="Disabled")),
    "own workers": lambda env_fns: SB3VecEnv(BaseVectorEnv(env_fns, LocalWorker)),
    "own reset": lambda env_fns: SB3VecEnv(ResetsAlone(DummyVectorEnv(env_fns, copy=False))),
}
FLOATS = ("floats", "doubles", "half")
WRAPPERS: dict[str, Any] = {
    "normalize": (partial(VecNormalize, clip_obs=3.0), (*FLOATS,)),
    "normalize part": (partial(VecNormalize, norm_obs_keys=["z"]), ("boxes",)),
    "normalize reward": (partial(VecNormalize, norm_obs=False), tuple(SPACES)),
    "monitor": (VecMonitor, tuple(SPACES)),
    "stack": (partial(VecFrameStack, n_stack=2), (*FLOATS, "image")),
    "nan": (VecCheckNan, (*FLOATS, "discrete")),
    "transpose": (VecTransposeImage, ("image",)),
    "extract": (partial(VecExtractDictObs, key="z"), ("boxes",)),
}
SMALL = st.integers(0, 99)
INDICES = st.none() | st.integers(0, N - 1) | st.lists(st.integers(0, N - 1))


class Fuzz(Program):
    """Each operation is called on both, and has to return the same."""

    kinds: ClassVar[Sequence[str]] = tuple(OURS)
    wraps: ClassVar[Sequence[str]] = ()
    """Wrappers of all programs, instead of random ones, around envs with a space that they take."""

    @initialize(
        n=st.integers(1, N),
        kind=SMALL,
        space=st.sampled_from([name for name in SPACES if name not in ("dict", "tuple", "text", "sequence")]),
        actions=st.sampled_from(["discrete", "box", "scalar", "multi"]),
        rewards=st.sampled_from(["float", "int", "float32"]),
        around=st.sampled_from(["none", "time limit", "monitor", "named", "loose"]),
        wrapped=st.lists(st.sampled_from(list(WRAPPERS)), max_size=2, unique=True),
    )
    def make(self, n: int, kind: int, space: str, actions: str, wrapped: list[str], **settings: Any) -> None:
        ours = self.kinds[kind % len(self.kinds)]
        if self.wraps:
            wrapped, space = [*self.wraps], WRAPPERS[self.wraps[0]][1][0]
        self.n, self.actions = n, ACTIONS[actions]
        if ours in ("own reset", "own workers"):
            space = "floats"  # last observations are rows of the batch
            settings["around"] = "time limit" if settings["around"] == "loose" else settings["around"]
        if ours == "wrapper" and space == "scalar":
            space = "floats"  # a wrapper hands on batches, which do not tell a scalar from an array without dimensions
        if ours in ("shmem", "shmem, one worker", "subproc", "async") and settings["around"] == "monitor":
            settings["around"] = "none"  # would make each worker import torch
        if ours == "own workers":
            settings["around"] = "none"  # tianshou's workers do not look for methods below wrappers
        env_fns = [partial(make, i, space=space, actions=actions, **settings) for i in range(n)]
        self.both = [DummyVecEnv(env_fns), OURS[ours](env_fns)]
        self.wrapped = [name for name in wrapped if space in WRAPPERS[name][1]]
        if "extract" in self.wrapped:
            self.wrapped = ["extract"]
        # SB3 cannot tell where the channels of a stack of pictures are.
        self.wrapped.sort(key=lambda name: name != "transpose")
        for name in self.wrapped:
            self.both = [WRAPPERS[name][0](envs) for envs in self.both]
        for name in ("num_envs", "observation_space", "action_space", "render_mode", "metadata"):
            assert getattr(self.both[1], name) == getattr(self.both[0], name), name
        self.kept: list[Any] = []
        self.reset(3, None)

    def close(self) -> None:
        for envs in getattr(self, "both", ()):
            envs.close()

    def compare(self, call: Any, what: str) -> None:
        theirs, mine = [call(envs) for envs in self.both]
        assert_same(mine, theirs, what)
        for result, before in self.kept:
            assert_same(result, before, "an earlier result has changed")
        if not self.wrapped and what in ("step", "reset"):  # SB3's own wrappers write into results
            parts = list(mine) if what == "step" else [mine]
            self.kept = [*self.kept[-2:], (parts, written_over(parts))]

    @rule(seed=st.none() | SMALL, at=st.none() | SMALL)
    def reset(self, seed: Any, at: int | None) -> None:
        if seed is not None:
            self.compare(lambda envs: list(envs.seed(seed)), "seeds")
        if at is not None:
            for envs in self.both:
                envs.set_options([{"at": at + i} for i in range(self.n)] if at % 2 else {"at": at})
        self.compare(lambda envs: envs.reset(), "reset")
        self.compare(lambda envs: list(envs.reset_infos), "reset_infos")

    @rule(action=SMALL, form=st.sampled_from(["batch", "wide"]), halves=st.booleans())
    def step(self, action: int, form: str, halves: bool) -> None:
        rng = np.random.default_rng(action)
        batch = stacked(self.actions, [draw(self.actions, rng) for _ in range(self.n)])
        if form == "wide":
            batch = batch.astype(np.float64 if batch.dtype.kind == "f" else np.int32)

        def step(envs: Any) -> Any:
            if halves:
                envs.step_async(batch)
                obs, rewards, dones, infos = envs.step_wait()
            else:
                obs, rewards, dones, infos = envs.step(batch)
            return obs, rewards, dones, without_times(infos)

        self.compare(step, "step")
        self.compare(lambda envs: list(envs.reset_infos), "reset_infos")
        if any(name.startswith("normalize") for name in self.wrapped):
            outer = [envs for envs in self.both if hasattr(envs, "get_original_reward")]
            if len(outer) == 2:
                self.compare(lambda envs: envs.get_original_reward(), "original reward")

    @rule(actions=st.lists(SMALL, min_size=4, max_size=8))
    def step_on(self, actions: list[int]) -> None:
        """Steps, so that episodes end."""
        for action in actions:
            self.step(action, "batch", False)

    @rule(value=SMALL, indices=INDICES)
    def access(self, value: int, indices: Any) -> None:
        if isinstance(indices, list):
            indices = [i - self.n * (value % 2) for i in indices if i < self.n]
            indices = (list, tuple, np.array)[value % 3](indices) if indices else indices
        elif indices is not None:
            indices %= self.n
        for envs in self.both:
            envs.set_attr("mark_of_caller", value, indices)
            envs.env_method("set_mark", value, indices=indices)
        for name in ("mark", "received", "t"):
            self.compare(lambda envs, name=name: envs.get_attr(name, indices), name)
        self.compare(lambda envs: ["mark_of_caller" in each for each in envs.get_attr("__dict__")], "outermost")
        self.compare(lambda envs: envs.env_method("echo", value, x=1, indices=indices), "echo")
        self.compare(lambda envs: envs.env_is_wrapped(Monitor, indices), "env_is_wrapped")
        self.compare(lambda envs: [envs.has_attr(name) for name in ("mark", "nothing")], "has_attr")

    @rule(training=st.booleans())
    def swap_statistics(self, training: bool) -> None:
        """Statistics of VecNormalize survive a pickle, and can be frozen."""
        if self.wrapped and self.wrapped[-1].startswith("normalize"):
            for k, envs in enumerate(self.both):
                state, inner = pickle.dumps(envs), envs.venv
                self.both[k] = pickle.loads(state)
                self.both[k].set_venv(inner)
                self.both[k].training = training
            self.compare(lambda envs: envs.old_reward, "old reward")
