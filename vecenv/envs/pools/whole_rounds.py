"""WholeRounds: which rounds a vector env can do that steps all its envs together, checked before it is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import AutoresetMode

from vecenv.backends.base import Codec
from vecenv.backends.ipc import opcodes


class Rounds(Protocol):
    """What has to be known of the envs."""

    env_num: int
    mode: AutoresetMode
    resets_by_id: bool
    """Whether some envs can be reset."""
    was_reset: bool
    """Whether all envs have been reset once."""
    over: np.ndarray
    """The envs whose episode ended in the last step, and that were not reset since."""

    def has_begun(self, ids: np.ndarray) -> bool:
        """Whether the next episode of each of these envs has begun in the step that ended the last one."""


class WholeRounds(Codec):
    """Refuses what `rounds`, named `name` in messages, cannot do."""

    def __init__(self, rounds: Rounds, name: str, action_space: Any) -> None:
        self._rounds, self._name, self._action_space = rounds, name, action_space

    def encode(
        self, ids: Sequence[int], ops: int | np.ndarray, actions: Any, payloads: Mapping[int, Any]
    ) -> Mapping[int, Any]:
        for i, payload in payloads.items():
            if not isinstance(payload, Mapping):
                raise ValueError(f"the action for env {i} is {payload!r}, which does not fit {self._action_space}")
            if unknown := sorted(payload.keys() - {"seed", "options"}):
                raise TypeError(f"the reset of {self._name} takes seed and options, got {unknown}")
        steps, resets = steps_and_resets(np.asarray(ids), ops)
        if len(steps):
            self._check_step(steps, resets)
        else:
            self._check_reset(resets, payloads)
        return payloads

    def _check_step(self, steps: np.ndarray, resets: np.ndarray) -> None:
        rounds, asked = self._rounds, resets.tolist()
        together = f"{self._name} steps its {rounds.env_num} envs together"
        if len(steps) + len(resets) < rounds.env_num:
            raise ValueError(f"{together}: pass an action for each of them, got actions for {steps.tolist()} only")
        if rounds.mode is not AutoresetMode.NEXT_STEP:
            if asked:
                raise ValueError(f"{together}, so none can be reset in a step: call reset({asked}), then step")
        elif asked != (over := np.flatnonzero(rounds.over).tolist()):
            raise ValueError(
                f"{together}, and a step resets those whose episode ended in the one before, which are {over}; got "
                f"reset={asked}"
            )

    def _check_reset(self, ids: np.ndarray, payloads: Mapping[int, Any]) -> None:
        rounds, asked = self._rounds, ids.tolist()
        if len(ids) == rounds.env_num or (rounds.has_begun(ids) and not payloads):
            return
        if not rounds.resets_by_id:
            instead = "pass no ids"
            if rounds.mode is AutoresetMode.NEXT_STEP:
                instead += ", or reset those whose episode is over in the next step: step(action, reset=ids)"
            raise ValueError(
                f"{self._name} has no reset of some envs (options['reset_mask']), got reset({asked}): {instead}"
            )
        if not rounds.was_reset:
            raise RuntimeError(f"the first reset of {self._name} must be of all envs, got reset({asked})")


def steps_and_resets(asked: np.ndarray, ops: int | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The envs of a round that step, and those that are reset, each in ascending order."""
    plain = np.broadcast_to(np.asarray(ops) & opcodes.PLAIN, asked.shape)
    resets = (plain == opcodes.RESET) | (plain == opcodes.RESET_KWARGS)
    return np.sort(asked[~resets]), np.sort(asked[resets])
