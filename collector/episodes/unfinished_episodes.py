"""Parts of episodes that span several batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from vecenv import nest


class Runs(NamedTuple):
    """Arrays with an element per run. A run is the part of an episode in one batch."""

    env: np.ndarray
    start: np.ndarray
    """Row of the first step in the batch."""
    steps: np.ndarray
    before: np.ndarray
    """Steps of the episode in earlier batches."""
    ends: np.ndarray
    """True if the run ends the episode."""
    number: np.ndarray
    """Number that `episode_seeds` gave the episode, or -1."""
    seed: np.ndarray
    """Seed of the episode, or -1."""

    def take(self, which: np.ndarray) -> Runs:
        return Runs(*(column[which] for column in self))


class UnfinishedEpisodes:
    def __init__(self) -> None:
        self._parts: dict[int, list[list[np.ndarray]]] = {}
        """Unfinished episodes by env: for each run, an array per leaf of `columns`."""

    @property
    def steps(self) -> int:
        return sum(len(part[-1]) for parts in self._parts.values() for part in parts)

    @property
    def nbytes(self) -> int:
        return sum(nest.nbytes(tuple(part)) for parts in self._parts.values() for part in parts)

    def join(
        self, columns: dict[str, Any], runs: Runs, last_obs: Any, playing: np.ndarray, stride: int = 1
    ) -> dict[str, Any]:
        """Return the fields of an `EpisodeBatch` with the episodes that end. Keep the other runs.

        `columns`: trees of arrays, including `obs`. Rows of a run are `stride` apart. `last_obs`: a row per ended run.
        `playing`: True for an env with an unfinished episode. Runs of other envs are dropped.
        """
        leaves = [(nest.as_array(leaf), name == "obs") for name in columns for leaf in nest.leaves(columns[name])]
        earlier: dict[int, list[list[np.ndarray]]] = {}
        for which in np.flatnonzero((runs.before > 0) | ~runs.ends).tolist():
            env, row, count = int(runs.env[which]), int(runs.start[which]), int(runs.steps[which])
            parts = self._parts.pop(env, []) if runs.before[which] else []
            if runs.ends[which]:
                earlier[which] = parts
            else:  # a view would keep the whole batch in memory
                run = slice(row, row + count * stride, stride)
                self._parts[env] = [*parts, [leaf[run].copy() for leaf, _ in leaves]]
        self._parts = {env: parts for env, parts in self._parts.items() if playing[env]}
        ended = runs.ends.nonzero()[0]
        envs, start, steps, before, _, number, seed = runs.take(ended)
        lengths, most = before + steps, len(leaves[0][0]) - 1
        begins, obs_begins = np.cumsum(lengths) - lengths, np.cumsum(steps + 1) - (steps + 1)
        # Indices outside of a run are placeholders: below, earlier runs and `last_obs` overwrite these rows.
        rows = _ranges(start - before * stride, lengths, stride).clip(0, most)
        obs_rows = _ranges(start, steps + 1, stride).clip(0, most)
        arrays = [nest.take(leaf, obs_rows if is_obs else rows) for leaf, is_obs in leaves]
        of_obs = [i for i, (_, is_obs) in enumerate(leaves) if is_obs]
        obs = [arrays[i] for i in of_obs]
        parts, copied = list[list[np.ndarray]](), 0  # without a second copy of earlier observations
        for which in np.flatnonzero(before).tolist():
            row, obs_row = int(begins[which]), int(obs_begins[which])
            if obs_row > copied:
                parts.append([each[copied:obs_row] for each in obs])
            copied = obs_row
            for part in earlier[int(ended[which])]:
                parts.append([part[i] for i in of_obs])
                for array, rows_before, (_, is_obs) in zip(arrays, part, leaves, strict=True):
                    if not is_obs:
                        array[row : row + len(rows_before)] = rows_before
                row += len(part[-1])
        parts.append([each[copied:] for each in obs])
        whole = _like_tree(columns, arrays)
        all_obs = whole.pop("obs")
        nest.put(all_obs, obs_begins + steps, last_obs)
        obs_parts = [_like_tree(all_obs, part) for part in parts]
        about = {"lengths": lengths, "episode": number, "seed": seed, "env_id": envs.astype(np.int32)}
        return {"obs_parts": obs_parts, **whole, **about}


def _like_tree(tree: Any, leaves: Iterable[Any]) -> Any:
    in_order = iter(leaves)
    return nest.map(lambda _: next(in_order), tree)


def _ranges(starts: np.ndarray, counts: np.ndarray, stride: int) -> np.ndarray:
    """Return `start, start + stride, ...` with `count` numbers, for each start."""
    found = np.repeat(starts - (np.cumsum(counts) - counts) * stride, counts)
    found += np.arange(0, len(found) * stride, stride)
    return found
