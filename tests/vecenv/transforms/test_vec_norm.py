"""VecNorm: its formula, its statistics, and statistics that workers share."""

import json
import pickle
import warnings

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TransformReward

from collector import save_statistics
from tests.support.transform_envs import MIXED, VECTOR, Samples, normalised, plain
from vecenv import DummyVectorEnv, EnvCreator, ShmemVectorEnv, nest
from vecenv.testing import CountingEnv
from vecenv.transforms import Compose, TransformedEnv, TransformedVectorEnv, VecNorm


def attached(transform, space=VECTOR, n=4):
    return TransformedVectorEnv(DummyVectorEnv([plain(space, 3)] * n), transform)


def test_its_entries_are_those_of_the_keys():
    for keys, entries in (
        (None, {"x", "v", "which", "many", "pixels", "deep.y", "reward"}),
        (["x", "reward"], {"x", "reward"}),
        ([("deep", "y")], {"deep.y"}),
        (["reward"], {"reward"}),
    ):
        with attached(VecNorm(keys), MIXED) as venv:
            arrays = dict(venv.transform[0].shared_state())
            venv.reset(seed=0)
            venv.step(np.ones((4, 2), np.float32))
            assert set(venv.transform[0].moments()) == entries
            names = {f"{entry}_{part}" for entry in entries for part in ("mean", "var", "count", "skipped")}
            assert set(venv.transform[0].state_dict()) == names
            assert all(venv.transform[0].shared_state()[key] is array for key, array in arrays.items()), "in place"


