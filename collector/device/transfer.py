"""How batches of rows reach a device, and come back.

On the CPU nothing is copied: a tensor and its array share memory. On CUDA a round is one copy each way::

    obs (numpy) --memcpy--> page-locked --copy--> device --policy--> action --copy--> page-locked --mark--> numpy

The first memcpy is left out where the observation lies in memory that could be registered with CUDA: the arena of a
vector env with `copy=False`. Copies are queued on the device's current stream, so the policy runs after its
input has arrived and the copy back after the policy; this process waits once a round, for the mark behind the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import numpy as np

from collector.device.link import Link, link_to
from collector.device.pinned_memory import PageLock, address_of
from collector.device.tensors import as_tensor, to_device, torch
from vecenv import nest


class Direct:
    """Moves arrays without staging: shares memory on the CPU; plain copies on devices that are not CUDA."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._shares = device.type == "cpu"

    def to_device(self, tree: Any) -> Any:
        """A tree of `(k, ...)` arrays as tensors on the device."""
        return nest.map(as_tensor, tree) if self._shares else to_device(tree, self.device)

    def to_numpy(self, outputs: dict[str, Any]) -> dict[str, np.ndarray]:
        """Tensors (or what numpy reads as arrays) as arrays."""
        return {name: nest.as_array(value) for name, value in outputs.items()}

    def settle(self) -> None:
        """Nothing is ever on its way."""

    def close(self) -> None:
        """There is nothing to let go."""


class Staged:
    """Moves rounds of rows through page-locked memory, without making this process wait more than once a round.

    Guarantees: no memory is written to while a copy of a round before may still read it, be it a buffer of this object
    or one of `memory`, provided that the owner of `memory` calls `settle` (or `to_numpy`) before it lets anybody write.
    Nothing synchronises the whole device. uint8 goes over as uint8.
    Assumes one thread, and that the policy's work is queued on (or joined to) the device's current stream.

    What `to_device` returns is valid until its next call, unless `fresh` is set: then it belongs to the caller. What
    `to_numpy` returns is valid until its next call. Buffers are allocated in the first round, with `rows` rows; a round
    of k uses the first k. `memory` are arrays that are kept and may hold the observations: each is registered with CUDA
    when the first observation arrives that lies in it, and copied from where it is; where CUDA refuses, it is staged.
    """

    def __init__(
        self,
        device: torch.device,
        rows: int,
        *,
        memory: Sequence[np.ndarray] = (),
        fresh: bool = False,
        link: Link | None = None,
    ) -> None:
        self.device = device
        self._rows = rows
        self._fresh = fresh
        self._link = link_to(device) if link is None else link
        self._memory = [_Memory(array) for array in memory]
        self._inputs: dict[int, _Input] = {}
        self._outputs: dict[str, torch.Tensor] = {}
        self._pending = False

    @property
    def registered(self) -> list[bool]:
        """For each array of `memory`: whether observations are copied from where they lie in it."""
        return [memory.lock is not None for memory in self._memory]

    def to_device(self, tree: Any) -> Any:
        """A tree of `(k, ...)` arrays as tensors on the device: one copy a leaf, which does not block."""
        self.settle()  # the policy of the round before may have raised, and its input still be on its way
        self._pending = True
        numbers = count()
        return nest.map(lambda array: self._send(array, next(numbers)), tree)

    def to_numpy(self, outputs: dict[str, Any]) -> dict[str, np.ndarray]:
        """Tensors of `(k, ...)` as arrays: one copy each, which does not block, then one wait for all of them."""
        arrays = {name: self._fetch(name, value) for name, value in outputs.items()}
        self.settle()
        return arrays

    def settle(self) -> None:
        """Wait for the copies that are on their way; returns at once where there are none."""
        if self._pending:
            self._link.wait(self._link.record())
            self._pending = False

    def close(self) -> None:
        """Let go of all memory, once no copy reads it any more."""
        # A device that has failed copies nothing more, and has told whoever asked it for something.
        with suppress(RuntimeError):
            self.settle()
        self._pending = False
        self._memory.clear()
        self._inputs.clear()
        self._outputs.clear()

    def _send(self, array: np.ndarray, number: int) -> torch.Tensor:
        rows = len(array)
        buffers = self._inputs.get(number)
        if buffers is None or not buffers.fits(array):
            buffers = self._inputs[number] = _Input(self._link, max(self._rows, rows), array)
        source = self._in_place(array)
        if source is None:
            source = buffers.filled(array)
        target = self._link.empty(array.shape, buffers.dtype) if self._fresh else buffers.target(rows)
        if array.size:
            self._link.copy(target, source)
        return target

    def _in_place(self, array: np.ndarray) -> torch.Tensor | None:
        """The array as a tensor, where the device can read its memory by itself."""
        for memory in self._memory:
            if memory.holds(array):
                return memory.tensor(array, self._link)
        return None

    def _fetch(self, name: str, value: Any) -> np.ndarray:
        if not isinstance(value, torch.Tensor) or value.device != self.device or value.dim() == 0:
            return nest.as_array(value)
        if value.dtype is torch.bfloat16:  # of which numpy has none
            value = value.float()
        buffer = self._outputs.get(name)
        if buffer is None or not _fits(buffer, value.shape, value.dtype):
            with torch.inference_mode(False):  # so that it can be written to in any mode
                buffer = self._link.host((max(self._rows, len(value)), *value.shape[1:]), value.dtype)
            self._outputs[name] = buffer
        target = buffer if len(buffer) == len(value) else buffer[: len(value)]
        self._pending = True
        self._link.copy(target, value.detach() if value.requires_grad else value)
        return target.numpy()


