"""Metrics of a job: a line of JSON now and then, for plots and dashboards; and TensorBoard's events."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from collector.store.errors import DatasetError

METRICS = "metrics.jsonl"
LARGEST_LINE = 4096


class Metrics:
    """Appends lines to `metrics.jsonl` of a folder, at most one a `seconds`, and one at the end.

    The numbers of a line: `time` (Unix seconds), `seconds` (of this run), `steps`, `episodes`, `steps_per_second`,
    `mean_return`, `mean_length` (of the last 100 episodes), `skipped`, and `bottleneck`, a text. `tensorboard`: also
    write the numbers as events into the folder `tensorboard` in it. Raises `ImportError` where that is not installed.
    """

    def __init__(self, folder: Path, tensorboard: bool = False, seconds: float = 1.0) -> None:
        self._writer = import_tensorboard()(str(folder / "tensorboard")) if tensorboard else None
        # Not synchronised with the disk: it can be done without.
        self._file = open(folder / METRICS, "a", encoding="utf-8")  # noqa: SIM115
        self._seconds, self._next = seconds, 0.0

    def write(self, read: Callable[[], dict[str, Any]], now: bool = False) -> None:
        """Write a line of what `read` returns if it is time for one, or `now`.

        Raises `DatasetError` where the disk refuses it.
        """
        if not now and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._seconds
        numbers = read()
        try:
            self._file.write(json.dumps({"time": round(time.time(), 3), **numbers}) + "\n")
            self._file.flush()
        except OSError as error:  # the disk is full: it will not take the episodes either
            raise DatasetError(
                f"cannot write to {self._file.name}: {error.strerror}; the episodes committed before are kept"
            ) from error
        if self._writer is not None:
            for name, value in numbers.items():
                if isinstance(value, (int, float)):
                    self._writer.add_scalar(f"job/{name}", value, numbers["steps"])

    def close(self) -> None:
        """Close the files."""
        with suppress(OSError):  # of what could not be written before
            self._file.close()
        if self._writer is not None:
            self._writer.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a folder that are whole; none where there is no file."""
    found: list[dict[str, Any]] = []
    try:
        with open(folder / METRICS, encoding="utf-8", errors="replace") as file:
            while line := file.readline(LARGEST_LINE):
                try:
                    numbers = json.loads(line)
                except (ValueError, RecursionError):  # the last line of a job that was killed
                    continue
                if isinstance(numbers, dict):
                    found.append(numbers)
    except FileNotFoundError:
        pass
    return found


def import_tensorboard() -> Any:
    """TensorBoard's writer. Raises `ImportError` with what to install."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("--tensorboard needs torch and TensorBoard: pip install tensorboard") from error
    return SummaryWriter
