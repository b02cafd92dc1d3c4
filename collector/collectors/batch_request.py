"""Arguments of loops. A loop, such as `SyncLoop`, collects batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from collector.basics.timing import Clock
from collector.batch.step_extras import StepExtras
from collector.episodes.env_episodes import Episodes
from collector.policy.collector_policy import CollectorPolicy


class BatchRequest(NamedTuple):
    frames: int
    """Maximum number of steps, summed over envs."""
    random: bool
    quota: np.ndarray | None = None
    """int64 `(N,)`: number of episodes that each env still has to end, counted down in place. `None`: no limit."""
    on_step: StepExtras | None = None
    reuse: bool = False
    """Reuse the memory of the previous batch."""
    policy: CollectorPolicy = None  # type: ignore[assignment]  # `BatchSource` sets it
    """The collector's policy, or random actions."""
    version: int = -1
    """Version of the weights, or -1 for random actions."""


class LoopParts(NamedTuple):
    env: Any
    policy: CollectorPolicy
    episodes: Episodes
    clock: Clock
    stops: Callable[[], bool]
    """Returns True if the batch has to end now."""
