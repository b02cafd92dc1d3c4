"""Rows of the table of messages: a call that is refused, the class of the error, and what its text must name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Subject:
    """Object whose calls the rows make."""

    make: Callable[[], AbstractContextManager[Any]] = nullcontext
    works: Callable[[Any], object] = lambda made: None
    """Called after each refused call: raises if the object is not usable as before."""


@dataclass(frozen=True)
class Row:
    subject: Subject
    call: Callable[[Any], object]
    error: type[BaseException] | tuple[type[BaseException], ...]
    says: tuple[str, ...]
    """Parts of the text: the env id, what was expected, what came, and what to do."""

    def play(self) -> str:
        """Return the text of the error. Raises AssertionError if there is no error, or another one."""
        with self.subject.make() as made:
            try:
                self.call(made)
            except self.error as error:
                text = "\n".join([str(error), *getattr(error, "__notes__", [])])
            else:
                raise AssertionError(f"no {self.error}")
            self.subject.works(made)
        return text


NOTHING = Subject()
"""Subject of rows whose call makes the object itself."""


def rows_for(subject: Subject, *rows: tuple[Any, ...]) -> list[Row]:
    """Return rows of (call, error, texts ...)."""
    return [Row(subject, call, error, tuple(says)) for call, error, *says in rows]
