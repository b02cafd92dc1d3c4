"""HandOver: the one place where rows leave the arena and become the caller's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.backends.host.row_writer import Extra
from vecenv.backends.memory.arena import Arena
from vecenv.backends.memory.layout import Layout, ObjectLeaf

Columns = tuple[Any, np.ndarray, np.ndarray, np.ndarray]
"""(obs, rew, terminated, truncated)"""
Step = tuple[Any, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""(obs, rew, terminated, truncated, info)"""
OwnStep = tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[int, dict[str, Any]]]
"""A batch whose infos are those that the envs gave, of the envs that said anything."""


class HandOver:
    """Makes the returned batches from the arena.

    Guarantees that what it returns never changes later, unless `copy` is False: then a full batch is a view of the
    arena, valid until the next call. `spaced` says that the envs have observation spaces; without them arrays of one
    shape are stacked as they come.
    """

    def __init__(
        self, arena: Arena, layout: Layout, all_ids: list[int], *, copy: bool, stack_obs: bool, spaced: bool
    ) -> None:
        self._arena = arena
        self._copy = copy
        self._all = all_ids
        self._quiet = [{"env_id": i} for i in self._all]
        self._objects = [leaf for leaf in nest.leaves(arena.obs) if leaf.dtype == object]
        self._split = not stack_obs and isinstance(layout.obs, (dict, tuple))
        self._unspaced = not spaced and isinstance(layout.obs, ObjectLeaf)
        self._single = arena.obs if isinstance(arena.obs, np.ndarray) and not self._unspaced else None
        self._whole: Columns | None = None
        """What a batch of all envs is a copy of, where observations are one array of numbers."""
        if copy and self._single is not None and not self._objects:
            self._whole = self._single, arena.reward, arena.terminated, arena.truncated
        self._nothing: dict[int, np.ndarray] = {}
        """Of each env that pays vectors, the vector of zeros for a round in which it is reset."""
        self._row_shape: tuple[int, ...] | None = None
        self._ragged = False
        self.own_ids: dict[int, Any] = {}
        """What the envs of the last batch had under the key `env_id` of their infos, where the batch has their ids."""

    def rows(self, ids: np.ndarray | None, asked: Sequence[int], extras: Mapping[int, Extra]) -> Step:
        """What `step` returns for the envs `ids` (None for all), which are those in `asked`."""
        return *self.columns(ids, extras), self.info(asked, extras)

    def columns(self, ids: np.ndarray | None, extras: Mapping[int, Extra]) -> Columns:
        """The same without the infos."""
        if ids is None and self._whole is not None:
            obs, rew, terminated, truncated = self._whole
            rew = self.rew(None, extras) if extras or self._nothing else rew.copy()
            return obs.copy(), rew, terminated.copy(), truncated.copy()
        terminated, truncated = self._rows(self._arena.terminated, ids), self._rows(self._arena.truncated, ids)
        return self.obs(ids, extras), self.rew(ids, extras), terminated, truncated

    def obs(self, ids: np.ndarray | None, extras: Mapping[int, Extra]) -> Any:
        """The observations of `ids` (None for all, in order)."""
        for i, extra in extras.items():
            if extra.objects is not None:
                for leaf, value in zip(self._objects, extra.objects, strict=True):
                    leaf[i] = value
        if self._single is not None:
            return self._rows(self._single, ids)
        if self._split:
            ids_list = self._all if ids is None else ids.tolist()
            return nest.object_array([self._raw(i) for i in ids_list])
        if self._unspaced:
            return self._stack_if_even(self._rows(self._arena.obs, ids))
        return nest.map(lambda leaf: self._rows(leaf, ids), self._arena.obs)

    def _raw(self, i: int) -> Any:
        """The observation of one env, as the env returned it."""
        return nest.map(lambda leaf: _row(leaf, i), self._arena.obs)

    def _rows(self, leaf: np.ndarray, ids: np.ndarray | None) -> np.ndarray:
        if ids is not None:
            return leaf[ids]
        return leaf.copy() if self._copy else leaf

    def _stack_if_even(self, values: np.ndarray) -> np.ndarray:
        """Envs without spaces: one array as long as all rows so far have one shape, then an object array."""
        if not self._ragged:
            for value in values:
                shape = np.shape(value) if isinstance(value, (np.ndarray, np.generic, int, float)) else None
                if self._row_shape is None:
                    self._row_shape = shape
                self._ragged = self._ragged or shape is None or shape != self._row_shape
        return values if self._ragged else np.stack([np.asarray(value) for value in values])

    def rew(self, ids: np.ndarray | None, extras: Mapping[int, Extra]) -> np.ndarray:
        """Rewards (k,); (k, m) where envs return vectors, and an object array where the envs differ in it."""
        reward = self._rows(self._arena.reward, ids)
        vectors = {i: extra.reward for i, extra in extras.items() if extra.reward is not None}
        if not vectors and not self._nothing:
            return reward
        asked = self._all if ids is None else ids.tolist()
        for i in asked:
            if i in vectors:
                self._nothing[i] = np.zeros_like(vectors[i])
            elif self._arena.reward[i]:
                self._nothing.pop(i, None)  # it failed by the change to a number, and was reset
        paid = {i: vectors.get(i, self._nothing[i]) for i in asked if i in self._nothing}
        if not paid:
            return reward
        # One that pays no vectors, as far as is known, and has paid 0: it may have been reset, or could not be stepped.
        zeros = np.zeros_like(next(iter(paid.values())))
        others = [i for i in asked if i not in paid]
        if all(vector.shape == zeros.shape for vector in paid.values()) and not self._arena.reward[others].any():
            return np.stack([paid.get(i, zeros) for i in asked])
        return nest.object_array([paid.get(i, self._arena.reward[i]) for i in asked])

    def own_rows(self, ids: np.ndarray | None, extras: Mapping[int, Extra]) -> OwnStep:
        """What `rows` returns, with infos as the envs gave them, of those that said anything."""
        return *self.columns(ids, extras), self.own_infos(extras) if extras else {}

    def info(self, asked: Sequence[int], extras: Mapping[int, Extra]) -> np.ndarray:
        """Infos: an object array (k,) of fresh dicts, each with its `env_id`."""
        quiet = self._quiet if asked is self._all else map(self._quiet.__getitem__, asked)
        infos = np.fromiter(map(dict.copy, quiet), object, len(asked))  # no line of Python for each env
        if self.own_ids:
            self.own_ids = {}
        if extras:
            row_of = self._all if asked is self._all else {i: row for row, i in enumerate(asked)}
            for i, extra in extras.items():
                infos[row_of[i]] = self._info(i, extra)
        return infos

    def _info(self, i: int, extra: Extra) -> dict[str, Any]:
        info = self._own_info(i, extra)
        if "env_id" in info:
            self.own_ids[i] = info["env_id"]
        info["env_id"] = i
        return info

    def own_infos(self, extras: Mapping[int, Extra]) -> dict[int, dict[str, Any]]:
        """Infos as the envs gave them, of those that said anything, by ascending id."""
        return {i: info for i in sorted(extras) if (info := self._own_info(i, extras[i]))}

    def _own_info(self, i: int, extra: Extra) -> dict[str, Any]:
        info = dict(extra.info or {})
        if extra.final is not None:
            objects = iter(extra.final.objects or ())
            last = nest.map(lambda leaf: next(objects) if leaf.dtype == object else _row(leaf, i), self._arena.final)
            info |= {"final_obs": last, "final_info": dict(extra.final.info)}
        return info


def _row(leaf: np.ndarray, i: int) -> Any:
    row = leaf[i]
    return row.copy() if isinstance(row, np.ndarray) and leaf.dtype != object else row
