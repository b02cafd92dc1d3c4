"""The start of an episode reaches each layer: wrappers in the parent behave the same as wrappers in workers."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from collector import Dataset, RecordEpisodes
from collector.device.torch_vector_env import TorchVectorEnv, TransformedOnDevice
from tests.support.backends import FULL
from tests.support.cases import counting
from tests.support.gymnasium_cases import assert_same
from tests.support.transform_envs import CASES, ENDING, VECTOR, Goes, Samples
from vecenv import DummyVectorEnv, ShmemVectorEnv, VectorEnvNormObs, VectorEnvWrapper, nest
from vecenv.transforms import (
    CatFrames,
    Compose,
    Flatten,
    NormalizeReward,
    RewardSum,
    StepCounter,
    TimeLimit,
    Transform,
    TransformedEnv,
    TransformedVectorEnv,
    VecNorm,
)

N = 3
RESTART = {"on_error": "restart", "max_restarts": 99}
BEGUN = [
    "atari",
    "frames of a part",
    "frames, constant",
    "reward sum",
    "reward scaling",
    "step counter",
    "all together",
]
"""CASES with state along an episode, and one case that changes only rewards."""
LEARNING = {
    "vec norm": (VECTOR, lambda: Compose(VecNorm(), CatFrames(2, -1))),
    "reward norm": (VECTOR, lambda: Compose(NormalizeReward(), RewardSum())),
}
"""Cases with statistics per worker, so that both places agree only for one env."""
PER_EPISODE = {
    "time limit": lambda: TimeLimit(4),
    "counter": lambda: StepCounter(max_steps=5),
    "reward sum": lambda: RewardSum(),
    "reward norm": lambda: NormalizeReward(),
    "frames": lambda: CatFrames(3, -1),
}


def on_tensors(venv: Any, transform: Any) -> Any:
    return TorchVectorEnv(venv, "cpu", transforms=transform, reward_dtype=torch.float64)


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


def goes(space: Any, i: int, fails: bool) -> Any:
    return Goes(space, 3 + i, [at + i for at in (9, 14, 15)] if fails else ())


def as_arrays(tree: Any) -> Any:
    """Return the tree with arrays for tensors, and lists for tuples and arrays of infos."""
    if isinstance(tree, dict):
        return {key: as_arrays(child) for key, child in tree.items()}
    if isinstance(tree, (tuple, list)) or (isinstance(tree, np.ndarray) and tree.dtype.hasobject):
        return [as_arrays(child) for child in tree]
    return tree.numpy() if isinstance(tree, torch.Tensor) else tree


def run_both(one: Any, other: Any, seed: int, case: str, fails: bool) -> None:
    programs = (run(venv, seed, case in CASES, fails) for venv in (one, other))
    for left, right in zip(*programs, strict=True):
        assert_same(as_arrays(left), as_arrays(right))
        for row in range(len(left[-1])) if isinstance(one, TransformedVectorEnv) else ():
            assert one.observation_space[0].contains(nest.take(left[0], row)), left[0]


QUICK = ("flatten all", "cat some", "rename", *BEGUN, *ENDING, *LEARNING)


@pytest.mark.parametrize(
    ("case", "options"),
    [
        *((each, {}) if each in QUICK else pytest.param(each, {}, marks=FULL) for each in [*CASES, *ENDING, *LEARNING]),
        *((each, RESTART) for each in [*BEGUN, *ENDING, *LEARNING]),
    ],
)
def test_a_random_program_returns_the_same_rows_from_transforms_in_workers_and_in_the_parent(
    case: str, options: dict[str, Any]
) -> None:
    """Even if envs fail: the last row is repeated, and statistics are not updated."""
    n, seeds = (1, 5) if case in LEARNING else (N, 2)
    space, transform = {**CASES, **ENDING, **LEARNING}[case]
    fails = bool(options)
    plain = [partial(goes, space, i, fails) for i in range(n)]
    transformed = [lambda fn=fn: TransformedEnv(fn(), transform()) for fn in plain]
    for seed in range(seeds):
        with (
            TransformedVectorEnv(DummyVectorEnv(plain, **options), transform()) as parent,
            DummyVectorEnv(transformed, **options) as worker,
        ):
            assert parent.observation_space == worker.observation_space
            assert parent.action_space == worker.action_space
            run_both(parent, worker, seed, case, fails)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("wrap", [lambda venv, t: TransformedOnDevice(venv, t, "cpu"), on_tensors])
def test_so_it_does_on_tensors(wrap: Any, fails: bool) -> None:
    space, options = VECTOR, RESTART if fails else {}
    fns = [partial(goes, space, i, fails) for i in range(N)]

    def transform() -> Any:
        return Compose(CatFrames(2, -1), StepCounter(), RewardSum(), TimeLimit(4))

    for seed in range(2):
        with (
            wrap(DummyVectorEnv(fns, **options), transform()) as tensors,
            TransformedVectorEnv(DummyVectorEnv(fns, **options), transform()) as arrays,
        ):
            run_both(tensors, arrays, seed, "ends episodes", fails)


class TestStates:
    @pytest.mark.parametrize("place", ["worker", "parent"])
    @pytest.mark.parametrize(
        ("name", "backend"), [*((name, DummyVectorEnv) for name in PER_EPISODE), ("frames", ShmemVectorEnv)]
    )
    def test_another_vector_env_goes_on_from_them(self, name: str, place: str, backend: Any) -> None:
        def made() -> Any:
            transform = PER_EPISODE[name]
            if place == "worker":
                return backend([lambda: TransformedEnv(Goes(VECTOR, 9), transform())] * N, num_workers=2)
            return TransformedVectorEnv(backend([lambda: Goes(VECTOR, 9)] * N, num_workers=2), transform())

        def go_on(venv: Any) -> Any:
            return [venv.step(np.ones((2, 2), np.float32), [2, 0]) for _ in range(3)]

        with made() as venv, made() as other:
            venv.reset(seed=3)
            venv.step(np.zeros((N, 2), np.float32))
            venv.step(np.zeros((1, 2), np.float32), [2])
            states = pickle.loads(pickle.dumps(venv.get_state([2, 0])))
            learnt = pickle.loads(pickle.dumps(venv.call("state_dict", id=[2, 0]))) if place == "worker" else []
            if place == "parent":
                other.load_state_dict(venv.state_dict())
            for i, state in zip([2, 0], learnt, strict=False):
                other.call("load_state_dict", state, id=i)
            first = go_on(venv)
            other.set_state(states, [2, 0])  # its envs were never reset
            venv.set_state(states, [2, 0])
            again = [go_on(other)] if name == "reward norm" else [go_on(other), go_on(venv)]
            for steps in again:
                for left, right in zip(steps, first, strict=True):
                    assert_same(left, right)

    @pytest.mark.parametrize("place", ["worker", "parent"])
    def test_a_transform_that_cannot_give_its_state_says_so(self, place: str) -> None:
        class Delays(Transform):
            has_state = True

        fns = [lambda: TransformedEnv(Goes(), Delays())] if place == "worker" else [Goes]
        with DummyVectorEnv(fns) as inner:
            venv = inner if place == "worker" else TransformedVectorEnv(inner, Delays())
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
            gymnasium.wrappers.NormalizeReward,
            gymnasium.wrappers.RecordEpisodeStatistics,
            gymnasium.wrappers.OrderEnforcing,
        ],
    )
    def test_wrappers_of_gymnasium_go_on_too(self, wrapper: Any) -> None:
        def go_on(venv: Any) -> Any:
            steps = [venv.step(np.ones((1, 2), np.float32)) for _ in range(5)]
            for *_, infos in steps:
                infos[0].get("episode", {}).pop("t", None)  # seconds
            return steps

        with DummyVectorEnv([lambda: wrapper(Goes(VECTOR, 6))]) as venv:
            venv.reset(seed=3)
            venv.step(np.zeros((1, 2), np.float32))
            state = pickle.loads(pickle.dumps(venv.get_state()))
            with DummyVectorEnv([lambda: wrapper(Goes(VECTOR, 6))]) as other:
                other.set_state(state)
                first, second = go_on(venv), go_on(other)
                if wrapper is gymnasium.wrappers.NormalizeReward:  # its statistics are not part of the state
                    np.testing.assert_array_equal(*(each.get_env_attr("discounted_reward") for each in (venv, other)))
                    return
            for left, right in zip(first, second, strict=True):
                assert_same(left, right)


class TestSeeds:
    def test_the_reset_that_seeds_passes_every_layer_once(self) -> None:
        calls: list[Any] = []

        class Outer(VectorEnvWrapper):
            def reset(self, *args: Any, **kwargs: Any) -> Any:
                calls.append(("reset", kwargs))
                return super().reset(*args, **kwargs)

        class Inner(VectorEnvWrapper):
            def seed(self, seed: Any = None) -> Any:
                calls.append(("seed", seed))
                return super().seed(seed)

            def reset(self, id: Any = None, **kwargs: Any) -> Any:
                calls.append(("inner reset", id))
                return super().reset(id, **kwargs)

        with Outer(TransformedVectorEnv(Inner(DummyVectorEnv(counting(3))), StepCounter())) as venv:
            assert venv.seed([4, None, 6]) == [4, None, 6]
            assert [(name, np.array(each).tolist()) for name, each in calls[2:]] == [("inner reset", [0, 2])]
            assert calls[:2] == [("seed", [4, None, 6]), ("reset", {"seed": [4, 6]})]
            assert venv.get_env_attr("calls") == [1, 0, 1]
            calls.clear()
            venv.set_seed(6, static_seed=True)
            assert calls == [("reset", {"seed": [6, 6, 6]}), ("inner reset", None)]
            venv.venv.seed(1)  # the caller's own choice
            assert [name for name, _ in calls[2:]] == ["seed", "inner reset"]

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
        with VectorEnvNormObs(DummyVectorEnv([lambda: Goes(fails_at=[2])] * 2, on_error="restart")) as venv:
            venv.seed(3)
            venv.set_seed(4)
            assert venv.obs_rms.count == 0
            venv.reset()
            venv.step(np.ones((2, 2), np.float32))
            last = venv.step(np.ones((2, 2), np.float32))
            assert last[3].all()
            assert venv.obs_rms.count == 4
            assert venv.update_obs_rms


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


class TestFlatten:
    """The vector of an observation depends on its space, so all envs of a batch must have the same space."""

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (spaces.Discrete(2), spaces.Discrete(2, start=3)),
            (spaces.Dict({"a": spaces.Discrete(2), "b": VECTOR}), spaces.Dict({"a": spaces.Discrete(3), "b": VECTOR})),
        ],
    )
    def test_spaces_with_other_vectors_are_refused(self, one: Any, other: Any) -> None:
        with DummyVectorEnv([partial(Samples, space) for space in (one, one, other)]) as venv:
            with pytest.raises(
                ValueError, match=r"Flatten.* env 0.*envs \[2\].*TransformedEnv around each env"
            ) as caught:
                TransformedVectorEnv(venv, Flatten())
            assert str(one) in str(caught.value)
            assert str(other) in str(caught.value)
        with DummyVectorEnv([lambda s=s: TransformedEnv(Samples(s), Flatten()) for s in (one, other)]) as venv:
            obs, _ = venv.reset(seed=0)
            assert all(space.contains(row) for space, row in zip(venv.observation_space, obs, strict=True))
