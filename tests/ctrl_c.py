"""Ctrl-C at a chosen moment, or at random ones."""

from __future__ import annotations

import gc
import random
import signal
from collections.abc import Callable
from typing import Any


def interrupted(function: Callable[..., Any], first: bool = False) -> Callable[..., Any]:
    """The function, and once a Ctrl-C as soon as it is done, or before it."""
    left = [1]

    def both(*args: Any, **kwargs: Any) -> Any:
        result = None if first and left else function(*args, **kwargs)
        if left:
            left.clear()
            signal.raise_signal(signal.SIGINT)
        return result

    return both


def interrupt_at_random(step: Callable[[], Any], check: Callable[[], Any], times: int, longest: float) -> int:
    """Call `step` over and over until Ctrl-C falls into it, within `longest` seconds, then `check`: `times` times.

    Returns how many of them raised KeyboardInterrupt.
    """
    previous = signal.signal(signal.SIGALRM, lambda *args: signal.raise_signal(signal.SIGINT))
    interrupts = 0
    gc.disable()  # Python drops an interrupt that falls into a callback of the garbage collector, as hypothesis has one
    try:
        for _ in range(times):
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, longest))
                    for _ in range(1000):
                        step()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupts += 1
            check()
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, previous)
    return interrupts
