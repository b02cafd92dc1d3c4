"""`Plan`: records which episodes of a job remain."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from collector.episodes.seeds import episode_seed
from collector.store.safe_folder import DatasetError

MAX_UNNEEDED = 2**24
"""Number of superfluous episodes that `restore` accepts, because parallel tasks may play some."""


class Plan:
    """Iterator over the `(number, seed)` of episodes to play. The player reports ended episodes to `finished`.

    - With `episodes`, the plan yields 0 to `episodes - 1`.
    - With `steps`, the plan yields numbers until all finished episodes together have `steps` steps. The job is complete
      if episodes 0, 1, ..., without a gap, have `steps` steps.
    - With `numbers`, the plan yields these numbers.

    `again` takes numbers back, and the plan yields them first. So the iterator may continue after its end.

    >>> plan = Plan(seed=0, steps=10)
    >>> [number for number, seed in (next(plan), next(plan))]
    [0, 1]
    >>> plan.finished(1, length=30)
    >>> next(plan, None), plan.is_complete  # episode 1 has enough steps, but episode 0 is unknown
    (None, False)
    >>> plan.finished(0, length=5)
    >>> plan.is_complete, plan.end, plan.end_steps
    (True, 2, 35)
    """

    def __init__(
        self, seed: int, episodes: int | None = None, steps: int | None = None, numbers: Iterable[int] | None = None
    ) -> None:
        self.job_seed = seed
        self.waiting = sorted(numbers or ())
        """Sorted numbers that are yielded before new numbers."""
        self._wanted_steps, self._count = steps, len(self.waiting) if episodes is None else episodes
        self._next, self._limit = 0, 0 if episodes is None else episodes
        self._known_lengths: dict[int, int] = {}
        """Steps of each ended episode from `end` on; 0: skipped."""
        self.playing: set[int] = set()
        self.skipped: set[int] = set()
        self.steps = 0
        self.end, self.end_steps, self.end_episodes = 0, 0, 0
        """All episodes below `end` have ended. They have `end_steps` steps, and `end_episodes` were not skipped."""

    def __iter__(self) -> Plan:
        return self

    def __next__(self) -> tuple[int, int]:
        if self.waiting:
            number = self.waiting.pop(0)
        elif self._has_new():
            number = self._next
            self._next += 1
        else:
            raise StopIteration
        self.playing.add(number)
        return number, episode_seed(self.job_seed, number)

    def finished(self, number: int, length: int) -> None:
        """Record the end of an episode with `length` steps; 0: skipped."""
        self.playing.discard(number)
        self._known_lengths[number] = length
        self.steps += length
        if not length:
            self.skipped.add(number)
        self._advance()

    def restore(self, numbers: np.ndarray, lengths: np.ndarray, skipped: Iterable[int] = ()) -> None:
        """Record the episodes of an earlier run. Raises `DatasetError` for impossible numbers."""
        self.skipped |= {*skipped}
        known = dict(zip(numbers.tolist(), lengths.tolist(), strict=True))
        most = self._count if self._wanted_steps is None else self._wanted_steps + len(self.skipped) + MAX_UNNEEDED
        for number in (*known, *self.skipped):
            if not 0 <= number < most:
                raise DatasetError(f"it has episode {number}, and the numbers of its job are below {most}")
        if twice := sorted(known.keys() & self.skipped):
            raise DatasetError(f"it has episode {twice[0]}, which it says was skipped")
        self._known_lengths |= known | dict.fromkeys(self.skipped, 0)
        self.steps += int(lengths.sum())
        self._advance()
        if self._wanted_steps is not None and self._known_lengths:
            self._next = max(self._known_lengths) + 1
            self.waiting = [number for number in range(self.end, self._next) if number not in self._known_lengths]

    def again(self, numbers: Iterable[int]) -> None:
        """Take back unfinished episodes."""
        numbers = {*numbers}
        self.playing -= numbers
        self.waiting = sorted({*self.waiting, *numbers})

    def set_aside(self, numbers: Iterable[int]) -> None:
        """Stop counting these episodes as playing. Later, the caller reports them to `finished`."""
        self.playing.difference_update(numbers)

    @property
    def is_complete(self) -> bool:
        if self._wanted_steps is not None:
            return self.end_steps >= self._wanted_steps
        return self.end + len(self._known_lengths) >= self._count

    @property
    def is_exhausted(self) -> bool:
        """True if no episode is playing, and none is left to yield. Episodes that are set aside do not count."""
        return not self.playing and not self.waiting and not self._has_new()

    @property
    def left(self) -> float:
        if self._wanted_steps is None:
            return len(self.waiting) + self._limit - self._next
        mean_length = self.steps / max(1, self.end_episodes + len(self._known_lengths))
        return (self._wanted_steps - self.steps) / max(1.0, mean_length) - len(self.playing)

    def _has_new(self) -> bool:
        """Advance `_next` to the first new number. Return whether the job needs this episode."""
        while self._next < self.end or self._next in self._known_lengths:
            self._next += 1
        return self._next < self._limit if self._wanted_steps is None else self.steps < self._wanted_steps

    def _advance(self) -> None:
        while (self._wanted_steps is None or self.end_steps < self._wanted_steps) and self.end in self._known_lengths:
            length = self._known_lengths.pop(self.end)
            self.end_steps += length
            self.end_episodes += length > 0
            self.end += 1
