"""Our vector envs against tianshou's DummyVectorEnv, in a loop and in its Collector. Needs `pip install tianshou`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from tianshou.algorithm.algorithm_base import Policy
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv as TheirVectorEnv

from tests.fuzz.driver import SMALL, Pair
from tests.fuzz.envs import Scripted, assert_same
from vecenv import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv

N = 4
COLUMNS = ("obs", "act", "rew", "terminated", "truncated", "obs_next")


class ByObservation(Policy):
    """Acts by the first number of the observation."""

    def forward(self, batch: Any, state: Any = None, **kwargs: Any) -> Any:
        obs = np.asarray(batch.obs)
        return Batch(act=(abs(obs.reshape(len(obs), -1)[:, 0] * 16)).astype(np.int64) % 90)


# numba compiles these when they are first made, which takes longer than a program may.
ByObservation(action_space=spaces.Discrete(2))
VectorReplayBuffer(8, 2)


class Fuzz(Pair):
    """`both` are tianshou's vector env and ours, `collectors` a Collector of tianshou for each."""

    steps = 20

    @initialize(
        n=st.integers(1, N),
        backend=st.sampled_from([DummyVectorEnv, DummyVectorEnv, ThreadVectorEnv, ShmemVectorEnv, SubprocVectorEnv]),
        space=st.sampled_from(["floats", "doubles", "half", "picture"]),
        rewards=st.sampled_from(["float", "int", "float32"]),
    )
    def make(self, n: int, backend: Any, space: str, rewards: str) -> None:
        self.n = n
        fns = [partial(Scripted, i, space, rewards=rewards) for i in range(n)]
        self.both = [TheirVectorEnv(fns), backend(fns)]
        self.collectors: list[Any] = []
        for envs in self.both:
            policy = ByObservation(action_space=envs.action_space[0], observation_space=envs.observation_space[0])
            self.collectors.append(Collector(policy, envs, VectorReplayBuffer(400, n)))
        self.reset(list(range(N)), 3)

    def plain(self, result: Any) -> Any:
        """Return a result in the form that both share: rewards are float64, which tianshou leaves to the env, and infos
        have no `env_id`, which tianshou's `reset` leaves out.
        """
        *batches, infos = result
        if len(batches) > 1:
            batches[1] = batches[1].astype(np.float64)
        return [*batches, [{key: value for key, value in info.items() if key != "env_id"} for info in infos]]

    @rule(ids=st.lists(st.integers(0, N - 1), min_size=1, unique=True), seed=st.none() | SMALL)
    def reset(self, ids: list[int], seed: int | None) -> None:
        ids = [i for i in ids if i < self.n] or [0]
        # tianshou gives all envs of one reset the same seed, and vecenv gives each env a different one.
        seeds = [{}, {}] if seed is None else [{"seed": seed}, {"seed": [seed] * len(ids)}]
        self.compare(lambda envs: envs.reset(ids, **seeds[self.both.index(envs)]), plain=self.plain)

    @rule(
        ids=st.just(list(range(N))) | st.lists(st.integers(0, N - 1), min_size=1, unique=True),
        action=SMALL,
    )
    def step(self, ids: list[int], action: int) -> None:
        ids = [i for i in ids if i < self.n] or [0]
        which = None if ids == list(range(self.n)) else ids
        self.compare(lambda envs: envs.step(np.arange(action, action + len(ids)), which), plain=self.plain)

    @rule(n_step=st.none() | st.integers(1, 15), n_episode=st.integers(1, 6), reset=st.booleans())
    def collect(self, n_step: int | None, n_episode: int, reset: bool) -> None:
        """tianshou's collector gathers the same transitions from both."""
        if n_step is None:
            n_episode = max(n_episode, self.n)
        results, returns = list[Any](), list[Any]()
        for collector in self.collectors:
            collector.reset(reset_buffer=reset, gym_reset_kwargs={"seed": 5} if self.n == 1 else None)
            how = {"n_episode": n_episode} if n_step is None else {"n_step": n_step * self.n}
            stats = collector.collect(**how)
            buffer = collector.buffer
            indices = buffer.sample_indices(0)
            columns = {name: np.asarray(getattr(buffer, name)[indices]) for name in COLUMNS}
            columns["rew"] = columns["rew"].astype(np.float64)
            results.append({**columns, "lens": stats.lens, "steps": stats.n_collected_steps})
            returns.append(np.asarray(stats.returns, np.float32))
        assert_same(results[1], results[0], "collect")
        assert_same(returns[1], returns[0], "returns", rounds=True)  # tianshou's are sums of float32 for such rewards
