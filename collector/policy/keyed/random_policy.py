"""Random actions that depend on the episode and the step alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from collector.episodes.keys import episode_keys, random_bits
from collector.policy.keyed.draws import draw_keyed, words_of
from collector.policy.keyed.masks import mask_of_obs
from vecenv import nest
from vecenv.engine.arguments import check_seed


class KeyedRandomPolicy:
    """Random actions from (job seed, episode number, step) alone: the same wherever, whenever and beside whatever an
    episode is played.

    The policy of a collector with `episode_seeds=`, where None is given. Actions are uniform (see `draw_keyed` for
    spaces without bounds); those that an `action_mask` in the observation or the info forbids are not chosen. Spaces:
    Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these.

    action_spaces: that of each env (`venv.action_space`), which are equal, or one space. job_seed: as that of
    `EpisodeSeeds`.

    Raises `TypeError` for other spaces, and where they differ: an episode may be played in any env.

    >>> from gymnasium.spaces import Discrete
    >>> policy = KeyedRandomPolicy(Discrete(10), job_seed=3)
    >>> policy(None, numbers=[7, 8, 7], steps=[0, 0, 1])
    array([6, 1, 6])
    """

    BLOCK = 32
    """Steps of an episode that are drawn at once."""
    AHEAD = 16
    """Episodes whose first steps are drawn at once, where they begin one after another."""

    def __init__(self, action_spaces: spaces.Space[Any] | Sequence[spaces.Space[Any]], job_seed: int = 0) -> None:
        every = [action_spaces] if isinstance(action_spaces, spaces.Space) else list(action_spaces)
        self.space = every[0]
        self.job_seed = check_seed(job_seed)
        self._words = words_of(self.space)
        for env_id, space in enumerate(every):
            if space != self.space:
                raise TypeError(
                    f"an episode may be played in any env, so their action spaces must be equal; that of env {env_id} "
                    f"is {space}, that of env 0 is {self.space}"
                )
        self._blocks: Any = None
        self._ahead: Any = None
        """The first blocks of the episodes `_ahead_of`, of which `_highest` is the last one that has begun."""
        self._ahead_of, self._highest = range(0), -1
        self._numbers = self._block_of = np.zeros(0, np.int64)

    def __call__(self, obs: Any, numbers: Any, steps: Any, masks: Sequence[Any] | None = None) -> Any:
        """The actions of rows: `(k, ...)`, or a dict or tuple of such.

        numbers, steps: the episode of each row, and how many of its steps came before: int64 `(k,)`. obs: the
        observations, whose entry `action_mask`, where they are a dict that has one, holds masks `(k, ...)`. masks: of
        each row that in its info, or None.
        """
        numbers, steps = np.asarray(numbers, np.int64), np.asarray(steps, np.int64)
        of_obs = mask_of_obs(obs)
        if of_obs is None and masks is None:
            return self._from_blocks(numbers, steps)
        bits = self._bits(numbers, steps)
        actions = draw_keyed(self.space, bits, of_obs)
        rows = [] if masks is None else [row for row, mask in enumerate(masks) if mask is not None]
        if rows and masks is not None:
            masked = draw_keyed(self.space, bits[rows], nest.stack([masks[row] for row in rows]))
            nest.put(actions, rows, masked)
        return actions

    def _bits(self, numbers: np.ndarray, steps: np.ndarray) -> np.ndarray:
        return random_bits(episode_keys(self.job_seed, numbers), steps, self._words)

    def _from_blocks(self, numbers: np.ndarray, steps: np.ndarray) -> Any:
        """The actions out of blocks of steps that are drawn at once for each row."""
        block_of, step = steps // self.BLOCK, steps % self.BLOCK
        if len(numbers) != len(self._numbers):
            self._blocks, self._numbers, self._block_of = None, numbers.copy(), block_of.copy()
            stale = np.arange(len(numbers))
        else:
            stale = ((numbers != self._numbers) | (block_of != self._block_of)).nonzero()[0]
        if len(stale):
            self._draw(stale, numbers[stale], block_of[stale])
        return nest.take(self._blocks, (np.arange(len(numbers)), step))

    def _draw(self, rows: np.ndarray, numbers: np.ndarray, block_of: np.ndarray) -> None:
        drawn = self._drawn_ahead(numbers) if not block_of.any() else None
        if drawn is None:
            drawn = self._block(numbers, block_of)
        if self._blocks is None:
            self._blocks = drawn
        else:
            nest.put(self._blocks, rows, drawn)
        self._numbers[rows], self._block_of[rows] = numbers, block_of

    def _drawn_ahead(self, numbers: np.ndarray) -> Any:
        """The first blocks of these episodes; None where they do not follow those that have begun."""
        first, last, before = int(numbers.min()), int(numbers.max()), self._highest
        self._highest = max(before, last)
        if first not in self._ahead_of or last not in self._ahead_of:
            if first != before + 1 or last - first >= self.AHEAD:
                return None
            self._ahead_of = range(first, first + self.AHEAD)
            self._ahead = self._block(np.array(self._ahead_of), np.zeros(self.AHEAD, np.int64))
        return nest.take(self._ahead, numbers - self._ahead_of.start)

    def _block(self, numbers: np.ndarray, block_of: np.ndarray) -> Any:
        """These blocks of these episodes: `(k, BLOCK, ...)`."""
        steps = block_of[:, None] * self.BLOCK + np.arange(self.BLOCK)
        bits = random_bits(episode_keys(self.job_seed, numbers)[:, None], steps, self._words)
        drawn = draw_keyed(self.space, bits.reshape(-1, self._words))
        return nest.map(lambda leaf: leaf.reshape(len(numbers), self.BLOCK, *leaf.shape[1:]), drawn)
