"""Interface of policies for collectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import repeat
from operator import contains
from typing import Any

import numpy as np

from collector.basics.timing import Clock
from collector.batch.step_extras import RowLayout, has_columns
from collector.policy.keyed_noise import KeyedNoise
from collector.policy.policy_call import ExplorationType
from collector.policy.random_policy import RandomPolicy
from vecenv import nest

ACTION_MASK = "action_mask"
Outputs = dict[str, np.ndarray]


class CollectorPolicy(ABC):
    module: Any = None
    """The user's policy, or its copy on another device, if the policy is a torch module; else `None`."""
    noise: KeyedNoise | None = None
    """Source of random numbers if the collector has `episode_seeds`."""
    keeps_inputs = True
    """False if the policy never keeps or changes observations. Observations may then be views of the arena."""
    places_obs = False
    """True if batches are stored on the policy's device, so that observations need to be copied there only once."""
    layout: Mapping[str, RowLayout] = {}
    """Row shape and dtype of each output except Dict and Tuple actions."""

    @abstractmethod
    def actions(self, obs: Any, env_ids: np.ndarray, infos: np.ndarray) -> Outputs:
        """Return the outputs for these envs by name: arrays `(k, ...)`, including `action`.

        The arrays may be views of `obs`, so they are valid only until the envs step. `infos` `(N,)`: latest info of
        every env. With `noise`, `obs` has rows for all envs. Raises `ValueError` or `TypeError` for wrong outputs.
        """

    def place(self, obs: Any) -> Any:
        """Return observations as tensors on the policy's device, if `places_obs`."""
        return obs

    def begin(self, env_ids: Any) -> None:  # noqa: B027  optional
        """Record that episodes begin in these envs."""

    def batch(self, wanted: ExplorationType) -> AbstractContextManager[None]:
        return nullcontext()

    def learn(self, obs: Any, env_ids: np.ndarray, infos: np.ndarray) -> None:  # noqa: B027  optional
        """Learn `layout` before the first call."""

    def close(self) -> None:  # noqa: B027  optional
        """Release memory on devices."""


class RandomActions(CollectorPolicy):
    """Actions of a `RandomPolicy`, with action masks from infos and observations.

    instead_of: the policy that random actions replace. Its outputs except `action` are stored as zeros.
    """

    def __init__(
        self,
        policy: RandomPolicy,
        clock: Clock,
        noise: KeyedNoise | None = None,
        instead_of: CollectorPolicy | None = None,
    ) -> None:
        self.policy, self.noise, self._clock, self._instead_of = policy, noise, clock, instead_of
        self.keeps_inputs = type(policy) is not RandomPolicy

    def actions(self, obs: Any, env_ids: np.ndarray, infos: np.ndarray) -> Outputs:
        if self._instead_of is not None:
            self._instead_of.learn(obs, env_ids, infos)
        if self.noise is not None and len(env_ids) < len(infos):
            obs = nest.take(obs, env_ids)
        outputs = {"action": self.policy(obs, env_ids, masks_in(infos, env_ids))}
        for name, (shape, dtype) in {} if self._instead_of is None else self._instead_of.layout.items():
            if name != "action":
                outputs[name] = np.zeros((len(env_ids), *shape), dtype)
        self._clock.lap("policy")
        return outputs

    def begin(self, env_ids: Any) -> None:
        if self.noise is not None:
            self.noise.begin(env_ids)


def masks_in(infos: Any, env_ids: np.ndarray) -> list[Any] | None:
    if infos.__class__ is not np.ndarray and has_columns(infos) and infos.column(ACTION_MASK)[0] is None:
        return None
    found = infos[env_ids]
    if not any(map(contains, filter(None, found), repeat(ACTION_MASK))):  # without bytecodes, as the envs wait
        return None
    masks = [None if info is None else info.get(ACTION_MASK) for info in found]
    return None if all(mask is None for mask in masks) else masks
