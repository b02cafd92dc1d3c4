"""Export to Parquet files, or to LeRobot format v3, which has Parquet files with PNG images."""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from collector.episodes.episode import EpisodeBatch
from collector.store import schema
from collector.store.dataset import Dataset, Transitions
from collector.store.safe_folder import DatasetError
from collector.store.schema import TEXT_DTYPE
from collector.store.shard_layout import EpisodeLayout, arrays_of, is_of_obs, refuse_texts
from collector.store.texts import TEXT
from vecenv import nest
from vecenv.arguments import at_least_one

try:
    import pyarrow as pa
    from PIL import Image
    from pyarrow import parquet
except ImportError as error:
    raise ImportError("exports as Parquet need pyarrow and pillow: pip install vecenv[export]") from error

_PLACE = {"episode": pa.int64(), "step": pa.int64(), "is_first": pa.bool_(), "is_last": pa.bool_()}
FILES_A_CHUNK = 1000
FILE_BYTES = 2**26
FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_PNG = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write_parquet(dataset: Dataset, out: Path, *, name: Path) -> None:
    """Write steps.parquet and episodes.parquet.

    The last row of an episode (`is_last`) has only an observation; action, reward and flags are 0 or "". A scalar is a
    number, a text is a large_string, a uint8 array with several dimensions is binary, and any other array is a flat
    list of fixed size.
    """
    layout = dataset.layout
    assert layout is not None
    _check_sizes(layout, "Parquet")
    out.mkdir(parents=True)
    fields = [*(pa.field(*each) for each in _PLACE.items()), *(_field(*each) for each in layout.rows.items())]
    columns = pa.schema(fields, {"head": json.dumps(dataset.head), "layout": schema.dump(layout.line())})
    named = column_names(layout)
    written = pa.schema([each.with_name(named.get(each.name, each.name)) for each in columns], columns.metadata)
    seeds, env_ids = [], []
    with parquet.ParquetWriter(out / "steps.parquet", written, compression="zstd") as writer:
        for block in dataset.blocks():
            found = _rows(block, layout)
            writer.write_table(
                pa.Table.from_arrays([_column_of(found[each.name], each.type) for each in columns], schema=written)
            )
            seeds += block.seed.tolist()
            env_ids += block.env_id.tolist()
    returns = dataset.returns
    numbers = {"episode": dataset.numbers, "length": dataset.lengths}
    numbers["return"] = _column_of(returns, _field("return", np.dtype((returns.dtype, returns.shape[1:]))).type)
    known = pa.array([None if seed < 0 else seed for seed in seeds], pa.int64())
    parquet.write_table(pa.table({**numbers, "seed": known, "env_id": env_ids}), out / "episodes.parquet")


def column_names(layout: EpisodeLayout) -> dict[str, str]:
    """Return column names: `obs.image` instead of `obs.0` for Dict spaces, unless names collide."""
    names = {name: ".".join(map(str, path)) for path, name in nest.items(layout.names)}
    return names if len({*names.values(), *_PLACE}) == len(names) + len(_PLACE) else {}


def _check_sizes(layout: EpisodeLayout, target: str) -> None:
    for path, name in nest.items(layout.names):
        row = layout.rows[name]
        if not row.itemsize:
            raise DatasetError(
                f"{'.'.join(map(str, path))} has the shape {row.shape} without elements, which {target} cannot store: "
                "leave it out when you record"
            )


def _field(name: str, row: np.dtype) -> Any:
    if row == TEXT:
        return pa.field(name, pa.large_string(), metadata={"dtype": TEXT_DTYPE, "shape": "[]"})
    count, kind = math.prod(row.shape), pa.from_numpy_dtype(row.base)
    if row.shape:
        kind = pa.binary(count) if row.base == np.uint8 and len(row.shape) > 1 else pa.list_(kind, count)
    return pa.field(name, kind, metadata={"dtype": row.base.str, "shape": json.dumps(list(row.shape))})


def _column_of(array: np.ndarray, kind: Any) -> Any:
    array = np.ascontiguousarray(array)
    if pa.types.is_fixed_size_binary(kind):
        return pa.Array.from_buffers(kind, len(array), [None, pa.py_buffer(array.data.cast("B"))])
    flat = pa.array(array.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, type=kind) if pa.types.is_fixed_size_list(kind) else flat


def _rows(block: EpisodeBatch, layout: EpisodeLayout) -> dict[str, np.ndarray]:
    of = np.repeat(np.arange(len(block)), block.lengths + 1)
    step = np.arange(len(of)) - (block.offsets[:-1] + np.arange(len(block)))[of]
    is_last = step == block.lengths[of]
    found = {"episode": block.episode[of], "step": step, "is_first": step == 0, "is_last": is_last}
    for name, array in arrays_of(block).items():
        if name in layout.rows and not is_of_obs(name):
            found[name] = np.full((len(of), *array.shape[1:]), "" if array.dtype == TEXT else 0, array.dtype)
            found[name][~is_last] = array
        elif name in layout.rows:
            found[name] = array
    return found


