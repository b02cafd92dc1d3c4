"""`export`: write a data set in the format of another tool, completely or not at all."""

from __future__ import annotations

import importlib
import os
import tempfile
from pathlib import Path
from typing import Any

from collector.store.dataset import Dataset
from collector.store.safe_folder import DatasetError

TARGETS = {"parquet": "arrow_files", "lerobot": "arrow_files", "minari": "minari_datasets"}
"""The module of each format, with a function `write_FORMAT(dataset, path, name=, **options)`."""


def export(dataset: Dataset | str | os.PathLike[str], to: str, out: str | os.PathLike[str], **options: Any) -> Path:
    """Write the episodes of a data set, or of a part of one, in another format; returns `out`.

    `to`, and what `out` becomes (a shard itself is a folder of arrays for numpy):

    - "parquet": a folder with steps.parquet (a row an observation) and episodes.parquet.
    - "lerobot": a folder in LeRobot's format v3; options `fps` (30), `task` and `robot_type`. Its frames have no last
      observation, and it has numbers only: what is lost is in docs/guides/datasets.md.
    - "minari": a folder of a data set of Minari, loaded and compared before it gets its name; options `dataset_id`, and
      what Minari notes (`description`, `algorithm_name`, ...). Below MINARI_DATASETS_PATH, as namespace/name-v0, it is
      found by that id.

    Raises ValueError for another `to`, `DatasetError` where `out` exists, the data set has no episodes or no spaces
    where the format needs them, or the disk is full, ImportError with what to install.

    Example::

        export("data/cartpole", "minari", Path.home() / ".minari/datasets/vecenv/cartpole-v0")
        minari.load_dataset("vecenv/cartpole-v0")
    """
    if to not in TARGETS:
        raise ValueError(f"to must be one of {', '.join(TARGETS)}, got {to!r}")
    data = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
    if not len(data):
        raise DatasetError(f"{data.folder} has no episodes yet")
    write, out = getattr(importlib.import_module(f"{__name__}.{TARGETS[to]}"), f"write_{to}"), Path(out)
    if out.exists():
        raise DatasetError(f"{out} exists; choose another place, or remove it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", suffix=".partial", dir=out.parent) as folder:
            partial = Path(folder, "data").absolute()  # because Minari joins relative paths to each other
            write(data, partial, name=out, **options)
            os.rename(partial, out)
    except OSError as error:
        raise DatasetError(f"cannot write {out}: {error.strerror or error}") from error
    return out
