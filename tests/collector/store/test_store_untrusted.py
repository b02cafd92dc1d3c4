"""Writing to untrusted folders: nothing outside changes, and nothing inside changes before all checks have passed."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from collector import Dataset, DatasetError, Job, StoreWriter
from collector.jobs.dataset_info import dataset_info, plot_dataset, read_metrics
from collector.jobs.job import JobError
from collector.jobs.job_progress import JobState, Metrics
from collector.jobs.job_runner import resume_job, run_job
from collector.jobs.plan import Plan
from collector.jobs.replay import make_videos
from collector.jobs.report import make_console, rows_of, table_of
from collector.store import safe_folder
from tests.support.backends import FULL
from tests.support.hostile import lines_of, put_lines
from tests.support.stored import episode, write

pytestmark = pytest.mark.usefixtures("no_fsync")
JOB = Job(env="CartPole-v1", backend="dummy", num_envs=2, episodes=40, shard_bytes=2000)
DROP = object()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job that was stopped, with some shards."""

    def stop(state: JobState) -> None:
        if state.episodes >= 10:
            raise KeyboardInterrupt

    folder = tmp_path_factory.mktemp("stopped") / "a"
    with pytest.raises(KeyboardInterrupt):
        run_job(JOB, folder, on_progress=stop)
    return folder


@pytest.fixture
def folder(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "a"))


