"""Which episodes a job plays: by number, each with its own seed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import numpy as np

from collector.episodes.seeds import episode_seed

Self = TypeVar("Self", bound="Plan")
UNKNOWN = -1


class Plan:
    """The numbers that are still to be played, as an iterator of `(number, seed)`, and what came of the others.

    With `episodes` it hands out the numbers below it. With `steps` it hands out numbers until those that are known have
    so many steps together; complete is then the shortest row of first numbers that has them. A number that is handed
    out again (`again`) comes before new ones, so the iterator may go on after it had ended.

    >>> plan = Plan(seed=0, steps=10)
    >>> [number for number, seed in (next(plan), next(plan))]
    [0, 1]
    >>> plan.finished(1, length=30)
    >>> next(plan, None), plan.is_complete  # enough is known, but for number 0
    (None, False)
    >>> plan.finished(0, length=5)
    >>> plan.is_complete, plan.end, plan.end_steps
    (True, 2, 35)
    """

    def __init__(self, seed: int, episodes: int | None = None, steps: int | None = None) -> None:
        self.job_seed = seed
        """What the seeds of the episodes follow from."""
        self._episodes, self._wanted = episodes, steps
        self._lengths = np.full(1024 if episodes is None else episodes, UNKNOWN, np.int64)
        self._next = 0
        self._again: list[int] = []
        self.playing: set[int] = set()
        """Numbers that are handed out and have not come back."""
        self.steps = 0
        """Steps of all finished episodes."""
        self.end, self.end_steps, self.end_episodes = 0, 0, 0
        """The first numbers that are all known, their steps, and how many of them are not skipped: in the end those of
        the whole job."""

    def __iter__(self: Self) -> Self:
        return self

    def __next__(self) -> tuple[int, int]:
        if self._again:
            number = self._again.pop(0)
        elif self._has_new():
            number = self._next
            self._next += 1
        else:
            raise StopIteration
        self.playing.add(number)
        return number, episode_seed(self.job_seed, number)

    def is_known(self, number: int) -> bool:
        """Whether an episode is finished, or skipped."""
        return number < len(self._lengths) and bool(self._lengths[number] != UNKNOWN)

    def finished(self, number: int, length: int) -> None:
        """Note an episode of so many steps; 0: it is skipped."""
        self._reserve(number)
        self.playing.discard(number)
        self._lengths[number] = length
        self.steps += length
        self._advance()

    def restore(self, numbers: np.ndarray, lengths: np.ndarray) -> None:
        """Note the episodes of an earlier run."""
        if len(numbers):
            self._reserve(int(numbers.max()))
            self._lengths[numbers] = lengths
            self.steps += int(lengths.sum())
            self._advance()

    def again(self, numbers: Iterable[int]) -> None:
        """Hand these numbers, which have not come back, out once more."""
        numbers = sorted(numbers)
        self.playing.difference_update(numbers)
        self._again = sorted({*self._again, *numbers})

    def lost(self, numbers: Iterable[int]) -> None:
        """Hand out once more what had been finished: it was lost before it was stored."""
        numbers = [*numbers]
        if not numbers:
            return
        for number in numbers:
            self.steps -= int(self._lengths[number])
            self._lengths[number] = UNKNOWN
        self.end, self.end_steps, self.end_episodes = 0, 0, 0
        self._advance()
        self.again(numbers)

    def set_aside(self, numbers: Iterable[int]) -> None:
        """Expect these numbers no longer from whom they were handed to; they come back by `finished` all the same."""
        self.playing.difference_update(numbers)

    @property
    def is_complete(self) -> bool:
        """Whether all episodes that the job is to have are known."""
        return self.end_steps >= self._wanted if self._wanted is not None else self.end == self._episodes

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing is being played, and nothing is to be handed out now: the rest is set aside, or complete."""
        return not self.playing and not self._again and not self._has_new()

    def _has_new(self) -> bool:
        """Whether there is a number that was never handed out; `_next` is the first one."""
        while self.is_known(self._next):
            self._next += 1
        return self._next != self._episodes and (self._wanted is None or self.steps < self._wanted)

    def _advance(self) -> None:
        lengths, end = self._lengths, self.end
        while not self.is_complete and end < len(lengths) and lengths[end] != UNKNOWN:
            self.end_steps += int(lengths[end])
            self.end_episodes += int(lengths[end] > 0)
            self.end = end = end + 1

    def _reserve(self, number: int) -> None:
        if number >= len(self._lengths):
            grown = np.full(max(number + 1, 2 * len(self._lengths)), UNKNOWN, np.int64)
            grown[: len(self._lengths)] = self._lengths
            self._lengths = grown
