"""get_state and set_state: an env continues from a state in the same way."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.fuzz.envs import assert_same
from tests.support.countdown import Countdown
from vecenv import DummyVectorEnv, VectorEnvNormObs


class Own(Countdown):
    """Env with its own get_state and set_state."""

    def get_state(self) -> tuple[int, int]:
        return self.episode, self.taken

    def set_state(self, state: tuple[int, int]) -> None:
        self.episode, self.taken = state


def pong() -> Any:
    gym.register_envs(pytest.importorskip("ale_py"))
    return gym.make("ALE/Pong-v5", repeat_action_probability=0.25, max_episode_steps=12)


def physics() -> Any:
    pytest.importorskip("mujoco")
    return gym.make("HalfCheetah-v5", max_episode_steps=12)


@pytest.mark.parametrize("env_fn", [physics, pong])
def test_an_env_goes_on_from_its_state_as_before(env_fn: Any) -> None:
    """Random programs do this with envs that have methods of their own, and on each backend."""

    def go_on(ids: list[int]) -> list[np.ndarray]:
        action = -np.ones(6) if env_fn is physics else 2
        steps = [venv.step([action] * len(ids), ids)[:4] for _ in range(4)]
        times = [data.time for data in venv.get_env_attr("data", ids)] if env_fn is physics else []
        return [*(np.concatenate([np.ravel(part) for part in step]) for step in steps), np.array(times)]

    with DummyVectorEnv([env_fn] * 2) as venv:
        venv.reset(seed=3)
        go_on([0, 1])
        states = pickle.loads(pickle.dumps(venv.get_state([1, 0])))
        first = go_on([1, 0])
        venv.set_state(states, [1, 0])
        assert_same(go_on([1, 0]), first, "the same envs")
        venv.set_state(states[::-1], [1, 0])  # each env in the state of the other env
        assert_same(go_on([0, 1]), first, "the other envs")


def test_the_end_by_time_limit_belongs_to_the_state() -> None:
    with DummyVectorEnv([lambda: gym.wrappers.TimeLimit(Own(6), 5)], strict=True) as venv:
        venv.reset()
        venv.step([0])
        state = venv.get_state()
        ends = [venv.step([0])[3][0] for _ in range(4)]
        venv.set_state(state)  # strict: an env whose episode is over can be stepped from a state
        assert [venv.step([0])[3][0] for _ in range(4)] == ends == [False, False, False, True]


def test_the_result_of_an_envs_own_get_state_is_refused() -> None:
    with VectorEnvNormObs(DummyVectorEnv([lambda: Own(6)] * 2)) as venv:
        venv.reset()
        for own in ((1, 2), (1, [])):
            with pytest.raises(ValueError, match=r"expects the result of get_state\(\)"):
                venv.set_state([own], 1)
