"""The disk fails, or the writer's process is killed: the data set is readable, and has all committed episodes."""

from __future__ import annotations

import errno
import shutil
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from collector import Dataset, DatasetError, StoreWriter
from collector.store import safe_folder
from tests.support.backends import FULL
from tests.support.stored import assert_same, episode, head, write

CALLS = ("write", "fsync", "rename", "truncate", "unlink", "mkdir")
SHARDS = ((0, 2), (3, 1), (5, 4))

pytestmark = pytest.mark.usefixtures("no_fsync")


def collect(folder: Path, committed: Callable[[list[int]], object], attempts: int = 1, part: str = "") -> None:
    """A small job: shard after shard of what is not there yet; with `part` another writer fills them there."""
    with StoreWriter(folder, head(), resume=True) as writer:
        if writer.manifest.end is not None:
            return
        for numbers in SHARDS:
            missing = [number for number in numbers if number not in writer.committed]
            if part and missing:
                with StoreWriter(folder / part, head()) as other:
                    other.add([episode(number) for number in missing])
                    other.commit()
                    writer.adopt(part)
                writer.opened.remove(part)
            else:
                writer.add([episode(number) for number in missing])
            for attempt in range(attempts):
                try:
                    writer.commit(state=list(numbers))
                    break
                except DatasetError:
                    if attempt == attempts - 1:
                        raise
            committed(missing)
        writer.end()


