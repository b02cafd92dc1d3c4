"""From one step to the next: what came after a step becomes what there is before the following one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REWARDS = frozenset({"reward", "rew"})
ENDS = frozenset({"done", "terminated", "truncated"})
ACTIONS = frozenset({"action", "act"})
NEXT = "next"


def step_mdp(
    batch: Mapping[str, Any],
    keep_other: bool = True,
    exclude_reward: bool = True,
    exclude_done: bool = False,
    exclude_action: bool = True,
) -> dict[str, Any]:
    """The entries of `batch["next"]` as the entries of a new dict (as torchrl's `step_mdp`); arrays are not copied.

    `batch` holds one step: what there was before it, the action, and under "next" what came of it. `exclude_reward`
    (default), `exclude_done` and `exclude_action` (default) leave out "reward" or "rew"; "done", "terminated" and
    "truncated"; "action" or "act". `keep_other` keeps the entries of `batch` that "next" has not; else only those of
    "next", and the action if it is not left out, are there. KeyError without "next".

    >>> step_mdp({"obs": 0, "action": 1, "key": "kept", "next": {"obs": 2, "reward": 1.0, "terminated": False}})
    {'obs': 2, 'key': 'kept', 'terminated': False}
    """
    if NEXT not in batch:
        raise KeyError(f"the batch has no entry {NEXT!r}; it has {sorted(batch)}")
    excluded = (REWARDS if exclude_reward else set()) | (ENDS if exclude_done else set())
    excluded |= (ACTIONS if exclude_action else set()) | {NEXT}
    own = batch if keep_other else {name: batch[name] for name in batch if name in ACTIONS}
    return {name: value for name, value in {**own, **batch[NEXT]}.items() if name not in excluded}
