"""BatchIterator: the iterator of batches that every collector is, wherever it collects them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

Self = TypeVar("Self", bound="BatchIterator")


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
        """Convert it to what the iterator returns."""
        batch = self.store(batch.split_trajectories() if self._split else batch)
        if self.postproc is not None:
            batch = self.postproc(batch)
        extras = batch if hasattr(batch, "keys") else getattr(batch, "extras", {})
        for name in [name for name in extras.keys() if isinstance(name, str) and name.startswith("_")]:  # noqa: SIM118
            del extras[name]
        return batch


class BatchIterator(ABC):
    """Counts, finishes and ends what `_collect_batch` collects. A collector sets the attributes from its arguments."""

    total_frames: int
    frames: int
    _batches: int
    _finishing: Finishing

    @property
    @abstractmethod
    def frames_per_batch(self) -> int:
        """Steps in a full batch."""

    @abstractmethod
    def _collect_batch(self) -> Any:
        """One batch of numpy arrays."""

    @abstractmethod
    def shutdown(self) -> None:
        """End the collector."""

    def _is_complete(self) -> bool:
        """Return whether there are no more batches."""
        return 0 <= self.total_frames <= self.frames

    def _show_progress(self) -> None:  # noqa: B027  most show none
        """Called after each batch of the iterator."""

    def __iter__(self) -> Iterator[Any]:
        return self.iterator()

    def __next__(self) -> Any:
        if self._is_complete():
            raise StopIteration
        try:
            batch = self._collect_batch()
            self.frames += batch.frames + batch.dropped_rows
            self._batches += 1
            self._show_progress()
            if self._is_complete():
                self.shutdown()
            return self._finishing.finish(batch)
        except StopIteration as error:  # passed on, it would end the iterator as if all frames had been collected
            notes = "; ".join(getattr(error, "__notes__", ()))
            said = "an env, the policy or postproc raised StopIteration"
            raise RuntimeError(f"{said}. {notes}" if notes else said) from error

    def __len__(self) -> int:
        """Number of full batches in `total_frames`. Raises `TypeError` for a collector without end."""
        if self.total_frames < 0:
            raise TypeError("a collector without total_frames has no length")
        return -(-self.total_frames // self.frames_per_batch)

    def __bool__(self) -> bool:
        return True

    def next(self) -> Any:
        """The next batch; None after the last one."""
        return next(self, None)

    def iterator(self) -> Iterator[Any]:
        """Batches until `total_frames` are collected; then the collector is shut down. Of errors see `rollout`."""
        return self

    def rollout(self) -> Any:
        """Collect one batch, as it is: not counted in `frames`, not split, not post-processed.

        Errors of envs and policy, and KeyboardInterrupt, are raised as they are; the steps of that batch are lost. The
        next batch begins new episodes in all envs. Where there can be none (the vector env is closed, the collector has
        `episode_seeds`, or its envs are those of Ray actors), it is shut down; a note at the error of a local one says
        so.
        """
        return self._finishing.store(self._collect_batch())

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        try:
            if exception and exception[1] is not None:
                self._note_exception(exception[1])
        finally:
            self.shutdown()

    def _note_exception(self, error: BaseException) -> None:  # noqa: B027  most keep no data of their own
        """Called before the `shutdown` that an exception is the cause of."""
