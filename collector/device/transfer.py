"""How batches of rows reach a device, and come back.

On the CPU nothing is copied: a tensor and its array share memory. On CUDA a round is one copy each way::

    obs (numpy) --memcpy--> pinned --copy--> device --policy--> action --copy--> pinned --event--> numpy

The memcpy is left out where the observation lies in memory that could be registered with CUDA: the arena of a vector
env with `copy=False`. Copies are queued on the device's current stream, so the policy runs after its input has arrived
and the copy back after the policy; this process waits once a round, for the event behind the last copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np

from collector.device.copier import Copier, copier_for
from collector.device.pinned_memory import Registration, address_of
from collector.device.tensors import as_tensor, to_device, torch
from vecenv import nest


def make_transfer(device: torch.device, rows: int, *, memory: Sequence[np.ndarray] = (), fresh: bool = False) -> Any:
    """The transfer for a device; arguments as for `PinnedTransfer`."""
    if device.type == "cuda":
        return PinnedTransfer(device, rows, memory=memory, fresh=fresh)
    return DirectTransfer(device)


class DirectTransfer:
    """Shares memory on the CPU; makes plain copies on devices that are not CUDA."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._shares = device.type == "cpu"

    def to_device(self, tree: Any) -> Any:
        """A tree of `(k, ...)` arrays as tensors on the device; a leaf that is a tensor is there already."""
        return nest.map(_shared, tree) if self._shares else to_device(tree, self.device)

    def to_numpy(self, outputs: dict[str, Any]) -> dict[str, np.ndarray]:
        """Tensors (or what numpy reads as arrays) as arrays."""
        return {name: nest.as_array(value) for name, value in outputs.items()}

    def settle(self) -> None:
        """No copy is ever in flight."""

    def close(self) -> None:
        """There is nothing to release."""


class PinnedTransfer:
    """Moves rounds of rows through pinned memory; this process waits for the device at most once a round.

    Guarantees: no memory is written to while a copy of a round before may still read it, be it a buffer of this object
    or one of `memory`, provided that the owner of `memory` calls `settle` (or `to_numpy`) before it is written to.
    Nothing synchronises the whole device. uint8 is transferred as uint8.
    Assumes one thread, and that the policy's work is queued on (or joined to) the device's current stream.

    What `to_device` returns is valid until its next call, unless `fresh` is set: then it belongs to the caller. What
    `to_numpy` returns is valid until its next call. Buffers are allocated in the first round, with `rows` rows; a round
    of k uses the first k. `memory` are arrays that are kept and may hold the observations: each is registered with CUDA
    when the first observation arrives that lies in it, and copied from where it is; where CUDA refuses, observations
    are copied into pinned memory first.
    """

    def __init__(
        self,
        device: torch.device,
        rows: int,
        *,
        memory: Sequence[np.ndarray] = (),
        fresh: bool = False,
        copier: Copier | None = None,
    ) -> None:
        self.device = device
        self._rows = rows
        self._fresh = fresh
        self._copier = copier_for(device) if copier is None else copier
        self._memory = [_Memory(array) for array in memory]
        # Keys: the number of a leaf, or the name of an output.
        self._pinned: dict[Any, torch.Tensor] = {}
        self._on_device: dict[Any, torch.Tensor] = {}
        self._in_flight = False

    @property
    def registered(self) -> list[bool]:
        """For each array of `memory`: whether observations are copied from where they lie in it."""
        return [memory.registration is not None for memory in self._memory]

    def to_device(self, tree: Any) -> Any:
        """A tree of `(k, ...)` arrays as tensors on the device: one copy a leaf, which does not block.

        A leaf that is a tensor is there already.
        """
        self.settle()  # a policy that raised may have left its input in flight
        self._in_flight = True
        numbers = count()
        return nest.map(lambda array: self._send(array, next(numbers)), tree)

    def to_numpy(self, outputs: dict[str, Any]) -> dict[str, np.ndarray]:
        """Tensors of `(k, ...)` as arrays: one copy each, which does not block, then one wait for all of them."""
        arrays = {name: self._fetch(name, value) for name, value in outputs.items()}
        self.settle()
        return arrays

    def settle(self) -> None:
        """Wait for the copies that are in flight; returns at once where there are none."""
        if self._in_flight:
            self._copier.wait()
            self._in_flight = False

    def close(self) -> None:
        """Release all memory, once no copy reads it any more."""
        with suppress(RuntimeError):  # a failed device makes no more copies
            self.settle()
        self._in_flight = False
        self._memory.clear()
        self._pinned.clear()
        self._on_device.clear()

    def _send(self, array: Any, number: int) -> torch.Tensor:
        if isinstance(array, torch.Tensor):
            return array
        dtype = _torch_dtype(array.dtype)
        source = next((memory.tensor(array, self._copier) for memory in self._memory if memory.holds(array)), None)
        if source is None:
            source = self._buffer(self._pinned, number, self._copier.pinned, array.shape, dtype)
            np.copyto(source.numpy(), array)
        if self._fresh:
            target = self._copier.empty(array.shape, dtype)
        else:
            target = self._buffer(self._on_device, number, self._copier.empty, array.shape, dtype)
        if array.size:
            self._copier.copy(target, source)
        return target

    def _fetch(self, name: str, value: Any) -> np.ndarray:
        if not isinstance(value, torch.Tensor) or value.device != self.device or value.dim() == 0:
            return nest.as_array(value)
        if value.dtype is torch.bfloat16:  # of which numpy has none
            value = value.float()
        target = self._buffer(self._pinned, name, self._copier.pinned, value.shape, value.dtype)
        self._in_flight = True
        self._copier.copy(target, value.detach() if value.requires_grad else value)
        return target.numpy()

    def _buffer(
        self, buffers: dict[Any, torch.Tensor], key: Any, make: Callable[..., torch.Tensor], shape: Any, dtype: Any
    ) -> torch.Tensor:
        """The first rows of the buffer that is kept under a key, or of a new one where that does not fit."""
        rows, buffer = shape[0], buffers.get(key)
        if buffer is None or buffer.dtype != dtype or buffer.shape[1:] != shape[1:] or len(buffer) < rows:
            with torch.inference_mode(False):  # so that it can be written to in any mode
                buffer = buffers[key] = make((max(self._rows, rows), *shape[1:]), dtype)
        return buffer if len(buffer) == rows else buffer[:rows]


