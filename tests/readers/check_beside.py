"""Libraries that install beside vecenv read the exports of data sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas
import polars
import pyarrow
import pytest

from collector import Dataset
from vecenv import nest

Run = Callable[[str], dict[str, Any]]


def same(theirs: Any, ours: np.ndarray) -> None:
    found = np.asarray(theirs)
    if ours.dtype == object:  # texts
        assert found.tolist() == ours.tolist()
        return
    assert (found.dtype, found.shape) == (ours.dtype, ours.shape)
    assert found.tobytes() == ours.tobytes()


def observations(name: str) -> Any:
    """Every observation of a data set, the last ones of episodes too."""
    return nest.map(np.concatenate, nest.merge(list, [each.obs for each in Dataset(f"data/{name}")]))


def test_matrices_and_pictures(run: Run) -> None:
    same(run("matrix = ")["matrix"], observations("dict")["matrix"])
    same(run("binary = ")["pictures"], observations("rgb"))


def test_pyarrow_pandas_and_duckdb(run: Run) -> None:
    expected = observations("cartpole")
    same(run('pq.read_table("data/cart')["obs"], expected)
    same(run("pd.read_parquet")["obs"], expected)
    same(run("import duckdb")["obs"], expected)


def test_no_reader_mixes_the_tables() -> None:
    with pytest.raises(pyarrow.ArrowInvalid, match=r"schema\.json"):
        pandas.read_parquet("data/cartpole-parquet")
    with pytest.raises(polars.exceptions.InvalidOperationError, match=r"schema\.json"):
        polars.read_parquet("data/cartpole-parquet")
    with pytest.raises(duckdb.Error, match="schema mismatch"):
        duckdb.sql("SELECT * FROM 'data/cartpole-parquet/*/*.parquet'").fetchall()


def test_datasets(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path))
    same(run("import datasets")["wide"]["obs_wide"], observations("dict")["wide"])
    pictures = datasets.load_dataset("parquet", data_dir="data/stack_last-parquet/steps", split="train")["obs"]
    expected = observations("stack_last")
    same(np.frombuffer(b"".join(pictures), np.uint8).reshape(expected.shape), expected)


def test_robomimic(run: Run) -> None:
    sequences, rows = run("from robomimic")["sequences"], Dataset("data/cartpole").transitions()
    found = [sequences[i] for i in range(len(sequences))]
    assert len(found) == len(rows)
    same([each["obs"]["flat"][0] for each in found], rows.obs)
    same([each["next_obs"]["flat"][0] for each in found], rows.next_obs)
    same([each["actions"][0, 0] for each in found], rows.action)
    same([each["rewards"][0] for each in found], rows.reward)
    assert [bool(each["dones"][0]) for each in found] == (rows.terminated | rows.truncated).tolist()


def test_ogbench(run: Run) -> None:
    found, rows = run("import ogbench")["rows"], Dataset("data/cartpole").transitions()
    same(found["observations"], rows.obs)
    same(found["next_observations"], rows.next_obs)
    same(found["actions"][:, 0], rows.action)
    assert found["terminals"].astype(bool).tolist() == (rows.terminated | rows.truncated).tolist()


def test_torchrl(run: Run) -> None:
    import torch

    names = run("from torchrl")
    rows, stored = names["data"].transitions(), names["buffer"][:]
    same(stored["observation"], rows.obs)
    same(stored["next", "observation"], rows.next_obs)
    same(stored["action"], rows.action)
    same(stored["next", "reward"][:, 0], rows.reward.astype(np.float32))
    for flag in ("terminated", "truncated"):
        same(stored["next", flag][:, 0], getattr(rows, flag))
    for _ in range(20):
        slices = names["buffer"].sample().reshape(-1, 4)
        ids = slices["collector", "traj_ids"]
        assert (ids == ids[:, :1]).all()
        assert torch.equal(slices["next", "observation"][:, :-1], slices["observation"][:, 1:])


def test_minari(run: Run) -> None:
    names = run("import minari")
    assert names["env"].spec.max_episode_steps == 25
    for theirs, ours in zip(names["dataset"].iterate_episodes(), Dataset("data/cartpole"), strict=True):
        same(theirs.observations, ours.obs)
        same(theirs.actions, ours.action)
        same(theirs.terminations, ours.terminated)
        same(theirs.truncations, ours.truncated)


def test_minari_of_texts_and_infos() -> None:
    import minari

    dataset = minari.MinariDataset("data/minari/vecenv/texts-v0/data")
    for theirs, ours in zip(dataset.iterate_episodes(), Dataset("data/texts"), strict=True):
        same(theirs.observations["mission"], ours.obs["mission"])
        reasons = theirs.infos.pop("reason")[1:]
        assert [each.decode() for each in reasons] == ours.info["reason"].tolist()
        for key, array in theirs.infos.items():
            same(array[1:], ours.info[key])


def test_webdataset(run: Run) -> None:
    run("import webdataset")
    import webdataset

    samples = webdataset.WebDataset("data/cartpole.tar", shardshuffle=False).decode()
    for theirs, ours in zip(samples, Dataset("data/cartpole"), strict=True):
        same(theirs["obs.npy"], ours.obs)
        same(theirs["action.npy"], ours.action)


def test_zarr(run: Run) -> None:
    run("import zarr")
    import zarr

    group = zarr.open("data/cartpole.zarr", mode="r")
    for key, array in Dataset("data/cartpole").transitions().as_dict().items():
        same(group[key][:], array)
