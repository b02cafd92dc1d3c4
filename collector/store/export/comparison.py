"""Compare the episodes of an export with its data set, bit for bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from collector.episodes.episode import Episode
from collector.store.dataset import Dataset
from collector.store.texts import TEXT
from vecenv import nest

EQUAL, NOT_STORED, DIFFERENT = "equal", "not stored", "DIFFERENT"
OF_EPISODES = ("number", "seed", "env_id")


def compare(dataset: Dataset, exported: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return what an export holds of each column: "equal", "equal as float32", "not stored" or "DIFFERENT".

    `exported` has a dict per episode, with the arrays by name in the data set's layout, and `OF_EPISODES`.
    """
    assert dataset.layout is not None
    names = {".".join(map(str, path)): (path, name) for path, name in nest.items(dataset.layout.names)}
    results = {column: Counter[str]() for column in (*names, *OF_EPISODES)}
    count, episodes = 0, iter(exported)
    for ours, theirs in zip(dataset, episodes, strict=False):
        count += 1
        for column, (path, name) in names.items():
            results[column][_of_array(_leaf(ours, path), theirs.get(name))] += 1
        for column in OF_EPISODES:
            same = column in theirs and theirs[column] == getattr(ours, column)
            results[column][EQUAL if same else DIFFERENT if column in theirs else NOT_STORED] += 1
    is_whole = count == len(dataset) and next(episodes, None) is None
    words = EQUAL if is_whole else f"{DIFFERENT}: the data set has {len(dataset):,}, and {count:,} are compared"
    return {"episodes": words, **{column: _in_words(found) for column, found in results.items()}}


def _leaf(episode: Episode, path: tuple[Any, ...]) -> np.ndarray:
    found = getattr(episode, path[0])
    for key in path[1:]:
        found = found[key]
    return np.asarray(found)


def _of_array(ours: np.ndarray, theirs: np.ndarray | None) -> str:
    if theirs is None:
        return NOT_STORED
    missing = len(ours) - len(theirs)
    if missing not in (0, 1) or theirs[:1].size != ours[:1].size:
        return DIFFERENT
    ours, note = ours[: len(theirs)], ", without the last row" if missing else ""
    theirs = np.ascontiguousarray(theirs.reshape(ours.shape))
    if TEXT in (ours.dtype, theirs.dtype):
        return f"{EQUAL}{note}" if theirs.tolist() == ours.tolist() else DIFFERENT
    if theirs.dtype == ours.dtype:
        return f"{EQUAL}{note}" if theirs.tobytes() == ours.tobytes() else DIFFERENT
    same = np.array_equal(theirs, ours.astype(theirs.dtype))
    return f"{EQUAL} as {theirs.dtype}{note}" if same else DIFFERENT


def _in_words(found: Counter[str]) -> str:
    if found[DIFFERENT]:
        return f"{DIFFERENT} in {found[DIFFERENT]} of {found.total()} episodes"
    return "; ".join(each if n == found.total() else f"{each} ({n} episodes)" for each, n in sorted(found.items()))
