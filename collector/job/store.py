"""Episodes on disk: shards of whole episodes, and a manifest that lists those that are complete.

    manifest.json             what was collected, how, and the list of shards
    episodes-000000.npz       arrays of many episodes, one after another
    episodes-000001.npz       ...

A shard is written under another name, flushed to the disk, renamed, and then listed in the manifest, which is replaced
in the same way. So whatever interrupts the writer, the manifest names complete shards only, and a reader trusts no file
that is not named there.

A shard with E episodes of S steps holds `obs` `(S + E, ...)`, `action`, `reward`, `terminated`, `truncated` `(S, ...)`,
`offsets` `(E + 1,)` and `env_id` `(E,)`. Episode e has the steps `offsets[e]:offsets[e + 1]` and the observations
`offsets[e] + e:offsets[e + 1] + e + 1`: one more than it has steps, the last one included. Dict and Tuple observations
are `obs.0`, `obs.1`, ...; the manifest's `obs` names them. `np.load(shard, allow_pickle=False)` reads it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO, Any

import numpy as np

from collector.episodes.episode import Episode
from collector.store.errors import DatasetError
from vecenv import nest

MANIFEST = "manifest.json"
FORMAT = {"format": "vecenv episodes", "version": 1}
PICTURE = "returns.png"
OURS = re.compile(r"(manifest\.json|episodes-\d+\.npz|returns\.png)(\.tmp)?")
STEP_ARRAYS = ("action", "reward", "terminated", "truncated")


def check_folder(folder: Path, overwrite: bool = False) -> None:
    """Make `folder`, with its parents, and see that it can be written to and `prepare_folder` will not refuse it.

    Raises `DatasetError` where the folder holds something that is not to be replaced, or cannot be made or written.
    """
    with _writing(folder, "choose another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in folder.iterdir()}
        foreign = sorted(name for name in names if not OURS.fullmatch(name))
        if foreign:
            raise DatasetError(f"{folder} is not empty: no job wrote {foreign[0]} there; choose another folder")
        if names and not overwrite:
            raise DatasetError(
                f"{folder} already holds {_contents(folder)}; choose another folder, or replace them with --overwrite"
            )
        probe = folder / f"{MANIFEST}.tmp"
        probe.write_bytes(b"")
        probe.unlink()


def prepare_folder(folder: Path, overwrite: bool = False) -> None:
    """As `check_folder`, and remove the files that an earlier job wrote there, and no other files."""
    check_folder(folder, overwrite)  # also where it was checked before: another job may have come in between
    with _writing(folder, "choose another folder"):
        # The manifest goes first, so that no reader finds one whose shards are missing.
        for path in sorted(folder.iterdir(), key=lambda path: path.name != MANIFEST):
            path.unlink()


@contextmanager
def _writing(folder: Path, advice: str) -> Iterator[None]:
    """Raise an OSError inside the `with` block as a `DatasetError`."""
    try:
        yield
    except OSError as error:
        raise DatasetError(f"cannot write to {folder}: {error.strerror or error}; {advice}") from error


def _contents(folder: Path) -> str:
    try:
        manifest = read_manifest(folder)
    except DatasetError:
        return "files of an earlier job"
    return f"{manifest['episodes']:,} episodes of {manifest['config'].get('env', 'an earlier job')}"


class DatasetWriter:
    """Collects episodes in memory and commits them to a folder, shard by shard.

    Example::

        writer = DatasetWriter(folder, {"env": "CartPole-v1", "seed": 0})
        writer.add(episodes)
        writer.commit()                           # these episodes are now safe
        writer.close("complete")
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder = folder
        self._waiting: list[Episode] = []
        self.waiting_bytes = 0
        """Size of the episodes that are not committed yet."""
        self.manifest: dict[str, Any] = {}
        """The manifest as it is on disk."""
        begin = {"status": "collecting", "config": config, "obs": "obs", "episodes": 0, "steps": 0, "shards": []}
        self._write_manifest({**FORMAT, **begin})

    def add(self, episodes: list[Episode]) -> None:
        """Take episodes for the next shard."""
        self._waiting += episodes
        self.waiting_bytes += sum(episode.nbytes for episode in episodes)

    def commit(self) -> None:
        """Write the episodes taken since the last commit as one shard, and list it in the manifest.

        Raises `DatasetError` where the disk refuses them; what was committed before is unchanged.
        """
        if not self._waiting:
            return
        with _writing(self.folder, f"the {self.manifest['episodes']:,} episodes committed before are kept"):
            self._commit()

    def _commit(self) -> None:
        episodes, manifest = self._waiting, self.manifest
        arrays, structure = pack(episodes)
        path = self.folder / f"episodes-{len(manifest['shards']):06d}.npz"
        write_atomically(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
        steps = int(arrays["offsets"][-1])
        shard = {
            "file": path.name,
            "first_episode": manifest["episodes"],
            "episodes": len(episodes),
            "steps": steps,
            "bytes": path.stat().st_size,
            "sha256": _sha256(path),
        }
        grown = {
            **manifest,
            "obs": structure,
            "episodes": manifest["episodes"] + len(episodes),
            "steps": manifest["steps"] + steps,
            "shards": [*manifest["shards"], shard],
        }
        self._write_manifest(grown)
        self._waiting, self.waiting_bytes = [], 0

    def close(self, status: str) -> None:
        """Commit the remaining episodes and record how the collection ended: "complete", "interrupted" or "failed"."""
        self.commit()
        self._write_manifest({**self.manifest, "status": status})

    def _write_manifest(self, manifest: dict[str, Any]) -> None:
        text = json.dumps(manifest, indent=2) + "\n"
        write_atomically(self.folder / MANIFEST, lambda file: file.write(text.encode()))
        self.manifest = manifest


def check_storable(tree: Any) -> None:
    """Raise `DatasetError` where a tree of arrays holds Python objects, which a file of arrays cannot."""
    if any(array.dtype.hasobject for array in nest.leaves(tree)):
        raise DatasetError("observations or actions are Python objects; only arrays of numbers can be stored")


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


def load_episodes(folder: str | os.PathLike[str]) -> list[Episode]:
    """All committed episodes of a folder that a job wrote (also one that was killed, or is still running).

    Raises `DatasetError` where the manifest is missing or damaged, or a shard does not match it.

    Example::

        episodes = load_episodes("data/cartpole")
        print(len(episodes), sum(e.total_reward for e in episodes) / len(episodes))
    """
    root = Path(folder)
    manifest = read_manifest(root)
    episodes: list[Episode] = []
    for shard in manifest["shards"]:
        path = root / shard["file"]
        if not path.is_file() or path.stat().st_size != shard["bytes"] or _sha256(path) != shard["sha256"]:
            raise DatasetError(f"{path} is missing or does not match {MANIFEST}; restore it, or collect again")
        with np.load(path, allow_pickle=False) as arrays:
            episodes += unpack({name: arrays[name] for name in arrays.files}, manifest["obs"])
    return episodes


def unpack(arrays: dict[str, np.ndarray], structure: Any) -> list[Episode]:
    """The episodes of a shard: views of its arrays."""
    obs = nest.map(lambda name: arrays[name], _as_tree(structure))
    offsets, episodes = arrays["offsets"].tolist(), []
    for number, env_id in enumerate(arrays["env_id"].tolist()):
        steps = slice(offsets[number], offsets[number + 1])
        observations = nest.take(obs, slice(steps.start + number, steps.stop + number + 1))
        action, reward, terminated, truncated = (arrays[name][steps] for name in STEP_ARRAYS)
        episodes.append(Episode(observations, action, reward, terminated, truncated, env_id))
    return episodes


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder. Raises `DatasetError` where there is none, or one of another kind."""
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise DatasetError(f"{folder} holds no collected episodes: there is no {MANIFEST}") from None
    except ValueError as error:
        raise DatasetError(f"{path} cannot be read: {error}") from None
    if not isinstance(manifest, dict) or {key: manifest.get(key) for key in FORMAT} != FORMAT:
        raise DatasetError(f"{path} is not a manifest of {FORMAT['format']}, version {FORMAT['version']}")
    return manifest


def write_atomically(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Give `path` its new content, on the disk, at once or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        write(file)
        file.flush()
        # Without this, a power cut after the rename could result in an empty file under the new name.
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _structure(obs: Any) -> Any:
    """The observations' tree as JSON: objects for dicts, lists for tuples, array names for leaves."""
    if not isinstance(obs, (dict, tuple)):
        return "obs"
    numbers = count()
    named = nest.map(lambda _: f"obs.{next(numbers)}", obs)
    return json.loads(json.dumps(named))


def _as_tree(structure: Any) -> Any:
    if isinstance(structure, dict):
        return {key: _as_tree(child) for key, child in structure.items()}
    return tuple(_as_tree(child) for child in structure) if isinstance(structure, list) else structure
