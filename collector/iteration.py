"""Going through the batches of a collector, one after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Batches(Iterator[Any]):
    """The batches of a collector until `total_frames` are collected; then the environments are closed.

    It does not end with an error, as a generator does: asked again, it goes on or says why it cannot.
    """

    def __init__(self, collector: Any) -> None:
        self._collector = collector

    def __next__(self) -> Any:
        collector = self._collector
        if collector._is_complete():
            raise StopIteration
        try:
            batch = collector._collect_batch()
            collector.frames += batch.frames
            collector._batches += 1
            if collector._is_complete():
                collector.shutdown()
            return collector._finishing.finish(batch)
        except StopIteration as error:  # let through, it would end the iterator as if all had been collected
            notes = "; ".join(getattr(error, "__notes__", ()))
            raise RuntimeError(f"an environment, the policy or postproc raised StopIteration. {notes}") from error
