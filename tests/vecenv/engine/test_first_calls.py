"""First calls of a user: names of arguments and of autoreset modes, and a loop that survives a failing env."""

from contextlib import closing

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.support.agent_envs import Herd
from vecenv import (
    DummyVectorEnv,
    EnvCreator,
    ParallelVectorEnv,
    SyncVectorEnv,
    VectorEnvNormObs,
    make_vec,
)
from vecenv.testing import CountingEnv, RaisesOnStep


def test_a_subclass_with_arguments_of_its_own_names_them():
    class Mine(DummyVectorEnv):
        def __init__(self, env_fns, colour="red", **options):
            super().__init__(env_fns, **options)

    with pytest.raises(TypeError, match="Mine has no argument 'color'; did you mean 'colour'"):
        Mine([CountingEnv], color="blue")
    with Mine([CountingEnv], colour="blue") as venv:
        assert len(venv) == 1


def test_make_vec_passes_unknown_arguments_to_the_env_and_says_so():
    """As gymnasium's make_vec. The env's error is followed by the argument of the vector env."""
    for name in ("num_workers", "num_worker"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'") as caught:
            make_vec("CartPole-v1", 2, backend="dummy", **{name: 2})
        assert "make_vec(venv_kwargs={'num_workers': 2}) is for the vector env" in str(caught.value)
    with pytest.raises(TypeError, match="'colour'") as caught:
        make_vec("CartPole-v1", 2, backend="dummy", colour="red")
    assert not any("venv_kwargs" in note for note in caught.value.__notes__)


def test_an_autoreset_mode_is_the_enum_its_value_or_its_name_in_any_case():
    for mode in (AutoresetMode.SAME_STEP, "SameStep", "SAME_STEP", "same_step"):
        with closing(SyncVectorEnv(["CartPole-v1"], autoreset_mode=mode)) as envs:
            assert envs.autoreset_mode is envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


def test_creators_make_envs_of_many_agents_for_the_right_class():
    with ParallelVectorEnv([EnvCreator(Herd)] * 2, "dummy", autoreset_mode="same_step") as venv:
        assert venv.reset(seed=0)[0]["cow_0"].shape == (2, 2)


@pytest.mark.guarantee("G8.4")
def test_a_loop_goes_on_with_the_other_envs():
    """Env 1 raises in the third step of each episode, and no step of another env is lost."""
    with DummyVectorEnv([CountingEnv, lambda: RaisesOnStep(1, at=3), lambda: CountingEnv(2)]) as venv:
        obs, info = venv.reset()
        log = []
        for _ in range(8):
            before = obs.copy()
            try:
                step = venv.step([0] * 3)
            except Exception as error:
                step = error.partial.merge_into(obs)
                assert np.array_equal(obs, before)
                assert np.array_equal(step[0][1], before[1])
                assert (step[1][1], bool(step[2][1]), step[4][1]) == (0.0, False, {"env_id": 1, "restarted": False})
            obs, rew, terminated, truncated, info = step
            log.append((rew.tolist(), (terminated | truncated).tolist()))
            assert [row["env_id"] for row in info] == [0, 1, 2]
            if (done := terminated | truncated).any():
                obs[done], info[done] = venv.reset(done)
    steps = [rewards[0] for rewards, _ in log]
    assert steps == [t / 1024 for t in (1, 2, 3, 4, 5, 1, 2, 3)]
    assert [rewards[2] for rewards, _ in log] == [2 + t for t in steps]
    assert [done[0] for _, done in log] == [False] * 4 + [True] + [False] * 3
    assert [done[1] for _, done in log] == [False, False, True] * 2 + [False, False]


def test_results_of_others_merge_into_a_batch_of_some_envs_through_a_wrapper():
    with VectorEnvNormObs(DummyVectorEnv([CountingEnv, lambda: RaisesOnStep(1, at=1), CountingEnv])) as venv:
        venv.reset()
        obs = venv.reset([2, 1])[0]
        with pytest.raises(ValueError, match="boom in step") as caught:
            venv.step([0, 0], [2, 1])
        merged, rew, _, truncated, info = caught.value.partial.merge_into(obs, [2, 1])
        assert (truncated.tolist(), [row["env_id"] for row in info]) == ([False, True], [2, 1])
        assert np.array_equal(merged[1], obs[1])
        assert rew[0] > 0
        with pytest.raises(ValueError, match="obs has 2 rows but no row for env 2"):
            caught.value.partial.merge_into(obs)
        with pytest.raises(ValueError, match="obs has 2 rows but 3 ids"):
            caught.value.partial.merge_into(obs, [0, 1, 2])
