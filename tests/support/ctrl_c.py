"""Send SIGINT (Ctrl-C) to the test process, at chosen or random moments."""

from __future__ import annotations

import os
import random
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import reduction
from typing import Any

import pytest

from tests.support.interrupts import call_with_signal


def interrupted(function: Callable[..., Any], first: bool = False) -> Callable[..., Any]:
    """Wrap `function`, so that a Ctrl-C follows its first call. With `first`, the Ctrl-C replaces this call."""
    pending = [1]

    def both(*args: Any, **kwargs: Any) -> Any:
        result = None if first and pending else function(*args, **kwargs)
        if pending:
            pending.clear()
            signal.raise_signal(signal.SIGINT)
        return result

    return both


@contextmanager
def interrupting(owner: Any, moment: str, first: bool = False) -> Iterator[pytest.ExceptionInfo[KeyboardInterrupt]]:
    """Send a Ctrl-C after the first call of the method, or in place of this call with `first`. It must raise
    KeyboardInterrupt.
    """
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt) as caught:  # noqa: PT012
        patch.setattr(owner, moment, interrupted(getattr(owner, moment), first))
        yield caught


@contextmanager
def interrupt_in_request_to_forkserver(*numbers: int) -> Iterator[None]:
    """Send these signals to the process before the next request to a forkserver, when the connection is open.

    Another thread does not block signals. The system gives them to this thread if the main thread blocks them.
    """
    ended, pending, sendfds = threading.Event(), list(numbers), reduction.sendfds
    thread = threading.Thread(target=ended.wait)
    thread.start()
    arrived, wakeup = os.pipe()
    os.set_blocking(wakeup, False)

    def send(*args: Any) -> Any:
        while pending:
            os.kill(os.getpid(), pending.pop())
            assert select.select([arrived], [], [], 60)[0], "no signal came"
            os.read(arrived, 1)
        return sendfds(*args)

    before = signal.set_wakeup_fd(wakeup)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reduction, "sendfds", send)
            yield
        assert not pending, "there was no request"
    finally:
        signal.set_wakeup_fd(before)
        ended.set()
        thread.join()
        os.close(arrived)
        os.close(wakeup)


def interrupt_at_random(step: Callable[[], Any], check: Callable[[], Any], times: int, longest: float) -> int:
    """Repeat `times` times: call `step` until a Ctrl-C arrives, at most `longest` seconds later, then call `check`.

    Returns the number of KeyboardInterrupts.
    """

    def steps() -> None:
        for _ in range(1000):
            step()

    interrupts = 0
    for _ in range(times):
        interrupts += call_with_signal(steps, random.uniform(1e-5, longest))[0]
        check()
    return interrupts
