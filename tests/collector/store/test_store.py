"""The store: readers get the written episodes by number, a folder has one writer, and old folders are readable."""

from __future__ import annotations

import fcntl
import gc
import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from collector import Collector, Dataset, DatasetError, Episode, RecordEpisodes, StoreWriter, export, make_head
from collector.episodes.episode import columns_of
from collector.store import safe_folder
from collector.store.dataset_folder import check_folder
from collector.store.dataset_head import space_from_json, space_to_json
from collector.store.safe_folder import FolderInUseError, SafeFolder
from tests.support.backends import FULL
from tests.support.countdown import Countdown, PaysTwo
from tests.support.stored import ACTION, LENGTHS, OBS, assert_same, episode, head, text_episode, tree_episode, write
from vecenv import DummyVectorEnv, nest

pytestmark = pytest.mark.usefixtures("no_fsync")
EPISODES = ("offsets", "episode", "seed", "env_id")
compressed = pytest.mark.parametrize("compress", [False, True], ids=["plain", "compressed"])


def files(folder: Path) -> dict[str, bytes]:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "writer.lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def long_episode(number: int, /) -> Episode:
    """An episode whose observations fill a file that is mapped."""
    return episode(number, length=2 * 1024 * 8)


class TestReading:
    def test_threads_read_together_although_one_shard_fits_into_memory(self, tmp_path: Path) -> None:
        data = Dataset(write(tmp_path / "a", [(number,) for number in range(12)]), memory=1)
        errors = list[BaseException]()

        def read(seed: int) -> None:
            rng = np.random.default_rng(seed)
            try:
                for number in rng.integers(12, size=50).tolist():
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

    @compressed
    @pytest.mark.parametrize("make", [episode, tree_episode, text_episode])
    def test_episodes_are_what_was_written_in_the_order_of_their_numbers(
        self, make: Any, compress: bool, tmp_path: Path
    ) -> None:
        data = Dataset(write(tmp_path / "a", make=make, compress=compress))
        assert len(data) == 6
        assert data.complete
        assert data.numbers.tolist() == list(range(6))
        assert data.lengths.tolist() == list(LENGTHS)
        for number, found in enumerate(data):
            assert_same(found, make(number))
            assert_same(data[number - 6], found)
            assert data.returns[number] == found.total_reward
        assert data.verify() == []
        assert files(write(tmp_path / "b", make=make, compress=compress)) == files(tmp_path / "a")
        with pytest.raises(IndexError):
            data[6]

    def test_returns_are_sums_of_float64_whatever_the_type_of_the_rewards(self, tmp_path: Path) -> None:
        reward = np.random.default_rng(5).integers(1, 2**22, 30) * 2 + 1
        given = [replace(episode(k, length=30), reward=reward.astype(kind)) for k, kind in enumerate("fdi")]
        with StoreWriter(tmp_path / "a", head()) as writer:
            writer.add(given)
            writer.commit()
            writer.end()
        data = Dataset(tmp_path / "a")
        assert data.returns.tolist() == [float(reward.sum())] * 3
        assert [each.total_reward for each in given] == [each.total_reward for each in data] == data.returns.tolist()

    def test_returns_of_vector_rewards_have_a_column_per_reward_as_in_collect(self, tmp_path: Path) -> None:
        """rware 2.0.0 and lbforaging 3.0.1 return a reward per agent."""
        with RecordEpisodes(DummyVectorEnv([lambda: PaysTwo(Countdown(4))] * 2), tmp_path / "a") as venv:
            collected = Collector(venv, frames_per_batch=8).collect(n_episode=4).returns
        data = Dataset(tmp_path / "a")
        assert collected.tolist() == data.returns.tolist() == [[4.0, 8.0]] * 4
        assert data[1:3].returns.tolist() == [[4.0, 8.0]] * 2
        assert data.total_rewards.tolist() == [each.total_reward for each in data] == [12.0] * 4
        assert data[:0].returns.shape == (0, 2)
        assert data.verify() == []
        parquet = pytest.importorskip("pyarrow.parquet")
        export(data, "parquet", tmp_path / "b")
        found = parquet.read_table(tmp_path / "b" / "episodes")["return"]
        assert found.to_pylist() == data.returns.tolist()

    def test_what_is_returned_belongs_to_the_caller_and_a_part_or_a_copy_is_a_data_set(self, tmp_path: Path) -> None:
        data = Dataset(write(tmp_path / "a"))
        assert (data.observation_space, data.action_space) == (OBS, ACTION)
        data[0].obs[:] = 7
        data.transitions().reward[:] = 7
        assert_same(data[0], episode(0))
        part = data[1:5:2]
        assert [found.number for found in part] == [1, 3]
        assert part.transitions().episode.tolist() == [1] * LENGTHS[1] + [3] * LENGTHS[3]
        assert len(data[4:2]) == 0
        assert_same(pickle.loads(pickle.dumps(data))[3], data[3])

    def test_a_part_of_a_batch_is_a_slice_without_gaps_or_a_mask(self, tmp_path: Path) -> None:
        (batch,) = Dataset(write(tmp_path / "a")).blocks()
        for which, numbers in ((slice(1, -2), [1, 2, 3]), (slice(4, 2), []), (batch.episode % 3 == 1, [1, 4])):
            part = batch.select(which)
            assert part.episode.tolist() == numbers
            for found in part:
                assert_same(found, episode(found.number))
        for wrong in (slice(None, None, 2), slice(None, None, -1), np.array([0, 2]), np.arange(6), 1):
            with pytest.raises(ValueError, match="a slice with step 1 or a bool mask"):
                batch.select(wrong)  # type: ignore[arg-type]

    def test_a_shard_is_what_numpy_reads(self, tmp_path: Path) -> None:
        shard = write(tmp_path / "a") / "shards/000000"
        arrays = {path.stem: np.load(path, mmap_mode="r", allow_pickle=False) for path in shard.iterdir()}
        assert arrays.keys() == {*("obs", "action", "reward", "terminated", "truncated"), *EPISODES}
        assert arrays["obs"].shape == (5 + 3 + 2, 3)
        assert [arrays[name].tolist() for name in EPISODES] == [[0, 5, 8], [0, 2], [1000, 1002], [0, 2]]

    @pytest.mark.guarantee("G12.5")
    def test_what_is_committed_counts_and_once_complete_the_numbers_below_the_end(self, tmp_path: Path) -> None:
        with StoreWriter(tmp_path, head()) as writer:
            assert len(Dataset(tmp_path)) == 0
            writer.add([episode(4), episode(1)])
            assert len(Dataset(tmp_path)) == 0
            writer.commit(failed={"env": 2}, state={"mean": [1.0]})
            writer.commit(failed={"env": 1})
            data = Dataset(tmp_path)
            assert (data.numbers.tolist(), data.complete) == ([1, 4], False)
            assert (data.failed, data.state) == ({"env": 3}, {"mean": [1.0]})
            with pytest.raises(DatasetError, match="data set or slice has no episodes"):
                data[:0].transitions()
            writer.add(episode(0))
            writer.end(episodes=2)
            with pytest.raises(DatasetError, match="is complete, with episode numbers below 2"):
                writer.add(episode(5))
        data = Dataset(tmp_path)
        assert (data.numbers.tolist(), data.complete) == ([0, 1], True)
        assert data.steps == LENGTHS[0] + LENGTHS[1]
        assert sorted(set(data.transitions().episode.tolist())) == [0, 1]
        assert sum(map(len, data.batches(2, seed=0, passes=1))) == data.steps
        path = tmp_path / "manifest.jsonl"
        path.write_bytes(path.read_bytes()[:-20])  # half a line is none
        data = Dataset(tmp_path)
        assert (data.numbers.tolist(), data.complete) == ([0, 1, 4], False)

    def test_a_space_survives_json(self) -> None:
        for space in (
            spaces.Box(np.array([-1, -np.inf], np.float32), np.array([0.1, np.inf], np.float32)),
            spaces.Box(0, 255, (4, 4, 3), np.uint8),
            spaces.Box(-3, 5, (2,), np.int64),
            spaces.Box(-np.inf, 1, (), np.float64),
            spaces.Discrete(4, start=-2),
            spaces.MultiDiscrete([2, 3, 4]),
            spaces.MultiBinary((2, 3)),
            spaces.Text(5),
            spaces.Text(7, min_length=2, charset="\N{GREEK SMALL LETTER ALPHA}\0b"),
            spaces.Dict({"b": spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1)]), "a": spaces.MultiBinary(2)}),
        ):
            assert space_from_json(json.loads(json.dumps(space_to_json(space)))) == space
        ordered = spaces.Dict([("b", spaces.Box(0, 1, (2,))), ("a", spaces.Discrete(3))])
        found: Any = space_from_json(json.loads(json.dumps(space_to_json(ordered))))
        assert [*found] == ["b", "a"], "`gymnasium.spaces.flatten` follows the order of the keys"
        graph = spaces.Graph(spaces.Box(0, 1), None)  # whose elements are no arrays
        assert space_from_json(space_to_json(spaces.Dict({"a": graph}))) is None


