"""The start of an episode reaches each layer: wrappers in the parent behave the same as wrappers in workers."""

from __future__ import annotations

import pickle
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from collector import Dataset, RecordEpisodes
from tests.support.gymnasium_cases import assert_same
from tests.support.transform_envs import VECTOR, Goes, Samples
from tests.support.transform_forms import FORMS, in_workers
from vecenv import DummyVectorEnv, VectorEnvNormObs
from vecenv.transforms import (
    CatFrames,
    Compose,
    Flatten,
    NormalizeReward,
    RewardScaling,
    RewardSum,
    StepCounter,
    TimeLimit,
    Transform,
    TransformedVectorEnv,
    VecNorm,
)

N = 3
VECTORS = np.ones((N, 2), np.float32)
LAYERS: dict[str, Any] = {
    "all together": lambda: Compose(CatFrames(2, -1), RewardScaling(0.0, 0.1), RewardSum(), StepCounter()),
    "time limit": lambda: Compose(CatFrames(2, -1), StepCounter(), RewardSum(), TimeLimit(4)),
    "counter with a limit": lambda: Compose(CatFrames(2, -1), StepCounter(max_steps=2)),
    "vec norm": lambda: Compose(VecNorm(), CatFrames(2, -1)),
    "reward norm": lambda: Compose(NormalizeReward(), RewardSum()),
}
ENDING = ("time limit", "counter with a limit")
LEARNING = ("vec norm", "reward norm")
"""Layers with statistics per worker. The places agree only for one env, and tensors differ in the last bits."""


def chosen(rng: np.random.Generator, n: int) -> list[int]:
    return rng.permutation(n)[: rng.integers(1, n + 1)].tolist()


def run(venv: Any, seed: int, autoresets: bool, fails: bool) -> Any:
    """Run a random program of steps, resets and restored states, and yield the results."""
    rng, n, kept = np.random.default_rng(seed), len(venv), None
    space = venv.action_space[0]

    def act(k: int) -> np.ndarray:
        return rng.uniform(space.low, space.high, (k, *space.shape)).astype(space.dtype)

    yield venv.reset(seed=seed)
    for _ in range(30):
        ids, number, kind = chosen(rng, n), int(rng.integers(99)), rng.integers(10)
        if kind == 0:
            yield venv.reset(ids, seed=number)
        elif kind == 1:
            assert venv.seed([number if i in ids else None for i in range(n)]) is not None
        elif kind == 2:
            assert venv.set_seed(number, static_seed=bool(number % 2)) is not None
        elif kind == 3 or (kind == 4 and kept is None):
            kept = len(ids), pickle.loads(pickle.dumps(venv.get_state(ids)))
        elif kind == 4 and kept is not None and not fails:  # else the repeated row does not belong to the state
            venv.set_state(kept[1], rng.permutation(n)[: kept[0]])
        elif kind == 5 and number % 2:
            yield venv.step(act(len(ids)), ids, reset=ids[:1])
        elif kind == 5:
            venv.send(act(len(ids)), ids, reset=[i in ids[:1] for i in range(n)])
            if rest := [i for i in range(n) if i not in ids]:
                venv.send(None, reset=rest)
            yield venv.recv()
        elif autoresets and kind == 6:
            yield venv.step(act(n), autoreset=True)
        else:
            step = venv.step(act(len(ids)), ids)
            yield step
            over = np.asarray(step[2]) | np.asarray(step[3])
            if over.any() and not (fails and kind == 7):  # else failed envs are stepped again
                yield venv.reset(np.array(ids)[over])


