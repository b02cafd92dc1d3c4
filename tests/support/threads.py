"""Run a call in a second thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def beside(call: Callable[[], Any]) -> tuple[threading.Thread, list[BaseException]]:
    """Start the call in a second thread. Its exception is appended to the returned list."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, errors


def in_a_thread(call: Callable[[], Any]) -> None:
    """Run the call in a second thread, and raise its exception in this thread."""
    thread, errors = beside(call)
    thread.join()
    if errors:
        raise errors[0]
