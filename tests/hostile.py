"""A corpus of folders that are no data sets, though they look like one: each entry makes one out of a good one."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from collector.store.files.shard_file import shard_bytes

SHARD = "shards/w000/000000.npz"
CORPUS: dict[str, Callable[[Path], object]] = {}


def hostile(make: Callable[[Path], object]) -> Callable[[Path], object]:
    CORPUS[make.__name__] = make
    return make


class Canary:
    """Pickled, it makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def lines_of(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]


def put_lines(folder: Path, lines: list[Any]) -> None:
    (folder / "manifest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def edit(folder: Path, which: int = 1, **changes: Any) -> None:
    """Change a line of the manifest: 0 is the layout, then two shards, then the end."""
    lines = lines_of(folder)
    lines[which].update(changes)
    put_lines(folder, lines)


def edit_layout(folder: Path, **changes: Any) -> None:
    lines = lines_of(folder)
    lines[0]["layout"].update(changes)
    put_lines(folder, lines)


def edit_column(folder: Path, name: str, column: Any) -> None:
    arrays = lines_of(folder)[0]["layout"]["arrays"]
    edit_layout(folder, arrays={**arrays, name: column})


def put_shard(folder: Path, data: bytes, **changes: Any) -> None:
    """Another first shard, with the size and the hash that the manifest then has."""
    (folder / SHARD).write_bytes(data)
    edit(folder, bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), **changes)


def arrays_of(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / SHARD) as arrays:
        return {name: arrays[name] for name in arrays.files}


def edit_arrays(folder: Path, **changes: Any) -> None:
    put_shard(folder, shard_bytes({**arrays_of(folder), **changes}).getvalue())


def zipped(members: list[tuple[str, bytes]], kind: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, data in members:
            info = zipfile.ZipInfo(name)
            info.compress_type = kind
            archive.writestr(info, data)
    return file.getvalue()


def members_of(folder: Path) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(folder / SHARD) as archive:
        return [(info.filename, archive.read(info)) for info in archive.infolist()]


def npy(array: np.ndarray, **options: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, **options)
    return file.getvalue()


def with_member(folder: Path, name: str, data: bytes) -> None:
    put_shard(folder, zipped([(each, data if each == f"{name}.npy" else old) for each, old in members_of(folder)]))


def header(text: str) -> bytes:
    body = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(body)) + body


# Names of files


def _name(name: Any) -> Callable[[Path], object]:
    return lambda folder: edit(folder, file=name)


