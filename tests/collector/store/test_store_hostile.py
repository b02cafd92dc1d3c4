"""Invalid folders raise DatasetError before any code is run, link is followed or large memory is allocated."""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector import Dataset, DatasetError
from tests.support.backends import FULL
from tests.support.hostile import CORPUS, CORPUS_OF_TEXTS
from tests.support.stored import text_episode, write

pytestmark = pytest.mark.usefixtures("no_fsync")
MOST = 32 * 2**20


def read_all(folder: Path) -> None:
    """Whatever a data set can be asked for."""
    data = Dataset(folder)
    assert (data.observation_space, data.action_space) != (None, None)
    for _ in data:
        pass
    data.transitions()
    for _ in data.batches(4, seed=0, passes=1):
        pass
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


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    write(folder / "plain", [(0, 2), (3, 1, 5, 4)])
    write(folder / "compressed", [(0, 2), (3, 1)], compress=True)
    write(folder / "texts", [(0, 2), (3, 1)], make=text_episode)
    return folder


@pytest.mark.guarantee("G12.2")
@pytest.mark.parametrize("names", [[*QUICK], pytest.param(sorted(CORPUS.keys() - QUICK), marks=FULL)], ids=["", "all"])
def test_a_hostile_folder_is_refused(names: Sequence[str], good: Path, tmp_path: Path) -> None:
    read_all(good / "plain")
    for number, name in enumerate(names):
        folder = Path(shutil.copytree(good / "plain", tmp_path / str(number) / "a"))
        CORPUS[name](folder)
        tracemalloc.start()
        try:
            read_all(folder)
            refused = ""
        except DatasetError as error:
            refused = str(error)
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert str(folder) in refused, name
        assert QUICK.get(name, "") in refused, name
        # 256 MB is what a line of the manifest may have, and a sparse file of zeros has no line end.
        assert peak < (MOST if "sparse_manifest" not in name else 2**30), name
        assert not (folder.parent / "canary").exists(), name


@pytest.mark.parametrize("name", CORPUS_OF_TEXTS)
def test_hostile_texts_are_refused(name: str, good: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(good / "texts", tmp_path / "a"))
    change, message = CORPUS_OF_TEXTS[name]
    read_all(folder)
    change(folder)
    tracemalloc.start()
    try:
        with pytest.raises(DatasetError, match=message):
            read_all(folder)
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


def mutate(folder: Path, draws: list[tuple[int, int, int, bytes]]) -> None:
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "writer.lock")
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
            new = path.read_bytes()
            manifest = manifest.replace(sha256(old).hexdigest().encode(), sha256(new).hexdigest().encode())
            manifest = manifest.replace(
                b'"%s": [%d,' % (path.name.encode(), len(old)), b'"%s": [%d,' % (path.name.encode(), len(new))
            )
        (folder / "manifest.jsonl").write_bytes(manifest)
    try:
        data = Dataset(folder)
        for found in data:
            assert len(found) >= 1
        data.verify()
        for _ in data.batches(4, seed=0, passes=1):
            pass
    except DatasetError:
        pass


FUZZ = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


def fuzz(examples: int) -> Any:
    @given(CHANGES, st.booleans(), st.sampled_from(["plain", "compressed", "texts"]))
    @settings(max_examples=examples, **FUZZ)
    def test(good: Path, draws: Any, known: bool, kind: str) -> None:
        fuzz_once(good, good / "mutated", draws, known, kind)

    return test


test_a_mutated_folder_is_read_or_refused = FULL(fuzz(60))
test_so_are_many = pytest.mark.timeout(900)(pytest.mark.slow(fuzz(3000)))
