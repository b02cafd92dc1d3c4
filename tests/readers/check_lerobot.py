"""LeRobot and its tools read the exports of data sets. Needs Python 3.12."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot.datasets.compute_stats import aggregate_stats
from lerobot.datasets.dataset_tools import delete_episodes, merge_datasets, recompute_stats, split_dataset
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from collector import Dataset

Run = Callable[[str], dict[str, Any]]
FEATURES = {
    "cartpole": {"observation.state": ("obs",), "action": ("action",)},
    "dict": {
        **{f"observation.{key}": ("obs", key) for key in ("half", "image", "matrix", "pressed", "wide")},
        "action": ("action",),
    },
    "rgb": {
        "observation.image": ("obs",),
        **{f"info.{key}": ("info", key) for key in ("is_success", "distance", "mask")},
    },
    "rewards": {"observation.state": ("obs",), "next.reward": ("reward",), "action": ("action",)},
    "start": {"observation.state": ("obs",), "action": ("action",)},
    "tuple": {"observation.0": ("obs", 0), "observation.1": ("obs", 1)},
    "agents": {f"action.{agent}": ("action", agent) for agent in ("red_0", "blue_0")},
}


def opened(name: str, root: Path | None = None) -> LeRobotDataset:
    return LeRobotDataset(f"mine/{name}", root=root or f"data/{name}-lerobot")


def test_the_page(run: Run) -> None:
    assert len(run("LeRobotDataset")["frames"]) == Dataset("data/cartpole").steps


@pytest.mark.parametrize("name", FEATURES)
def test_values(name: str) -> None:
    frames, rows = opened(name), Dataset(f"data/{name}").transitions()
    assert len(frames) == len(rows)
    for feature, (column, *path) in FEATURES[name].items():
        expected = getattr(rows, column)
        for key in path:
            expected = expected[key]
        found = np.stack([frames[i][feature].numpy() for i in range(len(frames))])
        if expected.dtype == np.uint8:  # LeRobot returns pictures as floats from 0 to 1, channels first
            found, expected = np.rint(found * 255), np.moveaxis(expected, 3, 1)
            assert found.shape == expected.shape
        np.testing.assert_array_equal(found, expected.astype(found.dtype).reshape(found.shape), feature)
    for flag in ("terminated", "truncated"):
        found = [bool(frames[i][f"next.{flag}"]) for i in range(len(frames))]
        assert found == getattr(rows, flag).tolist()


def check_stats(dataset: LeRobotDataset, rows: Any) -> None:
    """Statistics of each episode are stored, and those of the whole fit the data."""
    stats = dataset.meta.stats
    assert stats is not None
    action = rows.action.reshape(len(rows), -1)
    np.testing.assert_allclose(stats["action"]["mean"], action.mean(0), rtol=1e-6)
    np.testing.assert_allclose(stats["action"]["std"], action.std(0), rtol=1e-6)
    assert stats["action"]["count"] == len(rows)
    assert {"q01", "q10", "q50", "q90", "q99"} <= stats["action"].keys()


@pytest.mark.parametrize("name", ["cartpole", "dict", "rgb"])
def test_tools_keep_statistics(name: str, tmp_path: Path) -> None:
    frames, data = opened(name), Dataset(f"data/{name}")
    count = len(data)
    check_stats(frames, data.transitions())
    rest = delete_episodes(frames, [0], tmp_path / "rest", "mine/rest")
    check_stats(rest, data[1:].transitions())
    parts = split_dataset(frames, {"a": 1 / count, "b": (count - 1) / count}, tmp_path / "split")
    check_stats(parts["a"], data[:1].transitions())
    check_stats(parts["b"], data[1:].transitions())
    merged = merge_datasets([parts["a"], parts["b"]], "mine/merged", tmp_path / "merged")
    check_stats(merged, data.transitions())
    check_stats(recompute_stats(merged), data.transitions())


def test_statistics_are_those_of_lerobot() -> None:
    """The statistics of all episodes are what LeRobot makes of the statistics of each."""
    import pandas

    frames = opened("dict")
    episodes = pandas.concat(
        [pandas.read_parquet(each) for each in Path("data/dict-lerobot/meta/episodes").rglob("*.parquet")]
    )
    each = [
        {
            key: {
                name: np.array(np.array(row[f"stats/{key}/{name}"]).tolist(), float).reshape(value.shape)
                for name, value in stats.items()
            }
            for key, stats in frames.meta.stats.items()
        }
        for _, row in episodes.iterrows()
    ]
    for key, stats in aggregate_stats(each).items():
        for name, value in stats.items():
            np.testing.assert_allclose(
                frames.meta.stats[key][name], value, rtol=1e-6, atol=1e-9, err_msg=f"{key} {name}"
            )