class TestTransitions:
    @compressed
    def test_each_step_has_its_own_next_observation(self, compress: bool, tmp_path: Path) -> None:
        data = Dataset(write(tmp_path / "a", make=tree_episode, compress=compress))
        found = data.transitions()
        assert len(found) == data.steps == sum(LENGTHS)
        whole = [tree_episode(number) for number in range(6)]
        for name, tree, rows in (
            ("obs", "obs", slice(-1)),
            ("next_obs", "obs", slice(1, None)),
            ("action", "action", ...),
        ):
            expected = nest.merge(np.concatenate, [nest.take(getattr(each, tree), rows) for each in whole])
            nest.merge(lambda pair: np.testing.assert_array_equal(*pair), [getattr(found, name), expected])
        assert found.episode.tolist() == np.repeat(range(6), LENGTHS).tolist()
        assert found.step.tolist() == [step for length in LENGTHS for step in range(length)]
        assert found.terminated.tolist() == np.concatenate([each.terminated for each in whole]).tolist()
        some = data.take(np.array([7, 0, 7, 22], np.uint64))
        assert some.step.tolist() == found.step[[7, 0, 7, 22]].tolist()
        nest.merge(
            lambda pair: np.testing.assert_array_equal(pair[0], pair[1][[7, 0, 7, 22]]), [some.next_obs, found.next_obs]
        )
        with pytest.raises(IndexError, match=r"the number of transitions \(23\)"):
            data.take([23])
        for wrong in ([], np.ones(23, np.bool_), [0.5], 3, [[3]]):  # a mask is no list of numbers
            with pytest.raises(IndexError, match="expected one or more integer indices of transitions"):
                data.take(wrong)

    @compressed
    def test_random_batches_have_each_transition_once_a_pass(self, compress: bool, tmp_path: Path) -> None:
        folder = write(tmp_path / "a", [range(20), range(20, 40), range(40, 60)], compress=compress)
        data = Dataset(folder, memory=3000)  # less than two shards
        passes = list(data.batches(16.0, seed=1, passes=2))
        rows = [(e, s) for batch in passes for e, s in zip(batch.episode.tolist(), batch.step.tolist(), strict=True)]
        once = {(number, step) for number in range(60) for step in range(LENGTHS[number % 6])}
        assert sorted(rows) == sorted([*once, *once])
        assert set(rows[: len(once)]) == once
        assert rows[: len(once)] != rows[len(once) :]
        assert rows[: len(once)] != sorted(once)
        assert {len(batch) for batch in passes} == {16, data.steps % 16}
        for batch in passes:
            assert (batch.obs[:, 0] == batch.episode).all()
            assert (batch.next_obs[:, 1] == batch.step + 1).all()
        again = [batch.step.tolist() for batch in data.batches(16, seed=1, passes=2)]
        assert again == [batch.step.tolist() for batch in passes]
        assert again != [batch.step.tolist() for batch in data.batches(16, seed=2, passes=2)]

    @pytest.mark.parametrize("call", ["batches", "batch_order", "as_torch", "blocks"])
    def test_numbers_are_checked_where_they_are_passed(self, call: str, tmp_path: Path) -> None:
        good: dict[str, Any] = {"nbytes": 1e3} if call == "blocks" else {"batch_size": 2.0, "seed": 0, "passes": 1}
        if call == "as_torch":
            pytest.importorskip("torch")
            good["of"] = "batches"
        make = partial(getattr(Dataset(write(tmp_path / "a")), call), **good)
        assert len(list(make())) > 0
        for name in good.keys() - {"of"}:
            for wrong in (-1, 1.5, "2", np.nan) + ((None, True, 2**64) if name == "seed" else (0,)):
                with pytest.raises((TypeError, ValueError), match=rf"\b{name}\b"):
                    make(**{name: wrong})

    def test_a_pass_is_a_permutation_of_windows_of_shards(self, tmp_path: Path) -> None:
        folder = write(tmp_path / "a", [range(n, n + 10) for n in range(0, 80, 10)])
        sizes = [Dataset(folder)._shards.nbytes(which) for which in range(8)]
        for memory, count in ((1, 1), (int(2.5 * max(sizes)), 2), (2**40, 8)):
            data = Dataset(folder, memory=memory)
            order = np.concatenate([batch.episode // 10 for batch in data.batches(7, seed=0, passes=1)]).tolist()
            begins = [order.index(shard) for shard in range(8)]
            open_at_once = [
                sum(begins[s] <= at <= len(order) - 1 - order[::-1].index(s) for s in range(8)) for at in begins
            ]
            assert max(open_at_once) == count
        whole = np.concatenate([batch.episode for batch in data.batches(64, seed=0, passes=1)])
        assert abs(np.corrcoef(whole, np.arange(len(whole)))[0, 1]) < 0.4

    @pytest.mark.slow
    def test_pages_of_pictures_are_given_back(self, tmp_path: Path) -> None:
        pixels = np.ones((81, 210, 160, 3), np.uint8)
        with StoreWriter(tmp_path / "a", make_head(spaces.Box(0, 255, pixels.shape[1:], np.uint8), ACTION)) as writer:
            for number in range(24):
                writer.add(episode(number, length=80, obs=pixels))
                writer.commit()
            writer.end()
        code = (
            "import resource, sys; from collector import Dataset\n"
            "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
            "data = Dataset(sys.argv[1], memory=2**24); before = peak()\n"
            "print(sum(int(each.obs.any()) for each in data), data.nbytes >> 20, (peak() - before) >> 10)"
        )
        done = subprocess.run([sys.executable, "-c", code, tmp_path / "a"], capture_output=True, text=True, check=True)
        count, size, grown = map(int, done.stdout.split())
        assert (count, size) == (24, 186)
        assert grown < 70, "two episodes of 8 MB, and pages of 16 MB and a shard"

    def test_a_shard_that_could_not_be_inflated_is_not_compressed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("collector.store.shard.LARGEST_INFLATED", 500)
        data = Dataset(write(tmp_path / "a", [(0, 1, 2, 3), (4,)], compress=True))
        assert [(tmp_path / "a" / name / "obs.npy").exists() for name in data.shard_files] == [True, False]
        assert data.verify() == []

    @pytest.mark.parametrize("make", [episode, pytest.param(tree_episode, marks=FULL)])
    def test_transitions_become_a_tensordict_of_torchrl(self, make: Any, tmp_path: Path) -> None:
        """The names are those of batches, so that samplers of TorchRL find the episodes."""
        pytest.importorskip("tensordict")
        rows = Dataset(write(tmp_path / "a", make=make)).transitions()
        found = rows.to_tensordict()
        assert found.batch_size == (len(rows),)
        obs, next_obs = (
            (found["pixels"], found["next", "pixels"])
            if make is tree_episode
            else (found["observation"], found["next", "observation"])
        )
        expected = (rows.obs["pixels"], rows.next_obs["pixels"]) if make is tree_episode else (rows.obs, rows.next_obs)
        for tensor, array in zip((obs, next_obs), expected, strict=True):
            assert tensor.numpy().dtype == array.dtype
            np.testing.assert_array_equal(tensor, array)
        np.testing.assert_array_equal(found["next", "reward"][:, 0], rows.reward.astype(np.float32))
        np.testing.assert_array_equal(found["next", "terminated"][:, 0], rows.terminated)
        np.testing.assert_array_equal(found["next", "done"][:, 0], rows.terminated | rows.truncated)
        assert found["collector", "traj_ids"].tolist() == rows.episode.tolist()
        assert found["step_count"].tolist() == rows.step[:, None].tolist()

    @FULL
    def test_torch_has_views_with_workers(self, tmp_path: Path) -> None:
        torch = pytest.importorskip("torch")
        data = Dataset(write(tmp_path / "a"))
        rows = data.as_torch()
        assert len(rows) == data.steps
        assert rows[-1]["obs"].tolist() == data.transitions().obs[-1].tolist()
        whole = data.as_torch("episodes")
        assert whole[3]["obs"].shape == (9, 3)
        view, DataLoader = data.as_torch("batches", batch_size=5, seed=3), torch.utils.data.DataLoader
        for workers in (0, 1):
            loaded = DataLoader(rows, batch_size=7, shuffle=True, num_workers=workers)
            assert sorted(n for b in loaded for n in b["episode"].tolist()) == data.transitions().episode.tolist()
            loaded = DataLoader(view, batch_size=None, num_workers=workers)
            found = sorted((b["episode"].tolist(), b["step"].tolist()) for b in loaded)
            assert found == sorted((b.episode.tolist(), b.step.tolist()) for b in data.batches(5, 3, 1))
        with pytest.raises(ValueError, match="'transitions', 'episodes' or 'batches'"):
            data.as_torch("rows")

    @pytest.mark.parametrize("workers", [0, pytest.param(1, marks=FULL)])
    def test_epochs_of_a_data_loader_are_the_passes_of_batches(self, workers: int, tmp_path: Path) -> None:
        """Also in workers that stay for all epochs."""
        torch = pytest.importorskip("torch")
        data = Dataset(write(tmp_path / "a"))
        view = data.as_torch("batches", batch_size=5, seed=3)
        loader = torch.utils.data.DataLoader(view, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
        found: list[Any] = []
        for epoch in range(2):
            view.set_epoch(epoch)
            found += [batch["step"].tolist() for batch in loader]
        assert found == [batch.step.tolist() for batch in data.batches(5, seed=3, passes=2)]
        with pytest.raises(ValueError, match="epoch must be at least 0, got -1"):
            view.set_epoch(-1)

    @compressed
    def test_no_more_shards_are_open_than_memory_and_descriptors_allow(self, compress: bool, tmp_path: Path) -> None:
        folder = write(tmp_path / "a", [[n] for n in range(6)], long_episode, compress=compress)
        expected, data = Dataset(folder).transitions(), Dataset(folder)
        for most_open, memory in ((1, data._shards.memory), (6, 1)):
            data._shards._most_open, data._shards.memory = most_open, memory
            before = len(os.listdir("/dev/fd"))
            found = data.take(np.arange(data.steps)[::-1])
            assert len(data._shards._open) == 1
            assert len(os.listdir("/dev/fd")) <= before + 3
            np.testing.assert_array_equal(found.obs, expected.obs[::-1])
            np.testing.assert_array_equal(found.next_obs, expected.next_obs[::-1])


class TestWriting:
    @pytest.mark.guarantee("G12.1")
    def test_one_writer_at_a_time_and_a_refused_one_harms_nothing(self, tmp_path: Path) -> None:
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

    def test_a_forked_child_does_not_keep_the_lock(self, tmp_path: Path) -> None:
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
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
            remove = lambda: shutil.rmtree(tmp_path / "a")  # noqa: E731
            patch.setattr(SafeFolder, "open", after("folder", remove, SafeFolder.open))
            patch.setattr(fcntl, "flock", after("file", lambda: (tmp_path / "a/writer.lock").unlink(), fcntl.flock))
            with StoreWriter(tmp_path / "a", head()), pytest.raises(FolderInUseError):
                StoreWriter(tmp_path / "a", head())
        assert made == ["folder", "file"]

    def test_a_data_set_is_not_written_over(self, tmp_path: Path) -> None:
        write(tmp_path / "a")
        with pytest.raises(DatasetError, match="already holds 6 episodes of Numbers-v0: continue it"):
            StoreWriter(tmp_path / "a", head())
        (tmp_path / "a/thesis.tex").write_text("ten years")
        with pytest.raises(DatasetError, match=r"thesis\.tex is not a file of a data set"):
            StoreWriter(tmp_path / "a", head(), overwrite=True)
        (tmp_path / "a/thesis.tex").unlink()
        write(tmp_path / "a", [(7,)], overwrite=True)
        assert Dataset(tmp_path / "a").numbers.tolist() == [7]

    @pytest.mark.parametrize("name", ["holiday.png", "videos/holiday.mp4", "tensorboard/events", "statistics.json"])
    def test_files_without_a_data_set_are_not_overwritten(self, name: str, tmp_path: Path) -> None:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("ten years")
        for overwrite in (False, True):
            with pytest.raises(DatasetError, match=r"already holds|has no data set to overwrite"):
                StoreWriter(tmp_path, head(), overwrite=overwrite)
        assert path.read_text() == "ten years"

    def test_a_data_set_inside_of_another_is_refused(self, tmp_path: Path) -> None:
        """The other one could not be resumed."""
        names = {path.name for path in write(tmp_path / "a").iterdir()}
        (tmp_path / "link").symlink_to(tmp_path / "a")
        for folder in (tmp_path / "a/b", tmp_path / "link/deep/b"):
            for begin in (lambda new: StoreWriter(new, head()), lambda new: check_folder(new, overwrite=True)):
                with pytest.raises(DatasetError, match=r"b is inside of the data set .*a; choose another place"):
                    begin(folder)
        assert {path.name for path in (tmp_path / "a").iterdir()} == names

    def test_a_job_file_in_the_folder_is_kept(self, tmp_path: Path) -> None:
        for name in ("job.toml", "job.yml"):
            (tmp_path / name).write_text("seed = 3")
        write(tmp_path)
        write(tmp_path, [(7,)], overwrite=True)
        assert Dataset(tmp_path).numbers.tolist() == [7]
        assert (tmp_path / "job.toml").read_text() == (tmp_path / "job.yml").read_text() == "seed = 3"

    def test_an_interrupted_overwrite_is_repeated(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write(tmp_path)
        (tmp_path / "videos").mkdir()
        with monkeypatch.context() as patch:
            patch.setattr(safe_folder, "rmdir", lambda *args, **options: exec("raise KeyboardInterrupt"))
            with pytest.raises(KeyboardInterrupt):
                StoreWriter(tmp_path, head(), overwrite=True)
        assert len(Dataset(tmp_path)) == 0
        write(tmp_path, [(7,)], overwrite=True)
        assert Dataset(tmp_path).numbers.tolist() == [7]

    def test_a_resumed_data_set_goes_on_where_it_was(self, tmp_path: Path) -> None:
        with StoreWriter(tmp_path, head()) as writer:
            writer.add(episode(3))
            writer.commit(failed={"env": 1}, state=[1])
            writer.add(episode(1))  # and is not committed
        shard = tmp_path / "shards/000007"
        for name in ("000007", "000008.partial"):
            shard.with_name(name).mkdir()
            (shard.with_name(name) / "obs.npy").write_bytes(b"not in the manifest")
        with open(tmp_path / "manifest.jsonl", "ab") as file:
            file.write(b'{"line": "sha')
        with StoreWriter(tmp_path, head(), resume=True) as writer:
            assert writer.committed.tolist() == [3]
            manifest = writer.manifest
            assert (manifest.failed, manifest.state, manifest.index["length"].tolist()) == (
                {"env": 1},
                [1],
                [LENGTHS[3]],
            )
            assert [path.name for path in shard.parent.iterdir()] == ["000000"]
            with pytest.raises(DatasetError, match=r"episode numbers \[3\] would occur twice in"):
                writer.add([episode(2), episode(3)])
            writer.add(episode(1))
            writer.end()
        assert Dataset(tmp_path).numbers.tolist() == [1, 3]
        assert Dataset(tmp_path).verify() == []

    def test_a_line_that_readers_would_refuse_is_not_written(self, tmp_path: Path) -> None:
        ends: list[Any] = [-1, 2**53, 2.5, np.int64(3)]
        with StoreWriter(tmp_path / "a", head()) as writer:
            with pytest.raises(DatasetError, match="has no episodes, so it cannot end with 3"):
                writer.end(episodes=3)
            writer.add(episode(2))
            for count in ends:
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

    def test_a_key_that_is_no_unicode_is_refused_before_it_is_written(self, tmp_path: Path) -> None:
        with StoreWriter(tmp_path, make_head()) as writer:
            with pytest.raises(DatasetError, match="only text can be stored"):
                writer.add(replace(episode(0), obs={"\ud800": episode(0).obs}))
            writer.end()
        assert len(Dataset(tmp_path)) == 0

    def test_a_changed_job_is_refused_with_what_changed(self, tmp_path: Path) -> None:
        write(tmp_path / "a")
        changed = make_head(OBS, ACTION, job={"env": "Numbers-v0", "seed": 1})
        with pytest.raises(DatasetError, match=r"begun with other settings \(job\.seed was 0, and is 1\)"):
            StoreWriter(tmp_path / "a", changed, resume=True)
        with pytest.raises(DatasetError, match="action_space"):
            StoreWriter(tmp_path / "a", make_head(OBS, spaces.Discrete(9), job=head()["job"]), resume=True)
        with pytest.raises(DatasetError, match="there is no dataset"):
            StoreWriter(tmp_path / "b", None, resume=True)
        with pytest.raises(DatasetError, match="cannot be written"):
            StoreWriter(tmp_path / "c", make_head(job={"rate": float("nan")}))
        with pytest.raises(TypeError, match="NoneType"):
            StoreWriter(None, head())  # type: ignore[arg-type]
        assert not (tmp_path / "c").exists()
        assert Dataset(tmp_path / "a").head["job"] == {"env": "Numbers-v0", "seed": 0}

    def test_what_cannot_be_stored_is_refused_and_the_rest_is_kept(self, tmp_path: Path) -> None:
        refused: tuple[tuple[dict[str, Any], str], ...] = (
            ({"reward": np.array([1.0, np.nan, 1.0])}, "episode 2 of env 2 has the reward nan in step 1"),
            (
                {"reward": np.array([1e308, 1e308, -1e308])},
                "episode 2 of env 2 are finite, but their sum is not",
            ),
            (
                {"obs": np.zeros((3, 3), np.float32)},
                r"has \[3\] observations and \[3\] actions; expected an action per step",
            ),
            ({"obs": np.array([None] * 4)}, "obs holds Python objects such as None; only numbers and texts can be"),
            ({"obs": np.array(["a", "b", "c", b"d"], object)}, "obs holds Python objects such as b'd'"),
            ({"obs": np.array([["a"]] * 4, object)}, "obs is object; only .* one text per step, can be stored"),
            ({"obs": np.array(["a", "\ud800", "b", "c"])}, r"obs has the text '\\ud800', which UTF-8 cannot express"),
            ({"reward": np.array(["1", "2", "3"])}, "reward holds Python objects; only numbers"),
            ({"obs": np.array(["a"] * 4)}, "do not fit|have the arrays"),
            ({"obs": np.zeros((4, 3), np.complex64)}, "obs is complex64"),
            ({"obs": np.zeros((4, 2), np.float32)}, "different dtypes or shapes|have the arrays"),
            ({"action": np.zeros(3, np.float32)}, "different dtypes or shapes|have the arrays"),
            ({"truncated": np.zeros(3, np.bool_)}, "only whole episodes"),
            ({"truncated": np.ones(3, np.bool_)}, "only whole episodes"),
            ({"truncated": np.ones((3, 1), np.bool_)}, r"truncated has the shape \(3, 1\)"),
            ({"number": 1}, r"episode numbers \[1\] would occur twice in"),
            ({"env_id": -1}, "an episode has the env_id -1, expected at least 0"),
            ({"seed": -5}, "an episode has the seed -5, expected at least -1"),
            ({"seed": 2**64}, "a number or seed of 64 bits or more"),
            ({"env_id": 2**40}, "an env_id of 32 bits or more"),
        )
        with StoreWriter(tmp_path, head()) as writer:
            writer.add(episode(1))
            for wrong, message in refused:
                with pytest.raises(DatasetError, match=message):
                    writer.add(episode(2, **wrong))
            for name in ("number", "seed", "env_id"):
                for value in (1.5, "1"):
                    with pytest.raises(TypeError, match=f"{name} must be a whole number"):
                        writer.add(episode(2, **{name: value}))
            with pytest.raises(DatasetError, match="failures and state have"):
                writer.commit(state="x" * 2**26)
            with pytest.raises(DatasetError, match=r"episode numbers \[8\] would occur twice in"):
                writer.add([episode(7), episode(8), episode(8)])
            writer.add([episode(7), episode(0, number=-1), episode(1, number=-1)])  # which get the next numbers
            writer.end()
        assert Dataset(tmp_path).numbers.tolist() == [1, 7, 8, 9]

    def test_arrays_may_be_reused_after_they_are_added(self, tmp_path: Path) -> None:
        one, expected = tree_episode(2), tree_episode(2)
        with StoreWriter(tmp_path, make_head()) as writer:
            writer.add(one)
            for array in nest.leaves(columns_of(one)):
                array[...] = 0
            writer.end()
        assert_same(Dataset(tmp_path)[0], expected)

    def test_flags_may_be_numbers(self, tmp_path: Path) -> None:
        with StoreWriter(tmp_path, head()) as writer:
            writer.add(episode(2, truncated=np.array([0.0, 0.0, 1.0]), terminated=np.zeros(3)))
            writer.end()
        assert Dataset(tmp_path)[0].truncated.tolist() == [False, False, True]

    def test_episodes_that_are_not_of_the_spaces_are_refused(self, tmp_path: Path) -> None:
        with StoreWriter(tmp_path, head()) as writer:
            for wrong, message in (
                (
                    {"obs": np.zeros((4, 2), np.float32)},
                    "observation space of the data set: obs is <f4 2, expected <f4 3",
                ),
                (
                    {"action": np.zeros(3, np.int32)},
                    "do not fit the action space of the data set: action is <i4, expected <i8",
                ),
            ):
                with pytest.raises(DatasetError, match=message):
                    writer.add(episode(2, **wrong))
            writer.add(episode(2))
        with pytest.raises(DatasetError, match=r"the head of a data set cannot be written: it has .* bytes"):
            StoreWriter(tmp_path / "a", make_head(OBS, ACTION, notes="x" * 2**24))

    def test_a_line_of_the_manifest_is_never_too_long_for_its_reader(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("collector.store.writer.MOST_EPISODES", 3)
        with StoreWriter(tmp_path, head()) as writer:
            writer.add([episode(number) for number in range(8)])
            writer.commit(failed={"env": 2}, state="here")
            assert writer.waiting_bytes == 0
            assert [len(line.files) > 0 for line in writer.manifest.shards] == [True] * 3
            writer.end()
        data = Dataset(tmp_path)
        assert data.verify() == []
        assert (data.failed, data.state) == ({"env": 2}, "here")
        for number, found in enumerate(data):
            assert_same(found, episode(number))

    def test_shards_of_parts_are_adopted_while_they_are_written(self, tmp_path: Path) -> None:
        with StoreWriter(tmp_path, head()) as driver:
            parts = {name: StoreWriter(tmp_path / name, head()) for name in ("shards/w001", "shards/w002")}
            for number, (name, part) in enumerate([*parts.items()] * 2):
                part.add([episode(2 * number), episode(2 * number + 1)])
                part.commit(failed={"env": 1})
                (line,) = driver.adopt(name)
                assert line.episodes == [2 * number, 2 * number + 1]
                assert driver.adopt(name) == []
            assert (driver.manifest.failed, len(driver.committed)) == ({"env": 4}, 8)
            part.add(episode(8))
            part.commit()
            driver.add(episode(8))
            with pytest.raises(DatasetError, match=r"w002 has episodes \[8\], which are stored already"):
                driver.adopt(name)
            for part in parts.values():
                part.close()
            with StoreWriter(tmp_path / "shards/w003", make_head()) as other:
                other.add(tree_episode(9))
                other.commit()
            with pytest.raises(DatasetError, match="other dtypes or shapes"):
                driver.adopt("shards/w003")
            driver.end()
        data = Dataset(tmp_path)
        assert data.shard_files == [f"shards/{n:06d}" for n in range(5)]
        assert data.verify() == []
        for number, found in enumerate(data):
            assert_same(found, episode(number))

    def test_adopted_episodes_alone_fix_the_layout_and_end_a_data_set(self, tmp_path: Path) -> None:
        with StoreWriter(tmp_path, head()) as driver:
            with StoreWriter(tmp_path / "shards/w001", head()) as part:
                part.add(episode(0))
                part.commit()
            driver.adopt("shards/w001")
            with pytest.raises(DatasetError, match="these episodes have the arrays"):
                driver.add(tree_episode(1))
            driver.end(episodes=1)
        assert (Dataset(tmp_path).end, Dataset(tmp_path).numbers.tolist()) == (1, [0])

    def test_waiting_episodes_fix_the_layout_of_adopted_ones(self, tmp_path: Path) -> None:
        with StoreWriter(tmp_path, make_head()) as driver:
            driver.add(episode(0))
            with StoreWriter(tmp_path / "shards/w001", make_head()) as part:
                part.add(tree_episode(1))
                part.commit()
            with pytest.raises(DatasetError, match="other dtypes or shapes"):
                driver.adopt("shards/w001")
            driver.end()
        assert Dataset(tmp_path).verify() == []
        assert Dataset(tmp_path).numbers.tolist() == [0]
