"""Torch datasets that `Dataset.as_torch` returns, for a DataLoader."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from collector.episodes.episode import columns_of
from collector.store.texts import TEXT
from vecenv import nest

try:
    import torch
    from torch.utils.data import Dataset as TorchDataset
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as error:
    raise ImportError("as_torch needs torch: pip install vecenv[torch]") from error

if TYPE_CHECKING:
    from collector.store.dataset import Dataset


def _tensors(columns: dict[str, Any]) -> dict[str, Any]:
    """Return arrays as tensors, and texts as lists."""

    def convert(array: np.ndarray) -> Any:
        return array.tolist() if array.dtype == TEXT else torch.from_numpy(np.ascontiguousarray(array))

    tensors: dict[str, Any] = nest.map(convert, columns)
    return tensors


class TorchRows(TorchDataset[Any]):
    """Transitions or episodes by index, as dicts of tensors."""

    def __init__(self, dataset: Dataset, of_episodes: bool) -> None:
        self._dataset, self._of_episodes = dataset, of_episodes

    def __len__(self) -> int:
        return len(self._dataset) if self._of_episodes else self._dataset.steps

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.__getitems__([range(len(self))[number]])[0]

    def __getitems__(self, numbers: list[int]) -> list[dict[str, Any]]:
        if self._of_episodes:
            episodes = [self._dataset[number] for number in numbers]
            columns = [columns_of(each) | ({"info": each.info} if each.info else {}) for each in episodes]
            return [
                {**_tensors(each), "number": episode.number} for each, episode in zip(columns, episodes, strict=True)
            ]
        rows = _tensors(self._dataset.take(numbers).as_dict())
        return [nest.take(rows, i) for i in range(len(numbers))]


class TorchBatches(IterableDataset[Any]):
    """Random batches, as dicts of tensors. Each of a DataLoader's k workers yields every k-th batch."""

    def __init__(self, dataset: Dataset, batch_size: int, seed: int, passes: int | None) -> None:
        self._dataset, self._batch_size, self._seed, self._passes = dataset, batch_size, seed, passes
        dataset.batch_order(batch_size, seed, passes)  # raises here, not in a DataLoader's worker
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # shared with persistent workers

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next iterations. Epochs 0, 1, ... continue the passes of `Dataset.batches`."""
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0, got {epoch}")
        self._epoch.fill_(operator.index(epoch))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        first, every = (0, 1) if worker is None else (worker.id, worker.num_workers)
        first_pass = int(self._epoch) * (self._passes or 1)
        orders = self._dataset.batch_order(self._batch_size, self._seed, self._passes, first_pass=first_pass)
        return (_tensors(self._dataset.take(steps).as_dict()) for steps in islice(orders, first, None, every))