def test_frozen_it_normalises_without_updates_and_can_be_undone():
    with attached(VecNorm(), n=3) as venv, attached(None, n=3) as raw:
        raw_obs, obs = raw.reset(seed=1)[0], venv.reset(seed=1)[0]
        norm = venv.transform[0]
        np.testing.assert_allclose(norm.denorm(obs), raw_obs, rtol=1e-4, atol=1e-5)
        frozen = norm.frozen_copy()
        with TransformedVectorEnv(DummyVectorEnv([plain(VECTOR, 3)] * 3), frozen) as test_env:
            before = frozen.state_dict()
            fixed, _ = test_env.reset(seed=2)
            rewards = test_env.step(np.ones((3, 2), np.float32))[1]
            assert all(np.array_equal(before[key], value) for key, value in frozen.state_dict().items())
            raw_obs = raw.reset(seed=2)[0]
            raw_rewards = raw.step(np.ones((3, 2), np.float32))[1]
            np.testing.assert_allclose(norm.to_observation_norm()(raw_obs), fixed, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(frozen.denorm_reward(rewards), raw_rewards, atol=1e-6)
        count = norm.state_dict()["observation_count"]
        norm.freeze()
        venv.reset()
        assert norm.state_dict()["observation_count"] == count
        norm.unfreeze()
        venv.reset()
        assert norm.state_dict()["observation_count"] > count
    with attached(VecNorm().freeze()) as venv, attached(None) as raw:  # before the first update
        assert np.array_equal(venv.reset(seed=0)[0], raw.reset(seed=0)[0])


def test_what_it_has_learnt_goes_on_in_another():
    with attached(VecNorm()) as first, attached(VecNorm()) as second:
        first.reset(seed=0)
        state = first.state_dict()
        assert list(state) == ["0.VecNorm"]
        copied = pickle.loads(pickle.dumps(state))
        arrays = dict(second.transform[0].shared_state())
        second.load_state_dict(copied)
        assert arrays["observation_count"] == 4  # updated in place
        assert np.array_equal(first.reset(seed=1)[0], second.reset(seed=1)[0])
        with pytest.raises(ValueError, match=r"the state is for the transforms \['1.VecNorm'\]"):
            second.load_state_dict({"1.VecNorm": {}})
        outer = TransformedVectorEnv(first, VecNorm())
        for layers, of_others in ((second, outer.state_dict()), (outer, state)):
            before = layers.state_dict()
            with pytest.raises(ValueError, match="statistics of `venv`"):
                layers.load_state_dict(of_others)
            assert repr(layers.state_dict()) == repr(before)
        outer.load_state_dict(outer.state_dict())
        assert first.transform[0].clone().state_dict().keys() == state["0.VecNorm"].keys()


@pytest.mark.parametrize(
    ("reward", "keys", "warns"),
    [
        (lambda own: 0.1, None, True),
        (lambda own: 0.1, ["observation"], False),
        (lambda own: 0.0, None, False),
        (lambda own: own, None, False),
    ],
    ids=["equal", "without reward", "zeros", "different"],
)
def test_a_warning_says_that_equal_rewards_become_zero(reward, keys, warns):
    fns = [lambda: TransformReward(CountingEnv(length=30), reward)] * 4
    with TransformedVectorEnv(DummyVectorEnv(fns), VecNorm(keys)) as venv:
        venv.reset()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(60):
                rewards = venv.step(np.zeros(4, np.int64), autoreset=True)[1]
    assert [str(each.message).count("become 0") for each in caught] == [1] * warns
    assert not warns or np.allclose(rewards, 0, atol=1e-6)


# A state that is loaded before there is an env.


def test_from_a_file_it_normalises_the_same(tmp_path):
    """The statistics come from a vector env and from an `EnvCreator`'s envs, in both file formats."""
    raw = Samples(VECTOR, 3).reset(seed=1)[0]
    creator = EnvCreator(normalised)
    with attached(VecNorm(), n=2) as parent, ShmemVectorEnv([creator] * 2) as workers:
        for venv in (parent, workers):
            venv.reset(seed=0)
            venv.step(np.ones((2, 2), np.float32))
        save_statistics(parent.transform[0], tmp_path / "parent.json")
        save_statistics(creator, tmp_path / "workers.json")
        np.savez(tmp_path / "workers.npz", **creator.state_dict())
        of_parent = parent.transform[0].to_observation_norm()(raw[None])[0]
    of_workers = creator.frozen_copy()().reset(seed=1)[0]
    for file, want in (("parent.json", of_parent), ("workers.json", of_workers), ("workers.npz", of_workers)):
        state = np.load(tmp_path / file) if file.endswith("npz") else json.loads((tmp_path / file).read_text())
        norm = VecNorm()
        norm.load_state_dict(state)
        norm.freeze()
        np.testing.assert_allclose(norm.to_observation_norm()(raw[None])[0], want, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(norm.denorm(want[None])[0], raw, rtol=1e-5, atol=1e-6)
        env = TransformedEnv(Samples(VECTOR, 3), norm.clone())
        with attached(norm, n=1) as venv:
            for obs in (venv.reset(seed=1)[0][0], env.reset(seed=1)[0]):
                np.testing.assert_allclose(obs, want, rtol=1e-6, atol=1e-6)
    creator.load_state_dict(state)
    np.testing.assert_array_equal(creator.frozen_copy()().reset(seed=1)[0], want)


@pytest.mark.parametrize(
    ("space", "keys", "targets"),
    [
        (MIXED, ["x", ("deep", "y")], ["z", "x"]),
        (spaces.Tuple((VECTOR, VECTOR)), [(0,), (1,)], [(1,), (0,)]),
        (VECTOR, ["observation"], ["z"]),
    ],
    ids=["moved", "swapped places", "an array"],
)
def test_the_fixed_norm_of_parts_that_it_moves_is_the_same(space, keys, targets):
    with attached(VecNorm(keys, targets), space) as venv, attached(None, space) as raw:
        venv.reset(seed=0)
        [norm] = venv.transform
        norm.freeze()
        want, own = venv.reset(seed=1)[0], raw.reset(seed=1)[0]
        nest.merge(
            lambda pair: np.testing.assert_allclose(*pair, rtol=1e-4, atol=1e-4),
            [norm.to_observation_norm()(own), want],
        )
        with attached(norm.to_observation_norm(), space) as fixed:
            assert nest.map(type, fixed.observation_space[0]) == nest.map(type, venv.observation_space[0])


def odd(*keys):
    return spaces.Dict([(key, spaces.Box(-1, 1, (2,), np.float32)) for key in keys])


POINTS = spaces.Dict({"a.b": spaces.Box(-1, 1, (2,)), "a": odd("b", "reward")})
NUMBERS = spaces.Tuple((odd("0", "1.2"), spaces.Tuple((spaces.Box(-1, 1, (2,)), odd("reward")))))


@pytest.mark.parametrize(
    ("space", "paths"),
    [
        (POINTS, [("a.b",), ("a", "b"), ("a", "reward")]),
        (NUMBERS, [(0, "0"), (0, "1.2"), (1, 0), (1, 1, "reward")]),
    ],
    ids=["points", "numbers"],
)
@pytest.mark.parametrize("is_named", [False, True])
def test_each_part_has_statistics_of_its_own_whatever_it_is_called(space, paths, is_named):
    keys = [*paths, "reward"] if is_named else None
    with attached(VecNorm(keys), space) as venv, attached(None, space) as raw:
        norm = venv.transform[0]
        for seed in range(3):
            venv.reset(seed=seed), raw.reset(seed=seed)
        rewards, own_rewards = (each.step(np.ones((4, 2), np.float32))[1] for each in (venv, raw))
        np.testing.assert_allclose(norm.denorm_reward(rewards), own_rewards, rtol=1e-5, atol=1e-5)
        obs, own = (each.reset(seed=5)[0] for each in (venv, raw))
        loaded = VecNorm(keys)
        loaded.load_state_dict(json.loads(json.dumps({key: each.tolist() for key, each in norm.state_dict().items()})))
        for each in (loaded.freeze(), pickle.loads(pickle.dumps(norm)).freeze()):
            assert len(each.moments()) == len(paths) + 1
            for found in (each.denorm(obs), each.denorm(each.to_observation_norm()(own))):
                nest.merge(lambda pair: np.testing.assert_allclose(*pair, rtol=1e-4, atol=1e-4), [found, own])


def test_the_states_of_a_creator_have_parts_of_any_name():
    creator = EnvCreator(lambda: TransformedEnv(Samples(POINTS), VecNorm()))
    creator().reset(seed=0)
    norm = VecNorm()
    norm.load_state_dict(creator.state_dict())
    assert norm.moments().keys() == {"('a.b',)", "a.b", "a.reward", "reward"}


def test_a_state_without_observations_makes_an_empty_chain():
    with attached(VecNorm(), n=2) as venv:
        venv.reset(seed=0)
        state = venv.transform[0].state_dict()
    norm = VecNorm(["reward"])
    norm.load_state_dict({name: value for name, value in state.items() if name.startswith("reward")})
    assert isinstance(norm.to_observation_norm(), Compose)
