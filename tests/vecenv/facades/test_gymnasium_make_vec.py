"""make_vec, and gym.make_vec through vector entry points."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

import vecenv
from tests.support.backends import FULL
from tests.support.gymnasium_cases import Reports
from vecenv import AsyncVectorEnv, GymnasiumVectorEnv, ShmemVectorEnv, SubprocVectorEnv, SyncVectorEnv

SAME_STEP = {"autoreset_mode": "SameStep"}


@pytest.fixture(autouse=True)
def registered():
    """Register an id whose vector entry point is vecenv."""
    gym.register(
        "Ours-v0",
        entry_point="gymnasium.envs.classic_control:CartPoleEnv",
        vector_entry_point="vecenv.facades.make_vec:Ours-v0",
        max_episode_steps=7,
    )
    yield
    del gym.registry["Ours-v0"]


def mode_of(envs):
    """Return the autoreset mode, found from the step that truncates the first episodes and the step after it."""
    envs.reset(seed=1)
    actions = np.arange(envs.num_envs) % 2
    truncations = [envs.step(actions)[3].all() for _ in range(7)]
    assert truncations == [False] * 6 + [True]
    return "SameStep" if envs.step(actions)[1].all() else "NextStep"


@pytest.mark.guarantee("G7.7")
@pytest.mark.parametrize(
    ("backend", "facade", "engine"),
    [
        ("dummy", SyncVectorEnv, "DummyVectorEnv"),
        pytest.param("subproc", AsyncVectorEnv, "SubprocVectorEnv", marks=FULL),
        ("shmem", AsyncVectorEnv, "ShmemVectorEnv"),
        ("thread", GymnasiumVectorEnv, "ThreadVectorEnv"),
    ],
)
def test_make_vec_makes_each_backend(backend, facade, engine):
    envs = vecenv.make_vec("CartPole", 3, backend=backend)  # without a version, the latest version is used
    assert isinstance(envs, facade)
    assert type(envs.venv).__name__ == engine
    assert repr(envs) == f"{type(envs).__name__}(CartPole-v1, num_envs=3)"
    envs.reset()
    assert envs.step([0, 1, 0])[0].shape == (3, 4)
    envs.close()


def test_arguments_go_where_they_belong():
    envs = vecenv.make_vec(
        "CartPole-v1",
        2,
        backend="dummy",
        wrappers=[
            lambda env: gym.wrappers.TransformReward(env, lambda reward: 5 * reward),
            gym.wrappers.TimeAwareObservation,
        ],
        vector_kwargs={"autoreset_mode": "Disabled", "seed_episodes": True},
        render_mode="rgb_array",
        max_episode_steps=3,
    )
    for made in (envs, vecenv.make_vec(envs.spec)):
        assert made.render_mode == "rgb_array"
        assert made.autoreset_mode is gym.vector.AutoresetMode.DISABLED
        assert made.single_observation_space.shape == (5,)
        made.reset()
        assert made.step([0, 1])[1].tolist() == [5.0, 5.0]
        made.step([0, 1])
        assert made.step([0, 1])[3].all()


def test_gym_make_vec_makes_ours_by_the_entry_point_of_a_spec():
    for mode in (None, "vector_entry_point"):
        envs = gym.make_vec("Ours-v0", num_envs=2, vectorization_mode=mode, backend="dummy")
        assert repr(envs) == "SyncVectorEnv(Ours-v0, num_envs=2)"
        assert mode_of(envs) == "NextStep"
        assert isinstance(gym.make_vec(envs.spec), SyncVectorEnv)
    default = gym.make_vec("Ours-v0", num_envs=2)
    assert isinstance(default.venv, ShmemVectorEnv)
    default.close()


@pytest.mark.parametrize(
    ("make", "backend"), [(gym.make_vec, "dummy"), pytest.param(vecenv.make_vec, "subproc", marks=FULL)]
)
def test_venv_kwargs_pass_gymnasium_and_stay_in_the_spec(make, backend):
    """gym.make_vec refuses vector_kwargs for an entry point."""
    options = SAME_STEP if backend == "dummy" else {"num_workers": 1, **SAME_STEP}
    made = [make("Ours-v0", 3, backend=backend), make("Ours-v0", 3, backend=backend, venv_kwargs=options)]
    spec = made[1].spec
    assert EnvSpec.from_json(spec.to_json()).kwargs == spec.kwargs
    made += [again(spec) for again in (vecenv.make_vec, gym.make_vec)]
    assert [mode_of(envs) for envs in made] == ["NextStep", "SameStep", "SameStep", "SameStep"]
    for envs in made:
        assert (envs.num_envs, type(envs.venv)) == (3, type(made[0].venv))
        assert envs is made[0] or envs.venv.num_workers == 1 or backend == "dummy"
        envs.close()


@FULL
def test_what_gym_make_vec_is_asked_for_goes_before_what_was_registered():
    gym.spec("Ours-v0").kwargs.update(backend="dummy", venv_kwargs=SAME_STEP)
    registered = gym.make_vec("Ours-v0", 2)
    asked = gym.make_vec("Ours-v0", 2, backend="thread", venv_kwargs={"autoreset_mode": "NextStep"})
    assert [type(envs.venv).__name__ for envs in (registered, asked)] == ["DummyVectorEnv", "ThreadVectorEnv"]
    assert [mode_of(envs) for envs in (registered, asked)] == ["SameStep", "NextStep"]
    asked.close()


@FULL
def test_gym_make_vec_makes_ours_where_the_classes_are_replaced(monkeypatch):
    """Change the backend of a program that cannot be edited."""
    monkeypatch.setattr(gym.vector, "AsyncVectorEnv", AsyncVectorEnv)
    envs = gym.make_vec("Ours-v0", 2, "async", {"shared_memory": False}, [gym.wrappers.TimeAwareObservation])
    assert isinstance(envs.venv, SubprocVectorEnv)
    assert mode_of(envs) == "NextStep"
    envs.close()


def test_an_id_may_name_the_module_that_registers_it(tmp_path, monkeypatch):
    (tmp_path / "registers_it.py").write_text(
        "import gymnasium\ngymnasium.register('Named-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert vecenv.make_vec("registers_it:Named-v0", 2, backend="dummy").spec.id == "Named-v0"
    del gym.registry["Named-v0"]


def test_envs_registered_in_the_program_are_known_to_the_workers():
    gym.register("Local-v0", entry_point=Reports)
    envs = vecenv.make_vec("Local-v0", 2)
    assert envs.reset()[0].shape == (2, 2)
    envs.close()
    del gym.registry["Local-v0"]
