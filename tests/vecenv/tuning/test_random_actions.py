"""`tune`, `auto`, `check_env`, the check of jobs and `NoopReset` draw only actions that an `action_mask` allows."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.support.backends import FULL
from tests.support.seeded_envs import Masked
from vecenv import tune
from vecenv.random_actions import sample_action
from vecenv.testing import check_env
from vecenv.transforms import NoopReset, TransformedEnv
from vecenv.tuning.auto_backend import choose_backend
from vecenv.tuning.repeats import RepeatProbe

PLACES = ["info", pytest.param("obs", marks=FULL)]


@pytest.mark.parametrize("place", PLACES)
def test_tune_measures_each_candidate(place: str) -> None:
    rows = tune([partial(Masked, place)] * 2, pause=0.0, seconds=0.1).rows
    assert all(row.steps_per_second for row in rows), rows


@pytest.mark.parametrize("place", PLACES)
def test_auto_measures_the_env(place: str) -> None:
    assert choose_backend([partial(Masked, place)] * 2, {}).reason.startswith("a step takes")


@pytest.mark.parametrize("place", PLACES)
def test_checks_play_whole_episodes(place: str) -> None:
    assert RepeatProbe(partial(Masked, place), [(0, 0), (1, 1)]).find_difference() == ""
    result = check_env(partial(Masked, place), steps=40)
    assert result.ok, result


@pytest.mark.parametrize("place", PLACES)
def test_random_steps_after_a_reset_are_legal(place: str) -> None:
    _, info = TransformedEnv(Masked(place), NoopReset(6, random=False)).reset(seed=0)
    assert ("action_mask" in info) == (place == "info")


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
