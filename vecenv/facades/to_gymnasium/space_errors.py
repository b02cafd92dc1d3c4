"""SpaceErrors: error texts for envs whose spaces do not fit, in the words of gymnasium's two vector env classes.

Programs and tests look for these words. Which env it is comes after them.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class SpaceErrors(NamedTuple):
    """Texts about env `i`, whose space is `found` where `single` is expected; `cls` is the class that raises."""

    unequal_observations: str
    unlike_observations: str
    unequal_actions: str


AS_SYNC = SpaceErrors(
    "{cls}(..., observation_mode='same') however the sub-environments observation spaces are not equivalent. "
    "single_observation_space={single}, sub-environment observation_space={found}. If this is intentional, use "
    "`observation_mode='different'` instead. This is env {i}.",
    "{cls}(..., observation_mode='different' or custom space) however the sub-environments observation spaces do not "
    "share a common shape and dtype, single_observation_space={single}, sub-environment observation space={found}. "
    "This is env {i}.",
    "Sub-environment action space doesn't make the `single_action_space`, action_space={found}, "
    "single_action_space={single}. This is env {i}.",
)
AS_ASYNC = SpaceErrors(
    "{cls}(..., observation_mode='same') however some of the sub-environments observation spaces are not equivalent. "
    "If this is intentional, use `observation_mode='different'` instead. Env {i} has {found}, expected {single}.",
    "{cls}(..., observation_mode='different' or custom space) however the sub-environment's observation spaces do not "
    "share a common shape and dtype. Env {i} has {found}, expected the like of {single}.",
    "Some environments have an action space different from `{single}`. In order to batch actions, the action spaces "
    "from all environments must be equal. Env {i} has `{found}`.",
)


def space_error(text: str, cls: str, i: int, found: Any, single: Any) -> RuntimeError:
    """The error with one of the texts."""
    return RuntimeError(text.format(cls=cls, i=i, found=found, single=single))
