"""`JobProgress` and `JobState`: the figures of a job while it runs; `Metrics` writes them to the folder."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from collector.jobs.job import Job
from collector.store.dataset_folder import writing
from collector.store.safe_folder import SafeFolder

METRICS = "metrics.jsonl"
METRICS_SECONDS = 1.0
RECENT = 100
"""Episodes in a mean that is shown while a job runs."""
LARGEST_SQUARED = 1e140
"""Sums of squares of this number are finite."""


@dataclass(kw_only=True)
class JobProgress:
    """The figures of a run, which its player keeps."""

    frames: int = 0
    """Steps that were taken in this run, those of unfinished episodes included."""
    retried: int = 0
    """The number of times that an episode whose env had failed was played again in this run."""
    skipped: dict[int, str] = field(default_factory=dict)
    """Numbers of the episodes that were given up in this run, with the last error of each."""
    notes: list[str] = field(default_factory=list)
    """Remarks about a run that was resumed, and the tasks on a cluster."""
    bottleneck: str = ""
    """The work that takes most of the time, and its share: "envs 80 %"; "idle" is the time to store episodes."""


@dataclass(repr=False, kw_only=True)
class JobState(JobProgress):
    """The progress of a job, passed to `on_progress` and returned at its end."""

    job: Job
    out: Path
    steps: int = 0
    """Steps of the whole episodes, those of earlier runs included."""
    episodes: int = 0
    """Whole episodes, those of earlier runs included."""
    returns: list[float] = field(default_factory=list)
    """The return of each episode of this run, in the order of their ends."""
    lengths: list[int] = field(default_factory=list)
    seconds: float = 0.0
    """Seconds since the first step of this run."""
    workers: int = 1
    actors: int = 0
    """The number of tasks that play at once on a Ray cluster, each with the envs and workers of the job; 0: the job
    runs in this process."""
    device: str = "cpu"
    status: str = "failed"
    """"complete" or "interrupted" once the job has ended so; "failed" before."""
    signum: int = 0
    """The signal that ended the job; 0: none did."""
    repeatable: bool = False
    """True if another run of the job gives the same bits."""

    @property
    def steps_per_second(self) -> float:
        """Steps collected a second in this run."""
        return self.frames / self.seconds if self.seconds else 0.0

    @property
    def done(self) -> float:
        """The share of the job that is done."""
        if self.job.episodes is not None:
            return min(1.0, self.episodes / self.job.episodes)
        return min(1.0, self.steps / (self.job.steps or 1))

    @property
    def recent_return(self) -> float:
        """The mean return of the last 100 episodes; NaN where there are none."""
        found = spread(np.array(self.returns[-RECENT:]))
        return found["mean"] if found else float("nan")

    @property
    def mean_return(self) -> tuple[float, float]:
        """The mean return of all episodes of this run, and half of its 95 % confidence interval; NaN without episodes,
        and for the interval of a single episode.
        """
        found, count = spread(np.array(self.returns)), len(self.returns)
        if not found:
            return float("nan"), float("nan")
        return found["mean"], 1.96 * found["std"] / (count - 1) ** 0.5 if count > 1 else float("nan")

    def returns_in_words(self) -> str:
        """The mean return of this run, and of its last 100 episodes."""
        mean, half = self.mean_return
        text = f"mean return {mean:,.1f}" + (f" \N{PLUS-MINUS SIGN} {half:,.1f}" if half == half else "")
        return f"{text} (last {RECENT}: {self.recent_return:,.1f})" if len(self.returns) > RECENT else text

    def add(self, lengths: list[int], returns: list[float]) -> None:
        """Count whole episodes of these lengths and returns."""
        self.lengths += lengths
        self.returns += returns
        self.episodes += len(lengths)
        self.steps += sum(lengths)

    def metrics(self) -> dict[str, Any]:
        """The figures for a line of `metrics.jsonl`."""
        means = {"mean_return": self.recent_return, "mean_length": float(np.mean(self.lengths[-RECENT:] or [0]))}
        return {
            "seconds": round(self.seconds, 3),
            "steps": self.steps,
            "episodes": self.episodes,
            "steps_per_second": round(self.steps_per_second, 1),
            **(means if self.returns else {}),
            "skipped": len(self.skipped),
            "bottleneck": self.bottleneck,
        }

    def __repr__(self) -> str:
        figures = f"{self.episodes:,} episodes, {self.steps:,} steps, {self.steps_per_second:,.0f} steps/s"
        means = f", {self.returns_in_words()}" if self.returns else ""
        return f"JobState({self.job.env} in {self.out}, {self.status}: {figures}{means}, {len(self.skipped)} skipped)"


def spread(values: np.ndarray) -> dict[str, float] | None:
    """Mean, deviation, min and max; None of no values.

    >>> spread(np.array([1.0, 3.0]))
    {'mean': 2.0, 'std': 1.0, 'min': 1.0, 'max': 3.0}
    """
    if not len(values):
        return None
    values, largest = np.asarray(values, np.float64), float(np.abs(values).max())
    scale = 1.0 if largest < LARGEST_SQUARED else largest  # so that neither a sum nor a square overflows
    return {name: float(getattr(values / scale, name)()) * scale for name in ("mean", "std", "min", "max")}


class Metrics:
    """Appends lines to `metrics.jsonl` of a folder, at most one a second, and one at the end.

    The numbers of a line: `time` (Unix seconds), `seconds` (of this run), `steps`, `episodes`, `steps_per_second`,
    `mean_return`, `mean_length` (of the last 100 episodes), `skipped`, and `bottleneck`, a text. `tensorboard`: also
    write the numbers as events into the folder `tensorboard` in it. Raises `ImportError` where that is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str], tensorboard: bool = False) -> None:
        self._path, self._next, self._events = Path(folder) / METRICS, 0.0, None
        with ExitStack() as files, SafeFolder(folder) as opened:
            if tensorboard:
                inner = files.enter_context(opened.inside("tensorboard", make=True))
                # It opens the file again for each write.
                self._events = files.enter_context(closing(import_tensorboard()(inner.fd_path)))
            # Not synchronised with the disk: it can be done without.
            fd = opened.open(METRICS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            self._file = files.enter_context(open(fd, "ab", buffering=0))
            self.close = files.pop_all().close

    def write(self, read: Callable[[], dict[str, Any]], now: bool = False) -> None:
        """Write a line of what `read` returns if it is time for one, or `now`.

        Raises `DatasetError` where the disk refuses it.
        """
        if not now and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + METRICS_SECONDS
        numbers = read()
        line = json.dumps({"time": round(time.time(), 3), **numbers}) + "\n"
        with writing(self._path, "the episodes committed before are kept"):  # a full disk takes no episodes either
            self._file.write(line.encode())
        if self._events is not None:
            for name, value in numbers.items():
                if isinstance(value, (int, float)):
                    self._events.add_scalar(f"job/{name}", value, numbers["steps"])


def import_tensorboard() -> Any:
    """TensorBoard's writer. Raises `ImportError` with what to install."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("--tensorboard needs torch and TensorBoard: pip install tensorboard") from error
    return SummaryWriter
