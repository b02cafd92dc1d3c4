"""to_torchrl: our vector envs pass TorchRL's env checks, and work with its rollouts and transforms."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
torchrl = pytest.importorskip("torchrl")

from gymnasium import spaces  # noqa: E402
from torchrl.envs import TransformedEnv  # noqa: E402
from torchrl.envs.transforms import RewardSum  # noqa: E402
from torchrl.envs.utils import check_env_specs  # noqa: E402

from collector import TorchVectorEnv, to_torchrl  # noqa: E402
from tests.support.transform_envs import MIXED, Samples  # noqa: E402
from vecenv import DummyVectorEnv, EnvContractError, ShmemVectorEnv, from_gymnasium  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]
N = 3


class VectorRewards(Samples):
    reward_space = spaces.Box(-9, 9, (2,), np.float32)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = Samples.step(self, action)
        return obs, np.array([reward, 1.0]), *rest


SPACES = {
    "dict": partial(Samples, MIXED),
    "many": partial(Samples, action_space=spaces.MultiDiscrete([3, 4])),
    "binary": partial(Samples, action_space=spaces.MultiBinary(2)),
    "shifted": partial(Samples, spaces.Discrete(5, start=3)),
    "vector rewards": VectorRewards,
    "CartPole-v1": partial(gym.make, "CartPole-v1"),
    "Pendulum-v1": partial(gym.make, "Pendulum-v1"),
}


@pytest.mark.parametrize("name", SPACES)
def test_the_specs_are_those_of_the_data(name: str) -> None:
    env = to_torchrl(DummyVectorEnv([SPACES[name]] * N))
    check_env_specs(env, break_when_any_done="both", seed=0)
    assert env.batch_size == (N,)
    env.close()
    assert env.is_closed
    env.close()


@pytest.mark.parametrize("backend", [DummyVectorEnv, ShmemVectorEnv])
def test_rollouts_are_those_of_the_vector_env(backend: Any) -> None:
    env_fns = [partial(gym.make, "CartPole-v1")] * N
    env, steps = to_torchrl(backend(env_fns)), 60
    assert env.set_seed(10) == 3288080526  # the seed after those of three envs
    batch = env.rollout(steps, break_when_any_done=False)
    with DummyVectorEnv(env_fns) as plain:
        plain.set_seed(10)
        obs, _ = plain.reset()
        for t in range(steps):
            row = batch[:, t]
            np.testing.assert_array_equal(row["observation"], obs)
            obs, rew, terminated, truncated, _ = plain.step(row["action"].numpy())
            np.testing.assert_array_equal(row["next", "observation"], obs)
            np.testing.assert_array_equal(row["next", "reward"][:, 0], rew)
            np.testing.assert_array_equal(row["next", "terminated"][:, 0], terminated)
            done = terminated | truncated
            np.testing.assert_array_equal(row["next", "done"][:, 0], done)
            if done.any():
                obs[done] = plain.reset(done)[0]
    assert batch["next", "done"].sum() > 2
    env.close()


def test_tensors_and_specs_are_on_the_device_asked_for_or_on_that_of_the_vector_env() -> None:
    for given, asked, device in (("cpu", "meta", "meta"), ("meta", "cpu", "cpu"), ("meta", None, "meta")):
        venv = TorchVectorEnv(DummyVectorEnv([partial(gym.make, "CartPole-v1")] * N), given)
        env = to_torchrl(venv, asked)
        assert (env.venv is venv) == (given == device)
        places = env.device, env.venv.device, env.observation_spec["observation"].device, env.venv.reset()[0].device
        assert {place.type for place in places} == {device}
        env.close()


def test_transforms_of_torchrl_go_around_it() -> None:
    native = from_gymnasium(gym.vector.SyncVectorEnv([partial(gym.make, "CartPole-v1")] * N))
    env = TransformedEnv(to_torchrl(native), RewardSum())
    check_env_specs(env)
    batch = env.rollout(40, break_when_any_done=False)
    ends = batch["next", "done"]
    lengths = batch["next", "episode_reward"][ends]
    assert len(lengths) > 1
    assert (lengths > 7).all()
    env.close()


def test_vector_rewards_need_a_reward_space() -> None:
    class NoRewardSpace(Samples):
        step = VectorRewards.step

    env = to_torchrl(DummyVectorEnv([NoRewardSpace] * N))
    with pytest.raises(EnvContractError, match=r"shape \(1,\), but the envs return \(2,\): give .* a reward_space"):
        env.rollout(1)
    env.close()


def test_what_has_no_spec_is_refused() -> None:
    def made(space: Any = MIXED, action: Any = None, **options: Any) -> Any:
        return DummyVectorEnv([partial(Samples, space, action_space=action)] * 2, **options)

    with pytest.raises(ValueError, match="without wait_num, timeout"):
        to_torchrl(made(wait_num=1))
    with pytest.raises(TypeError, match="actions of TorchRL begin at 0"):
        to_torchrl(made(action=spaces.Discrete(3, start=1)))
    with pytest.raises(TypeError, match="has one action"):
        to_torchrl(made(action=spaces.Dict({"a": spaces.Discrete(3)})))
    with pytest.raises(TypeError, match="has no spec in TorchRL"):
        to_torchrl(made(spaces.Tuple((spaces.Discrete(3), spaces.Discrete(3)))))
    with pytest.raises(ValueError, match=r"TorchRL uses the keys \['reward'\] itself"):
        to_torchrl(made(spaces.Dict({"reward": spaces.Discrete(3)})))
    with pytest.raises(TypeError, match="wraps a vector env"):
        to_torchrl(gym.make("CartPole-v1"))
    unequal = DummyVectorEnv([partial(Samples, action_space=spaces.Discrete(k)) for k in (2, 3)])
    with pytest.raises(TypeError, match="equal spaces, got action spaces"):
        to_torchrl(unequal)