class _Memory:
    """An array that is kept, and whether the device can read it by itself."""

    def __init__(self, array: np.ndarray) -> None:
        self.registration: Registration | None = None
        self._array, self._begin = array, address_of(array)
        self._is_tried = False

    def holds(self, array: np.ndarray) -> bool:
        """Whether the array is this one, or lies in it in one piece."""
        if array is self._array:
            return True
        begin = address_of(array)
        end = self._begin + self._array.nbytes
        return self._begin <= begin and begin + array.nbytes <= end and array.flags.c_contiguous

    def tensor(self, array: np.ndarray, copier: Copier) -> torch.Tensor | None:
        """The array as a tensor that the device can read by itself; None where CUDA refused to register it."""
        if not self._is_tried:
            self._is_tried = True
            self.registration = copier.register(self._array)
        return None if self.registration is None else as_tensor(array)


def _shared(leaf: Any) -> torch.Tensor:
    return leaf if isinstance(leaf, torch.Tensor) else as_tensor(leaf)


@lru_cache
def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return as_tensor(np.empty(0, dtype)).dtype


def memory_of(venv: Any) -> list[np.ndarray]:
    """The arrays in which a vector env keeps its observations; none where it has no such memory."""
    engine = getattr(venv, "engine", None)
    return [] if engine is None else [leaf for leaf in nest.leaves(engine.arena.obs) if leaf.dtype != object]


def own_arrays(transfer: Any, tree: Any) -> Any:
    """The tree with arrays of the caller's own in place of tensors, after one wait; other leaves stay as they are."""
    tensors = {str(i): leaf for i, leaf in enumerate(nest.leaves(tree)) if isinstance(leaf, torch.Tensor)}
    arrays = transfer.to_numpy(tensors)
    if isinstance(transfer, PinnedTransfer):
        arrays = {name: array.copy() for name, array in arrays.items()}
    numbers = count()
    return nest.map(lambda leaf: arrays.get(str(next(numbers)), leaf), tree)
