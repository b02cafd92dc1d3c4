"""Data sets as those of torch: for its DataLoader, with workers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from vecenv import nest

try:
    import torch
    from torch.utils.data import Dataset as TorchDataset
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as error:
    raise ImportError("as_torch needs torch: pip install vecenv[torch]") from error

if TYPE_CHECKING:
    from collector.store.dataset import Dataset


def torch_view(dataset: Dataset, of: str, *, batch_size: int, seed: int, passes: int | None) -> Any:
    """See `Dataset.as_torch`."""
    if of == "transitions":
        return TorchTransitions(dataset)
    if of == "episodes":
        return TorchEpisodes(dataset)
    if of == "batches":
        return TorchBatches(dataset, batch_size, seed, passes)
    raise ValueError(f"as_torch(of={of!r}): expected 'transitions', 'episodes' or 'batches'")


def _tensors(tree: Any) -> Any:
    return nest.map(lambda array: torch.from_numpy(np.ascontiguousarray(array)), tree)


class TorchTransitions(TorchDataset[Any]):
    """Every transition by its number: a dict of tensors."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return self._dataset.steps

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.__getitems__([range(len(self))[number]])[0]

    def __getitems__(self, numbers: list[int]) -> list[dict[str, Any]]:
        """Several at once, as the DataLoader asks for them."""
        rows = _tensors(self._dataset.take(numbers).as_dict())
        return [nest.take(rows, i) for i in range(len(numbers))]


class TorchEpisodes(TorchDataset[Any]):
    """Every episode by its place: a dict of tensors, whose lengths differ."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, place: int) -> dict[str, Any]:
        episode = self._dataset[place]
        names = ("obs", "action", "reward", "terminated", "truncated")
        return {**{name: _tensors(getattr(episode, name)) for name in names}, "number": episode.number}


class TorchBatches(IterableDataset[Any]):
    """Random batches, each a dict of tensors; of k workers each makes every k-th."""

    def __init__(self, dataset: Dataset, batch_size: int, seed: int, passes: int | None) -> None:
        self._dataset, self._batch_size, self._seed, self._passes = dataset, batch_size, seed, passes

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        first, every = (0, 1) if worker is None else (worker.id, worker.num_workers)
        orders = self._dataset.batch_order(self._batch_size, self._seed, self._passes)
        return (_tensors(self._dataset.take(steps).as_dict()) for steps in islice(orders, first, None, every))
