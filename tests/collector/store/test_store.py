"""The store: readers get the written episodes by number, and a folder has one writer."""

from __future__ import annotations

import fcntl
import gc
import multiprocessing
import os
import pickle
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from collector import Collector, Dataset, DatasetError, RecordEpisodes, StoreWriter, make_head
from collector.testing import check_data_set
from tests.support.backends import FULL
from tests.support.countdown import Countdown, PaysTwo
from tests.support.disk import SafeFolder, disk
from tests.support.stored import (
    ACTION,
    LENGTHS,
    OBS,
    SPACES,
    assert_same,
    episode,
    files,
    head,
    text_episode,
    tree_episode,
    write,
)
from vecenv import DummyVectorEnv, nest

pytestmark = pytest.mark.usefixtures("no_fsync")
compressed = pytest.mark.parametrize("compress", [False, True], ids=["plain", "compressed"])


@compressed
@pytest.mark.parametrize("make", SPACES)
def test_a_data_set_has_the_written_episodes_in_the_order_of_their_numbers(
    make: Any, compress: bool, tmp_path: Path
) -> None:
    data = Dataset(write(tmp_path / "a", make=make, compress=compress))
    check_data_set(data.folder)
    assert (len(data), data.complete, data.numbers.tolist()) == (6, True, [*range(6)])
    assert data.lengths.tolist() == list(LENGTHS)
    assert (data.observation_space, data.action_space) == SPACES[make]
    for number, found in enumerate(data):
        assert_same(found, make(number))
        assert_same(data[number - 6], found)
        assert data.returns[number].tolist() == found.reward.sum(0).tolist()
    assert files(write(tmp_path / "b", make=make, compress=compress)) == files(tmp_path / "a")
    for leaf in nest.leaves(data[0].obs):
        leaf[:] = leaf[-1]  # a copy
    assert_same(data[0], make(0))
    assert data[0].nbytes == make(0).nbytes
    part = data[1:5:2]
    assert [found.number for found in part] == [1, 3]
    assert part.transitions().episode.tolist() == [1] * LENGTHS[1] + [3] * LENGTHS[3]
    assert_same(pickle.loads(pickle.dumps(data))[3], make(3))
    rows, some = data.transitions(), data.take(np.array([7, 0, 7, 22], np.uint64))
    nest.merge(lambda pair: np.testing.assert_array_equal(pair[0], pair[1][[7, 0, 7, 22]]), [some.obs, rows.obs])


def test_threads_read_together_although_one_shard_fits_into_memory(tmp_path: Path) -> None:
    data = Dataset(write(tmp_path / "a", [(number,) for number in range(12)]), memory=1)
    errors = list[BaseException]()

    def read(seed: int) -> None:
        try:
            for number in np.random.default_rng(seed).integers(12, size=50).tolist():
                assert_same(data[number], episode(number))
        except BaseException as error:
            errors.append(error)

    def let_others_run(*event: Any) -> None:  # while numpy parses the header of an array
        os.sched_yield()

    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-5)
    gc.set_threshold(5)
    gc.callbacks.append(let_others_run)
    try:
        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        gc.callbacks.remove(let_others_run)
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)
    assert not errors


def test_returns_are_sums_of_float64_whatever_the_type_of_the_rewards(tmp_path: Path) -> None:
    reward = np.random.default_rng(5).integers(1, 2**22, 30) * 2 + 1
    given = [replace(episode(k, length=30), reward=reward.astype(kind)) for k, kind in enumerate("fdi")]
    with StoreWriter(tmp_path, head()) as writer:
        writer.add(given)
        writer.end()
    assert Dataset(tmp_path).returns.tolist() == [each.total_reward for each in given] == [float(reward.sum())] * 3


def test_returns_of_vector_rewards_have_a_column_per_reward_as_in_collect(tmp_path: Path) -> None:
    """rware 2.0.0 and lbforaging 3.0.1 return a reward per agent."""
    with RecordEpisodes(DummyVectorEnv([lambda: PaysTwo(Countdown(4))] * 2), tmp_path) as venv:
        collected = Collector(venv, frames_per_batch=8).collect(n_episode=4).returns
    data = Dataset(tmp_path)
    assert collected.tolist() == data.returns.tolist() == [[4.0, 8.0]] * 4
    assert data.total_rewards.tolist() == [each.total_reward for each in data] == [12.0] * 4
    assert data[:0].returns.shape == (0, 2)


