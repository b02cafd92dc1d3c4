"""Untrusted folders: invalid content raises DatasetError before code runs, a link is followed or memory is allocated.

Writers change nothing outside of the folder, and nothing inside before all checks have passed.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector import Dataset, DatasetError, JobError, StoreWriter, resume_job, run_job
from tests.support import job_envs
from tests.support.backends import FULL
from tests.support.command_line import command
from tests.support.hostile import CORPUS, CORPUS_OF_TEXTS, lines_of, put_lines
from tests.support.stored import episode, files, head, text_episode, write

pytestmark = pytest.mark.usefixtures("no_fsync")
MOST = 32 * 2**20
JOB = job_envs.job(num_envs=2, episodes=40, shard_bytes=2000)
DROP = object()


@contextmanager
def at_most(nbytes: int) -> Iterator[None]:
    """Raise AssertionError if the block allocates more."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < nbytes
    finally:
        tracemalloc.stop()


# Reading


def read_all(folder: Path) -> None:
    """Whatever a data set can be asked for."""
    data = Dataset(folder)
    _ = data.observation_space, data.action_space, data.transitions()
    for found in (*data, *data.batches(4, seed=0, passes=1)):
        assert len(found)
    if problems := data.verify():
        raise DatasetError(problems[0])


QUICK = {
    "a_folder_beside_the_folder": "Expected `str` matching regex",
    "an_array_that_is_a_link": "is a link",
    "a_manifest_that_is_a_fifo": "is a FIFO",
    "a_wrong_hash": "does not match manifest",
    "more_steps_than_the_file_can_hold": "more than a file",
    "a_line_that_is_nested_deeply": "cannot be read",
    "a_tree_with_a_path": "obs is ../obs",
    "an_array_of_objects": "obs is |O",
    "offsets_beyond_the_end": "its offsets do not match",
    "another_episode_than_the_manifest_has": "its episodes do not match",
    "an_array_of_pickles": "obs is object (10,), expected float32 (10, 3)",
    "a_zip_bomb": "more than a file",
    "a_zip_bomb_within_the_rate_of_deflate": "but a compressed shard has at most",
    "a_compressed_array_that_grows": "is damaged, or larger than the layout",
    "a_file_with_a_path": "it has the files",
    "a_header_of_2_to_the_62": "expected float32 (10, 3)",
    "a_space_of_2_to_the_62": "Expected `int`",
    "a_head_of_large_spaces": "do not fit the observation space of the data set: obs is <f4 3, expected <f4 16777216",
}
"""One of the corpus for each check, and what is said: a later check would refuse most of them too."""
DAMAGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    **{name: ("plain", change, QUICK.get(name, "")) for name, change in CORPUS.items()},
    **{name: ("texts", change, says) for name, (change, says) in CORPUS_OF_TEXTS.items()},
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    write(folder / "plain", [(0, 2), (3, 1, 5, 4)])
    write(folder / "compressed", [(0, 2), (3, 1)], compress=True)
    write(folder / "texts", [(0, 2), (3, 1)], make=text_episode)
    return folder


@pytest.mark.guarantee("G12.2")
@pytest.mark.parametrize(
    "names",
    [[*QUICK, *CORPUS_OF_TEXTS], pytest.param(sorted(CORPUS.keys() - QUICK), marks=FULL)],
    ids=["each check", "all"],
)
def test_a_damaged_folder_is_refused(names: Sequence[str], good: Path, tmp_path: Path) -> None:
    for kind in ("plain", "texts"):
        read_all(good / kind)
    for number, name in enumerate(names):
        kind, change, says = DAMAGES[name]
        folder = Path(shutil.copytree(good / kind, tmp_path / str(number) / "a"))
        change(folder)
        # 256 MB is what a line of the manifest may have, and a sparse file of zeros has no line end.
        with at_most(2**30 if "sparse_manifest" in name else MOST), pytest.raises(DatasetError) as refused:
            read_all(folder)
        assert str(folder) in str(refused.value), name
        assert says in str(refused.value), name
        assert not (folder.parent / "canary").exists(), name


def mutate(folder: Path, draws: list[tuple[int, int, int, bytes]]) -> None:
    paths = [folder / name for name in files(folder)]
    for which, place, count, data in draws:
        path = paths[which % len(paths)]
        content = bytearray(path.read_bytes())
        at = place % (len(content) + 1)
        content[at : at + count] = data
        path.write_bytes(bytes(content))


CHANGES = st.lists(
    st.tuples(st.integers(0, 99), st.integers(0, 2**16), st.integers(0, 8), st.binary(max_size=8)),
    min_size=1,
    max_size=4,
)


