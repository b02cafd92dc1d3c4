"""The store: readers get the written episodes by number, and a folder has one writer."""

from __future__ import annotations

import collections
import fcntl
import gc
import multiprocessing
import os
import pickle
import random
import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from collector import Dataset, DatasetError, Episode, StoreWriter, make_head
from collector.store import safe_folder as disk
from collector.testing import check_data_set
from tests.support.backends import FULL
from tests.support.stored import (
    LENGTHS,
    SPACES,
    assert_same,
    episode,
    files,
    head,
    text_episode,
    tree_episode,
    write,
)
from vecenv import nest

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
    assert data[:0].returns.shape == (0, *data.returns.shape[1:])
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

    def read(seed: int) -> None:
        for number in np.random.default_rng(seed).integers(12, size=50).tolist():
            assert_same(data[number], episode(number))

    def let_others_run(*event: Any) -> None:  # while numpy parses the header of an array
        os.sched_yield()

    thresholds = gc.get_threshold()
    gc.set_threshold(5)
    gc.callbacks.append(let_others_run)
    try:
        with ThreadPoolExecutor(4) as threads:
            collections.deque(threads.map(read, range(4)), 0)
    finally:
        gc.callbacks.remove(let_others_run)
        gc.set_threshold(*thresholds)


def test_returns_are_sums_of_float64_whatever_the_type_of_the_rewards(tmp_path: Path) -> None:
    reward = np.random.default_rng(5).integers(1, 2**22, 30) * 2 + 1
    given = [replace(episode(k, length=30), reward=reward.astype(kind)) for k, kind in enumerate("fdi")]
    with StoreWriter(tmp_path, head()) as writer:
        writer.add(given)
        writer.end()
    assert Dataset(tmp_path).returns.tolist() == [each.total_reward for each in given] == [float(reward.sum())] * 3


def test_a_shard_is_what_numpy_reads(tmp_path: Path) -> None:
    shard = write(tmp_path / "a") / "shards/000000"
    arrays = {path.stem: np.load(path, mmap_mode="r", allow_pickle=False) for path in shard.iterdir()}
    numbers = ("offsets", "episode", "seed", "env_id")
    assert arrays.keys() == {"obs", "action", "reward", "terminated", "truncated", *numbers}
    assert arrays["obs"].shape == (5 + 3 + 2, 3)
    assert [arrays[name].tolist() for name in numbers] == [[0, 5, 8], [0, 2], [1000, 1002], [0, 2]]


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


def worded_episode(number: int, /) -> Any:
    """Return an episode that observes texts."""
    return episode(number, obs=nest.object_array([f"{number} {step}" for step in range(LENGTHS[number % 6] + 1)]))


SPACES[worded_episode] = None, None


