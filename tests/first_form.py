"""Writes data sets of the first form (manifest.json and episodes-000000.npz), as jobs did before `StoreWriter`."""

from __future__ import annotations

import hashlib
import json
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from collector import Episode
from vecenv import nest

STEP_ARRAYS = ("action", "reward", "terminated", "truncated")


class DatasetWriter:
    """Collects episodes in memory and writes them to a folder, shard by shard."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self._folder, self._waiting = folder, list[Episode]()
        begin = {"status": "collecting", "config": config, "obs": "obs", "episodes": 0, "steps": 0, "shards": []}
        self.manifest: dict[str, Any] = {"format": "vecenv episodes", "version": 1, **begin}
        self._write_manifest()

    def add(self, episodes: list[Episode]) -> None:
        self._waiting += episodes

    def commit(self) -> None:
        if not self._waiting:
            return
        arrays, structure = pack(self._waiting)
        path = self._folder / f"episodes-{len(self.manifest['shards']):06d}.npz"
        np.savez(path, **arrays)
        steps = int(arrays["offsets"][-1])
        shard = {
            "file": path.name,
            "first_episode": self.manifest["episodes"],
            "episodes": len(self._waiting),
            "steps": steps,
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        self.manifest |= {
            "obs": structure,
            "episodes": self.manifest["episodes"] + len(self._waiting),
            "steps": self.manifest["steps"] + steps,
            "shards": [*self.manifest["shards"], shard],
        }
        self._write_manifest()
        self._waiting = []

    def close(self, status: str) -> None:
        self.commit()
        self.manifest["status"] = status
        self._write_manifest()

    def _write_manifest(self) -> None:
        (self._folder / "manifest.json").write_text(json.dumps(self.manifest, indent=2) + "\n")


def pack(episodes: list[Episode]) -> tuple[dict[str, np.ndarray], Any]:
    """The arrays of a shard, and the observations' tree with the name of its array at each leaf."""
    structure = _structure(episodes[0].obs)
    arrays = {name: np.concatenate([getattr(episode, name) for episode in episodes]) for name in STEP_ARRAYS}
    columns = zip(*(nest.leaves(episode.obs) for episode in episodes), strict=True)
    names = list(nest.leaves(_as_tree(structure)))
    arrays |= {name: np.concatenate(column) for name, column in zip(names, columns, strict=True)}
    arrays["offsets"] = np.cumsum([0, *(len(episode) for episode in episodes)], dtype=np.int64)
    arrays["env_id"] = np.array([episode.env_id for episode in episodes], np.int64)
    return arrays, structure


def _structure(obs: Any) -> Any:
    """The observations' tree as JSON: objects for dicts, lists for tuples, array names for leaves."""
    if not isinstance(obs, (dict, tuple)):
        return "obs"
    numbers = count()
    return json.loads(json.dumps(nest.map(lambda _: f"obs.{next(numbers)}", obs)))


def _as_tree(structure: Any) -> Any:
    if isinstance(structure, dict):
        return {key: _as_tree(child) for key, child in structure.items()}
    return tuple(_as_tree(child) for child in structure) if isinstance(structure, list) else structure
