"""RecordEpisodes: the same episodes are stored, whatever steps the envs and however they are reset."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from collector import Dataset, DatasetError, Episode, RecordEpisodes, StoreWriter, SyncDataCollector, make_head
from collector.store.record.recorder import EpisodeRecorder
from tests.backends import FULL
from tests.stored import assert_same
from vecenv import AsyncVectorEnv, DummyVectorEnv, GymnasiumVectorEnv, ShmemVectorEnv, SyncVectorEnv, nest

pytestmark = pytest.mark.usefixtures("no_fsync")
MODES = list(AutoresetMode)
N, STEPS = 3, 40


class Numbered(gymnasium.Env):
    """Episodes of 1 + (number of the env + episode) % 4 steps; what is observed are env, episode and step."""

    def __init__(self, number: int, tree: bool = False, breaks_at: int = -1) -> None:
        box = spaces.Box(-1, 10_000, (3,), np.float32)
        self.tree, self.number, self.episode, self.taken, self.breaks_at = tree, number, -1, 0, breaks_at
        self.observation_space = spaces.Dict({"a": box, "b": spaces.Tuple([spaces.Discrete(99)])}) if tree else box
        self.action_space = spaces.Dict({"x": spaces.Discrete(50)}) if tree else spaces.Discrete(50)

    def observe(self) -> Any:
        obs = np.array([self.number, self.episode, self.taken], np.float32)
        return {"a": obs, "b": (np.int64(self.taken),)} if self.tree else obs

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.taken = self.episode + 1, 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.taken += 1
        if self.episode == self.breaks_at and self.taken == 1:
            raise RuntimeError("broken")
        over = self.taken == self.length(self.episode)
        self.last = int(action["x"] if self.tree else action)
        return self.observe(), float(self.last), over and self.episode % 2 == 0, over and self.episode % 2 == 1, {}

    def length(self, episode: int) -> int:
        return 1 + (self.number + episode) % 4


def env_fns(tree: bool = False, **options: Any) -> list[Any]:
    return [partial(Numbered, number, tree, **options) for number in range(N)]


def actions(step: int, tree: bool = False) -> Any:
    drawn = np.random.default_rng(step).integers(0, 50, N)
    return {"x": drawn} if tree else drawn


def assert_whole(data: Dataset, complete: bool = True) -> dict[tuple[int, int], Episode]:
    """Each episode is one that its env played, with rewards that are its actions; by env and episode."""
    assert data.verify() == []
    assert data.complete is complete
    found = {}
    for episode in data:
        rows = nest.leaves(episode.obs)
        obs = next(rows)
        env, number = int(obs[0, 0]), int(obs[0, 1])
        length = 1 + (env + number) % 4
        assert obs[:, 2].tolist() == list(range(length + 1))
        assert (obs[:, :2] == obs[0, :2]).all()
        action = next(nest.leaves(episode.action))
        assert action.tolist() == episode.reward.tolist()
        assert len(episode) == length
        assert episode.terminated[-1] == (number % 2 == 0)
        assert episode.truncated[-1] == (number % 2 == 1)
        assert episode.env_id == env
        found[env, number] = episode
    assert len(found) == len(data)
    return found


def play(envs: Any, mode: AutoresetMode, steps: int = STEPS, tree: bool = False) -> None:
    envs.reset(seed=5)
    for step in range(steps):
        _, _, terminated, truncated, _ = envs.step(actions(step, tree))
        if mode is AutoresetMode.DISABLED and (terminated | truncated).any():
            envs.reset(options={"reset_mask": terminated | truncated})


MAKERS: dict[str, Any] = {
    "gymnasium_sync": lambda fns, mode: gymnasium.vector.SyncVectorEnv(fns, autoreset_mode=mode),
    "ours_sync": lambda fns, mode: SyncVectorEnv(fns, autoreset_mode=mode),
    "ours_async": lambda fns, mode: AsyncVectorEnv(fns, autoreset_mode=mode),
    "shmem": lambda fns, mode: GymnasiumVectorEnv(ShmemVectorEnv(fns, num_workers=1), autoreset_mode=mode),
}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize(
    ("maker", "tree"),
    [
        ("gymnasium_sync", False),
        pytest.param("gymnasium_sync", True, marks=FULL),
        pytest.param("shmem", False, marks=FULL),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in [("shmem", True), ("ours_sync", False)]),
        *(pytest.param("ours_async", tree, marks=pytest.mark.slow) for tree in (False, True)),
    ],
)
def test_every_whole_episode_is_stored(maker: str, mode: AutoresetMode, tree: bool, tmp_path: Path) -> None:
    with RecordEpisodes(MAKERS[maker](env_fns(tree), mode), tmp_path) as envs:
        play(envs, mode, tree=tree)
    found = assert_whole(Dataset(tmp_path))
    for env in range(N):
        numbers = sorted(number for each, number in found if each == env)
        assert numbers == list(range(len(numbers))), "none is missing"
        spent = sum(1 + (env + number) % 4 + (mode is AutoresetMode.NEXT_STEP) for number in numbers)
        assert STEPS - 5 <= spent <= STEPS + 1, "all but the one in progress are there"
        assert found[env, 0].seed == 5 + env
        assert found[env, 1].seed is None


def test_the_modes_give_the_same_episodes(tmp_path: Path) -> None:
    """Of envs whose steps do not depend on the actions before; the actions of NEXT_STEP's reset rows are no steps."""
    found = {}
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED):
        with RecordEpisodes(SyncVectorEnv(env_fns(), autoreset_mode=mode), tmp_path / mode.name) as envs:
            play(envs, mode)
        found[mode] = list(Dataset(tmp_path / mode.name))
    for ours, theirs in zip(*found.values(), strict=True):
        assert_same(ours, theirs)


