"""The seam between this process and a device: every call of CUDA that moves data.

A copy is queued and runs later, in the order of the device's stream::

    copier.copy(target, source)    # returns at once: `source` must not be written to, nor `target` read ...
    copier.wait()                  # ... before this has returned
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from collector.device.pinned_memory import Registration, register
from collector.device.tensors import torch


class Copier:
    """Copies between this process and a device that is not CUDA: at once, so there is nothing to wait for."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory of this process that the device can read and write by itself."""
        return torch.empty(shape, dtype=dtype)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory of the device."""
        return torch.empty(shape, dtype=dtype, device=self.device)

    def register(self, array: np.ndarray) -> Registration | None:
        """Let the device read the memory of `array` by itself; None where that cannot be."""
        return None

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy, behind what is queued on the current stream."""
        target.copy_(source)

    def wait(self) -> None:
        """Return when all copies so far have run."""


class CudaCopier(Copier):
    """Pinned memory, copies on the device's current stream, and events. Never waits for the whole device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._streams: set[torch.cuda.Stream] = set()
        """Streams with copies since the last wait: one, unless the caller changed the current stream in between."""
        self._events: dict[torch.cuda.Stream, torch.cuda.Event] = {}

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def register(self, array: np.ndarray) -> Registration | None:
        with torch.cuda.device(self.device):
            registration = register(array, torch.cuda.cudart(), self._clear_error)
        if registration is not None:
            registration.readers.append(self.wait)
        return registration

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._streams.add(torch.cuda.current_stream(self.device))
        target.copy_(source, non_blocking=True)

    def wait(self) -> None:
        streams = list(self._streams)
        self._streams.clear()
        for stream in streams:
            if stream not in self._events:
                self._events[stream] = torch.cuda.Event()
            self._events[stream].record(stream)
        for stream in streams:
            self._events[stream].synchronize()

    def _clear_error(self) -> None:
        """Launch a kernel, after which PyTorch raises and clears a pending CUDA error, and suppress that error."""
        with suppress(RuntimeError):
            torch.ones(1, device=self.device)


def copier_for(device: torch.device) -> Copier:
    """The copier of a device."""
    return CudaCopier(device) if device.type == "cuda" else Copier(device)
