"""Metrics of a job: a line of JSON now and then, for plots and dashboards; and TensorBoard's events."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from collector.store import schema
from collector.store.errors import DatasetError
from collector.store.safe_folder import SafeFolder

METRICS = "metrics.jsonl"
LARGEST_LINE = 4096
SHOWN = ("time", "seconds", "steps_per_second")
"""What is drawn, and printed."""
LARGEST_NUMBER = 2.0**53


class Metrics:
    """Appends lines to `metrics.jsonl` of a folder, at most one a `seconds`, and one at the end.

    The numbers of a line: `time` (Unix seconds), `seconds` (of this run), `steps`, `episodes`, `steps_per_second`,
    `mean_return`, `mean_length` (of the last 100 episodes), `skipped`, and `bottleneck`, a text. `tensorboard`: also
    write the numbers as events into the folder `tensorboard` in it. Raises `ImportError` where that is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str], tensorboard: bool = False, seconds: float = 1.0) -> None:
        self._path = Path(folder) / METRICS
        self._events = self._writer = None
        with SafeFolder(folder) as opened:
            if tensorboard:
                self._events = opened.inside("tensorboard", make=True)  # it opens the file again for each write
                self._writer = import_tensorboard()(self._events.fd_path)
            # Not synchronised with the disk: it can be done without.
            self._fd = opened.open(METRICS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._seconds, self._next = seconds, 0.0

    def write(self, read: Callable[[], dict[str, Any]], now: bool = False) -> None:
        """Write a line of what `read` returns if it is time for one, or `now`.

        Raises `DatasetError` where the disk refuses it.
        """
        if not now and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._seconds
        numbers = read()
        line = json.dumps({"time": round(time.time(), 3), **numbers}) + "\n"
        try:
            os.write(self._fd, line.encode())
        except OSError as error:  # the disk is full: it will not take the episodes either
            raise DatasetError(
                f"cannot write to {self._path}: {error.strerror}; the episodes committed before are kept"
            ) from error
        if self._writer is not None:
            for name, value in numbers.items():
                if isinstance(value, (int, float)):
                    self._writer.add_scalar(f"job/{name}", value, numbers["steps"])

    def close(self) -> None:
        """Close the files."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        if self._writer is not None:
            self._writer.close()
        if self._events is not None:
            self._events.close()


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of a folder that are whole, and have finite numbers; none where there is no file.

    Raises `DatasetError` where it is no regular file.
    """
    found: list[dict[str, Any]] = []
    try:
        with SafeFolder(folder) as opened:
            fd = opened.open(METRICS)
    except FileNotFoundError:
        return found
    with os.fdopen(fd, "rb") as file:
        while line := file.readline(LARGEST_LINE):
            try:
                numbers = schema.parse(line)
            except ValueError:  # the last line of a job that was killed
                continue
            if isinstance(numbers, dict) and all(_is_number(numbers[name]) for name in SHOWN if name in numbers):
                found.append(numbers)
    return found


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < LARGEST_NUMBER


def import_tensorboard() -> Any:
    """TensorBoard's writer. Raises `ImportError` with what to install."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("--tensorboard needs torch and TensorBoard: pip install tensorboard") from error
    return SummaryWriter
