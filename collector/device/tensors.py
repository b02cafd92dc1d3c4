"""Conversion and copies between arrays and tensors.

Other modules import torch from here, so that one error message names the missing package.

On the CPU, a tensor and its array share memory. On an accelerator with streams, such as CUDA or XPU, a step makes one
copy per array and direction, and one wait::

    obs (numpy) --memcpy--> pinned --copy--> device --policy--> action --copy--> pinned --event--> numpy

On MPS, which has no streams, each copy waits. MPS has no float64 either, so float64 arrives there as float32.
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
    return [*policy.parameters(), *policy.buffers()] if isinstance(policy, torch.nn.Module) else []


def moved(policy: Any, device: torch.device) -> Any:
    if all(tensor.device == device for tensor in tensors_of(policy)):
        return policy
    # The copy shares the module's generators, so that seeding them also seeds the copy.
    values = [value for module in policy.modules() for value in vars(module).values()]
    kept = {id(value): value for value in values if isinstance(value, torch.Generator)}
    return copy.deepcopy(policy, kept).to(device)


def resolve_device(device: Any) -> torch.device:
    """Return a `torch.device`, with an index for an accelerator.

    "auto" is the accelerator that PyTorch sees, such as CUDA (ROCm), XPU or MPS. Without an accelerator it is the CPU.

    Raises `ValueError` for a device that PyTorch does not see.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if device == "auto":
        device = accelerator or "cpu"
    seen = 0
    try:
        resolved = torch.device(device)
        if accelerator is None or resolved.type != accelerator.type:
            torch.empty(0, device=resolved)  # the CPU, or a device of a package that is no accelerator of PyTorch
            return resolved
        seen = torch.accelerator.device_count()
        index = torch.accelerator.current_device_index() if resolved.index is None else resolved.index
        if index < seen:
            return torch.device(resolved.type, index)
    except (RuntimeError, AssertionError):  # PyTorch does not know the name, or was built without this device
        pass
    kind = str(device).partition(":")[0].upper()
    raise ValueError(f"there is no device {device}: PyTorch sees {seen} {kind} devices; use 'cpu' or 'auto'")


def stream_module(device: torch.device) -> Any:
    """Return torch's module of an accelerator with streams, such as `torch.cuda`. Return `None` for other devices."""
    module = None if device.type == "cpu" else getattr(torch, device.type, None)
    return module if hasattr(module, "current_stream") else None


def fit_dtype(tensor: torch.Tensor, device: Any) -> torch.Tensor:
    """Return float64 as float32 if `device` has no float64. Return other tensors unchanged."""
    return tensor if tensor.dtype != torch.float64 or nest.has_float64(torch, device) else tensor.float()


def to_device(tree: Any, device: Any) -> Any:
    def move(leaf: Any) -> torch.Tensor:
        tensor = leaf if isinstance(leaf, torch.Tensor) else as_tensor(leaf)
        return (fit_dtype(tensor, device) if tensor.dtype is torch.float64 else tensor).to(device)

    return nest.map(move, tree)


