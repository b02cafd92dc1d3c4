"""`Dataset`: reads a data set."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, overload

import numpy as np

from collector.episodes.episode import STEP_COLUMNS, Episode, EpisodeBatch, columns_of
from collector.store.dataset_head import read_head, space_from_json, spaces_of
from collector.store.manifest import read_manifest
from collector.store.safe_folder import DatasetError
from collector.store.shard import Shards
from collector.store.shard_layout import EpisodeLayout, check_spaces, pack
from vecenv import nest
from vecenv.arguments import at_least_one, check_seed

MEMORY = 2**28


@dataclass(frozen=True, eq=False, repr=False)
class Transitions:
    """K steps, each with the observation before and after the step."""

    obs: Any
    """Observations before the steps: `(K, ...)`, or a dict or tuple of arrays."""
    action: Any
    """`(K, ...)`, or a dict or tuple of arrays."""
    reward: np.ndarray
    """float64 `(K,)`, or `(K, m)` for vectors of m numbers."""
    next_obs: Any
    """Observations after the steps."""
    terminated: np.ndarray
    """bool `(K,)`."""
    truncated: np.ndarray
    """bool `(K,)`."""
    episode: np.ndarray
    """int64 `(K,)`: episode numbers."""
    step: np.ndarray
    """int64 `(K,)`: number of earlier steps in the episode."""
    info: dict[str, Any] = field(default_factory=dict)
    """`(K, ...)` for each key of infos that was recorded: the entry after the step."""

    def __len__(self) -> int:
        return len(self.reward)

    def __repr__(self) -> str:
        return f"Transitions({len(self)} steps of {len(np.unique(self.episode))} episodes)"

    def as_dict(self) -> dict[str, Any]:
        """Return the columns by name, with `info` if infos were recorded."""
        return {name: column for name, column in vars(self).items() if name != "info" or column}

    def to_tensordict(self) -> Any:
        """Return a TensorDict of batch size `[K]`, with the names of TorchRL. Rewards are float32. Infos are left out.

        The episode number of a step is at `("collector", "traj_ids")`, where the samplers of TorchRL look for it.
        Raises TypeError for texts in observations or actions.
        """
        from collector.batch.tensordict_form import transitions_as_tensordict

        return transitions_as_tensordict(self)


class Dataset:
    """Committed episodes of a folder, ordered by number. The folder may belong to a running or killed job.

    The constructor reads only dataset.json and manifest.jsonl. A shard is opened when needed, and fully checked the
    first time. The folder is not trusted: a reader opens no files outside the folder, never unpickles, and allocates
    memory only in proportion to file sizes.

    Args:
        folder: folder that a job, `StoreWriter` or `RecordEpisodes` wrote.
        memory: maximum bytes of shards that stay open. A larger shard is open alone.

    Raises `DatasetError` if the folder has no data set, or if dataset.json or manifest.jsonl is damaged.

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
        memory = at_least_one("memory", memory)
        self.folder = Path(os.path.abspath(folder))
        self.head = read_head(self.folder)
        """Content of dataset.json: spaces, versions, job (docs/guides/datasets.md)."""
        manifest = read_manifest(self.folder)
        self.end = manifest.end
        """Episodes with a number >= `end` are ignored. None if the data set is incomplete."""
        self.failed = manifest.failed
        """Number of failures by kind, for example "skipped"."""
        self.state = manifest.state
        self.layout: EpisodeLayout | None = manifest.layout
        """Names, dtypes and shapes of a shard's arrays. None before the first commit."""
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

    def __len__(self) -> int:
        return len(self._index)

    def __repr__(self) -> str:
        state = "complete" if self.complete else "not complete"
        return f"Dataset({str(self.folder)!r}: {len(self):,} episodes, {self.steps:,} steps, {state})"

    @property
    def complete(self) -> bool:
        """True if the writer has ended the data set."""
        return self.end is not None

    @property
    def steps(self) -> int:
        """Number of steps in all episodes."""
        return int(self._starts[-1])

    @property
    def numbers(self) -> np.ndarray:
        """int64 `(episodes,)`: increasing episode numbers."""
        return self._index["number"].copy()

    @property
    def lengths(self) -> np.ndarray:
        """int64 `(episodes,)`: steps per episode."""
        return self._index["length"].copy()

    @property
    def returns(self) -> np.ndarray:
        """float64 `(episodes,)`, or `(episodes, m)` for vectors of m rewards: sum over the steps of each episode.

        With vectors, this reads the rewards of all episodes.
        """
        row = () if self.layout is None else self.layout.rows["reward"].shape
        if not row:
            return self.total_rewards
        sums = [self._shards[int(entry["shard"])].returns[int(entry["position"])] for entry in self._index]
        return np.array(sums).reshape(len(self), *row)

    @property
    def total_rewards(self) -> np.ndarray:
        """float64 `(episodes,)`: sum of all rewards of each episode, such as the rewards of all agents."""
        return self._index["returns"].copy()

    @property
    def observation_space(self) -> Any:
        """Observation space of one env. None if dataset.json has no space that can be restored."""
        return space_from_json(self.head.get("observation_space"))

    @property
    def action_space(self) -> Any:
        """Action space of one env, or None; see `observation_space`."""
        return space_from_json(self.head.get("action_space"))

    @property
    def shard_files(self) -> list[str]:
        """Paths of the shards relative to `folder`, in the order of their commits."""
        return [record.shard for record in self._shards.records]

    @property
    def nbytes(self) -> int:
        """Bytes of all shards on the disk."""
        return sum(record.nbytes for record in self._shards.records)

    @overload
    def __getitem__(self, which: int) -> Episode: ...

    @overload
    def __getitem__(self, which: slice) -> Dataset: ...

    def __getitem__(self, which: int | slice) -> Episode | Dataset:
        """Return an episode in new arrays, or a `Dataset` for a slice. Index i is episode `numbers[i]`.

        Raises IndexError, and `DatasetError` if the episode's shard is damaged.
        """
        if isinstance(which, slice):
            part = object.__new__(Dataset)
            part.__dict__.update(vars(self))
            part._set_index(self._index[which])
            return part
        place = range(len(self))[which]
        entry = self._index[place]
        view = self._shards[int(entry["shard"])][int(entry["position"])]
        return replace(view, **nest.map(np.array, {**columns_of(view), "info": view.info}))

    def __iter__(self) -> Iterator[Episode]:
        return (self[place] for place in range(len(self)))

    def blocks(self, nbytes: int = 2**26) -> Iterator[EpisodeBatch]:
        """Yield all episodes in order, in batches of about `nbytes` bytes."""
        return self._blocks(at_least_one("nbytes", nbytes))

    def _blocks(self, nbytes: int) -> Iterator[EpisodeBatch]:
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

    def transitions(self) -> Transitions:
        """Return all transitions, ordered by episode. Raises `DatasetError` if there is no episode."""
        if not len(self):
            raise DatasetError(f"{self.folder}: the data set or slice has no episodes")
        return self.take(np.arange(self.steps))

    def take(self, steps: Any) -> Transitions:
        """Return rows of `transitions()`. `steps`: row indices, int `(k,)`. Raises IndexError if empty or invalid."""
        steps = np.asarray(steps)
        if not steps.size or steps.ndim != 1 or steps.dtype.kind not in "iu":
            raise IndexError(
                f"expected one or more integer indices of transitions, of the shape (k,), got {steps.dtype} "
                f"of the shape {steps.shape}"
            )
        if not (steps.min() >= 0 and steps.max() < self.steps):
            raise IndexError(
                f"indices must be from 0 to the number of transitions ({self.steps:,}) - 1, got {steps.min()} to "
                f"{steps.max()}"
            )
        steps = steps.astype(np.int64, copy=False)  # numpy converts uint64 minus int64 to float
        episode = np.searchsorted(self._starts, steps, side="right") - 1
        step, index = steps - self._starts[episode], self._index
        shard, row = index["shard"][episode], index["first"][episode] + step
        # Open each shard once, and read its rows in order.
        order = np.lexsort((row, shard))
        found: dict[str, Any] = {}
        for into in np.split(order, np.flatnonzero(np.diff(shard[order])) + 1):
            part, rows = self._shards[int(shard[into[0]])], row[into]
            obs_rows = rows + index["position"][episode[into]]
            columns = {name: (getattr(part, name), rows) for name in STEP_COLUMNS}
            columns |= {"obs": (part.obs, obs_rows), "next_obs": (part.obs, obs_rows + 1)}
            for name, (tree, at) in columns.items():
                if name not in found:
                    found[name] = nest.map(lambda leaf: np.empty((len(steps), *leaf.shape[1:]), leaf.dtype), tree)
                nest.put(found[name], into, nest.take(tree, at))
        return Transitions(**found, episode=index["number"][episode], step=step)

    def batches(self, batch_size: int, seed: int, passes: int | None = None) -> Iterator[Transitions]:
        """Yield random batches of `batch_size` transitions. The last batch of a pass may be smaller.

        Each of the `passes` (None: endless) yields every transition once. The same seed and `memory` give the same
        batches. To bound memory, a pass reads random shards in groups that fit into the constructor's `memory`, and
        shuffles within a group. To draw with replacement, use `take(rng.integers(data.steps, size=batch_size))`.

        Raises `DatasetError` if there is no episode, and ValueError or TypeError for wrong numbers.
        """
        return (self.take(steps) for steps in self.batch_order(batch_size, seed, passes))

    def batch_order(
        self, batch_size: int, seed: int, passes: int | None = None, *, first_pass: int = 0
    ) -> Iterator[np.ndarray]:
        """Yield the indices of each batch: int64 `(batch_size,)`. Raises the errors of `batches`."""
        batch_size, seed = at_least_one("batch_size", batch_size), check_seed(seed)
        passes = None if passes is None else at_least_one("passes", passes)
        if not len(self):
            raise DatasetError(f"{self.folder}: the data set or slice has no episodes")
        return self._orders(
            batch_size, seed, count(first_pass) if passes is None else range(first_pass, first_pass + passes)
        )

    def _orders(self, batch_size: int, seed: int, passes: Iterable[int]) -> Iterator[np.ndarray]:
        for done in passes:
            rest = np.zeros(0, np.int64)
            for window in self._windows(np.random.default_rng([seed, done])):
                rest = np.concatenate([rest, window])
                whole = len(rest) // batch_size * batch_size
                yield from rest[:whole].reshape(-1, batch_size)
                rest = rest[whole:]
            if len(rest):
                yield rest

    def _windows(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
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
        """Return a view: a `torch.utils.data.Dataset` for a DataLoader, with or without worker processes.

        - `of="transitions"` or `"episodes"`: an item is a dict of tensors.
        - `of="batches"`: iterates over `batches(batch_size, seed, passes)`, as dicts of tensors. Use `DataLoader(view,
          batch_size=None, num_workers=2)`. Each worker then yields a part of the batches. Call `view.set_epoch(epoch)`
          before each epoch, as for torch's `DistributedSampler`. Otherwise, all epochs have the same order.

        Raises ValueError for any other `of`, and for "batches" the errors of `batches`.
        """
        from collector.store.torch_view import TorchBatches, TorchRows

        if of == "batches":
            return TorchBatches(self, batch_size, seed, passes)
        if of not in ("transitions", "episodes"):
            raise ValueError(f"as_torch(of={of!r}): expected 'transitions', 'episodes' or 'batches'")
        return TorchRows(self, of == "episodes")

    def verify(self) -> list[str]:
        """Check all shards of the folder, even for a slice. Return a text per damaged shard."""
        problems = []
        for which in range(len(self._shards.records)):
            try:
                self._shards.check(which)
            except DatasetError as error:
                problems.append(str(error))
        return problems
