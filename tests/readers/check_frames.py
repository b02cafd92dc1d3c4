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


def check(name: str, read: Callable[[str], Any]) -> None:
    found = about(name)
    for column, expected in expected_columns(name):
        rows = rows_of(read(column), found[column])
        assert rows.shape == expected.shape, column
        assert rows.tolist() == expected.tolist() if expected.dtype == object else rows.tobytes() == expected.tobytes()


@pytest.fixture(scope="module")
def ray_here() -> Iterator[None]:
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture
def daft_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, daft takes a Ray that runs."""
    monkeypatch.setenv("DAFT_RUNNER", "native")


@pytest.mark.parametrize("name", ["cartpole", "dict", "texts"])
def test_ray_data(name: str, ray_here: None) -> None:
    import ray.data

    folder = Path(f"data/{name}-parquet/steps").absolute()  # Ray's workers are elsewhere
    steps = ray.data.read_parquet(str(folder)).sort(["episode", "step"])
    batches = list(steps.iter_batches(batch_size=None, batch_format="numpy"))
    check(name, lambda column: np.concatenate([batch[column] for batch in batches]))


@pytest.mark.parametrize("name", SETS)
def test_dask(name: str) -> None:
    import dask.dataframe

    steps = dask.dataframe.read_parquet(f"data/{name}-parquet/steps").compute()
    check(name, lambda column: steps[column].to_numpy())


@pytest.mark.parametrize("name", sorted({*SETS} - HALVES))
@pytest.mark.usefixtures("daft_without_ray")
def test_daft(name: str) -> None:
    import daft

    steps = daft.read_parquet(f"data/{name}-parquet/steps/*.parquet").to_pydict()
    check(name, steps.__getitem__)


@pytest.mark.usefixtures("daft_without_ray")
def test_daft_names_no_column_if_it_refuses_a_file() -> None:
    import daft

    with pytest.raises(Exception, match="Invalid thrift"):
        daft.read_parquet("data/dict-parquet/steps/*.parquet").to_pydict()


def test_fastparquet_reads_matrices_as_none_and_halves_as_bytes() -> None:
    import fastparquet

    steps = fastparquet.ParquetFile("data/dict-parquet/steps/steps.parquet").to_pandas()
    assert steps["obs_matrix"].isna().all()
    assert isinstance(steps["obs_half"].iloc[0][0], bytes)
    wide = dict(expected_columns("dict"))["obs_wide"]
    assert np.stack(list(steps["obs_wide"])).tobytes() == wide.tobytes()


@pytest.mark.parametrize("name", SETS)
def test_datafusion(name: str) -> None:
    import datafusion

    context = datafusion.SessionContext()
    context.register_parquet("steps", f"data/{name}-parquet/steps")
    steps = pyarrow.Table.from_batches(context.sql("SELECT * FROM steps ORDER BY episode, step").collect())
    check(name, lambda column: steps[column].to_numpy())


@pytest.mark.parametrize("name", SETS)
def test_chdb(name: str) -> None:
    import chdb

    query = f"SELECT * FROM file('data/{name}-parquet/steps/*.parquet', Parquet) ORDER BY episode, step"
    steps = pyarrow.ipc.open_file(chdb.query(query, "Arrow").bytes()).read_all()
    check(name, lambda column: steps[column].to_numpy())


@pytest.mark.parametrize("name", sorted({*SETS} - HALVES))
def test_deltalake(name: str, tmp_path: Path) -> None:
    import deltalake

    deltalake.write_deltalake(tmp_path, pyarrow.parquet.read_table(f"data/{name}-parquet/steps"))
    steps = deltalake.DeltaTable(tmp_path).to_pyarrow_table().sort_by([("episode", "ascending"), ("step", "ascending")])
    check(name, lambda column: steps[column].to_numpy())


def test_deltalake_refuses_halves(tmp_path: Path) -> None:
    import deltalake

    with pytest.raises(Exception, match="Float16"):
        deltalake.write_deltalake(tmp_path, pyarrow.parquet.read_table("data/dict-parquet/steps"))


@pytest.mark.parametrize("name", SETS)
def test_pyiceberg(name: str, tmp_path: Path) -> None:
    from pyiceberg.catalog.memory import InMemoryCatalog

    written = pyarrow.parquet.read_table(f"data/{name}-parquet/steps")
    catalog = InMemoryCatalog(name, warehouse=str(tmp_path))
    catalog.create_namespace("data")
    table = catalog.create_table("data.steps", schema=written.schema)
    table.append(written)
    steps = table.scan().to_arrow().sort_by([("episode", "ascending"), ("step", "ascending")])
    check(name, lambda column: steps[column].to_numpy())


def test_the_page(run: Run) -> None:
    expected = dict(expected_columns("cartpole"))["obs"]
    assert run("dask.dataframe")["obs"].tobytes() == expected.tobytes()
