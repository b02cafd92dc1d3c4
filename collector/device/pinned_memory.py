"""Memory that is there already, registered with CUDA so that the device can read it by itself.

A registration holds the array whose memory it covers, so the memory is never freed before it is unregistered.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

PORTABLE = 1  # cudaHostRegisterPortable: for every CUDA context of this process


class Registration:
    """The memory of `array` is registered with CUDA as long as this object lives.

    `readers` are called before it is unregistered; each waits until its copies from this memory have run.
    """

    def __init__(self, array: np.ndarray, cudart: Any, clear_error: Callable[[], None]) -> None:
        self.nbytes = array.nbytes
        self.readers: list[Callable[[], None]] = []
        weakref.finalize(self, _unregister, array, cudart, clear_error, self.readers, os.getpid())


_registrations: weakref.WeakValueDictionary[int, Registration] = weakref.WeakValueDictionary()
"""All registrations by address: CUDA refuses to register memory twice."""


def register(array: np.ndarray, cudart: Any, clear_error: Callable[[], None]) -> Registration | None:
    """Register the memory of `array` with CUDA; None where there is none, or CUDA refuses.

    That takes a while for each megabyte, so it is for memory that is kept. `cudart` is what `torch.cuda.cudart()`
    returns; `clear_error` clears the error that a refusal sets, which the next kernel would raise.
    """
    if array.nbytes == 0 or not array.flags.c_contiguous:
        return None
    address = address_of(array)
    known = _registrations.get(address)
    if known is not None and known.nbytes >= array.nbytes:
        return known
    if int(cudart.cudaHostRegister(address, array.nbytes, PORTABLE)) != 0:
        clear_error()
        return None
    registration = _registrations[address] = Registration(array, cudart, clear_error)
    return registration


def address_of(array: np.ndarray) -> int:
    """Where the memory of an array begins."""
    address: int = array.__array_interface__["data"][0]
    return address


def _unregister(
    array: np.ndarray, cudart: Any, clear_error: Callable[[], None], readers: list[Callable[[], None]], owner: int
) -> None:
    if os.getpid() != owner:  # a forked copy of the process has registered nothing and may not use CUDA
        return
    # The device may have failed (an assertion in a kernel): the memory is unregistered all the same.
    for wait in readers:
        with suppress(RuntimeError):
            wait()
    if int(cudart.cudaHostUnregister(address_of(array))) != 0:
        with suppress(RuntimeError):
            clear_error()
