"""make_vec, and gym.make_vec through vector entry points."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

import vecenv
from tests.support.backends import FULL
from tests.support.gymnasium_cases import Reports
from vecenv import AsyncVectorEnv, ShmemVectorEnv, SubprocVectorEnv, SyncVectorEnv
from vecenv.facades.make_vec import BACKENDS

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


def steps_to_the_end(envs):
    envs.reset(seed=1)
    for t in range(1, 30):
        *_, truncations, _ = envs.step(np.arange(envs.num_envs) % 2)
        if truncations.all():
            return t
    raise AssertionError("no episode was truncated")


@pytest.mark.guarantee("G7.7")
@pytest.mark.parametrize(
    ("backend", "facade", "engine"),
    [
        ("dummy", SyncVectorEnv, "DummyVectorEnv"),
        pytest.param("subproc", AsyncVectorEnv, "SubprocVectorEnv", marks=FULL),
        ("shmem", AsyncVectorEnv, "ShmemVectorEnv"),
        pytest.param("thread", BACKENDS["thread"], "ThreadVectorEnv", marks=FULL),
    ],
)
def test_make_vec_makes_each_backend(backend, facade, engine):
    envs = vecenv.make_vec("CartPole", 3, backend=backend)  # without a version, the latest version is used
    assert type(envs) is facade
    assert type(envs.venv).__name__ == engine
    assert repr(envs) == f"{facade.__name__}(CartPole-v1, num_envs=3)"
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
    assert envs.render_mode == "rgb_array"
    assert envs.autoreset_mode is gym.vector.AutoresetMode.DISABLED
    assert envs.single_observation_space.shape == (5,)
    envs.reset()
    assert envs.step([0, 1])[1].tolist() == [5.0, 5.0]
    envs.step([0, 1])
    assert envs.step([0, 1])[3].all()
    again = vecenv.make_vec(envs.spec)
    assert again.single_observation_space.shape == (5,)
    assert again.autoreset_mode is gym.vector.AutoresetMode.DISABLED
    again.close()
    envs.close()


def test_gym_make_vec_makes_ours_by_the_entry_point_of_a_spec():
    for mode in (None, "vector_entry_point"):
        envs = gym.make_vec("Ours-v0", num_envs=2, vectorization_mode=mode, backend="dummy")
        assert isinstance(envs, SyncVectorEnv)
        assert repr(envs) == "SyncVectorEnv(Ours-v0, num_envs=2)"
        assert steps_to_the_end(envs) == 7
        again = gym.make_vec(envs.spec)
        assert isinstance(again, SyncVectorEnv)
        for made in (envs, again):
            made.close()
    default = gym.make_vec("Ours-v0", num_envs=2)
    assert isinstance(default.venv, ShmemVectorEnv)
    default.close()


def ends_of_an_episode(envs):
    """Return the autoreset mode, found from the step that ends the first episodes and the step after it."""
    steps_to_the_end(envs)
    actions = np.arange(envs.num_envs) % 2
    return "SameStep" if envs.step(actions)[1].all() else "NextStep"


@pytest.mark.parametrize(
    ("make", "backend"), [(gym.make_vec, "dummy"), pytest.param(vecenv.make_vec, "subproc", marks=FULL)]
)
def test_venv_kwargs_pass_gymnasium_and_stay_in_the_spec(make, backend):
    """gym.make_vec refuses vector_kwargs for an entry point."""
    options = SAME_STEP if backend == "dummy" else {"num_workers": 1, **SAME_STEP}
    made = [make("Ours-v0", 3, backend=backend), make("Ours-v0", 3, backend=backend, venv_kwargs=options)]
    spec = made[1].spec
    assert EnvSpec.from_json(spec.to_json()).kwargs == spec.kwargs
    assert spec.kwargs["venv_kwargs"] == options
    made += [again(spec) for again in (vecenv.make_vec, gym.make_vec)]
    assert [ends_of_an_episode(envs) for envs in made] == ["NextStep", "SameStep", "SameStep", "SameStep"]
    for envs in made:
        assert (envs.num_envs, type(envs.venv)) == (3, type(made[0].venv))
        assert envs is made[0] or envs.venv.num_workers == 1 or backend == "dummy"
        envs.close()


def test_vector_kwargs_and_venv_kwargs_at_once_are_refused():
    first = vecenv.make_vec("CartPole-v1", 2, backend="dummy", venv_kwargs=SAME_STEP)
    refused = "venv_kwargs and vector_kwargs are two names of one argument: pass only one"
    for options in ({}, SAME_STEP):
        with pytest.raises(TypeError, match=refused):
            vecenv.make_vec("CartPole-v1", 2, vector_kwargs={"num_workers": 1}, venv_kwargs=options)
        with pytest.raises(TypeError, match=refused):
            vecenv.make_vec(first.spec, vector_kwargs=options)
    first.close()


@FULL
def test_what_gym_make_vec_is_asked_for_goes_before_what_was_registered():
    gym.spec("Ours-v0").kwargs.update(backend="dummy", venv_kwargs=SAME_STEP)
    registered = gym.make_vec("Ours-v0", 2)
    asked = gym.make_vec("Ours-v0", 2, backend="subproc", venv_kwargs={"autoreset_mode": "NextStep"})
    assert (type(registered.venv).__name__, type(asked.venv).__name__) == ("DummyVectorEnv", "SubprocVectorEnv")
    assert [ends_of_an_episode(envs) for envs in (registered, asked)] == ["SameStep", "NextStep"]
    for envs in (registered, asked):
        envs.close()


@FULL
def test_gym_make_vec_makes_ours_where_the_classes_are_replaced(monkeypatch):
    """Change the backend of a program that cannot be edited."""
    monkeypatch.setattr(gym.vector, "AsyncVectorEnv", AsyncVectorEnv)
    envs = gym.make_vec("Ours-v0", 2, "async", {"shared_memory": False}, [gym.wrappers.TimeAwareObservation])
    assert isinstance(envs.venv, SubprocVectorEnv)
    assert steps_to_the_end(envs) == 7
    envs.close()


@FULL
def test_an_id_may_name_the_module_that_registers_it(tmp_path, monkeypatch):
    (tmp_path / "registers_it.py").write_text(
        "import gymnasium\ngymnasium.register('Named-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    envs = vecenv.make_vec("registers_it:Named-v0", 2)
    assert envs.spec.id == "Named-v0"
    envs.close()
    del gym.registry["Named-v0"]


def test_envs_registered_in_the_program_are_known_to_the_workers():
    gym.register("Local-v0", entry_point=Reports)
    envs = vecenv.make_vec("Local-v0", 2)
    assert envs.reset()[0].shape == (2, 2)
    envs.close()
    del gym.registry["Local-v0"]


def test_what_is_not_there_is_refused():
    with pytest.raises(
        ValueError, match=r"backend must be one of \['dummy', 'subproc', 'shmem', 'thread', 'ray', 'auto'\], got 'ship'"
    ):
        vecenv.make_vec("CartPole-v1", 2, backend="ship")
    with pytest.raises(gym.error.Error, match="Nothing"):
        vecenv.make_vec("Nothing-v0", 2)
    with pytest.raises(AttributeError, match="no env with this id"):
        vecenv.facades.make_vec.Nothing  # noqa: B018
    with pytest.raises(TypeError, match="wait_num"):
        vecenv.make_vec("CartPole-v1", 2, vector_kwargs={"wait_num": 1})
    with pytest.raises(ValueError, match="num_envs must be an integer of at least 1, got 0"):
        vecenv.make_vec("CartPole-v1", 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"id": None}, "id must be the id of a registered env or a spec, got None"),
        ({"id": Reports}, r"AsyncVectorEnv\(\[env_fn\] \* num_envs\)"),
        ({"num_envs": 1.5}, "num_envs must be an integer of at least 1, got 1.5"),
        ({"num_envs": "2"}, "num_envs must be an integer of at least 1, got '2'"),
        ({"wrappers": gym.wrappers.TimeAwareObservation}, "wrappers must be a sequence of functions .*TimeAware"),
        ({"wrappers": ["TimeAwareObservation"]}, "wrappers must be a sequence of functions"),
        ({"vector_kwargs": [1]}, r"vector_kwargs must be a dict of arguments, got \[1\]"),
        ({"vectorization_mode": "async"}, "no argument 'vectorization_mode': pass backend= with one of \\['dummy',"),
        ({"venv_kwargs": [1]}, r"venv_kwargs must be a dict of arguments, got \[1\]"),
    ],
)
def test_an_argument_of_another_kind_is_named(arguments, message):
    with pytest.raises(TypeError, match=message):
        vecenv.make_vec(**{"id": "CartPole-v1", "num_envs": 2, **arguments})
