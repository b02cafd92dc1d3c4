"""`JobProgress`, `JobState`: counts and speed of a running job. `Metrics`: writer of metrics.jsonl."""

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
LARGEST_SQUARED = 1e140


@dataclass(kw_only=True)
class JobProgress:
    frames: int = 0
    """Steps of this run, unfinished episodes included."""
    retried: int = 0
    """Number of episodes that were played again."""
    skipped: dict[int, str] = field(default_factory=dict)
    """Last error of each episode skipped in this run, by episode number."""
    notes: list[str] = field(default_factory=list)
    """Texts for the user, for example about failed tasks."""
    bottleneck: str = ""
    """Slowest kind of work, and its share of time: "envs 80 %". The collector is "idle" while episodes are stored."""


@dataclass(repr=False, kw_only=True)
class JobState(JobProgress):
    """Progress of a job, passed to `on_progress` and returned by `run_job`."""

    job: Job
    out: Path
    steps: int = 0
    """Steps of whole episodes, earlier runs included."""
    episodes: int = 0
    """Whole episodes, earlier runs included."""
    returns: list[float] = field(default_factory=list)
    """Returns of this run's episodes, in the order of their ends."""
    lengths: list[int] = field(default_factory=list)
    """Lengths of this run's episodes, in the order of their ends."""
    seconds: float = 0.0
    """Duration of this run."""
    workers: int = 1
    """Number of workers; 0 if the envs are in this process."""
    actors: int = 0
    """Number of parallel tasks on a Ray cluster; 0 without a cluster."""
    device: str = "cpu"
    """Device of the policy."""
    status: str = "failed"
    """"complete", "interrupted" or "failed". While the job runs, "failed"."""
    signum: int = 0
    """Number of the signal that ended the job, or 0."""
    repeatable: bool = False
    """True if another run of the job plays bitwise equal episodes, as far as the test of the env shows."""

    @property
    def steps_per_second(self) -> float:
        """Speed of this run."""
        return self.frames / self.seconds if self.seconds else 0.0

    @property
    def done(self) -> float:
        """Finished share of the job."""
        if self.job.episodes is not None:
            return min(1.0, self.episodes / self.job.episodes)
        return min(1.0, self.steps / (self.job.steps or 1))

    @property
    def recent_return(self) -> float:
        """Mean return of this run's last 100 episodes. NaN without episodes."""
        found = spread(np.array(self.returns[-RECENT:]))
        return found["mean"] if found else float("nan")

    @property
    def mean_return(self) -> tuple[float, float]:
        """Mean return of this run, and half the width of its 95 % confidence interval. NaN with too few episodes."""
        found, count = spread(np.array(self.returns)), len(self.returns)
        if not found:
            return float("nan"), float("nan")
        return found["mean"], 1.96 * found["std"] / (count - 1) ** 0.5 if count > 1 else float("nan")

    def returns_in_words(self) -> str:
        """Return the mean return with its uncertainty, as text."""
        mean, half = self.mean_return
        text = f"mean return {mean:,.1f}" + (f" \N{PLUS-MINUS SIGN} {half:,.1f}" if half == half else "")
        return f"{text} (last {RECENT}: {self.recent_return:,.1f})" if len(self.returns) > RECENT else text

    def add(self, lengths: list[int], returns: list[float]) -> None:
        """Count episodes that have ended."""
        self.lengths += lengths
        self.returns += returns
        self.episodes += len(lengths)
        self.steps += sum(lengths)

    def metrics(self) -> dict[str, Any]:
        """Return the figures of a line of metrics.jsonl."""
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
    """Return mean, standard deviation, minimum and maximum; None without values.

    >>> spread(np.array([1.0, 3.0]))
    {'mean': 2.0, 'std': 1.0, 'min': 1.0, 'max': 3.0}
    """
    if not len(values):
        return None
    values, largest = np.asarray(values, np.float64), float(np.abs(values).max())
    scale = 1.0 if largest < LARGEST_SQUARED else largest  # avoids overflow of sums and squares
    return {name: float(getattr(values / scale, name)()) * scale for name in ("mean", "std", "min", "max")}


class Metrics:
    """Writer of `metrics.jsonl`: at most one line per second, and one at the end.

    A line has `time` (Unix seconds), `seconds` (of this run), `steps`, `episodes`, `steps_per_second`, `mean_return`
    and `mean_length` (of this run's last 100 episodes; missing before the first), `skipped` and `bottleneck` (a text).
    With `tensorboard`, the numbers are also events in the subfolder `tensorboard`.
    """

    def __init__(self, folder: str | os.PathLike[str], tensorboard: bool = False) -> None:
        self._path, self._next, self._events = Path(folder) / METRICS, 0.0, None
        with ExitStack() as files, SafeFolder(folder) as opened:
            if tensorboard:
                inner = files.enter_context(opened.inside("tensorboard", make=True))
                # TensorBoard reopens `fd_path` for each write. The path is valid only while `inner` is open.
                self._events = files.enter_context(closing(import_tensorboard()(inner.fd_path)))
            # No fsync, because losing metrics is harmless.
            fd = opened.open(METRICS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            self._file = files.enter_context(open(fd, "ab", buffering=0))
            self.close = files.pop_all().close

    def write(self, read: Callable[[], dict[str, Any]], now: bool = False) -> None:
        """Write the result of `read`, at most once per second unless `now`. Raises `DatasetError` if a write fails."""
        if not now and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + METRICS_SECONDS
        numbers = read()
        line = json.dumps({"time": round(time.time(), 3), **numbers}) + "\n"
        with writing(self._path, "the episodes committed before are kept"):
            self._file.write(line.encode())
        if self._events is not None:
            for name, value in numbers.items():
                if isinstance(value, (int, float)):
                    self._events.add_scalar(f"job/{name}", value, numbers["steps"])


def import_tensorboard() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("--tensorboard needs torch and TensorBoard: pip install tensorboard") from error
    return SummaryWriter
