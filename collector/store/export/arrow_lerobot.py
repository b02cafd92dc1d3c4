"""Export to LeRobot's format v3: Parquet files with PNG images."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from collector.store.dataset import Dataset, Transitions
from collector.store.export.arrow_parquet import arrow_array, numpy_array
from collector.store.export.step_table import check_sizes
from collector.store.safe_folder import DatasetError
from collector.store.shard_layout import refuse_texts
from collector.store.texts import TEXT
from vecenv import nest
from vecenv.arguments import at_least_one

try:
    import pyarrow as pa
    from PIL import Image
    from pyarrow import parquet
except ImportError as error:
    raise ImportError("exports to LeRobot need pyarrow and pillow: pip install 'vecenv[export]'") from error

FILES_A_CHUNK = 1000
FILE_BYTES = 2**26
FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_PNG = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
Stats = dict[str, np.ndarray]


def write_lerobot(
    dataset: Dataset, out: Path, *, name: Path, fps: int = 30, task: str = "", robot_type: str | None = None
) -> None:
    """Write features named `observation.state`, `observation.image` or `observation.KEY`, `action` or `action.KEY`.

    Statistics of each episode are stored too, because the tools of LeRobot compute the statistics of a part from these.
    """
    assert dataset.layout is not None
    check_sizes(dataset.layout, "LeRobot")
    refuse_texts(dataset.layout, "LeRobot")
    fps = at_least_one("fps", fps)
    job = dataset.head.get("job")
    task = task or (str(job.get("env", name.name)) if isinstance(job, dict) else name.name)
    begins = np.cumsum(dataset.lengths) - dataset.lengths
    file = np.unique(begins * dataset.layout.nbytes(1, 0) // FILE_BYTES, return_inverse=True)[1]
    features, stats = _write_steps(dataset, out, begins, file, fps)
    _write(pa.table(_of_episodes(dataset, begins, file, task, stats)), out / "meta/episodes", 0)
    info = {
        "codebase_version": "v3.0",
        "robot_type": robot_type,
        "total_episodes": len(dataset),
        "total_frames": dataset.steps,
        "total_tasks": 1,
        "chunks_size": FILES_A_CHUNK,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": fps,
        "splits": {"train": f"0:{len(dataset)}"},
        "data_path": f"data/{FILE}",
        "video_path": None,
        "features": features,
    }
    (out / "meta/info.json").write_text(json.dumps(info, indent=4))
    overall = {key: {name: each.tolist() for name, each in _combined(parts).items()} for key, parts in stats.items()}
    (out / "meta/stats.json").write_text(json.dumps(overall, indent=4))
    parquet.write_table(_tasks(task), out / "meta/tasks.parquet")


def _write_steps(
    dataset: Dataset, out: Path, begins: np.ndarray, file: np.ndarray, fps: int
) -> tuple[dict[str, Any], dict[str, list[Stats]]]:
    """Write the steps. Return the features, and the statistics of each episode by feature.

    begins, file: first step, and number of the file, of each episode.
    """
    ends, features = begins + dataset.lengths, dict[str, Any]()
    stats: dict[str, list[Stats]] = {}
    for number in range(int(file[-1]) + 1):
        index = np.arange(begins[file == number][0], ends[file == number][-1])
        frames = dataset.take(index)
        columns = _columns(frames) | {
            "timestamp": (frames.step / fps).astype(np.float32),
            "frame_index": frames.step,
            "episode_index": np.searchsorted(ends, index, side="right"),
            "index": index,
            "task_index": np.zeros_like(index),
        }
        features = {key: _feature(array) for key, array in columns.items()}
        first_rows = begins[file == number][1:] - index[0]
        for key, array in columns.items():
            if "image" not in key or _is_picture(array):  # LeRobot 0.6 expects a picture behind such a name
                stats.setdefault(key, []).extend(map(_stats, np.split(array, first_rows)))
        table = pa.table({key: _arrow(array) for key, array in columns.items()})
        _write(table, out / "data", number)
    return features, stats


def _of_episodes(
    dataset: Dataset, begins: np.ndarray, file: np.ndarray, task: str, stats: dict[str, list[Stats]]
) -> dict[str, Any]:
    """Return the columns of the table of episodes."""
    count = len(dataset)
    zeros = np.zeros(count, np.int64)
    found: dict[str, Any] = {"episode_index": np.arange(count), "tasks": [[task]] * count, "length": dataset.lengths}
    found |= {"data/chunk_index": file // FILES_A_CHUNK, "data/file_index": file % FILES_A_CHUNK}
    found |= {"dataset_from_index": begins, "dataset_to_index": begins + dataset.lengths}
    found |= {"meta/episodes/chunk_index": zeros, "meta/episodes/file_index": zeros}
    for key, parts in stats.items():
        found |= {f"stats/{key}/{name}": [each[name].tolist() for each in parts] for name in parts[0]}
    return found


def read_lerobot(out: Path, dataset: Dataset) -> Iterator[dict[str, Any]]:
    assert dataset.layout is not None
    names, rows = dataset.layout.names, dataset.layout.rows
    features = json.loads((out / "meta/info.json").read_text())["features"]
    found = dict(_named("observation", names["obs"])) | dict(_named("action", names["action"]))
    if "observation" in found:
        state = "observation.state" if "observation.state" in features else "observation.image"
        found[state] = found.pop("observation")
    found |= {feature: name for feature, name in _named("info", names["info"]) if rows[name] != TEXT}
    found |= {f"next.{name}": name for name in ("reward", "terminated", "truncated")}
    for file in sorted((out / "data").glob("*/*.parquet")):
        table = parquet.ParquetFile(file).read()
        arrays = {name: _decoded(table[feature], rows[name]) for feature, name in found.items()}
        cuts = np.flatnonzero(np.diff(table["episode_index"])) + 1
        for first, end in pairwise([0, *cuts.tolist(), len(table)]):
            yield {name: array[first:end] for name, array in arrays.items()}


def _decoded(column: Any, row: np.dtype) -> np.ndarray:
    if column.type != _PNG:
        return numpy_array(column, row)
    pictures = np.stack([np.asarray(Image.open(io.BytesIO(cell["bytes"]))) for cell in column.to_pylist()])
    is_last = len(row.shape) < 3 or row.shape[2] in (1, 3)
    return pictures if is_last or pictures.ndim < 4 else np.moveaxis(pictures, 3, 1)


def _write(table: Any, folder: Path, number: int) -> None:
    chunk, file = divmod(number, FILES_A_CHUNK)
    path = folder / FILE.format(chunk_index=chunk, file_index=file)
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path)


def _columns(frames: Transitions) -> dict[str, np.ndarray]:
    named = [*_named("observation", frames.obs), *_named("action", frames.action)]
    found = {name: _as_feature(name, array) for name, array in named}
    if len(found) < len(named):
        twice = [name for name, count in Counter(name for name, _ in named).items() if count > 1]
        raise DatasetError(
            f"several keys become the feature {twice[0]!r} of LeRobot, because dots and slashes in keys become _: "
            "rename the keys, or export as Parquet"
        )
    if (obs := found.pop("observation", None)) is not None:
        found = {"observation.image" if _is_picture(obs) else "observation.state": obs, **found}
    found |= {name: _as_feature(name, rows) for name, rows in _named("info", frames.info) if rows.dtype != TEXT}
    found |= {"next.reward": frames.reward, "next.terminated": frames.terminated, "next.truncated": frames.truncated}
    found["next.done"] = frames.terminated | frames.truncated
    return found


def _named(name: str, tree: Any) -> Iterator[tuple[str, Any]]:
    for path, array in nest.items(tree):
        yield ".".join([name, *(str(key).replace(".", "_").replace("/", "_") for key in path)]), array


def _as_feature(name: str, array: np.ndarray) -> np.ndarray:
    """Return pictures as `(k, height, width, channels)`, and other arrays as `(k,)` or `(k, n)`.

    Arrays with more dimensions become vectors, because `delete_episodes` of LeRobot 0.6 fails for matrices.
    """
    shape = array.shape[1:]
    if array.dtype != np.uint8 or len(shape) < 2:
        return array if len(shape) < 2 else array.reshape(len(array), -1)
    if len(shape) == 2:
        array = array[..., None]
    elif len(shape) == 3 and shape[2] not in (1, 3) and shape[0] in (1, 3):
        array = np.moveaxis(array, 1, 3)
    if not _is_picture(array):
        raise DatasetError(
            f"{name} is {array.dtype} of the shape {shape}, but pictures of LeRobot have 1 or 3 channels: record "
            "without a frame stack (`delta_timestamps` of LeRobot stacks frames), or export as Parquet"
        )
    return array


def _is_picture(array: np.ndarray) -> bool:
    return array.dtype == np.uint8 and array.ndim == 4 and array.shape[3] in (1, 3)


def _feature(array: np.ndarray) -> dict[str, Any]:
    if _is_picture(array):
        return {"dtype": "image", "shape": list(array.shape[1:]), "names": ["height", "width", "channels"]}
    return {"dtype": array.dtype.name, "shape": list(array.shape[1:]) or [1], "names": None}


def _arrow(array: np.ndarray) -> Any:
    if _is_picture(array):
        return pa.array([{"bytes": _png(picture), "path": None} for picture in array], _PNG)
    array = array.reshape(-1) if array.shape[1:] == (1,) else array
    return arrow_array(array, np.dtype((array.dtype, array.shape[1:])))


def _png(picture: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture[..., 0] if picture.shape[2] == 1 else picture).save(file, "PNG")
    return file.getvalue()


def _stats(array: np.ndarray) -> Stats:
    """Return the statistics of an episode: of each channel for pictures, else of each number of a row.

    At most 200 pictures are read, evenly spaced, as LeRobot does.
    """
    if _is_picture(array):
        shape: Any = (-1, 1, 1)
        rows = array[:: max(1, len(array) // 100)].reshape(-1, array.shape[3]) / 255
    else:
        shape, rows = array.shape[1:] or (1,), array.reshape(len(array), -1).astype(np.float64)
    found = {"min": rows.min(0), "max": rows.max(0), "mean": rows.mean(0), "std": rows.std(0)}
    found |= dict(zip(QUANTILES, np.quantile(rows, [*QUANTILES.values()], axis=0), strict=True))
    return {**{name: each.reshape(shape) for name, each in found.items()}, "count": np.array([len(array)])}


def _combined(parts: list[Stats]) -> Stats:
    """Combine the statistics of episodes as LeRobot does: quantiles are weighted means."""
    every = {name: np.stack([each[name] for each in parts]) for name in parts[0]}
    weights = every["count"][:, 0] / every["count"].sum()
    mean = np.tensordot(weights, every["mean"], 1)
    squares = every["std"] ** 2 + (every["mean"] - mean) ** 2
    found = {name: np.tensordot(weights, every[name], 1) for name in QUANTILES}
    found |= {"mean": mean, "std": np.sqrt(np.tensordot(weights, squares, 1))}
    return {**found, "min": every["min"].min(0), "max": every["max"].max(0), "count": every["count"].sum(0)}


def _tasks(task: str) -> Any:
    name = "__index_level_0__"
    index = {"name": None, "field_name": name, "pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    table = pa.table({"task_index": pa.array([0], pa.int64()), name: [task]})
    return table.replace_schema_metadata({"pandas": json.dumps({"index_columns": [name], "columns": [index]})})
