"""`rollout`: start, end, and the state of the envs afterwards."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from collector import Rollout, StepBatch, rollout
from tests.support.collector_envs import cartpoles, countdowns, zeros
from tests.support.countdown import BreaksOnce, Closes, Countdown, DictObs
from vecenv import DummyVectorEnv, SerialEnv, SyncVectorEnv, VectorEnvNormObs

FNS = countdowns(5, 3, 8)


def test_it_stops_with_the_first_episode_that_ends_and_leaves_the_envs_open(backend: type) -> None:
    with backend(FNS) as venv:
        batch = rollout(venv, 20, zeros)
        assert isinstance(batch, Rollout)
        assert batch.done.tolist() == [[False] * 3, [False, False, True], [False] * 3]
        np.testing.assert_array_equal(batch.next.obs[:, -1], [[0, 3]] * 3)
        assert batch.mask.all()
        np.testing.assert_array_equal(venv.step([0, 0], [0, 2])[0], [[0, 4], [0, 4]])
        np.testing.assert_array_equal(rollout(venv, 2, zeros).obs[:, 0], [[1, 0]] * 3)


@pytest.mark.parametrize(
    ("options", "steps", "lengths", "done"),
    [
        ({"break_when_any_done": False}, 9, [9, 9, 9], [1, 3, 1]),
        ({"break_when_all_done": True}, 20, [5, 3, 8], [1, 1, 1]),
        ({"break_when_all_done": True}, 4, [4, 3, 4], [0, 1, 0]),
    ],
)
def test_it_may_go_on_for_all_steps_or_until_all_have_ended(
    options: Any, steps: int, lengths: list[int], done: list[int]
) -> None:
    with DummyVectorEnv(FNS) as venv:
        batch = rollout(venv, steps, zeros, **options)
    assert batch.mask.sum(1).tolist() == lengths
    assert (batch.terminated & batch.mask).sum(1).tolist() == done
    np.testing.assert_array_equal(batch.obs[..., 1][batch.mask], batch.step_count[batch.mask])


@pytest.mark.parametrize("kind", [SyncVectorEnv, gym.vector.SyncVectorEnv])
def test_gymnasiums_vector_envs_are_rolled_out_and_stay_open(kind: Any) -> None:
    before = Closes.closed
    envs = kind([partial(Closes, length) for length in (5, 3, 8)], autoreset_mode="SameStep")
    for policy in (zeros, None):
        batch = rollout(envs, 4, policy, break_when_any_done=False)
        assert batch.step_count.tolist() == [[0, 1, 2, 3], [0, 1, 2, 0], [0, 1, 2, 3]]
        assert batch.obs.shape == (3, 4, 2)
    gc.collect()
    assert Closes.closed == before
    assert envs.reset()[0][:, 1].tolist() == [0, 0, 0]
    envs.close()


@pytest.mark.parametrize("form", ["tensors", "lists", "int32", "int64"])
def test_observations_to_continue_from_may_have_any_form(form: str) -> None:
    convert: Any = {
        "tensors": lambda rows: pytest.importorskip("torch").from_numpy(rows),
        "lists": lambda rows: rows.tolist(),
    }.get(form, lambda rows: rows.astype(form))
    with DummyVectorEnv([partial(DictObs, Countdown(9)) for _ in range(3)]) as venv:
        first = rollout(venv, 2, zeros)
        obs = {"a": convert(first.next.obs["a"][:, -1]), "b": (convert(first.next.obs["b"][0][:, -1]),)}
        second = rollout(venv, 2, zeros, auto_reset=False, obs=obs)
    assert second.obs["a"].dtype == second.obs["b"][0].dtype == np.int64
    np.testing.assert_array_equal(second.all_obs["a"][:, :, 1], [[2, 3, 4]] * 3)


def test_observations_to_continue_from_do_not_cut_off_later_ones() -> None:
    with DummyVectorEnv(cartpoles(2)) as venv:
        obs, _ = venv.reset(seed=0)
        wanted = rollout(venv, 3, zeros, auto_reset=False, obs=obs)
        venv.reset(seed=0)
        found = rollout(venv, 3, zeros, auto_reset=False, obs=np.zeros((2, 4), np.int64))
    assert found.all_obs.dtype == np.float32
    np.testing.assert_array_equal(found.all_obs[:, 1:], wanted.all_obs[:, 1:])
    with VectorEnvNormObs(SerialEnv(3, FNS)) as venv:  # lazy; returns floats of an integer space
        first = rollout(venv, 2, zeros)
        second = rollout(venv, 2, zeros, auto_reset=False, obs=first.next.obs[:, -1])
    np.testing.assert_array_equal(second.obs[:, 0], first.next.obs[:, -1])


def test_the_last_step_is_marked_and_the_callback_sees_each_round() -> None:
    seen: list[tuple[Any, StepBatch]] = []
    with DummyVectorEnv(FNS) as venv:
        batch = rollout(venv, 2, zeros, set_truncated=True, callback=lambda *shown: seen.append(shown) or "ignored")
    assert [each for each, _ in seen] == [venv] * 2
    assert batch.truncated.tolist() == [[False, True]] * 3
    np.testing.assert_array_equal(seen[1][1].next_obs, [[0, 2]] * 3)
    assert batch.extras == {}


def test_random_actions_are_drawn_on_from_the_seeded_spaces() -> None:
    def actions() -> list[np.ndarray]:
        with DummyVectorEnv([lambda: gym.make("Pendulum-v1")] * 2) as venv:
            venv.seed(3)
            return [rollout(venv, 4).action, rollout(venv, 4).action]

    first, second = actions(), actions()
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first[0], first[1])


def test_an_error_of_an_env_leaves_the_vector_env_open() -> None:
    with DummyVectorEnv([partial(BreaksOnce, 5, 0, 1), partial(Countdown, 5)]) as venv:
        with pytest.raises(OverflowError):
            rollout(venv, 5, zeros)
        assert rollout(venv, 5, zeros).shape == (2, 5)
