"""The noise of a collector with `episode_seeds=`: what its policy draws, from the episode and the step alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from collector.episodes.keys import episode_keys, random_bits, uniforms
from collector.policy.exploration import ExplorationType, choose, is_distribution
from collector.policy.keyed.masks import ACTION_MASK, mask_of_info
from collector.policy.keyed.random_policy import KeyedRandomPolicy

T = TypeVar("T")


class KeyedNoise:
    """Draws for the rows with which a policy is called, each of which is at a step of an episode.

    `numbers` and `steps` (int64 `(rows,)`) are read at each draw: the loop writes into them.
    """

    def __init__(self, job_seed: int, rows: int) -> None:
        self.job_seed = job_seed
        self.everything = True
        """Whether all actions so far were keyed: random, the mode or mean of a distribution, or a sample of one whose
        family is known. What a policy returns as an action may come from anywhere."""
        self.resize(rows)
        self._policy: KeyedRandomPolicy | None = None
        self._has_masks = False

    def resize(self, rows: int) -> None:
        """Draw for so many rows, none of which is in an episode."""
        self.numbers = np.full(rows, -1)
        self.steps = np.zeros(rows, np.int64)
        self._masks: list[Any] = [None] * rows
        self._keyed = self._keys = np.zeros(0, np.int64)

    def random_policy(self, policy: Any, action_spaces: Sequence[Any]) -> Any:
        """A random policy `(obs, env_ids)` of the runner: `policy`, or one with this job seed."""
        self._policy = (
            policy if isinstance(policy, KeyedRandomPolicy) else KeyedRandomPolicy(action_spaces, self.job_seed)
        )
        return self._draw_actions

    def _draw_actions(self, obs: Any, env_ids: Any = None) -> Any:
        assert self._policy is not None
        return self._policy(obs, self.numbers, self.steps, self._masks if self._has_masks else None)

    def note_masks(self, env_ids: np.ndarray, infos: np.ndarray) -> None:
        """Note the action masks in the infos that came with the last observations of these envs."""
        if not self._has_masks:
            self._has_masks = any(ACTION_MASK in info for info in infos)
        if self._has_masks:
            for env_id, info in zip(env_ids.tolist(), infos, strict=True):
                self._masks[env_id] = mask_of_info(info)

    def watch(self, call: Callable[[], T]) -> T:
        """What the call of a policy returns. One that draws from torch's own generators (dropout does) is not keyed."""
        torch = sys.modules.get("torch")
        if torch is None:
            return call()
        before = _generator_states(torch)
        returned = call()
        self.everything &= all(map(torch.equal, before, _generator_states(torch)))
        return returned

    def uniforms(self, words: int) -> np.ndarray:
        """`words` numbers between 0 and 1 for each env: float64 `(N, words)`, the same ones at each call of a step."""
        if not np.array_equal(self.numbers, self._keyed):
            self._keyed, self._keys = self.numbers.copy(), episode_keys(self.job_seed, self.numbers)
        return uniforms(random_bits(self._keys, self.steps, words))

    def choose(self, action: Any, wanted: ExplorationType) -> Any:
        """As `exploration.choose`, with samples of known families drawn from this noise."""
        if not is_distribution(type(action)):  # type: ignore[arg-type]
            self.everything = False
            return choose(action, wanted)  # those in a dict or tuple are not keyed
        if wanted is not ExplorationType.RANDOM:
            return choose(action, wanted)
        from collector.policy.keyed.distributions import sample_keyed  # which needs torch

        sample = sample_keyed(action, self)
        if sample is None:
            self.everything = False
            return choose(action, wanted)
        return sample


def _generator_states(torch: Any) -> list[Any]:
    on_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *on_cuda]
