"""Collectors against a short loop: the same transitions, in the same order, from each env."""

from __future__ import annotations

import inspect
import os
import signal
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from collector import AsyncDataCollector, EpisodeCutter, Interruptor, SyncDataCollector, action_seed
from tests.fuzz.driver import Program
from tests.fuzz.envs import Scripted, Told, assert_same
from tests.fuzz.episodes import compare_episode, keyed_actions
from tests.support.leaky import always
from vecenv import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv, nest
from vecenv.arguments import seed_chain

N = 4
BACKENDS = [DummyVectorEnv, DummyVectorEnv, ThreadVectorEnv, ShmemVectorEnv, SubprocVectorEnv]


def chosen(numbers: Any) -> Any:
    """The actions that each policy chooses for these numbers."""
    return abs(numbers * 16).astype(np.int64) % 90


def first(obs: Any) -> Any:
    """Return the first number of each observation."""
    return (obs["z"] if isinstance(obs, Mapping) else obs)[:, 0]


def array_policy(obs: Any) -> Any:
    return chosen(first(obs))


class ModulePolicy(torch.nn.Module):
    def forward(self, obs: Any) -> Any:
        return (first(obs) * 16).abs().long() % 90


def recurrent_policy(obs: Any, state: Any) -> Any:
    """Acts by the number of steps that it has seen of the episode."""
    state = np.zeros(len(first(obs)), np.int64) if state is None else state
    return {"action": (chosen(first(obs)) + state) % 90, "state": state + 1, "seen": state.copy()}


def env_policy(obs: Any, env_id: Any) -> Any:
    return (chosen(first(obs)) + env_id) % 90


class StatefulPolicy:
    """Acts by the number of times that it was called for the env."""

    def __init__(self) -> None:
        self.calls = np.zeros(N, np.int64)

    def __call__(self, obs: Any, env_id: Any) -> Any:
        action = (chosen(first(obs)) + self.calls[env_id]) % 90
        self.calls[env_id] += 1
        return action


def mask_policy(obs: Any, action_mask: Any) -> Any:
    """Takes the first action that the info allows; 0 if the info has no mask."""
    return np.zeros(len(first(obs)), np.int64) if action_mask is None else action_mask.argmax(1)


def info_policy(obs: Any, info: Any) -> Any:
    return np.array([of_info(row) for row in info])


class NoisyPolicy(torch.nn.Module):
    """Draws actions; it is recurrent, too. Each number is computed by itself: its last bits do not depend on others."""

    def forward(self, obs: Any, state: Any = None) -> Any:
        state = torch.zeros(len(obs)) if state is None else state
        logits = torch.cos(torch.arange(50) * (1 + obs[:, :1].float().abs() + state[:, None]))
        return {"action": torch.distributions.Categorical(logits=logits), "state": state + 1}


class Acts:
    """Policy that raises in one of its calls, or stops the collection in another."""

    def __init__(self, policy: Any, raises_at: int, stops_at: int, interruptor: Interruptor) -> None:
        self.policy, self.interruptor, self.calls = policy, interruptor, 0
        self.raises_at, self.stops_at = raises_at, stops_at
        self.__signature__ = inspect.signature(policy)

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.calls += 1
        if self.calls == self.raises_at:
            raise ArithmeticError("the policy raises")
        if self.calls == self.stops_at:
            self.interruptor.stop_collection()
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
COLUMNS = ["obs", "action", "reward", "terminated", "truncated", "traj_ids", "step_count", "env_ids", "policy_version"]
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
    return {
        "told": np.array([[of_info(info), pay] for info, pay in zip(step.info, payments(step.reward), strict=True)])
    }


def payments(reward: Any) -> np.ndarray:
    """Return the first number of each reward."""
    return np.asarray(reward).reshape(len(reward), -1)[:, 0]


def action_of(policy: str, obs: Any, i: int, t: int, calls: int, info: Any) -> int:
    """The action that the policy has to choose for one observation."""
    if policy == "mask":
        return int(info["action_mask"].argmax()) if "action_mask" in info else 0
    if policy == "info":
        return of_info(info)
    more = {"recurrent": t, "env_id": i, "stateful": calls}.get(policy, 0)
    return int((chosen((obs["z"] if isinstance(obs, Mapping) else obs)[:1])[0] + more) % 90)


