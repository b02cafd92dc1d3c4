"""EndedStep: a step of SAME_STEP mode that ended episodes, while the next ones begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.engine.results import OwnStep
from vecenv.errors import Partial
from vecenv.facades.discrete_ints import Restore
from vecenv.facades.to_gymnasium.vector_infos import add_final, vector_infos


class EndedStep:
    """`step`, which ended the episodes of the envs `ids` and has reset them, except those in `left`.

    The last observations and infos of these episodes are kept apart from the rows, which are for the next ones.
    `restore` makes an observation what the env returned (see `int_restorer`).
    """

    def __init__(self, step: OwnStep, ids: Sequence[int], left: Sequence[int], restore: Restore | None) -> None:
        self._ids, self.left = ids, left
        obs, rew, terminated, truncated, infos_by_id = step
        infos = dict(infos_by_id.items())
        self.step = obs, rew, terminated, truncated, infos
        self._last_obs = [_own_row(obs, i) if i in left else infos[i].pop("final_obs") for i in ids]
        if restore is not None:
            self._last_obs = [*map(restore, self._last_obs)]
        self._last_infos = [infos.get(i, {}) if i in left else infos[i].pop("final_info") for i in ids]

    def begin(self, first_obs: Any, first_infos: Mapping[int, dict[str, Any]]) -> None:
        """Note what the reset of the `left` envs returned."""
        obs, _, _, _, infos = self.step
        nest.put(obs, self.left, first_obs)
        infos.update({i: first_infos.get(i, {}) for i in self.left})

    def as_partial(self) -> Partial:
        """The step as the `partial` of an error: it went well, though a reset after it has failed."""
        obs, rew, terminated, truncated, infos = self.step
        ids = np.arange(len(rew))
        info = nest.object_array([{**infos.get(i, {}), "env_id": i} for i in ids.tolist()])
        return Partial(ids, obs, rew, terminated, truncated, info)

    def vector_infos(self, as_list: bool) -> dict[Any, Any]:
        """The infos of the rows, with the last observations and infos; `as_list` as in `add_final`."""
        _, rew, _, _, infos_by_id = self.step
        infos = vector_infos(sorted(infos_by_id.items()), len(rew))
        add_final(infos, self._ids, self._last_obs, self._last_infos, len(rew), as_list=as_list)
        return infos


def _own_row(obs: Any, i: int) -> Any:
    """The observation of one env, apart from the batch."""
    return nest.map(lambda leaf: leaf[i].copy() if leaf.dtype != object else leaf[i], obs)
