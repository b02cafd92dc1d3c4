"""BlockRows: copies the results of a block of envs in a thread into the arena of the whole batch."""

from __future__ import annotations

from typing import Any

from vecenv.backends.base import Answers
from vecenv.backends.host.row_writer import Extra
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.arena import Arena


class BlockRows:
    """Copies results from `own`, the arena of a block, into `rows`, the block's part of the caller's arena."""

    def __init__(self, rows: Arena, own: Arena, start: int, answers: Answers) -> None:
        self._outputs = list(zip(rows.outputs(), own.outputs(), strict=True))
        self._finals = list(zip(rows.finals(), own.finals(), strict=True))
        self._status, self._start, self._answers = rows.status, start, answers

    def take(self, places: list[int] | None, extras: dict[int, Extra]) -> None:
        """Copy the rows of the envs at these places (None: all). Repeating it, after an interrupt, does no harm."""
        rows: Any = ... if places is None else places
        for to, own in self._outputs:
            to[rows] = own[rows]
        for j, extra in extras.items():
            self._answers.extras[self._start + j] = extra
            for to, own in () if extra.final is None else self._finals:
                to[j] = own[j]
        self._status[rows] = opcodes.DONE
