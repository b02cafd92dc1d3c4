"""A critic that is right everywhere stays right: its targets are 10 in each form of the data, at each kind of end."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from collector import (
    AsyncDataCollector,
    EpisodeCutter,
    EpisodeSeeds,
    FlatRollout,
    Interruptor,
    MultiStep,
    Rollout,
    SyncDataCollector,
)
from tests.support.backends import FULL
from tests.support.collector_envs import arrays, zeros
from vecenv import DummyVectorEnv

GAMMA, LAMBDA, RIGHT = 0.9, 0.95, 10.0
FLAGS = ["terminated", "truncated", "limit", "cut"]
"""Ends of episodes. "limit": by `max_frames_per_traj`. "cut": only the batch or a failure cuts an episode."""
Batch = Rollout | FlatRollout
pytestmark = pytest.mark.filterwarnings("ignore:.*broke off because envs failed:RuntimeWarning")


class Steady(gymnasium.Env):
    """Env whose right value is 10 in each state: a step pays 1, and the step that terminates the episode pays 10.

    The observation is 1 and a random number. Padding has 0 instead of 1.
    """

    observation_space = spaces.Box(-9, 9, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, flag: str, length: int, fails_at: int = 0) -> None:
        self.flag, self.length, self.fails_at, self.steps = flag, length, fails_at, 0

    def _obs(self) -> np.ndarray:
        return np.array([1.0, self.np_random.normal()])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = self.length
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.steps, self.left = self.steps + 1, self.left - 1
        if self.steps == self.fails_at:
            raise OverflowError("the env broke")
        terminated, truncated = (self.flag == each and self.left == 0 for each in ("terminated", "truncated"))
        return self._obs(), RIGHT if terminated else 1.0, terminated, truncated, {}


LENGTHS = (3, 5, 7)


def venv(flag: str, fails_at: int = 0) -> DummyVectorEnv:
    fns = [partial(Steady, flag, length, fails_at and fails_at + i) for i, length in enumerate(LENGTHS)]
    return DummyVectorEnv(fns, on_error="restart")


def options(flag: str) -> dict[str, Any]:
    return {"frames_per_batch": 33, "max_frames_per_traj": 4 if flag == "limit" else None}


def two(kind: type, flag: str, fails_at: int = 0, **others: Any) -> list[Batch]:
    with kind(venv(flag, fails_at), zeros, **options(flag), **others) as collector:
        collector.set_seed(0)
        return [collector.next(), collector.next()]


def stopped(flag: str) -> list[Batch]:
    """Batch that ends after six rounds. Env 0 was reset while the others stepped, so it has fewer steps."""
    interruptor, rounds = Interruptor(), list[int]()

    def stop(obs: np.ndarray) -> np.ndarray:
        rounds.append(len(obs))
        if len(rounds) == 6:
            interruptor.stop_collection()
        return zeros(obs)

    seeds = EpisodeSeeds(0, numbers=range(4))
    with SyncDataCollector(
        venv(flag), stop, interruptor=interruptor, episode_seeds=seeds, **options(flag)
    ) as collector:
        return [collector.next()]


SOURCES: dict[str, Callable[[str], list[Batch]]] = {
    "sync": partial(two, SyncDataCollector),
    "async": partial(two, AsyncDataCollector),
    "set_truncated": partial(two, SyncDataCollector, set_truncated=True),
    "failures": partial(two, SyncDataCollector, fails_at=9),
    "stopped": stopped,
}
FORMS: dict[str, Callable[[Batch], Batch]] = {
    "as collected": lambda batch: batch,
    "flat": lambda batch: batch.flatten(),
    "split": lambda batch: batch.split_trajectories(),
    "padded with 7": lambda batch: batch.split_trajectories(7),
    "split, then flat": lambda batch: batch.split_trajectories().flatten(),
}
RIGHT_CRITICS: dict[str, Callable[[Any], Any]] = {
    "by observation": lambda obs: RIGHT * obs[..., 0],
    "in padding too": lambda obs: 0 * obs[..., 0] + RIGHT,
}
right = RIGHT_CRITICS["by observation"]
QUICK = ("sync", "failures", "stopped", "async")
every_source = pytest.mark.parametrize(
    "source", [*QUICK, *(pytest.param(each, marks=FULL) for each in SOURCES if each not in QUICK)]
)
every_flag = pytest.mark.parametrize("flag", FLAGS)
collected = cache(lambda source, flag: SOURCES[source](flag))


@cache
def in_each_form(source: str, flag: str) -> list[tuple[str, Batch]]:
    return [
        (form + text, convert(each))
        for batch in collected(source, flag)
        for text, each in (("", batch), (", as tensors", batch.to("cpu")))
        for form, convert in FORMS.items()
    ]


def gae(batch: Batch, value: Callable[[Any], Any]) -> np.ndarray:
    """Return the targets of the steps, as a program computes them that knows only `done` and `terminated`."""
    values, after = np.asarray(value(batch.obs)), batch.next
    delta = np.asarray(batch.reward + GAMMA * ~batch.terminated * value(after.obs)) - values
    advantage, last = np.zeros_like(delta), np.zeros(delta.shape[:-1])
    for t in reversed(range(delta.shape[-1])):
        advantage[..., t] = last = delta[..., t] + GAMMA * LAMBDA * np.asarray(~batch.done)[..., t] * last
    assert np.array_equal(batch.done, after.done)
    return (advantage + values)[np.asarray(batch.mask)]


@pytest.mark.guarantee("G10.5")
@every_source
@every_flag
def test_each_target_is_right(source: str, flag: str) -> None:
    """tests/fuzz checks that `done` is True at the end of each trajectory, in each form."""
    for form, batch in in_each_form(source, flag):
        for critic, value in RIGHT_CRITICS.items():
            targets = gae(batch, value)
            assert len(targets) > 10
            np.testing.assert_allclose(targets, RIGHT, rtol=1e-6, err_msg=f"{form}, {critic}")


@pytest.mark.guarantee("G10.6")
def test_a_step_before_a_row_without_a_step_is_done() -> None:
    (batch,) = collected("stopped", "truncated")
    env, time = (batch.done & ~(batch.terminated | batch.truncated)).nonzero()
    assert (env.tolist(), time.tolist()) == ([0], [4])
    assert batch.mask[0].tolist() == [True] * 5 + [False]


def joined_by_loop(flat: FlatRollout, n: int) -> Any:
    """For each row: (sum of rewards, row of the last step)."""
    for row in range(flat.frames):
        total, last = flat.reward[row], row
        while last + 1 < min(row + n, flat.frames) and flat.traj_ids[last + 1] == flat.traj_ids[row]:
            last += 1
            total = total + GAMMA ** (last - row) * flat.reward[last]
        yield total, last


@every_source
@every_flag
@pytest.mark.parametrize("n", [1, 3, 50])
def test_multi_step_joins_the_steps_of_an_episode_as_a_loop_does(source: str, flag: str, n: int) -> None:
    for batch in collected(source, flag):
        flat = batch.flatten()
        rewards, last = map(np.array, zip(*joined_by_loop(flat, n), strict=True))
        steps = last - np.arange(flat.frames) + 1
        added = {"steps": steps, "steps_to_next_obs": steps, "discount": GAMMA**steps, "original_reward": flat.reward}
        expected = arrays(flat) | flat.extras | added
        expected |= {name: expected[name][last] for name in ("terminated", "truncated", "next_obs")}
        expected["reward"] = rewards
        for given in (batch, batch.to("cpu")):
            joined = MultiStep(n, GAMMA)(given)
            assert type(joined.reward) is type(given.reward)
            found = arrays(joined) | joined.extras
            assert found.keys() == expected.keys()
            for name, column in found.items():
                np.testing.assert_allclose(column, expected[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@every_source
@every_flag
def test_torchrl_finds_the_same_targets(source: str, flag: str) -> None:
    estimators = pytest.importorskip("torchrl.objectives.value")
    from tensordict.nn import TensorDictModule

    def critic(obs: Any) -> Any:
        return (37 * obs[..., 1]) % 5

    network = TensorDictModule(lambda obs: critic(obs)[..., None], in_keys=["observation"], out_keys=["state_value"])
    estimate = estimators.GAE(gamma=GAMMA, lmbda=LAMBDA, value_network=network)
    for form, batch in in_each_form(source, flag):
        found = estimate(batch.to_tensordict())
        targets = found["value_target"][found["collector", "mask"]][:, 0]
        np.testing.assert_allclose(targets, gae(batch, critic), rtol=1e-5, atol=1e-5, err_msg=form)


@pytest.mark.guarantee("G10.5")
@every_source
@every_flag
def test_each_target_of_an_episode_is_right(source: str, flag: str) -> None:
    """In no form is a cut the end of an episode."""
    counts = set()
    for convert in FORMS.values():
        cutter = EpisodeCutter()
        episodes = [episode for batch in collected(source, flag) for episode in cutter.cut(convert(batch))]
        counts.add(len(episodes))
        for episode in episodes:
            target = episode.reward + GAMMA * ~episode.terminated * right(episode.obs)[1:]
            np.testing.assert_allclose(target, RIGHT)
            assert np.flatnonzero(episode.terminated | episode.truncated).tolist() == [len(episode) - 1]
    assert len(counts) == 1
    assert (counts != {0}) == (flag != "cut" or source == "set_truncated")
