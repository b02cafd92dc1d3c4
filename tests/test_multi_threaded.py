"""EnvPool under the names and arguments of torchrl, and tasks of EnvPool's own (in the slow tier)."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pool_double import MISSING, PoolDouble, real_pool

from vecenv import EnvPoolVectorEnv, MultiThreadedEnv
from vecenv import MultiThreadedEnvWrapper as Wrapper
from vecenv.engine.arguments import seed_chain


@pytest.fixture(params=[PoolDouble.make, pytest.param(real_pool, marks=pytest.mark.slow)], ids=["double", "envpool"])
def make(request):
    """Makes a pool with the keyword arguments of `envpool.make`."""
    return request.param


# The names of torchrl.


def test_the_wrapper_of_torchrl_takes_a_synchronous_pool(make):
    with Wrapper(env=make(4), frame_skip=1, device="cpu", categorical_action_encoding=True) as env:
        assert repr(env) == "MultiThreadedEnvWrapper(num_workers=4, device=cpu)"
        assert (env.num_workers, env.batch_size) == (4, (4,))
        assert env.set_seed(1) == seed_chain(1, 4)[4]
        assert env.reset()[0].shape[0] == 4
        assert env.step([0, 1, 0, 1])[1].shape == (4,)


@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        ({"frame_skip": 4}, "create_env_kwargs"),
        ({"frame_skip": True}, "create_env_kwargs"),
        ({"device": "cuda:0"}, "collector"),
        ({"categorical_action_encoding": False}, "one-hot"),
        ({"disable_env_checker": False}, "check_vector_env"),
        ({"allow_done_after_reset": True}, "after a reset"),
    ],
)
def test_an_argument_that_would_be_ignored_is_refused_with_what_to_use_instead(arguments, instead):
    with pytest.raises(ValueError, match=instead):
        Wrapper(PoolDouble.make(2), **arguments)
    with pytest.raises(ValueError, match=instead):
        MultiThreadedEnv(2, "CartPole-v1", **arguments)


def test_the_errors_of_torchrls_wrapper():
    with pytest.raises(TypeError, match="needs env"):
        Wrapper()
    with pytest.raises(TypeError, match="expected a pool"):
        Wrapper(env=object())
    with pytest.raises(TypeError, match="unexpected argument 'speed'"):
        Wrapper(PoolDouble.make(2), speed=3)
    with pytest.raises(ValueError, match=r"asynchronous, 1 of 2 .*EnvPoolVectorEnv"):
        Wrapper(PoolDouble.make(2, batch_size=1))
    with pytest.raises(TypeError, match="env_name"):
        MultiThreadedEnv(2)
    with pytest.raises(ValueError, match=r"create_env_kwargs has \['batch_size'\]"):
        MultiThreadedEnv(2, "CartPole-v1", create_env_kwargs={"batch_size": 1})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"env_name": None}, TypeError, "env_name must be a str, .* got None"),
        ({"create_env_kwargs": [("seed", 1)]}, TypeError, "create_env_kwargs must be a dict"),
        ({"num_workers": 0}, ValueError, "num_workers must be an integer of at least 1, got 0"),
        ({"num_workers": "2"}, TypeError, "num_workers must be an integer of at least 1, got '2'"),
    ],
)
def test_an_argument_of_another_kind_is_named(arguments, error, message):
    with pytest.raises(error, match=message):
        MultiThreadedEnv(**{"num_workers": 2, "env_name": "CartPole-v1", **arguments})


@pytest.mark.parametrize(
    ("task_id", "num_envs", "error", "message"),
    [
        ("CartPole-v1", 0, ValueError, "num_envs must be an integer of at least 1, got 0"),
        ("CartPole-v1", 1.5, TypeError, "num_envs must be an integer of at least 1, got 1.5"),
        (None, 1, TypeError, "the task must be a str"),
    ],
)
def test_a_pool_that_cannot_be_made_is_refused(task_id, num_envs, error, message):
    with pytest.raises(error, match=message):
        EnvPoolVectorEnv.make(task_id, num_envs)


# EnvPool's own tasks.


@pytest.mark.slow
def test_multi_threaded_env_makes_the_pool():
    pytest.importorskip("envpool", reason=MISSING)
    with MultiThreadedEnv(3, "Pendulum-v1", create_env_kwargs={"max_episode_steps": 5}) as env:
        assert repr(env) == "MultiThreadedEnv(env=Pendulum-v1, num_workers=3, device=cpu)"
        assert env.reset(seed=0)[0].shape == (3, 3)
        ends = [env.step(np.zeros((3, 1), np.float32))[3] for _ in range(5)]
        assert np.all(ends, axis=1).tolist() == [False] * 4 + [True]
    with MultiThreadedEnv(1, "ALE/Pong-v5") as env:
        assert env.env_name == "Pong-v5"
        obs, info = env.reset()
        assert (obs.shape, obs.dtype) == ((1, 4, 84, 84), np.uint8)
        assert info[0]["ram"].shape == (128,)


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", ["CheetahRun-v1", "FrozenLake-v1", "HumanoidStand-v1", "LunarLander-v3", "Breakout-v5"]
)
def test_observations_are_in_their_spaces(task):
    with EnvPoolVectorEnv(real_pool(2, task)) as venv:
        space = venv.observation_space[0]
        for obs in (venv.reset()[0], venv.step([s.sample() for s in venv.action_space])[0], venv.reset([1])[0]):
            row = {k: np.asarray(part[-1]) for k, part in obs.items()} if isinstance(obs, dict) else obs[-1]
            assert space.contains(row)


@pytest.mark.slow
def test_the_program_of_the_migration_page_runs():
    pytest.importorskip("envpool", reason=MISSING)
    page = (Path(__file__).resolve().parent.parent / "docs/migrate.md").read_text("utf-8")
    program = page.partition("## From EnvPool")[2].partition("```py\n")[2].partition("```")[0]
    assert "EnvPoolVectorEnv(pool)" in program
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
