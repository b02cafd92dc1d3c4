"""Texts in observations and actions are stored, read and exported."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from collector import (
    Dataset,
    DatasetError,
    EpisodeCutter,
    Job,
    RecordEpisodes,
    StoreWriter,
    SyncDataCollector,
    export,
    make_head,
    run_job,
)
from collector.jobs.replay import replay_episodes
from tests.support import job_envs
from tests.support.backends import FULL
from tests.support.job_envs import MissionSpace, Talk, answers
from tests.support.stored import SPACES, assert_same, episode, text_episode, write
from vecenv import DummyVectorEnv, GymnasiumVectorEnv, ShmemVectorEnv

pytestmark = pytest.mark.usefixtures("no_fsync")


class Speaker(gymnasium.Env):
    """Env that repeats the action's text. The text has one character more in each step, up to 3."""

    action_space: spaces.Space[Any] = spaces.Text(3, charset="abc")

    def __init__(self, observation_space: Any) -> None:
        self.observation_space = observation_space

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        return "", {}

    def step(self, action: Any) -> Any:
        assert isinstance(action, str)
        return action, float(len(action)), len(action) == 3, False, {}


MISSION = "go to the \N{GREEK SMALL LETTER ALPHA}"
SPOKEN = [["a", "b"], ["ab", "bc"], ["abc", "b"], ["c", "bca"]]


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
@pytest.mark.parametrize("space", [spaces.Text(9, min_length=0), MissionSpace()], ids=["Text", "MissionSpace"])
@pytest.mark.parametrize(
    "make",
    [
        gymnasium.vector.SyncVectorEnv,
        pytest.param(partial(gymnasium.vector.AsyncVectorEnv, shared_memory=False), marks=FULL),
        pytest.param(lambda fns, **more: GymnasiumVectorEnv(ShmemVectorEnv(fns, num_workers=1), **more), marks=FULL),
    ],
    ids=["sync", "async", "ours"],
)
def test_texts_of_a_vector_env_are_recorded(make: Any, space: Any, mode: AutoresetMode, tmp_path: Path) -> None:
    for given in (tuple, list, np.array):
        with RecordEpisodes(make([partial(Speaker, space)] * 2, autoreset_mode=mode), tmp_path, overwrite=True) as envs:
            envs.reset(seed=3)
            for texts in SPOKEN[:3]:
                envs.step(given(texts))
            if mode is AutoresetMode.NEXT_STEP:
                envs.step(given(["a", "b"]))
            elif mode is AutoresetMode.DISABLED:
                envs.reset(options={"reset_mask": np.array([True, False])})
            envs.step(given(SPOKEN[3]))
        first, second = Dataset(tmp_path)
        assert first.obs.tolist() == ["", "a", "ab", "abc"]
        assert first.action.tolist() == ["a", "ab", "abc"]
        other = ["b", "bc", "b", *(["b"] if mode is AutoresetMode.NEXT_STEP else []), "bca"]
        assert second.action.tolist() == other
        assert second.obs.tolist() == ["", *other]
        assert (first.seed, second.seed) == (3, 4)


@pytest.mark.parametrize("kind", [DummyVectorEnv, pytest.param(ShmemVectorEnv, marks=FULL)])
def test_a_collector_records_texts_in_trees(kind: Any, tmp_path: Path) -> None:
    envs = RecordEpisodes(kind([Talk] * 2), tmp_path / "a", compress=True)
    with (
        SyncDataCollector(envs, answers, frames_per_batch=6) as collector,
        StoreWriter(tmp_path / "b", make_head(Talk.observation_space, Talk.action_space)) as writer,
    ):
        cutter = EpisodeCutter()
        for _ in range(6):
            writer.add(cutter.cut(collector.rollout()))
        writer.end()
    recorded, cut = Dataset(tmp_path / "a"), Dataset(tmp_path / "b")
    assert len(recorded) == len(cut) == 8
    for one, other in zip(recorded, cut, strict=True):
        assert one.obs["mission"].dtype == one.action["say"].dtype == object
        said = [{"say": mission[:9] or "no", "move": step} for step, mission in enumerate(one.obs["mission"][:-1])]
        assert one.action["say"].tolist() == [each["say"] for each in said]
        assert one.action["move"].tolist() == [0, 1, 2, 3]
        assert one.reward.tolist() == [*map(len, one.action["say"])]
        assert_same(one, other)
    assert {*np.concatenate([each.obs["mission"] for each in recorded])} == {"", *(MISSION * k for k in (1, 2))}
    with RecordEpisodes(kind([Talk] * 2), tmp_path / "a", resume=True):
        pass  # the space of the missions is equal in another program


