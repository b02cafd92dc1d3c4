"""The episodes that an actor has been given to play."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TypeVar

from collector.episodes.seeds import episode_seed

Self = TypeVar("Self", bound="Share")


class Share:
    """The part of a `Plan` that an actor plays, as an iterator of `(number, seed)`. More may be given at any time.

    >>> share = Share(0)
    >>> share.give([4, 7])
    >>> next(share)[0], share.is_exhausted
    (4, False)
    >>> share.finished(4, length=10)
    >>> [number for number, seed in share]
    [7]
    """

    is_complete = False
    """Only the driver knows when the job is."""

    def __init__(self, job_seed: int) -> None:
        self.job_seed = job_seed
        """What the seeds of the episodes follow from."""
        self.playing: set[int] = set()
        """Numbers that are handed out and have not come back."""
        self._waiting: deque[int] = deque()

    def __iter__(self: Self) -> Self:
        return self

    def __next__(self) -> tuple[int, int]:
        if not self._waiting:
            raise StopIteration
        number = self._waiting.popleft()
        self.playing.add(number)
        return number, episode_seed(self.job_seed, number)

    @property
    def waiting(self) -> int:
        """How many are not begun."""
        return len(self._waiting)

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing is being played, and nothing waits."""
        return not self.playing and not self._waiting

    def give(self, numbers: Iterable[int]) -> None:
        """Play these too."""
        self._waiting.extend(numbers)

    def finished(self, number: int, length: int) -> None:
        """Note an episode that is over; the driver gets its length by other ways."""
        self.playing.discard(number)

    def again(self, numbers: Iterable[int]) -> None:
        """Play these, which have not come back, before those that wait."""
        numbers = sorted(numbers)
        self.playing.difference_update(numbers)
        self._waiting.extendleft(reversed(numbers))

    def set_aside(self, numbers: Iterable[int]) -> None:
        """Expect these no longer; they come back by `finished` all the same."""
        self.playing.difference_update(numbers)
