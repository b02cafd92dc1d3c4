"""JSON as the standard has it: no key twice, no NaN, and no nesting that ends the interpreter."""

from __future__ import annotations

import json
from typing import Any


def parse(data: bytes) -> Any:
    """The value of a JSON text in UTF-8. Raises ValueError.

    >>> parse(b'{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    """
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_object, parse_constant=_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def dump(value: Any) -> bytes:
    """One line of JSON, without its end. Raises ValueError for NaN and infinity, TypeError for other objects.

    >>> dump({"a": (1, 2.5)})
    b'{"a": [1, 2.5]}'
    """
    return json.dumps(value, allow_nan=False, ensure_ascii=True).encode("ascii")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