def as_arrays(tree: Any) -> Any:
    """Return the tree with arrays for tensors, and lists for tuples and arrays of infos."""
    if isinstance(tree, dict):
        return {key: as_arrays(child) for key, child in tree.items()}
    if isinstance(tree, (tuple, list)) or (isinstance(tree, np.ndarray) and tree.dtype.hasobject):
        return [as_arrays(child) for child in tree]
    return tree.numpy() if isinstance(tree, torch.Tensor) else tree


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_a_random_program_returns_the_same_rows_from_transforms_in_every_place(name: str, fails: bool) -> None:
    """Even if envs fail: the last row is repeated, and statistics are not updated."""
    n, seeds, places = (1, 3, FORMS[:2]) if name in LEARNING else (N, 1, FORMS)
    options = {"on_error": "restart", "max_restarts": 99} if fails else {}
    fns = [partial(Goes, VECTOR, 3 + i, [at + i for at in (9, 14, 15)] if fails else ()) for i in range(n)]
    for seed in range(seeds):
        with ExitStack() as made:
            venvs = [made.enter_context(place(fns, LAYERS[name], **options)) for place in places]
            programs = [run(venv, seed, name not in ENDING, fails) for venv in venvs]
            for first, *others in zip(*programs, strict=True):
                for other in others:
                    assert_same(as_arrays(other), as_arrays(first))


class TestStates:
    @pytest.mark.parametrize("place", FORMS[:2], ids=lambda place: place.__name__)
    @pytest.mark.parametrize("name", ["all together", "counter with a limit", "reward norm"])
    def test_another_vector_env_goes_on_from_them(self, name: str, place: Any) -> None:
        def made() -> Any:
            return place([partial(Goes, VECTOR, 9)] * N, LAYERS[name])

        def go_on(venv: Any) -> Any:
            return [venv.step(VECTORS[:2], [2, 0]) for _ in range(3)]

        with made() as venv, made() as other:
            venv.reset(seed=3)
            venv.step(0 * VECTORS)
            venv.step(0 * VECTORS[:1], [2])
            states = pickle.loads(pickle.dumps(venv.get_state([2, 0])))
            if place is in_workers:
                for i, learnt in zip([2, 0], venv.call("state_dict", id=[2, 0]), strict=True):
                    other.call("load_state_dict", learnt, id=i)
            else:
                other.load_state_dict(venv.state_dict())
            first = go_on(venv)
            other.set_state(states, [2, 0])  # its envs were never reset
            venv.set_state(states, [2, 0])
            for again in (go_on(other), *([] if name == "reward norm" else [go_on(venv)])):
                for left, right in zip(again, first, strict=True):
                    assert_same(left, right)

    def test_a_transform_that_cannot_give_its_state_says_so(self) -> None:
        class Delays(Transform):
            has_state = True

        for place in FORMS[:2]:
            with place([Goes], Delays) as venv:
                venv.reset()
                with pytest.raises(
                    NotImplementedError, match=r"Delays.* define episode_state\(ids\) and set_episode_state"
                ):
                    venv.get_state()

    def test_statistics_are_no_state_of_an_episode(self) -> None:
        with TransformedVectorEnv(DummyVectorEnv([Goes]), VecNorm()) as venv:
            venv.reset(seed=1)
            (state,) = venv.get_state()
            count = venv.state_dict()["0.VecNorm"]["reward_count"]
            venv.set_state([state])
            assert venv.state_dict()["0.VecNorm"]["reward_count"] == count

    def test_those_of_other_layers_are_refused_and_change_nothing(self) -> None:
        with (
            DummyVectorEnv([lambda: Goes(VECTOR, 9)]) as plain,
            TransformedVectorEnv(DummyVectorEnv([lambda: Goes(VECTOR, 9)]), StepCounter()) as counted,
            TransformedVectorEnv(DummyVectorEnv([lambda: Goes(VECTOR, 9)]), CatFrames(2, -1)) as framed,
            DummyVectorEnv([lambda: gymnasium.wrappers.TimeLimit(Goes(VECTOR, 9), 5)]) as wrapped,
        ):
            venvs = plain, counted, framed, wrapped
            for venv in venvs:
                venv.reset(seed=1)
                venv.step(np.zeros((1, 2), np.float32))
            for venv in venvs:
                for other in venvs:
                    if other is not venv:
                        with pytest.raises(ValueError, match="set_state"):
                            venv.set_state(other.get_state())
                assert venv.call("t") == [1]

    @pytest.mark.parametrize(
        "wrapper",
        [
            lambda env: gymnasium.wrappers.FrameStackObservation(env, 3),
            lambda env: gymnasium.wrappers.DelayObservation(env, 2),
            lambda env: gymnasium.wrappers.TimeAwareObservation(gymnasium.wrappers.TimeLimit(env, 6)),
            gymnasium.wrappers.RecordEpisodeStatistics,
        ],
    )
    def test_wrappers_of_gymnasium_go_on_too(self, wrapper: Any) -> None:
        fns = [lambda: wrapper(Goes(VECTOR, 6))]
        with DummyVectorEnv(fns) as venv, DummyVectorEnv(fns) as other:
            venv.reset(seed=3)
            venv.step(0 * VECTORS[:1])
            other.set_state(pickle.loads(pickle.dumps(venv.get_state())))
            for _ in range(5):
                left, right = (each.step(VECTORS[:1]) for each in (venv, other))
                for *_, infos in (left, right):
                    infos[0].get("episode", {}).pop("t", None)  # seconds
                assert_same(left, right)

    def test_the_return_of_gymnasiums_normalize_reward_goes_on(self) -> None:
        """Its statistics are not part of the state."""
        fns = [lambda: gymnasium.wrappers.NormalizeReward(Goes(VECTOR, 6))]
        with DummyVectorEnv(fns) as venv, DummyVectorEnv(fns) as other:
            venv.reset(seed=3)
            venv.step(VECTORS[:1])
            other.set_state(venv.get_state())
            np.testing.assert_array_equal(*(each.get_env_attr("discounted_reward") for each in (venv, other)))