def test_a_part_of_a_batch_is_a_slice_without_gaps_or_a_mask(tmp_path: Path) -> None:
    (batch,) = Dataset(write(tmp_path / "a")).blocks()
    for which, numbers in ((slice(1, -2), [1, 2, 3]), (slice(4, 2), []), (batch.episode % 3 == 1, [1, 4])):
        part = batch.select(which)
        assert part.episode.tolist() == numbers
        for found in part:
            assert_same(found, episode(found.number))
    for wrong in (slice(None, None, 2), slice(None, None, -1), np.array([0, 2]), np.arange(6), 1):
        with pytest.raises(ValueError, match="a slice with step 1 or a bool mask"):
            batch.select(wrong)  # type: ignore[arg-type]


def test_a_shard_is_what_numpy_reads(tmp_path: Path) -> None:
    shard = write(tmp_path / "a") / "shards/000000"
    arrays = {path.stem: np.load(path, mmap_mode="r", allow_pickle=False) for path in shard.iterdir()}
    numbers = ("offsets", "episode", "seed", "env_id")
    assert arrays.keys() == {"obs", "action", "reward", "terminated", "truncated", *numbers}
    assert arrays["obs"].shape == (5 + 3 + 2, 3)
    assert [arrays[name].tolist() for name in numbers] == [[0, 5, 8], [0, 2], [1000, 1002], [0, 2]]


@pytest.mark.guarantee("G12.5")
def test_committed_episodes_count_and_in_a_complete_data_set_those_below_the_end(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, head()) as writer:
        writer.add([episode(4), episode(1)])
        assert len(Dataset(tmp_path)) == 0
        writer.commit(failed={"env": 2}, state={"mean": [1.0]})
        writer.commit(failed={"env": 1})
        data = Dataset(tmp_path)
        assert (data.numbers.tolist(), data.complete) == ([1, 4], False)
        assert (data.failed, data.state) == ({"env": 3}, {"mean": [1.0]})
        with pytest.raises(DatasetError):
            data[:0].transitions()
        writer.add(episode(0))
        writer.end(episodes=2)
        with pytest.raises(DatasetError):
            writer.add(episode(5))
    data = Dataset(tmp_path)
    assert (data.numbers.tolist(), data.complete, data.steps) == ([0, 1], True, LENGTHS[0] + LENGTHS[1])
    assert sorted(set(data.transitions().episode.tolist())) == [0, 1]
    path = tmp_path / "manifest.jsonl"
    path.write_bytes(path.read_bytes()[:-20])  # half a line does not count
    assert (Dataset(tmp_path).numbers.tolist(), Dataset(tmp_path).complete) == ([0, 1, 4], False)


def test_a_space_survives_the_head(tmp_path: Path) -> None:
    parts = (
        spaces.Box(np.array([-1, -np.inf], np.float32), np.array([0.1, np.inf], np.float32)),
        spaces.Box(0, 255, (4, 4, 3), np.uint8),
        spaces.Box(-np.inf, 1, (), np.float64),
        spaces.Discrete(4, start=-2),
        spaces.Discrete(3, dtype=np.int8),
        spaces.MultiDiscrete([2, 3, 4]),
        spaces.MultiBinary((2, 3)),
        spaces.Text(7, min_length=2, charset="\N{GREEK SMALL LETTER ALPHA}\0b"),
        spaces.Dict({"b": spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1)]), "a": spaces.MultiBinary(2)}),
    )
    ordered = spaces.Dict([("b", spaces.Tuple(parts)), ("a", spaces.Discrete(3))])
    graph = spaces.Dict({"a": spaces.Graph(spaces.Box(0, 1), None)})  # whose elements are no arrays
    StoreWriter(tmp_path, make_head(ordered, graph)).close()
    data = Dataset(tmp_path)
    assert (data.observation_space, data.action_space) == (ordered, None)
    assert [*data.observation_space] == ["b", "a"], "`gymnasium.spaces.flatten` follows the order of the keys"


