"""`check_collector` passes for our collectors, `check_data_set` for our data sets, and both find defects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector import AsyncDataCollector, Dataset, SyncDataCollector
from collector.store import dataset
from collector.testing import COLLECTOR_CHECKS, check_collector, check_data_set
from tests.support.backends import full
from tests.support.stored import episode, text_episode, tree_episode, write

COLLECTORS = [
    SyncDataCollector,
    partial(AsyncDataCollector, backend="thread"),
    *full([partial(SyncDataCollector, backend="shmem"), partial(AsyncDataCollector, wait_num=1)]),
]


@pytest.mark.guarantee("G10.13")
@pytest.mark.parametrize("make", COLLECTORS, ids=str)
@pytest.mark.parametrize("check", COLLECTOR_CHECKS)
def test_our_collectors_pass(check: str, make: Any) -> None:
    check_collector(make, [check])


class Broken(SyncDataCollector):
    """Collector that changes each batch."""

    change: Callable[[Any, Any], None]

    def next(self) -> Any:
        batch = super().next()
        if batch is not None:
            type(self).change(self, batch)
        return batch


def shift_actions(_: Any, batch: Any) -> None:
    batch.action[...] = np.roll(batch.action, 1)


def forget_ends(_: Any, batch: Any) -> None:
    batch.terminated[...] = False


def repeat_a_step(_: Any, batch: Any) -> None:
    for name in ("all_obs", "action", "reward"):
        column = getattr(batch, name)
        column[0, 1] = column[0, 0]


def reuse_memory(collector: Any, batch: Any) -> None:
    collector.kept = kept = getattr(collector, "kept", batch.reward)
    kept[...] = batch.reward
    batch.reward = kept


def share_ids(_: Any, batch: Any) -> None:
    batch.traj_ids[...] -= batch.traj_ids.min(axis=1, keepdims=True)


class Endless(SyncDataCollector):
    def _is_complete(self) -> bool:
        return False


class Unseeded(SyncDataCollector):
    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        return super().set_seed(seed, static_seed=True)


class StaysOpen(SyncDataCollector):
    def shutdown(self, close_env: bool = True) -> None:
        pass


class HidesErrors(SyncDataCollector):
    def next(self) -> Any:
        try:
            return super().next()
        except ValueError as error:
            raise KeyError from error


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (shift_actions, "steps"),
        (forget_ends, "episodes"),
        (repeat_a_step, "episodes"),
        (share_ids, "ends"),
        (reuse_memory, "batches_stay"),
        (Endless, "total_frames"),
        (Unseeded, "seeds"),
        (HidesErrors, "errors"),
        (StaysOpen, "shutdown"),
    ],
)
def test_each_check_finds_a_defect(broken: Any, check: str) -> None:
    make = broken if isinstance(broken, type) else type("Changes", (Broken,), {"change": broken})
    with pytest.raises(AssertionError, match=f"^{check}: "):
        check_collector(make, [check])


@pytest.mark.parametrize("make", [episode, tree_episode, text_episode])
def test_data_sets_of_a_writer_pass(make: Any, tmp_path: Path) -> None:
    check_data_set(write(tmp_path, make=make))


def test_a_damaged_shard_is_found(tmp_path: Path) -> None:
    write(tmp_path)
    column = tmp_path / Dataset(tmp_path).shard_files[0] / "reward.npy"
    content = bytearray(column.read_bytes())
    content[-1] ^= 255
    column.write_bytes(content)
    with pytest.raises(AssertionError, match="shards/000000"):
        check_data_set(tmp_path)


def with_obs_as_next_obs(found: Any) -> Any:
    return replace(found, next_obs=found.obs)


def without_end(found: Any) -> Any:
    return replace(found, terminated=np.zeros(len(found), bool), truncated=np.zeros(len(found), bool))


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        ("take", with_obs_as_next_obs, "episode 0: next_obs of its transitions"),
        ("__getitem__", without_end, "episode 0: the steps that end it"),
    ],
)
def test_a_reader_that_returns_other_steps_is_found(
    method: str, change: Callable[[Any], Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    read = getattr(Dataset, method)
    monkeypatch.setattr(dataset.Dataset, method, lambda data, which: change(read(data, which)))
    with pytest.raises(AssertionError, match=message):
        check_data_set(tmp_path)
