"""Collectors against a short loop: the same transitions, in the same order, from each env."""

from __future__ import annotations

import inspect
import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from collector import AsyncDataCollector, EpisodeCutter, SyncDataCollector, action_seed
from tests.fuzz.driver import Program
from tests.fuzz.engine import always
from tests.fuzz.envs import Scripted, Told, assert_same
from vecenv import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv
from vecenv.arguments import seed_chain

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


class StatefulPolicy:
    """Acts by the number of times that it was called for the env."""

    def __init__(self) -> None:
        self.calls = np.zeros(N, np.int64)

    def __call__(self, obs: Any, env_id: Any) -> Any:
        action = (chosen(obs[:, 0]) + self.calls[env_id]) % 90
        self.calls[env_id] += 1
        return action


def mask_policy(obs: Any, action_mask: Any) -> Any:
    """Takes the first action that the info allows; 0 if the info has no mask."""
    return np.zeros(len(obs), np.int64) if action_mask is None else action_mask.argmax(1)


def info_policy(obs: Any, info: Any) -> Any:
    return np.array([of_info(row) for row in info])


class NoisyPolicy(torch.nn.Module):
    """Draws actions; it is recurrent, too. Each number is computed by itself: its last bits do not depend on others."""

    def forward(self, obs: Any, state: Any = None) -> Any:
        state = torch.zeros(len(obs)) if state is None else state
        logits = torch.cos(torch.arange(50) * (1 + obs[:, :1].float().abs() + state[:, None]))
        return {"action": torch.distributions.Categorical(logits=logits), "state": state + 1}


class Raising:
    """A policy that raises in one of its calls."""

    def __init__(self, policy: Any, at: int) -> None:
        self.policy, self.left = policy, at
        self.__signature__ = inspect.signature(getattr(policy, "forward", policy))

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.left -= 1
        if not self.left:
            raise ArithmeticError("the policy raises")
        return self.policy(*args, **named)


POLICIES: dict[str, Any] = {
    "array": lambda: array_policy,
    "module": ModulePolicy,
    "recurrent": lambda: recurrent_policy,
    "env_id": lambda: env_policy,
    "stateful": StatefulPolicy,
    "mask": lambda: mask_policy,
    "info": lambda: info_policy,
    "random": lambda: None,
    "noisy": NoisyPolicy,
}
KNOW_THE_ENV = ("env_id", "stateful")
"""With `episode_seeds` it is open which env plays an episode."""


def of_info(info: Any) -> int:
    """A number below 90 that follows from an info of the envs."""
    return int(info.get("t", 0) + 3 * ("x" in info) + 5 * ("deep" in info) + 9 * len(info.get("at", ())))


def fails(seed: int) -> bool:
    return seed % 5 == 4


def mask_at(id: int, calls: int) -> Any:
    """The mask in an info; none in some."""
    return None if calls % 7 == 5 else ((np.arange(100) * 31 + 7 * id + calls) % 5 == 0).astype(np.int8)


class Masked(Scripted):
    """Some infos have an action mask."""

    def _row(self, op: str, action: Any) -> Any:
        row = super()._row(op, action)
        if (mask := mask_at(self.id, self.calls)) is not None:
            row[-1]["action_mask"] = mask
        return row


class MaskedTold(Told):
    """Infos have the number of the step, and some have an action mask of 1,000 actions.

    In the second step of some episodes the env fails, as `fault` says.
    """

    def __init__(self, fault: str = "") -> None:
        super().__init__(0, length=None)
        self.fault = fault

    def step(self, action: Any) -> Any:
        if self.fault and self.t == 1 and fails(self.first):
            if self.fault == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyError("boom")
        *row, info = super().step(action)
        return *row, self.masked(info)

    def reset(self, **options: Any) -> Any:
        obs, info = super().reset(**options)
        return obs, self.masked(info)

    def masked(self, info: Any) -> Any:
        mask = mask_at(self.first, self.t)
        return info | {"at": np.arange(self.t)} | ({} if mask is None else {"action_mask": np.tile(mask, 10)})


def told(step: Any) -> dict[str, np.ndarray]:
    """A step hook that returns a number of each info, and the reward."""
    return {"told": np.array([[of_info(info), reward] for info, reward in zip(step.info, step.reward, strict=True)])}


def action_of(policy: str, obs: Any, i: int, t: int, calls: int, info: Any) -> int:
    """The action that the policy has to choose for one observation."""
    if policy == "mask":
        return int(info["action_mask"].argmax()) if "action_mask" in info else 0
    if policy == "info":
        return of_info(info)
    more = {"recurrent": t, "env_id": i, "stateful": calls}.get(policy, 0)
    return int((chosen(obs[:1])[0] + more) % 90)


