"""Frequent mistakes in a user's first calls: ids in place of functions, misspelt keywords, names of autoreset modes,
PettingZoo envs in the wrong class. Also a loop that survives a failing env.
"""

import gymnasium
import numpy as np
import pettingzoo
import pytest
from gymnasium.vector import AutoresetMode

from tests.support.agent_envs import Herd, Relay
from vecenv import (
    AECVectorEnv,
    AsyncVectorEnv,
    DummyVectorEnv,
    EnvCreator,
    GymnasiumVectorEnv,
    ParallelEnv,
    ParallelVectorEnv,
    Partial,
    SerialEnv,
    ShmemVectorEnv,
    SubprocVectorEnv,
    SyncVectorEnv,
    ThreadVectorEnv,
    VectorEnvNormObs,
    make_vec,
)
from vecenv.envs.gymnasium_arguments import as_autoreset_mode
from vecenv.sb3 import DummyVecEnv, SubprocVecEnv
from vecenv.testing import CountingEnv, RaisesOnStep
from vecenv.tuning.auto_backend import choose_backend


class TestIds:
    def test_ids_and_functions_are_the_same(self):
        with DummyVectorEnv(["CartPole-v1", lambda: gymnasium.make("CartPole-v1")]) as venv:
            obs, _ = venv.reset(seed=[3, 3])
            assert [spec.id for spec in venv.spec] == ["CartPole-v1"] * 2
        assert np.array_equal(*obs)
        for facade in (AsyncVectorEnv, SyncVectorEnv, DummyVecEnv, SubprocVecEnv):
            envs = facade(["CartPole-v1"] * 2)
            obs = envs.reset()
            assert (obs[0] if isinstance(obs, tuple) else obs).shape == (2, 4)
            envs.close()
        assert choose_backend(["CartPole-v1"] * 2, {}, {}).backend in ("dummy", "shmem")

    def test_the_latest_version_is_that_of_an_id_without_one(self):
        with pytest.warns(UserWarning, match="latest versioned"), DummyVectorEnv(["CartPole"]) as venv:
            assert venv.spec[0].id == "CartPole-v1"

    @pytest.mark.parametrize(
        ("envs", "error", "text"),
        [
            (["CartPool-v1"], gymnasium.error.NameNotFound, "Did you mean: `CartPole`"),
            (["CartPole-v99"], gymnasium.error.VersionNotFound, "v99"),
            ("CartPole-v1", TypeError, r"for n equal envs pass \['CartPole-v1'\] \* n"),
        ],
    )
    def test_an_unknown_id_is_refused_before_any_env_is_made(self, envs, error, text):
        with pytest.raises(error, match=text):
            DummyVectorEnv([must_not_be_made, *envs] if isinstance(envs, list) else envs)


def must_not_be_made():
    raise AssertionError("made")


class TestKeywords:
    @pytest.mark.parametrize(
        ("kind", "options", "message"),
        [
            (ShmemVectorEnv, {"num_worker": 2}, "did you mean 'num_workers'?"),
            (SubprocVectorEnv, {"start_method": "fork"}, "it has affinity, check_actions, check_spaces, context, copy"),
            (ThreadVectorEnv, {"steptimeout": 1}, "did you mean 'step_timeout'?"),
            (DummyVectorEnv, {"on_eror": "raise"}, "did you mean 'on_error'?"),
            (DummyVectorEnv, {"backend": "shmem"}, "it has check_actions, check_spaces, copy, env_fns, lazy"),
            (DummyVectorEnv, {"step_timeout": 1}, "it needs workers: use ShmemVectorEnv"),
            (AsyncVectorEnv, {"seed_episode": True}, "did you mean 'seed_episodes'?"),
            (AsyncVectorEnv, {"step_time": 1}, "did you mean 'step_timeout'?"),
            (SyncVectorEnv, {"num_worker": 1}, "did you mean 'num_workers'?"),
            (SubprocVecEnv, {"num_worker": 1}, "did you mean 'num_workers'?"),
            (DummyVecEnv, {"onerror": 1}, "did you mean 'on_error'?"),
            (ParallelVectorEnv, {"num_worker": 1}, "did you mean 'num_workers'?"),
            (AECVectorEnv, {"auto_reset": 1}, "did you mean 'autoreset_mode'?"),
        ],
        ids=lambda value: getattr(value, "__name__", None),
    )
    def test_an_unknown_one_is_refused_by_the_class_that_was_called(self, kind, options, message):
        with pytest.raises(TypeError) as caught:
            kind([must_not_be_made] * 2, **options)
        (name,) = options
        assert str(caught.value).startswith(f"{kind.__name__} has no argument {name!r}; {message}")

    def test_so_it_is_in_classes_with_other_arguments(self):
        for kind in (ParallelEnv, SerialEnv):
            with pytest.raises(TypeError, match=rf"{kind.__name__} has no argument 'create_env_kwarg'; did you mean"):
                kind(2, CountingEnv, create_env_kwarg={})

    def test_subclasses_with_arguments_of_their_own(self):
        class Mine(DummyVectorEnv):
            def __init__(self, env_fns, colour="red", **options):
                super().__init__(env_fns, **options)

        with pytest.raises(TypeError, match="Mine has no argument 'color'; did you mean 'colour'"):
            Mine([CountingEnv], color="blue")
        with Mine([CountingEnv], colour="blue") as venv:
            assert len(venv) == 1

    def test_make_vec_passes_them_to_the_env_and_says_so(self):
        """As gymnasium's make_vec. The env's error is followed by the argument of the vector env."""
        for name in ("num_workers", "num_worker"):
            with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'") as caught:
                make_vec("CartPole-v1", 2, backend="dummy", **{name: 2})
            assert "make_vec(venv_kwargs={'num_workers': 2}) is for the vector env" in str(caught.value)
        with pytest.raises(TypeError, match="'colour'") as caught:
            make_vec("CartPole-v1", 2, backend="dummy", colour="red")
        assert not any("venv_kwargs" in note for note in caught.value.__notes__)


