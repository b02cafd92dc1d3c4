"""Entries of infos become columns of a data set, whichever loop plays the episodes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from collector import (
    Dataset,
    DatasetError,
    Episode,
    EpisodeCutter,
    Job,
    RecordEpisodes,
    StoreWriter,
    SyncDataCollector,
    export,
    make_head,
    run_job,
)
from collector.jobs.job import JobError
from tests.support import job_envs
from tests.support.backends import FULL
from tests.support.job_envs import Informed
from tests.support.stored import episode
from vecenv import DummyVectorEnv, GymnasiumVectorEnv, ShmemVectorEnv

pytestmark = pytest.mark.usefixtures("no_fsync")
KEYS = ("count", "half", "success", "legal", "said", "stats.total", "verdict", "score")


def assert_recorded(data: Dataset, least: int) -> None:
    assert len(data) >= least
    assert data.verify() == []
    for each in data:
        assert [*each.info] == [*KEYS]
        kinds = [each.info[key].dtype for key in KEYS]
        assert kinds == [np.int64, np.float64, np.bool_, np.int8, np.object_, np.float64, np.object_, np.float64]
        assert [each.info[key].tolist() for key in KEYS] == [
            [1, 2, 3, 4],
            [0.5, 1.0, 1.5, 2.0],
            [False, False, False, True],
            [[1, 0], [2, 0], [3, 0], [4, 0]],
            ["step 1", "step 2", "step 3", "step 4"],
            [3.0, 6.0, 9.0, 12.0],
            ["", "", "", "good"],
            [0.0, 0.0, 0.0, 7.5],
        ]


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
@pytest.mark.parametrize(
    "make",
    [
        gymnasium.vector.SyncVectorEnv,
        pytest.param(partial(gymnasium.vector.AsyncVectorEnv, shared_memory=False), marks=FULL),
        lambda fns, autoreset_mode: GymnasiumVectorEnv(DummyVectorEnv(fns), autoreset_mode=autoreset_mode),
        lambda fns, autoreset_mode: GymnasiumVectorEnv(
            DummyVectorEnv(fns),
            autoreset_mode=autoreset_mode,
            final_info_format="list" if autoreset_mode is AutoresetMode.SAME_STEP else "dict",
        ),
    ],
    ids=["sync", "async", "ours", "old names"],
)
def test_infos_of_a_vector_env_are_recorded(make: Any, mode: AutoresetMode, tmp_path: Path) -> None:
    with RecordEpisodes(make([Informed] * 2, autoreset_mode=mode), tmp_path, info_keys=KEYS) as envs:
        envs.reset(seed=3)
        for _ in range(14):
            _, _, terminated, truncated, _ = envs.step(np.zeros(2, np.int64))
            if mode is AutoresetMode.DISABLED and (terminated | truncated).any():
                envs.reset(options={"reset_mask": terminated | truncated})
    assert_recorded(Dataset(tmp_path), 4)


@pytest.mark.parametrize("kind", [DummyVectorEnv, pytest.param(ShmemVectorEnv, marks=FULL)])
def test_infos_of_a_collectors_envs_are_recorded(kind: Any, tmp_path: Path) -> None:
    for resume in (False, True):
        envs = RecordEpisodes(kind([Informed] * 2), tmp_path, info_keys=KEYS, resume=resume, compress=True)
        with SyncDataCollector(envs, frames_per_batch=10) as collector:
            collector.collect(n_step=40)
    assert_recorded(Dataset(tmp_path), 14)
    message = r"has the info_keys \('count', .*, and not \('half', .*: resume it with these keys"
    with DummyVectorEnv([Informed]) as venv, pytest.raises(DatasetError, match=message):
        RecordEpisodes(venv, tmp_path, info_keys=KEYS[1:], resume=True)


@pytest.mark.parametrize("backend", ["dummy", pytest.param("shmem", marks=FULL)])
def test_a_job_stores_infos(backend: Any, tmp_path: Path) -> None:
    job = Job(env=f"{job_envs.__name__}:Informed", num_envs=2, episodes=40, backend=backend, info_keys=KEYS)
    run_job(job, tmp_path / "a")
    assert_recorded(Dataset(tmp_path / "a"), 40)
    assert Job(env="CartPole-v1", episodes=1, info_keys="lives").info_keys == ("lives",)
    with pytest.raises(JobError, match="info_keys has 'reward', which a batch has already"):
        Job(env="CartPole-v1", episodes=1, info_keys=("reward",))


def test_recorded_infos_may_have_the_name_of_a_column(tmp_path: Path) -> None:
    class Masked(Informed):
        def step(self, action: Any) -> Any:
            *results, info = super().step(action)
            return *results, {"mask": info["count"], "obs": info["said"]}

    with RecordEpisodes(gymnasium.vector.SyncVectorEnv([Masked]), tmp_path, info_keys=["mask", "obs"]) as envs:
        envs.reset()
        for _ in range(4):
            envs.step([0])
    assert Dataset(tmp_path)[0].info["mask"].tolist() == [1, 2, 3, 4]
    with DummyVectorEnv([Masked]) as venv:
        for wrong, error in (("mask", TypeError), (("mask", "mask"), ValueError), (5, TypeError)):
            with pytest.raises(error, match="info_keys"):
                RecordEpisodes(venv, tmp_path, info_keys=wrong, overwrite=True)
    assert len(Dataset(tmp_path)) == 1


def test_a_batch_has_texts_of_infos() -> None:
    with SyncDataCollector([Informed] * 2, frames_per_batch=10, info_keys=("said", "verdict")) as collector:
        batch = collector.rollout()
    assert batch.extras["said"][1].tolist() == [f"step {step}" for step in (1, 2, 3, 4, 1)]
    assert batch.extras["verdict"][0].tolist() == ["", "", "", "good", ""]


class NamedLikeColumns(Informed):
    """Env whose infos have names that a log gives its own columns."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, {"episode_seed": -info["count"], "reward": 2 * info["count"]}


