"""Table of steps, with a row per observation: its rows and the names of its columns."""

from __future__ import annotations

import numpy as np

from collector.episodes.episode import EpisodeBatch
from collector.store.safe_folder import DatasetError
from collector.store.shard_layout import EpisodeLayout, arrays_of, is_of_obs
from collector.store.texts import TEXT
from vecenv import nest

PLACE = {"episode": "<i8", "step": "<i8", "is_first": "|b1", "is_last": "|b1", "is_terminal": "|b1"}
_NO_MARKS = str.maketrans("./\0", "___")


def step_rows(block: EpisodeBatch, layout: EpisodeLayout) -> dict[str, np.ndarray]:
    """Return the columns of the table by array name, with a row per observation, as in RLDS.

    The last row of an episode (`is_last`) has only an observation; action, reward, flags and infos are 0 or "".
    `is_terminal` is True in this row if the episode was terminated.
    """
    of = np.repeat(np.arange(len(block)), block.lengths + 1)
    step = np.arange(len(of)) - (block.offsets[:-1] + np.arange(len(block)))[of]
    is_last = step == block.lengths[of]
    found = {"episode": block.episode[of], "step": step, "is_first": step == 0, "is_last": is_last}
    for name, array in arrays_of(block).items():
        if name in layout.rows and not is_of_obs(name):
            found[name] = np.full((len(of), *array.shape[1:]), "" if array.dtype == TEXT else 0, array.dtype)
            found[name][~is_last] = array
        elif name in layout.rows:
            found[name] = array
    found["is_terminal"] = is_last & block.terminated[block.offsets[1:] - 1][of]
    return found


def column_names(layout: EpisodeLayout) -> dict[str, str]:
    """Return column names, such as `obs_image`, or `obs_0` if names of keys collide. No name has a dot or slash."""
    paths = {name: "_".join(map(str, path)).translate(_NO_MARKS) for path, name in nest.items(layout.names)}
    return paths if len({*paths.values()}) == len(paths) else {name: name.translate(_NO_MARKS) for name in paths}


def check_sizes(layout: EpisodeLayout, target: str) -> None:
    """Raise `DatasetError` if an array has no elements."""
    for path, name in nest.items(layout.names):
        row = layout.rows[name]
        if not row.itemsize:
            raise DatasetError(
                f"{'.'.join(map(str, path))} has the shape {row.shape} without elements, which {target} cannot store: "
                "leave it out when you record"
            )
