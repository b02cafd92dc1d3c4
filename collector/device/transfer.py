"""Transfers of rows between this process and a device.

On the CPU nothing is copied: a tensor and its array share memory. On CUDA a round is one copy each way::

    obs (numpy) --memcpy--> pinned --copy--> device --policy--> action --copy--> pinned --event--> numpy

Copies are queued on the device's current stream, so the policy runs after its input has arrived and the copy back after
the policy; this process waits once a round, for the event behind the last copy.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np

from collector.device.tensors import as_tensor, to_device, torch
from vecenv import nest


class Transfer:
    """Moves rounds of rows to a device and back; this process waits for the device at most once a round.

    No pinned buffer is written to while a copy may still read it, and nothing synchronises the whole
    device. Dtypes stay as they are (uint8 is transferred as uint8), but bfloat16 comes back as float32.
    Assumes one thread, and that the policy's work is queued on (or joined to) the device's current stream.

    Tensors of `to_device` belong to the caller; those on the CPU share memory with the arrays. Arrays of `to_numpy` are
    valid until its next call. Buffers are made in the first round, with `rows` rows; a round of k uses the first k.
    """

    def __init__(self, device: torch.device, rows: int) -> None:
        self.device, self._rows = device, rows
        self.is_staged = device.type == "cuda"
        """Whether copies go through pinned memory."""
        self._pinned: dict[int | str, torch.Tensor] = {}
        """Buffers by the number of a leaf on its way to the device, and the name of an output."""
        self._in_flight = False
        self._event: Any = None
        self._stream: Any = None

    def to_device(self, tree: Any) -> Any:
        """A tree of `(k, ...)` arrays as tensors on the device: one copy a leaf, which does not block.

        Leaves may be tensors. Raises `TypeError` where torch has no such dtype.
        """
        if not self.is_staged:
            return to_device(tree, self.device)
        self.settle()  # a policy that raised may have left its input in flight
        numbers = count()
        try:
            return nest.map(lambda leaf: self._send(leaf, next(numbers)), tree)
        finally:
            self.record()
            self._in_flight = True

    def to_numpy(self, outputs: dict[str, Any]) -> dict[str, np.ndarray]:
        """Tensors of `(k, ...)` as arrays: one copy each, which does not block, then one wait for all of them."""
        if not self.is_staged:
            return {name: nest.as_array(value) for name, value in outputs.items()}
        arrays = {name: self._fetch(name, value) for name, value in outputs.items()}
        self.record()
        self._in_flight = True
        self.settle()
        return arrays

    def own_arrays(self, tree: Any) -> Any:
        """The tree with arrays of the caller's own in place of tensors, after one wait; other leaves stay."""
        tensors = {str(i): leaf for i, leaf in enumerate(nest.leaves(tree)) if isinstance(leaf, torch.Tensor)}
        if not tensors:
            return tree
        arrays, numbers = self.to_numpy(tensors), count()
        if self.is_staged:
            arrays = {name: array.copy() for name, array in arrays.items()}
        return nest.map(lambda leaf: arrays.get(str(next(numbers)), leaf), tree)

    def settle(self) -> None:
        """Wait for the copies that are in flight; returns at once where there are none."""
        if self._in_flight:
            self.wait()
            self._in_flight = False

    def _send(self, array: Any, number: int) -> torch.Tensor:
        if isinstance(array, torch.Tensor):
            return array.to(self.device)
        source = self._buffer(number, array.shape, as_tensor(array[:0]).dtype)
        np.copyto(source.numpy(), array)
        return self.upload(source)

    def _fetch(self, name: str, value: Any) -> np.ndarray:
        if not isinstance(value, torch.Tensor) or value.device != self.device or value.dim() == 0:
            return nest.as_array(value)
        if value.dtype is torch.bfloat16:  # of which numpy has none
            value = value.float()
        target = self._buffer(name, value.shape, value.dtype)
        self.download(target, value.detach())
        return target.numpy()

    def _buffer(self, key: int | str, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        """The first rows of the buffer that is kept under a key, or of a new one where that does not fit."""
        rows, buffer = shape[0], self._pinned.get(key)
        if buffer is None or buffer.dtype != dtype or buffer.shape[1:] != shape[1:] or len(buffer) < rows:
            with torch.inference_mode(False):  # so that it can be written to in any mode
                buffer = self._pinned[key] = self.pinned((max(self._rows, rows), *shape[1:]), dtype)
        return buffer[:rows]

    # The calls of CUDA.

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory of this process that the device can read and write by itself."""
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def upload(self, source: torch.Tensor) -> torch.Tensor:
        """Queue a copy of pinned memory to the device."""
        return source.to(self.device, non_blocking=True)

    def download(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy of a tensor on the device to pinned memory."""
        target.copy_(source, non_blocking=True)

    def record(self) -> None:
        """Record the event behind all copies so far on the current stream; those on another one have run then."""
        stream = torch.cuda.current_stream(self.device)
        if self._event is None:
            self._event = torch.cuda.Event()
        elif self._in_flight and stream != self._stream:
            self._event.synchronize()
        self._event.record(stream)
        self._stream = stream

    def wait(self) -> None:
        """Return when the copies before the event have run."""
        self._event.synchronize()
