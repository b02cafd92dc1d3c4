"""`UnfinishedEpisodes`: join episodes whose steps come in several runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from vecenv import nest


class Runs(NamedTuple):
    """Runs of consecutive steps of one episode each: arrays with an entry for each run."""

    env: np.ndarray
    start: np.ndarray
    """The row of its first step."""
    steps: np.ndarray
    """The number of its steps."""
    before: np.ndarray
    """Steps of the episode in earlier runs."""
    ends: np.ndarray
    """True if its last step ends the episode."""
    number: np.ndarray
    """The number of the episode, and its seed; -1: it has none."""
    seed: np.ndarray

    def take(self, which: np.ndarray) -> Runs:
        """Some of them."""
        return Runs(*(column[which] for column in self))


class UnfinishedEpisodes:
    """Joins episodes whose steps come in several runs; keeps the steps of those that are unfinished, one for an env."""

    def __init__(self) -> None:
        self._parts: dict[int, list[list[np.ndarray]]] = {}
        """By env: the leaves of the columns of each run."""

    @property
    def steps(self) -> int:
        """Steps of the unfinished episodes."""
        return sum(len(part[-1]) for parts in self._parts.values() for part in parts)

    @property
    def nbytes(self) -> int:
        """Size of their arrays."""
        return sum(leaf.nbytes for parts in self._parts.values() for part in parts for leaf in part)

    def join(
        self, columns: dict[str, Any], runs: Runs, last_obs: Any, playing: np.ndarray, stride: int = 1
    ) -> dict[str, Any]:
        """The fields of the `EpisodeBatch` of the runs that end, in their order and in memory of their own; the other
        runs are kept.

        `columns`: trees of rows, `obs` among them; the rows of a run are `stride` apart. `last_obs`: a tree with a row
        for each run that ends. `playing`: for each env, whether what is kept of it is still wanted.
        """
        leaves = [(nest.as_array(leaf), name == "obs") for name in columns for leaf in nest.leaves(columns[name])]
        earlier: dict[int, list[list[np.ndarray]]] = {}
        for which in np.flatnonzero((runs.before > 0) | ~runs.ends).tolist():
            env, row, count = int(runs.env[which]), int(runs.start[which]), int(runs.steps[which])
            parts = self._parts.pop(env, []) if runs.before[which] else []
            if runs.ends[which]:
                earlier[which] = parts
            else:  # as a copy: a view would keep the whole batch
                run = slice(row, row + count * stride, stride)
                self._parts[env] = [*parts, [leaf[run].copy() for leaf, _ in leaves]]
        self._parts = {env: parts for env, parts in self._parts.items() if playing[env]}
        ended = runs.ends.nonzero()[0]
        envs, start, steps, before, _, number, seed = runs.take(ended)
        lengths, most = before + steps, len(leaves[0][0]) - 1
        begins, obs_begins = np.cumsum(lengths) - lengths, np.cumsum(steps + 1) - (steps + 1)
        # Rows of earlier runs, and last observations, are written over.
        rows = _ranges(start - before * stride, lengths, stride).clip(0, most)
        obs_rows = _ranges(start, steps + 1, stride).clip(0, most)
        arrays = [nest.take(leaf, obs_rows if is_obs else rows) for leaf, is_obs in leaves]
        of_obs = [i for i, (_, is_obs) in enumerate(leaves) if is_obs]
        obs = [arrays[i] for i in of_obs]
        parts, copied = list[list[np.ndarray]](), 0  # of the observations: earlier runs are not copied again
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
    """A tree of the same form, with these leaves."""
    in_order = iter(leaves)
    return nest.map(lambda _: next(in_order), tree)


def _ranges(starts: np.ndarray, counts: np.ndarray, stride: int) -> np.ndarray:
    """The numbers `start, start + stride, ...`, as many as `counts` says, of each start."""
    found = np.repeat(starts - (np.cumsum(counts) - counts) * stride, counts)
    found += np.arange(0, len(found) * stride, stride)
    return found