@pytest.mark.parametrize("backend", ["dummy", pytest.param("shmem", marks=FULL)])
def test_a_job_stores_texts_and_replays_them(backend: Any, tmp_path: Path) -> None:
    here = job_envs.__name__
    job = Job(env=f"{here}:Talk", policy=f"{here}:answers", num_envs=2, episodes=6, backend=backend)
    run_job(job, tmp_path / "a")
    data = Dataset(tmp_path / "a")
    assert data.verify() == []
    assert data[0].action["say"][0] == (data[0].obs["mission"][0][:9] or "no")
    space = data.observation_space["mission"]
    assert (space.min_length, space.max_length, "go to the room!" in space) == (0, 1000, True)
    assert replay_episodes(tmp_path / "a", 6, [here]) == dict.fromkeys(range(6), "")


class Odd(Speaker):
    """Env whose second observation is no text."""

    def step(self, action: Any) -> Any:
        return None, 0.0, False, False, {}


@pytest.mark.parametrize("make", [DummyVectorEnv, gymnasium.vector.SyncVectorEnv])
def test_an_observation_that_is_no_text_is_refused(make: Any, tmp_path: Path) -> None:
    with RecordEpisodes(make([partial(Odd, MissionSpace())] * 2), tmp_path) as envs:
        envs.reset()
        with pytest.raises(DatasetError, match=r"returned obs as .*; its observation space says a text per env"):
            envs.step(["a", "b"])


def test_an_action_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with RecordEpisodes(DummyVectorEnv([partial(Speaker, MissionSpace())] * 2), tmp_path) as envs:
        envs.reset()
        with pytest.raises(DatasetError, match="not elements of the action space, so they cannot be stored"):
            envs.step(["a", 5])


def test_the_bytes_of_texts_count_towards_the_limits(tmp_path: Path) -> None:
    large = "x" * 10_000
    with StoreWriter(tmp_path / "a", make_head()) as writer:
        writer.add([episode(0, obs=np.array([large + str(step) for step in range(6)], object))])
        assert 60_000 < writer.waiting_bytes < 62_000
        writer.commit()
        writer.end()
    data = Dataset(tmp_path / "a")
    assert 60_000 < data[0].nbytes < 62_000
    assert data[0].nbytes - episode(0).nbytes == 6 * (8 + sys.getsizeof(large + "0") - 12)

    class Long(Speaker):
        def step(self, action: Any) -> Any:
            return large, 0.0, False, False, {}

    with RecordEpisodes(DummyVectorEnv([partial(Long, MissionSpace())]), tmp_path / "b", memory=10**6) as envs:
        envs.reset()
        with pytest.raises(DatasetError, match=r"the unfinished episode of env 0 has .* steps and no end"):
            play_on(envs, 3000)


def play_on(envs: Any, steps: int) -> None:
    for _ in range(steps):
        envs.step(["a"])


