"""The parts of a collector's `collect`: its arguments, rendering, and the loop over whole episodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from collector.arguments import at_least_one
from collector.batch.rewards import RewardShape
from collector.batch.rollout import FlatRollout
from collector.batch.step_extras import StepBatch, StepHook
from collector.episodes.episode import Ended, Episode, EpisodeCutter
from collector.interruptor import Interruptor
from collector.loops.collection_loop import BatchRequest

CHUNK = 64
"""Steps of each env between two checks which episodes have ended."""


def check_arguments(
    n_step: Any, n_episode: Any, on_episode: Any, reset_before_collect: bool, reset_kwargs: Any
) -> tuple[int | None, int | None]:
    """`n_step` and `n_episode` as whole numbers, one of them None. Raises `ValueError` or `TypeError` otherwise."""
    if (n_step is None) == (n_episode is None):
        raise ValueError(f"pass exactly one of n_step and n_episode; got n_step={n_step}, n_episode={n_episode}")
    if on_episode is not None and n_episode is None:
        raise ValueError("on_episode needs n_episode: with n_step, episodes may have begun before")
    if reset_kwargs and not reset_before_collect:
        raise ValueError("gym_reset_kwargs are for the reset of reset_before_collect=True")
    if n_episode is None:
        return at_least_one("n_step", n_step), None
    return None, at_least_one("n_episode", n_episode)


def rendering(env: Any, pause: float, on_step: StepHook | None) -> StepHook:
    """A hook that calls `on_step`, renders all envs and waits `pause` seconds."""
    if isinstance(pause, bool) or not isinstance(pause, (int, float)) or not 0 <= pause < float("inf"):
        raise ValueError(f"render is the pause after each frame in seconds, 0 or more; got {pause!r}")

    def render(step: StepBatch) -> dict[str, Any] | None:
        extras = None if on_step is None else on_step(step)
        env.render()
        time.sleep(pause)
        return extras

    return render


def collect_episodes(
    gather: Callable[[BatchRequest], tuple[Any, Ended]],
    request: BatchRequest,
    interruptor: Interruptor,
    reward_shape: RewardShape,
    on_episode: Callable[[Episode], Any] | None,
    keep: bool,
) -> tuple[list[FlatRollout], Ended]:
    """Call `gather` until every env has its quota of episodes; returns the batches, if they are kept, and the episodes.

    The quota is set before: no env gets more episodes by ending them early.
    """
    assert request.quota is not None
    cutter = EpisodeCutter()
    batches: list[FlatRollout] = []
    ends: list[Ended] = []
    while request.quota.any() and not (ends and interruptor.collection_stopped()):
        batch, ended = gather(request)
        ends.append(ended)
        if keep:
            batches.append(batch.flatten())
        if on_episode is not None:
            for episode in cutter.cut(batch):
                on_episode(episode)
    if request.on_step is not None:
        for batch in batches:
            request.on_step.fill(batch.extras, batch.shape)
    # The first rewards have another shape where no env had returned a vector yet.
    batches = [replace(batch, reward=reward_shape.fit(batch.reward)) for batch in batches]
    ends = [each._replace(returns=reward_shape.fit(each.returns)) for each in ends]
    all_ends = Ended(*(np.concatenate(column) for column in zip(*ends, strict=True)))
    order = np.argsort(all_ends.env_ids, kind="stable")
    return batches, Ended(*(column[order] for column in all_ends))
