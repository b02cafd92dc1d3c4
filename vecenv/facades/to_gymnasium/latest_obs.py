"""LatestObs: the latest observations of all envs, for a call that returns only those of some."""

from __future__ import annotations

from typing import Any

import numpy as np

from vecenv import nest
from vecenv.wrappers import VectorEnvWrapper


class LatestObs:
    """Reads them from the arena of the engine; where a wrapper may change observations, keeps a copy instead."""

    def __init__(self, venv: Any) -> None:
        self._venv = venv
        self.is_kept = isinstance(venv, VectorEnvWrapper)
        """Whether every batch has to be noted."""
        self._kept: Any = None

    def note(self, ids: Any, obs: Any) -> None:
        """The envs `ids` have returned `obs`."""
        if not self.is_kept:
            return
        if self._kept is None:
            n = len(self._venv)
            self._kept = nest.map(lambda leaf: np.zeros((n, *leaf.shape[1:]), leaf.dtype), obs)
        nest.put(self._kept, ids, obs)

    def batch(self) -> Any:
        """The observations of all, a copy unless the vector env returns views."""
        if self.is_kept:
            return nest.map(np.copy, self._kept)
        return self._venv.engine.results.obs(None, {})