def test_a_loop_on_the_engine(tmp_path: Path) -> None:
    with RecordEpisodes(ShmemVectorEnv(env_fns(), num_workers=1), tmp_path) as venv:
        venv.reset(seed=[7, 8, 9])
        for step in range(STEPS):
            _, _, terminated, truncated, _ = venv.step(actions(step))
            if (terminated | truncated).any():
                venv.reset(np.flatnonzero(terminated | truncated))
    found = assert_whole(Dataset(tmp_path))
    assert sum(map(len, found.values())) > N * STEPS - 4 * N
    assert [found[env, 0].seed for env in range(N)] == [7, 8, 9]


@pytest.mark.parametrize("kind", [DummyVectorEnv, pytest.param(ShmemVectorEnv, marks=FULL)])
def test_rounds_with_autoreset_and_mixed_rounds(kind: Any, tmp_path: Path) -> None:
    for name in ("autoreset", "reset", "send"):
        with RecordEpisodes(kind(env_fns()), tmp_path / name) as venv:
            venv.reset()
            done = np.zeros(N, np.bool_)
            for step in range(STEPS):
                if name == "autoreset":
                    venv.step(actions(step), autoreset=True)
                elif name == "reset":
                    _, _, terminated, truncated, _ = venv.step(actions(step), reset=done if done.any() else None)
                    done = terminated | truncated
                else:
                    venv.send(actions(step), autoreset=True)
                    venv.recv()
        found = assert_whole(Dataset(tmp_path / name))
        assert sum(map(len, found.values())) > N * STEPS * (0.6 if name == "reset" else 1) - 4 * N


@FULL
def test_rounds_of_some_envs(tmp_path: Path) -> None:
    with RecordEpisodes(ShmemVectorEnv(env_fns(), wait_num=1), tmp_path) as venv:
        venv.reset()
        rng, taken = np.random.default_rng(0), 0
        ids = np.arange(N)
        for _ in range(3 * STEPS):
            venv.send(rng.integers(0, 50, len(ids)), ids)
            _, _, terminated, truncated, info = venv.recv()
            ids = np.array([row["env_id"] for row in info])
            taken += len(ids)
            over = ids[terminated | truncated]
            if over.size:
                venv.reset(over)
    found = assert_whole(Dataset(tmp_path))
    assert sum(map(len, found.values())) > taken - 5 * N


@FULL
def test_a_collector_and_a_facade_on_a_recorded_vector_env(tmp_path: Path) -> None:
    venv = RecordEpisodes(DummyVectorEnv(env_fns()), tmp_path / "a")
    with SyncDataCollector(venv, None, frames_per_batch=30, total_frames=120) as batches:
        frames = sum(batch.frames for batch in batches)
    venv.close()
    found = assert_whole(Dataset(tmp_path / "a"))
    assert sum(map(len, found.values())) > frames - 5 * N
    envs = GymnasiumVectorEnv(RecordEpisodes(DummyVectorEnv(env_fns()), tmp_path / "b"))
    play(envs, AutoresetMode.NEXT_STEP)
    envs.close()
    assert len(assert_whole(Dataset(tmp_path / "b"))) > 20


