"""Export of a data set to Minari."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from collector.batch.step_extras import blank
from collector.episodes.episode import Episode, columns_of
from collector.store.dataset import Dataset
from collector.store.safe_folder import DatasetError
from collector.store.texts import TEXT
from vecenv import nest

try:
    import minari
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage
except ImportError as error:
    raise ImportError("Minari is missing: pip install 'vecenv[export]'") from error

_ID = re.compile(r"[\w-]{2,}/[\w-]+-v\d+", re.ASCII)


def write_minari(dataset: Dataset, out: Path, *, name: Path, dataset_id: str | None = None, **notes: Any) -> None:
    """Write a Minari data set, without JPEG compression.

    In Minari, infos have a row for the reset too. This row is 0 or "", because data sets have no infos of resets.
    """
    spaces = dataset.observation_space, dataset.action_space
    if None in spaces:
        raise DatasetError(f"{dataset.folder} has no spaces in its head, but Minari needs them: export as Parquet")
    for kind, space in zip(("observation", "action"), spaces, strict=True):
        _check_keys(f"{dataset.folder}: {kind}", space)
    assert dataset.layout is not None
    for key in dataset.layout.names["info"]:
        _check_key(f"{dataset.folder}: info", key)
    out.mkdir(parents=True)
    storage = MinariStorage.new(out / "data", *spaces, _spec(dataset.head), data_format="hdf5", jpeg_encoding=False)
    version = {"minari_version": minari.__version__, "dataset_id": dataset_id or id_of(name)}
    _add_metadata(storage, {**version, **notes})
    first = 0
    for block in dataset.blocks():
        for episode in block:
            _check_texts(episode)
        storage.update_episodes([_buffer(episode, first + i) for i, episode in enumerate(block)])
        numbers = [{"number": episode.number, "env_id": episode.env_id} for episode in block]
        storage.update_episode_metadata(numbers, range(first, first + len(block)))
        first += len(block)
    written = minari.MinariDataset(out / "data")
    about: Any = written.storage.get_episode_metadata(range(first))
    if len(dataset) != written.total_episodes or not all(map(_same, dataset, written.iterate_episodes(), about)):
        raise DatasetError(f"Minari reads other episodes from {out} than {dataset.folder} has: export as Parquet")


def _add_metadata(storage: Any, notes: dict[str, Any]) -> None:
    for key in {"author", "author_email"} & notes.keys():  # sets in Minari, where a text is usual
        notes[key] = {notes[key]} if isinstance(notes[key], str) else set(notes[key])
    try:
        storage.update_metadata(notes)
    except AssertionError as error:
        raise TypeError(
            f"Minari takes texts as metadata, and texts or sets as author and author_email: {notes}"
        ) from error


def _check_key(path: str, key: str) -> None:
    if key in ("", ".") or "/" in key or "\0" in key:
        raise DatasetError(f"{path} has the key {key!r}, which a Minari file cannot hold: export as Parquet")


def _check_keys(path: str, space: Any) -> None:
    if isinstance(space, gymnasium.spaces.Dict):
        for key, part in space.items():
            _check_key(path, key)
            _check_keys(f"{path}[{key!r}]", part)
    elif isinstance(space, gymnasium.spaces.Tuple):
        for i, part in enumerate(space):
            _check_keys(f"{path}[{i}]", part)


def _check_texts(episode: Episode) -> None:
    for name in ("obs", "action", "info"):
        for path, array in nest.items(getattr(episode, name)):
            if array.dtype == TEXT and any("\0" in text for text in array.tolist()):
                where = ".".join(map(str, (name, *path)))
                raise DatasetError(
                    f"episode {episode.number} has a text with a null character in {where}, which a Minari file cannot "
                    "hold: export as Parquet"
                )


def id_of(out: Path) -> str:
    ending = "/".join(out.absolute().parts[-2:])
    return ending if _ID.fullmatch(ending) else f"vecenv/{re.sub(r'[^A-Za-z0-9_-]', '-', out.name)}-v0"


def _same(ours: Episode, theirs: Any, notes: dict[str, Any]) -> bool:
    named = theirs.observations, theirs.actions, theirs.rewards, theirs.terminations, theirs.truncations
    pairs: list[Any] = []
    nest.merge(lambda pair: pairs.append([*map(np.asarray, pair)]), [tuple(columns_of(ours).values()), named])
    if ours.info:
        pairs += [[array, np.asarray(theirs.infos[key][1:])] for key, array in ours.info.items()]
    equal = all(
        a.tolist() == [text.decode() if isinstance(text, bytes) else text for text in b.tolist()]
        if a.dtype == TEXT
        else a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for a, b in pairs
    )
    return equal and (ours.number, ours.seed) == (notes["number"], notes.get("seed"))


def _buffer(episode: Episode, place: int) -> Any:
    columns = {"rewards": episode.reward, "terminations": episode.terminated, "truncations": episode.truncated}
    infos = {key: np.concatenate([blank((1, *rows.shape[1:]), rows.dtype), rows]) for key, rows in episode.info.items()}
    return EpisodeBuffer(
        id=place, seed=episode.seed, observations=episode.obs, actions=episode.action, infos=infos or None, **columns
    )


def _spec(head: dict[str, Any]) -> Any:
    """Return the spec of the job's env, if registered, without importing a module."""
    job = head.get("job")
    name = job.get("env") if isinstance(job, dict) else None
    return gymnasium.registry.get(name) if isinstance(name, str) else None
