"""Save and load the running statistics of transforms, such as VecNorm, as JSON.

*Frozen* statistics are stored in the job, and never updated.

*Kept* statistics belong to an env, which updates them. The job writes them to a file before each commit of episodes. If
a kill prevents the commit, the file already counts steps that the resumed job repeats, so the job is not repeatable. A
restarted worker's envs begin with the vector env's initial statistics.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from collector.jobs.job import Call, FrozenStatistics, Job, JobError
from collector.store import schema
from collector.store.dataset_folder import writing
from collector.store.safe_folder import DatasetError, SafeFolder
from vecenv import VectorEnvError
from vecenv.transforms.transform import Freezable

KEPT = "statistics.json"
ENVS = "envs"
MAX_FROZEN_BYTES = 2**23
MAX_KEPT_BYTES = 2**27
States = list[dict[str, Any]]


def to_json(state: Any) -> Any:
    """Convert the state of a transform to JSON types. Floats keep every bit. NaN and infinities become texts.

    >>> to_json({"mean": np.array([0.5, np.inf]), "count": 3.0})
    {'mean': [0.5, 'inf'], 'count': 3.0}
    """
    if hasattr(state, "tolist"):  # an array, a tensor or a number of numpy
        state = state.tolist()
    if isinstance(state, dict):
        return {str(name): to_json(each) for name, each in state.items()}
    if isinstance(state, list):
        return [to_json(each) for each in state]
    if isinstance(state, float) and not np.isfinite(state):
        return str(state)
    if isinstance(state, (bool, int, float, str, type(None))):
        return state
    raise TypeError(f"the state of a transform has a {type(state).__name__}, and only numbers can be stored")


def from_json(state: Any) -> Any:
    """Convert the result of `to_json` back, with arrays of int64, float64 and bool.

    >>> from_json({"mean": [0.5, "inf"], "count": 3.0})
    {'mean': array([0.5, inf]), 'count': 3.0}
    """
    if isinstance(state, dict):
        return {name: from_json(each) for name, each in state.items()}
    if not isinstance(state, list):
        return float(state) if state in ("nan", "inf", "-inf") else state
    array = np.array(state) if state else np.zeros(0)
    return array if array.dtype.kind in "bif" else np.array(state, np.float64)


def save_statistics(transform: Any, path: str | os.PathLike[str]) -> None:
    """Write a transform's statistics to a file for `frozen` in a job.

    `transform` may also be an `EnvCreator` with a shared VecNorm. The file is the `state_dict` as JSON, written
    atomically. Raises ValueError without statistics, TypeError for statistics that are not numbers, and OSError or
    `DatasetError` if the file cannot be written.

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


def load_frozen_statistics(job: Job, folder: Path = Path()) -> Job:
    """Return the job with the content of its statistics files. Paths are relative to `folder`. Raises `JobError`."""
    return msgspec.structs.replace(
        job, transforms=tuple(_load_statistics_file(each, folder) for each in job.transforms)
    )


def freeze(transform: Any, call: Call) -> None:
    if not isinstance(call.frozen, FrozenStatistics):
        raise JobError(f"{call.call}: the file {call.frozen!r} was not read; see collector.load_job")
    if not isinstance(transform, Freezable):
        raise JobError(f"{call.call} cannot be frozen: it has no statistics; remove `frozen`")
    try:
        transform.load_state_dict(from_json(call.frozen.state))
    except (ValueError, TypeError) as error:
        raise JobError(f"{call.frozen.file} does not fit {call.call}: {error}") from None
    transform.freeze()


def _load_statistics_file(each: str | Call, folder: Path) -> str | Call:
    if not isinstance(each, Call) or not isinstance(each.frozen, str):
        return each
    path = folder / each.frozen
    where = f"{each.call}: frozen: {path}"
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_FROZEN_BYTES + 1)
        if len(content) > MAX_FROZEN_BYTES:
            raise ValueError(f"it has more than {MAX_FROZEN_BYTES:,} bytes")
        state = schema.parse(content)
    except (OSError, ValueError) as error:
        raise JobError(f"{where} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(state, dict) or not state:
        raise JobError(f"{where} has no statistics; write the file with collector.save_statistics")
    if state.keys() == {ENVS}:
        name = each.call.rpartition(":")[2]
        raise JobError(
            f"{where} has the statistics of all transforms of a job, not of one {name}; "
            "write the file with collector.save_statistics"
        )
    return msgspec.structs.replace(
        each, frozen=FrozenStatistics(each.frozen, hashlib.sha256(content).hexdigest(), state)
    )


def venv_statistics(venv: Any) -> States | None:
    """Return the statistics of each env, or None if an env has failed."""
    try:
        states = venv.call("state_dict")
    except (VectorEnvError, RuntimeError):
        return None
    try:
        return [to_json(state) for state in states]
    except TypeError as error:
        raise JobError(f"the job could not be resumed: {error}") from None


def write_statistics(folder: SafeFolder, states: States) -> None:
    with writing(folder.path, "the episodes committed before are kept"):
        folder.write(KEPT, schema.dump({ENVS: states}) + b"\n")


def read_statistics(folder: str | os.PathLike[str], num_envs: int) -> States:
    path = Path(folder) / KEPT
    try:
        with SafeFolder(folder) as opened:
            content = schema.parse(opened.read(KEPT, MAX_KEPT_BYTES))
        states = msgspec.convert(content, dict[str, States]).get(ENVS, [])
    except FileNotFoundError:
        raise DatasetError(
            f"{path} is missing: it has the statistics of the job's transforms; restore it, or collect again with "
            "--overwrite"
        ) from None
    except ValueError as error:
        raise DatasetError(f"{path} cannot be read: {error}; collect again, with --overwrite") from None
    if len(states) != num_envs:
        raise DatasetError(f"{path} has no statistics of {num_envs} envs; collect again, with --overwrite")
    return states
