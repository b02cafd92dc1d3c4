"""Collectors against a loop of a few lines: the same transitions, in the same order, from each env."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from collector import AsyncDataCollector, EpisodeCutter, SyncDataCollector
from tests.fuzz.driver import Program
from tests.fuzz.envs import Scripted, Told, assert_same
from vecenv import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv
from vecenv.engine.arguments import seed_chain

N = 4
BACKENDS = [DummyVectorEnv, DummyVectorEnv, ThreadVectorEnv, ShmemVectorEnv, SubprocVectorEnv]


def chosen(numbers: Any) -> Any:
    """The actions that each policy chooses for these numbers."""
    return abs(numbers * 16).astype(np.int64) % 90


def array_policy(obs: Any) -> Any:
    return chosen(obs[:, 0])


class ModulePolicy(torch.nn.Module):
    def forward(self, obs: Any) -> Any:
        return (obs[:, 0] * 16).abs().long() % 90


def recurrent_policy(obs: Any, state: Any) -> Any:
    """Acts by the number of steps that it has seen of the episode."""
    state = np.zeros(len(obs), np.int64) if state is None else state
    return {"action": (chosen(obs[:, 0]) + state) % 90, "state": state + 1, "seen": state.copy()}


def env_policy(obs: Any, env_id: Any) -> Any:
    return (chosen(obs[:, 0]) + env_id) % 90


POLICIES: dict[str, Any] = {
    "array": lambda: array_policy,
    "module": ModulePolicy,
    "recurrent": lambda: recurrent_policy,
    "env_id": lambda: env_policy,
}


def action_of(policy: str, obs: Any, i: int, t: int) -> int:
    """The action that the policy has to choose for one observation."""
    more = {"recurrent": t, "env_id": i}.get(policy, 0)
    return int((chosen(obs[:1])[0] + more) % 90)


class Fuzz(Program):
    """`rows` has, for each env, the generator of the transitions that a plain loop makes."""

    steps = 8

    @initialize(
        n=st.integers(1, N),
        backend=st.sampled_from(BACKENDS),
        workers=st.integers(1, N),
        policy=st.sampled_from(list(POLICIES)),
        frames=st.integers(1, 9),
        most=st.none() | st.integers(1, 4),
        is_async=st.booleans(),
        numbered=st.none() | st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True),
        seed=st.integers(0, 99),
        faults=st.lists(st.sets(st.integers(1, 11), max_size=1), min_size=N, max_size=N),
        tensors=st.booleans(),
        same=st.booleans(),
        at_each_iter=st.sampled_from([False, False, False, True]),
    )
    def make(
        self,
        n: int,
        backend: Any,
        workers: int,
        policy: str,
        frames: int,
        most: int | None,
        is_async: bool,
        numbered: list[int] | None,
        seed: int,
        faults: Any,
        tensors: bool,
        same: bool,
        at_each_iter: bool,
    ) -> None:
        is_async = is_async and numbered is None
        self.n, self.policy, self.most, self.is_async = n, policy, most, is_async
        self.numbered = None if numbered is None else [(number, 7 * number + seed) for number in numbered]
        self.at_each_iter = at_each_iter and not is_async and numbered is None
        if self.numbered is not None:
            if policy == "env_id":
                self.policy = "array"  # which env plays an episode is open
            self.envs: list[Any] = [Told(0, length=None) for _ in range(n)]
            fns: list[Any] = [partial(Told, 0, length=None)] * n
        else:
            # A failed step at the end of a batch has no row: the loop would not know of it before the reset.
            each = [{("step", at): "raise" for at in own if not self.at_each_iter} for own in faults[:n]]
            self.envs = [Scripted(i, faults=own) for i, own in enumerate(each)]
            fns = [partial(Scripted, i, faults=own) for i, own in enumerate(each)]
        options = {} if backend is DummyVectorEnv else {"num_workers": min(workers, n)}
        self.venv = backend(fns, on_error="restart", max_restarts=10**6, **options)
        kind = AsyncDataCollector if is_async else SyncDataCollector
        more: dict[str, Any] = {"storing_device": "cpu"} if tensors else {}
        if self.numbered is not None:
            more["episode_seeds"] = list(self.numbered)
        elif not is_async:
            more["reset_at_each_iter"] = self.at_each_iter
        self.collector = kind(
            self.venv,
            POLICIES[self.policy](),
            frames_per_batch=frames * (1 if is_async else n),
            max_frames_per_traj=most,
            return_same_td=same,
            info_keys=[] if self.numbered is None else ["at"],
            **more,
        )
        if self.numbered is None:
            self.collector.set_seed(seed)
            self.rows = [self.transitions(i, own) for i, own in enumerate(seed_chain(seed, n)[:n])]
        self.cutter, self.played, self.over = EpisodeCutter(), set[int](), False
        self.restart = [False] * n

    def close(self) -> None:
        if hasattr(self, "collector"):
            self.collector.shutdown()
        if hasattr(self, "venv"):
            self.venv.close()

    def transitions(self, i: int, seed: int) -> Iterator[Any]:
        """The plain loop: (obs, action, reward, terminated, truncated, next obs, step); None: a failed step."""
        env = self.envs[i]
        env.reset(seed=seed)
        while True:
            obs, _ = env.reset()
            t, over = 0, False
            while not over:
                action = action_of(self.policy, obs, i, t)
                try:
                    following, reward, terminated, truncated, _ = env.step(action)
                except KeyError:
                    yield None
                    break
                truncated = truncated or t + 1 == self.most
                over = terminated or truncated
                yield obs, action, reward, terminated, truncated, following, t
                obs, t = following, t + 1
                over |= self.restart[i]
                self.restart[i] = False

    @rule()
    def batch(self) -> None:
        if self.over:
            return
        batch = self.collector.next()
        if batch is None:
            self.end()
            return
        if self.numbered is not None:
            self.cut(batch)
            return
        flat = batch if self.is_async else batch.flatten()
        flat = as_arrays(flat)
        for i in range(self.n):
            mine = flat["env_ids"] == i
            got = {name: column[mine] for name, column in flat.items()}
            self.check(i, got)
        if self.at_each_iter:
            self.restart = [True] * self.n

    def check(self, i: int, got: dict[str, np.ndarray]) -> None:
        """The rows of env i are the next ones of the loop."""
        for k in range(len(got["action"])):
            row = next(self.rows[i])
            broken = row is None
            while row is None:
                row = next(self.rows[i])
            if broken and k:
                continue_at = got["step_count"][k]
                assert continue_at == 0, f"env {i} failed, and its next step has the number {continue_at}"
            names = ("obs", "action", "reward", "terminated", "truncated", "next", "step_count")
            for name, value in zip(names, row, strict=True):
                if name != "truncated" or value:  # the last step before a failure is truncated
                    assert_same(got[name][k], np.asarray(value, got[name].dtype)[()], f"{name} of env {i}, row {k}")

    def cut(self, batch: Any) -> None:
        for episode in self.cutter.cut(batch):
            seeds = dict(self.numbered or ())
            assert episode.number in seeds, f"episode {episode.number} was not asked for"
            assert episode.number not in self.played, f"episode {episode.number} comes twice"
            self.played.add(episode.number)
            env, want, over, t = Told(0, length=None), list[Any](), False, 0
            obs, _ = env.reset(seed=seeds[episode.number])
            while not over:
                action = action_of(self.policy, obs, 0, t)
                following, reward, terminated, _, _ = env.step(action)
                t += 1
                truncated = t == self.most
                want.append((obs, action, reward, terminated, truncated))
                over, obs = terminated or truncated, following
            columns = [np.array(column) for column in zip(*want, strict=True)]
            columns[0] = np.concatenate([columns[0], obs[None]])
            for name, column in zip(("obs", "action", "reward", "terminated", "truncated"), columns, strict=True):
                assert_same(np.asarray(getattr(episode, name)), column, f"{name} of episode {episode.number}")

    def end(self) -> None:
        self.over = True
        missing = {number for number, _ in self.numbered or ()} - self.played
        assert not missing, f"the episodes {missing} are missing"


def as_arrays(flat: Any) -> dict[str, np.ndarray]:
    """The columns of a flat batch as arrays."""
    names = ("obs", "action", "reward", "terminated", "truncated", "step_count", "env_ids")
    return {name: np.asarray(getattr(flat, name)) for name in names} | {"next": np.asarray(flat.next.obs)}
