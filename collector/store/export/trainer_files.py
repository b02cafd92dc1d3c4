"""Export to the files of d3rlpy, robomimic and OGBench."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from collector.store.dataset import Dataset
from collector.store.export.step_table import column_names, step_rows
from collector.store.safe_folder import DatasetError
from collector.store.shard_layout import EpisodeLayout, refuse_texts
from vecenv import nest

try:
    import h5py
except ImportError as error:
    raise ImportError("exports to HDF5 need h5py: pip install 'vecenv[export]'") from error

GYM_TYPE = 2
"""Number of robomimic for envs of gym."""


def write_d3rlpy(dataset: Dataset, out: Path, *, name: Path) -> None:
    """Write the HDF5 file that `ReplayBuffer.load` of d3rlpy 2.8 reads.

    A truncated episode ends with a row for the last observation, because d3rlpy takes the next observation of a step
    from the next row. Action and reward of this row are 0.
    """
    _check(dataset, "d3rlpy")
    with h5py.File(out, "w") as file:
        file["columns"] = ["observations", "actions", "rewards", "terminated"]
        file["num_episodes"], file["version"] = len(dataset), "2.1"
        for i, episode in enumerate(dataset):
            is_terminated = bool(episode.terminated[-1])
            if episode.action.dtype.kind in "iu" and (episode.action.ndim > 1 or episode.action.min() < 0):
                raise DatasetError(
                    f"{dataset.folder} has integer actions that d3rlpy cannot count from 0: export as Parquet"
                )
            missing = 0 if is_terminated else 1
            for key, array in (("actions", episode.action), ("rewards", episode.reward)):
                file[f"{key}_{i}"] = np.pad(_rows(array), [(0, missing), (0, 0)])
            for j, leaf in enumerate(nest.leaves(episode.obs)):
                part = f"_{j}" if isinstance(episode.obs, (dict, tuple)) else ""
                file[f"observations_{i}{part}"] = channels_first(leaf)[: len(episode) + missing]
            file[f"terminated_{i}"] = is_terminated


def write_robomimic(dataset: Dataset, out: Path, *, name: Path) -> None:
    """Write the HDF5 file of robomimic, with the keys of Dict observations, or `flat` for a single array."""
    _check(dataset, "robomimic")
    found = dataset.head.get("job")
    job = found if isinstance(found, dict) else {}
    env = {"env_name": job.get("env", name.stem), "type": GYM_TYPE, "env_kwargs": job.get("env_kwargs", {})}
    with h5py.File(out, "w") as file:
        data = file.create_group("data")
        data.attrs["total"], data.attrs["env_args"] = dataset.steps, json.dumps(env)
        assert dataset.layout is not None
        keys = robomimic_keys(dataset.layout)
        for i, episode in enumerate(dataset):
            demo = data.create_group(f"demo_{i}")
            demo.attrs["num_samples"] = len(episode)
            for key, leaf in zip(keys, nest.leaves(episode.obs), strict=True):
                demo[f"obs/{key}"], demo[f"next_obs/{key}"] = leaf[:-1], leaf[1:]
            demo["actions"], demo["rewards"] = _rows(episode.action), episode.reward
            demo["dones"] = (episode.terminated | episode.truncated).astype(np.int64)


def robomimic_keys(layout: EpisodeLayout) -> list[str]:
    columns = column_names(layout)
    return ["flat" if name == "obs" else columns[name].removeprefix("obs_") for name in _obs(layout)]


def write_ogbench(dataset: Dataset, out: Path, *, name: Path) -> None:
    """Write the NPZ file of OGBench, with a row per observation. `terminals` is True in an episode's last row.

    This needs memory for all episodes, and so does the reader.
    """
    _check(dataset, "OGBench")
    layout = dataset.layout
    assert layout is not None
    if [*_obs(layout)] != ["obs"]:
        raise DatasetError(
            f"{dataset.folder} has observations of several arrays, which OGBench cannot hold: export for robomimic"
        )
    tables = [step_rows(block, layout) for block in dataset.blocks()]
    rows = {key: np.concatenate([table[key] for table in tables]) for key in ("obs", "action", "is_last")}
    with out.open("wb") as file:
        np.savez(file, observations=rows["obs"], actions=_rows(rows["action"]), terminals=rows["is_last"])


def read_d3rlpy(out: Path, dataset: Dataset) -> Iterator[dict[str, Any]]:
    assert dataset.layout is not None
    rows, obs = dataset.layout.rows, [*_obs(dataset.layout)]
    with h5py.File(out) as file:
        for i in range(file["num_episodes"][()]):
            is_terminated = bool(file[f"terminated_{i}"][()])
            steps = len(file[f"rewards_{i}"]) - (not is_terminated)
            found = {name: file[f"{name}s_{i}"][:steps] for name in ("action", "reward")}
            for j, name in enumerate(obs):
                array = file[f"observations_{i}_{j}" if f"observations_{i}_{j}" in file else f"observations_{i}"][()]
                moved = array.ndim == 4 and array.shape[1:] != rows[name].shape
                found[name] = np.moveaxis(array, 1, 3) if moved else array
            yield {**found, "terminated": np.arange(steps) == (steps - 1 if is_terminated else -1)}


def read_robomimic(out: Path, dataset: Dataset) -> Iterator[dict[str, Any]]:
    assert dataset.layout is not None
    pairs = [*zip(robomimic_keys(dataset.layout), _obs(dataset.layout), strict=True)]
    with h5py.File(out) as file:
        for i in range(len(file["data"])):
            demo = file[f"data/demo_{i}"]
            found = {name: np.concatenate([demo["obs"][key][:], demo["next_obs"][key][-1:]]) for key, name in pairs}
            yield {**found, "action": demo["actions"][:], "reward": demo["rewards"][:]}


def read_ogbench(out: Path, dataset: Dataset) -> Iterator[dict[str, Any]]:
    with np.load(out) as file:
        obs, actions, ends = file["observations"], file["actions"], np.flatnonzero(file["terminals"]) + 1
    for first, end in pairwise([0, *ends.tolist()]):
        yield {"obs": obs[first:end], "action": actions[first : end - 1]}


def channels_first(array: np.ndarray) -> np.ndarray:
    """Return observations as d3rlpy takes them: `(k, channels, height, width)` for uint8 pictures, else `(k, n)`."""
    if array.dtype == np.uint8 and array.ndim == 3:
        return array[:, None]
    if array.dtype == np.uint8 and array.ndim == 4 and array.shape[3] < array.shape[1]:
        return np.moveaxis(array, 3, 1)
    return _rows(array)


def _rows(array: np.ndarray) -> np.ndarray:
    return array[:, None] if array.ndim == 1 else array


def _obs(layout: EpisodeLayout) -> Any:
    return nest.leaves(layout.names["obs"])


def _check(dataset: Dataset, target: str) -> None:
    layout = dataset.layout
    assert layout is not None
    refuse_texts(layout, target)
    if layout.rows["reward"].shape or not isinstance(layout.names["action"], str):
        raise DatasetError(
            f"{dataset.folder} has rewards or actions with several parts, which {target} cannot hold: export as Parquet"
        )
