"""The picture of a collection: returns over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from collector.job.store import write_atomically

try:
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError("the picture of returns needs matplotlib: pip install vecenv[job]; or use --no-plot") from error


def draw_returns(path: Path, returns: Sequence[float], lengths: Sequence[int], title: str) -> None:
    """Write a PNG: the return of each episode at the step with which it ended, and the mean of those around it."""
    values, steps = np.asarray(returns, float), np.cumsum(lengths)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, values, ".", color="tab:blue", alpha=0.25, markersize=4, label="an episode", rasterized=True)
    window = max(1, min(len(values) // 10, 500))
    if window > 1:
        sums = np.cumsum(np.concatenate([[0.0], values]))
        middle = slice(window // 2, window // 2 + len(values) - window + 1)
        means = (sums[window:] - sums[:-window]) / window
        axes.plot(steps[middle], means, color="tab:red", linewidth=2, label=f"mean of {window} episodes")
    axes.set(title=title, xlabel="steps collected", ylabel="return of an episode")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper right")
    write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=120))