class TestSeeds:
    def test_envs_that_seed_themselves_stay_in_their_episodes(self) -> None:
        class OwnSeed(Goes):
            def seed(self, seed: int) -> None:
                self.seeded = seed

        with TransformedVectorEnv(DummyVectorEnv([lambda: OwnSeed(VECTOR, 9)] * 2), StepCounter()) as venv:
            venv.reset()
            venv.step(np.ones((2, 2), np.float32))
            assert venv.seed(5) == [5, 6]
            assert venv.get_env_attr("seeded") == [5, 6]
            assert venv.step(np.ones((2, 2), np.float32))[0]["step_count"].tolist() == [[2], [2]]

    def test_rows_that_no_caller_gets_are_not_in_the_statistics_of_tianshous_wrapper(self) -> None:
        with VectorEnvNormObs(DummyVectorEnv([Goes] * 2)) as venv:
            venv.seed(3)
            venv.set_seed(4)
            assert venv.obs_rms.count == 0
            venv.reset()
            assert venv.obs_rms.count == 2


def test_recorded_episodes_begin_where_episodes_do(tmp_path: Path) -> None:
    actions = np.zeros((2, 2), np.float32)
    with RecordEpisodes(DummyVectorEnv([lambda: Goes(VECTOR, 4)] * 2), tmp_path / "set") as venv:
        venv.reset(seed=1)
        venv.step(actions)
        venv.seed([7, None])  # env 0 begins anew
        for _ in range(3):
            venv.step(actions)
        venv.step(actions[:1], [0])
        venv.reset(seed=[20, 30])
        (state,) = venv.get_state([0])
        venv.step(actions)
        venv.set_state([state], [0])  # there is no first observation after this
        for _ in range(4):
            venv.step(actions)
    found = {(int(each.env_id), each.seed, len(each)) for each in Dataset(tmp_path / "set")}
    assert found == {(1, 2, 4), (0, 7, 4), (1, 30, 4)}


def test_flatten_needs_one_space_for_all_envs_of_a_batch() -> None:
    """The vector of an observation depends on its space."""
    for one, other in (
        (spaces.Discrete(2), spaces.Discrete(2, start=3)),
        (spaces.Dict({"a": spaces.Discrete(2), "b": VECTOR}), spaces.Dict({"a": spaces.Discrete(3), "b": VECTOR})),
    ):
        with (
            DummyVectorEnv([partial(Samples, space) for space in (one, one, other)]) as venv,
            pytest.raises(ValueError, match=r"Flatten.* env 0.*envs \[2\].*TransformedEnv around each env") as caught,
        ):
            TransformedVectorEnv(venv, Flatten())
        assert str(one) in str(caught.value)
        assert str(other) in str(caught.value)
        with in_workers([partial(Samples, space) for space in (one, other)], Flatten) as venv:
            obs, _ = venv.reset(seed=0)
            assert all(space.contains(row) for space, row in zip(venv.observation_space, obs, strict=True))