@compressed
def test_random_batches_have_each_transition_once_a_pass(compress: bool, tmp_path: Path) -> None:
    folder = write(tmp_path / "a", [range(20), range(20, 40), range(40, 60)], compress=compress)
    data = Dataset(folder, memory=3000)  # less than two shards
    passes = list(data.batches(16.0, seed=1, passes=2))  # type: ignore[arg-type]
    rows = [(e, s) for batch in passes for e, s in zip(batch.episode.tolist(), batch.step.tolist(), strict=True)]
    once = [(number, step) for number in range(60) for step in range(LENGTHS[number % 6])]
    assert sorted(rows[: len(once)]) == sorted(rows[len(once) :]) == once
    assert rows[: len(once)] not in (once, rows[len(once) :])
    assert {len(batch) for batch in passes} == {16, data.steps % 16}
    for batch in passes:
        assert (batch.obs[:, 0] == batch.episode).all()
        assert (batch.next_obs[:, 1] == batch.step + 1).all()
    steps = [batch.step.tolist() for batch in passes]
    assert [batch.step.tolist() for batch in data.batches(16, seed=1, passes=2)] == steps
    assert [batch.step.tolist() for batch in data.batches(16, seed=2, passes=2)] != steps


def test_a_pass_is_a_permutation_of_windows_of_shards(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", [range(n, n + 10) for n in range(0, 80, 10)])
    sizes = [sum(each.nbytes for each in Dataset(folder)[n : n + 10]) for n in range(0, 80, 10)]
    for memory, count in ((1, 1), (int(2.7 * max(sizes)), 2), (2**40, 8)):
        data = Dataset(folder, memory=memory)
        order = np.concatenate([batch.episode // 10 for batch in data.batches(7, seed=0, passes=1)]).tolist()
        begins = [order.index(shard) for shard in range(8)]
        ends = [len(order) - 1 - order[::-1].index(shard) for shard in range(8)]
        assert max(sum(a <= at <= b for a, b in zip(begins, ends, strict=True)) for at in begins) == count
    whole = np.concatenate([batch.episode for batch in data.batches(64, seed=0, passes=1)])
    assert abs(np.corrcoef(whole, np.arange(len(whole)))[0, 1]) < 0.4


@pytest.mark.parametrize("compress", [False, True])
def test_the_window_of_a_pass_counts_texts_as_they_are_in_memory(compress: bool, tmp_path: Path) -> None:
    words = [np.array([f"{number} {step}" for step in range(101)], object) for number in range(4)]
    made = [episode(number, length=100, obs=words[number]) for number in range(4)]
    with StoreWriter(tmp_path, make_head(), compress=compress) as writer:
        for each in made:
            writer.add(each)
            writer.commit()
        writer.end()
    data = Dataset(tmp_path, memory=2 * made[0].nbytes + 2000)
    shards = np.concatenate([*data.batch_order(10, 0, 1)]) // 100
    assert [len({*half}) for half in np.split(shards, 2)] == [2, 2]


@compressed
def test_few_shards_are_open_at_once(compress: bool, tmp_path: Path) -> None:
    """Their observations fill files that are mapped."""
    make = lambda number, /: episode(number, length=2 * 1024 * 8)  # noqa: E731
    folder = write(tmp_path / "a", [[n] for n in range(6)], make, compress=compress)
    expected, data = Dataset(folder).transitions(), Dataset(folder, memory=1)
    before = len(os.listdir("/dev/fd"))
    found = data.take(np.arange(data.steps)[::-1])
    assert len(os.listdir("/dev/fd")) <= before + 3
    np.testing.assert_array_equal(found.obs, expected.obs[::-1])
    np.testing.assert_array_equal(found.next_obs, expected.next_obs[::-1])


def test_a_shard_that_could_not_be_inflated_is_not_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collector.store.shard.LARGEST_INFLATED", 500)
    data = Dataset(write(tmp_path / "a", [(0, 1, 2, 3), (4,)], compress=True))
    assert [(tmp_path / "a" / name / "obs.npy").exists() for name in data.shard_files] == [True, False]
    check_data_set(data.folder)


@pytest.mark.parametrize("make", [episode, pytest.param(tree_episode, marks=FULL)])
def test_transitions_become_a_tensordict_of_torchrl(make: Any, tmp_path: Path) -> None:
    """The names are those of batches, so that samplers of TorchRL find the episodes."""
    pytest.importorskip("tensordict")
    rows = Dataset(write(tmp_path / "a", make=make)).transitions()
    found, key = rows.to_tensordict(), "observation" if make is episode else "pixels"
    obs, next_obs = (rows.obs, rows.next_obs) if make is episode else (rows.obs[key], rows.next_obs[key])
    assert found.batch_size == (len(rows),)
    for tensor, array in (
        (found[key], obs),
        (found["next", key], next_obs),
        (found["next", "reward"][:, 0], rows.reward.astype(np.float32)),
        (found["next", "terminated"][:, 0], rows.terminated),
        (found["next", "done"][:, 0], rows.terminated | rows.truncated),
        (found["collector", "traj_ids"], rows.episode),
        (found["step_count"][:, 0], rows.step),
    ):
        assert tensor.numpy().dtype == array.dtype
        np.testing.assert_array_equal(tensor, array)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=FULL)])
