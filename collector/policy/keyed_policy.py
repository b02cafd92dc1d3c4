"""`KeyedPolicy`: policy with keyed random numbers (see keyed_noise.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from collector.batch.step_extras import RowLayout
from collector.policy.array_policy import ArrayPolicy
from collector.policy.collector_policy import CollectorPolicy, Outputs
from collector.policy.keyed_noise import KeyedNoise, restored_generators
from collector.policy.policy_call import ExplorationType
from vecenv import nest


class KeyedPolicy(CollectorPolicy):
    """Policy that gets a row for every env, and detects randomness that does not come from `noise`.

    original: the user's policy, or its copy on the policy device. rows: ids of the envs, then numbers of padding rows.
    """

    def __init__(self, policy: ArrayPolicy, original: Any, noise: KeyedNoise, rows: np.ndarray) -> None:
        self._policy, self._original, self.noise, self._rows = policy, original, noise, rows
        self.module, self.keeps_inputs, self.places_obs = policy.module, policy.keeps_inputs, policy.places_obs
        self._is_watched = False
        """True after the first call of a batch, the only call that `noise.watch` checks."""

    @property
    def layout(self) -> Mapping[str, RowLayout]:  # type: ignore[override]
        return self._policy.layout

    def actions(self, obs: Any, env_ids: np.ndarray, infos: np.ndarray) -> Outputs:
        rows, env_num = self._rows, len(infos)
        some = stands = len(env_ids) < env_num
        if len(rows) > env_num:
            obs, some = nest.map(partial(_padded, count=len(rows) - env_num), obs), True
        call = partial(self._policy.actions, obs, rows, infos, env_ids if stands else None)
        assert self.noise is not None
        outputs: Outputs = call() if self._is_watched else self.noise.watch(call)
        self._is_watched = True
        return nest.take(outputs, env_ids) if some else outputs

    def place(self, obs: Any) -> Any:
        return self._policy.place(obs)

    def begin(self, env_ids: Any) -> None:
        self._policy.begin(env_ids)
        assert self.noise is not None
        self.noise.begin(env_ids)

    @contextmanager
    def batch(self, wanted: ExplorationType) -> Iterator[None]:
        self._is_watched = False
        assert self.noise is not None
        with self._policy.batch(wanted), self.noise.watch_state(self._original):
            yield

    def learn(self, obs: Any, env_ids: np.ndarray, infos: np.ndarray) -> None:
        """Learn `layout` by a first call, which does not affect `noise.reason`."""
        if not self._policy.layout:
            assert self.noise is not None
            reason, self._is_watched = self.noise.reason, True
            with restored_generators():
                self.actions(nest.map(np.copy, obs), env_ids, infos)  # a policy may write into its inputs
            self.noise.reason = reason
            self._policy.begin(slice(None))

    def close(self) -> None:
        self._policy.close()
        self._original = None


def _padded(rows: Any, count: int) -> Any:
    """Return a copy of `rows` that repeats the last row `count` times."""
    return nest.namespace(rows).concatenate([rows, *[rows[-1:]] * count])
