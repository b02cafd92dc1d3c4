"""Rows of the table of messages: calls that are refused, the class of the error, and what its text must name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Subject:
    """Object whose calls the rows make."""

    make: Callable[[], AbstractContextManager[Any]]
    works: Callable[[Any], object] = lambda made: None
    """Called after each refused call: raises if the object is not usable as before."""


NOTHING = Subject(nullcontext)
"""Subject of rows whose calls make the object themselves, and get no argument."""


@dataclass(frozen=True)
class Row:
    """Calls of one subject that raise the same error."""

    subject: Subject
    calls: tuple[tuple[object, Callable[..., object]], ...]
    """Each call with its value. VALUE in a text stands for the value."""
    error: type[BaseException] | tuple[type[BaseException], ...]
    says: tuple[str, ...]
    """Parts of the text: the env id, what was expected, what came, and what to do."""

    def problems(self) -> Iterator[str]:
        """Yield a line for each call whose error is not as expected. Raises an error of another class."""
        for value, call in self.calls:
            says = [text.replace("VALUE", str(value)) for text in self.says]
            with self.subject.make() as made:
                try:
                    call() if self.subject is NOTHING else call(made)
                except self.error as error:
                    text = "\n".join([str(error), *getattr(error, "__notes__", [])])
                    if missing := [part for part in says if part not in text]:
                        yield f"{value!r}: {missing} not in: {text}"
                else:
                    yield f"{value!r}: no {self.error}"
                self.subject.works(made)


def rows_for(subject: Subject, *rows: tuple[Any, ...]) -> list[Row]:
    """Return rows of (call, error, texts ...), in which a list stands for several calls."""
    found = []
    for calls, error, *says in rows:
        calls = calls if isinstance(calls, list) else [calls]
        pairs = tuple(call if isinstance(call, tuple) else (number, call) for number, call in enumerate(calls))
        found.append(Row(subject, pairs, error, tuple(says)))
    return found


def each(values: Iterable[Any], call: Callable[..., Any]) -> list[tuple[object, Callable[..., object]]]:
    """Return a call for each value: `call(value)`, or `call(made, value)` for a subject that is made."""
    return [(value, lambda *made, value=value: call(*made, value)) for value in values]


def arguments_of(call: Callable[..., Any], *rows: tuple[Any, ...]) -> list[Row]:
    """Return rows of (arguments, error, texts ...): a dict of keywords, or a list, with which `call` is refused."""
    calls = ((lambda given=given: call(**given) if isinstance(given, dict) else call(*given)) for given, *_ in rows)
    return rows_for(NOTHING, *((made, *more) for made, (_, *more) in zip(calls, rows, strict=True)))
