"""Data frames, databases and table formats read the Parquet export of data sets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

SETS = ["cartpole", "dict", "stack_last", "stack_first", "rgb", "rewards", "start", "tuple", "agents", "texts"]
HALVES = {"dict"}
"""Data sets with a float16 column."""
Run = Callable[[str], dict[str, Any]]


def about(name: str) -> dict[str, Any]:
    return json.loads(Path(f"data/{name}-parquet/schema.json").read_text())["columns"]


def expected_columns(name: str) -> Iterator[tuple[str, np.ndarray]]:
    """Name and array of each column, texts as objects, as pyarrow reads it."""
    table = pyarrow.parquet.read_table(f"data/{name}-parquet/steps")
    for column, found in about(name).items():
        if column in table.column_names:
            yield column, rows_of(table[column].to_numpy(), found)


def rows_of(values: Any, found: dict[str, Any]) -> np.ndarray:
    """Return the rows of a column with the dtype and shape of schema.json, as the page does it."""
    if found["dtype"] == "text":
        return np.asarray(values, object)
    if isinstance(values[0], bytes):
        return np.frombuffer(b"".join(values), found["dtype"]).reshape(-1, *found["shape"])
    rows = [np.stack(list(row)) if isinstance(row, np.ndarray) and row.dtype.hasobject else row for row in values]
    return np.stack(rows).astype(found["dtype"]).reshape(-1, *found["shape"])


def sorted_steps(table: pyarrow.Table) -> Callable[[str], Any]:
    steps = table.sort_by([("episode", "ascending"), ("step", "ascending")])
    return lambda column: steps[column].to_numpy()


def ray_data(name: str, folder: Path) -> Callable[[str], Any]:
    import ray.data

    with ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR"):
        steps = ray.data.read_parquet(str(Path(f"data/{name}-parquet/steps").absolute()))  # Ray's workers are elsewhere
        batches = list(steps.sort(["episode", "step"]).iter_batches(batch_size=None, batch_format="numpy"))
    return lambda column: np.concatenate([batch[column] for batch in batches])


def dask(name: str, folder: Path) -> Callable[[str], Any]:
    import dask.dataframe

    steps = dask.dataframe.read_parquet(f"data/{name}-parquet/steps").compute()
    return lambda column: steps[column].to_numpy()


def daft(name: str, folder: Path) -> Callable[[str], Any]:
    import daft

    return daft.read_parquet(f"data/{name}-parquet/steps/*.parquet").to_pydict().__getitem__


def datafusion(name: str, folder: Path) -> Callable[[str], Any]:
    import datafusion

    context = datafusion.SessionContext()
    context.register_parquet("steps", f"data/{name}-parquet/steps")
    # pyarrow cannot sort the views of texts and bytes that DataFusion returns.
    steps = pyarrow.Table.from_batches(context.sql("SELECT * FROM steps ORDER BY episode, step").collect())
    return lambda column: steps[column].to_numpy()


def chdb(name: str, folder: Path) -> Callable[[str], Any]:
    import chdb

    query = f"SELECT * FROM file('data/{name}-parquet/steps/*.parquet', Parquet) ORDER BY episode, step"
    steps = pyarrow.ipc.open_file(chdb.query(query, "Arrow").bytes()).read_all()
    return lambda column: steps[column].to_numpy()


def polars(name: str, folder: Path) -> Callable[[str], Any]:
    import polars

    steps = polars.read_parquet(f"data/{name}-parquet/steps")
    return lambda column: steps[column].to_numpy()


def lance(name: str, folder: Path) -> Callable[[str], Any]:
    import lance

    written = pyarrow.parquet.read_table(f"data/{name}-parquet/steps")
    return sorted_steps(lance.write_dataset(written, folder / "lance").to_table())


def deltalake(name: str, folder: Path) -> Callable[[str], Any]:
    import deltalake

    deltalake.write_deltalake(folder, pyarrow.parquet.read_table(f"data/{name}-parquet/steps"))
    return sorted_steps(deltalake.DeltaTable(folder).to_pyarrow_table())


def pyiceberg(name: str, folder: Path) -> Callable[[str], Any]:
    from pyiceberg.catalog.memory import InMemoryCatalog

    written = pyarrow.parquet.read_table(f"data/{name}-parquet/steps")
    catalog = InMemoryCatalog(name, warehouse=str(folder))
    catalog.create_namespace("data")
    table = catalog.create_table("data.steps", schema=written.schema)
    table.append(written)
    return sorted_steps(table.scan().to_arrow())


READERS: dict[Any, list[str]] = {
    ray_data: ["cartpole", "dict", "texts"],
    dask: SETS,
    daft: sorted({*SETS} - HALVES),
    datafusion: SETS,
    chdb: SETS,
    polars: SETS,
    lance: SETS,
    deltalake: sorted({*SETS} - HALVES),
    pyiceberg: SETS,
}
"""Data sets that each library reads."""


@pytest.fixture(autouse=True)
def daft_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, daft takes a Ray that runs."""
    monkeypatch.setenv("DAFT_RUNNER", "native")


@pytest.mark.parametrize(("read", "name"), [(read, name) for read, names in READERS.items() for name in names])
def test_columns_are_those_that_pyarrow_reads(read: Callable[..., Any], name: str, tmp_path: Path) -> None:
    found, column_of = about(name), read(name, tmp_path)
    for column, expected in expected_columns(name):
        rows = rows_of(column_of(column), found[column])
        assert rows.shape == expected.shape, column
        assert rows.tolist() == expected.tolist() if expected.dtype == object else rows.tobytes() == expected.tobytes()


@pytest.mark.parametrize(("read", "says"), [(daft, "Invalid thrift"), (deltalake, "Float16")])
def test_halves_are_refused(read: Callable[..., Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=says):
        read("dict", tmp_path)


def test_fastparquet_reads_matrices_as_none_and_halves_as_bytes() -> None:
    import fastparquet

    steps = fastparquet.ParquetFile("data/dict-parquet/steps/steps.parquet").to_pandas()
    assert steps["obs_matrix"].isna().all()
    assert isinstance(steps["obs_half"].iloc[0][0], bytes)
    wide = dict(expected_columns("dict"))["obs_wide"]
    assert np.stack(list(steps["obs_wide"])).tobytes() == wide.tobytes()


def test_the_page(run: Run) -> None:
    expected = dict(expected_columns("cartpole"))["obs"]
    assert run("dask.dataframe")["obs"].tobytes() == expected.tobytes()
