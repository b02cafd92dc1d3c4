"""PickleCodec: actions and arguments that do not fit the arena, as bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vecenv.backends.base import Codec
from vecenv.backends.ipc.serialization import dumps, dumps_by_value


class PickleCodec(Codec):
    """Pickles what does not fit the arena, or raises TypeError. `forked`: workers inherited the script."""

    def __init__(self, forked: bool) -> None:
        self._forked = forked

    def encode(
        self, ids: Sequence[int], ops: int | np.ndarray, actions: Any, payloads: Mapping[int, Any]
    ) -> Mapping[int, Any]:
        # What is one object for several envs is pickled once, and a worker gets it once: each env unpickles its own.
        blobs: dict[int, bytes] = {}
        for i, payload in payloads.items():
            if id(payload) not in blobs:
                try:
                    blobs[id(payload)] = self._pickled(payload)
                except Exception as error:
                    text = f"the action or argument for env {i} cannot be sent to its worker: {error}"
                    raise TypeError(text) from error
        return {i: blobs[id(payload)] for i, payload in payloads.items()}

    def _pickled(self, payload: Any) -> bytes:
        blob = dumps(payload)
        if b"__main__" in blob and not self._forked:
            return dumps_by_value(payload)  # by value: workers do not run the user's script
        return blob
