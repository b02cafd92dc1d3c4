"""The picture of a data set: returns, lengths and speed."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from collector.job.look.metrics import read_metrics
from collector.store.dataset import Dataset
from collector.store.safe_folder import SafeFolder

try:
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError("the picture needs matplotlib: pip install 'vecenv[job]'; or use --no-plot") from error

PICTURE = "returns.png"


def plot_dataset(folder: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Path:
    """Draw the returns and lengths of all episodes by their number, and the speed of the job over time, as a PNG.

    Returns its path: `out`, or `returns.png` in the folder. Raises `DatasetError` where there is no data set, or no
    episode in it.
    """
    root = Path(folder)
    data = Dataset(root)
    path = root / PICTURE if out is None else Path(out)
    job = data.head.get("job") or {}
    draw(
        path,
        data.returns,
        data.lengths,
        read_metrics(root),
        f"{job.get('env', root)}, {job.get('policy', '')}".rstrip(", "),
    )
    return path


def draw(path: Path, returns: np.ndarray, lengths: np.ndarray, metrics: list[dict[str, Any]], title: str) -> None:
    """Write the picture. `metrics` as `read_metrics` returns them; without any the speed is left out."""
    speed = [
        (line["time"], line["steps_per_second"]) for line in metrics if "time" in line and "steps_per_second" in line
    ]
    figure = Figure(figsize=(8, 8 if speed else 6), layout="constrained")
    axes = figure.subplots(3 if speed else 2)
    for place, values, name in ((axes[0], returns, "return"), (axes[1], lengths, "length")):
        _draw_episodes(place, np.asarray(values, float), name)
    axes[0].set_title(title, parse_math=False)
    axes[0].legend(loc="upper right")
    axes[1].set_xlabel("episode")
    if speed:
        # Seconds in which the job did not run, before it was resumed, are in the picture: as a gap.
        times, rates = np.array(speed, float).T
        axes[2].plot((times - times[0]) / 60, rates, ".-", color="tab:green", markersize=3, linewidth=0.8)
        axes[2].set(xlabel="minutes", ylabel="steps a second")
        axes[2].set_ylim(bottom=0)
        axes[2].grid(alpha=0.3)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    with SafeFolder(path.parent) as folder:
        folder.write(path.name, content.getbuffer())


def _draw_episodes(axes: Any, values: np.ndarray, name: str) -> None:
    """A dot for each episode, and the mean of those around it."""
    axes.plot(values, ".", color="tab:blue", alpha=0.25, markersize=4, label="an episode", rasterized=True)
    window = max(1, min(len(values) // 10, 500))
    if window > 1:
        sums = np.cumsum(np.concatenate([[0.0], values]))
        means = (sums[window:] - sums[:-window]) / window
        axes.plot(np.arange(len(means)) + window // 2, means, color="tab:red", linewidth=2, label=f"mean of {window}")
    axes.set_ylabel(f"{name} of an episode")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(alpha=0.3)
