"""Convert arrays to tensors and back, and transfer rows between CPU and device.

All modules that need torch import it from here, so that one message names what to install.

On the CPU nothing is copied: a tensor and its array share memory. On CUDA a round is one copy each way::

    obs (numpy) --memcpy--> pinned --copy--> device --policy--> action --copy--> pinned --event--> numpy

Copies are queued on the device's current stream, so the policy runs after its input has arrived and the copy back after
the policy; this process waits once a round, for the event behind the last copy.
"""

from __future__ import annotations

import copy
from itertools import count
from typing import Any

import numpy as np

from vecenv import nest

try:
    import torch as torch
except ImportError as error:
    raise ImportError(
        "policies, batches and vector envs with tensors need PyTorch: pip install 'vecenv[torch]'"
    ) from error


def tensors_of(policy: Any) -> list[torch.Tensor]:
    """The parameters and buffers of a module; nothing for another policy."""
    return [*policy.parameters(), *policy.buffers()] if isinstance(policy, torch.nn.Module) else []


def is_lazy(policy: Any) -> bool:
    """Return whether it is a module that makes some of its parameters in its first call."""
    return any(map(torch.nn.parameter.is_lazy, tensors_of(policy)))


def moved(policy: Any, device: torch.device) -> Any:
    """The policy, or a copy of it on the device where it is a module that is elsewhere."""
    if all(tensor.device == device for tensor in tensors_of(policy)):
        return policy
    # The copy draws from the module's own generators: seeding one of those seeds the copy too.
    values = [value for module in policy.modules() for value in vars(module).values()]
    kept = {id(value): value for value in values if isinstance(value, torch.Generator)}
    return copy.deepcopy(policy, kept).to(device)


def resolve_device(device: Any) -> torch.device:
    """`device` as a `torch.device` with an index where it is CUDA; "auto" is CUDA where there is one, else the CPU.

    Raises `ValueError` where a CUDA device is named that PyTorch does not see.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    resolved = torch.device(device)
    if resolved.type != "cuda":
        return resolved
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = resolved.index if resolved.index is not None else (torch.cuda.current_device() if seen else 0)
    if index >= seen:
        raise ValueError(f"there is no device {device}: PyTorch sees {seen} CUDA devices; use 'cpu' or 'auto'")
    return torch.device("cuda", index)


def to_device(tree: Any, device: Any) -> Any:
    """Numpy arrays or tensors as tensors on `device`; what is on the CPU and stays there shares memory."""
    return nest.map(lambda leaf: (leaf if isinstance(leaf, torch.Tensor) else as_tensor(leaf)).to(device), tree)


def check_dtypes(path: str, tree: Any) -> None:
    """Raise `TypeError` that names the first array of a tree for which torch has no dtype; `path`: the tree's name."""
    if isinstance(tree, dict):
        for key, child in tree.items():
            check_dtypes(f"{path}[{key!r}]", child)
    elif isinstance(tree, tuple):
        for i, child in enumerate(tree):
            check_dtypes(f"{path}[{i}]", child)
    elif not isinstance(tree, torch.Tensor):
        try:
            as_tensor(tree[:0])
        except TypeError:
            raise TypeError(
                f"torch has no dtype for {path}, an array of {tree.dtype}: drop it in a wrapper of the env, "
                "or keep numpy batches (no storing_device), from which postproc can drop it before to_tensordict"
            ) from None


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """The array as a CPU tensor on the same memory.

    Raises `TypeError` where torch has no such dtype (Python objects, text).
    """
    if not array.flags.writeable:
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError:
        raise TypeError(f"torch has no dtype for arrays of {array.dtype}; use them as numpy arrays") from None


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
        """True if copies go through pinned memory."""
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