@pytest.fixture
def unplayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is resumed opens its folder, and plays nothing."""
    monkeypatch.setattr("collector.jobs.job_runner.JobRunner.run", lambda runner, **options: runner.state)


def contents(folder: Path) -> dict[str, Any]:
    """All that is there but the lock: files that are written again differ in their times or numbers."""
    found = {str(path.relative_to(folder)): path.lstat() for path in folder.rglob("*") if path.name != "writer.lock"}
    return {
        name: (at.st_ino, at.st_mode, at.st_size, 0 if stat.S_ISDIR(at.st_mode) else at.st_mtime_ns)
        for name, at in found.items()
    }


def edit_head(folder: Path, keys: tuple[str, ...], value: Any, before: str = "") -> None:
    """Write another head: that `before`, or the one that is there, with one entry that is `value`."""
    head = json.loads(before or (folder / "dataset.json").read_text())
    at = head
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    if value is DROP:
        del at[keys[-1]]
    (folder / "dataset.json").write_text(json.dumps(head))


WAYS: tuple[Callable[[Path], object], ...] = (
    resume_job,
    lambda folder: run_job(JOB, folder, overwrite=True),
    lambda folder: StoreWriter(folder, None, resume=True),
)
QUICK = ("shards/000000", "dataset.json", "manifest.jsonl.partial", "writer.lock")
FIFOS = ("writer.lock", "metrics.jsonl", "shards/000099")
NAMES = (
    *("shards", "shards/000000/obs.npy", "shards/000099", "shards/000000/more/deep", "manifest.jsonl"),
    *("metrics.jsonl", "statistics.json", "returns.png", "videos", "tensorboard/events"),
)


def link(path: Path, target: Path) -> None:
    """Move what is at the path to the target and put a link in its place."""
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        path.rename(target)
    elif path.suffix:
        target.write_bytes(b"of others")
    else:
        target.mkdir()
        (target / "000001").write_bytes(b"of others")
    path.symlink_to(target)


class TestLinks:
    @pytest.mark.guarantee("G12.2")
    @pytest.mark.parametrize(
        ("kind", "names"), [("link", QUICK), ("FIFO", FIFOS), pytest.param("link", NAMES, marks=FULL)]
    )
    def test_a_link_or_a_fifo_is_named_and_nothing_is_changed(
        self, kind: str, names: tuple[str, ...], stopped: Path, tmp_path: Path
    ) -> None:
        for i, name in enumerate(names):
            folder = Path(shutil.copytree(stopped, tmp_path / str(i) / "a"))
            if kind == "FIFO":
                (folder / name).unlink(missing_ok=True)
                os.mkfifo(folder / name)
            else:
                link(folder / name, folder.parent / "elsewhere")
            before = contents(folder.parent)
            for way in WAYS:
                with pytest.raises(DatasetError, match=f"a/{name} is a {kind}"):
                    way(folder)
            assert contents(folder.parent) == before, name

    @FULL
    def test_folders_without_end_are_refused(self, folder: Path) -> None:
        (folder / "videos" / "/".join("x" * 500)).mkdir(parents=True)
        with pytest.raises(DatasetError, match="is nested deeper than"):
            resume_job(folder)

    def test_a_link_that_comes_while_a_writer_is_open(self, folder: Path, tmp_path: Path) -> None:
        write(tmp_path / "b", [])
        with StoreWriter(tmp_path / "c", json.loads((tmp_path / "b/dataset.json").read_text())) as writer:
            writer.add(episode(0))
            writer.commit()
            (tmp_path / "c/shards").rename(tmp_path / "elsewhere")
            (tmp_path / "c/shards").symlink_to(tmp_path / "elsewhere")
            writer.add(episode(1))
            before = contents(tmp_path / "elsewhere")
            with pytest.raises(DatasetError, match="shards is a link"):
                writer.commit()
            assert contents(tmp_path / "elsewhere") == before
            (tmp_path / "c/shards").unlink()
            (tmp_path / "elsewhere").rename(tmp_path / "c/shards")
            writer.commit()
            # The folder itself stays the one that was opened, whatever takes its name.
            (tmp_path / "c").rename(tmp_path / "d")
            (tmp_path / "c").symlink_to(tmp_path / "elsewhere")
            writer.add(episode(2))
            writer.end()
        assert Dataset(tmp_path / "d").numbers.tolist() == [0, 1, 2]

    @FULL
    @pytest.mark.usefixtures("fonts")
    def test_what_looks_at_a_data_set_follows_none(self, stopped: Path, tmp_path: Path) -> None:
        looks: tuple[tuple[str, Callable[[Path], object]], ...] = (
            ("metrics.jsonl", Metrics),
            ("metrics.jsonl", read_metrics),
            ("tensorboard", lambda folder: Metrics(folder, tensorboard=True)),
            ("returns.png", plot_dataset),
            ("videos", make_videos),
        )
        for i, (name, look) in enumerate(looks):
            folder = Path(shutil.copytree(stopped, tmp_path / str(i) / "a"))
            link(folder / name, folder.parent / "elsewhere")
            before = contents(folder.parent)
            with pytest.raises(DatasetError, match=f"{name} is a link"):
                look(folder)
            assert contents(folder.parent) == before, name

    def test_the_path_of_a_data_set_may_lead_through_links(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(folder)
        assert resume_job(tmp_path / "link").status == "complete"
        assert Dataset(tmp_path / "link").verify() == []


class TestMemory:
    @pytest.fixture
    def _little(self) -> Iterator[None]:
        """No more than 4 MB are allocated."""
        tracemalloc.start()
        try:
            yield
            assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
        finally:
            tracemalloc.stop()

    @pytest.mark.guarantee("G12.3")
    @pytest.mark.usefixtures("_little")
    def test_a_line_that_names_large_spaces_takes_none(self, tmp_path: Path) -> None:
        box = {"type": "Box", "dtype": "<f4", "shape": [2**24], "low": 0, "high": 1}
        head = {"format": "vecenv dataset", "version": 3, "job": None, "versions": {}}
        head["observation_space"] = {"type": "Dict", "spaces": dict.fromkeys("abcd", box)}
        (tmp_path / "dataset.json").write_text(json.dumps(head))
        space = Dataset(tmp_path).observation_space
        assert [part.shape for part in space.values()] == [(2**24,)] * 4

    @pytest.mark.usefixtures("unplayed", "_little")
    def test_numbers_that_no_episode_can_have(self, folder: Path) -> None:
        lines = lines_of(folder)
        for wanted in ({}, {"episodes": 2**50}, {"episodes": None, "steps": 9000}):
            for key, value in wanted.items():
                edit_head(folder, ("job", key), value)
            put_lines(folder, lines)
            resume_job(folder)
            for number in (2**50, 2**53 - 1):
                for changed in (
                    [*lines[:-1], {**lines[-1], "episodes": [number, *lines[-1]["episodes"][1:]]}],
                    [*lines, {"line": "note", "state": {"skipped": [number]}}],
                ):
                    put_lines(folder, changed)
                    before = contents(folder)
                    with pytest.raises(DatasetError, match=f"manifest.jsonl: it has episode {number}, and the numbers"):
                        resume_job(folder)
                    assert contents(folder) == before

    @pytest.mark.usefixtures("_little")
    def test_a_plan_takes_memory_for_what_is_known(self) -> None:
        plan = Plan(0, episodes=2**60)
        plan.finished(2**59, 3)
        assert (plan.steps, plan.end, next(plan)[0]) == (3, 0, 0)
        replayed = Plan(0, numbers=[3, 2**50])
        assert [number for number, _ in replayed] == [3, 2**50]
        replayed.finished(2**50, 1)
        assert not replayed.is_complete
        replayed.finished(3, 1)
        assert (replayed.is_complete, replayed.is_exhausted) == (True, True)

    def test_a_number_that_could_not_be_read_again_is_not_stored(self, tmp_path: Path) -> None:
        write(tmp_path / "a", [(0,)])
        with StoreWriter(tmp_path / "b", json.loads((tmp_path / "a/dataset.json").read_text())) as writer:
            with pytest.raises(DatasetError, match="its number must be below"):
                writer.add(episode(2**53))
            writer.add(episode(2**53 - 1))
            with pytest.raises(DatasetError, match="its number must be below"):
                writer.add(episode(0, number=-1))
            writer.end(episodes=2**53 - 1)
        assert len(Dataset(tmp_path / "b")) == 0


NAMED = ("env", "env_kwargs", "policy", "policy_kwargs", "wrappers", "transforms", "checkpoint", "device")
"""Settings for what may not be installed here."""
VALUES = (DROP, None, [[]], {"a": {"b": 1}}, "[/x]\x1b[2J", -1, 2**70)


def head_keys(folder: Path) -> list[tuple[str, ...]]:
    head = json.loads((folder / "dataset.json").read_text())
    inner = ("job", "observation_space", "versions", "ran_on")
    return [(key,) for key in head] + [(key, below) for key in inner for below in head[key]]


@FULL
class TestChecks:
    """All of the head and the manifest is checked before anything is changed."""

    @pytest.mark.guarantee("G12.4")
    @pytest.mark.usefixtures("unplayed")
    def test_each_entry_of_the_head(self, folder: Path, capsys: Any) -> None:
        torn(folder)
        head, refused = (folder / "dataset.json").read_text(), 0
        for keys in head_keys(folder):
            for value in VALUES:
                edit_head(folder, keys, value, head)
                refused += is_refused(folder, keys, value)
                with suppress(DatasetError):  # the numbers of any head can be printed
                    make_console().print(table_of(rows_of(dataset_info(folder))))
        assert refused > 150
        assert "[/x]\N{REPLACEMENT CHARACTER}[2J" in (out := capsys.readouterr().out)
        assert "\x1b" not in out

    @pytest.mark.guarantee("G12.4")
    @pytest.mark.usefixtures("unplayed")
    def test_each_entry_of_the_manifest(self, folder: Path) -> None:
        refused = 0
        lines = [*lines_of(folder), {"line": "note", "state": {"skipped": [39]}, "failed": {"skipped": 1}}]
        for which in (0, 1, len(lines) - 1):
            for key in lines[which]:
                for value in (*VALUES, {"skipped": [-1]}, {"skipped": [0.5]}, {"skipped": "12"}, {"skipped": [0]}):
                    changed = {name: each for name, each in {**lines[which], key: value}.items() if each is not DROP}
                    put_lines(folder, [*lines[:which], changed, *lines[which + 1 :]])
                    torn(folder)
                    refused += is_refused(folder, (str(which), key), value)
        assert refused > 100


def torn(folder: Path) -> None:
    """Add files that a job that is resumed removes."""
    (folder / "shards/000099").write_bytes(b"not in the manifest")
    with open(folder / "manifest.jsonl", "a") as file:
        file.write('{"line": "sha')


def is_refused(folder: Path, *what: Any) -> bool:
    """Return True if a job is not resumed, and its folder is as it was; else one valid value replaced another."""
    before = contents(folder)
    try:
        resume_job(folder)
    except DatasetError:
        assert contents(folder) == before, what
        return True
    except JobError:  # what cannot be run here
        assert what[0][-1] in NAMED, what
        assert contents(folder) == before, what
        return True
    assert not (folder / "shards/000099").exists()
    torn(folder)
    return False


def test_overwriting_removes_the_manifest_from_the_disk_before_the_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a")
    made: list[str] = []

    def noted(name: str, real: Any) -> Any:
        def call(*args: Any, **folder: int) -> Any:
            made.append(f"{name} {args[0]}" if isinstance(args[0], str) else name)
            return real(*args, **folder)

        return call

    for name in ("unlink", "fsync", "rmdir"):
        monkeypatch.setattr(safe_folder, name, noted(name, getattr(safe_folder, name)))
    StoreWriter(tmp_path / "a", json.loads((tmp_path / "a/dataset.json").read_text()), overwrite=True).close()
    assert made[:3] == ["unlink manifest.jsonl", "fsync", "unlink action.npy"]
    removed = [each for each in made if each.startswith("unlink")]
    assert removed[-1] == "unlink dataset.json"  # a second try still finds a data set