def test_views_of_torch_have_all_steps_and_epochs_are_the_passes_of_batches(workers: int, tmp_path: Path) -> None:
    """Also in workers that stay for all epochs."""
    torch = pytest.importorskip("torch")
    data = Dataset(write(tmp_path / "a", make=text_episode))
    every, rows, loader = data.transitions(), data.as_torch(), torch.utils.data.DataLoader
    assert (len(rows), rows[-1]["obs"]["x"].tolist()) == (data.steps, every.obs["x"][-1].tolist())
    assert data.as_torch("episodes")[3]["obs"]["x"].shape == (9, 3)
    assert data.as_torch("episodes")[1]["obs"]["say"] == data[1].obs["say"].tolist()
    loaded = loader(rows, batch_size=7, shuffle=True, num_workers=workers)
    assert sorted(n for b in loaded for n in b["episode"].tolist()) == every.episode.tolist()
    (batch,) = loader(rows, batch_size=data.steps, num_workers=workers)
    assert batch["action"] == every.action.tolist()
    view, found = data.as_torch("batches", batch_size=5, seed=3), list[Any]()
    loaded = loader(view, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    for epoch in range(2):
        view.set_epoch(epoch)
        found += [(batch["step"].tolist(), batch["next_obs"]["say"]) for batch in loaded]
    passes = data.batches(5, seed=3, passes=2)
    assert found == [(batch.step.tolist(), batch.next_obs["say"].tolist()) for batch in passes]


# Writing.


@pytest.mark.guarantee("G12.1")
def test_one_writer_at_a_time_and_a_refused_one_harms_nothing(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "a", head()) as writer:
        writer.add(episode(0))
        writer.commit()
        before = files(tmp_path / "a")
        for options in ({}, {"overwrite": True}, {"resume": True}):
            with pytest.raises(DatasetError, match=f"is being written by pid {os.getpid()} on"):
                StoreWriter(tmp_path / "a", head(), **options)
        assert files(tmp_path / "a") == before
        writer.end()
    assert Dataset(tmp_path / "a").complete


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, head())
    context = multiprocessing.get_context("fork")
    done = context.Event()
    child = context.Process(target=done.wait, args=(60,))
    child.start()
    try:
        writer.close()
        StoreWriter(tmp_path, head(), resume=True).close()
    finally:
        done.set()
        child.join()


