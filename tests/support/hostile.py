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
CORPUS: dict[str, Callable[[Path], object]] = {}


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


def header(text: str) -> bytes:
    body = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(body)) + body


# Names of files


def _name(name: Any) -> Callable[[Path], object]:
    return lambda folder: edit(folder, shard=name)


NAMES = {
    "a_folder_beside_the_folder": "../x",
    "a_name_with_a_line_end": "shards/000000\n",
    "the_manifest_as_a_shard": "manifest.jsonl",
}
CORPUS.update({name: _name(value) for name, value in NAMES.items()})


def _link(name: str) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        (folder / name).rename(folder.parent / "elsewhere")
        (folder / name).symlink_to(folder.parent / "elsewhere")

    return make


def _fifo(name: str) -> Callable[[Path], object]:
    return lambda folder: ((folder / name).unlink(), os.mkfifo(folder / name))


def _sparse(name: str) -> Callable[[Path], object]:
    return lambda folder: os.truncate(folder / name, 2**40)


OBS = f"{SHARD}/obs.npy"
CORPUS |= {
    "an_array_that_is_a_link": _link(OBS),
    "a_shard_that_is_a_link": _link(SHARD),
    "a_manifest_that_is_a_link": _link("manifest.jsonl"),
    "a_head_that_is_a_link": _link("dataset.json"),
    "an_array_that_is_a_fifo": _fifo(OBS),
    "a_manifest_that_is_a_fifo": _fifo("manifest.jsonl"),
    "an_array_that_is_a_folder": lambda folder: ((folder / OBS).unlink(), (folder / OBS).mkdir()),
    "an_array_that_is_missing": lambda folder: (folder / OBS).unlink(),
    "a_shard_that_is_missing": lambda folder: (folder / SHARD).rename(folder / "shards/000009"),
    "a_shard_that_is_a_file": lambda folder: (
        (folder / SHARD).rename(folder / "shards/000009"),
        (folder / SHARD).write_bytes(b"x"),
    ),
    "a_sparse_head_of_a_terabyte": _sparse("dataset.json"),
    "a_sparse_manifest_of_a_terabyte": _sparse("manifest.jsonl"),
    "a_sparse_array": _sparse(OBS),
}

# Lines of the manifest

LINES: dict[str, dict[str, Any]] = {
    "steps_that_are_not_those_of_the_lengths": {"steps": 7},
    "more_steps_than_the_file_can_hold": {"steps": 2**40, "lengths": [2**40 - 1, 1]},
    "a_negative_length": {"lengths": [9, -1]},
    "a_length_of_nothing": {"lengths": [8, 0]},
    "no_episodes": {"episodes": [], "lengths": [], "returns": [], "steps": 0},
    "an_episode_twice": {"episodes": [0, 0]},
    "another_number": {"episodes": [0, 9]},
    "failures_below_zero": {"failed": {"env": -1}},
    "a_line_of_another_kind": {"line": "__class__"},
    "a_key_that_is_unknown": {"pickle": "cos\nsystem\n"},
}
CORPUS |= {name: (lambda folder, changes=changes: edit(folder, **changes)) for name, changes in LINES.items()}


def _text(old: str, new: str, name: str = "manifest.jsonl") -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return make


TEXTS = {
    "a_return_that_is_nan": ('"returns": [', '"returns": [NaN, '),
    "a_line_that_is_nested_deeply": ('{"line": "shard"', "[" * 100_000 + '{"line": "shard"'),
    "a_line_that_is_a_list": ('{"line": "end", "episodes": 6}', "[1, 2]"),
    "an_end_that_is_none": ('"episodes": 6}', '"episodes": 6, "status": "perhaps"}'),
    "a_line_after_the_end": ('"episodes": 6}\n', '"episodes": 6}\n{"line": "note", "failed": {"env": 1}}\n'),
}
CORPUS |= {name: _text(*pair) for name, pair in TEXTS.items()}


CORPUS |= {
    "a_shard_twice": lambda folder: put_lines(
        folder, [*(lines := lines_of(folder))[:2], {**lines[1], "episodes": [7, 8]}, *lines[2:]]
    ),
    "no_layout": lambda folder: put_lines(folder, lines_of(folder)[1:]),
    "two_layouts": lambda folder: put_lines(folder, [lines_of(folder)[0], *lines_of(folder)]),
    "a_manifest_that_is_no_utf_8": lambda folder: (folder / "manifest.jsonl").write_bytes(b'{"line": "\xff"}\n'),
}

