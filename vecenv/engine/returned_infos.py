"""`ReturnedInfos`: builds the infos of a batch from rows of the arena and from pickled infos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.backends.backend import NO_EXTRAS, Taken
from vecenv.backends.host.row_writer import Final
from vecenv.backends.memory.arena import Arena

COPIES = np.frompyfunc(dict.copy, 1, 1)


class ReturnedInfos:
    def __init__(self, arena: Arena, all_ids: list[int]) -> None:
        self._final, self._all = arena.final, all_ids
        self._empty = nest.object_array([{"env_id": i} for i in all_ids])
        self.own_env_ids: dict[int, Any] = {}
        """Values that envs of the last batch had under "env_id", by env id."""
        self.final_obs: dict[int, tuple[Any, Any]] = {}
        """`final_obs` of the last batch and, if its types differ, the env's observation, by env id."""

    def rows(self, asked: Sequence[int], taken: Taken) -> np.ndarray:
        if self.own_env_ids or self.final_obs:
            self.own_env_ids, self.final_obs = {}, {}
        if not taken.extras and len(taken.infos) == 1:
            columns = taken.infos[0]
            if columns.ids == asked and "env_id" not in columns.schema.keys:
                return np.fromiter(columns.dicts(env_id=True), object, len(asked))
        infos: np.ndarray = COPIES(self._empty if asked is self._all else self._empty[asked])
        if taken is NO_EXTRAS:
            return infos
        row_of = self._all if asked is self._all else {i: row for row, i in enumerate(asked)}
        for i, info in self._merged(taken).items():
            if "env_id" in info:
                self.own_env_ids[i] = info["env_id"]
            info["env_id"] = i
            infos[row_of[i]] = info
            if i in taken.extras and (final := taken.extras[i].final) is not None:
                self.final_obs[i] = info["final_obs"], final.obs
        return infos

    def by_id(self, taken: Taken) -> Mapping[int, dict[str, Any]]:
        """Return the non-empty infos and last observations of the envs, by env id."""
        if taken is NO_EXTRAS:
            return {}
        if not taken.extras and len(taken.infos) < 2:
            return taken.infos[0] if taken.infos else {}
        infos = self._merged(taken)
        for i, extra in taken.extras.items():
            if extra.final is not None and extra.final.obs is not None:
                infos[i]["final_obs"] = extra.final.obs
        # sorted, because facades name keys in the order of the envs
        return {i: infos[i] for i in sorted(infos) if infos[i]}

    def _merged(self, taken: Taken) -> dict[int, dict[str, Any]]:
        infos = {i: info for columns in taken.infos for i, info in columns.items()} if taken.infos else {}
        for i, extra in taken.extras.items():
            infos[i] = dict(extra.info or {})
            if extra.final is not None:
                infos[i] |= {"final_obs": self._last_obs(i, extra.final), "final_info": dict(extra.final.info)}
        return infos

    def _last_obs(self, i: int, final: Final) -> Any:
        objects = iter(final.objects or ())
        return nest.map(lambda leaf: next(objects) if leaf.dtype == object else leaf[i].copy(), self._final)