def test_a_writer_comes_in_while_others_make_and_remove_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder, or the lock file in it, disappears just before it is locked."""
    made: list[str] = []

    def after(name: str, disturb: Callable[[], object], call: Any) -> Any:
        def disturbed(*arguments: Any) -> Any:
            if name not in made:
                made.append(name)
                disturb()
            return call(*arguments)

        return disturbed

    with monkeypatch.context() as patch:
        kind, remove = SafeFolder, lambda: shutil.rmtree(tmp_path / "a")
        patch.setattr(kind, "open", after("folder", remove, kind.open))
        patch.setattr(fcntl, "flock", after("file", lambda: (tmp_path / "a/writer.lock").unlink(), fcntl.flock))
        with StoreWriter(tmp_path / "a", head()), pytest.raises(DatasetError, match="is being written"):
            StoreWriter(tmp_path / "a", head())
    assert made == ["folder", "file"]


def put(name: str) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("ten years")

    return make


@pytest.mark.parametrize(
    ("prepare", "where", "options"),
    [
        (write, "", {}),
        (lambda folder: put("thesis.tex")(write(folder)), "", {"overwrite": True}),
        *((put(name), "", {"overwrite": True}) for name in ("holiday.png", "videos/holiday.mp4", "tensorboard/events")),
        *((put("statistics.json"), "", {"overwrite": each}) for each in (False, True)),
        (write, "b", {}),  # inside of a data set, which could then not be resumed
        (lambda folder: (write(folder), (folder.parent / "link").symlink_to(folder)), "../link/deep/b", {}),
        (write, "", {"resume": True, "head": make_head(OBS, ACTION, job={"env": "Numbers-v0", "seed": 1})}),
        (write, "", {"resume": True, "head": make_head(OBS, spaces.Discrete(9), job=head()["job"])}),
    ],
)
def test_a_folder_with_other_files_is_refused_and_stays_as_it_is(
    prepare: Any, where: str, options: dict[str, Any], tmp_path: Path
) -> None:
    prepare(tmp_path / "a")
    before = files(tmp_path)
    with pytest.raises(DatasetError):
        StoreWriter(tmp_path / "a" / where, **{"head": head(), **options})
    assert files(tmp_path) == before


def test_overwriting_removes_the_manifest_first_and_is_repeated_if_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    (tmp_path / "videos").mkdir()
    (tmp_path / "job.toml").write_text("seed = 3")  # which is kept
    made: list[str] = []

    def noted(name: str, real: Any) -> Any:
        def call(*args: Any, **folder: int) -> Any:
            made.append(f"{name} {args[0]}" if isinstance(args[0], str) else name)
            if made[-1] == "rmdir videos" and made.count(made[-1]) == 1:
                raise KeyboardInterrupt
            return real(*args, **folder)

        return call

    for name in ("unlink", "fsync", "rmdir"):
        monkeypatch.setattr(disk, name, noted(name, getattr(disk, name)))
    with pytest.raises(KeyboardInterrupt):
        StoreWriter(tmp_path, head(), overwrite=True)
    assert made[:3] == ["unlink manifest.jsonl", "fsync", "unlink action.npy"]
    assert len(Dataset(tmp_path)) == 0
    write(tmp_path, [(7,)], overwrite=True)
    assert [each for each in made if each.startswith("unlink")][-1] == "unlink dataset.json"
    assert Dataset(tmp_path).numbers.tolist() == [7]
    assert (tmp_path / "job.toml").read_text() == "seed = 3"


def test_a_resumed_data_set_continues_without_what_was_not_committed(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, head()) as writer:
        writer.add(episode(3))
        writer.commit(failed={"env": 1}, state=[1])
        writer.add(episode(1))  # and is not committed
    for name in ("000007", "000008.partial"):
        put(f"shards/{name}/obs.npy")(tmp_path)
    with open(tmp_path / "manifest.jsonl", "ab") as file:
        file.write(b'{"line": "sha')
    with StoreWriter(tmp_path, head(), resume=True) as writer:
        assert writer.committed.tolist() == [3]
        assert [path.name for path in (tmp_path / "shards").iterdir()] == ["000000"]
        with pytest.raises(DatasetError):
            writer.add([episode(2), episode(3)])
        writer.add(episode(1))
        writer.end()
    data = Dataset(tmp_path)
    assert (data.numbers.tolist(), data.failed, data.state) == ([1, 3], {"env": 1}, [1])
    check_data_set(tmp_path)


def test_a_complete_data_set_that_is_reopened_has_no_end_until_the_next_one(tmp_path: Path) -> None:
    before = [each.obs.tobytes() for each in Dataset(write(tmp_path))]
    StoreWriter(tmp_path, None, resume=True, reopen=True).close()  # as if it were killed here
    assert (Dataset(tmp_path).complete, [each.obs.tobytes() for each in Dataset(tmp_path)]) == (False, before)
    with StoreWriter(tmp_path, None, resume=True, reopen=True) as writer:
        writer.end(episodes=5)
    with StoreWriter(tmp_path, None, resume=True) as writer, pytest.raises(DatasetError):
        writer.add(episode(8))
    for _ in range(2):
        with pytest.raises(DatasetError, match=r"readers ignore \d+ episodes from"):
            StoreWriter(tmp_path, None, resume=True, reopen=True)
    assert len(Dataset(tmp_path)) == 5


def test_a_line_that_readers_would_refuse_is_not_written(tmp_path: Path) -> None:
    wrong: list[Any] = [-1, 2**53, 2.5, np.int64(3)]
    with StoreWriter(tmp_path / "a", head()) as writer:
        with pytest.raises(DatasetError):
            writer.end(episodes=3)
        writer.add(episode(2))
        for count in wrong:
            with pytest.raises((ValueError, TypeError)):
                writer.end(episodes=count)
        for failed, state in (({"env": -1}, None), ({}, "\ud800")):
            with pytest.raises(ValueError, match=r"int|truncated"):
                writer.commit(failed=failed, state=state)
        assert files(tmp_path / "a")["manifest.jsonl"] == b""
        writer.end(episodes=5)
    assert (Dataset(tmp_path / "a").end, Dataset(tmp_path / "a").numbers.tolist()) == (5, [2])
    with StoreWriter(tmp_path / "b", head()) as writer:
        writer.end(episodes=0)
    assert (Dataset(tmp_path / "b").end, len(Dataset(tmp_path / "b"))) == (0, 0)


def test_an_added_episode_is_a_copy_and_its_flags_may_be_numbers(tmp_path: Path) -> None:
    one = tree_episode(2, truncated=np.array([0.0, 0.0, 1.0]), terminated=np.zeros(3))
    with StoreWriter(tmp_path, make_head()) as writer:
        writer.add(one)
        for array in nest.leaves((one.obs, one.action, one.reward)):
            array[...] = 0
        writer.end()
    assert_same(Dataset(tmp_path)[0], tree_episode(2))


def test_a_line_of_the_manifest_is_never_too_long_for_its_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collector.store.writer.MOST_EPISODES", 3)
    with StoreWriter(tmp_path, head()) as writer:
        writer.add([episode(number) for number in range(8)])
        writer.commit(failed={"env": 2}, state="here")
        assert writer.waiting_bytes == 0
        writer.add([episode(17), episode(0, number=-1), episode(1, number=-1)])  # which get the next numbers
        writer.end()
    data = Dataset(tmp_path)
    assert data.numbers.tolist() == [*range(8), 17, 18, 19]
    assert (data.failed, data.state, len(data.shard_files)) == ({"env": 2}, "here", 4)
    for number, found in enumerate(data[:8]):
        assert_same(found, episode(number))


def test_later_infos_take_the_dtype_of_the_first(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, make_head()) as writer:
        for number, (x, ok) in enumerate((([0.5, None, True], [True, None, np.True_]), ([1, 2, None], [None] * 3))):
            info = {"x": nest.object_array(x), "ok": nest.object_array(ok)}
            writer.add(episode(number, length=3, info=info))
        writer.end()
    found = Dataset(tmp_path).transitions().info
    assert found["x"].tolist() == [0.5, 0.0, 1.0, 1.0, 2.0, 0.0]
    assert found["ok"].tolist() == [True, False, True, False, False, False]
    assert (found["x"].dtype, found["ok"].dtype) == (np.float64, np.bool_)


def test_shards_of_parts_are_adopted_while_they_are_written(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, head()) as driver:
        parts = {name: StoreWriter(tmp_path / name, head()) for name in ("shards/w001", "shards/w002")}
        for number, (name, part) in enumerate([*parts.items()] * 2):
            part.add([episode(2 * number), episode(2 * number + 1)])
            part.commit(failed={"env": 1})
            (line,) = driver.adopt(name)
            assert line.episodes == [2 * number, 2 * number + 1]
            assert driver.adopt(name) == []
        assert len(driver.committed) == 8
        part.add(episode(8))
        part.commit()
        driver.add(episode(8))
        with pytest.raises(DatasetError, match=r"w002 has episodes \[8\], which are stored already"):
            driver.adopt(name)
        for part in parts.values():
            part.close()
        with pytest.raises(DatasetError):
            driver.add(tree_episode(9))
        driver.end()
    data = Dataset(tmp_path)
    assert (data.shard_files, data.failed) == ([f"shards/{n:06d}" for n in range(5)], {"env": 4})
    for number, found in enumerate(data):
        assert_same(found, episode(number))


@pytest.mark.parametrize("waits", [False, True])
def test_adopted_and_own_episodes_have_one_layout(waits: bool, tmp_path: Path) -> None:
    with StoreWriter(tmp_path, make_head()) as driver:
        if waits:
            driver.add(episode(0))
        for name, number, make in (("shards/w001", 1, episode), ("shards/w002", 2, tree_episode)):
            with StoreWriter(tmp_path / name, make_head()) as part:
                part.add(make(number))
                part.commit()
        driver.adopt("shards/w001")
        with pytest.raises(DatasetError, match="other dtypes or shapes"):
            driver.adopt("shards/w002")
        driver.end()
    assert Dataset(tmp_path).numbers.tolist() == ([0, 1] if waits else [1])
    check_data_set(tmp_path)
