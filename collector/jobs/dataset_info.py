"""Describe the folder of a data set: summary, metrics and chart."""

from __future__ import annotations

import io
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from collector.jobs.job import as_display_record
from collector.jobs.job_progress import METRICS, spread
from collector.jobs.names import TRANSFORM, find_class, is_listed
from collector.store import schema
from collector.store.dataset import Dataset
from collector.store.dataset_folder import check_extra, writing
from collector.store.safe_folder import SafeFolder
from vecenv.transforms.transform import Freezable

PICTURE = "returns.png"
LARGEST_LINE = 4096
SHOWN = ("time", "seconds", "steps_per_second")
LARGEST_NUMBER = 2.0**53


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    try:
        with SafeFolder(folder) as opened:
            fd = opened.open(METRICS)
    except FileNotFoundError:
        return found
    with os.fdopen(fd, "rb") as file:
        while line := file.readline(LARGEST_LINE):
            with suppress(ValueError):  # a kill may cut the last line
                numbers = schema.parse(line)
                if isinstance(numbers, dict) and all(_is_number(numbers[name]) for name in SHOWN if name in numbers):
                    found.append(numbers)
    return found


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < LARGEST_NUMBER


def dataset_info(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Describe a data set as JSON types, without reading its arrays. Raises `DatasetError` if there is no data set.

    - `status`: "complete" or "incomplete".
    - `job`, `repeatable`, `versions`, ...: from dataset.json. Frozen statistics are shown as a file name and hash.
    - `statistics`: a line for each transform with frozen statistics, and for each of vecenv's transforms with
      running statistics.
    - `episodes`, `steps`, `shards`, `bytes`: counts.
    - `returns`, `lengths`: mean, deviation, min and max; null without episodes. A return is the sum of all rewards.
    - `failed`: counts of retries ("retried") and of skipped episodes ("skipped").
    - `seconds`, `steps_per_second`: of the last run; null without metrics.
    """
    data = Dataset(folder)
    job, (*_, last) = data.head.get("job") or {}, ({}, *read_metrics(folder))
    return {
        "folder": os.fspath(folder),
        "status": "complete" if data.complete else "incomplete",
        "job": as_display_record(job) if job else None,
        "statistics": statistics_in_words(job),
        "episodes": len(data),
        "steps": data.steps,
        "returns": spread(data.total_rewards),
        "lengths": spread(data.lengths),
        "failed": data.failed,
        **{name: last.get(name) for name in ("seconds", "steps_per_second")},
        "shards": len(data.shard_files),
        "bytes": data.nbytes,
        **{name: data.head.get(name) for name in ("repeatable", "not_repeatable_because", "versions", "cpu", "device")},
    }


def statistics_in_words(job: dict[str, Any]) -> list[str]:
    """Return the lines of `statistics` in `dataset_info`.

    >>> statistics_in_words({"transforms": ["ToTensorImage", "VecNorm"]})
    ['VecNorm continues its statistics when the job is resumed; not repeatable']
    """
    found = []
    for each in as_display_record(job)["transforms"]:
        entry = each if isinstance(each, dict) else {"call": each}
        name, frozen = str(entry.get("call")), entry.get("frozen")
        if frozen is not None:
            found.append(f"{name} frozen, as in {frozen}")
        elif is_listed(TRANSFORM, name) and issubclass(find_class(TRANSFORM, name), Freezable):
            found.append(f"{name} continues its statistics when the job is resumed; not repeatable")
    return found


def import_figure(advice: str = "") -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"the picture needs matplotlib: pip install 'vecenv[job]'{advice}") from error
    return Figure


def plot_dataset(folder: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Path:
    """Draw the returns and lengths of all episodes, and the speed of the job over time, as a PNG.

    Returns the path: `out`, or `returns.png` in the folder. Raises `DatasetError` if there is no data set or the PNG
    cannot be written, and `ImportError` without matplotlib.
    """
    data, path = Dataset(folder), Path(folder) / PICTURE if out is None else Path(out)
    check_extra(path)
    job = data.head.get("job") or {}
    lines = [line for line in read_metrics(folder) if {"time", "steps_per_second"} <= line.keys()]
    figure = import_figure()(figsize=(8, 8 if lines else 6), layout="constrained")
    axes = figure.subplots(3 if lines else 2)
    _draw_episodes(axes[0], np.asarray(data.total_rewards, float), "return")
    _draw_episodes(axes[1], np.asarray(data.lengths, float), "length")
    axes[0].set_title(f"{job.get('env', Path(folder))}, {job.get('policy', '')}".rstrip(", "), parse_math=False)
    axes[0].legend(loc="upper right")
    axes[1].set_xlabel("episode")
    if lines:
        # The x axis is wall time, so that the time between a kill and a resume shows as a gap.
        times, rates = np.array([(line["time"], line["steps_per_second"]) for line in lines], float).T
        axes[2].plot((times - times[0]) / 60, rates, ".-", color="tab:green", markersize=3, linewidth=0.8)
        axes[2].set(xlabel="minutes", ylabel="steps a second")
        axes[2].set_ylim(bottom=0)
        axes[2].grid(alpha=0.3)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    with writing(path, "`plot --out` takes another place"), SafeFolder(path.parent) as opened:
        opened.write(path.name, content.getvalue())
    return path


def _draw_episodes(axes: Any, values: np.ndarray, name: str) -> None:
    axes.plot(values, ".", color="tab:blue", alpha=0.25, markersize=4, label="an episode", rasterized=True)
    window = max(1, min(len(values) // 10, 500))
    if window > 1:
        sums = np.cumsum(np.concatenate([[0.0], values]))
        means = (sums[window:] - sums[:-window]) / window
        axes.plot(np.arange(len(means)) + window // 2, means, color="tab:red", linewidth=2, label=f"mean of {window}")
    axes.set_ylabel(f"{name} of an episode")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(alpha=0.3)