def check_dtypes(path: str, tree: Any) -> None:
    """Raise `TypeError` for an array without a torch dtype. `path` names the tree."""
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
                "or keep numpy batches (no storing_device) and drop it in postproc, before to_tensordict"
            ) from None


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Return a CPU tensor in the memory of `array` (copied if read-only). Raises `TypeError` for objects and text."""
    if not array.flags.writeable:
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError:
        raise TypeError(f"torch has no dtype for arrays of {array.dtype}; use them as numpy arrays") from None


class Transfer:
    """Transfer of arrays to a device and back.

    With streams, a step waits at most once, for an event. A pinned buffer is not overwritten while a copy may read it.
    Copies keep dtypes, with two exceptions: bfloat16 returns as float32, and float64 arrives as float32 on a device
    without float64. Not thread-safe. The policy must use (or join) the device's current stream.

    Tensors from `to_device` belong to the caller. Arrays from `to_numpy` are valid until the next call of `to_numpy`.
    Buffers have `rows` rows, or more for a larger array.
    """

    def __init__(self, device: torch.device, rows: int) -> None:
        self.device, self._rows = device, rows
        self._module = stream_module(device)
        self.is_staged = self._module is not None
        self._pinned: dict[int | str, torch.Tensor] = {}
        """Pinned buffers, by an input's index or an output's name."""
        self._in_flight: set[int | str] = set()
        """Keys of pinned buffers that a queued copy may still use."""
        self._event: Any = None
        self._stream: Any = None

    def to_device(self, tree: Any) -> Any:
        """Return arrays as tensors, without waiting for these copies."""
        if not self.is_staged:
            return to_device(tree, self.device)
        numbers, sent = count(), set[int | str]()
        try:
            return nest.map(lambda leaf: self._send(leaf, next(numbers), sent), tree)
        finally:
            self._record_copies(sent)

    def to_numpy(self, outputs: dict[str, Any]) -> dict[str, np.ndarray]:
        """Return tensors as arrays, after one wait for all copies."""
        if not self.is_staged:
            return {name: nest.as_array(value) for name, value in outputs.items()}
        arrays = {name: self._fetch(name, value) for name, value in outputs.items()}
        self._record_copies({*arrays})
        self.wait_for_copies()
        return arrays

    def own_arrays(self, tree: Any) -> Any:
        """Replace tensors by arrays that later calls do not overwrite."""
        tensors = {str(i): leaf for i, leaf in enumerate(nest.leaves(tree)) if isinstance(leaf, torch.Tensor)}
        if not tensors:
            return tree
        arrays, numbers = self.to_numpy(tensors), count()
        if self.is_staged:
            arrays = {name: array.copy() for name, array in arrays.items()}
        return nest.map(lambda leaf: arrays.get(str(next(numbers)), leaf), tree)

    def wait_for_copies(self) -> None:
        if self._in_flight:
            self.wait()
            self._in_flight.clear()

    def _record_copies(self, keys: set[int | str]) -> None:
        if keys:
            self.record()
            self._in_flight |= keys

    def _send(self, array: Any, number: int, sent: set[int | str]) -> torch.Tensor:
        if isinstance(array, torch.Tensor):
            return array.to(self.device)
        if number in self._in_flight:
            self.wait_for_copies()
        sent.add(number)
        source = self._buffer(number, array.shape, fit_dtype(as_tensor(array[:0]), self.device).dtype)
        np.copyto(source.numpy(), array)
        return self.upload(source)

    def _fetch(self, name: str, value: Any) -> np.ndarray:
        if not isinstance(value, torch.Tensor) or value.device != self.device or value.dim() == 0:
            return nest.as_array(value)
        if value.dtype is torch.bfloat16:
            value = value.float()
        target = self._buffer(name, value.shape, value.dtype)
        self.download(target, value.detach())
        return target.numpy()

    def _buffer(self, key: int | str, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        rows, buffer = shape[0], self._pinned.get(key)
        if buffer is None or buffer.dtype != dtype or buffer.shape[1:] != shape[1:] or len(buffer) < rows:
            with torch.inference_mode(False):  # an inference tensor would be read-only outside of inference mode
                buffer = self._pinned[key] = self.pinned((max(self._rows, rows), *shape[1:]), dtype)
        return buffer[:rows]

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)

    def upload(self, source: torch.Tensor) -> torch.Tensor:
        return source.to(self.device, non_blocking=True)

    def download(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def record(self) -> None:
        """Record the event after queued copies. If the stream has changed, first wait for the old stream's copies."""
        stream = self._module.current_stream(self.device)
        if self._event is None:
            self._event = self._module.Event()
        elif self._in_flight and stream != self._stream:
            self._event.synchronize()
        self._event.record(stream)
        self._stream = stream

    def wait(self) -> None:
        self._event.synchronize()