@pytest.mark.slow
def test_sb3_on_a_recorded_vector_env(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    from vecenv import SB3VecEnv

    envs = SB3VecEnv(RecordEpisodes(DummyVectorEnv(env_fns()), tmp_path))
    envs.reset()
    for step in range(STEPS):
        envs.step(actions(step))
    envs.close()
    assert sum(map(len, assert_whole(Dataset(tmp_path)).values())) > N * STEPS - 4 * N


def test_step_async_and_step_wait(tmp_path: Path) -> None:
    with RecordEpisodes(AsyncVectorEnv(env_fns()), tmp_path) as envs:
        envs.reset()
        for step in range(STEPS):
            envs.step_async(actions(step))
            envs.step_wait()
    assert len(assert_whole(Dataset(tmp_path))) > 20


def test_episodes_that_are_reset_before_their_end_are_not_stored(tmp_path: Path) -> None:
    with RecordEpisodes(SyncVectorEnv(env_fns()), tmp_path) as envs:
        for _ in range(4):
            envs.reset()
            for step in range(2):
                envs.step(actions(step))
    found = assert_whole(Dataset(tmp_path))
    assert {len(episode) for episode in found.values()} == {1, 2}


def test_an_env_that_fails_loses_its_episode_only(tmp_path: Path) -> None:
    fns = [partial(Numbered, 0), partial(Numbered, 1, breaks_at=3), partial(Numbered, 2)]
    venv = DummyVectorEnv(fns, on_error="restart")
    with RecordEpisodes(GymnasiumVectorEnv(venv), tmp_path / "a") as envs:
        play(envs, AutoresetMode.NEXT_STEP)
    numbers = {env: [int(e.obs[0, 1]) for e in Dataset(tmp_path / "a") if e.env_id == env] for env in range(3)}
    assert numbers[1][:3] == [0, 1, 2]
    assert 3 not in numbers[1]
    assert numbers[0] == list(range(len(numbers[0])))
    with RecordEpisodes(DummyVectorEnv(fns), tmp_path / "b") as venv:
        venv.reset()
        for step in range(STEPS):
            try:
                venv.step(actions(step), autoreset=True)
            except RuntimeError:
                venv.reset(1)
    assert_whole(Dataset(tmp_path / "b"))


def test_a_loop_that_ends_by_an_exception_leaves_a_data_set_to_resume(tmp_path: Path) -> None:
    def play_and_fail() -> None:
        with RecordEpisodes(SyncVectorEnv(env_fns()), tmp_path) as envs:
            play(envs, AutoresetMode.NEXT_STEP)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        play_and_fail()
    before = len(assert_whole(Dataset(tmp_path), complete=False))
    with pytest.raises(DatasetError, match="already holds"):
        RecordEpisodes(SyncVectorEnv(env_fns()), tmp_path)
    with RecordEpisodes(SyncVectorEnv(env_fns()), tmp_path, resume=True) as envs:
        play(envs, AutoresetMode.NEXT_STEP)
    assert len(Dataset(tmp_path)) == 2 * before


@FULL
def test_shards_are_committed_by_size_and_by_time_while_the_loop_runs(tmp_path: Path) -> None:
    for name, options in (("size", {"shard_bytes": 1}), ("time", {"shard_seconds": 0.0})):
        with RecordEpisodes(SyncVectorEnv(env_fns()), tmp_path / name, **options) as envs:
            play(envs, AutoresetMode.NEXT_STEP, 2000 if name == "size" else STEPS)
            assert len(Dataset(tmp_path / name)) > 10


@FULL
def test_long_episodes_are_kept_until_their_end(tmp_path: Path) -> None:
    make = partial(gymnasium.make, "Pendulum-v1", max_episode_steps=1500)
    with RecordEpisodes(SyncVectorEnv([make] * 2), tmp_path) as envs:
        envs.reset(seed=0)
        rows = [envs.step(np.full((2, 1), step / 2000, np.float32)) for step in range(1500)]
    for env, episode in enumerate(Dataset(tmp_path)):
        np.testing.assert_array_equal(episode.obs[1:], [row[0][env] for row in rows])
        np.testing.assert_array_equal(episode.reward, [row[1][env] for row in rows])
        np.testing.assert_array_equal(episode.action[:, 0], np.arange(1500, dtype=np.float32) / 2000)


def test_actions_of_dict_spaces_are_stored_by_key(tmp_path: Path) -> None:
    class Two(Numbered):
        def __init__(self) -> None:
            super().__init__(0)
            self.action_space = spaces.Dict({"x": spaces.Discrete(50), "y": spaces.Discrete(50)})

        def step(self, action: Any) -> Any:
            assert (action["x"], action["y"]) == (1, 2)
            return super().step(action["x"])

    for name, envs in (("a", gymnasium.vector.SyncVectorEnv([Two])), ("b", DummyVectorEnv([Two]))):
        with RecordEpisodes(envs, tmp_path / name) as recorded:
            recorded.reset()
            for _ in range(8):
                recorded.step({"y": np.array([2]), "x": np.array([1])})  # not in the order of the space
        for episode in Dataset(tmp_path / name):
            assert set(episode.action["x"]) == {1}
            assert set(episode.action["y"]) == {2}


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=FULL) for seed in (0, 2, 3))])
def test_any_order_of_rounds_gives_what_a_recorder_row_by_row_gives(seed: int, tmp_path: Path) -> None:
    rng, n = np.random.default_rng(seed), 5
    obs = rng.random((n, 2), np.float32)
    with StoreWriter(tmp_path, make_head()) as writer:
        recorder = EpisodeRecorder(n, writer, obs, np.zeros(n, np.int64), 2**40, 1e9)
        playing: list[list[Any] | None] = [None] * n
        latest, expected = obs.copy(), []

        def begin(ids: np.ndarray, seeds: list[int | None]) -> None:
            for env, each in zip(ids.tolist(), seeds, strict=True):
                playing[env] = [env, each, [latest[env].copy()], []]

        for _ in range(1500):
            some = rng.random() < 0.3 * (seed % 2)
            ids = np.sort(rng.choice(n, rng.integers(1, n + 1), False)) if some else np.arange(n)
            kind = rng.choice(["begin", "again", "discard", "cut", "step"], p=[0.05, 0.05, 0.02, 0.01, 0.87])
            if kind in ("begin", "again"):
                seeds = [int(each) if each % 3 else None for each in rng.integers(0, 99, len(ids))]
                if kind == "begin":
                    latest[ids] = rng.random((len(ids), 2), np.float32)
                recorder.begin(ids, latest[ids] if kind == "begin" else None, seeds)
                begin(ids, seeds)
            elif kind == "discard":
                recorder.discard(ids)
                for env in ids.tolist():
                    playing[env] = None
            elif kind == "cut":
                recorder.cut()
            else:
                over = rng.random(len(ids)) < 0.1 * (ids < 4)  # the last one plays one long episode
                reward, action = rng.random(len(ids)), rng.integers(0, 9, len(ids))
                latest[ids] = rng.random((len(ids), 2), np.float32)
                recorder.step(ids if some else None, action, latest[ids], reward, over, np.zeros(len(ids), np.bool_))
                for row, env in enumerate(ids.tolist()):
                    if (found := playing[env]) is not None:
                        found[2].append(latest[env].copy())
                        found[3].append((action[row], reward[row]))
                        if over[row]:
                            expected.append(found)
                            playing[env] = None
        recorder.cut()
        writer.end()
    for episode, (env, each, rows, steps) in zip(Dataset(tmp_path), expected, strict=True):
        assert (episode.env_id, episode.seed) == (env, each)
        np.testing.assert_array_equal(episode.obs, rows)
        np.testing.assert_array_equal(np.stack([episode.action, episode.reward], 1), steps)
    assert len(expected) > 50