class TestAutoresetModes:
    def test_the_enum_its_value_and_its_name_in_any_case(self):
        for given in (AutoresetMode.SAME_STEP, "SameStep", "SAME_STEP", "same_step", "samestep", "Same_Step"):
            assert as_autoreset_mode(given) is AutoresetMode.SAME_STEP
        with ParallelVectorEnv([Herd], "dummy", autoreset_mode="same_step") as venv:
            assert venv.autoreset_mode is AutoresetMode.SAME_STEP
        envs = SyncVectorEnv([CountingEnv], autoreset_mode="same_step")
        assert envs.autoreset_mode is envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        envs.close()

    def test_any_other_is_refused_with_the_list(self):
        listed = r'one of NEXT_STEP \("NextStep"\), SAME_STEP \("SameStep"\), DISABLED \("Disabled"\), got '
        for wrong in ("never", "", None, True, 1):
            with pytest.raises(ValueError, match=listed + repr(wrong)):
                as_autoreset_mode(wrong)
        for make in (
            lambda: ParallelVectorEnv([Herd], "dummy", autoreset_mode="never"),
            lambda: AsyncVectorEnv([CountingEnv], autoreset_mode="never"),
            lambda: GymnasiumVectorEnv(DummyVectorEnv([CountingEnv]), autoreset_mode="never"),
        ):
            with pytest.raises(ValueError, match=listed + "'never'"):
                make()


class TestManyAgents:
    @pytest.mark.parametrize(
        ("kind", "env_fns", "text"),
        [
            (DummyVectorEnv, [CountingEnv, Herd],
             r"env_fns\[1\]\(\) returned .*Herd.*: use ParallelVectorEnv\(env_fns\), and flat"),
            (DummyVectorEnv, [Relay], r"an AECEnv of PettingZoo: use AECVectorEnv\(env_fns\), or .*PettingZooEnv\("),
            (AsyncVectorEnv, [lambda: pettingzoo.make("parallel", "classic/rps-v2")] * 2, "use ParallelVectorEnv"),
            (DummyVecEnv, [lambda: pettingzoo.make("parallel", "classic/rps-v2")] * 2, "use ParallelVectorEnv"),
        ],
    )  # fmt: skip
    def test_an_env_of_many_agents_is_refused_with_what_to_use(self, kind, env_fns, text):
        with pytest.raises(TypeError, match=text):
            kind(env_fns)

    def test_creators_make_them_for_the_right_class(self):
        with ParallelVectorEnv([EnvCreator(Herd)] * 2, "dummy") as venv:
            assert venv.reset(seed=0)[0]["cow_0"].shape == (2, 2)


class TestFailuresInALoop:
    def test_the_loop_of_the_readme_goes_on_with_the_others(self):
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

    def test_steps_of_some_wrapped_vector_envs_and_batches_of_any_form(self):
        for form in ("dict", "object"):
            with DummyVectorEnv([lambda i=i, form=form: RaisesOnStep(i, at=2 - i, form=form) for i in (0, 1)]) as venv:
                obs, _ = venv.reset()
                with pytest.raises(ValueError, match="boom in step") as caught:
                    venv.step([0, 0])
                merged, _, _, truncated, _ = caught.value.partial.merge_into(obs)
                assert (type(merged), truncated.tolist()) == (type(obs), [False, True])
        with VectorEnvNormObs(DummyVectorEnv([CountingEnv, lambda: RaisesOnStep(1, at=1), CountingEnv])) as venv:
            venv.reset()
            obs = venv.reset([2, 1])[0]
            with pytest.raises(ValueError, match="boom in step") as caught:
                venv.step([0, 0], [2, 1])
            merged, rew, _, truncated, info = caught.value.partial.merge_into(obs, [2, 1])
            assert truncated.tolist() == [False, True]
            assert [row["env_id"] for row in info] == [2, 1]
            assert np.array_equal(merged[1], obs[1])
            assert rew[0] > 0
            with pytest.raises(ValueError, match="obs has 2 rows but no row for env 2"):
                caught.value.partial.merge_into(obs)
            with pytest.raises(ValueError, match="obs has 2 rows but 3 ids"):
                caught.value.partial.merge_into(obs, [0, 1, 2])

    def test_dicts_of_agents_are_refused(self):
        empty = np.zeros(0)
        with pytest.raises(TypeError, match="take its rows by env_id"):
            Partial(empty, {}, {}, {}, {}, {}).merge_into(np.zeros((2, 1)))
