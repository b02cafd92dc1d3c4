"""Writes data sets of the first form (manifest.json and episodes-000000.npz), as jobs did before `StoreWriter`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collector import Episode
from vecenv import nest

STEP_ARRAYS = ("action", "reward", "terminated", "truncated")


def write_first_form(folder: Path, config: dict[str, Any], blocks: Sequence[list[Episode]]) -> Path:
    """A complete data set with a shard for each block; returns its manifest."""
    shards: list[dict[str, Any]] = []
    structure: Any = "obs"
    for number, episodes in enumerate(blocks):
        path = folder / f"episodes-{number:06d}.npz"
        arrays, structure = pack(episodes)
        np.savez(path, **arrays)
        shards.append(
            {
                "file": path.name,
                "first_episode": sum(map(len, blocks[:number])),
                "episodes": len(episodes),
                "steps": int(arrays["offsets"][-1]),
                "bytes": path.stat().st_size,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }
        )
    counts = {name: sum(shard[name] for shard in shards) for name in ("episodes", "steps")}
    manifest = {"format": "vecenv episodes", "version": 1, "status": "complete", "config": config, "obs": structure}
    path = folder / "manifest.json"
    path.write_text(json.dumps({**manifest, **counts, "shards": shards}, indent=2) + "\n")
    return path


def pack(episodes: list[Episode]) -> tuple[dict[str, np.ndarray], Any]:
    """The arrays of a shard, and the observations' tree with the name of its array at each leaf."""
    arrays = {name: np.concatenate([getattr(episode, name) for episode in episodes]) for name in STEP_ARRAYS}
    columns = zip(*(nest.leaves(episode.obs) for episode in episodes), strict=True)
    obs = [np.concatenate(column) for column in columns]
    names = [f"obs.{number}" for number in range(len(obs))] if isinstance(episodes[0].obs, (dict, tuple)) else ["obs"]
    left = iter(names)
    structure = json.loads(json.dumps(nest.map(lambda _: next(left), episodes[0].obs)))
    arrays |= dict(zip(names, obs, strict=True))
    arrays["offsets"] = np.cumsum([0, *(len(episode) for episode in episodes)], dtype=np.int64)
    arrays["env_id"] = np.array([episode.env_id for episode in episodes], np.int64)
    return arrays, structure
