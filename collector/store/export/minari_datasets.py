"""Export of a data set to Minari."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, WrapperSpec

from collector.batch.step_extras import blank
from collector.episodes.episode import EPISODE_COLUMNS, Episode
from collector.store.dataset import Dataset
from collector.store.export.comparison import EQUAL, compare
from collector.store.safe_folder import DatasetError
from collector.store.texts import TEXT
from vecenv import nest
from vecenv.envs.gym_env import find_spec

try:
    import minari
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage
except ImportError as error:
    raise ImportError("Minari is missing: pip install 'vecenv[export]'") from error

logger = logging.getLogger("vecenv")
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
    storage = MinariStorage.new(out / "data", *spaces, _spec(dataset), data_format="hdf5", jpeg_encoding=False)
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
    if {*compare(dataset, read_minari(out, dataset)).values()} != {EQUAL}:
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


def read_minari(out: Path, dataset: Dataset) -> Iterator[dict[str, Any]]:
    assert dataset.layout is not None
    names = dataset.layout.names
    written = minari.MinariDataset(out / "data")
    about: Any = written.storage.get_episode_metadata(range(written.total_episodes))
    for episode, notes in zip(written.iterate_episodes(), about, strict=True):
        columns = episode.observations, episode.actions, episode.rewards, episode.terminations, episode.truncations
        leaves = nest.leaves(dict(zip(EPISODE_COLUMNS, columns, strict=True)))
        of_columns = nest.leaves({key: names[key] for key in EPISODE_COLUMNS})
        found = dict(zip(of_columns, map(_array, leaves), strict=True))
        found |= {name: _array(episode.infos[key][1:]) for key, name in names["info"].items()}
        yield {**found, "seed": None, **notes}


def _array(values: Any) -> np.ndarray:
    """Return an array. Texts come back as bytes, or as a list of `str`."""
    if len(values) and isinstance(values[0], (bytes, str)):
        return nest.object_array([text.decode() if isinstance(text, bytes) else text for text in values])
    return np.asarray(values)


def _buffer(episode: Episode, place: int) -> Any:
    columns = {"rewards": episode.reward, "terminations": episode.terminated, "truncations": episode.truncated}
    infos = {key: np.concatenate([blank((1, *rows.shape[1:]), rows.dtype), rows]) for key, rows in episode.info.items()}
    return EpisodeBuffer(
        id=place, seed=episode.seed, observations=episode.obs, actions=episode.action, infos=infos or None, **columns
    )


def _spec(dataset: Dataset) -> EnvSpec | None:
    """Return a spec that makes the job's env, with arguments, time limit and wrappers. Imports no module but ale_py.

    Without such a spec, this logs the reason and returns None, because another env would be worse than no env.
    """
    job: Any = dataset.head.get("job")
    try:
        if not isinstance(job, dict):
            raise ValueError("no job wrote it, so its env is not known")
        if job.get("transforms"):
            raise ValueError("gymnasium.make cannot make its transforms")
        spec = _base_spec(str(job.get("env")))
        spec.kwargs = {**spec.kwargs, **job.get("env_kwargs", {})}
        spec.max_episode_steps = job.get("max_episode_steps") or spec.max_episode_steps
        spec.additional_wrappers += tuple(map(_wrapper, job.get("wrappers", ())))
        spec.to_json()  # raises ValueError for an env that was registered with an object instead of a name
    except (ValueError, TypeError, KeyError) as error:
        logger.warning("%s: the Minari data set cannot recover its env: %s", dataset.folder, str(error))
        return None
    return spec


def _base_spec(name: str) -> EnvSpec:
    module, _, env_id = name.rpartition(":")
    try:
        return copy.deepcopy(find_spec(f"ale_py:{env_id}" if env_id.startswith("ALE/") else env_id))
    except (gymnasium.error.Error, ImportError) as error:
        if module and env_id.isidentifier():  # a function, such as "my_module:make_env"
            return EnvSpec(name, entry_point=name)
        raise ValueError(f"{name} is not registered: export in a program that imports the module of the env") from error


def _wrapper(entry: Any) -> WrapperSpec:
    call: dict[str, Any] = {"call": entry} if isinstance(entry, str) else entry
    name = call["call"] if ":" in call["call"] else f"gymnasium.wrappers:{call['call']}"
    return WrapperSpec(name.rpartition(":")[2], name, call.get("kwargs", {}))
