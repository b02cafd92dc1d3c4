"""Workers that end in or after an autoreset of a facade. tests/faults/test_facades.py has all other faults."""

import contextlib
import functools

import numpy as np
import pytest

from tests.support.backends import FULL
from tests.support.ledger import kill
from vecenv import (
    GymnasiumVectorEnv,
    SB3VecEnv,
    ShmemVectorEnv,
    VectorEnvWrapper,
    WorkerDiedError,
)
from vecenv.testing import CountingEnv, ExitsOnReset, GateEnv, Gates

SAME = functools.partial(GymnasiumVectorEnv, autoreset_mode="SameStep")


@FULL
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_an_autoreset_that_kills_its_worker_is_that_error_and_the_step_before_is_kept(mode):
    env_fns = [lambda: CountingEnv(0, length=9), lambda: ExitsOnReset(1, at=1, length=2)]
    venv = VectorEnvWrapper(ShmemVectorEnv(env_fns, num_workers=2))
    with contextlib.closing(GymnasiumVectorEnv(venv, autoreset_mode=mode)) as envs:
        envs.reset()
        rounds = 2 + (mode == "NextStep")
        for _ in range(rounds - 1):
            envs.step(np.ones(2, int))
        with pytest.raises(WorkerDiedError, match="env 1") as caught:
            envs.step(np.ones(2, int))
        assert caught.value.partial.obs[0, 4] == 1
        obs, _ = envs.reset(options={"reset_mask": np.array([False, True])})
        assert obs[:, 2].tolist() == [rounds, 0]
        assert envs.step(np.zeros(2, int))[0][:, 2].tolist() == [rounds + 1, 1]


@contextlib.contextmanager
def stepping(facade, action):
    """Step two envs. Env 0 ends its episode, and its worker ends after the autoreset, while env 1 still steps."""

    class RaisesBehindGate(GateEnv):  # a local class, because workers would import this module and SB3
        """Env that raises in a step with action 9, after its gate."""

        def step(self, action):
            result = super().step(action)
            if action == 9:
                raise ValueError("boom")
            return result

    with Gates(1) as gates:
        env_fns = [lambda: CountingEnv(length=1, infos=False), lambda: RaisesBehindGate(gates.folder, 0, ["step"])]
        with contextlib.closing(facade(ShmemVectorEnv(env_fns, num_workers=2))) as envs:
            envs.reset()
            envs.step_async(np.array([5, action]))
            gates.await_arrival(0)
            engine = envs.venv.engine
            engine.backend.wait(engine.status.enough(1), None)
            kill(engine.backend.workers[0].pid)
            gates.open(0, times=2)
            yield envs


@pytest.mark.parametrize(
    ("facade", "is_error"), [(SAME, False), (SB3VecEnv, False), (SAME, True)], ids=["gymnasium", "sb3", "error"]
)
def test_an_env_whose_worker_ends_after_its_autoreset_is_not_reset_again(facade, is_error):
    """Also not after the error of another env."""
    with stepping(facade, 9 if is_error else 1) as envs:
        if is_error:
            with pytest.raises(ValueError, match="boom") as caught:
                envs.step_wait()
            assert caught.value.partial.obs.tolist() == [[0, 1, 0, -1, -1]]
            envs.reset(options={"reset_mask": np.array([False, True])})
        else:
            obs, _, *ends, infos = envs.step_wait()
            assert ends[0].tolist() == [True, False]
            assert obs[0].tolist() == [0, 1, 0, -1, -1]
            last = infos["final_obs"][0] if facade is SAME else infos[0]["terminal_observation"]
            assert last.tolist() == [0, 0, 1, -1, 5]
        with pytest.raises(WorkerDiedError, match="env 0"):
            envs.step(np.array([1, 1]))