@pytest.mark.parametrize("kind", [gymnasium.vector.SyncVectorEnv, DummyVectorEnv])
@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_an_error_and_never_stored(kind: Any, reward: float, tmp_path: Path) -> None:
    class Broken(Numbered):
        def step(self, action: Any) -> Any:
            obs, number, *rest = super().step(action)
            return obs, reward if self.episode == 3 else number, *rest

    def play_all() -> None:
        with RecordEpisodes(kind([partial(Broken, 0)]), tmp_path, shard_seconds=0.0) as envs:
            envs.reset()
            for step in range(STEPS):
                _, _, terminated, truncated, _ = envs.step(actions(step)[:1])
                if kind is DummyVectorEnv and (terminated | truncated).any():
                    envs.reset()

    with pytest.raises(DatasetError, match=f"has the reward {reward} in step 0; NaN and infinity are not stored"):
        play_all()
    assert [int(episode.obs[0, 1]) for episode in Dataset(tmp_path)] == [0, 1, 2]


def test_what_cannot_be_recorded_is_refused_at_once(tmp_path: Path) -> None:
    class Words(Numbered):
        def __init__(self) -> None:
            super().__init__(0)
            self.observation_space = spaces.Text(5)

    with DummyVectorEnv([Words]) as venv, pytest.raises(DatasetError, match="only arrays of numbers"):
        RecordEpisodes(venv, tmp_path / "a")
    with pytest.raises(TypeError, match="wraps vector envs"):
        RecordEpisodes(Numbered(0), tmp_path / "a")
    envs = SyncVectorEnv(env_fns())
    envs.metadata = {}
    with pytest.raises(ValueError, match="pass autoreset_mode="):
        RecordEpisodes(envs, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    RecordEpisodes(envs, tmp_path / "a", autoreset_mode="NextStep").close()