FILES: dict[str, Any] = {
    "a_wrong_hash": [248, "0" * 64],
    "a_size_that_is_too_small": [7, "0" * 64],
}
CORPUS |= {name: (lambda folder, value=value: edit_file(folder, "obs.npy", value)) for name, value in FILES.items()}
CORPUS |= {
    "a_file_with_a_path": lambda folder: edit_file(folder, "../../x.npy", [1, "0" * 64]),
    "a_file_less": lambda folder: edit(
        folder, files={name: each for name, each in lines_of(folder)[1]["files"].items() if name != "obs.npy"}
    ),
}

# The layout

DEEP: Any = "<f4 3"
for _ in range(500):
    DEEP = [DEEP]
LAYOUTS: dict[str, dict[str, Any]] = {
    "an_array_of_objects": {"obs": "|O 3"},
    "a_shape_that_overflows": {"obs": f"<f4 {2**31} {2**31} {2**31}"},
    "a_shape_that_is_negative": {"obs": "<f4 -3"},
    "another_dtype": {"obs": "<i4 3"},
    "rewards_that_are_a_tree": {"reward": ["<f8"]},
    "an_array_that_no_file_has": {"obs": ["<f4 3", "<f4 3"]},
    "a_tree_that_is_deep": {"obs": DEEP},
    "a_tree_with_a_path": {"obs": "../obs"},
    "infos_that_no_file_has": {"info": {"a": "<f8"}},
    "an_info_of_objects": {"info": {"a": "|O"}},
}
CORPUS |= {name: (lambda folder, changes=changes: edit_layout(folder, **changes)) for name, changes in LAYOUTS.items()}


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
    "an end below zero": (_texts("obs.0", lambda a: _changed(a, 0, -1)), "do not increase from 0"),
    "ends that overflow": (_texts("obs.0", lambda a: _changed(_changed(a, 0, 2**63 - 1), 1, -(2**63))), "do not incr"),
    "an end beyond the bytes": (_texts("obs.0", lambda a: _changed(a, -1, a[-1] + 1)), "from 0 to its 42 bytes"),
    "bytes without a text": (_texts("obs.0", lambda a: _changed(a, -1, a[-2])), "from 0 to its 42 bytes"),
    "an end within a character": (_texts("action", lambda a: _changed(a, 2, 5)), "a text in action is not UTF-8"),
    "bytes that are not UTF-8": (_texts("obs.0.utf8", lambda a: _changed(a, 0, 255)), "a text in obs.0 is not UTF-8"),
    "a surrogate": (
        _texts("obs.0.utf8", lambda a: _changed(_changed(_changed(a, 0, 0xED), 1, 0xA0), 2, 0x80)),
        "not UTF-8",
    ),
    "fewer bytes than the manifest has": (_texts("action.utf8", lambda a: a[:-1]), "action.utf8 is uint8 (40,)"),
    "more bytes than the file can hold": (_text_bytes(action=2**40), "more than a file action.utf8"),
    "no count of bytes": (lambda folder: edit(folder, text_bytes={}), "it has the texts [], expected ['obs.0'"),
    "a count of other bytes": (_text_bytes(seed=3), "it has the texts"),
    "a count below zero": (_text_bytes(action=-3), "Expected `int` >= 0"),
    "ends that are too few": (_texts("obs.0", lambda a: a[:-1]), "obs.0 is int64 (9,)"),
    "ends of floats": (_texts("obs.0", lambda a: a.astype(float)), "obs.0 is float64"),
    "texts with a shape": (lambda folder: edit_layout(folder, action="text 3"), "action is text; only"),
    "texts instead of numbers": (
        lambda folder: edit_layout(folder, obs={"say": "text", "x": "text"}),
        "it has the texts",
    ),
    "compressed texts that grow": (lambda folder: _compressed_texts(folder, 700), "action.utf8 is damaged, or larger"),
    "a zip bomb of texts": (lambda folder: _compressed_texts(folder, 2**33), "more than a file action.utf8"),
}


# Arrays of a shard

ARRAYS: dict[str, dict[str, Callable[[np.ndarray], Any]]] = {
    "offsets_beyond_the_end": {"offsets": lambda a: np.array([0, 5, 2**40])},
    "another_episode_than_the_manifest_has": {"episode": lambda a: np.array([0, 7])},
    "a_seed_below_minus_one": {"seed": lambda a: np.array([-2, 0])},
    "a_reward_that_is_nan": {"reward": lambda a: np.where(np.arange(8) == 3, np.nan, a)},
    "an_episode_that_is_over_twice": {"terminated": lambda a: np.ones(8, np.bool_)},
    "flags_of_other_bytes": {"truncated": lambda a: (a.view(np.uint8) * 2).view(np.bool_)},
    "fewer_observations": {"obs": lambda a: a[:-1]},
}
CORPUS |= {name: (lambda folder, changes=changes: edit_arrays(folder, **changes)) for name, changes in ARRAYS.items()}


