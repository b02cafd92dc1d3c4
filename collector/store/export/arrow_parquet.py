"""Two Parquet files: steps.parquet with a row an observation, and episodes.parquet."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from collector.episodes.episode import EpisodeBatch
from collector.store import schema
from collector.store.dataset import Dataset
from collector.store.packed import Column, arrays_of, offsets_of
from collector.store.safe_folder import DatasetError

try:
    import pyarrow as pa
    from pyarrow import parquet
except ImportError as error:
    raise ImportError("the export to Parquet needs pyarrow: pip install vecenv[export]") from error


def write(dataset: Dataset, out: Path, *, name: Path) -> None:
    """See `export`.

    A row of steps.parquet is an observation with the action and what that gave; in the last row of an episode
    (`is_last`) the observation alone means something. Vectors are lists of fixed size, pictures binary, others flat
    lists; the metadata of each field have its dtype and shape.
    """
    if dataset.layout is None:
        raise DatasetError(f"{dataset.folder} has no episodes yet")
    out.mkdir(parents=True)
    columns = pa.schema(
        [
            *(pa.field(key, pa.int64()) for key in ("episode", "step")),
            *(pa.field(key, pa.bool_()) for key in ("is_first", "is_last")),
            *(field_of(key, column) for key, column in dataset.layout.columns.items()),
        ],
        metadata={"head": json.dumps(dataset.head), "layout": json.dumps(schema.as_json(dataset.layout.line()))},
    )
    seeds, env_ids = [], []
    with parquet.ParquetWriter(out / "steps.parquet", columns, compression="zstd") as writer:
        for block in dataset.blocks():
            writer.write_table(pa.Table.from_arrays(_rows(block, columns), schema=columns))
            seeds += block.seed.tolist()
            env_ids += block.env_id.tolist()
    numbers = {"episode": dataset.numbers, "length": dataset.lengths, "return": dataset.returns}
    known = pa.array([None if seed < 0 else seed for seed in seeds], pa.int64())
    parquet.write_table(pa.table({**numbers, "seed": known, "env_id": env_ids}), out / "episodes.parquet")


def field_of(name: str, column: Column) -> Any:
    """The field of an array."""
    count, scalar = math.prod(column.shape), pa.from_numpy_dtype(column.dtype)
    if not count:
        raise DatasetError(f"{name} has the shape {column.shape}, and Parquet has no column of nothing")
    kind = scalar
    if column.shape:
        picture = column.dtype == np.uint8 and len(column.shape) > 1
        kind = pa.binary(count) if picture else pa.list_(scalar, count)
    return pa.field(name, kind, metadata={"dtype": column.dtype.str, "shape": json.dumps(list(column.shape))})


def column_of(array: np.ndarray, kind: Any) -> Any:
    """Rows of an array as a column of Arrow."""
    array = np.ascontiguousarray(array)
    if pa.types.is_fixed_size_binary(kind):
        return pa.Array.from_buffers(kind, len(array), [None, pa.py_buffer(array.data.cast("B"))])
    flat = pa.array(array.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, type=kind) if pa.types.is_fixed_size_list(kind) else flat


def _rows(block: EpisodeBatch, fields: Any) -> list[Any]:
    rows = len(block.reward) + len(block)
    of = np.repeat(np.arange(len(block)), block.lengths + 1)
    step = np.arange(rows) - (offsets_of(block)[:-1] + np.arange(len(block)))[of]
    is_last = step == block.lengths[of]
    found = {"episode": block.episode[of], "step": step, "is_first": step == 0, "is_last": is_last}
    for key, array in arrays_of(block).items():
        if len(array) == rows and (key == "obs" or key.startswith("obs.")):
            found[key] = array
        elif key in fields.names and key not in found:
            found[key] = np.zeros((rows, *array.shape[1:]), array.dtype)
            found[key][~is_last] = array
    return [column_of(found[field.name], field.type) for field in fields]
