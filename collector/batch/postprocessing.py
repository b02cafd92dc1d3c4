"""What happens to a batch once it is collected: marked, split, moved and post-processed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collector.batch.rollout import FlatRollout, Rollout


class Finishing:
    """Makes what the iterator returns of a batch: splits it, moves it to the storing device, post-processes it.

    With `reuse` it returns the same object each time, one for each class of batches.
    """

    def __init__(self, device: Any, split: bool, postproc: Callable[[Any], Any] | None, reuse: bool) -> None:
        self._device = device
        self._split = split
        self.postproc: Any = postproc
        if postproc is not None and hasattr(postproc, "to") and device is not None:
            self.postproc = postproc.to(device)
        self._reuse = reuse
        self._kept: dict[type, Any] = {}

    def store(self, batch: Any) -> Any:
        """The batch on the storing device."""
        if self._device is not None:
            batch = batch.to(self._device)
        if not self._reuse:
            return batch
        kept = self._kept.setdefault(type(batch), batch)
        kept.__dict__.update(batch.__dict__)
        return kept

    def finish(self, batch: Any) -> Any:
        """What the iterator returns for it."""
        batch = self.store(batch.split_trajectories() if self._split else batch)
        if self.postproc is not None:
            batch = self.postproc(batch)
        extras = batch if hasattr(batch, "keys") else getattr(batch, "extras", {})
        for name in [name for name in extras.keys() if isinstance(name, str) and name.startswith("_")]:  # noqa: SIM118
            del extras[name]
        return batch


def truncate_last(batch: Rollout | FlatRollout) -> None:
    """Mark the last step of each env as truncated; ends that are there stay, and no episode is reset."""
    if isinstance(batch, Rollout):
        count = (batch.mask | batch.broken).sum(1)
        rows = np.flatnonzero(count)
        batch.truncated[rows, count[rows] - 1] = True
    else:
        batch.truncated[np.flatnonzero(np.diff(batch.env_ids, append=-1))] = True