class Fuzz(Program):
    """Programs of the collectors. `rows` has, for each env, the generator of the transitions that a plain loop makes.

    The oracle takes actions that are drawn from the batch, if the env allows them. With `episode_seeds` it knows them:
    they are samples of the env's own space or, for a policy with keyed noise, the actions of a collector with one env.
    """

    steps = 8
    kinds: ClassVar[tuple[str, ...]] = ("sync", "async", "numbered")
    backends: ClassVar[Any] = BACKENDS

    def __init__(self) -> None:
        import tensordict  # noqa: F401  before the timer starts, because it is slow, and not in workers

        super().__init__()

    @initialize(data=st.data())
    def make(self, data: Any) -> None:
        def draw(name: str, *values: Any) -> Any:
            return data.draw(st.sampled_from(values), name)

        self.kind, self.n = draw("kind", *self.kinds), draw("envs", *range(1, N + 1))
        self.policy, self.most = draw("policy", *POLICIES), draw("max_frames_per_traj", None, 1, 2, 3, 4)
        self.seed, backend = draw("seed", *range(100)), draw("backend", *self.backends)
        has_processes = backend in (ShmemVectorEnv, SubprocVectorEnv)
        self.numbered: Any = None
        self.over, self.cuts, self.interruptor = False, False, Interruptor()
        self.restart, self.may_restart, self.has_begun, self.has_ended = ([False] * self.n for _ in range(4))
        of_env: dict[str, Any] = {"on_error": "restart", "max_restarts": 10**6, "copy": draw("copy", True, False)}
        if backend is not DummyVectorEnv:
            of_env["num_workers"] = draw("workers", *range(1, self.n + 1))
        if has_processes and draw("recycles", False, False, True):
            of_env["recycle_after"] = always
        options: dict[str, Any] = {
            "max_frames_per_traj": self.most,
            "return_same_td": draw("return_same_td", False, True),
            "storing_device": draw("storing_device", None, "cpu"),
            "interruptor": self.interruptor,
            "info_keys": ["action_mask"],
        }
        if self.kind == "numbered":
            numbers = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True), "numbers")
            self.numbered = [(number, 7 * number + self.seed) for number in numbers]
            self.policy = "array" if self.policy in KNOW_THE_ENV else self.policy
            fault = draw("fault", "", "", "raise", "raise", "die" if has_processes else "raise")
            if fault == "die":  # the worker of a dead env hosts no other
                of_env["num_workers"] = self.n
            elif has_processes:
                of_env["spare_envs"] = draw("spare_envs", 0, 1, 2)
            fns: list[Any] = [partial(MaskedTold, fault)] * self.n
            self.broken = {number for number, own in self.numbered if fault and self.most != 1 and fails(own)}
            options["episode_seeds"] = list(self.numbered)
        else:
            self.policy = "module" if self.policy == "noisy" else self.policy  # its noise would be torch's
            self.at_each_iter = self.kind == "sync" and draw("reset_at_each_iter", False, False, False, True)
            fails_at = [draw("fails at", 0, 0, *range(12)) for _ in range(self.n)]
            self.faults = any(fails_at)
            of_each: dict[str, Any] = {"space": draw("observations", "floats", "boxes")}
            of_each["rewards"] = draw("rewards", "float", "vector")
            making = [
                partial(Masked, i, faults={("step", at): "raise"} if at else {}, **of_each)
                for i, at in enumerate(fails_at)
            ]
            self.envs, fns = [make() for make in making], [*making]
            self.marks = options["set_truncated"] = draw("set_truncated", False, False, True)
            options["split_trajs"] = draw("split_trajs", False, False, True)
            if self.kind == "sync":
                options["reset_at_each_iter"] = self.at_each_iter
            else:
                flights: list[Any] = [{}, {"wait_num": draw("wait_num", *range(1, self.n + 1))}, {"timeout": 0.01}]
                of_env |= (flight := draw("flight", *flights))
                options |= {} if flight else {"groups": draw("groups", 1, 2, 3)}
            if self.policy not in ("recurrent", "stateful", "random"):
                options["init_random_frames"] = draw("init_random_frames", 0, 0, 0, 5, 12)  # a state would not advance
        self.acts = acts = POLICIES[self.policy]()
        self.calls, self.is_fresh = [0] * self.n, True
        if self.policy not in ("stateful", "random", "module", "noisy"):
            acts = Acts(acts, draw("raises at", 0, 0, 0, 1, 2, 5), draw("stops at", 0, 0, 2, 7), self.interruptor)
        self.frames = draw("frames_per_batch", *range(1, 10)) * (1 if self.kind == "async" else self.n)
        self.total = self.frames * draw("batches", 99, 99, 3)
        self.venv = backend(fns, **of_env)
        kind = AsyncDataCollector if self.kind == "async" else SyncDataCollector
        options |= {"frames_per_batch": self.frames, "total_frames": self.total}
        self.collector = kind(self.venv, acts, **options)
        self.given = 0, False
        """The action in the row that is compared, and whether it was drawn."""
        if self.numbered is None:
            self.last_ids, self.returns = [-1] * self.n, np.zeros((self.n, 2))
            self.set_seed(self.seed)
        self.samples: Any = {}
        if self.policy == "noisy":
            self.samples = keyed_actions(MaskedTold, NoisyPolicy(), list(reversed(self.numbered)), self.most)
        self.cutter, self.played = EpisodeCutter(), set[int]()

    def close(self) -> None:
        if hasattr(self, "collector"):
            self.collector.shutdown()
        if hasattr(self, "venv"):
            self.venv.close()

    def transitions(self, i: int, seed: int | None = None) -> Iterator[Any]:
        """Play alone. Yield obs, action, reward, flags, next obs, step, mask and info; the number of a failed step."""
        env = self.envs[i]
        while True:
            obs, info = env.reset(seed=seed)
            seed, t, over = None, 0, False
            while not over:
                action = action_of(self.policy, obs, i, t, self.calls[i], info)
                self.calls[i] += 1
                if self.given[1]:
                    action = self.given[0]
                try:
                    following, reward, terminated, truncated, after = env.step(action)
                except KeyError:
                    yield t
                    self.restart[i] = self.may_restart[i] = False
                    break
                if self.given[1] and "action_mask" in info:
                    assert info["action_mask"][action], f"env {i} drew {action}, which is not allowed"
                high = payments([reward])[0] > 0.5
                truncated = truncated or t + 1 == self.most or (self.cuts and high and not terminated)
                over = terminated or truncated
                yield obs, action, reward, terminated, truncated, following, t, after.get("action_mask"), of_info(after)
                obs, info, t = following, after, t + 1
                over |= self.restart[i]
                self.restart[i] = self.may_restart[i] = self.may_restart[i] and not over

    def told_and_cut(self, step: Any) -> Any:
        """A step hook that resets the envs with a high reward, which truncates their episodes."""
        if self.cuts and (high := payments(step.reward) > 0.5).any():
            self.collector.reset(step.env_id[high])
        return told(step)

    @rule(hooks=st.lists(st.booleans(), min_size=2, max_size=6))
    def batches(self, hooks: list[bool]) -> None:
        """Batches one after the other, so that episodes go on in the next batch."""
        for hooked in hooks:
            self.batch(hooked)

    def batch(self, hooked: bool) -> None:
        if self.over:
            return
        self.is_fresh = False
        try:
            if hooked and self.numbered is None:
                self.cuts = self.kind == "sync"
                batch = self.collector.collect(n_step=self.frames, on_step=self.told_and_cut).batch
            else:
                self.cuts = hooked = False
                if self.numbered is None and self.at_each_iter:
                    self.restart = [*self.has_begun]
                batch = self.collector.next()
        except ArithmeticError:
            self.resume()
            return
        if batch is None:
            self.end()
            return
        check_forms(batch)
        stopped = self.resume_collection()
        if self.numbered is not None:
            self.cut(batch)
            return
        taken = batch.frames + len(batch.broken_ids) * (self.kind == "sync")
        assert taken == self.frames or stopped, f"{taken} of {self.frames} steps"
        self.check_envs(batch, batch.broken_ids, marked=self.marks and not hooked)
        if self.collector.frames >= self.total:
            assert self.collector.next() is None
            self.over = True

    def resume_collection(self) -> bool:
        stopped = self.interruptor.collection_stopped()
        self.interruptor.start_collection()
        return stopped

    def check_envs(self, batch: Any, broken_ids: Any = (), marked: bool = False) -> None:
        """Compare the rows of each env with the next rows of its loop.

        broken_ids: ids of the episodes that failed. marked: the last rows are truncated.
        """
        flat = as_arrays(batch.flatten())
        assert (np.diff(flat["env_ids"]) >= 0).all(), "the steps are not in the order of the envs"
        ended = []
        for i in range(self.n):
            failures = sum(traj_id % self.n == i for traj_id in broken_ids)  # an episode fails once
            ended += self.check(i, nest.take(flat, flat["env_ids"] == i), failures, marked)
        found = np.asarray(batch.episode_returns)
        assert len(found) == len(ended), f"{len(found)} returns of {len(ended)} episodes"
        for one, other in zip(found, ended, strict=True):
            np.testing.assert_allclose(one, other[: np.size(one)] if np.ndim(one) else other[0], atol=1e-9)

    def check(self, i: int, got: dict[str, Any], failures: int, marked: bool) -> list[Any]:
        """Compare the rows of env i with the next rows of its loop. Return the returns of the episodes that end.

        failures: number of failed steps in the batch. The step before a failed step of the same batch is truncated.
        """
        ended, truncated, count = [], list[bool](), len(got["action"])
        for k in range(count):
            self.given = int(got["action"][k]), self.policy == "random" or got["policy_version"][k] < 0
            self.restart[i] |= self.may_restart[i] and got["step_count"][k] == 0
            row = next(self.rows[i])
            while isinstance(row, int):
                failures = self.fail(row, failures, truncated)
                row = next(self.rows[i])
            *row, mask, info = row
            if "told" in got and not (self.kind == "async" and not got["told"][k].any()):  # a step of an earlier call
                assert got["told"][k].tolist() == [info, payments([row[2]])[0]], f"the hook's info of env {i}, row {k}"
            if "action_mask" in got:
                assert_same(got["action_mask"][k], np.zeros(100, np.int8) if mask is None else mask, "the mask after")
            else:
                assert mask is None, f"the mask of env {i}, row {k}, is not stored"
            truncated.append(row.pop(4))
            names = ("obs", "action", "reward", "terminated", "next", "step_count")
            for name, value in zip(names, row, strict=True):
                assert_row(got[name], k, value, f"{name} of env {i}, row {k}")
            self.has_begun[i], self.has_ended[i] = True, row[3] or truncated[k]
            ended += self.add_step(i, int(got["traj_ids"][k]), row[2], self.has_ended[i], row[5])
        while failures:
            row = next(self.rows[i])
            assert isinstance(row, int), f"env {i} failed in this batch, and a loop goes on with {row}"
            failures = self.fail(row, failures, truncated)
        if marked and truncated:
            truncated[-1] = True
        assert_same(got["truncated"], np.array(truncated, np.bool_), f"truncated of env {i}")
        return ended

    def fail(self, t: int, failures: int, truncated: list[bool]) -> int:
        """Record that step t of an episode failed. Return the number of failed steps that remain in the batch."""
        assert failures, "a step failed, and the batch does not report it"
        if truncated and t:
            truncated[-1] = True
        return failures - 1

    def add_step(self, i: int, traj_id: int, reward: Any, has_ended: bool, t: int) -> list[Any]:
        """Check the id of the step's episode, and add to its return. Return a list with the return at the end."""
        if t == 0:
            self.returns[i] = 0
        assert traj_id % self.n == i
        assert traj_id > self.last_ids[i] if t == 0 else traj_id == self.last_ids[i], f"id {traj_id} in env {i}"
        self.last_ids[i] = traj_id
        self.returns[i] += reward
        return [self.returns[i].copy()] if has_ended else []

    @rule(count=st.integers(1, 6))
    def whole_episodes(self, count: int) -> None:
        """Each env plays its share of whole episodes. A failure or an early stop leaves no part of an episode."""
        if self.numbered is not None:
            self.batch(False)  # numbered episodes are always whole
            return
        if self.over or self.policy == "random":
            return
        self.collector.reset()
        self.follow()
        self.given, self.cuts = (0, False), False
        self.rows = [without_broken(self.transitions(i)) for i in range(self.n)]
        try:
            stats = self.collector.collect(n_episode=count)
        except ArithmeticError:
            self.resume()
            return
        check_forms(stats.batch)
        if not self.resume_collection():
            ids = stats.batch.env_ids[stats.batch.step_count == 0]
            assert np.bincount(ids, minlength=self.n).tolist() == [(count - i - 1) // self.n + 1 for i in range(self.n)]
        assert (stats.batch.terminated | stats.batch.truncated).sum() == len(stats.lens) == stats.n_collected_episodes
        assert stats.lens.sum() == stats.batch.frames == stats.n_collected_steps
        np.testing.assert_array_equal(stats.batch.episode_returns, stats.returns)
        self.check_envs(stats.batch)
        self.collector.reset()
        self.follow()

    def resume(self) -> None:
        """After an error of the policy new episodes come; with `episode_seeds` the collector is shut down."""
        self.resume_collection()
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
        if self.kind != "sync":
            self.batch(False)
        elif not self.over:
            self.venv.reset()
            self.follow()

    @rule(ids=st.sets(st.integers(0, N - 1), min_size=1))
    def reset_some(self, ids: set[int]) -> None:
        """Steps in flight still belong to the episodes before. It is open whether a reset is in flight, too."""
        is_open = [self.kind == "async" and (self.faults or each) for each in self.has_ended]
        some = [i for i in ids if i < len(is_open) and not is_open[i]]
        if self.over or self.numbered is not None or not some:
            return
        self.collector.reset(some)
        if self.kind == "sync" or self.is_fresh or len(some) == self.n:
            self.follow(some)
        else:
            for i in some:
                self.may_restart[i] = True

    @rule(seed=st.integers(0, 99))
    def set_seed_again(self, seed: int) -> None:
        if not self.over and self.numbered is None:
            self.collector.reset()
            self.follow()
            self.set_seed(seed)

    def set_seed(self, seed: int) -> None:
        """Seed the collector and the loop."""
        self.collector.set_seed(seed)
        self.rows = [self.transitions(i, own) for i, own in enumerate(seed_chain(seed, self.n)[: self.n])]

    @rule()
    def load_state(self) -> None:
        """A collector that loads a state begins new episodes, with ids that are new."""
        if self.numbered is not None:
            self.batch(False)
        elif not self.over:
            state = self.collector.state_dict()
            self.collector.load_state_dict(state)
            assert self.collector.frames == state["frames"]
            self.follow()

    def follow(self, ids: Any = None) -> None:
        """Give the envs of the loop the state of the collector's envs, which all begin new episodes."""
        ids = range(self.n) if ids is None else ids
        for name in ("calls", "episode", "t", "seeded", "options", "mark"):
            for i, value in zip(ids, self.venv.get_env_attr(name, list(ids)), strict=True):
                setattr(self.envs[i], name, value)
        for i in ids:
            self.rows[i], self.restart[i], self.may_restart[i] = self.transitions(i), False, False
            self.has_begun[i] = self.has_ended[i] = False
            if self.policy == "stateful":
                self.calls[i] = self.acts.calls[i]
        self.is_fresh = True

    def cut(self, batch: Any) -> None:
        for episode in self.cutter.cut(batch):
            seeds = dict(self.numbered or ())
            assert episode.number in seeds, f"episode {episode.number} was not asked for"
            assert episode.number not in self.played, f"episode {episode.number} comes twice"
            assert episode.number not in self.broken, f"the env of episode {episode.number} failed"
            self.played.add(episode.number)
            space = spaces.Discrete(1000, seed=action_seed(0, episode.number))

            def choose(obs: Any, info: Any, step: int, space: Any = space, number: int = episode.number) -> Any:
                if self.policy == "noisy":
                    return self.samples[number][step]
                if self.policy == "random":
                    return space.sample(info.get("action_mask"))
                return action_of(self.policy, obs, 0, step, step, info)

            compare_episode(episode, MaskedTold(), seeds[episode.number], self.most, choose)

    def end(self) -> None:
        self.over = True
        missing = {number for number, _ in self.numbered or ()} - self.played - self.broken
        assert not missing or self.collector.frames >= self.total, f"the episodes {missing} are missing"


def as_arrays(flat: Any) -> dict[str, Any]:
    """Return the columns of a flat batch as arrays."""
    more = {"next": flat.next.obs, **{key: flat.extras[key] for key in ("action_mask", "told") if key in flat.extras}}
    return nest.map(np.asarray, {name: getattr(flat, name) for name in COLUMNS} | more)


def assert_row(column: Any, k: int, value: Any, what: str) -> None:
    """Compare row k of a column with a value of a loop."""
    if isinstance(column, Mapping):
        for key, rows in column.items():
            assert_row(rows, k, value[key], f"{what}[{key!r}]")
    else:
        assert_same(column[k], np.asarray(value, column.dtype)[()], what)


def without_broken(rows: Iterator[Any]) -> Iterator[Any]:
    """Yield the rows of the episodes that do not fail."""
    episode = list[Any]()
    for row in rows:
        has_failed = isinstance(row, int)
        episode = [] if has_failed else [*episode, row]
        if not has_failed and (row[3] or row[4]):
            yield from episode
            episode = []


def check_forms(batch: Any) -> None:
    """Check that all forms of a batch have the same steps, and that `done` is True before a step of another episode."""
    flat = as_arrays(batch.flatten())
    last = np.append(np.diff(flat["traj_ids"]) != 0, True)[: len(flat["traj_ids"])]
    np.testing.assert_array_equal(batch.flatten().done, flat["terminated"] | flat["truncated"] | last)
    split = batch.split_trajectories()
    check_split(split)
    for form in (split, split.to("cpu"), batch.to("cpu"), batch.to("cpu").split_trajectories()):
        assert_same(as_arrays(form.flatten()), flat, "another form")
    found = batch.flatten().to_tensordict()["next"]
    np.testing.assert_array_equal(found["done"][:, 0], batch.flatten().done)
    np.testing.assert_array_equal(found["terminated"][:, 0] | found["truncated"][:, 0], batch.flatten().done)


def check_split(split: Any) -> None:
    """Check that each row of the batch is a run of steps of one episode, with padding behind."""
    mask, ids, ends = (np.asarray(column) for column in (split.mask, split.traj_ids, np.zeros(split.shape, np.bool_)))
    assert (np.diff(mask.astype(int), axis=1) <= 0).all()
    np.testing.assert_array_equal(ids, np.where(mask, ids[:, :1], -1))
    np.testing.assert_array_equal(split.next.step_count, np.where(mask, np.asarray(split.step_count) + 1, 0))
    assert not np.asarray(split.reward)[~mask].any()
    at = np.asarray(split.final_env), np.asarray(split.final_time)
    ends[at] = True
    flags = np.asarray(split.terminated | split.truncated)
    assert (flags | ~ends).all(), "a step with a last observation did not end its episode"
    is_last = mask & ~np.pad(mask[:, 1:], ((0, 0), (0, 1)), constant_values=True)
    np.testing.assert_array_equal(split.done, flags | is_last)
    for one, other in zip(nest.leaves(split.final_obs), nest.leaves(split.next.obs), strict=True):
        np.testing.assert_array_equal(one, np.asarray(other)[at])
