"""Export to Parquet: a folder for each of two tables, and schema.json, which describes the columns."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from collector.store.dataset import Dataset
from collector.store.export.step_table import PLACE, check_sizes, column_names, step_rows
from collector.store.schema import TEXT_DTYPE
from collector.store.shard_layout import is_of_obs
from collector.store.texts import TEXT
from vecenv import nest

try:
    import pyarrow as pa
    from pyarrow import parquet
except ImportError as error:
    raise ImportError("exports as Parquet need pyarrow: pip install 'vecenv[export]'") from error

SCHEMA = "schema.json"


def write_parquet(dataset: Dataset, out: Path, *, name: Path) -> None:
    """Write steps/steps.parquet (see `step_rows` and `arrow_type`), episodes/episodes.parquet and schema.json."""
    layout = dataset.layout
    assert layout is not None
    check_sizes(layout, "Parquet")
    columns = column_names(layout)
    rows = {**{each: np.dtype(text) for each, text in PLACE.items()}, **layout.rows}
    fields = pa.schema([pa.field(columns.get(each, each), arrow_type(row)) for each, row in rows.items()])
    seeds, env_ids = [], []
    for table in ("steps", "episodes"):
        (out / table).mkdir(parents=True)
    with parquet.ParquetWriter(out / "steps/steps.parquet", fields, compression="zstd") as writer:
        for block in dataset.blocks():
            found = step_rows(block, layout)
            arrays = [arrow_array(found[each], row) for each, row in rows.items()]
            writer.write_table(pa.Table.from_arrays(arrays, schema=fields), row_group_size=len(arrays[0]))
            seeds += [None if seed < 0 else seed for seed in block.seed.tolist()]
            env_ids += block.env_id.tolist()
    returns = arrow_array(dataset.returns, np.dtype(("<f8", dataset.returns.shape[1:])))
    numbers = {"episode": dataset.numbers, "length": dataset.lengths, "return": returns}
    table = pa.table({**numbers, "seed": pa.array(seeds, pa.int64()), "env_id": env_ids})
    parquet.write_table(table, out / "episodes/episodes.parquet")
    paths = {each: path for path, each in nest.items(layout.names)}
    described = {
        columns.get(each, each): {
            "dtype": TEXT_DTYPE if row == TEXT else row.base.str,
            "shape": row.shape,
            "path": paths.get(each, [each]),
        }
        for each, row in rows.items()
    }
    (out / SCHEMA).write_text(json.dumps({"columns": described, "head": dataset.head}, indent=1))


def read_parquet(out: Path, dataset: Dataset) -> Iterator[dict[str, Any]]:
    columns = {tuple(about["path"]): name for name, about in json.loads((out / SCHEMA).read_text())["columns"].items()}
    assert dataset.layout is not None
    leaves = [(name, columns[path]) for path, name in nest.items(dataset.layout.names) if path in columns]
    about = iter(parquet.read_table(out / "episodes/episodes.parquet").to_pylist())
    file = parquet.ParquetFile(out / "steps/steps.parquet")
    for group in range(file.num_row_groups):
        table = file.read_row_group(group)
        rows = {name: numpy_array(table[column], dataset.layout.rows[name]) for name, column in leaves}
        ends = np.flatnonzero(table["is_last"]) + 1
        for first, end in pairwise([0, *ends.tolist()]):
            found = {name: array[first : end - (not is_of_obs(name))] for name, array in rows.items()}
            episode = next(about)
            yield {**found, "number": episode["episode"], "seed": episode["seed"], "env_id": episode["env_id"]}


def numpy_array(column: Any, row: np.dtype) -> np.ndarray:
    """Return the rows of `arrow_array`."""
    array = column.combine_chunks()
    if pa.types.is_fixed_size_binary(array.type):
        return np.frombuffer(b"".join(array.to_pylist()), row.base).reshape(-1, *row.shape)
    while pa.types.is_fixed_size_list(array.type):
        array = array.flatten()
    found: np.ndarray = array.to_numpy(zero_copy_only=False)
    return found.reshape(len(column), -1) if len(found) != len(column) else found


def arrow_type(row: np.dtype) -> Any:
    """Return the type of a column: texts, numbers, or lists of fixed sizes that are nested as the shape of a row.

    A uint8 array with several dimensions is binary, which is read 20 times as fast as nested lists of pictures.
    """
    if row == TEXT:
        return pa.large_string()
    if row.base == np.uint8 and len(row.shape) > 1:
        return pa.binary(math.prod(row.shape))
    kind = pa.from_numpy_dtype(row.base)
    for size in reversed(row.shape):
        kind = pa.list_(kind, size)
    return kind


def arrow_array(array: np.ndarray, row: np.dtype) -> Any:
    """Return rows as an Arrow array of the type `arrow_type(row)`."""
    if row == TEXT:
        return pa.array(array.tolist(), pa.large_string())
    array, kind = np.ascontiguousarray(array), arrow_type(row)
    if pa.types.is_fixed_size_binary(kind):
        return pa.Array.from_buffers(kind, len(array), [None, pa.py_buffer(array.data.cast("B"))])
    found = pa.array(array.reshape(-1))
    for size in reversed(row.shape):
        found = pa.FixedSizeListArray.from_arrays(found, size)
    return found
