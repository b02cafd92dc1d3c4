"""Data sets of Minari: written and read back, and imported."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from collector.episodes.episode import Episode, columns_of
from collector.store.dataset import Dataset
from collector.store.dataset_head import make_head
from collector.store.safe_folder import DatasetError
from collector.store.writer import StoreWriter
from vecenv import nest

try:
    import minari
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage
except ImportError as error:
    raise ImportError("Minari is missing: pip install vecenv[export], with Python 3.11 or later") from error

_ID = re.compile(r"[\w-]{2,}/[\w-]+-v\d+", re.ASCII)


def write(dataset: Dataset, out: Path, *, name: Path, dataset_id: str | None = None, **notes: Any) -> None:
    """See `export`. Pictures are stored as they are, not as JPEG; the seeds are those of the episodes."""
    spaces = dataset.observation_space, dataset.action_space
    if None in spaces:
        raise DatasetError(f"{dataset.folder} has no spaces in its head, and Minari needs them")
    out.mkdir(parents=True)
    storage = MinariStorage.new(out / "data", *spaces, _spec(dataset.head), data_format="hdf5", jpeg_encoding=False)
    version = {"minari_version": minari.__version__, "dataset_id": dataset_id or id_of(name)}
    storage.update_metadata({**version, **notes})
    first = 0
    for block in dataset.blocks():
        storage.update_episodes([_buffer(episode, first + i) for i, episode in enumerate(block)])
        numbers = [{"number": episode.number, "env_id": episode.env_id} for episode in block]
        storage.update_episode_metadata(numbers, range(first, first + len(block)))
        first += len(block)
    for ours, theirs in zip_longest(dataset, episodes_of(minari.MinariDataset(out / "data"))):
        if ours is None or theirs is None or not same(ours, theirs):
            raise DatasetError(
                f"Minari reads other episodes from {out} than {dataset.folder} has: {theirs}, expected {ours}"
            )


def id_of(out: Path) -> str:
    """The id that Minari finds a folder by, if it is below MINARI_DATASETS_PATH."""
    ending = "/".join(out.absolute().parts[-2:])
    return ending if _ID.fullmatch(ending) else f"vecenv/{re.sub(r'[^A-Za-z0-9_-]', '-', out.name)}-v0"


def import_minari(source: Any, folder: str | os.PathLike[str], *, shard_bytes: int = 2**26, **options: Any) -> Dataset:
    """Make a data set of one of Minari: a `MinariDataset`, an id (of one on this machine), or its `data` folder.

    The numbers are those of `export` where it comes from there, else Minari's. `options` are those of `StoreWriter`.
    Raises `DatasetError` where the folder cannot be used, or the episodes are no arrays or not whole: Minari keeps
    those that were broken off too.

    Example::

        data = import_minari("D4RL/door/expert-v2", "data/door")
    """
    if not isinstance(source, minari.MinariDataset):
        here = Path(source)
        source = minari.MinariDataset(here) if here.is_dir() else minari.load_dataset(str(source))
    head = make_head(source.observation_space, source.action_space, made_by=f"import of {source.id} from Minari")
    with StoreWriter(folder, head, **options) as writer:
        for episode in episodes_of(source):
            writer.add(episode)
            if writer.waiting_bytes >= shard_bytes:
                writer.commit()
        writer.end()
    return Dataset(folder)


def episodes_of(source: Any) -> Iterator[Episode]:
    """The episodes of a data set of Minari."""
    notes = source.storage.get_episode_metadata(range(source.total_episodes))
    for each, note in zip(source.iterate_episodes(), notes, strict=True):
        seed = note.get("seed")
        yield Episode(
            nest.map(np.asarray, each.observations),
            nest.map(np.asarray, each.actions),
            np.asarray(each.rewards, np.float64),
            np.asarray(each.terminations, np.bool_),
            np.asarray(each.truncations, np.bool_),
            env_id=int(note.get("env_id", 0)),
            number=int(note.get("number", each.id)),
            seed=None if seed is None else int(seed),
        )


def same(ours: Episode, theirs: Episode) -> bool:
    """True if two episodes are equal in every bit."""
    pairs: list[Any] = []
    nest.merge(pairs.append, [columns_of(ours), columns_of(theirs)])
    equal = all(a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)
    return equal and (ours.number, ours.seed) == (theirs.number, theirs.seed)


def _buffer(episode: Episode, place: int) -> Any:
    columns = {"rewards": episode.reward, "terminations": episode.terminated, "truncations": episode.truncated}
    return EpisodeBuffer(id=place, seed=episode.seed, observations=episode.obs, actions=episode.action, **columns)


def _spec(head: dict[str, Any]) -> Any:
    """The spec of the job's env, where gymnasium knows that already: a name in a data set is never imported."""
    job = head.get("job")
    name = job.get("env") if isinstance(job, dict) else None
    return gymnasium.registry.get(name) if isinstance(name, str) else None
