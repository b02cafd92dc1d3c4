"""`Dataset`: read the episodes of a folder by number."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, overload

import numpy as np

from collector.episodes.episode import EPISODE_COLUMNS, Episode, EpisodeBatch, columns_of
from collector.store.dataset_head import read_head, space_from_json, spaces_of
from collector.store.manifest import read_manifest
from collector.store.safe_folder import DatasetError
from collector.store.shard import Shards
from collector.store.shard_layout import EpisodeLayout, check_spaces, pack
from vecenv import nest

MEMORY = 2**28


@dataclass(frozen=True, eq=False, repr=False)
class Transitions:
    """K steps, each with the observation before and after it."""

    obs: Any
    """`(K, ...)`, or a dict or tuple of such: the observation for which the action was chosen."""
    action: Any
    """`(K, ...)`, or a tree of such."""
    reward: np.ndarray
    """float64 `(K,)` or `(K, m)`."""
    next_obs: Any
    """As `obs`; of the last step of an episode its last observation."""
    terminated: np.ndarray
    """bool `(K,)`."""
    truncated: np.ndarray
    """bool `(K,)`."""
    episode: np.ndarray
    """int64 `(K,)`: number of the episode."""
    step: np.ndarray
    """int64 `(K,)`: steps of it before this one."""

    def __len__(self) -> int:
        return len(self.reward)

    def __repr__(self) -> str:
        return f"Transitions({len(self)} steps of {len(np.unique(self.episode))} episodes)"

    def as_dict(self) -> dict[str, Any]:
        """The columns by name."""
        return dict(vars(self))


class Dataset:
    """The committed episodes of a folder, in the order of their numbers; also of a job that is running or was killed.

    Opening reads the manifest only. A shard is opened when an episode of it is needed, and its size, its hash and all
    that is in it are checked then, once. Nothing in the folder is trusted: no file outside it is opened, nothing is
    unpickled, and no more is allocated than the files can hold; what does not fit together raises `DatasetError`.

    Args:
        folder: what a job, `StoreWriter` or `RecordEpisodes` wrote.
        memory: bytes of shards to keep mapped or inflated, besides one shard; what is returned is not counted.

    Raises `DatasetError` where the folder holds no data set, or one that is damaged.

    >>> import tempfile, gymnasium
    >>> from collector import RecordEpisodes
    >>> folder = tempfile.mkdtemp()
    >>> with RecordEpisodes(gymnasium.make_vec("CartPole-v1", 2), folder) as envs:
    ...     _ = envs.reset(seed=0)
    ...     for _ in range(100):
    ...         _ = envs.step(envs.action_space.sample())
    >>> episodes = Dataset(folder)
    >>> len(episodes) > 2, episodes[0].obs.shape[0] == len(episodes[0].action) + 1
    (True, True)
    >>> batch = next(episodes.batches(32, seed=0))
    >>> batch.obs.shape, batch.next_obs.shape, batch.reward.dtype
    ((32, 4), (32, 4), dtype('float64'))
    """

    def __init__(self, folder: str | os.PathLike[str], *, memory: int = MEMORY) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.head = read_head(self.folder)
        """Notes of the writer on the data set: spaces, versions, the job (docs/guides/datasets.md)."""
        manifest = read_manifest(self.folder)
        self.end = manifest.end
        """The number of the episode before which a complete data set ends; None: it is not complete."""
        self.failed = manifest.failed
        """Failures that the writer counted, by name."""
        self.state = manifest.state
        """The last state that the writer left for the next one."""
        self.layout: EpisodeLayout | None = manifest.layout
        """The arrays of a shard; None where there is none yet."""
        if self.layout is not None:
            try:
                check_spaces(self.layout, spaces_of(self.head))
            except DatasetError as error:
                raise DatasetError(f"{self.folder} cannot be read: {error}") from None
        self._shards = Shards(self.folder, manifest, memory)
        index = manifest.index
        self._set_index(index if self.end is None else index[index["number"] < self.end])

    def _set_index(self, index: np.ndarray) -> None:
        self._index = index if (np.diff(index["number"]) > 0).all() else index.take(np.argsort(index["number"]))
        self._starts = np.append(0, np.cumsum(self._index["length"]))

    # What is known without opening a shard

    def __len__(self) -> int:
        return len(self._index)

    def __repr__(self) -> str:
        state = "complete" if self.complete else "not complete"
        return f"Dataset({str(self.folder)!r}: {len(self):,} episodes, {self.steps:,} steps, {state})"

    @property
    def complete(self) -> bool:
        """True once the writer has ended it."""
        return self.end is not None

    @property
    def steps(self) -> int:
        """Steps of all episodes."""
        return int(self._starts[-1])

    @property
    def numbers(self) -> np.ndarray:
        """int64 `(episodes,)`: the numbers, which grow."""
        return self._index["number"].copy()

    @property
    def lengths(self) -> np.ndarray:
        """int64 `(episodes,)`: steps of each."""
        return self._index["length"].copy()

    @property
    def returns(self) -> np.ndarray:
        """float64 `(episodes,)`: the sum of the rewards of each."""
        return self._index["returns"].copy()

    @property
    def observation_space(self) -> Any:
        """The space of one env; None where the head has none that can be made again."""
        return space_from_json(self.head.get("observation_space"))

    @property
    def action_space(self) -> Any:
        """As `observation_space`, of the actions."""
        return space_from_json(self.head.get("action_space"))

    @property
    def shard_files(self) -> list[str]:
        """The shards, in the order of their commits."""
        return [record.shard for record in self._shards.records]

    @property
    def nbytes(self) -> int:
        """Size of the shards on the disk."""
        return sum(record.nbytes for record in self._shards.records)

    # Episodes

    @overload
    def __getitem__(self, which: int) -> Episode: ...

    @overload
    def __getitem__(self, which: slice) -> Dataset: ...

    def __getitem__(self, which: int | slice) -> Episode | Dataset:
        """The episode at a place in the order of numbers, as arrays of your own; of a slice, a data set of fewer.

        Raises IndexError, and `DatasetError` where its shard is damaged.
        """
        if isinstance(which, slice):
            part = object.__new__(Dataset)
            part.__dict__.update(vars(self))
            part._set_index(self._index[which])
            return part
        place = range(len(self))[which]
        entry = self._index[place]
        view = self._shards[int(entry["shard"])][int(entry["position"])]
        return replace(view, **nest.map(np.array, columns_of(view)))

    def __iter__(self) -> Iterator[Episode]:
        return (self[place] for place in range(len(self)))

    def blocks(self, nbytes: int = 2**26) -> Iterator[EpisodeBatch]:
        """All episodes in order, several at a time as one set of arrays of about `nbytes` (at least one episode)."""
        waiting: list[Episode] = []
        size = 0
        for episode in self:
            waiting.append(episode)
            size += episode.nbytes
            if size >= nbytes:
                yield pack(waiting)
                waiting, size = [], 0
        if waiting:
            yield pack(waiting)

    # Transitions

    def transitions(self) -> Transitions:
        """All transitions in memory, episode after episode; of a part: `dataset[:100].transitions()`.

        Raises `DatasetError` where there is none.
        """
        if not len(self):
            raise DatasetError(f"{self.folder} has no episodes yet")
        return self.take(np.arange(self.steps))

    def take(self, steps: Any) -> Transitions:
        """The transitions with these numbers, of `0..self.steps - 1` in the order of `transitions()`: int array `(k,)`.

        Raises IndexError.
        """
        steps = np.asarray(steps)
        if not steps.size or steps.dtype.kind not in "iu":
            raise IndexError(f"expected the numbers of one or more transitions, got {steps.size} values {steps.dtype}")
        if not (steps.min() >= 0 and steps.max() < self.steps):
            raise IndexError(f"the data set has {self.steps:,} transitions, got {steps.min()} to {steps.max()}")
        steps = steps.astype(np.int64, copy=False)  # numpy makes floats of unsigned and signed integers
        episode = np.searchsorted(self._starts, steps, side="right") - 1
        step, index = steps - self._starts[episode], self._index
        shard, row = index["shard"][episode], index["first"][episode] + step
        # By shard, and within it by place: each is opened once, and read in the order of the disk.
        order = np.lexsort((row, shard))
        found: dict[str, Any] = {}
        for into in np.split(order, np.flatnonzero(np.diff(shard[order])) + 1):
            part, rows = self._shards[int(shard[into[0]])], row[into]
            obs_rows = rows + index["position"][episode[into]]
            columns = {name: (getattr(part, name), rows) for name in EPISODE_COLUMNS}
            columns |= {"obs": (part.obs, obs_rows), "next_obs": (part.obs, obs_rows + 1)}
            for name, (tree, at) in columns.items():
                if name not in found:
                    found[name] = nest.map(lambda leaf: np.empty((len(steps), *leaf.shape[1:]), leaf.dtype), tree)
                nest.put(found[name], into, nest.take(tree, at))
        return Transitions(**found, episode=index["number"][episode], step=step)

    def batches(self, batch_size: int, seed: int, passes: int | None = None) -> Iterator[Transitions]:
        """Random transitions, `batch_size` at a time: each once a pass, `passes` times (None: without end).

        The same seed gives the same batches. A pass is a permutation of windows: the shards in random order, as many at
        a time as `memory` of the constructor holds, and the transitions of these in random order. So memory stays below
        that and a few batches; where it holds the whole data set, any transition may be next. Draws with replacement
        are `take(rng.integers(data.steps, size=batch_size))`. The last batch of a pass is smaller where `batch_size`
        does not divide the steps. Raises `DatasetError` where there are no episodes, ValueError for a `batch_size`
        below 1.
        """
        return (self.take(steps) for steps in self.batch_order(batch_size, seed, passes))

    def batch_order(self, batch_size: int, seed: int, passes: int | None = None) -> Iterator[np.ndarray]:
        """The numbers of the transitions of each batch of `batches`: int64 `(batch_size,)`; raises as it does."""
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if not len(self):
            raise DatasetError(f"{self.folder} has no episodes yet")
        return self._orders(batch_size, seed, passes)

    def _orders(self, batch_size: int, seed: int, passes: int | None) -> Iterator[np.ndarray]:
        for done in count() if passes is None else range(passes):
            rest = np.zeros(0, np.int64)
            for window in self._windows(np.random.default_rng([seed, done])):
                rest = np.concatenate([rest, window])
                whole = len(rest) // batch_size * batch_size
                yield from rest[:whole].reshape(-1, batch_size)
                rest = rest[whole:]
            if len(rest):
                yield rest

    def _windows(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """Shards in random order, as many at a time as memory holds, and their transitions in random order."""
        shards, windows, number, size = rng.permutation(np.unique(self._index["shard"])), [], 0, 0
        for which in shards.tolist():
            nbytes = self._shards.nbytes(which)
            if size and size + nbytes > self._shards.memory:
                number, size = number + 1, 0
            size += nbytes
            windows.append(number)
        for each in range(number + 1):
            episodes = np.flatnonzero(np.isin(self._index["shard"], shards[np.array(windows) == each]))
            lengths = self._index["length"][episodes]
            first = self._starts[episodes] - (np.cumsum(lengths) - lengths)
            yield rng.permutation(np.arange(int(lengths.sum())) + np.repeat(first, lengths))

    def as_torch(self, of: str = "transitions", *, batch_size: int = 256, seed: int = 0, passes: int | None = 1) -> Any:
        """A `torch.utils.data` view, which works with the workers of a DataLoader.

        `of="transitions"`: by number, each a dict of tensors. `of="episodes"`: likewise. `of="batches"`: an iterable of
        what `batches(batch_size, seed, passes)` gives, for `DataLoader(view, batch_size=None, num_workers=2)`, whose
        workers share the batches out. Raises ValueError for another name.
        """
        from collector.store.torch_view import TorchBatches, TorchRows

        if of == "batches":
            return TorchBatches(self, batch_size, seed, passes)
        if of not in ("transitions", "episodes"):
            raise ValueError(f"as_torch(of={of!r}): expected 'transitions', 'episodes' or 'batches'")
        return TorchRows(self, of == "episodes")

    # Checks

    def verify(self) -> list[str]:
        """Read all shards again, also of a slice, and check them; return a line for each problem."""
        problems = []
        for which in range(len(self._shards.records)):
            try:
                self._shards.check(which)
            except DatasetError as error:
                problems.append(str(error))
        return problems
