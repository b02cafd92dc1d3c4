"""Invalid data sets. Each entry changes a valid folder so that it is invalid but looks valid."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SHARD = "shards/000000"


class Canary:
    """Object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def lines_of(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]


def put_lines(folder: Path, lines: list[Any]) -> None:
    (folder / "manifest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def edit(folder: Path, which: int = 1, **changes: Any) -> None:
    """Change a line of the manifest: 0 is the layout, 1 and 2 are shards, 3 is the end."""
    lines = lines_of(folder)
    lines[which].update(changes)
    put_lines(folder, lines)


def edit_layout(folder: Path, **changes: Any) -> None:
    edit(folder, 0, **changes)


def put_file(folder: Path, name: str, data: bytes) -> None:
    """Replace a file of the first shard, and put its size and hash into the manifest."""
    (folder / SHARD / name).write_bytes(data)
    edit_file(folder, name, [len(data), hashlib.sha256(data).hexdigest()])


def edit_file(folder: Path, name: str, size_and_hash: Any) -> None:
    edit(folder, files={**lines_of(folder)[1]["files"], name: size_and_hash})


def edit_arrays(folder: Path, **changes: Any) -> None:
    for name, change in changes.items():
        put_file(folder, f"{name}.npy", npy(change(np.load(folder / SHARD / f"{name}.npy"))))


def npy(array: np.ndarray, **options: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, **options)
    return file.getvalue()


def compressed(folder: Path, obs: Callable[[bytes], bytes] = gzip.compress, **changes: Any) -> None:
    """Compress the first shard; `obs` compresses the observations."""
    edit(folder, files={}, compressed=True, **changes)
    for path in (folder / SHARD).iterdir():
        put_file(folder, f"{path.name}.gz", (obs if path.name == "obs.npy" else gzip.compress)(path.read_bytes()))


def link(folder: Path, name: str) -> None:
    """Move a file or folder elsewhere, and put a link in its place."""
    (folder / name).rename(folder.parent / "elsewhere")
    (folder / name).symlink_to(folder.parent / "elsewhere")


def fifo(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)


def nest_deeply(folder: Path) -> None:
    text = (folder / "manifest.jsonl").read_text()
    (folder / "manifest.jsonl").write_text(text.replace('{"line": "shard"', "[" * 100_000 + '{"line": "shard"', 1))


def repeat_shard(folder: Path) -> None:
    layout, shard, *others = lines_of(folder)
    put_lines(folder, [layout, shard, {**shard, "episodes": [7, 8]}, *others])


def put_space(folder: Path, **changes: Any) -> None:
    """Change the observation space in the head."""
    head = json.loads((folder / "dataset.json").read_text())
    box = {"type": "Box", "dtype": "<f4", "shape": [3], "low": -1.0, "high": 1.0}
    head["observation_space"] = {**box, **changes}
    (folder / "dataset.json").write_text(json.dumps(head))


def put_pickles(folder: Path) -> None:
    array = np.empty(10, object)
    array[:] = [Canary(folder.parent / "canary")] * 10
    put_file(folder, "obs.npy", npy(array, allow_pickle=True))


def put_header(folder: Path, text: str) -> None:
    """Replace the observations by a file with this header."""
    body = text.encode().ljust(117) + b"\n"
    put_file(folder, "obs.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(body)) + body + bytes(120))


def bomb_within_the_rate_of_deflate(folder: Path) -> None:
    """The shard declares 10 GB, and is as large as the best compression would need."""
    put_lines(folder, lines_of(folder)[:2])
    edit_layout(folder, obs=f"<f4 {2**28}")
    head = json.loads((folder / "dataset.json").read_text())
    (folder / "dataset.json").write_text(json.dumps({**head, "observation_space": None}))
    compressed(folder)
    os.truncate(folder / SHARD / "obs.npy.gz", 2**34)
    edit_file(folder, "obs.npy.gz", [2**34, "0" * 64])


OBS = f"{SHARD}/obs.npy"
HUGE = "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 3)}"
CALLS = "{'descr': __import__('os').getcwd(), 'fortran_order': False, 'shape': (10, 3)}"
CORPUS: dict[str, Callable[[Path], object]] = {
    # Names of files
    "a_folder_beside_the_folder": lambda folder: edit(folder, shard="../x"),
    "a_file_with_a_path": lambda folder: edit_file(folder, "../../x.npy", [1, "0" * 64]),
    "a_tree_with_a_path": lambda folder: edit_layout(folder, obs="../obs"),
    "an_array_that_is_a_link": lambda folder: link(folder, OBS),
    "a_shard_that_is_a_link": lambda folder: link(folder, SHARD),
    "a_manifest_that_is_a_fifo": lambda folder: fifo(folder, "manifest.jsonl"),
    "a_sparse_manifest_of_a_terabyte": lambda folder: os.truncate(folder / "manifest.jsonl", 2**40),
    "a_sparse_array": lambda folder: os.truncate(folder / OBS, 2**40),
    # Lines of the manifest, and the head
    "more_steps_than_the_file_can_hold": lambda folder: edit(folder, steps=2**40, lengths=[2**40 - 1, 1]),
    "a_line_that_is_nested_deeply": nest_deeply,
    "a_line_of_another_kind": lambda folder: edit(folder, line="__class__"),
    "a_shard_twice": repeat_shard,
    "no_layout": lambda folder: put_lines(folder, lines_of(folder)[1:]),
    "a_wrong_hash": lambda folder: edit_file(folder, "obs.npy", [248, "0" * 64]),
    "a_head_of_large_spaces": lambda folder: put_space(folder, shape=[2**24]),
    "a_space_of_2_to_the_62": lambda folder: put_space(folder, shape=[2**62]),
    # Arrays
    "an_array_of_objects": lambda folder: edit_layout(folder, obs="|O 3"),
    "offsets_beyond_the_end": lambda folder: edit_arrays(folder, offsets=lambda a: np.array([0, 5, 2**40])),
    "another_episode_than_the_manifest_has": lambda folder: edit_arrays(folder, episode=lambda a: np.array([0, 7])),
    "a_reward_that_is_nan": lambda folder: edit_arrays(folder, reward=lambda a: np.where(np.arange(8) == 3, np.nan, a)),
    "flags_of_other_bytes": lambda folder: edit_arrays(
        folder, truncated=lambda a: (a.view(np.uint8) * 2).view(np.bool_)
    ),
    "a_pickle_as_an_array": lambda folder: put_file(folder, "obs.npy", pickle.dumps(Canary(folder.parent / "canary"))),
    "an_array_of_pickles": put_pickles,
    "a_header_of_2_to_the_62": lambda folder: put_header(folder, HUGE),
    "a_header_with_a_call": lambda folder: put_header(folder, CALLS),
    "a_compressed_array_that_ends_early": lambda folder: compressed(folder, lambda data: gzip.compress(data)[:-9]),
    "a_compressed_array_that_grows": lambda folder: compressed(folder, lambda data: gzip.compress(data + bytes(2**26))),
    "a_zip_bomb": lambda folder: compressed(folder, steps=2**40, lengths=[2**40 - 3, 3]),
    "a_zip_bomb_within_the_rate_of_deflate": bomb_within_the_rate_of_deflate,
}
"""One or two entries for each check of a reader. Random bytes (tests/collector/store/test_untrusted.py) find others."""


# Texts: `change` of a data set of `stored.text_episode`, whose first shard has the texts obs.0 and action


def _texts(name: str, change: Callable[[np.ndarray], Any]) -> Callable[[Path], object]:
    return lambda folder: edit_arrays(folder, **{name: change})


def _text_bytes(**changes: int) -> Callable[[Path], object]:
    return lambda folder: edit(folder, text_bytes={**lines_of(folder)[1]["text_bytes"], **changes})


def _changed(array: np.ndarray, at: int, value: int) -> np.ndarray:
    array[at] = value
    return array


def _compressed_texts(folder: Path, count: int) -> None:
    edit(folder, text_bytes={**lines_of(folder)[1]["text_bytes"], "action": count})
    compressed(folder)
    put_file(folder, "action.utf8.npy.gz", gzip.compress(npy(np.zeros(2**23, np.uint8))))


CORPUS_OF_TEXTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "ends that fall": (_texts("obs.0", lambda a: _changed(a, 3, 0)), "the ends of the texts in obs.0 do not increase"),
    "ends that overflow": (_texts("obs.0", lambda a: _changed(_changed(a, 0, 2**63 - 1), 1, -(2**63))), "do not incr"),
    "an end beyond the bytes": (_texts("obs.0", lambda a: _changed(a, -1, a[-1] + 1)), "from 0 to its 42 bytes"),
    "an end within a character": (_texts("action", lambda a: _changed(a, 2, 5)), "a text in action is not UTF-8"),
    "a surrogate": (
        _texts("obs.0.utf8", lambda a: _changed(_changed(_changed(a, 0, 0xED), 1, 0xA0), 2, 0x80)),
        "not UTF-8",
    ),
    "fewer bytes than the manifest has": (_texts("action.utf8", lambda a: a[:-1]), "action.utf8 is uint8 (40,)"),
    "more bytes than the file can hold": (_text_bytes(action=2**40), "more than a file action.utf8"),
    "no count of bytes": (lambda folder: edit(folder, text_bytes={}), "it has the texts [], expected ['obs.0'"),
    "a count below zero": (_text_bytes(action=-3), "Expected `int` >= 0"),
    "ends that are too few": (_texts("obs.0", lambda a: a[:-1]), "obs.0 is int64 (9,)"),
    "texts with a shape": (lambda folder: edit_layout(folder, action="text 3"), "action is text; only"),
    "compressed texts that grow": (lambda folder: _compressed_texts(folder, 700), "action.utf8 is damaged, or larger"),
    "a zip bomb of texts": (lambda folder: _compressed_texts(folder, 2**33), "more than a file action.utf8"),
}
