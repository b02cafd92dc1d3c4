"""Settings of the whole process that several threads may need changed at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Switch:
    """`with switch():` around what needs a setting switched off.

    What it was before is known to whoever came first, and put back by whoever leaves last.
    """

    def __init__(self, is_on: Callable[[], bool], turn: Callable[[bool], None]) -> None:
        self._is_on, self._turn = is_on, turn
        self._lock = threading.Lock()
        self._users, self._was_on = 0, True

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._users:
                self._was_on = self._is_on()
                self._turn(False)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._turn(self._was_on)
