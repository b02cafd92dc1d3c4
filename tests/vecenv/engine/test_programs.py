"""Random programs on a vector env, against a plain loop over the same envs. Also real envs against gymnasium."""

import time
from functools import partial

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.vector import SyncVectorEnv

from tests.fuzz.driver import run
from tests.fuzz.engine import Fuzz
from tests.fuzz.envs import Scripted
from tests.support.backends import BACKENDS, FULL
from tests.support.cases import TAXI, equal_bits
from tests.support.coroutine_envs import CoroutineVectorEnv
from tests.support.leaky import always, await_new_worker
from vecenv import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv, nest


@pytest.mark.guarantee(
    "G2.1", "G2.2", "G2.3", "G2.4", "G2.9", "G3.1", "G3.6", "G4.1", "G5.1", "G5.3", "G6.1", "G6.2", "G6.4",
    "G7.1", "G7.2", "G7.3", "G7.4", "G7.5", "G8.3", "G8.5", "G8.9", "G8.13",
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", [*BACKENDS, pytest.param(CoroutineVectorEnv, marks=FULL)])
def test_random_programs_return_what_a_loop_over_the_envs_returns(backend):
    """All calls of a vector env in all their forms, with failures, dead workers and replaced workers."""
    run(type(backend.__name__, (Fuzz,), {"backend": backend}), range(6), count=5)


@pytest.mark.guarantee("G1.1")
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0", TAXI, "Blackjack-v1"])
def test_real_envs_do_what_gymnasium_sync_vector_env_does(env_id):
    env_fns, done = [lambda: gymnasium.make(env_id, max_episode_steps=25)] * 3, np.zeros(3, np.bool_)
    peer = SyncVectorEnv(env_fns)
    peer.action_space.seed(1)
    with DummyVectorEnv(env_fns) as venv:
        got, want = venv.reset(seed=11)[0], peer.reset(seed=11)[0]
        for _ in range(60):
            assert all(map(equal_bits, nest.leaves(got), nest.leaves(want)))
            action = peer.action_space.sample()
            got, want = venv.step(action, reset=done)[:4], peer.step(action)[:4]
            done = got[2] | got[3]
    peer.close()


@pytest.mark.parametrize("backend", [ShmemVectorEnv, SubprocVectorEnv])
def test_envs_of_a_replaced_and_a_new_worker_that_both_die_continue_in_one_worker(backend):
    with backend([partial(Scripted, i) for i in range(2)], num_workers=1, recycle_after=always) as venv:
        venv.reset(seed=0)
        await_new_worker(venv)
        venv.reset([1])  # env 1 moves, env 0 does not
        for worker in venv.engine.backend.workers:
            psutil.Process(worker.pid).kill()
        while any(venv.alive()):
            time.sleep(1e-3)
        for _ in range(3):
            assert [row["env_id"] for row in venv.reset(seed=3)[1]] == [0, 1]
            venv.step([1, 2])
        await_new_worker(venv)
        assert [row["env_id"] for row in venv.reset([0], seed=[4])[1]] == [0]