def fuzz_once(good: Path, folder: Path, draws: Any, known: bool, kind: str) -> None:
    """A mutated data set gives episodes, or DatasetError; `known`: as if its hashes were right."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(good / kind, folder)
    before = {path: path.read_bytes() for path in folder.glob("shards/*/*")}
    mutate(folder, draws)
    if known:
        manifest = (folder / "manifest.jsonl").read_bytes()
        for path, old in before.items():
            new, name = path.read_bytes(), path.name.encode()
            manifest = manifest.replace(sha256(old).hexdigest().encode(), sha256(new).hexdigest().encode())
            manifest = manifest.replace(b'"%s": [%d,' % (name, len(old)), b'"%s": [%d,' % (name, len(new)))
        (folder / "manifest.jsonl").write_bytes(manifest)
    with suppress(DatasetError):
        read_all(folder)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("examples", [pytest.param(60, marks=FULL), pytest.param(3000, marks=pytest.mark.slow)])
def test_a_mutated_folder_is_read_or_refused(examples: int, good: Path, tmp_path: Path) -> None:
    @given(CHANGES, st.booleans(), st.sampled_from(["plain", "compressed", "texts"]))
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    def mutate_and_read(draws: Any, known: bool, kind: str) -> None:
        fuzz_once(good, tmp_path / "mutated", draws, known, kind)

    mutate_and_read()


@pytest.mark.guarantee("G12.3")
def test_a_line_that_names_large_spaces_takes_no_memory(tmp_path: Path) -> None:
    box = {"type": "Box", "dtype": "<f4", "shape": [2**24], "low": 0, "high": 1}
    named = {**head(), "observation_space": {"type": "Dict", "spaces": dict.fromkeys("abcd", box)}}
    (tmp_path / "dataset.json").write_text(json.dumps(named))
    with at_most(4 * 2**20):
        space = Dataset(tmp_path).observation_space
    assert [part.shape for part in space.values()] == [(2**24,)] * 4


# Writing


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job that was stopped, with some shards."""

    folder = tmp_path_factory.mktemp("stopped") / "a"
    job_envs.stopped(run_job, JOB, folder, on_progress=job_envs.stop_at(10))
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
QUICK_LINKS = ("shards/000000", "dataset.json", "manifest.jsonl.partial", "writer.lock")
FIFOS = ("writer.lock", "metrics.jsonl", "shards/000099")
LINKS = (
    *("shards", "shards/000000/obs.npy", "shards/000099", "shards/000000/more/deep", "manifest.jsonl"),
    *("metrics.jsonl", "statistics.json", "returns.png", "videos", "tensorboard/events"),
)
LOOKS = {"metrics.jsonl": "info", "returns.png": "plot", "videos": "video"}
"""Files and folders, each with the command that looks at it."""


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


@pytest.mark.guarantee("G12.2")
@pytest.mark.usefixtures("fonts")
@pytest.mark.parametrize(
    ("kind", "names"), [("link", QUICK_LINKS), ("FIFO", FIFOS), pytest.param("link", LINKS, marks=FULL)]
)
def test_a_link_or_a_fifo_is_named_and_nothing_is_changed(
    kind: str, names: tuple[str, ...], stopped: Path, tmp_path: Path
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
        if word := LOOKS.get(name):
            done = command(word, folder)
            assert (done.code, f"a/{name} is a {kind}" in done.error) == (1, True)
        assert contents(folder.parent) == before, name


@FULL
def test_folders_without_end_are_refused(folder: Path) -> None:
    (folder / "videos" / "/".join("x" * 500)).mkdir(parents=True)
    with pytest.raises(DatasetError, match="is nested deeper than"):
        resume_job(folder)


def test_a_link_that_comes_while_a_writer_is_open(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "c", head()) as writer:
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


def test_the_path_of_a_data_set_may_lead_through_links(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert resume_job(tmp_path / "link").status == "complete"
    assert Dataset(tmp_path / "link").verify() == []


@pytest.mark.usefixtures("unplayed")
def test_numbers_that_no_episode_can_have_take_no_memory(folder: Path) -> None:
    lines = lines_of(folder)
    for wanted in ({}, {"episodes": 2**50}, {"episodes": None, "steps": 9000}):
        for key, value in wanted.items():
            edit_head(folder, ("job", key), value)
        put_lines(folder, lines)
        with at_most(4 * 2**20):
            resume_job(folder)
        for number in (2**50, 2**53 - 1):
            for changed in (
                [*lines[:-1], {**lines[-1], "episodes": [number, *lines[-1]["episodes"][1:]]}],
                [*lines, {"line": "note", "state": {"skipped": [number]}}],
            ):
                put_lines(folder, changed)
                before = contents(folder)
                with (
                    at_most(4 * 2**20),
                    pytest.raises(DatasetError, match=f"manifest.jsonl: it has episode {number}, and the numbers"),
                ):
                    resume_job(folder)
                assert contents(folder) == before


NAMED = ("env", "env_kwargs", "policy", "policy_kwargs", "wrappers", "transforms", "checkpoint", "device")
"""Settings for what may not be installed here."""
VALUES = (DROP, None, [[]], {"a": {"b": 1}}, "[/x]\x1b[2J", -1, 2**70)


@FULL
@pytest.mark.guarantee("G12.4")
@pytest.mark.usefixtures("unplayed")
def test_each_entry_of_the_head_is_checked_before_anything_is_changed(folder: Path) -> None:
    torn(folder)
    before, refused, shown = (folder / "dataset.json").read_text(), 0, ""
    head, inner = json.loads(before), ("job", "observation_space", "versions", "ran_on")
    for keys in [*((key,) for key in head), *((key, below) for key in inner for below in head[key])]:
        for value in VALUES:
            edit_head(folder, keys, value, before)
            refused += is_refused(folder, keys, value)
            shown += "".join(command("info", folder)[1:])  # the numbers of any head can be printed
    assert refused > 150
    assert "[/x]\N{REPLACEMENT CHARACTER}[2J" in shown
    assert "\x1b" not in shown


@FULL
@pytest.mark.guarantee("G12.4")
@pytest.mark.usefixtures("unplayed")
def test_each_entry_of_the_manifest_is_checked_before_anything_is_changed(folder: Path) -> None:
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
