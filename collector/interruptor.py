"""The switch that ends a batch early."""

from __future__ import annotations


class Interruptor:
    """A switch that ends the batch being collected after its current round, from a signal handler or another thread."""

    def __init__(self) -> None:
        self._stopped = False

    def start_collection(self) -> None:
        """Let batches be collected to their end."""
        self._stopped = False

    def stop_collection(self) -> None:
        """End the current batch, and each one after it, after one round."""
        self._stopped = True

    def collection_stopped(self) -> bool:
        """Whether batches are to end now."""
        return self._stopped
