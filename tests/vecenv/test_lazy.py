"""lazy=True, `start`, ParallelEnv and SerialEnv; rand_step, step_mdp and the functions for spaces."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.support.shared_envs import counted
from vecenv import (
    BaseVectorEnv,
    ClosedError,
    DummyVectorEnv,
    EnvCreator,
    GymnasiumVectorEnv,
    NotStartedError,
    ParallelEnv,
    SB3VecEnv,
    SerialEnv,
    ShmemVectorEnv,
    step_mdp,
)
from vecenv.spaces import is_in, project, rand
from vecenv.testing import CountingEnv, FakeBackend


def test_a_lazy_vector_env_makes_its_envs_when_they_are_needed() -> None:
    venv = DummyVectorEnv([CountingEnv] * 2, lazy=True)
    assert venv.is_closed
    assert len(venv) == 2
    for use in (
        lambda: venv.action_space,
        lambda: venv.get_env_attr("t"),
        lambda: venv.step([0, 0]),
        lambda: venv.ready_id,
        venv.recv,
        venv.rand_step,
        venv.stats,
    ):
        with pytest.raises(NotStartedError, match=r"lazy=True and no envs yet: call start\(\) or reset\(\)"):
            use()
    assert not hasattr(venv, "metadata")
    obs, _ = venv.reset()
    assert obs.shape == (2, 5)
    assert not venv.is_closed
    venv.close()


@pytest.mark.parametrize("backend", [DummyVectorEnv, ShmemVectorEnv])
def test_a_lazy_vector_env_starts_again_after_close(backend: type) -> None:
    with backend([CountingEnv] * 2, lazy=True) as venv:
        venv.start()
        venv.start()
        venv.reset()
        venv.step([1, 2])
        venv.close()
        with pytest.raises(ClosedError):
            venv.step([1, 2])
        obs, _ = venv.reset()
        np.testing.assert_array_equal(obs[:, 1], [0, 0])  # new envs: their first episodes
        venv.close()
        assert venv.seed(0) == [0, 1]
        venv.close()
        venv.set_seed(0)
    assert venv.is_closed


@pytest.mark.parametrize("wrap", [GymnasiumVectorEnv, SB3VecEnv])
def test_a_facade_steps_a_vector_env_that_has_started_again(wrap: Any) -> None:
    with SerialEnv(2, CountingEnv) as venv:
        venv.start()
        envs = wrap(venv)
        for _ in range(2):
            envs.reset()
            np.testing.assert_array_equal(envs.step(np.array([1, 2]))[0][:, 2], [1, 1])
            marker: dict[str, Any] = {}
            (envs.call if wrap is GymnasiumVectorEnv else envs.env_method)("__setattr__", "marker", marker)
            assert venv.envs[0].marker is marker  # envs share objects with the caller of a facade
            venv.close()
            venv.start()


def test_without_lazy_a_closed_vector_env_stays_closed() -> None:
    venv = DummyVectorEnv([CountingEnv] * 2)
    venv.start()
    venv.close()
    for use in (venv.start, venv.reset, partial(venv.seed, 0), partial(venv.set_seed, 0)):
        with pytest.raises(ClosedError):
            use()


def test_a_lazy_vector_env_takes_a_function_that_makes_the_backend() -> None:
    with BaseVectorEnv([CountingEnv], backend=FakeBackend, lazy=True) as venv:
        venv.reset()


@pytest.mark.parametrize("cls", [ParallelEnv, SerialEnv])
def test_functions_and_arguments_for_all_or_for_each(cls: type) -> None:
    with cls(2, counted, create_env_kwargs={"length": 3}) as env, cls(2, [counted, CountingEnv]) as each:
        each.reset()
        assert each.get_env_attr("env_id") == [0, 0]
        env.start()
        assert env.get_env_attr("length") == [3, 3]
        env.update_kwargs([{"env_id": 5}, {"length": 4}])
        assert env.get_env_attr("env_id") == [0, 0]
        env.close()
        env.start()  # later envs get new arguments
        assert env.get_env_attr("env_id") == [5, 0]
        assert env.get_env_attr("length") == [3, 4]


def test_envs_of_a_creator_share_and_start_at_once_without_lazy() -> None:
    creator = EnvCreator(counted, length=4)
    options = {"create_env_kwargs": [{"env_id": 1, "length": 9}, {"env_id": 2}], "lazy": False}
    with SerialEnv(2, creator, **options) as env:
        assert env.get_env_attr("env_id") == [1, 2]
        assert env.get_env_attr("length") == [4, 4]
        env.reset()
        assert env.call("calls") == [2, 2]
    assert creator.state_dict()["0.Counted.calls"] == 2


def test_rand_step_draws_from_the_seeded_spaces() -> None:
    drawn = []
    for _ in range(2):
        with DummyVectorEnv([CountingEnv] * 3) as venv:
            venv.seed(1)
            drawn.append([*venv.rand_step()[0][:, -1], *venv.rand_step([2, 0])[0][:, -1]])
            assert venv.rand_step(2, reset=[2])[0][:, 2].tolist() == [0]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) > 1


def test_step_mdp_takes_what_came_next() -> None:
    batch = {
        "obs": 1, "action": 2, "done": False, "kept": 3, "reward": 0.0,
        "next": {"obs": 4, "reward": 5.0, "done": True, "truncated": True},
    }  # fmt: skip
    assert step_mdp(batch) == {"obs": 4, "kept": 3, "done": True, "truncated": True}
    assert step_mdp(batch, keep_other=False, exclude_done=True) == {"obs": 4}
    assert step_mdp(batch, keep_other=False, exclude_reward=False, exclude_done=True, exclude_action=False) == {
        "action": 2, "obs": 4, "reward": 5.0,
    }  # fmt: skip


SPACES = [
    spaces.Box(-2, 2, (3,)),
    spaces.Box(0, 255, (2, 2), np.uint8),
    spaces.Discrete(4, start=2),
    spaces.MultiDiscrete([2, 5], start=[1, 0]),
    spaces.MultiBinary(3),
    spaces.Dict({"a": spaces.Box(-1, 1, ()), "b": spaces.Tuple([spaces.Discrete(2)])}),
]


def test_random_elements_and_batches_of_them_are_in_their_space() -> None:
    for space in SPACES:
        for value in (rand(space), rand(space, 4), space.sample()):
            assert is_in(space, value), space
            assert is_in(space, project(space, value)), space
        assert space.contains(project(space, rand(space)))


@pytest.mark.parametrize(
    ("space", "value", "nearest"),
    [
        (SPACES[0], [3.0, -5.0, 0.5], [2.0, -2.0, 0.5]),
        (SPACES[1], [[300, -1], [2.6, 0]], [[255, 0], [3, 0]]),
        (SPACES[2], 9, 5),
        (SPACES[2], [0, 9, 3], [2, 5, 3]),
        (SPACES[3], [0, 9], [1, 4]),
        (SPACES[2], [-np.inf, np.inf], [2, 5]),
        (spaces.Box(0, 2**63 - 1, (2,), np.int64), [-1.0, 1e30], [0, 2**63 - 1]),
        (spaces.Box(0, 2**64 - 1, (2,), np.uint64), np.array([-1, 2**53 + 1]), [0, 2**53 + 1]),
    ],
)
def test_project_gives_the_nearest_element_in_the_dtype_of_the_space(space: Any, value: Any, nearest: Any) -> None:
    assert not is_in(space, value)
    projected = project(space, value)
    np.testing.assert_array_equal(projected, nearest)
    assert projected.dtype == space.dtype


def test_what_is_no_element() -> None:
    assert not is_in(SPACES[2], 2.5)
    assert is_in(SPACES[2], 3.0)
    assert not is_in(SPACES[0], ["a", "b", "c"])
    assert not is_in(SPACES[5], {"a": 0.0})
    assert not is_in(SPACES[0], [np.nan] * 3)
