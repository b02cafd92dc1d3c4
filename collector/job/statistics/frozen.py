"""Statistics that a job file names: read when the file is, stored with the job, and never updated.

They travel with the job, to workers, other machines and the head of the folder. So a job that is resumed or played
again has them, wherever the file is by then.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec

from collector.job.job import Frozen, Job, JobError, TransformCall
from collector.job.statistics.kept import ENVS
from collector.job.statistics.state_json import from_json, to_json
from collector.store import schema
from collector.store.safe_folder import SafeFolder
from vecenv import transforms
from vecenv.transforms.transform import Freezable

LARGEST_FILE = 2**23
"""They are stored in the head of the folder."""


def save_statistics(transform: Any, path: str | os.PathLike[str]) -> None:
    """Write what a transform (VecNorm, NormalizeReward) has learnt, or an `EnvCreator` whose envs have one VecNorm, to
    a file that `frozen` in a job can name, and that `load_state_dict` takes.

    The file is JSON: what `state_dict` returns, with lists for arrays. It is replaced at once or not at all. Raises
    ValueError for a transform that has learnt nothing, OSError where the file cannot be written.

    Example::

        venv = TransformedVectorEnv(ShmemVectorEnv(env_fns), VecNorm())
        ...                                                     # train
        save_statistics(venv.transform[0], "statistics.json")

        norm = VecNorm()                                        # in another program
        norm.load_state_dict(json.loads(Path("statistics.json").read_text()))
        norm.freeze()
    """
    state = to_json(transform.state_dict())
    if not state:
        raise ValueError(f"{transform} has no statistics to save")
    with SafeFolder(Path(path).parent) as folder:
        folder.write(Path(path).name, schema.dump(state) + b"\n")


def with_frozen(job: Job, folder: Path = Path()) -> Job:
    """The job with the content of the files that its transforms name, which lie relative to `folder`.

    A file is what `save_statistics` writes, or `statistics.json` of the folder of a job, whose envs are put together.
    Raises `JobError` where one cannot be read or has no statistics.
    """
    if not any(isinstance(each, TransformCall) and isinstance(each.frozen, str) for each in job.transforms):
        return job
    return msgspec.structs.replace(job, transforms=tuple(_with_content(each, folder) for each in job.transforms))


def freeze(transform: Any, call: TransformCall) -> None:
    """Give a transform, which is part of an env, the statistics of its entry in the job, and end its updates.

    Raises `JobError` where they are those of another transform, or of other observations.
    """
    if not isinstance(call.frozen, Frozen):
        raise JobError(f"{call.call}: the file {call.frozen!r} was not read; see collector.load_job")
    if not isinstance(transform, Freezable):
        raise JobError(f"{call.call} cannot be frozen: it has no statistics; remove `frozen`")
    try:
        transform.load_state_dict(from_json(call.frozen.state))
    except (ValueError, TypeError) as error:
        raise JobError(f"{call.frozen.file} does not fit {call.call}: {error}") from None
    transform.freeze()


def _with_content(each: Any, folder: Path) -> Any:
    if not isinstance(each, TransformCall) or not isinstance(each.frozen, str):
        return each
    path = folder / each.frozen
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise JobError(f"{each.call}: frozen: {path} cannot be read: {error.strerror or error}") from None
    if len(content) > LARGEST_FILE:
        raise JobError(f"{each.call}: frozen: {path} has more than {LARGEST_FILE:,} bytes")
    try:
        state = schema.parse(content)
    except ValueError as error:
        raise JobError(f"{each.call}: frozen: {path} cannot be read: {error}") from None
    if not isinstance(state, dict) or not state:
        raise JobError(f"{each.call}: frozen: {path} has no statistics; collector.save_statistics writes such a file")
    if state.keys() == {ENVS}:
        state = _of_all_envs(each.call, state[ENVS], path)
    digest = hashlib.sha256(content).hexdigest()
    return msgspec.structs.replace(each, frozen=Frozen(each.frozen, digest, state))


def _of_all_envs(name: str, states: Any, path: Path) -> Any:
    """The statistics of a transform in a file that a job has kept, of all its envs together."""
    kind = getattr(transforms, name, Freezable)
    try:
        [place] = (each for each in states[0] if each.partition(".")[2] == name)
        return to_json(kind.merged([from_json(state[place]) for state in states]))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, NotImplementedError):
        raise JobError(
            f"{name}: frozen: {path} has the statistics of the transforms of a job, and not those of one {name}; "
            "collector.save_statistics writes such a file"
        ) from None
