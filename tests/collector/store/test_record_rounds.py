"""RecordEpisodes around vecenv's vector envs: each episode has the actions and seeds that its env received."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from collector import AsyncDataCollector, Dataset, DatasetError, EpisodeSeeds, RecordEpisodes, SyncDataCollector
from tests.support.ctrl_c import interrupt_at_random
from tests.support.numbered import N, Numbered, actions, assert_whole, env_fns
from vecenv import DummyVectorEnv, ShmemVectorEnv, TransformedVectorEnv
from vecenv.testing import CountingEnv, Gates
from vecenv.transforms import RewardSum, TimeLimit

pytestmark = pytest.mark.usefixtures("no_fsync", "few_rounds")
LENGTHS = (1, 2, 3, 9)


class Logged(CountingEnv):
    """Keeps the seed of each reset and the actions after it."""

    def __init__(self, env_id: int) -> None:
        super().__init__(env_id, length=LENGTHS[env_id])
        self.log: list[tuple[int | None, list[int]]] = []

    def reset(self, **kwargs: Any) -> Any:
        self.log.append((kwargs.get("seed"), []))
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.log[-1][1].append(int(action))
        return super().step(action)


def logged(n: int) -> list[Any]:
    return [partial(Logged, env_id) for env_id in range(n)]


def assert_logged(data: Dataset, logs: list[Any]) -> int:
    """Each episode is one that its env played whole, with the seed and the actions that reached it."""
    assert data.verify() == []
    for episode in data:
        env, number = episode.obs[0, 0], episode.obs[0, 1]
        assert env == episode.env_id
        seed, taken = logs[env][number]
        assert (episode.seed, episode.action.tolist()) == (seed, taken[: len(episode)])  # it may go on after its end
        assert episode.obs[:, 1:3].tolist() == [[number, t] for t in range(LENGTHS[int(env)] + 1)]
    return len(data)


def test_seeds_of_a_round_that_comes_back_in_parts(tmp_path: Path) -> None:
    gates = Gates(4, ops=["reset"], length=1)
    with gates, RecordEpisodes(ShmemVectorEnv(gates.env_fns, wait_num=2), tmp_path) as venv:
        venv.send(None, reset=[0, 1, 2, 3], seed=[10, 11, 12, 13])
        for pair in ([3, 1], [0, 2]):
            gates.open(*pair)
            assert sorted(info["env_id"] for info in venv.recv()[4]) == sorted(pair)
        venv.send([0, 1, 2, 3])
        while venv.waiting_id:
            venv.recv()
    assert {episode.env_id: episode.seed for episode in Dataset(tmp_path)} == {0: 10, 1: 11, 2: 12, 3: 13}


@pytest.mark.parametrize(("kind", "options"), [(DummyVectorEnv, {}), (ShmemVectorEnv, {"wait_num": 1})])
@pytest.mark.parametrize("seed", range(2))
def test_any_rounds_store_what_the_envs_got(kind: Any, options: Any, seed: int, tmp_path: Path) -> None:
    rng, n = np.random.default_rng(seed), 4
    with RecordEpisodes(kind(logged(n), **options), tmp_path) as venv:
        venv.reset(seed=[7, 8, 9, 10])
        for _ in range(400):
            ids: Any = rng.permutation(n)[: rng.integers(1, n + 1)].tolist()  # often of envs that are in flight
            seeds = rng.integers(0, 99, len(ids)).tolist() if rng.random() < 0.5 else int(rng.integers(99))
            resets = ids[: rng.integers(len(ids) + 1)]
            what = rng.choice(["recv", "steps", "step", "reset", "send resets", "mixed", "wait"])
            with contextlib.suppress(RuntimeError, ValueError):  # refused rounds
                if what in ("recv", "wait"):
                    venv.recv() if what == "recv" else venv.step(None)
                elif what == "reset":
                    venv.reset(ids, seed=seeds)
                elif what == "send resets":
                    venv.send(None, reset=ids, seed=seeds)
                elif what == "mixed" and resets:
                    order = [i for i in ids if i in resets]
                    venv.send(rng.integers(0, 50, len(ids)), ids, reset=resets, seed=rng.integers(0, 99, len(order)))
                elif what == "step":
                    venv.step(rng.integers(0, 50, n), autoreset=True if rng.random() < 0.5 else rng.integers(0, 99, n))
                else:
                    autoreset = [False, True, rng.integers(0, 99, len(ids))][rng.integers(3)]
                    venv.send(rng.integers(0, 50, len(ids)), ids, autoreset=autoreset)
        while venv.waiting_id:
            venv.recv()
        logs = venv.get_env_attr("log")
    assert assert_logged(Dataset(tmp_path), logs) > 20


def test_a_round_that_is_refused_leaves_what_is_in_flight(tmp_path: Path) -> None:
    gates = Gates(2, ops=["step"], length=1)
    with gates, RecordEpisodes(ShmemVectorEnv(gates.env_fns), tmp_path) as venv:
        venv.reset()
        venv.send([7, 8])
        for wrong in (
            partial(venv.send, [9, 9]),
            partial(venv.send, None, reset=[0], seed=3),
            partial(venv.reset, [1]),
        ):
            with pytest.raises(RuntimeError, match="still stepping"):
                wrong()
        gates.open()
        venv.recv()
    assert [(episode.action.tolist(), episode.seed) for episode in Dataset(tmp_path)] == [([7], None), ([8], None)]


def test_actions_are_refused_as_by_the_vector_env(tmp_path: Path) -> None:
    class Bytes(Numbered):
        def __init__(self) -> None:
            super().__init__(0)
            self.action_space = spaces.Box(0, 99, (), np.uint8)

    with RecordEpisodes(DummyVectorEnv(env_fns()), tmp_path / "a") as venv:
        venv.reset()
        venv.step(np.ones((N, 1)))  # whole numbers, for () and (1,) are the same
        for wrong in ([1, 2], [0.5, 1, 2], "abc", [[1, 2]] * N):
            with pytest.raises((TypeError, ValueError)) as own:
                venv.venv.step(wrong)
            with pytest.raises(own.type) as error:
                venv.step(wrong)
            assert str(error.value) == str(own.value)
    with RecordEpisodes(DummyVectorEnv([Bytes]), tmp_path / "b") as venv:
        venv.reset()
        with pytest.raises(DatasetError, match=r"not elements of the action space, so they cannot be stored: \[300\]"):
            venv.step([300])


@pytest.mark.parametrize("kind", [DummyVectorEnv, gymnasium.vector.SyncVectorEnv])
def test_a_method_that_begins_an_episode_ends_what_is_recorded(kind: Any, tmp_path: Path) -> None:
    with RecordEpisodes(kind([partial(Numbered, 0), partial(Numbered, 1)]), tmp_path) as envs:
        envs.reset()
        for step in range(20):
            envs.step(np.full(2, step), **({"autoreset": True} if kind is DummyVectorEnv else {}))
            if step == 5:
                assert list(envs.call("length", 2)) == [3, 4]
                envs.call("reset")
    assert len(assert_whole(Dataset(tmp_path))) > 8


@pytest.mark.parametrize("kind", [DummyVectorEnv, gymnasium.vector.SyncVectorEnv])
def test_an_episode_without_an_end_is_an_error_before_it_fills_the_memory(kind: Any, tmp_path: Path) -> None:
    class Endless(Numbered):
        def length(self, episode: int) -> int:
            return 10**9

    def play(rounds: int) -> None:
        envs.reset()
        for _ in range(rounds):
            envs.step(np.ones(2, np.int64), **({"autoreset": True} if kind is DummyVectorEnv else {}))

    with RecordEpisodes(kind([partial(Numbered, 0), partial(Endless, 1)]), tmp_path, memory=900) as envs:
        with pytest.raises(DatasetError, match=r"env 1 has 35 steps and no end.*wrappers.TimeLimit.*memory="):
            play(40)
        play(14)  # what was kept is given up
    assert {episode.env_id for episode in Dataset(tmp_path)} == {0}
    assert len(assert_whole(Dataset(tmp_path))) > 8


# Collectors.


@pytest.mark.parametrize("transform", [None, RewardSum, partial(TimeLimit, 3)])
def test_a_recorder_costs_a_collector_no_round(transform: Any, tmp_path: Path) -> None:
    rounds = []
    for recorded in (False, True):
        venv: Any = DummyVectorEnv(env_fns())
        below = venv if transform is None else TransformedVectorEnv(venv, transform())
        envs = RecordEpisodes(below, tmp_path) if recorded else below
        with SyncDataCollector(envs, None, frames_per_batch=30 * N, total_frames=120 * N) as collector:
            for _ in range(4):
                collector.rollout()
            rounds.append(venv.stats()["rounds"])
    assert rounds[0] == rounds[1]
    assert Dataset(tmp_path).verify() == []
    assert Dataset(tmp_path).steps > 110 * N
    if transform is None:
        assert rounds[0] <= 120 + 4, "a round a step, and resets where batches begin"
        assert_whole(Dataset(tmp_path))


@pytest.mark.parametrize("kind", [SyncDataCollector, AsyncDataCollector])
def test_a_collector_of_either_kind(kind: Any, tmp_path: Path) -> None:
    venv = ShmemVectorEnv(env_fns(), num_workers=2)
    with kind(RecordEpisodes(venv, tmp_path), None, frames_per_batch=30) as collector:
        for _ in range(4):
            collector.rollout()
    assert sum(map(len, assert_whole(Dataset(tmp_path)).values())) > 120 - 8 * N


def test_seeds_of_a_collector_with_episode_seeds(tmp_path: Path) -> None:
    venv = RecordEpisodes(DummyVectorEnv(logged(3)), tmp_path)
    with SyncDataCollector(venv, None, frames_per_batch=30, episode_seeds=EpisodeSeeds(4, range(12))) as collector:
        seeds = {seed for batch in collector for seed in batch.extras["episode_seed"][batch.done].tolist()}
    assert {episode.seed for episode in Dataset(tmp_path)} == seeds
    assert [episode.obs[0, 3] for episode in Dataset(tmp_path)] == [episode.seed for episode in Dataset(tmp_path)]


def test_ctrl_c_at_any_moment_joins_no_episodes(tmp_path: Path) -> None:
    with RecordEpisodes(DummyVectorEnv(env_fns()), tmp_path, shard_bytes=2**12) as venv:
        venv.reset()

        def begin_again() -> None:
            if venv.failed_id:
                venv.reset(venv.failed_id)

        def step() -> None:
            venv.step(actions(0), autoreset=True)

        assert interrupt_at_random(step, begin_again, 60, 0.004)
    assert_whole(Dataset(tmp_path))
