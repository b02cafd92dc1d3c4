"""Keywords that no constructor takes: refused with the class that the user called, and the name that was meant."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Sequence
from typing import Any

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def check_options(user: type[Any], options: Iterable[str], *takers: type[Any], hidden: Iterable[str] = ()) -> None:
    """TypeError for a keyword that the constructors of `takers` (default: `user`) and of their bases do not have.

    `hidden`: names that they have, but not for the user.
    """
    known = sorted(_names(takers or (user,)) - set(hidden))
    for name in options:
        if name not in known:
            close = _closest(name, known)
            meant = f"; it has {', '.join(known)}" if close is None else f"; did you mean {close!r}?"
            raise TypeError(f"{user.__name__} has no argument {name!r}{meant}")


def option_meant(name: str, *takers: type[Any]) -> str | None:
    """The argument of the constructors of `takers`, or of their bases, that this is or resembles; None for no such
    one.
    """
    return _closest(name, sorted(_names(takers)))


def _closest(name: str, known: Sequence[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.75)), None)


def _names(takers: Sequence[type[Any]]) -> set[str]:
    """The names of the arguments of these constructors and those of their bases."""
    found = set()
    for cls in {base for taker in takers for base in taker.__mro__ if "__init__" in vars(base) and base is not object}:
        for parameter in inspect.signature(vars(cls)["__init__"]).parameters.values():
            if parameter.kind in NAMED:
                found.add(parameter.name)
    return found - {"self"}
