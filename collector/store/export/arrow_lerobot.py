"""LeRobot's format, version 3: data and episodes in Parquet, pictures as PNG in them, the rest in meta/."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from collector.episodes.episode import EpisodeBatch
from collector.store.dataset import Dataset
from collector.store.export.arrow_parquet import column_of
from collector.store.packed import arrays_of, layout_of, offsets_of
from collector.store.safe_folder import DatasetError
from vecenv import nest

try:
    import pyarrow as pa
    from PIL import Image
    from pyarrow import parquet
except ImportError as error:
    raise ImportError("the export for LeRobot needs pyarrow and pillow: pip install vecenv[export]") from error

FILES_A_CHUNK = 1000
FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
COUNTERS = ("frame_index", "episode_index", "index", "task_index")
_PNG = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write(
    dataset: Dataset, out: Path, *, name: Path, fps: int = 30, task: str = "", robot_type: str | None = None
) -> None:
    """See `export`. `observation.state` or `observation.image`, or `observation.KEY` of trees; `action` likewise."""
    job = dataset.head.get("job")
    task = task or (str(job.get("env", name.name)) if isinstance(job, dict) else name.name)
    names = _names(dataset)
    features: dict[str, Any] = {}
    stats: dict[str, _Stats] = {}
    episodes: list[dict[str, Any]] = []
    frames = 0
    for number, block in enumerate(dataset.blocks()):
        chunk, file = divmod(number, FILES_A_CHUNK)
        columns = _frames(block, names)
        of, steps = np.repeat(np.arange(len(block)), block.lengths), np.arange(len(block.reward))
        frame = steps - offsets_of(block)[:-1][of]
        columns["timestamp"] = (frame / fps).astype(np.float32)
        indices = (frame, len(episodes) + of, frames + steps, np.zeros_like(steps))
        columns |= dict(zip(COUNTERS, indices, strict=True))
        features = features or {key: _feature(key, array) for key, array in columns.items()}
        for key, array in columns.items():
            stats.setdefault(key, _Stats()).add(array, features[key]["dtype"] == "image")
        path = out / "data" / FILE.format(chunk_index=chunk, file_index=file)
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.table({key: _column(array, features[key]) for key, array in columns.items()}), path)
        first = frames + offsets_of(block)
        for i, length in enumerate(block.lengths.tolist()):
            place = {"data/chunk_index": chunk, "data/file_index": file}
            meta = {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
            bounds = {"dataset_from_index": int(first[i]), "dataset_to_index": int(first[i + 1])}
            episodes.append(
                {"episode_index": len(episodes), "tasks": [task], "length": length, **place, **bounds, **meta}
            )
        frames += len(steps)
    sizes = {"total_episodes": len(episodes), "total_frames": frames, "total_tasks": 1, "chunks_size": FILES_A_CHUNK}
    info = {
        "codebase_version": "v3.0",
        "robot_type": robot_type,
        **sizes,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": fps,
        "splits": {"train": f"0:{len(episodes)}"},
        "data_path": f"data/{FILE}",
        "video_path": None,
        "features": features,
    }
    listed = out / "meta/episodes" / FILE.format(chunk_index=0, file_index=0)
    listed.parent.mkdir(parents=True)
    parquet.write_table(pa.Table.from_pylist(episodes), listed)
    (out / "meta/info.json").write_text(json.dumps(info, indent=4))
    (out / "meta/stats.json").write_text(json.dumps({key: each.as_json() for key, each in stats.items()}, indent=4))
    parquet.write_table(_tasks(task), out / "meta/tasks.parquet")


def _names(dataset: Dataset) -> dict[str, str]:
    """The names of LeRobot's features, by those of the arrays."""
    layout = dataset.layout
    if layout is None:
        raise DatasetError(f"{dataset.folder} has no episodes yet")
    found = {"reward": "next.reward", "terminated": "next.terminated", "truncated": "next.truncated"}
    if layout.obs == "obs":
        found["obs"] = (
            "observation.image"
            if _is_picture(layout.columns["obs"].dtype, layout.columns["obs"].shape)
            else "observation.state"
        )
    for prefix, tree in (("observation", layout.obs), ("action", layout.action)):
        for path, leaf in _paths(tree):
            found.setdefault(leaf, ".".join([prefix, *path]))
    return found


