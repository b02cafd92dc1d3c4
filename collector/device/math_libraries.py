"""Control OpenMP and MKL, the libraries with which torch computes on the CPU.

`policy_threads` sets the thread counts of OpenMP and MKL directly, because `torch.set_num_threads` would also affect
other threads that start in the meantime.

MKL may compute a row differently at another address or in a larger batch. Then the last bits of a policy's output would
depend on the row's place. Reproducible kernels of MKL prevent such differences, if requested before MKL's first use.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

from collector.device.tensors import torch
from vecenv.spinning_threads import release_pool

_MULTIPLE = 4
_ANY_REPRODUCIBLE = 2
"""MKL's constant for the reproducible kernels of the environment variable MKL_CBWR=AUTO."""


# PyDLL keeps the interpreter lock, because getting it back after a short call could take a switch interval (5 ms).
_TORCH = ctypes.PyDLL(torch._C.__file__)
# Some builds of torch hide these functions.
_mkl_fallback: Callable[[int], Any] = torch.set_num_threads if torch.backends.mkl.is_available() else int
_set_openmp: Callable[[int], Any] = getattr(_TORCH, "omp_set_num_threads", torch.set_num_threads)
_set_mkl: Callable[[int], Any] = getattr(_TORCH, "MKL_Set_Num_Threads_Local", _mkl_fallback)


@contextmanager
def policy_threads(count: int) -> Iterator[None]:
    """Run this thread's CPU operations of torch on `count` threads in the `with` block.

    A small network is fastest on one thread, because further threads compete with busy worker processes.

    >>> with policy_threads(1):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()  # must come first, because a thread's first use of torch sets the thread's count
    if count == 1:
        release_pool()  # this thread's idle OpenMP threads would spin for milliseconds
    try:
        _set_openmp(count)
        _set_mkl(count)
        yield
    finally:
        # Ctrl-C may raise KeyboardInterrupt after the first function. The second must run anyway.
        try:
            _set_openmp(before)
        finally:
            _set_mkl(before)


def full_rows(rows: int) -> int:
    """Round `rows` above 1 up to a multiple of four, because MKL computes rows after the last multiple differently."""
    return rows if rows == 1 else -(-rows // _MULTIPLE) * _MULTIPLE


@lru_cache
def rows_are_exact(rows: int, device: torch.device) -> bool:
    """Test whether a row of a matrix product has the same bits at each position of a batch of `rows` rows."""
    _ask_for_reproducible()
    generator = torch.Generator("cpu").manual_seed(0)
    with torch.inference_mode():
        for inputs in (6, 17, 64, 376):
            for outputs in (1, 6, 64):
                weight = torch.randn(outputs, inputs, generator=generator, device="cpu").to(device)
                batch = torch.randn(rows, inputs, generator=generator, device="cpu").to(device)
                product = torch.nn.functional.linear(batch, weight)
                for shift in range(1, min(rows, 5)):
                    moved = torch.nn.functional.linear(batch.roll(shift, 0), weight)
                    if not torch.equal(moved, product.roll(shift, 0)):
                        return False
    return True


def _ask_for_reproducible() -> None:
    # Torch does not export `mkl_cbwr_set`, a wrapper of `mkl_serv_cbwr_set`. The variable MKL_CBWR has priority.
    with suppress(AttributeError):
        _TORCH.mkl_serv_cbwr_set(_ANY_REPRODUCIBLE)
