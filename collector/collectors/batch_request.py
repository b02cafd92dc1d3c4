"""`BatchRequest`: a batch that a loop has to collect. `LoopParts`: the objects that a loop works with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from collector.basics.timing import Clock
from collector.batch.step_extras import StepExtras
from collector.episodes.env_episodes import Episodes
from collector.policy.collector_policy import CollectorPolicy


class BatchRequest(NamedTuple):
    """Description of one batch for a loop."""

    frames: int
    """Maximum number of steps."""
    random: bool
    """True to take random actions instead of the policy's."""
    quota: np.ndarray | None = None
    """int `(N,)`: number of episodes that each env still has to end. The loop counts down in place. `None`: no quota.
    """
    on_step: StepExtras | None = None
    reuse: bool = False
    """True to record into the memory of the previous batch, if the loop supports it."""
    policy: CollectorPolicy = None  # type: ignore[assignment]  # `BatchSource` sets it
    """Policy that acts in this batch: the collector's, or random actions."""
    version: int = -1
    """Version of the weights, or -1 for random actions."""


class LoopParts(NamedTuple):
    """Objects of the collector that a loop works with."""

    env: Any
    policy: CollectorPolicy
    episodes: Episodes
    clock: Clock
    stops: Callable[[], bool]
    """Returns True to end the batch after this round."""
