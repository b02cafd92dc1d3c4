"""Between numpy and torch: how observations reach a policy's device, and its actions come back.

On the CPU nothing is copied: a tensor and its array share memory. On CUDA a round is one copy each way::

    obs (numpy) --memcpy--> pinned --async copy--> device --policy--> action --async copy--> pinned --event--> numpy

The copies are queued on the device's current stream, so the policy runs after its input has arrived and the copy back
after the policy; the host waits once a round, for the event behind the last copy, and for nothing else on the device.

Every buffer is allocated once, on the first round, with one row for each environment. A round of k environments uses
the first k rows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from collector.policy import ExplorationType, Policy, read_output
from vecenv import nest

try:
    import torch
except ImportError as error:
    raise ImportError("policies and batches on a device need PyTorch: pip install vecenv[torch]") from error


def resolve_device(device: Any) -> torch.device:
    """`device` as a `torch.device` with an index where it is CUDA; "auto" is CUDA where there is one, else the CPU.

    Raises `ValueError` where a CUDA device is named that PyTorch does not see.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    resolved = torch.device(device)
    if resolved.type != "cuda":
        return resolved
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = resolved.index if resolved.index is not None else (torch.cuda.current_device() if count else 0)
    if index >= count:
        raise ValueError(f"there is no device {device}: PyTorch sees {count} CUDA devices; use 'cpu' or 'auto'")
    return torch.device("cuda", index)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's CPU operations on one thread: those of a small network do not gain from a second one.

    Where worker processes use the other CPUs, waiting for the second thread makes the network several times slower.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def to_device(tree: Any, device: Any) -> Any:
    """Numpy arrays as tensors on `device`; on the CPU they share memory."""
    return nest.map(lambda array: as_tensor(array).to(device), tree)


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """The array as a CPU tensor on the same memory.

    Raises `TypeError` where torch has no such dtype (Python objects, text).
    """
    if not array.flags.writeable:
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError:
        raise TypeError(f"arrays of dtype {array.dtype} cannot become tensors; use a policy on numpy arrays") from None


class Direct:
    """Moves arrays without staging: shares memory on the CPU; plain copies on devices that are not CUDA."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def to_device(self, tree: Any) -> Any:
        """A tree of `(k, ...)` arrays as tensors on the device."""
        return to_device(tree, self.device)

    def to_numpy(self, outputs: dict[str, Any]) -> dict[str, np.ndarray]:
        """Tensors (or what numpy reads as arrays) as arrays."""
        return {name: _on_host(value) for name, value in outputs.items()}


class Staged:
    """Moves rounds of rows through page-locked buffers, without making the host wait more than once a round.

    Guarantees: the host has waited for every copy of a round when `to_numpy` returns, so buffers are never rewritten
    while they are being read. Nothing synchronises the whole device.
    Assumes one thread, and that the policy's work is queued on (or joined to) the device's current stream.

    What `to_device` returns is valid until its next call; what `to_numpy` returns likewise.
    On a device that is not CUDA the same code runs with pageable buffers and no event.
    """

    def __init__(self, device: torch.device, rows: int) -> None:
        self.device = device
        self._rows = rows
        self._cuda = device.type == "cuda"
        self._inputs: list[_Input] = []
        self._outputs: dict[str, torch.Tensor] = {}
        self._done = torch.cuda.Event() if self._cuda else None
        self._copies_pending = False

    def to_device(self, tree: Any) -> Any:
        """A tree of `(k, ...)` arrays, k at most `rows`, as tensors on the device: one asynchronous copy a leaf."""
        if not self._inputs:
            self._inputs = [self._input_buffers(array) for array in nest.leaves(tree)]
        if self._copies_pending:
            # The policy of the round before raised: without this, its input could be overwritten while it is copied.
            self._wait()
        self._copies_pending = True
        buffers = iter(self._inputs)
        return nest.map(lambda array: self._send(array, next(buffers)), tree)

    def to_numpy(self, outputs: dict[str, Any]) -> dict[str, np.ndarray]:
        """Tensors of `(k, ...)` as arrays: one asynchronous copy each, then one wait for all of them."""
        arrays = {name: self._fetch(name, value) for name, value in outputs.items()}
        self._wait()
        return arrays

    def _input_buffers(self, array: np.ndarray) -> _Input:
        host = torch.empty((self._rows, *array.shape[1:]), dtype=as_tensor(array).dtype, pin_memory=self._cuda)
        return _Input(host, host.numpy(), torch.empty_like(host, device=self.device))

    def _send(self, array: np.ndarray, buffers: _Input) -> torch.Tensor:
        rows = len(array)
        np.copyto(buffers.view[:rows], array)
        return buffers.device[:rows].copy_(buffers.host[:rows], non_blocking=True)

    def _fetch(self, name: str, value: Any) -> np.ndarray:
        if not isinstance(value, torch.Tensor) or value.device != self.device or value.dim() == 0:
            return _on_host(value)
        buffer = self._outputs.get(name)
        if (
            buffer is None
            or buffer.dtype != value.dtype
            or buffer.shape[1:] != value.shape[1:]
            or len(buffer) < len(value)
        ):
            shape = (max(self._rows, len(value)), *value.shape[1:])
            buffer = self._outputs[name] = torch.empty(shape, dtype=value.dtype, pin_memory=self._cuda)
        return buffer[: len(value)].copy_(value, non_blocking=True).numpy()

    def _wait(self) -> None:
        """Wait until what was queued so far has run; reading a page-locked buffer before that gives old values."""
        if self._done is not None:
            self._done.record(torch.cuda.current_stream(self.device))
            self._done.synchronize()
        self._copies_pending = False


class _Input(NamedTuple):
    """The buffers of one leaf of the observations: page-locked memory, the same as an array, and the device's."""

    host: torch.Tensor
    view: np.ndarray
    device: torch.Tensor


class TorchPolicy:
    """Asks a policy that works on tensors: arrays in, arrays out, in inference mode.

    A module whose parameters are not on `device` is copied there, and the original is left as it is.
    """

    def __init__(self, policy: Policy, device: Any, rows: int, exploration: ExplorationType) -> None:
        target = _home(policy) if device is None else resolve_device(device)
        self.policy = _on_device(policy, target)
        self._exploration = exploration
        self._transfer = Staged(target, rows) if target.type == "cuda" else Direct(target)

    def __call__(self, obs: Any) -> dict[str, np.ndarray]:
        """The policy's outputs for `(k, ...)` observations; valid until the next call."""
        with torch.inference_mode():
            output = self.policy(self._transfer.to_device(obs))
            return self._transfer.to_numpy(read_output(output, self._exploration))


def _on_host(value: Any) -> np.ndarray:
    return value.cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def _tensors_of(policy: Policy) -> list[torch.Tensor]:
    return [*policy.parameters(), *policy.buffers()] if isinstance(policy, torch.nn.Module) else []


def _home(policy: Policy) -> torch.device:
    """Where a policy's tensors are; the CPU for one that has none."""
    return next((tensor.device for tensor in _tensors_of(policy)), torch.device("cpu"))


def _on_device(policy: Policy, device: torch.device) -> Policy:
    if all(tensor.device == device for tensor in _tensors_of(policy)):
        return policy
    assert isinstance(policy, torch.nn.Module)
    return copy.deepcopy(policy).to(device)
