"""Control OpenMP and MKL under torch: number of threads, and bits that do not depend on the batch size.

Threads: `torch.set_num_threads` sets the count of the calling thread in OpenMP and in MKL, and the one with which
threads begin that use torch later. Here only the first two change, through the libraries themselves: what another
thread does, or one that is born during a batch, has nothing to do with the policy. *Rejected:* setting 1 with torch,
and from a short-lived second thread the old count for those to come; it takes 130 us a batch, and 10 ms beside a thread
that runs Python.

Rows: kernels treat rows differently by where they lie in memory (MKL, as it comes), and the last ones of a batch
differently where their number is not a multiple of four. So an episode would differ in its last bits where it is played
in another env. Where MKL has not been used yet, it can be asked for its reproducible kernels; whether products are
exact then is found by trying.
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
"""MKL_CBWR_AUTO: as the environment variable MKL_CBWR=AUTO."""


def _function(name: str, otherwise: Callable[[int], Any]) -> Callable[[int], Any]:
    """A function on a count, of the libraries that torch is linked with."""
    # PyDLL keeps the interpreter lock: a call takes less than a microsecond, getting the lock again may take 5 ms.
    found: Callable[[int], Any] = getattr(ctypes.PyDLL(torch._C.__file__), name, otherwise)
    return found


# In a build of torch that hides these, its own function stands in, which counts for threads born meanwhile too.
_set_openmp = _function("omp_set_num_threads", torch.set_num_threads)
_set_mkl = _function("MKL_Set_Num_Threads_Local", torch.set_num_threads if torch.backends.mkl.is_available() else int)


@contextmanager
def policy_threads(count: int) -> Iterator[None]:
    """Run torch's CPU operations of the calling thread on `count` threads; one is the fastest for a small network.

    Where worker processes use the other CPUs, waiting for a second thread makes the network several times slower, and
    what it leaves spinning slows down the workers. Afterwards the thread has its own count again.

    >>> with policy_threads(1):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()  # asked even if it were not used: a thread's first use of torch sets its count
    if count == 1:
        release_pool()  # it is not used now, and its threads would spin on for milliseconds
    try:
        _set_openmp(count)
        _set_mkl(count)
        yield
    finally:
        # Ctrl-C can only raise after a call of a C function: both are called whenever it comes.
        try:
            _set_openmp(before)
        finally:
            _set_mkl(before)


def full_rows(rows: int) -> int:
    """The number of rows to which a batch of `rows` is filled up."""
    return rows if rows == 1 else -(-rows // _MULTIPLE) * _MULTIPLE


@lru_cache
def rows_are_exact(rows: int, device: torch.device) -> bool:
    """Return whether rows of products of `rows` rows do not depend on where they stand, as far as trying can find it.

    The first call asks MKL for reproducible kernels, for the whole process. MKL refuses once it has been used.
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
    # What `mkl_cbwr_set` calls, which torch does not export; the variable in the environment counts where it is set.
    with suppress(AttributeError):
        ctypes.PyDLL(torch._C.__file__).mkl_serv_cbwr_set(_ANY_REPRODUCIBLE)
