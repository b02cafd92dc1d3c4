"""Memory that is there already, locked into place so that CUDA may read it by itself.

A lock holds on to the array whose memory it covers, so the memory cannot go before the lock does, whoever drops it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

PORTABLE = 1  # cudaHostRegisterPortable: for every CUDA context of this process

_locks: weakref.WeakValueDictionary[int, PageLock] = weakref.WeakValueDictionary()
"""The locks there are, by address: CUDA refuses to lock memory twice."""


class PageLock:
    """The memory of `array` stays in place for as long as this object lives.

    `readers` are called before the lock is undone; each waits until its copies from this memory have run.
    """

    def __init__(self, array: np.ndarray, cudart: Any, clear_error: Callable[[], None]) -> None:
        self.nbytes = array.nbytes
        self.readers: list[Callable[[], None]] = []
        weakref.finalize(self, _unlock, array, cudart, clear_error, self.readers, os.getpid())


def lock_pages(array: np.ndarray, cudart: Any, clear_error: Callable[[], None]) -> PageLock | None:
    """Register the memory of `array` with CUDA, or None where that cannot be done: there is none, or CUDA refuses.

    That takes a while for each megabyte, so it is for memory that is kept. `cudart` is what `torch.cuda.cudart()`
    returns; `clear_error` takes back the error that a refusal leaves behind, which the next kernel would raise.
    """
    if array.nbytes == 0 or not array.flags.c_contiguous:
        return None
    address = address_of(array)
    known = _locks.get(address)
    if known is not None and known.nbytes >= array.nbytes:
        return known
    if int(cudart.cudaHostRegister(address, array.nbytes, PORTABLE)) != 0:
        clear_error()
        return None
    lock = _locks[address] = PageLock(array, cudart, clear_error)
    return lock


def address_of(array: np.ndarray) -> int:
    """Where the memory of an array begins."""
    address: int = array.__array_interface__["data"][0]
    return address


def _unlock(
    array: np.ndarray, cudart: Any, clear_error: Callable[[], None], readers: list[Callable[[], None]], owner: int
) -> None:
    if os.getpid() != owner:  # a forked copy of the process has no locks, and may not use CUDA
        return
    # The device may be past use by now (an assertion in a kernel): the lock has to go all the same.
    for wait in readers:
        with suppress(RuntimeError):
            wait()
    if int(cudart.cudaHostUnregister(address_of(array))) != 0:
        with suppress(RuntimeError):
            clear_error()