NAMES = {
    "a_file_beside_the_folder": "../x.npz",
    "an_absolute_path_with_the_form_of_a_shard": "/shards/w000/000000.npz",
    "a_name_with_a_nul": "shards/w000/000000.npz\0",
    "a_name_with_a_line_end": "shards/w000/000000.npz\n",
    "a_name_in_other_digits": "shards/w000/" + "\N{ARABIC-INDIC DIGIT ZERO}" * 6 + ".npz",
    "a_backslash": "shards\\w000\\000000.npz",
    "a_name_that_is_a_list": ["shards/w000/000000.npz"],
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


CORPUS |= {
    "a_shard_that_is_a_link": _link(SHARD),
    "a_folder_that_is_a_link": _link("shards/w000"),
    "shards_that_are_a_link": _link("shards"),
    "a_manifest_that_is_a_link": _link("manifest.jsonl"),
    "a_head_that_is_a_link": _link("dataset.json"),
    "a_shard_that_is_a_fifo": _fifo(SHARD),
    "a_manifest_that_is_a_fifo": _fifo("manifest.jsonl"),
    "a_head_that_is_a_fifo": _fifo("dataset.json"),
    "a_shard_that_is_a_folder": lambda folder: ((folder / SHARD).unlink(), (folder / SHARD).mkdir()),
    "a_shard_that_is_missing": lambda folder: (folder / SHARD).unlink(),
    "a_sparse_head_of_a_terabyte": _sparse("dataset.json"),
    "a_sparse_manifest_of_a_terabyte": _sparse("manifest.jsonl"),
    "a_sparse_shard": _sparse(SHARD),
}

# Lines of the manifest

LINES: dict[str, dict[str, Any]] = {
    "steps_that_are_not_those_of_the_lengths": {"steps": 7},
    "more_steps_than_the_file_can_hold": {"steps": 2**40, "lengths": [2**40 - 1, 1]},
    "steps_of_2_to_the_62": {"steps": 2**62, "lengths": [2**62 - 1, 1]},
    "a_negative_length": {"lengths": [9, -1]},
    "a_length_of_nothing": {"lengths": [8, 0]},
    "lengths_in_another_order": {"lengths": [3, 5]},
    "lengths_that_overflow": {"lengths": [2**63, 2**63]},
    "lengths_of_1e400_digits": {"lengths": [10**400, 3]},
    "lengths_that_are_floats": {"lengths": [5.0, 3.0]},
    "lengths_that_are_bools": {"lengths": [True, True], "steps": 2},
    "fewer_lengths_than_episodes": {"lengths": [8]},
    "no_episodes": {"episodes": [], "lengths": [], "returns": [], "steps": 0},
    "a_negative_number": {"episodes": [-1, 2]},
    "an_episode_twice": {"episodes": [0, 0]},
    "an_episode_of_another_shard": {"episodes": [0, 3]},
    "another_number": {"episodes": [0, 9]},
    "episodes_that_are_text": {"episodes": ["0", "2"]},
    "returns_that_are_text": {"returns": ["1", "2"]},
    "returns_that_are_a_number": {"returns": 1.5},
    "a_wrong_hash": {"sha256": "0" * 64},
    "a_hash_that_is_none": {"sha256": "x" * 64},
    "a_hash_in_capitals": {"sha256": "A" * 64},
    "a_wrong_size": {"bytes": 7},
    "a_size_that_is_negative": {"bytes": -1},
    "a_size_that_is_true": {"bytes": True},
    "compressed_that_is_not": {"compressed": True},
    "compressed_that_is_a_number": {"compressed": 0},
    "failures_that_are_a_list": {"failed": [1]},
    "failures_below_zero": {"failed": {"env": -1}},
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
    "a_return_that_is_infinite": ('"returns": [2.5', '"returns": [1e999'),
    "a_key_twice": ('"steps": ', '"steps": 8, "steps": '),
    "a_line_that_is_nested_deeply": ('{"file"', "[" * 100_000 + '{"file"'),
    "a_line_that_is_no_json": ('{"file"', '{"file'),
    "a_line_that_is_a_list": ('{"end": "complete", "episodes": 6}', "[1, 2]"),
    "a_line_that_is_empty": ('{"end": "complete", "episodes": 6}', ""),
    "an_end_that_is_none": ('"end": "complete"', '"end": "perhaps"'),
    "an_end_of_a_negative_number": ('"episodes": 6}', '"episodes": -6}'),
    "an_end_of_many_digits": ('"episodes": 6}', '"episodes": ' + "9" * 100_000 + "}"),
    "a_line_after_the_end": ('"episodes": 6}\n', '"episodes": 6}\n{"failed": {"env": 1}}\n'),
    "a_manifest_in_utf_16": ('{"layout"', '\ufeff{"layout"'),
    "a_nul_in_the_manifest": ('{"layout"', '\0{"layout"'),
}
CORPUS |= {name: _text(*pair) for name, pair in TEXTS.items()}


@hostile
def a_shard_twice(folder: Path) -> None:
    lines = lines_of(folder)
    put_lines(folder, [*lines[:2], {**lines[1], "episodes": [7, 8]}, *lines[2:]])


CORPUS |= {
    "no_layout": lambda folder: put_lines(folder, lines_of(folder)[1:]),
    "two_layouts": lambda folder: put_lines(folder, [lines_of(folder)[0], *lines_of(folder)]),
    "a_manifest_that_is_no_utf_8": lambda folder: (folder / "manifest.jsonl").write_bytes(b'{"layout": "\xff"}\n'),
}

# The layout

COLUMNS: dict[str, tuple[str, Any]] = {
    "an_array_of_objects": ("obs", ["|O", [3]]),
    "an_array_of_records": ("obs", [[["a", "<f4"]], [3]]),
    "an_array_of_big_numbers": ("obs", [">f4", [3]]),
    "a_shape_of_2_to_the_62": ("obs", ["<f4", [2**62]]),
    "a_shape_that_overflows": ("obs", ["<f4", [2**31, 2**31, 2**31]]),
    "a_shape_that_is_negative": ("obs", ["<f4", [-3]]),
    "a_shape_that_is_a_float": ("obs", ["<f4", [3.0]]),
    "a_shape_of_many_dimensions": ("obs", ["<f4", [1] * 1000]),
    "another_shape": ("obs", ["<f4", [4]]),
    "another_dtype": ("obs", ["<i4", [3]]),
    "rewards_of_float32": ("reward", ["<f4", []]),
    "flags_that_are_bytes": ("terminated", ["|u1", []]),
    "an_array_that_no_tree_names": ("secret", ["<f4", []]),
    "a_column_that_is_null": ("obs", None),
}
CORPUS |= {
    name: (lambda folder, name=column, value=value: edit_column(folder, name, value))
    for name, (column, value) in COLUMNS.items()
}
TREES = {
    "a_tree_of_another_array": "reward",
    "a_tree_with_a_path": "../obs",
    "a_tree_of_numbers": [1, 2],
    "a_tree_that_names_an_array_twice": ["obs.0", "obs.0"],
    "a_tree_that_is_null": None,
}
CORPUS |= {name: (lambda folder, tree=tree: edit_layout(folder, obs=tree)) for name, tree in TREES.items()}


@hostile
def a_tree_that_is_deep(folder: Path) -> None:
    tree: Any = "obs.0"
    for _ in range(500):
        tree = [tree]
    edit_layout(folder, obs=tree)


# Arrays of a shard

ARRAYS: dict[str, Callable[[dict[str, np.ndarray]], dict[str, Any]]] = {
    "offsets_beyond_the_end": lambda a: {"offsets": np.array([0, 5, 2**40])},
    "more_offsets": lambda a: {"offsets": np.array([0, 5, 8, 8])},
    "another_episode_than_the_manifest_has": lambda a: {"episode": np.array([0, 7])},
    "a_seed_below_minus_one": lambda a: {"seed": np.array([-2, 0])},
    "an_env_below_zero": lambda a: {"env_id": np.array([-1, 0], np.int32)},
    "a_reward_that_is_nan": lambda a: {"reward": np.where(np.arange(8) == 3, np.nan, a["reward"])},
    "an_episode_that_is_over_twice": lambda a: {"terminated": np.ones(8, np.bool_)},
    "an_episode_that_is_not_over": lambda a: {"truncated": np.zeros(8, np.bool_)},
    "flags_of_other_bytes": lambda a: {"truncated": (a["truncated"].view(np.uint8) * 2).view(np.bool_)},
    "fewer_observations": lambda a: {"obs": a["obs"][:-1]},
    "an_array_more": lambda a: {"secret": np.zeros(3)},
}
CORPUS |= {name: (lambda folder, f=f: edit_arrays(folder, **f(arrays_of(folder)))) for name, f in ARRAYS.items()}


# The zip file


def _bytes(change: Callable[[bytearray, int], Any]) -> Callable[[Path], object]:
    """Change the bytes of the first shard, in place: it gets them and where the directory of the file begins."""

    def make(folder: Path) -> None:
        data = bytearray((folder / SHARD).read_bytes())
        change(data, data.find(b"PK\x01\x02"))
        put_shard(folder, bytes(data))

    return make


def _put(data: bytearray, at: int, new: bytes) -> None:
    data[at : at + len(new)] = new


def with_comment(data: bytearray, _: int) -> None:
    _put(data, len(data) - 2, struct.pack("<H", 4))
    data += b"PK\x05\x06"


def with_the_first_for_the_second(data: bytearray, first: int) -> None:
    _put(data, data.find(b"PK\x01\x02", first + 4) + 42, bytes(data[first + 42 : first + 46]))


def with_overlap(data: bytearray, first: int) -> None:
    """The directory says that the first array reaches into the second one."""
    for at in (first + 20, first + 24):
        _put(data, at, struct.pack("<L", 64 + int.from_bytes(data[at : at + 4], "little")))


CORPUS |= {
    "an_array_less": lambda folder: put_shard(folder, zipped(members_of(folder)[1:])),
    "a_shard_that_is_no_zip_file": lambda folder: put_shard(folder, b"PK\x05\x06".ljust(5000, b"\0")),
    "an_empty_shard": lambda folder: put_shard(folder, b""),
    "a_zip_file_with_a_comment": _bytes(with_comment),
    "a_member_that_is_encrypted": _bytes(lambda data, at: _put(data, at + 8, bytes([data[at + 8] | 1]))),
    "a_member_that_is_where_another_is": _bytes(with_the_first_for_the_second),
    "members_that_overlap": _bytes(with_overlap),
    "a_member_beyond_the_file": _bytes(lambda data, at: _put(data, at + 42, struct.pack("<L", 2**31))),
    "a_directory_of_a_gigabyte": _bytes(lambda data, _: _put(data, len(data) - 10, struct.pack("<L", 2**30))),
    "a_wrong_checksum": _bytes(lambda data, at: _put(data, at + 16, bytes([data[at + 16] ^ 1]))),
    "a_pickle_as_a_member": lambda folder: with_member(folder, "obs", pickle.dumps(Canary(folder.parent / "canary"))),
    "a_member_that_is_compressed_by_bzip2": lambda folder: put_shard(
        folder, zipped(members_of(folder), zipfile.ZIP_BZIP2), compressed=True
    ),
    "a_member_with_a_path": lambda folder: put_shard(
        folder, zipped([*members_of(folder)[1:], ("../../obs.npy", members_of(folder)[0][1])])
    ),
}


@hostile
def a_member_twice(folder: Path) -> None:
    members = members_of(folder)
    file = io.BytesIO(zipped(members))
    with zipfile.ZipFile(file, "a") as archive:
        archive.fp.seek(archive.start_dir)
        archive.filelist.append(archive.filelist[0])
        archive._didModify = True
    put_shard(folder, file.getvalue())


@hostile
def an_array_of_pickles(folder: Path) -> None:
    array = np.empty(10, object)
    array[:] = [Canary(folder.parent / "canary")] * 10
    with_member(folder, "obs", npy(array, allow_pickle=True))


@hostile
def a_zip_bomb(folder: Path) -> None:
    """8 TB of zeros are declared; what is there is a few hundred bytes."""
    data = zipped(members_of(folder), zipfile.ZIP_DEFLATED)
    put_shard(folder, data, compressed=True, steps=2**40, lengths=[2**40 - 3, 3])


@hostile
def a_zip_bomb_within_the_rate_of_deflate(folder: Path) -> None:
    """The shard declares 128 GB, and has the size that these need at least."""
    edit_column(folder, "obs", ["<f4", [2**32]])
    put_shard(folder, (folder / SHARD).read_bytes() + b"\0", compressed=True)
    os.truncate(folder / SHARD, 2**38)
    edit(folder, bytes=2**38)


@hostile
def a_member_that_grows(folder: Path) -> None:
    """Its compressed bytes are those of a hundred times what the directory declares."""
    members = [(name, data * (100 if name == "obs.npy" else 1)) for name, data in members_of(folder)]
    data = zipped(members, zipfile.ZIP_DEFLATED)
    size = len(members_of(folder)[0][1])
    put_shard(folder, data.replace(struct.pack("<L", 100 * size), struct.pack("<L", size)), compressed=True)


HEADERS = {
    "a_header_of_2_to_the_62": "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 3)}",
    "a_header_with_a_negative_shape": "{'descr': '<f4', 'fortran_order': False, 'shape': (-10, 3)}",
    "a_header_of_objects": "{'descr': '|O', 'fortran_order': False, 'shape': (10, 3)}",
    "a_header_of_records": "{'descr': [('a', '<f4', (3,))], 'fortran_order': False, 'shape': (10,)}",
    "a_header_with_a_call": "{'descr': __import__('os').getcwd(), 'fortran_order': False, 'shape': (10, 3)}",
    "a_header_that_is_nested": "(" * 110,
    "a_header_in_fortran_order": "{'descr': '<f4', 'fortran_order': True, 'shape': (10, 3)}",
    "a_header_that_is_empty": "",
}
CORPUS |= {
    name: (lambda folder, text=text: with_member(folder, "obs", header(text) + bytes(120)))
    for name, text in HEADERS.items()
}


# The head


def _head(**changes: Any) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        head = json.loads((folder / "dataset.json").read_text())
        (folder / "dataset.json").write_text(json.dumps({**head, **changes}))

    return make


BOX = {"type": "Box", "dtype": "float32", "shape": [3], "low": -1.0, "high": 1.0}
CORPUS |= {
    "a_head_of_another_format": _head(format="cooking recipes"),
    "a_head_of_a_later_version": _head(version=3),
    "a_head_of_version_true": _head(version=True),
    "a_job_that_is_a_list": _head(job=[1]),
    "a_space_of_another_type": _head(observation_space={"type": "os.system"}),
    "a_space_that_is_text": _head(observation_space="Box(3)"),
    "a_space_of_2_to_the_62": _head(observation_space={**BOX, "shape": [2**62]}),
    "a_space_of_objects": _head(observation_space={**BOX, "dtype": "object"}),
    "a_space_with_fewer_bounds": _head(observation_space={**BOX, "low": [0.0]}),
    "a_space_without_elements": _head(action_space={"type": "Discrete", "n": 0, "start": 0, "dtype": "int64"}),
    "a_space_of_many_bits": _head(action_space={"type": "MultiBinary", "n": 2**40}),
    "a_head_with_a_key_twice": _text('"version": 2', '"version": 2, "version": 2', "dataset.json"),
    "a_head_with_nan": _text('"seed": 0', '"seed": NaN', "dataset.json"),
    "a_head_that_is_deep": _text('"seed": 0', '"seed": ' + "[" * 10**5, "dataset.json"),
    "a_head_that_is_no_json": _text("{", "(", "dataset.json"),
}