class Fuzz(Program):
    """`rows` has, for each env, the generator of the transitions that a plain loop makes.

    Actions that are drawn are those of the collector, if they are legal; with `episode_seeds` they are the samples of
    the plain loop, and for a policy with keyed noise the actions of a collector with one env.
    """

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
        random_first=st.sampled_from([0, 0, 0, 5, 12]),
        raises_at=st.sampled_from([0, 0, 0, 1, 2, 5]),
        fault=st.sampled_from(["", "", "raise", "raise", "die"]),
        recycles=st.sampled_from([False, False, True]),
        spare_envs=st.integers(0, 2),
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
        random_first: int,
        raises_at: int,
        fault: str,
        recycles: bool,
        spare_envs: int,
    ) -> None:
        is_async = is_async and numbered is None
        self.n, self.policy, self.most, self.is_async = n, policy, most, is_async
        self.numbered = None if numbered is None else [(number, 7 * number + seed) for number in numbered]
        self.at_each_iter = at_each_iter and not is_async and numbered is None
        if self.numbered is not None:
            if policy in KNOW_THE_ENV:
                self.policy = "array"
            if fault == "die" and backend not in (ShmemVectorEnv, SubprocVectorEnv):
                fault = "raise"  # the env would end this process
            workers = N if fault == "die" else workers  # the worker of a dead env hosts no other
            fns: list[Any] = [partial(MaskedTold, fault)] * n
            self.broken = {number for number, own in self.numbered if fault and most != 1 and fails(own)}
        else:
            if policy == "noisy":
                self.policy = "module"  # without seeds the noise is torch's, which a plain loop cannot know
            # A failed step at the end of a batch has no row: the loop would not know of it before the reset.
            each = [{("step", at): "raise" for at in own if not self.at_each_iter} for own in faults[:n]]
            self.envs = [Masked(i, faults=own) for i, own in enumerate(each)]
            fns = [partial(Masked, i, faults=own) for i, own in enumerate(each)]
        options: dict[str, Any] = {} if backend is DummyVectorEnv else {"num_workers": min(workers, n)}
        if backend in (ShmemVectorEnv, SubprocVectorEnv):
            options |= {"recycle_after": always} if recycles else {}
            options |= {"spare_envs": spare_envs} if self.numbered is not None and fault != "die" else {}
        self.venv = backend(fns, on_error="restart", max_restarts=10**6, **options)
        kind = AsyncDataCollector if is_async else SyncDataCollector
        more: dict[str, Any] = {"storing_device": "cpu"} if tensors else {}
        if self.numbered is not None:
            more["episode_seeds"] = list(self.numbered)
        elif not is_async:
            more["reset_at_each_iter"] = self.at_each_iter
        if self.numbered is None and self.policy not in ("recurrent", "stateful", "random"):
            more["init_random_frames"] = random_first  # a state would not advance in them
        acts = POLICIES[self.policy]()
        if self.policy not in ("stateful", "random", "module", "noisy"):
            acts = Raising(acts, raises_at)
        self.frames = frames * (1 if is_async else n)
        self.collector = kind(
            self.venv,
            acts,
            frames_per_batch=self.frames,
            max_frames_per_traj=most,
            return_same_td=same,
            info_keys=["action_mask"],
            **more,
        )
        if self.numbered is None:
            self.collector.set_seed(seed)
            self.rows = [self.transitions(i, own) for i, own in enumerate(seed_chain(seed, n)[:n])]
        self.given: Any = None
        """The action in the row that is compared, and whether it was drawn."""
        self.samples = self.reference() if self.policy == "noisy" else {}
        self.cutter, self.played, self.over = EpisodeCutter(), set[int](), False
        self.restart, self.cuts = [False] * n, False

    def close(self) -> None:
        if hasattr(self, "collector"):
            self.collector.shutdown()
        if hasattr(self, "venv"):
            self.venv.close()

    def reference(self) -> dict[int, Any]:
        """The actions of a policy with keyed noise in each episode, which does not depend on what is played beside."""
        fns, cutter, found = [MaskedTold], EpisodeCutter(), dict[int, Any]()
        options = {"episode_seeds": list(reversed(self.numbered or ())), "max_frames_per_traj": self.most}
        with SyncDataCollector(fns, NoisyPolicy(), frames_per_batch=5, **options) as collector:
            for batch in collector:
                found |= {each.number: np.asarray(each.action) for each in cutter.cut(batch)}
        return found

    def transitions(self, i: int, seed: int | None = None) -> Iterator[Any]:
        """Play alone. Yield obs, action, reward, flags, next obs, step, mask and info; None: the step failed."""
        env, calls = self.envs[i], 0
        while True:
            obs, info = env.reset(seed=seed)
            seed, t, over = None, 0, False
            while not over:
                action = action_of(self.policy, obs, i, t, calls, info)
                calls += 1
                if self.given[1]:
                    action = self.given[0]
                try:
                    following, reward, terminated, truncated, after = env.step(action)
                except KeyError:
                    yield None
                    break
                if self.given[1] and "action_mask" in info:
                    assert info["action_mask"][action], f"env {i} drew {action}, which is not allowed"
                truncated = truncated or t + 1 == self.most or (self.cuts and reward > 0.5 and not terminated)
                over = terminated or truncated
                yield obs, action, reward, terminated, truncated, following, t, after.get("action_mask"), of_info(after)
                obs, info, t = following, after, t + 1
                over |= self.restart[i]
                self.restart[i] = False

    def told_and_cut(self, step: Any) -> Any:
        """A step hook that resets the envs with a high reward, which truncates their episodes."""
        if self.cuts and (high := step.reward > 0.5).any():
            self.collector.reset(step.env_id[high])
        return told(step)

    @rule(hooked=st.booleans())
    def batch(self, hooked: bool) -> None:
        if self.over:
            return
        try:
            if hooked and self.numbered is None and not self.at_each_iter:
                self.cuts = not self.is_async
                batch = self.collector.collect(n_step=self.frames, on_step=self.told_and_cut).batch
            else:
                self.cuts = False
                batch = self.collector.next()
        except ArithmeticError:
            self.resume()
            return
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
            self.given = int(got["action"][k]), self.policy == "random" or got["policy_version"][k] < 0
            row = next(self.rows[i])
            broken = row is None
            while row is None:
                row = next(self.rows[i])
            if broken and k:
                continue_at = got["step_count"][k]
                assert continue_at == 0, f"env {i} failed, and its next step has the number {continue_at}"
            *row, mask, info = row
            if "told" in got and not (self.is_async and not got["told"][k].any()):  # 0: a step of an earlier call
                assert got["told"][k].tolist() == [info, row[2]], f"the hook's info and reward of env {i}, row {k}"
            if "action_mask" in got:
                assert_same(got["action_mask"][k], np.zeros(100, np.int8) if mask is None else mask, "the mask after")
            else:
                assert mask is None, f"the mask of env {i}, row {k}, is not stored"
            names = ("obs", "action", "reward", "terminated", "truncated", "next", "step_count")
            for name, value in zip(names, row, strict=True):
                if name != "truncated" or value:  # the last step before a failure is truncated
                    assert_same(got[name][k], np.asarray(value, got[name].dtype)[()], f"{name} of env {i}, row {k}")

    def resume(self) -> None:
        """After an error of the policy new episodes come; with `episode_seeds` the collector is shut down."""
        if self.numbered is not None:
            with pytest.raises(RuntimeError, match="was shut down after ArithmeticError"):
                self.collector.next()
            self.over = True
            return
        self.collector.reset()
        self.follow()

    @rule()
    def reset_elsewhere(self) -> None:
        """Another caller resets the vector env. The next batch begins new episodes."""
        if self.numbered is None and not self.is_async and self.policy != "stateful":  # the loop counts calls anew
            self.venv.reset()
            self.follow()

    def follow(self) -> None:
        """Give the envs of the loop the state of the collector's envs."""
        for name in ("calls", "episode", "t", "seeded", "options", "mark"):
            for env, value in zip(self.envs, self.venv.get_env_attr(name), strict=True):
                setattr(env, name, value)
        self.rows, self.restart = [self.transitions(i) for i in range(self.n)], [False] * self.n

    def cut(self, batch: Any) -> None:
        for episode in self.cutter.cut(batch):
            seeds = dict(self.numbered or ())
            assert episode.number in seeds, f"episode {episode.number} was not asked for"
            assert episode.number not in self.played, f"episode {episode.number} comes twice"
            assert episode.number not in self.broken, f"the env of episode {episode.number} failed"
            self.played.add(episode.number)
            env, want, over, t = MaskedTold(), list[Any](), False, 0
            env.action_space = spaces.Discrete(1000, seed=action_seed(0, episode.number))
            obs, info = env.reset(seed=seeds[episode.number])
            while not over:
                action: Any = action_of(self.policy, obs, 0, t, t, info)
                if self.policy == "random":
                    action = env.action_space.sample(info.get("action_mask"))
                elif self.policy == "noisy":
                    action = self.samples[episode.number][t]
                following, reward, terminated, _, info = env.step(action)
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
        missing = {number for number, _ in self.numbered or ()} - self.played - self.broken
        assert not missing, f"the episodes {missing} are missing"


def as_arrays(flat: Any) -> dict[str, np.ndarray]:
    """The columns of a flat batch as arrays."""
    names = ("obs", "action", "reward", "terminated", "truncated", "step_count", "env_ids", "policy_version")
    more = {"next": flat.next.obs, **{key: flat.extras[key] for key in ("action_mask", "told") if key in flat.extras}}
    return {name: np.asarray(column) for name, column in ({name: getattr(flat, name) for name in names} | more).items()}
