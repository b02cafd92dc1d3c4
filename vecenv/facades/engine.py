"""What a facade needs of a vector env beyond its public methods: the one place that looks inside."""

from __future__ import annotations

from typing import Any

import numpy as np

from vecenv import nest
from vecenv.base import BaseVectorEnv
from vecenv.wrappers import VectorEnvWrapper


def wait_for_all(venv: Any, timeout: float) -> bool:
    """Wait at most `timeout` seconds until all that is in flight has answered; takes nothing."""
    done = venv._enough(len(venv.waiting_id))
    venv._wait(done, max(0.0, timeout))
    return bool(done())


def autoresets(venv: Any) -> bool:
    """Whether `step(..., autoreset=True)` works: the backend can, and `step` is that of the engine."""
    if not isinstance(venv, BaseVectorEnv) or type(venv).step is not BaseVectorEnv.step:
        return False
    return venv._backend.autoresets


def check_engine(venv: Any) -> None:
    """ValueError for a vector env whose batches are not those of a gymnasium VectorEnv."""
    if venv.is_async:
        raise ValueError("a gymnasium VectorEnv steps all envs together: make the venv without wait_num and timeout")
    if venv._hand_over._split:
        raise ValueError("a gymnasium VectorEnv returns batches of observations: make the venv without stack_obs=False")


def returns_views(venv: Any) -> bool:
    """Whether the vector env was made with copy=False."""
    return not venv._hand_over._copy


class LatestObs:
    """The latest observations of all envs, for a call that returns only those of some.

    They are in the arena; but a wrapper may have changed what came from there, and then a copy is kept.
    """

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
        return self._venv._hand_over.obs(None, {})
