"""Arrays as tensors and back, and names of devices.

All modules that need torch import it from here, so that one message names what to install.
"""

from __future__ import annotations

import copy
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
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = resolved.index if resolved.index is not None else (torch.cuda.current_device() if count else 0)
    if index >= count:
        raise ValueError(f"there is no device {device}: PyTorch sees {count} CUDA devices; use 'cpu' or 'auto'")
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