@pytest.mark.parametrize("compress", [False, True])
def test_few_shards_of_texts_are_open(compress: bool, tmp_path: Path) -> None:
    """`memory` counts texts as they are in memory: more than their bytes in the file."""
    words = [np.array([f"{number} {step}" for step in range(101)], object) for number in range(4)]
    made = [episode(number, length=100, obs=words[number]) for number in range(4)]
    with StoreWriter(tmp_path / "a", make_head(), compress=compress) as writer:
        for each in made:
            writer.add(each)
            writer.commit()
        writer.end()
    data = Dataset(tmp_path / "a", memory=2 * made[0].nbytes + 2000)
    shards = np.concatenate([*data.batch_order(10, 0, 1)]) // 100
    assert [len({*half}) for half in np.split(shards, 2)] == [2, 2]


def test_torch_views_have_lists_of_texts(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    data = Dataset(write(tmp_path / "a", make=text_episode))
    every = data.transitions()
    view = data.as_torch("batches", batch_size=5, seed=1)
    for batch, steps in zip(torch.utils.data.DataLoader(view, batch_size=None), data.batch_order(5, 1, 1), strict=True):
        assert batch["obs"]["say"] == every.obs["say"][steps].tolist()
        assert batch["next_obs"]["say"] == every.next_obs["say"][steps].tolist()
        assert batch["obs"]["x"].shape == (len(steps), 3)
    (batch,) = torch.utils.data.DataLoader(data.as_torch(), batch_size=data.steps)
    assert batch["action"] == every.action.tolist()
    assert data.as_torch("episodes")[1]["obs"]["say"] == data[1].obs["say"].tolist()


def test_a_tensordict_takes_no_texts_but_leaves_infos_out(tmp_path: Path) -> None:
    pytest.importorskip("tensordict")
    with pytest.raises(TypeError, match=r"obs\.say are texts, which a TensorDict of tensors cannot hold"):
        Dataset(write(tmp_path / "a", make=text_episode)).transitions().to_tensordict()
    data = Dataset(write(tmp_path / "b", make=partial(episode, info={"said": np.array(["x"] * 3, object)}, length=3)))
    assert len(data.transitions().to_tensordict()) == data.steps


def test_parquet_has_a_column_of_strings(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    data = Dataset(write(tmp_path / "a", make=text_episode))
    table = parquet.read_table(export(data, "parquet", tmp_path / "out") / "steps/steps.parquet")
    assert [str(table.schema.field(name).type) for name in ("obs_say", "action")] == ["large_string"] * 2
    assert table["obs_say"].to_pylist() == [text for each in data for text in each.obs["say"]]
    assert table["action"].to_pylist() == [text for each in data for text in (*each.action, "")]


def test_minari_reads_texts_back_and_null_characters_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minari = pytest.importorskip("minari")
    data = Dataset(write(tmp_path / "a", make=text_episode))
    with pytest.raises(DatasetError, match=r"episode 0 has a text with a null character in obs.say.*: export as Parq"):
        export(data, "minari", tmp_path / "minari/a/b-v0")

    def without_null(number: int) -> Any:
        made = text_episode(number)
        said = np.array([text.replace("\0", "") for text in made.obs["say"]], object)
        return text_episode(number, obs={**made.obs, "say": said}, action=said[1:])

    with StoreWriter(tmp_path / "b", make_head(*SPACES[text_episode])) as writer:
        writer.add([without_null(number) for number in range(6)])
        writer.end()
    data = Dataset(tmp_path / "b")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    export(data, "minari", tmp_path / "minari/talks/words-v0")
    found = minari.load_dataset("talks/words-v0")
    assert found.observation_space == data.observation_space
    for ours, theirs in zip(data, found.iterate_episodes(), strict=True):
        assert theirs.observations["say"] == ours.obs["say"].tolist()
        assert theirs.actions == ours.action.tolist()
        np.testing.assert_array_equal(theirs.observations["x"], ours.obs["x"])


def test_lerobot_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    folder = write(tmp_path / "a", make=text_episode)
    with pytest.raises(
        DatasetError, match=r"LeRobot takes only numbers, but obs.say, action are texts: export as Parquet"
    ):
        export(folder, "lerobot", tmp_path / "out")
    assert not (tmp_path / "out").exists()
