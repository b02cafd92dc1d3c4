"""How many threads torch's CPU operations use while a collector's policy runs.

`torch.set_num_threads` sets the count of the calling thread in OpenMP and in MKL, and the one with which threads begin
that use torch later. Here only the first two change, through the libraries themselves: what another thread does, or one
that is born during a batch, has nothing to do with the policy. *Rejected:* setting 1 with torch, and from a short-lived
second thread the old count for those to come; it takes 130 us a batch, and 10 ms beside a thread that runs Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from collector.device.tensors import torch
from vecenv.backends.pool.spinning_threads import release_pool


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
