"""Reading folders of the first form: manifest.json, and shards beside it.

manifest.json             what was collected, how, and the list of shards
episodes-000000.npz       arrays of many episodes, one after another, with `env_id` for each episode
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from collector.store.errors import DatasetError
from collector.store.files import strict_json
from collector.store.files.safe_folder import SafeFolder
from collector.store.head import FIRST_MANIFEST
from collector.store.layout import FLAGS, Column, Layout
from collector.store.manifest import Index, Manifest, ShardRecord
from collector.store.shard import open_shard

FIRST_FORMAT = {"format": "vecenv episodes", "version": 1}
_LARGEST = 2**26
_NAME = re.compile(r"episodes-\d{6,12}\.npz", re.ASCII)
_KEYS = {"file": str, "first_episode": int, "episodes": int, "steps": int, "bytes": int, "sha256": str}
_OF_STEPS = ("action", "reward", *FLAGS)


def read_first_form(root: Path) -> tuple[dict[str, Any], Manifest]:
    """The manifest as it is, and what it and the shards say of each episode. Raises `DatasetError`."""
    manifest = _read(root)
    shards = [_record(root, entry) for entry in manifest["shards"]]
    if len({shard.file for shard in shards}) < len(shards):
        raise DatasetError(f"{root / FIRST_MANIFEST} names a shard twice")
    totals = {"episodes": sum(shard.episodes for shard in shards), "steps": sum(shard.steps for shard in shards)}
    if {key: manifest.get(key) for key in totals} != totals:
        raise DatasetError(f"{root / FIRST_MANIFEST} has other totals than its shards, which have {totals}")
    layout: Layout | None = None
    columns: list[np.ndarray] = []
    for which, shard in enumerate(shards):
        arrays, _ = open_first_shard(root, shard, layout, manifest["obs"])
        layout = layout or first_layout(root, shard, arrays, manifest["obs"])
        columns.append(_entries(root, shard, arrays, which))
    index = np.concatenate(columns, axis=1) if columns else np.zeros((5, 0))
    length, returns, shard_of, position, first = index
    integers = [each.astype(np.int64) for each in (length, shard_of, position, first)]
    number = np.arange(len(length))
    return manifest, Manifest(shards, Index(number, integers[0], returns, *integers[1:]), layout)


def open_first_shard(root: Path, shard: ShardRecord, layout: Layout | None, structure: Any, known: bool = False) -> Any:
    """The arrays of a shard, with those that the second form has besides, and its mapping."""
    arrays, mapping = open_shard(root, shard, None, known=known, manifest=FIRST_MANIFEST)
    layout = layout or first_layout(root, shard, arrays, structure)
    expected = layout.shapes(shard.steps, shard.episodes)
    expected = {name: each for name, each in expected.items() if name not in ("episode", "seed", "env_id")}
    expected["env_id"] = Column(np.dtype("<i8"), (shard.episodes,))
    found = {name: Column(array.dtype, array.shape) for name, array in arrays.items()}
    if found != expected:
        raise DatasetError(f"{root / shard.file} has other arrays than {FIRST_MANIFEST} says: {found}")
    return arrays, mapping


def first_layout(root: Path, shard: ShardRecord, arrays: dict[str, np.ndarray], structure: Any) -> Layout:
    """The layout of a data set of the first form, from its first shard."""
    obs = [name for name in arrays if name == "obs" or name.startswith("obs.")]
    rows = {
        name: [arrays[name].dtype.str, list(arrays[name].shape[1:])] for name in (*obs, *_OF_STEPS) if name in arrays
    }
    try:
        return Layout.from_json({"obs": structure, "action": "action", "arrays": rows})
    except DatasetError as error:
        raise DatasetError(f"{root / shard.file}: {error}") from None


def _read(root: Path) -> dict[str, Any]:
    path = root / FIRST_MANIFEST
    try:
        with SafeFolder(root) as folder:
            manifest = strict_json.parse(folder.read(FIRST_MANIFEST, _LARGEST))
    except FileNotFoundError:
        raise DatasetError(f"{root} holds no collected episodes: there is no manifest") from None
    except ValueError as error:
        raise DatasetError(f"{path} cannot be read: {error}") from None
    if type(manifest) is not dict or {key: manifest.get(key) for key in FIRST_FORMAT} != FIRST_FORMAT:
        raise DatasetError(f"{path} is not a manifest of {FIRST_FORMAT['format']}, version {FIRST_FORMAT['version']}")
    if type(manifest.get("shards")) is not list or type(manifest.get("config")) is not dict or "obs" not in manifest:
        raise DatasetError(f"{path} has no list of shards, no config or no obs")
    return manifest


def _record(root: Path, entry: Any) -> ShardRecord:
    if type(entry) is not dict or {key: type(value) for key, value in entry.items()} != _KEYS:
        raise DatasetError(f"{root / FIRST_MANIFEST} has a shard that is {str(entry)[:200]}")
    sizes = [entry[key] for key in ("episodes", "steps", "bytes")]
    if (
        not _NAME.fullmatch(entry["file"])
        or not all(0 < size < 2**53 for size in sizes)
        or entry["episodes"] > entry["steps"]
    ):
        raise DatasetError(f"{root / FIRST_MANIFEST} has a shard that is {str(entry)[:200]}")
    return ShardRecord(entry["file"], entry["bytes"], entry["sha256"], False, entry["steps"], entry["episodes"])


def _entries(root: Path, shard: ShardRecord, arrays: dict[str, np.ndarray], which: int) -> np.ndarray:
    offsets, reward = arrays["offsets"], arrays["reward"].reshape(shard.steps, -1).sum(1)
    lengths = np.diff(offsets)
    if offsets[0] != 0 or offsets[-1] != shard.steps or (lengths < 1).any():
        raise DatasetError(f"{root / shard.file} has offsets that are not those of {shard.episodes} episodes")
    returns = np.add.reduceat(reward, offsets[:-1])
    return np.stack([lengths, returns, np.full(len(lengths), which), np.arange(len(lengths)), offsets[:-1]]).astype(
        float
    )