def test_an_info_may_have_the_name_of_a_column(tmp_path: Path) -> None:
    with RecordEpisodes(DummyVectorEnv([NamedLikeColumns] * 2), tmp_path, info_keys=("episode_seed", "reward")) as venv:
        venv.reset(seed=[3, 4])
        for _ in range(4):
            venv.step([0, 0])
    for seed, played in zip((3, 4), Dataset(tmp_path), strict=True):
        assert played.seed == seed
        assert played.info["episode_seed"].tolist() == [-1, -2, -3, -4]
        assert played.info["reward"].tolist() == [2, 4, 6, 8]


class InformedPair(Informed):
    """Env with a vector reward."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, np.array([reward, 0.5]), *rest


@pytest.mark.parametrize("flat", [False, True])
def test_a_cutter_gives_entries_that_only_later_batches_have(flat: bool) -> None:
    keys = ("count", "verdict")
    cutter = EpisodeCutter(keys)
    with SyncDataCollector([InformedPair] * 2, frames_per_batch=4, info_keys=keys) as collector:
        batches = [collector.rollout() for _ in range(2)]
        first, second = (cutter.cut(batch.flatten() if flat else batch) for batch in batches)
    assert len(first) == 0
    assert [each.info["count"].tolist() for each in second] == [[1, 2, 3, 4]] * 2
    assert [each.info["verdict"].tolist() for each in second] == [[None, None, "", "good"]] * 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([[1, None, 2], [0.5, 1, 1]], r"'x' is 0.5 \(float64 \(\)\), but the data set has int64 \(\)"),
        ([["a", None, "b"], ["c", "d", "d"], [1, 2, 3]], r"'x' is 1 \(int64 \(\)\), but the data set has text"),
        ([[1, 2, 3], ["c", "d", "d"]], r"'x' is 'c' \(text\), but the data set has int64"),
        ([[np.zeros(2)] * 3, [np.zeros(3)] * 3], r"\(float64 \(3,\)\), but the data set has float64 \(2,\)"),
        ([[{"y": 1}] * 3], r"entries of 'x', .* name its entries instead, as in \('x.y',\)"),
        ([[np.zeros(2), np.zeros(3), 1]], "not numbers, arrays of numbers of one shape, or texts; leave out this key"),
        ([["a", 1, 2]], "entries of 'x', such as 'a', are not numbers"),
        ([[None] * 3], "no info of the first episodes that ended has 'x'; leave this key out"),
        ([[1, 2, 3], None], "these episodes have the arrays"),
    ],
)
def test_infos_that_do_not_fit_are_refused(given: Any, message: str, tmp_path: Path) -> None:
    def made(number: int, values: Any) -> Episode:
        info = {} if values is None else {"x": objects(values)}
        return episode(number, length=3, info=info)

    *fitting, wrong = given
    with StoreWriter(tmp_path, make_head()) as writer:
        for number, values in enumerate(fitting):
            writer.add(made(number, values))
        with pytest.raises(DatasetError, match=message):
            writer.add(made(9, wrong))
        writer.end()
    assert Dataset(tmp_path).numbers.tolist() == [*range(len(fitting))]


def objects(values: Any) -> np.ndarray:
    array = np.empty(len(values), object)
    for i, value in enumerate(values):
        array[i] = value
    return array


def test_later_numbers_take_the_dtype_of_the_first(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, make_head()) as writer:
        writer.add(episode(0, length=3, info={"x": objects([0.5, None, True]), "ok": objects([True, None, np.True_])}))
        writer.add(episode(1, length=3, info={"x": objects([1, 2, None]), "ok": objects([None] * 3)}))
        writer.end()
    data = Dataset(tmp_path)
    found = data.transitions().info
    assert found["x"].tolist() == [0.5, 0.0, 1.0, 1.0, 2.0, 0.0]
    assert found["ok"].tolist() == [True, False, True, False, False, False]
    assert (found["x"].dtype, found["ok"].dtype) == (np.float64, np.bool_)
    assert data[1].nbytes - episode(1, length=3).nbytes == 3 * (8 + 1)


@pytest.fixture
def recorded(tmp_path: Path) -> Dataset:
    envs = RecordEpisodes(DummyVectorEnv([Informed] * 2), tmp_path / "a", info_keys=KEYS)
    with SyncDataCollector(envs, frames_per_batch=20) as collector:
        collector.collect(n_step=20)
    return Dataset(tmp_path / "a")


def test_torch_views_have_infos(recorded: Dataset) -> None:
    pytest.importorskip("torch")
    row = recorded.as_torch()[2]["info"]
    assert (row["count"].item(), row["said"], row["legal"].tolist()) == (3, "step 3", [3, 0])
    assert recorded.as_torch("episodes")[0]["info"]["count"].tolist() == [1, 2, 3, 4]


def test_exports_have_infos(recorded: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet, minari = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("minari")
    every = recorded.transitions().info
    table = parquet.read_table(export(recorded, "parquet", tmp_path / "p") / "steps/steps.parquet")
    stepped = table.filter([not last for last in table["is_last"].to_pylist()])
    for key, rows in every.items():
        assert stepped[f"info_{key.replace('.', '_')}"].to_pylist() == rows.tolist()
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    export(recorded, "minari", tmp_path / "minari/talks/infos-v0")
    for ours, theirs in zip(recorded, minari.load_dataset("talks/infos-v0").iterate_episodes(), strict=True):
        for key, rows in ours.info.items():
            (first, *rest), blank = theirs.infos[key].tolist(), "" if rows.dtype == object else 0
            decoded = [each.decode() if isinstance(each, bytes) else each for each in rest]
            assert decoded == rows.tolist()
            assert np.all(np.asarray(first.decode() if isinstance(first, bytes) else first) == blank)
    out = export(recorded, "lerobot", tmp_path / "l")
    features = json.loads((out / "meta/info.json").read_text())["features"]
    assert [key for key in features if key.startswith("info.")] == [
        f"info.{key.replace('.', '_')}" for key in KEYS if every[key].dtype != object
    ]
    frames = parquet.read_table(out / "data")
    assert frames["info.legal"].to_pylist() == every["legal"].tolist()


def test_minari_refuses_names_that_its_files_cannot_hold(tmp_path: Path) -> None:
    pytest.importorskip("minari")
    space = gymnasium.spaces.Box(-9, 9, (3,)), gymnasium.spaces.Discrete(5)
    with StoreWriter(tmp_path / "a", make_head(*space)) as writer:
        writer.add(episode(0, info={"a/b": np.zeros(5)}))
        writer.end()
    with pytest.raises(DatasetError, match="info has the key 'a/b', which a Minari file cannot hold: export"):
        export(tmp_path / "a", "minari", tmp_path / "out")
