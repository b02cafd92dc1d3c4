"""Statistics that a job keeps while it runs: those of each env, in a file that is replaced with each commit.

The file is written before the shard. Killed between the two, a job goes on with statistics that have seen steps which
are played again, as those of the episodes in progress always are: none are lost, and such a job is not repeatable.
An env whose worker ends and is started again begins with what it had when the run, or the vector env, began.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from collector.job.job import JobError
from collector.job.statistics.state_json import to_json
from collector.store import schema
from collector.store.errors import DatasetError
from collector.store.safe_folder import SafeFolder
from vecenv.errors import VectorEnvError

KEPT = "statistics.json"
ENVS = "envs"
LARGEST_FILE = 2**27
States = list[dict[str, Any]]
"""What the transforms of each env have learnt, as JSON types."""


def statistics_of(venv: Any) -> States | None:
    """Those of the envs of a job, whose transforms are in the workers; None while an env that failed has none."""
    try:
        states = venv.call("state_dict")
    except (VectorEnvError, RuntimeError):
        return None
    try:
        return [to_json(state) for state in states]
    except TypeError as error:
        raise JobError(f"the job could not be resumed: {error}") from None


def write_statistics(folder: SafeFolder, states: States) -> None:
    """Replace the file of a folder. Raises `DatasetError` where it cannot be written."""
    try:
        folder.write(KEPT, schema.dump({ENVS: states}) + b"\n")
    except OSError as error:
        raise DatasetError(
            f"cannot write to {folder.path}: {error.strerror or error}; the episodes committed before are kept"
        ) from error


def read_statistics(folder: str | os.PathLike[str], num_envs: int) -> States:
    """What `write_statistics` left for so many envs. Raises `DatasetError` where there is no such file."""
    path = Path(folder) / KEPT
    try:
        with SafeFolder(folder) as opened:
            content = schema.parse(opened.read(KEPT, LARGEST_FILE))
    except FileNotFoundError:
        raise DatasetError(
            f"{path} is missing, the statistics with which the transforms of the job are to go on; restore "
            "it, or collect again, with --overwrite"
        ) from None
    except ValueError as error:
        raise DatasetError(f"{path} cannot be read: {error}") from None
    states: Any = content.get(ENVS) if isinstance(content, dict) else None
    if type(states) is not list or len(states) != num_envs or not all(type(each) is dict for each in states):
        raise DatasetError(f"{path} has no statistics of {num_envs} envs; collect again, with --overwrite")
    found: States = states
    return found
