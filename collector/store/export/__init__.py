"""`export`: writes a data set in the format of another tool, completely or not at all."""

from __future__ import annotations

import importlib
import os
import tempfile
from pathlib import Path
from typing import Any

from collector.store.dataset import Dataset
from collector.store.dataset_folder import check_outside
from collector.store.safe_folder import DatasetError

TARGETS = {"parquet": "arrow_parquet", "lerobot": "arrow_lerobot", "minari": "minari_datasets"}
TARGETS |= dict.fromkeys(("d3rlpy", "robomimic", "ogbench"), "trainer_files")
"""Module of each format, with `write_FORMAT(dataset, path, name=, **options)` and `read_FORMAT(path, dataset)`."""
FILES = {"schema.json": "parquet", "meta/info.json": "lerobot", "data/metadata.json": "minari"}
"""Format of a folder with this file."""
SUFFIXES = {"d3rlpy": ".h5", "robomimic": ".hdf5", "ogbench": ".npz"}
HEADS = {"parquet": "in schema.json", "minari": "spaces, and the env's spec if known"}


def export(dataset: Dataset | str | os.PathLike[str], to: str, out: str | os.PathLike[str], **options: Any) -> Path:
    """Write the episodes of a data set, or of a slice, in another format. Returns `out`.

    - `to="parquet"`: the folders `steps` (a row per observation) and `episodes`, a table each, and schema.json.
    - `to="lerobot"`: a folder in LeRobot's format v3, without the last observation of each episode
      (docs/guides/datasets.md). Options: `fps` (30), `task`, `robot_type`.
    - `to="minari"`: a Minari data set, which is read back and compared. Options: `dataset_id`, and metadata such as
      `description`. Minari finds the data set if `out` is MINARI_DATASETS_PATH/namespace/name-v0.
    - `to="d3rlpy"`, `"robomimic"` or `"ogbench"`: the HDF5 or NPZ file of this library, if rewards are numbers and
      actions a single array (docs/guides/readers.md).

    Raises ValueError for an unknown `to`, and ImportError if a package is missing. Raises `DatasetError` if `out`
    exists or is inside a data set, if the data set has no episodes or lacks required spaces, or if the disk is full.

    Example::

        export("data/cartpole", "minari", Path.home() / ".minari/datasets/vecenv/cartpole-v0")
        minari.load_dataset("vecenv/cartpole-v0")
    """
    if to not in TARGETS:
        raise ValueError(f"to must be one of {', '.join(TARGETS)}, got {to!r}")
    data = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
    if not len(data):
        raise DatasetError(f"{data.folder}: the data set or slice has no episodes")
    write, out = getattr(importlib.import_module(f"{__name__}.{TARGETS[to]}"), f"write_{to}"), Path(out)
    if out.exists():
        raise DatasetError(f"{out} exists; choose another place, or remove it")
    check_outside(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", suffix=".partial", dir=out.parent) as folder:
            partial = Path(folder, "data").absolute()  # Minari would join a relative path to itself
            write(data, partial, name=out, **options)
            _publish(partial, out)
    except OSError as error:
        raise DatasetError(f"cannot write {out}: {error.strerror or error}") from error
    return out


def _publish(partial: Path, out: Path) -> None:
    """Rename a file or folder. Raise OSError if `out` has come into being meanwhile."""
    try:
        os.link(partial, out)  # a rename would replace a file
    except FileExistsError:
        raise
    except OSError:  # a folder, or a file system without hard links
        os.rename(partial, out)


def check_export(dataset: Dataset | str | os.PathLike[str], out: str | os.PathLike[str]) -> dict[str, str]:
    """Compare an export with its data set, bit for bit. Return a text per column.

    A text is "equal", "equal as float32" after a conversion, "not stored", or begins with "DIFFERENT". Raises
    `DatasetError` if `out` is not an export, and ImportError if a package is missing.

    Example::

        check_export("data/cartpole", "data/cartpole-lerobot")["obs"]  # "equal, without the last row"
    """
    data, out = dataset if isinstance(dataset, Dataset) else Dataset(dataset), Path(out)
    formats = [to for file, to in FILES.items() if (out / file).exists()]
    formats += [to for to, suffix in SUFFIXES.items() if out.is_file() and out.suffix == suffix]
    if not formats:
        raise DatasetError(f"{out} is not an export: expected a folder, or a file that ends in .h5, .hdf5 or .npz")
    if data.layout is None:
        raise DatasetError(f"{data.folder}: the data set has no episodes")
    from collector.store.export.comparison import compare

    read = getattr(importlib.import_module(f"{__name__}.{TARGETS[formats[0]]}"), f"read_{formats[0]}")
    try:
        return compare(data, read(out, data)) | {"spaces, job, versions": HEADS.get(formats[0], "not stored")}
    except (OSError, KeyError, ValueError) as error:
        raise DatasetError(f"{out} cannot be read as an export for {formats[0]}: {error}") from error