def write_lerobot(
    dataset: Dataset, out: Path, *, name: Path, fps: int = 30, task: str = "", robot_type: str | None = None
) -> None:
    """Write features named `observation.state`, `observation.image` or `observation.KEY`, `action` or `action.KEY`."""
    assert dataset.layout is not None
    _check_sizes(dataset.layout, "LeRobot")
    refuse_texts(dataset.layout, "LeRobot")
    fps = at_least_one("fps", fps)
    job = dataset.head.get("job")
    task = task or (str(job.get("env", name.name)) if isinstance(job, dict) else name.name)
    ends, count = np.cumsum(dataset.lengths), len(dataset)
    begins = ends - dataset.lengths
    file = np.unique(begins * dataset.layout.nbytes(1, 0) // FILE_BYTES, return_inverse=True)[1]
    features: dict[str, Any] = {}
    parts: dict[str, list[Any]] = {}
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
        for key, array in columns.items():
            features.setdefault(key, _feature(array))
            parts.setdefault(key, []).append(_summary(array))
        table = pa.table({key: _arrow(array) for key, array in columns.items()})
        _write(table, out / "data", number)
    zeros = np.zeros(count, np.int64)
    place = {"data/chunk_index": file // FILES_A_CHUNK, "data/file_index": file % FILES_A_CHUNK}
    place |= {"dataset_from_index": begins, "dataset_to_index": ends}
    place |= {"meta/episodes/chunk_index": zeros, "meta/episodes/file_index": zeros}
    tasks = {"episode_index": np.arange(count), "tasks": [[task]] * count, "length": dataset.lengths}
    _write(pa.table(tasks | place), out / "meta/episodes", 0)
    sizes = {"total_episodes": count, "total_frames": dataset.steps, "total_tasks": 1, "chunks_size": FILES_A_CHUNK}
    info = {
        "codebase_version": "v3.0",
        "robot_type": robot_type,
        **sizes,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": fps,
        "splits": {"train": f"0:{count}"},
        "data_path": f"data/{FILE}",
        "video_path": None,
        "features": features,
    }
    stats = {key: _stats(each, features[key]["dtype"] == "image") for key, each in parts.items()}
    (out / "meta/info.json").write_text(json.dumps(info, indent=4))
    (out / "meta/stats.json").write_text(json.dumps(stats, indent=4))
    parquet.write_table(_tasks(task), out / "meta/tasks.parquet")


def _write(table: Any, folder: Path, number: int) -> None:
    chunk, file = divmod(number, FILES_A_CHUNK)
    path = folder / FILE.format(chunk_index=chunk, file_index=file)
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path)


def _columns(frames: Transitions) -> dict[str, np.ndarray]:
    named = [*_named("observation", frames.obs), *_named("action", frames.action)]
    found = dict(named)
    if len(found) < len(named):
        twice = [name for name, count in Counter(name for name, _ in named).items() if count > 1]
        raise DatasetError(
            f"several keys become the feature {twice[0]!r} of LeRobot, because dots and slashes in keys become _: "
            "rename the keys, or export as Parquet"
        )
    if (obs := found.pop("observation", None)) is not None:
        found = {"observation.image" if _is_picture(obs) else "observation.state": obs, **found}
    found |= {name: rows for name, rows in _named("info", frames.info) if rows.dtype != TEXT}
    found |= {"next.reward": frames.reward, "next.terminated": frames.terminated, "next.truncated": frames.truncated}
    found["next.done"] = frames.terminated | frames.truncated
    return {
        key: array if array.ndim < 3 or _is_picture(array) else array.reshape(len(array), -1)
        for key, array in found.items()
    }


def _named(name: str, tree: Any) -> Iterator[tuple[str, np.ndarray]]:
    for path, array in nest.items(tree):
        yield ".".join([name, *(str(key).replace(".", "_").replace("/", "_") for key in path)]), array


def _is_picture(array: np.ndarray) -> bool:
    return array.dtype == np.uint8 and array.ndim == 4 and array.shape[3] in (1, 3)


def _feature(array: np.ndarray) -> dict[str, Any]:
    if _is_picture(array):
        return {"dtype": "image", "shape": list(array.shape[1:]), "names": ["height", "width", "channels"]}
    return {"dtype": array.dtype.name, "shape": list(array.shape[1:]) or [1], "names": None}


def _arrow(array: np.ndarray) -> Any:
    if _is_picture(array):
        return pa.array([{"bytes": _png(picture), "path": None} for picture in array], _PNG)
    if array.ndim == 1 or array.shape[1] == 1:
        return _column_of(array.reshape(-1), pa.from_numpy_dtype(array.dtype))
    return _column_of(array, pa.list_(pa.from_numpy_dtype(array.dtype), array.shape[1]))


def _png(picture: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture[..., 0] if picture.shape[2] == 1 else picture).save(file, "PNG")
    return file.getvalue()


def _summary(array: np.ndarray) -> tuple[Any, ...]:
    is_picture = _is_picture(array)
    rows = array.reshape(-1, array.shape[-1]) / 255.0 if is_picture else array.reshape(len(array), -1).astype(float)
    return rows.sum(0), (rows**2).sum(0), rows.min(0), rows.max(0), len(rows), len(array)


def _stats(parts: list[Any], is_picture: bool) -> dict[str, Any]:
    sums, squares, least, most, rows, frames = zip(*parts, strict=True)
    mean = sum(sums) / sum(rows)
    std = np.sqrt(np.maximum(sum(squares) / sum(rows) - mean**2, 0.0))
    found = {"min": np.minimum.reduce(least), "max": np.maximum.reduce(most), "mean": mean, "std": std}
    shape = (-1, 1, 1) if is_picture else (-1,)
    return {**{key: each.reshape(shape).tolist() for key, each in found.items()}, "count": [sum(frames)]}


def _tasks(task: str) -> Any:
    name = "__index_level_0__"
    index = {"name": None, "field_name": name, "pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    table = pa.table({"task_index": pa.array([0], pa.int64()), name: [task]})
    return table.replace_schema_metadata({"pandas": json.dumps({"index_columns": [name], "columns": [index]})})
