"""`LoopParts` and `BatchRequest`: the parts that a loop works with, and a batch that it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from collector.basics.timing import Clock
from collector.batch.step_extras import StepExtras
from collector.episodes.env_episodes import Episodes
from collector.policy.collector_policy import CollectorPolicy


class BatchRequest(NamedTuple):
    """One batch that a loop is to collect."""

    frames: int
    """The largest number of steps."""
    random: bool
    """True if random actions take the place of the policy's."""
    quota: np.ndarray | None = None
    """int `(N,)`: the episodes that are to end in each env; the loop counts them down. None: any number."""
    on_step: StepExtras | None = None
    reuse: bool = False
    """True to record into the memory of the last such batch, if the loop can."""
    policy: CollectorPolicy = None  # type: ignore[assignment]  # the source of batches sets it
    """The policy that acts in this batch: the collector's, or random actions."""
    version: int = -1
    """Version of the weights, or -1 for random actions."""


class LoopParts(NamedTuple):
    """The objects that a loop works with, which its collector owns."""

    env: Any
    policy: CollectorPolicy
    episodes: Episodes
    clock: Clock
    stops: Callable[[], bool]
    """Returns whether the batch is to end after this round."""
