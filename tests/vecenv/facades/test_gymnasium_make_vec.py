"""make_vec, and gym.make_vec through vector entry points."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

import vecenv
from tests.support.backends import FULL
from vecenv import AsyncVectorEnv, GymnasiumVectorEnv, ShmemVectorEnv, SubprocVectorEnv, SyncVectorEnv

SAME_STEP = {"autoreset_mode": "SameStep"}


@pytest.fixture(autouse=True)
def registered():
    """Register an id whose vector entry point is vecenv, and remove all ids of the test."""
    before = set(gym.registry)
    gym.register(
        "Ours-v0",
        entry_point="gymnasium.envs.classic_control:CartPoleEnv",
        vector_entry_point="vecenv.facades.make_vec:Ours-v0",
        max_episode_steps=7,
    )
    yield
    for name in gym.registry.keys() - before:
        del gym.registry[name]


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
    """RLlib's env runners use `vector_entry_point`. Workers know the ids that the program has registered."""
    for mode in (None, "vector_entry_point"):
        envs = gym.make_vec("Ours-v0", num_envs=2, vectorization_mode=mode, backend="dummy")
        assert repr(envs) == "SyncVectorEnv(Ours-v0, num_envs=2)"
        assert mode_of(envs) == "NextStep"
        assert isinstance(gym.make_vec(envs.spec), SyncVectorEnv)
    default = gym.make_vec("Ours-v0", num_envs=2)
    assert isinstance(default.venv, ShmemVectorEnv)
    default.close()


def test_venv_kwargs_pass_gymnasium_and_stay_in_the_spec():
    """gym.make_vec refuses vector_kwargs for an entry point."""
    made = [gym.make_vec("Ours-v0", 3, backend="dummy", venv_kwargs=SAME_STEP)]
    spec = made[0].spec
    assert EnvSpec.from_json(spec.to_json()).kwargs == spec.kwargs
    made += [again(spec) for again in (vecenv.make_vec, gym.make_vec)]
    for envs in made:
        assert (mode_of(envs), envs.num_envs, repr(envs)) == ("SameStep", 3, repr(made[0]))


@pytest.mark.parametrize("asked", [{}, {"backend": "thread", "venv_kwargs": {"autoreset_mode": "NextStep"}}])
def test_what_gym_make_vec_is_asked_for_goes_before_what_was_registered(asked):
    gym.spec("Ours-v0").kwargs.update(backend="dummy", venv_kwargs=SAME_STEP)
    envs = gym.make_vec("Ours-v0", 2, **asked)
    assert type(envs.venv).__name__ == ("ThreadVectorEnv" if asked else "DummyVectorEnv")
    assert mode_of(envs) == ("NextStep" if asked else "SameStep")
    envs.close()


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