def half(data: Any) -> bytes:
    """The first half of what a call of `write` is to write."""
    content = b"".join(data) if isinstance(data, list) else bytes(data)
    return content[: len(content) // 2]


@contextmanager
def every_call(act: Callable[[int, str, Any, tuple[Any, ...]], Any]) -> Iterator[list[str]]:
    """Inside the block `act` makes the system calls of the store: it gets number, name, function and arguments."""
    made: list[str] = []

    def replaced(name: str, real: Any) -> Any:
        def call(*args: Any, **folder: int) -> Any:
            made.append(name)
            return act(len(made) - 1, name, partial(real, **folder), args)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(safe_folder, name, replaced(name, getattr(safe_folder, name)))
        yield made


def calls_of_a_job(folder: Path, part: str = "") -> list[str]:
    with every_call(lambda _, name, real, args: real(*args)) as made:
        collect(folder, lambda numbers: None, part=part)
    return made


def full(*_: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def assert_readable(folder: Path, at_least: list[int], at_most: list[int] | None = None) -> None:
    """Every committed episode is there, with every bit, and none is there twice."""
    if not (folder / "dataset.json").exists():
        assert at_least == []
        return
    data = Dataset(folder)
    numbers = data.numbers.tolist()
    assert set(at_least) <= set(numbers) <= set(range(6) if at_most is None else at_most)
    for found in data:
        assert_same(found, episode(found.number))
    assert data.verify() == []


def assert_finished(folder: Path) -> None:
    collect(folder, lambda numbers: None)
    assert_readable(folder, list(range(6)))
    data = Dataset(folder)
    assert data.complete
    assert data.numbers.tolist() == list(range(6))
    listed = {str(folder / name) for name in data.shard_files}
    assert {str(path) for path in (folder / "shards").iterdir()} == listed


def chosen(calls: list[str]) -> list[int]:
    """Return the numbers of some calls: a shard has a file for each array, and all are written alike."""
    return [number for number, name in enumerate(calls) if name not in ("write", "fsync") or number % 7 == 0]


def interrupt(*_: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.guarantee("G12.1")
@pytest.mark.parametrize(
    ("fail", "how"), [(full, "before"), (full, "half"), (full, "retried"), (interrupt, "before"), (interrupt, "after")]
)
def test_each_system_call_fails_or_is_interrupted_once(fail: Any, how: str, tmp_path: Path) -> None:
    """The job then stops, unless its writer commits again (`retried`)."""
    calls = calls_of_a_job(tmp_path / "whole")
    assert len(calls) > 25
    begin, end = 0, len(calls)
    if how == "retried":  # only commits are tried again: not the head before them, nor the end
        begin, end = calls.index("mkdir", calls.index("rename")), end - 4
    for failing in (number for number in chosen(calls) if begin <= number < end):
        folder = tmp_path / str(failing)
        committed: list[int] = []

        def act(number: int, name: str, real: Any, args: Any, failing: int = failing) -> Any:
            if number != failing:
                return real(*args)
            if how in ("half", "after"):  # half of a write, or all of another call, is done before it fails
                real(args[0], half(args[1])) if (how, name) == ("half", "write") else real(*args)
            return fail()

        with every_call(act), suppress(*([] if how == "retried" else [DatasetError, KeyboardInterrupt])):
            collect(folder, committed.extend, attempts=1 + (how == "retried"))
        if how == "retried":
            assert sorted(committed) == list(range(6))
            assert Dataset(folder).complete
        # A line may have been written before its flush failed, and could not be removed again.
        assert_readable(folder, committed)
        assert_finished(folder)


def test_all_that_is_written_is_flushed_before_anything_is_renamed_or_named(tmp_path: Path) -> None:
    calls = calls_of_a_job(tmp_path)
    for number, name in enumerate(calls):
        if name == "write":
            assert next(each for each in calls[number:] if each != "write") == "fsync"


def test_a_writer_that_does_not_know_what_is_on_the_disk_does_not_go_on(tmp_path: Path) -> None:
    def broken(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with StoreWriter(tmp_path, head()) as writer:
        writer.add(episode(0))
        writer.commit()
        writer.add(episode(1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                safe_folder.SafeFolder,
                "create",
                lambda folder, name, data: (folder.path / name).write_bytes(b"".join(data)),
            )
            for name in ("write", "truncate"):
                patch.setattr(safe_folder, name, broken)
            with pytest.raises(DatasetError, match="Input/output error; the 1 episodes committed"):
                writer.commit()
        with pytest.raises(DatasetError, match=r"cannot continue: .*resume with a new writer"):
            writer.commit()
    assert_readable(tmp_path, [0], [0])


def test_the_error_of_a_failed_commit_may_be_freed_in_a_garbage_cycle(tmp_path: Path) -> None:
    """CPython 3.12 crashes if a garbage cycle, such as one with a traceback, holds a view of an `io.BytesIO`."""
    with pytest.MonkeyPatch.context() as patch, StoreWriter(tmp_path, head()) as writer:
        writer.add(episode(0))
        patch.setattr(safe_folder, "write", full)
        with pytest.raises(DatasetError) as caught:
            writer.commit()
        patch.undo()
    errors = [caught.value, *filter(None, (caught.value.__cause__, caught.value.__context__))]
    frames = [frame for error in errors for frame, _ in traceback.walk_tb(error.__traceback__)]
    held = [value for frame in frames for value in frame.f_locals.values()]
    assert any(frame.f_code.co_name == "write_shard" for frame in frames)
    assert not [value for value in held if isinstance(value, memoryview)]


Kept = list[tuple[Path, list[int]]]


def kept_after_each_call(folder: Path, run: Callable[[Path, Any], object] = collect) -> Kept:
    """Run a job. Return copies of its folder, and which episodes it had reported as committed.

    There is a copy after each system call, and within the writes of the manifest: a kill leaves this on the disk.
    """
    kept, committed = Kept(), list[int]()

    def keep() -> None:
        copy = folder.parent / f"{folder.name}-{len(kept)}"
        kept.append((Path(shutil.copytree(folder, copy)), [*committed]))

    def act(number: int, name: str, real: Any, args: Any) -> Any:
        if name == "write" and (line := half(args[1])).startswith(b'{"line"'):
            real(args[0], line)
            keep()
            args = (args[0], bytes(args[1])[len(line) :])
        result = real(*args)
        keep()
        return result

    with every_call(act):
        run(folder, committed.extend)
    return kept


@FULL
@pytest.mark.guarantee("G12.1")
@pytest.mark.parametrize(("part", "resumes"), [("", False), ("shards/w001", False), ("", True)])
def test_a_kill_at_any_system_call_loses_no_committed_episode(part: str, resumes: bool, tmp_path: Path) -> None:
    """Also a kill of the job that resumes after a kill."""
    kept, before = kept_after_each_call(tmp_path / "a", partial(collect, part=part)), list[int]()
    assert len(kept[-1][1]) == 6
    if resumes:
        folder = next(folder for folder, committed in kept if len(committed) == 2)
        with open(folder / "manifest.jsonl", "ab") as file:
            file.write(b'{"line": "shard", "shard": "sha')
        (folder / "shards/000009").write_bytes(b"without a line")
        before = Dataset(folder).numbers.tolist()
        kept = kept_after_each_call(folder)
    for folder, committed in kept:
        assert_readable(folder, [*before, *committed])
        assert_finished(folder)


def test_a_kill_of_an_overwrite_mixes_no_episodes(tmp_path: Path) -> None:
    """Other files of jobs stay, and the folder can be overwritten again."""
    folder = write(tmp_path / "a")
    (folder / "job.toml").write_text("seed = 3")
    kept = kept_after_each_call(folder, lambda folder, committed: write(folder, [(7,)], overwrite=True))
    assert kept
    for killed, _ in kept:
        if (killed / "dataset.json").exists():
            assert Dataset(killed).numbers.tolist() in ([*range(6)], [], [7])
            assert Dataset(killed).verify() == []
        assert Dataset(write(killed, [(8,)], overwrite=True)).numbers.tolist() == [8]
        assert (killed / "job.toml").read_text() == "seed = 3"
