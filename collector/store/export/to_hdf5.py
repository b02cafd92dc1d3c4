"""One HDF5 file with the arrays of a shard, grown block by block."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from collector.store.dataset import Dataset
from collector.store.errors import DatasetError

try:
    import h5py
except ImportError as error:
    raise ImportError("the export to HDF5 needs h5py: pip install vecenv[export]") from error


def write(dataset: Dataset, out: Path, *, name: Path, compress: bool = True) -> None:
    """See `export`. The attributes `head` and `layout` are JSON, as in the data set."""
    if dataset.layout is None:
        raise DatasetError(f"{dataset.folder} has no episodes yet")
    packing: dict[str, Any] = {"compression": "gzip", "compression_opts": 1, "shuffle": True} if compress else {}
    with h5py.File(out, "w") as file:
        file.attrs["head"] = json.dumps(dataset.head)
        file.attrs["layout"] = json.dumps(dataset.layout.as_json())
        file["offsets"] = np.concatenate([[0], np.cumsum(dataset.lengths)])
        for key, column in dataset.layout.shapes(dataset.steps, len(dataset)).items():
            if key != "offsets":
                options = packing if column.row_bytes else {}  # HDF5 has no chunks of nothing
                file.create_dataset(key, column.shape, column.dtype, chunks=bool(options) or None, **options)
        filled = dict.fromkeys(file, 0)
        for block in dataset.blocks():
            for key, array in block.arrays().items():
                if key != "offsets" and array.size:
                    file[key][filled[key] : filled[key] + len(array)] = array
                    filled[key] += len(array)
