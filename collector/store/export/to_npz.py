"""One npz file of all episodes, written array by array, so that memory holds one block of them."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np

from collector.store.dataset import Dataset
from collector.store.errors import DatasetError


def write(dataset: Dataset, out: Path, *, name: Path, compress: bool = False) -> None:
    """See `export`."""
    if dataset.layout is None:
        raise DatasetError(f"{dataset.folder} has no episodes yet")
    columns = dataset.layout.shapes(dataset.steps, len(dataset))
    kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(out, "w", kind) as archive:
        for key, column in columns.items():
            header = io.BytesIO()
            described = {"descr": column.dtype.str, "fortran_order": False, "shape": column.shape}
            np.lib.format.write_array_header_1_0(header, described)
            with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                member.write(header.getvalue())
                if key == "offsets":
                    offsets = np.concatenate([[0], np.cumsum(dataset.lengths)])
                    member.write(offsets.astype("<i8").tobytes())
                    continue
                for block in dataset.blocks():
                    member.write(block.arrays()[key].tobytes())
