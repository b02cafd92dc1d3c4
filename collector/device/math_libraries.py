"""Control OpenMP and MKL under torch: thread counts, and results that do not depend on the batch.

Threads: `torch.set_num_threads` would also change the count of threads that start during the batch, so counts are set
in OpenMP and MKL directly.

Rows: MKL computes a row differently depending on its address and on the batch size. The last bits of an episode would
then depend on its env. MKL has reproducible kernels, which must be requested before its first use.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

from collector.device.tensors import torch
from vecenv.extending import release_pool

_MULTIPLE = 4
_ANY_REPRODUCIBLE = 2
"""As the environment variable MKL_CBWR=AUTO."""


# PyDLL keeps the interpreter lock, because a call takes < 1 us, and getting the lock back up to 5 ms.
_TORCH = ctypes.PyDLL(torch._C.__file__)
# Some builds of torch hide these functions.
_mkl_fallback: Callable[[int], Any] = torch.set_num_threads if torch.backends.mkl.is_available() else int
_set_openmp: Callable[[int], Any] = getattr(_TORCH, "omp_set_num_threads", torch.set_num_threads)
_set_mkl: Callable[[int], Any] = getattr(_TORCH, "MKL_Set_Num_Threads_Local", _mkl_fallback)


@contextmanager
def policy_threads(count: int) -> Iterator[None]:
    """Run torch's CPU operations of this thread on `count` threads, and restore the count afterwards.

    A small network is fastest on one thread, because further threads wait for, and slow down, busy worker processes.

    >>> with policy_threads(1):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()  # always: a thread's first use of torch sets its count
    if count == 1:
        release_pool()  # unused threads would spin for milliseconds
    try:
        _set_openmp(count)
        _set_mkl(count)
        yield
    finally:
        # Ctrl-C raises only after a C function returns, so both are called in any case.
        try:
            _set_openmp(before)
        finally:
            _set_mkl(before)


def full_rows(rows: int) -> int:
    return rows if rows == 1 else -(-rows // _MULTIPLE) * _MULTIPLE


@lru_cache
def rows_are_exact(rows: int, device: torch.device) -> bool:
    """Test whether a row of a product is independent of its place in a batch of `rows` rows.

    The first call requests MKL's reproducible kernels, which has no effect after a use of MKL.
    """
    _ask_for_reproducible()
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        for inputs in (6, 17, 64, 376):
            for outputs in (1, 6, 64):
                weight = torch.randn(outputs, inputs, generator=generator).to(device)
                batch = torch.randn(rows, inputs, generator=generator).to(device)
                product = torch.nn.functional.linear(batch, weight)
                for shift in range(1, min(rows, 5)):
                    moved = torch.nn.functional.linear(batch.roll(shift, 0), weight)
                    if not torch.equal(moved, product.roll(shift, 0)):
                        return False
    return True


def _ask_for_reproducible() -> None:
    # torch does not export `mkl_cbwr_set`, which calls this. The environment variable has priority.
    with suppress(AttributeError):
        _TORCH.mkl_serv_cbwr_set(_ANY_REPRODUCIBLE)