# Files of arrays


def _file(change: Callable[[bytes], bytes], name: str = "obs.npy") -> Callable[[Path], object]:
    return lambda folder: put_file(folder, name, change((folder / SHARD / name).read_bytes()))


def _compressed(obs: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda folder: compressed(folder, obs)


def zipped(data: bytes) -> bytes:
    file = io.BytesIO()
    np.savez(file, obs=np.frombuffer(data, np.uint8))
    return file.getvalue()


CORPUS |= {
    "an_array_that_is_no_npy_file": _file(lambda data: b"PK\x05\x06".ljust(5000, b"\0")),
    "an_array_that_is_a_zip_file": _file(zipped),
    "an_array_with_more_behind_it": _file(lambda data: data + bytes(4)),
    "a_pickle_as_an_array": lambda folder: put_file(folder, "obs.npy", pickle.dumps(Canary(folder.parent / "canary"))),
    "a_compressed_array_with_a_wrong_checksum": _compressed(
        lambda data: gzip.compress(data)[:-8] + bytes(4) + gzip.compress(data)[-4:]
    ),
    "a_compressed_array_that_ends_early": _compressed(lambda data: gzip.compress(data)[:-9]),
    "a_compressed_array_that_grows": _compressed(lambda data: gzip.compress(data + bytes(2**26))),
    "a_zip_bomb": lambda folder: compressed(folder, steps=2**40, lengths=[2**40 - 3, 3]),
}


def an_array_of_pickles(folder: Path) -> None:
    array = np.empty(10, object)
    array[:] = [Canary(folder.parent / "canary")] * 10
    put_file(folder, "obs.npy", npy(array, allow_pickle=True))


def a_zip_bomb_within_the_rate_of_deflate(folder: Path) -> None:
    """The shard declares 10 GB, and is as large as the best compression would need."""
    put_lines(folder, lines_of(folder)[:2])
    edit_layout(folder, obs=f"<f4 {2**28}")
    _head(observation_space=None)(folder)
    compressed(folder)
    os.truncate(folder / SHARD / "obs.npy.gz", 2**34)
    edit_file(folder, "obs.npy.gz", [2**34, "0" * 64])


CORPUS |= {make.__name__: make for make in (an_array_of_pickles, a_zip_bomb_within_the_rate_of_deflate)}

HEADERS = {
    "a_header_of_2_to_the_62": "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 3)}",
    "a_header_with_a_call": "{'descr': __import__('os').getcwd(), 'fortran_order': False, 'shape': (10, 3)}",
    "a_header_that_is_nested": "(" * 110,
    "a_header_in_fortran_order": "{'descr': '<f4', 'fortran_order': True, 'shape': (10, 3)}",
}
CORPUS |= {
    name: (lambda folder, text=text: put_file(folder, "obs.npy", header(text) + bytes(120)))
    for name, text in HEADERS.items()
}


# The head


def _head(**changes: Any) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        head = json.loads((folder / "dataset.json").read_text())
        (folder / "dataset.json").write_text(json.dumps({**head, **changes}))

    return make


BOX = {"type": "Box", "dtype": "<f4", "shape": [3], "low": -1.0, "high": 1.0}
CORPUS |= {
    "a_head_of_large_spaces": _head(
        observation_space={"type": "Box", "dtype": "<f4", "shape": [2**24], "low": -1.0, "high": 1.0}
    ),
    "a_head_of_another_format": _head(format="cooking recipes"),
    "a_head_of_a_later_version": _head(version=4),
    "a_job_that_is_a_list": _head(job=[1]),
    "a_space_of_another_type": _head(observation_space={"type": "os.system"}),
    "a_space_of_2_to_the_62": _head(observation_space={**BOX, "shape": [2**62]}),
    "a_space_without_elements": _head(action_space={"type": "Discrete", "n": 0, "start": 0, "dtype": "<i8"}),
    "a_space_of_many_bits": _head(action_space={"type": "MultiBinary", "n": 2**40}),
    "a_head_with_nan": _text('"seed": 0', '"seed": NaN', "dataset.json"),
    "a_head_that_is_deep": _text('"seed": 0', '"seed": ' + "[" * 10**5, "dataset.json"),
}
