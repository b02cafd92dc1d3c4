"""get_state and set_state: an env continues from a state in the same way."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from tests.support.countdown import Countdown
from vecenv import DummyVectorEnv, VectorEnvNormObs

PENDULUM = """
<mujoco><option timestep="0.01"/><worldbody><body><joint name="hinge" type="hinge" axis="0 1 0"/>
<geom type="capsule" size="0.05" fromto="0 0 0 0 0 -1"/></body></worldbody>
<actuator><motor joint="hinge"/></actuator></mujoco>
"""


class Physics(gym.Env):
    """Env like gymnasium's MuJoCo envs, without their library."""

    observation_space, action_space = spaces.Box(-100, 100, (3,), np.float64), spaces.Box(-1, 1, (1,))

    def __init__(self) -> None:
        mujoco = pytest.importorskip("mujoco")
        self.forward, self.advance = mujoco.mj_forward, mujoco.mj_step
        self.model = mujoco.MjModel.from_xml_string(PENDULUM)
        self.data = mujoco.MjData(self.model)

    def set_state(self, qpos: np.ndarray, qvel: np.ndarray) -> None:
        self.data.qpos[:], self.data.qvel[:] = qpos, qvel
        self.forward(self.model, self.data)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.set_state(self.np_random.uniform(-1, 1, 1), np.zeros(1))
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.data.ctrl[:] = action
        self.advance(self.model, self.data)
        return self._obs(), 0.0, False, False, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.data.time, *self.data.qpos, *self.data.qvel])


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
    return gym.wrappers.TimeLimit(Physics(), 12)


@pytest.mark.parametrize("env_fn", [physics, pong])
def test_an_env_goes_on_from_its_state_as_before(env_fn: Any) -> None:
    """Random programs do this with envs that have methods of their own, and on each backend."""

    def go_on(ids: list[int]) -> list[np.ndarray]:
        action = -1.0 if env_fn is physics else 2
        steps = [venv.step([action] * len(ids), ids)[:4] for _ in range(4)]
        return [np.concatenate([np.ravel(part) for part in step]) for step in steps]

    with DummyVectorEnv([env_fn] * 2) as venv:
        venv.reset(seed=3)
        go_on([0, 1])
        states = pickle.loads(pickle.dumps(venv.get_state([1, 0])))
        first = go_on([1, 0])
        venv.set_state(states, [1, 0])
        np.testing.assert_array_equal(go_on([1, 0]), first)
        venv.set_state(states[::-1], [1, 0])  # each env in the state of the other env
        np.testing.assert_array_equal(go_on([0, 1]), first)


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
