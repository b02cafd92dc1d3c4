"""The numbers of a data set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from collector.job.job import shown_record
from collector.job.look.metrics import read_metrics
from collector.job.names import TRANSFORM, find_class, is_listed
from collector.store.dataset import Dataset
from collector.store.manifest import read_manifest
from vecenv.transforms.transform import Freezable


def dataset_info(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What a folder holds, as JSON types, without reading a shard. Raises `DatasetError` where it is no data set.

    `status`: "complete", or "incomplete" (running, or ended before). `job`, `repeatable`, `versions`, ...: as stored.
    `statistics`: what there is to know of transforms that have some. `episodes`, `steps`, `shards`, `bytes`: counts.
    `returns`, `lengths`: mean, deviation, min and max; None where there is no episode. `failed`: counts by kind.
    `seconds`, `steps_per_second`: of the last run, where there are metrics.
    """
    root = Path(folder)
    data = Dataset(root)
    manifest = read_manifest(root)
    head = data.head
    job = head.get("job")
    last: dict[str, Any] = next(reversed(read_metrics(root)), {})
    return {
        "folder": str(root),
        "status": "incomplete" if manifest.end is None else "complete",
        "job": job and shown_record(job),
        "statistics": statistics_in_words(job or {}),
        "repeatable": head.get("repeatable"),
        "episodes": len(data),
        "steps": int(data.lengths.sum()),
        "returns": spread(data.returns),
        "lengths": spread(data.lengths),
        "failed": dict(manifest.failed),
        "seconds": last.get("seconds"),
        "steps_per_second": last.get("steps_per_second"),
        "shards": len(manifest.shards),
        "bytes": sum(shard.nbytes for shard in manifest.shards),
        "versions": head.get("versions"),
        "cpu": head.get("cpu"),
        "device": head.get("device"),
    }


def statistics_in_words(job: dict[str, Any]) -> list[str]:
    """A line for each transform of a job, as JSON types, that has statistics; those of other modules are not looked at.

    >>> statistics_in_words({"transforms": ["ToTensorImage", "VecNorm"]})
    ['VecNorm goes on with its statistics when the job is resumed; not repeatable']
    """
    found = []
    entries = shown_record(job).get("transforms")
    for each in entries if isinstance(entries, (list, tuple)) else ():
        entry = each if isinstance(each, dict) else {"call": each}
        name, frozen = str(entry.get("call")), entry.get("frozen")
        if frozen is not None:
            found.append(f"{name} frozen, as in {frozen}")
        elif is_listed(TRANSFORM, name) and issubclass(find_class(TRANSFORM, name), Freezable):
            found.append(f"{name} goes on with its statistics when the job is resumed; not repeatable")
    return found


def spread(values: np.ndarray) -> dict[str, float] | None:
    """Mean, deviation, min and max; None of no values.

    >>> spread(np.array([1.0, 3.0]))
    {'mean': 2.0, 'std': 1.0, 'min': 1.0, 'max': 3.0}
    """
    if not len(values):
        return None
    values = np.asarray(values, np.float64)
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "min": float(values.min()),
        "max": float(values.max()),
    }
