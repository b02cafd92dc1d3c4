"""A request for one batch, from a collector to its loop."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from collector.batch.step_extras import CheckedHook


class BatchRequest(NamedTuple):
    """One batch that a loop is to collect."""

    frames: int
    """The largest number of steps."""
    random: bool
    """Whether random actions take the place of the policy's."""
    quota: np.ndarray | None = None
    """int `(N,)`: the episodes that are to end in each env; the loop counts them down. None: any number."""
    on_step: CheckedHook | None = None
    reuse: bool = False
    """Whether to record into the memory of the last such batch, where a loop can."""
