"""Trajectories of an env, and their first difference. The tests of jobs use the probe."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from vecenv.testing import CountingEnv
from vecenv.tuning import repeats
from vecenv.tuning.repeats import Difference, RepeatProbe, first_difference, flatten, play

NAN = float("nan")
GRAPH = spaces.GraphInstance(np.zeros((2, 1)), np.zeros((1, 1)), np.zeros((1, 2), int))
DIFFERENCES = [
    (np.array([1.0, NAN]), np.array([1.0, NAN]), ""),
    (np.array([0.0, 1.0]), np.array([-0.0, 1.0]), "obs[0] is 0.0 and -0.0"),
    (np.zeros((2, 3)), np.eye(2, 3) * 0 + np.arange(3), "obs[0][1] is 0.0 and 1.0"),
    (np.zeros(2), np.zeros(2, np.float32), "obs is a ndarray float64(2,) and a ndarray float32(2,)"),
    (np.zeros(2), np.zeros(3), "obs is a ndarray float64(2,) and a ndarray float64(3,)"),
    (NAN, NAN, ""),
    (np.nan, -np.nan, ""),
    (np.array([NAN, 0.0], np.float32), np.array([-NAN, -0.0], np.float32), "obs[1] is 0.0 and -0.0"),
    (np.array([-NAN, 1j]), np.array([NAN, 1j]), ""),
    (1, 1.0, "obs is a int int64() and a float float64()"),
    ("north", "south", "obs is 'north' and 'south'"),
    (None, None, ""),
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
    rows = [
        list(play(CountingEnv(length=3), 5, lambda obs, info, action=action: action, n))
        for action, n in ((1, 9), (1, 2), (2, 2))
    ]
    assert [len(each) for each in rows] == [4, 3, 3]
    assert [row["obs"][2] for row in rows[0]] == [0, 1, 2, 3]
    assert first_difference(rows[0], rows[1]) is None
    assert first_difference(rows[0], rows[2]) == Difference(1, "obs[4]", "1", "2")


class Failing(CountingEnv):
    """Env that fails in step 3, or cannot be reset."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at

    def reset(self, **kwargs: Any) -> Any:
        if not self._at:
            raise OverflowError("no reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if self.t == self._at:
            raise OverflowError("no step")
        return super().step(action)


def test_a_failed_step_ends_a_trajectory_and_a_failed_reset_is_raised() -> None:
    seeds = [(1, 1), (2, 2)]
    assert "keeps a state of the episode before: obs[1]" in RepeatProbe(lambda: Failing(3), seeds).find_difference()
    with pytest.raises(OverflowError, match="no reset"):
        RepeatProbe(lambda: Failing(0), seeds).find_difference()


class Drawing(CountingEnv):
    """Env with rewards from `random`, which `reset` seeds."""

    def reset(self, *, seed: int | None = None, **kwargs: Any) -> Any:
        random.seed(seed)
        return np.zeros(1), super().reset(seed=seed, **kwargs)[1]

    def step(self, action: Any) -> Any:
        return np.zeros(1), random.random(), *super().step(action)[2:]


def test_a_slow_reset_leaves_time_for_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the first `torch.manual_seed` of a process, which imports modules."""
    monkeypatch.setattr(repeats, "SECONDS", 0.0)
    assert "reward of step 1 is" in RepeatProbe(Drawing, [(1, 1), (2, 2)]).find_difference()