def memory_of(venv: Any) -> list[np.ndarray]:
    """The arrays in which a vector env keeps its observations; none where it has no such memory."""
    arena = getattr(venv, "_arena", None)
    return [] if arena is None else [leaf for leaf in nest.leaves(arena.obs) if leaf.dtype != object]


class _Memory:
    """An array that is kept, and whether the device can read it by itself."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self._begin = address_of(array)
        self._end = self._begin + array.nbytes
        self._whole: torch.Tensor | None = None
        self._tried = False
        self.lock: PageLock | None = None

    def holds(self, array: np.ndarray) -> bool:
        """Whether the array is this one, or lies in it in one piece."""
        if array is self._array:
            return True
        begin = address_of(array)
        return self._begin <= begin and begin + array.nbytes <= self._end and array.flags.c_contiguous

    def tensor(self, array: np.ndarray, link: Link) -> torch.Tensor | None:
        """The array as a tensor that the device can read by itself; None where it cannot. Tries once to make it so."""
        if not self._tried:
            self._tried = True
            self.lock = link.register(self._array)
        if self.lock is None:
            return None
        if array is not self._array:
            return as_tensor(array)
        if self._whole is None:
            self._whole = as_tensor(array)
        return self._whole


class _Input:
    """The buffers of one leaf: page-locked memory, and the device's; each made when it is first needed."""

    def __init__(self, link: Link, rows: int, like: np.ndarray) -> None:
        self._link = link
        self._shape = (rows, *like.shape[1:])
        self._array_dtype = like.dtype
        self.dtype = as_tensor(like[:0]).dtype
        self._host: torch.Tensor | None = None
        self._device: torch.Tensor | None = None

    def fits(self, array: np.ndarray) -> bool:
        """Whether this has room for the rows of `array`."""
        return len(array) <= self._shape[0] and array.shape[1:] == self._shape[1:] and array.dtype == self._array_dtype

    def filled(self, array: np.ndarray) -> torch.Tensor:
        """The page-locked rows, with the values of `array`."""
        if self._host is None:
            with torch.inference_mode(False):
                self._host = self._link.host(self._shape, self.dtype)
            self._view = self._host.numpy()
        rows = len(array)
        np.copyto(self._view[:rows], array)
        return self._host if rows == self._shape[0] else self._host[:rows]

    def target(self, rows: int) -> torch.Tensor:
        """The first rows of the device's memory."""
        if self._device is None:
            with torch.inference_mode(False):
                self._device = self._link.empty(self._shape, self.dtype)
        return self._device if rows == self._shape[0] else self._device[:rows]


def _fits(buffer: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> bool:
    return buffer.dtype == dtype and buffer.shape[1:] == tuple(shape[1:]) and len(buffer) >= shape[0]
