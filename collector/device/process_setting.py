"""Settings of the whole process that several threads may need changed at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class TurnedOff:
    """`with turned_off():` around code that needs a setting of the process off.

    The first thread to enter reads the setting, and the last one to leave restores it.
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