@pytest.mark.parametrize("make", [episode, worded_episode])
@compressed
def test_a_pass_is_a_permutation_of_windows_of_shards(make: Any, compress: bool, tmp_path: Path) -> None:
    """A window counts texts as they are in memory."""
    folder = write(tmp_path / "a", [range(n, n + 10) for n in range(0, 80, 10)], make, compress=compress)
    sizes = [sum(each.nbytes for each in Dataset(folder)[n : n + 10]) for n in range(0, 80, 10)]
    for memory, count in ((1, 1), (int(2.7 * max(sizes)), 2), (2**40, 8)):
        data = Dataset(folder, memory=memory)
        order = np.concatenate([batch.episode // 10 for batch in data.batches(7, seed=0, passes=1)]).tolist()
        begins = [order.index(shard) for shard in range(8)]
        ends = [len(order) - 1 - order[::-1].index(shard) for shard in range(8)]
        assert max(sum(a <= at <= b for a, b in zip(begins, ends, strict=True)) for at in begins) == count
    whole = np.concatenate([batch.episode for batch in data.batches(64, seed=0, passes=1)])
    assert abs(np.corrcoef(whole, np.arange(len(whole)))[0, 1]) < 0.4


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


def test_transitions_become_a_tensordict_of_torchrl(tmp_path: Path) -> None:
    """The names are those of batches, so that samplers of TorchRL find the episodes."""
    pytest.importorskip("tensordict")
    trees = Dataset(write(tmp_path / "a", make=tree_episode)).transitions()
    np.testing.assert_array_equal(trees.to_tensordict()["next", "pixels"], trees.next_obs["pixels"])
    rows = Dataset(write(tmp_path / "b")).transitions()
    found = rows.to_tensordict()
    assert found.batch_size == (len(rows),)
    for tensor, array in (
        (found["observation"], rows.obs),
        (found["next", "observation"], rows.next_obs),
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


class Writing:
    """Random calls of a writer, and the data set that readers must see after each of them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng, self.compress = folder, random.Random(seed), seed % 2 == 0
        self.writer = StoreWriter(folder, head(), compress=self.compress)
        self.committed, self.waiting = set[int](), set[int]()
        self.next_number, self.parts = 0, 0
        self.failed, self.state = Counter[str](), None

    def use(self, numbers: set[int]) -> set[int]:
        self.next_number = max(self.next_number, *(number + 1 for number in numbers))
        return numbers

    def drawn(self) -> list[int]:
        used = self.committed | self.waiting
        return self.rng.sample(sorted({*range(90)} - used), self.rng.randrange(1, 6))

    def note(self) -> dict[str, Any]:
        """Return what a commit adds to the manifest."""
        note = self.rng.choice([{}, {"failed": {"env": 2}}, {"failed": {"env": 1}, "state": self.rng.random()}])
        self.failed.update(note.get("failed", {}))
        self.state = note.get("state", self.state)
        return note

    def add(self) -> None:
        numbers = self.drawn()
        self.writer.add([episode(number) for number in numbers])
        self.waiting |= self.use({*numbers})

    def add_without_numbers(self) -> None:
        """They get the next numbers, also after an episode with a number."""
        first = self.next_number + self.rng.randrange(3)
        self.writer.add([episode(first), *(episode(first + k, number=-1) for k in (1, 2))])
        self.waiting |= self.use({first, first + 1, first + 2})

    def add_again(self) -> None:
        """A refused call adds nothing."""
        used = sorted(self.committed | self.waiting)
        with pytest.raises(DatasetError, match="these episodes have the arrays"):
            self.writer.add([tree_episode(99)])
        for number in used[:1]:
            with pytest.raises(DatasetError, match="would occur twice"):
                self.writer.add([episode(99), episode(number)])

    def commit(self) -> None:
        self.writer.commit(**self.note())
        assert self.writer.waiting_bytes == 0
        self.committed, self.waiting = self.committed | self.waiting, set()

    def adopt(self) -> None:
        """Another writer fills a part of the data set, which goes on while its shards are adopted."""
        self.parts += 1
        name = f"shards/w{self.parts:03d}"
        with StoreWriter(self.folder / name, head()) as part:
            for _ in range(2):
                numbers = self.drawn()
                part.add([episode(number) for number in numbers])
                part.commit(failed={"env": 1})
                self.failed["env"] += 1
                assert [number for line in self.writer.adopt(name) for number in line.episodes] == numbers
                assert self.writer.adopt(name) == []
                self.committed |= self.use({*numbers})
            if self.waiting:
                part.add(episode(min(self.waiting)))
                part.commit()
                with pytest.raises(DatasetError, match="which are stored already"):
                    self.writer.adopt(name)

    def resume(self) -> None:
        """The next writer removes what a killed writer has left, and continues without its uncommitted episodes."""
        self.writer.close()
        for name in ("000777", "000778.partial"):
            (self.folder / "shards" / name).mkdir(parents=True, exist_ok=True)
            (self.folder / "shards" / name / "obs.npy").touch()
        with open(self.folder / "manifest.jsonl", "ab") as file:
            file.write(b'{"line": "sha')
        self.check()
        self.writer = StoreWriter(self.folder, head(), resume=True, compress=self.compress)
        assert {*self.writer.committed.tolist()} == self.committed
        shards = {f"shards/{path.name}" for path in self.folder.glob("shards/*")}
        assert shards == {*Dataset(self.folder).shard_files}
        self.waiting, self.next_number = set(), max(self.committed, default=-1) + 1

    def check(self, end: int | None = None) -> None:
        data = Dataset(self.folder)
        expected = sorted(number for number in self.committed if end is None or number < end)
        assert (data.numbers.tolist(), data.complete) == (expected, end is not None)
        assert (data.failed, data.state) == (self.failed, self.state)
        for number, found in zip(expected, data, strict=True):
            assert_same(found, episode(number))

    def end(self) -> None:
        """In a complete data set, readers see the episodes below its end."""
        self.add()
        end = self.rng.choice([max(self.committed | self.waiting) + 1, 30])
        self.writer.end(episodes=end)
        self.committed |= self.waiting
        with pytest.raises(DatasetError, match="is complete, with episode numbers below"):
            self.writer.add(episode(99))
        self.writer.close()
        self.check(end)
        if max(self.committed) >= end:
            with pytest.raises(DatasetError, match=r"readers ignore \d+ episodes from"):
                StoreWriter(self.folder, None, resume=True, reopen=True)
        else:
            StoreWriter(self.folder, None, resume=True, reopen=True).close()  # as if it were killed here
            end = None
        self.check(end)
        check_data_set(self.folder)


@pytest.mark.guarantee("G12.5")
def test_random_calls_of_a_writer_keep_what_was_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collector.store.writer.MOST_EPISODES", 3)  # so that a commit writes several shards
    names = ("add", "add", "add_without_numbers", "add_again", "commit", "commit", "adopt", "resume")
    for seed in range(5):
        writing = Writing(tmp_path / str(seed), seed)
        for name in random.Random(seed).choices(names, k=12):
            getattr(writing, name)()
            writing.check()
        writing.end()


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
        kind, remove = disk.SafeFolder, lambda: shutil.rmtree(tmp_path / "a")
        patch.setattr(kind, "open", after("folder", remove, kind.open))
        patch.setattr(fcntl, "flock", after("file", lambda: (tmp_path / "a/writer.lock").unlink(), fcntl.flock))
        with StoreWriter(tmp_path / "a", head()), pytest.raises(DatasetError, match="is being written"):
            StoreWriter(tmp_path / "a", head())
    assert made == ["folder", "file"]


def test_a_data_set_may_end_without_episodes(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, head()) as writer:
        writer.end(episodes=0)
    assert (Dataset(tmp_path).end, len(Dataset(tmp_path))) == (0, 0)


def test_an_added_episode_is_a_copy_and_its_flags_may_be_numbers(tmp_path: Path) -> None:
    one = tree_episode(2, truncated=np.array([0.0, 0.0, 1.0]), terminated=np.zeros(3))
    with StoreWriter(tmp_path, make_head()) as writer:
        writer.add(one)
        for array in nest.leaves((one.obs, one.action, one.reward)):
            array[...] = 0
        writer.end()
    assert_same(Dataset(tmp_path)[0], tree_episode(2))


def test_an_episode_with_the_keys_of_a_dict_in_another_order_is_stored_in_the_order_of_the_space(
    tmp_path: Path,
) -> None:
    """gymnasium sorts the keys of a space, but not those of observations."""

    def turned(number: int) -> Episode:
        found = tree_episode(number)
        obs, action = (dict(reversed(tree.items())) for tree in (found.obs, found.action))
        return replace(found, obs=obs, action=action) if number % 2 else found

    write(tmp_path / "a", make=tree_episode)
    with StoreWriter(tmp_path / "b", make_head(*SPACES[tree_episode])) as writer:
        writer.add([turned(number) for number in range(3)])
        for number in range(3, 6):
            writer.add(turned(number))
        writer.commit()
        writer.end()
    for ours, plain in zip(Dataset(tmp_path / "b"), Dataset(tmp_path / "a"), strict=True):
        assert_same(ours, plain)
        assert [list(ours.obs), list(ours.action)] == [list(plain.obs), list(plain.action)]


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