def _paths(tree: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], str]]:
    if isinstance(tree, (dict, tuple)):
        parts = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return [
            each for key, part in parts for each in _paths(part, (*path, str(key).replace(".", "_").replace("/", "_")))
        ]
    return [(path, tree)]


def _frames(block: EpisodeBatch, names: dict[str, str]) -> dict[str, np.ndarray]:
    """The arrays by feature, a row a step: without the last observations."""
    rows = np.delete(np.arange(len(block.reward) + len(block)), np.cumsum(block.lengths) + np.arange(len(block)))
    found = {}
    layout, arrays = layout_of(block), arrays_of(block)
    for key in [*nest.leaves(layout.obs), *nest.leaves(layout.action), "reward", "terminated", "truncated"]:
        array = arrays[key][rows] if layout.is_of_obs(key) else arrays[key]
        found[names[key]] = (
            array if array.ndim < 3 or _is_picture(array.dtype, array.shape[1:]) else array.reshape(len(array), -1)
        )
    return found | {"next.done": block.terminated | block.truncated}


def _is_picture(dtype: np.dtype, shape: tuple[int, ...]) -> bool:
    return dtype == np.uint8 and len(shape) == 3 and shape[2] in (1, 3)


def _feature(name: str, array: np.ndarray) -> dict[str, Any]:
    if _is_picture(array.dtype, array.shape[1:]):
        return {"dtype": "image", "shape": list(array.shape[1:]), "names": ["height", "width", "channels"]}
    return {"dtype": array.dtype.name, "shape": list(array.shape[1:]) or [1], "names": None}


def _column(array: np.ndarray, feature: dict[str, Any]) -> Any:
    if feature["dtype"] == "image":
        return pa.array([{"bytes": _png(picture), "path": None} for picture in array], _PNG)
    if array.ndim == 1 or array.shape[1] == 1:
        return column_of(array.reshape(-1), pa.from_numpy_dtype(array.dtype))
    return column_of(array, pa.list_(pa.from_numpy_dtype(array.dtype), array.shape[1]))


def _png(picture: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture[..., 0] if picture.shape[2] == 1 else picture).save(file, "PNG")
    return file.getvalue()


class _Stats:
    """Least, largest, mean and deviation of each number of a feature; of pictures of each channel, from 0 to 1."""

    def __init__(self) -> None:
        self._count = self._rows = 0
        self._sums: Any = 0.0
        self._squares: Any = 0.0
        self._least: Any = np.inf
        self._most: Any = -np.inf
        self._picture = False

    def add(self, array: np.ndarray, picture: bool) -> None:
        """Count these rows."""
        self._picture = picture
        self._rows += len(array)
        rows = array.reshape(-1, array.shape[-1]) / 255.0 if picture else array.reshape(len(array), -1).astype(float)
        self._count += len(rows)
        self._sums, self._squares = self._sums + rows.sum(0), self._squares + (rows**2).sum(0)
        self._least, self._most = np.minimum(self._least, rows.min(0)), np.maximum(self._most, rows.max(0))

    def as_json(self) -> dict[str, Any]:
        """As meta/stats.json has it."""
        mean = self._sums / self._count
        std = np.sqrt(np.maximum(self._squares / self._count - mean**2, 0.0))
        found = {"min": self._least, "max": self._most, "mean": mean, "std": std}
        shaped = {key: (each.reshape(-1, 1, 1) if self._picture else each).tolist() for key, each in found.items()}
        return {**shaped, "count": [self._rows]}


def _tasks(task: str) -> Any:
    """The table of tasks, whose index in pandas is the text of each."""
    index = "__index_level_0__"
    columns = [
        {
            "name": "task_index",
            "field_name": "task_index",
            "pandas_type": "int64",
            "numpy_type": "int64",
            "metadata": None,
        },
        {"name": None, "field_name": index, "pandas_type": "unicode", "numpy_type": "object", "metadata": None},
    ]
    of_columns = {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    pandas = {"index_columns": [index], "column_indexes": [of_columns], "columns": columns, "pandas_version": "2.0.0"}
    table = pa.table({"task_index": pa.array([0], pa.int64()), index: [task]})
    return table.replace_schema_metadata({"pandas": json.dumps(pandas)})
