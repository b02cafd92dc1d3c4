"""The seam between this process and a device: everything that is asked of CUDA to move data, in six methods.

A copy is queued and runs later, in the order of the device's stream; a mark says when it has run::

    link.copy(target, source)      # returns at once: `source` must not be written to, nor `target` read ...
    link.wait(link.record())       # ... until here
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any

import numpy as np

from collector.device.pinned_memory import PageLock, lock_pages
from collector.device.tensors import torch


class Link(ABC):
    """Moves data between the memory of this process and one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @abstractmethod
    def host(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory of this process that the device can read and write by itself."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory of the device."""
        return torch.empty(shape, dtype=dtype, device=self.device)

    @abstractmethod
    def register(self, array: np.ndarray) -> PageLock | None:
        """Let the device read the memory of `array` by itself while the lock lives; None where that cannot be."""

    @abstractmethod
    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy, behind what is queued on the current stream."""

    @abstractmethod
    def record(self) -> Any:
        """A mark behind all copies that were queued since the last one."""

    @abstractmethod
    def wait(self, mark: Any) -> None:
        """Return when everything before the mark has run."""


class HostLink(Link):
    """For devices that are not CUDA: copies run at once, so there is nothing to wait for."""

    def host(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    def register(self, array: np.ndarray) -> PageLock | None:
        return None

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source)

    def record(self) -> None:
        return None

    def wait(self, mark: Any) -> None:
        return None


class CudaLink(Link):
    """Page-locked memory, copies on the device's current stream, and events. Never waits for the whole device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._streams: set[torch.cuda.Stream] = set()
        """Those with copies since the last mark: one, unless the caller changed the current stream in between."""
        self._events: dict[torch.cuda.Stream, torch.cuda.Event] = {}

    def host(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def register(self, array: np.ndarray) -> PageLock | None:
        with torch.cuda.device(self.device):
            lock = lock_pages(array, torch.cuda.cudart(), self._clear_error)
        if lock is not None:
            lock.readers.append(self._settle)
        return lock

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._streams.add(torch.cuda.current_stream(self.device))
        target.copy_(source, non_blocking=True)

    def record(self) -> list[torch.cuda.Event]:
        marks = []
        for stream in self._streams:
            if stream not in self._events:
                self._events[stream] = torch.cuda.Event()
            event = self._events[stream]
            event.record(stream)
            marks.append(event)
        self._streams.clear()
        return marks

    def wait(self, mark: list[torch.cuda.Event]) -> None:
        for event in mark:
            event.synchronize()

    def _settle(self) -> None:
        self.wait(self.record())

    def _clear_error(self) -> None:
        """PyTorch takes back and raises an error that it finds after launching a kernel: let this one find it."""
        with suppress(RuntimeError):
            torch.ones(1, device=self.device)


def link_to(device: torch.device) -> Link:
    """The way to a device."""
    return CudaLink(device) if device.type == "cuda" else HostLink(device)
