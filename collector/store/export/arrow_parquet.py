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
from collector.store.packed import Layout, arrays_of, is_of_obs, offsets_of
from collector.store.safe_folder import DatasetError

try:
    import pyarrow as pa
    from pyarrow import parquet
except ImportError as error:
    raise ImportError("the export to Parquet needs pyarrow: pip install vecenv[export]") from error

_PLACE = {"episode": pa.int64(), "step": pa.int64(), "is_first": pa.bool_(), "is_last": pa.bool_()}


def write(dataset: Dataset, out: Path, *, name: Path) -> None:
    """See `export`.

    A row of steps.parquet is an observation with the action and what that gave; in the last row of an episode
    (`is_last`) the observation alone means something. Vectors are lists of fixed size, pictures binary, others flat
    lists; the metadata of each field have its dtype and shape.
    """
    layout = dataset.layout
    assert layout is not None
    out.mkdir(parents=True)
    fields = [*(pa.field(*each) for each in _PLACE.items()), *(_field(*each) for each in layout.rows.items())]
    columns = pa.schema(fields, {"head": json.dumps(dataset.head), "layout": schema.dump(layout.line())})
    seeds, env_ids = [], []
    with parquet.ParquetWriter(out / "steps.parquet", columns, compression="zstd") as writer:
        for block in dataset.blocks():
            found = _rows(block, layout)
            writer.write_table(
                pa.Table.from_arrays([column_of(found[each.name], each.type) for each in columns], schema=columns)
            )
            seeds += block.seed.tolist()
            env_ids += block.env_id.tolist()
    numbers = {"episode": dataset.numbers, "length": dataset.lengths, "return": dataset.returns}
    known = pa.array([None if seed < 0 else seed for seed in seeds], pa.int64())
    parquet.write_table(pa.table({**numbers, "seed": known, "env_id": env_ids}), out / "episodes.parquet")


def _field(name: str, row: np.dtype) -> Any:
    if not row.itemsize:
        raise DatasetError(f"{name} has the shape {row.shape}, and Parquet has no column of nothing")
    count, kind = math.prod(row.shape), pa.from_numpy_dtype(row.base)
    if row.shape:
        kind = pa.binary(count) if row.base == np.uint8 and len(row.shape) > 1 else pa.list_(kind, count)
    return pa.field(name, kind, metadata={"dtype": row.base.str, "shape": json.dumps(list(row.shape))})


def column_of(array: np.ndarray, kind: Any) -> Any:
    """Rows of an array as a column of Arrow."""
    array = np.ascontiguousarray(array)
    if pa.types.is_fixed_size_binary(kind):
        return pa.Array.from_buffers(kind, len(array), [None, pa.py_buffer(array.data.cast("B"))])
    flat = pa.array(array.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, type=kind) if pa.types.is_fixed_size_list(kind) else flat


def _rows(block: EpisodeBatch, layout: Layout) -> dict[str, np.ndarray]:
    of = np.repeat(np.arange(len(block)), block.lengths + 1)
    step = np.arange(len(of)) - (offsets_of(block)[:-1] + np.arange(len(block)))[of]
    is_last = step == block.lengths[of]
    found = {"episode": block.episode[of], "step": step, "is_first": step == 0, "is_last": is_last}
    for name, array in arrays_of(block).items():
        if name in layout.rows and not is_of_obs(name):
            found[name] = np.zeros((len(of), *array.shape[1:]), array.dtype)
            found[name][~is_last] = array
        elif name in layout.rows:
            found[name] = array
    return found
