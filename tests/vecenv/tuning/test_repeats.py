"""Trajectories of an env and their first difference, and random actions that an `action_mask` allows.

The tests of jobs use the probe, too.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from tests.support.backends import FULL
from tests.support.seeded_envs import Masked
from vecenv import make_vec, tune
from vecenv.random_actions import sample_action
from vecenv.testing import CountingEnv, RaisesOnReset, RaisesOnStep, check_env
from vecenv.transforms import NoopReset, TransformedEnv
from vecenv.tuning.repeats import RepeatProbe, first_difference, flatten, play

NAN = float("nan")
GRAPH = spaces.GraphInstance(np.zeros((2, 1)), np.zeros((1, 1)), np.zeros((1, 2), int))
DIFFERENCES = [
    (np.array([1.0, NAN]), np.array([1.0, -NAN]), ""),
    (np.array([-NAN, 1j]), np.array([NAN, 1j]), ""),
    (np.array([0.0, 1.0]), np.array([-0.0, 1.0]), "obs[0] is 0.0 and -0.0"),
    (np.zeros((2, 3)), np.zeros((2, 3)) + np.arange(3), "obs[0][1] is 0.0 and 1.0"),
    (np.zeros(2), np.zeros(2, np.float32), "obs is a ndarray float64(2,) and a ndarray float32(2,)"),
    (NAN, NAN, ""),
    (1, 1.0, "obs is a int int64() and a float float64()"),
    ("north", "south", "obs is 'north' and 'south'"),
    ([np.zeros(2), np.zeros(3)], [np.zeros(2), np.zeros(3)], ""),
    ([np.zeros(2), np.zeros(3)], [np.zeros(2), np.ones(3)], "obs is [array([0., 0.])"),
    (GRAPH, GRAPH._replace(nodes=np.ones((2, 1))), "obs[0][0][0] is 0.0 and 1.0"),
    ({"a": (1, 2)}, {"a": (1, 3)}, "obs['a'][1] is 2 and 3"),
    ({"a": 1}, {"a": 1, "b": 2}, "obs['b'] is 'missing' and 2"),
]


@pytest.mark.parametrize(("one", "other", "words"), DIFFERENCES)
def test_the_first_difference_is_in_words(one: Any, other: Any, words: str) -> None:
    rows = [flatten({"obs": each}, lambda leaf: leaf) for each in (one, other)]
    found = first_difference([rows[0], {"obs": 0}], [rows[1]])
    assert bool(found) is bool(words)
    if found is not None:
        assert f"{found.name} is {found.one} and {found.other}".startswith(words)


def test_a_trajectory_has_copies_and_ends_with_its_episode_or_its_actions() -> None:
    lengths = {}
    for steps in (2, 9):
        rows = list(play(CountingEnv(length=3), 5, lambda obs, info: 1, steps))
        lengths[steps] = [row["obs"][2] for row in rows]
    assert lengths == {2: [0, 1, 2], 9: [0, 1, 2, 3]}


def test_a_failed_step_ends_a_trajectory_and_a_failed_reset_is_raised() -> None:
    seeds = [(1, 1), (2, 2)]
    assert (
        "keeps a state of the episode before: obs[1]"
        in RepeatProbe(partial(RaisesOnStep, at=3), seeds).find_difference()
    )
    with pytest.raises(ValueError, match="boom in reset"):
        RepeatProbe(partial(RaisesOnReset, at=0), seeds).find_difference()


class Drawing(CountingEnv):
    """Env with rewards from `random`, which `reset` seeds."""

    def reset(self, *, seed: int | None = None, **kwargs: Any) -> Any:
        random.seed(seed)
        return np.zeros(1), super().reset(seed=seed, **kwargs)[1]

    def step(self, action: Any) -> Any:
        return np.zeros(1), random.random(), *super().step(action)[2:]


def test_a_slow_reset_leaves_time_for_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the first `torch.manual_seed` of a process, which imports modules."""
    monkeypatch.setattr("vecenv.tuning.repeats.SECONDS", 0.0)
    assert "reward of step 1 is" in RepeatProbe(Drawing, [(1, 1), (2, 2)]).find_difference()


@FULL
def test_all_that_plays_random_actions_draws_allowed_ones(caplog: pytest.LogCaptureFixture) -> None:
    make = partial(Masked, "info")
    rows = tune([make] * 2, pause=0.0, seconds=0.1).rows
    assert all(row.steps_per_second for row in rows), rows
    result = check_env(make, steps=40)
    assert result.ok, result
    _, info = TransformedEnv(make(), NoopReset(6, random=False)).reset(seed=0)
    assert "action_mask" in info
    with caplog.at_level("INFO", "vecenv"):
        make_vec(EnvSpec("Masked-v0", entry_point=make, disable_env_checker=True), 2, backend="auto").close()
    assert "a step takes" in caplog.text


@pytest.mark.parametrize(
    ("obs", "info", "drawn"),
    [
        ({"action_mask": [0, 1, 0, 0]}, {}, 1),
        ({"mask": np.array([False, False, True, False])}, {}, 2),
        ({"action_mask": [0, 1, 0, 0]}, {"action_mask": [0, 0, 0, 1]}, 3),
        ({"action_mask": [0, 1, 0, 0]}, {"action_mask": None}, 1),
    ],
)
def test_the_mask_is_in_the_info_or_the_observation(obs: Any, info: Any, drawn: int) -> None:
    assert [sample_action(spaces.Discrete(4), obs, info) for _ in range(5)] == [drawn] * 5
