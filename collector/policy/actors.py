"""Who chooses the actions of a collector: its policy, or random actions in the policy's place."""

from __future__ import annotations

from typing import Any

import numpy as np

from collector.batch.step_extras import check_policy_names
from collector.policy.actor import Actor, Layout
from collector.policy.exploration import ExplorationType
from collector.policy.interface import Policy, RandomPolicy


class Actors:
    """`own` asks the collector's policy; `pick(random=True)` is for the batches that its actions are not wanted for.

    A collector without a policy, or with a `RandomPolicy`, has one actor, which stands in for nobody.
    """

    def __init__(
        self, policy: Policy | None, device: Any, env: Any, exploration: ExplorationType, faster: dict[str, Any]
    ) -> None:
        self._env = env
        self._draws = policy if isinstance(policy, RandomPolicy) else None
        self._random: Actor | None = None
        self.own = self.pick(random=True) if policy is None else Actor(policy, device, env, exploration, **faster)
        if self._draws is policy:
            self._random = self.own

    def pick(self, random: bool) -> Actor:
        """The one that acts in a batch."""
        if not random:
            return self.own
        if self._random is None:
            self._draws = RandomPolicy(self._env.action_space)
            self._random = Actor(self._draws, None, self._env, ExplorationType.RANDOM)
        return self._random

    def stands_in(self, actor: Actor) -> bool:
        """Whether its random actions take the place of a policy's."""
        return actor is self._random and actor is not self.own

    def layout_from(self, obs: Any, env_ids: np.ndarray) -> Layout:
        """What the policy returns beside the action; where nobody knows yet, it is asked about these observations."""
        if not self.own.layout:
            self.own.peek(obs, env_ids)
            check_policy_names(self.own.layout)
        return self.own.layout

    def draw_anew(self) -> None:
        """Random actions are drawn from the action spaces as these are seeded now."""
        if self._draws is not None:
            self._draws.draw_like(self._env.action_space)

    @property
    def transfer_seconds(self) -> float:
        """Time for the ways to all policies and back."""
        return sum(actor.transfer_seconds for actor in self._made())

    def close(self) -> None:
        """None of them is asked again."""
        for actor in self._made():
            actor.close()

    def _made(self) -> list[Actor]:
        return [self.own] if self._random in (None, self.own) else [self.own, self._random]
