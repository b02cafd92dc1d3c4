"""Store texts as two arrays: the end of each text, and the bytes of all texts in UTF-8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from collector.store.safe_folder import DatasetError
from vecenv import nest

TEXT = np.dtype(object)
"""Dtype of a column of texts in memory: each element is a `str`."""
TEXT_OBJECT_BYTES = 50
"""Bytes that Python needs for a `str` besides its characters."""


def bytes_name(name: str) -> str:
    """Return the name of the array with the bytes. The array `name` has the ends, int64.

    >>> bytes_name("obs.1")
    'obs.1.utf8'
    """
    return f"{name}.utf8"


def is_texts(values: Any) -> bool:
    return all(isinstance(value, str) for value in values)


def encode_texts(name: str, texts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends and the bytes of the texts in consecutive arrays.

    Raises `DatasetError` for an object that is not a text, and for a text that UTF-8 cannot express.

    >>> encode_texts("obs", [np.array(["go", "\u00fc"], object)])
    (array([2, 4]), array([103, 111, 195, 188], dtype=uint8))
    """
    try:
        encoded = [str.encode(text) for part in texts for text in part.tolist()]
    except TypeError:
        wrong = next(value for part in texts for value in part.tolist() if not isinstance(value, str))
        raise DatasetError(
            f"{name} holds Python objects such as {wrong!r:.80}; only numbers and texts can be stored"
        ) from None
    except UnicodeEncodeError as error:
        raise DatasetError(f"{name} has the text {error.object!r:.80}, which UTF-8 cannot express: {error}") from None
    ends = np.cumsum([*map(len, encoded)], dtype=np.int64)
    return ends, np.frombuffer(b"".join(encoded), np.uint8)


def decode_texts(name: str, ends: np.ndarray, content: np.ndarray) -> np.ndarray:
    """Return texts as an object array, as `encode_texts` got them.

    Raises `DatasetError` if the ends do not increase from 0 to the number of bytes, or cut a character, and for bytes
    that are not UTF-8.
    """
    bounds = np.append(0, ends)
    if (bounds[1:] < bounds[:-1]).any() or bounds[-1] != len(content):
        raise DatasetError(f"the ends of the texts in {name} do not increase from 0 to its {len(content):,} bytes")
    data = content.tobytes()
    try:
        return nest.object_array([str(data[start:end], "utf-8") for start, end in pairwise(bounds.tolist())])
    except UnicodeDecodeError as error:
        raise DatasetError(f"a text in {name} is not UTF-8: {error}") from None


def with_encoded_texts(columns: Mapping[str, Sequence[np.ndarray]]) -> dict[str, Sequence[np.ndarray]]:
    """Return the columns of a shard with two arrays in place of each column of texts."""
    arrays = dict[str, Sequence[np.ndarray]]()
    for name, parts in columns.items():
        if parts[0].dtype == TEXT:
            ends, content = encode_texts(name, parts)
            arrays |= {name: [ends], bytes_name(name): [content]}
        else:
            arrays[name] = parts
    return arrays
