"""Envs with episodes that identify themselves, and that log what reaches them, to check recorded episodes."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from collector import Dataset, Episode
from collector.testing import check_data_set
from tests.support.job_envs import MissionSpace
from vecenv import nest

N, STEPS = 3, 40
BOX, MOVE = spaces.Box(-1, 10_000, (3,), np.float32), spaces.Box(-9, 9, (2,), np.float32)
SAY = spaces.Text(3, min_length=0, charset="abc")
SPACES: dict[str, tuple[Any, Any]] = {
    "box": (BOX, spaces.Discrete(50)),
    "tree": (
        spaces.Dict({"a": BOX, "b": spaces.Tuple([spaces.Discrete(99)]), "c": spaces.Text(20, charset="0123456789 ")}),
        spaces.Dict({"x": spaces.Discrete(50), "y": MOVE, "say": SAY}),
    ),
    # Lists for a Tuple space, as vmas 1.5.2 returns them. There are no texts, as `from_gymnasium` needs.
    "lists": (
        spaces.Dict({"a": BOX, "b": spaces.Tuple([spaces.Discrete(99)])}),
        spaces.Tuple([spaces.Discrete(50), MOVE]),
    ),
    "text": (MissionSpace(), SAY),
}
KEYS = ("count", "half", "success", "legal", "said", "stats.total", "verdict", "score", "reward", "mask")
"""Keys of infos. The last two are also names of columns."""


def reward_of(action: Any) -> float:
    """Return the sum of the numbers in an action, with all their digits, and of the lengths of its texts."""
    leaves = [action[key] for key in ("x", "y", "say")] if isinstance(action, dict) else action
    leaves = leaves if isinstance(leaves, (list, tuple)) else [leaves]
    return sum(len(leaf) if isinstance(leaf, str) else float(np.asarray(leaf, np.float64).sum()) for leaf in leaves)


class Numbered(gymnasium.Env):
    """Env that observes its number, the episode and the step. Episodes have 1 + (number + episode) % 4 steps.

    `log` has the seed of each reset and the actions after it. A reset with the option "unseen" is not to be recorded.
    """

    def __init__(self, number: int, form: str = "box", breaks_at: int = -1, informs: bool = False) -> None:
        self.form, self.number, self.breaks_at, self.informs = form, number, breaks_at, informs
        self.episode, self.taken = -1, 0
        self.observation_space, self.action_space = SPACES[form]
        self.log: list[tuple[Any, bool, list[Any]]] = []

    def observe(self) -> Any:
        obs = np.array([self.number, self.episode, self.taken], np.float32)
        text = f"{self.number} {self.episode} {self.taken}"
        if self.form in ("box", "text"):
            return obs if self.form == "box" else text
        taken = np.int64(self.taken)
        return {"a": obs, "b": [taken]} if self.form == "lists" else {"a": obs, "b": (taken,), "c": text}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.taken = self.episode + 1, 0
        self.log.append((seed, "unseen" in (options or {}), []))
        return self.observe(), {"count": -1, "said": "reset"} if self.informs else {}

    def step(self, action: Any) -> Any:
        self.taken += 1
        if self.episode == self.breaks_at and self.taken == 1:
            raise RuntimeError("broken")
        self.log[-1][2].append(reward_of(action))
        over = self.taken == self.length(self.episode)
        ends = over and self.episode % 2 == 0, over and self.episode % 2 == 1
        if not self.informs:
            return self.observe(), self.log[-1][2][-1], *ends, {}
        info = {key: rows[-1] for key, rows in infos_of(self.taken, over).items() if key not in ("verdict", "score")}
        info |= {"stats": {"total": info.pop("stats.total")}, **({"verdict": "good", "score": 7.5} if over else {})}
        return self.observe(), self.log[-1][2][-1], *ends, info

    def length(self, episode: int) -> int:
        return 1 + (self.number + episode) % 4


def infos_of(length: int, whole: bool = True) -> dict[str, list[Any]]:
    """Return the rows of each key of infos in the steps of an episode."""
    steps = range(1, length + 1)
    last = [whole and step == length for step in steps]
    found: dict[str, list[Any]] = {"count": [*steps], "half": [step / 2 for step in steps], "success": last}
    found |= {"legal": [np.array([step, 0], np.int8) for step in steps], "said": [f"step {step}" for step in steps]}
    found |= {"stats.total": [3.0 * step for step in steps], "verdict": ["good" if each else "" for each in last]}
    found |= {"score": [7.5 * each for each in last], "reward": [-step for step in steps], "mask": [*steps]}
    return found


def env_fns(form: str = "box", **options: Any) -> list[Any]:
    return [partial(Numbered, number, form, **options) for number in range(N)]


def actions(step: int) -> Any:
    return np.random.default_rng(step).integers(0, 50, N)


def assert_whole(data: Dataset, complete: bool = True) -> dict[tuple[int, int], Episode]:
    """Check that each recorded episode is complete, and that its rewards are its actions. Return the episodes by env
    and number.
    """
    check_data_set(data.folder)
    assert data.complete is complete
    found = {}
    for episode in data:
        first = next(nest.leaves(episode.obs))
        if first.dtype == object:
            first = np.array([each.split() for each in first.tolist()], np.float32)
        assert first.dtype == np.float32
        env, number = map(int, first[0, :2])
        length = 1 + (env + number) % 4
        assert first.tolist() == [[env, number, step] for step in range(length + 1)]
        if isinstance(episode.obs, dict):
            assert episode.obs["b"][0].tolist() == [*range(length + 1)]
        if isinstance(episode.obs, dict) and "c" in episode.obs:
            assert episode.obs["c"].tolist() == [f"{env} {number} {step}" for step in range(length + 1)]
        assert [reward_of(nest.take(episode.action, step)) for step in range(length)] == episode.reward.tolist()
        assert (episode.terminated[-1], episode.truncated[-1]) == (number % 2 == 0, number % 2 == 1)
        assert (len(episode), episode.env_id) == (length, env)
        infos = infos_of(length)
        for key, rows in episode.info.items():
            assert rows.dtype == np.array(infos[key]).dtype or rows.dtype == object
            assert rows.tolist() == np.array(infos[key]).tolist()
        found[env, number] = episode
    assert len(found) == len(data)
    return found


def assert_logged(data: Dataset, logs: Any, all_of_them: bool = True) -> int:
    """Check that the data set has each episode that its env has played to the end, with its seed and actions."""
    found = assert_whole(data)
    expected = {
        (env, number): (seed, rewards[: 1 + (env + number) % 4])
        for env, log in enumerate(logs)
        for number, (seed, is_unseen, rewards) in enumerate(log)
        if len(rewards) >= 1 + (env + number) % 4 and not is_unseen
    }
    stored = {key: (episode.seed, episode.reward.tolist()) for key, episode in found.items()}
    assert stored.items() <= expected.items()
    assert not all_of_them or stored == expected, expected.keys() - stored.keys()
    return len(stored)


def play(envs: Any, steps: int = STEPS) -> None:
    """Play in a loop around a vector env of vecenv or of gymnasium."""
    is_engine = not isinstance(envs, VectorEnv)
    is_disabled = not is_engine and envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    envs.reset(seed=5)
    for step in range(steps):
        _, _, terminated, truncated, _ = envs.step(actions(step), **({"autoreset": True} if is_engine else {}))
        if is_disabled and (terminated | truncated).any():
            envs.reset(options={"reset_mask": terminated | truncated})


def without_mode() -> SyncVectorEnv:
    """Return a VectorEnv that does not name its mode."""
    envs = SyncVectorEnv(env_fns())
    envs.metadata = {}
    return envs


class Mapped(VectorWrapper):
    """Passes the observations of `reset`, of `step` and of the ends of episodes through three functions."""

    def __init__(self, envs: Any, first: Any, later: Any, last: Any) -> None:
        super().__init__(envs)
        self.first, self.later, self.last = first, later, last

    def reset(self, **kwargs: Any) -> Any:
        obs, infos = self.env.reset(**kwargs)
        return self.first(obs), infos

    def step(self, actions: Any) -> Any:
        obs, *rest, infos = self.env.step(actions)
        for row in np.flatnonzero(infos.get("_final_obs", ())):
            infos["final_obs"][row] = self.last(infos["final_obs"][row])
        return self.later(obs), *rest, infos


def whole_obs(obs: Any) -> Any:
    return obs.astype(np.int64)


def float_obs(obs: Any) -> Any:
    return obs.astype(np.float64)
