"""`collect`: so many steps, or so many episodes, with statistics (as tianshou's collector)."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from collector.arguments import at_least_one
from collector.batch.flat_rollout import concatenate
from collector.batch.step_extras import CheckedHook, StepBatch, StepHook
from collector.episodes.episode import Episode, EpisodeCutter
from collector.episodes.statistics import CollectStats, Ended

CHUNK = 64
"""Steps of each environment between two looks at which episodes have ended."""


def collect(
    collector: Any,
    n_step: float | None,
    n_episode: float | None,
    random: bool,
    reset_before_collect: bool,
    gym_reset_kwargs: dict[str, Any] | None,
    on_step: StepHook | None,
    on_episode: Callable[[Episode], Any] | None,
    keep: bool,
) -> CollectStats:
    """See `BatchCollector.collect`."""
    _check(n_step, n_episode, on_episode, reset_before_collect, gym_reset_kwargs)
    n_step = None if n_step is None else at_least_one("n_step", n_step)
    n_episode = None if n_episode is None else at_least_one("n_episode", n_episode)
    hook = None if on_step is None else CheckedHook(on_step, lambda: collector._actors.own.layout)
    begin = time.perf_counter()
    if reset_before_collect:
        collector.reset(**(gym_reset_kwargs or {}))
    if n_step is not None:
        batch, ended = collector._gather_checked(_whole_rounds(n_step, collector), random, None, hook)
        steps = batch.frames
    else:
        assert n_episode is not None
        with collector._weights.kept():  # it is one batch, though it is collected in pieces
            batches, ended = _episodes(collector, n_episode, random, hook, on_episode, keep)
        unfinished = collector._leave_started()  # there are some where the interruptor was stopped
        steps, batch = int(ended.lens.sum()), concatenate(batches, [unfinished]) if keep else None
    if keep and collector.storing_device is not None:
        batch = batch.to(collector.storing_device)
    seconds = time.perf_counter() - begin
    return CollectStats(len(ended.lens), steps, seconds, ended.returns, ended.lens, batch if keep else None)


def showing(env: Any, pause: float, on_step: StepHook | None) -> StepHook:
    """A hook that calls `on_step`, renders all environments and waits `pause` seconds."""
    if isinstance(pause, bool) or not isinstance(pause, (int, float)) or not 0 <= pause < float("inf"):
        raise ValueError(f"render is the pause after each frame in seconds, 0 or more; got {pause!r}")

    def show(step: StepBatch) -> dict[str, Any] | None:
        extras = None if on_step is None else on_step(step)
        env.render()
        time.sleep(pause)
        return extras

    return show


def _check(n_step: Any, n_episode: Any, on_episode: Any, reset_before_collect: bool, reset_kwargs: Any) -> None:
    if (n_step is None) == (n_episode is None):
        raise ValueError(f"pass exactly one of n_step and n_episode; got n_step={n_step}, n_episode={n_episode}")
    if on_episode is not None and n_episode is None:
        raise ValueError("on_episode needs n_episode: with n_step, episodes may have begun before")
    if reset_kwargs and not reset_before_collect:
        raise ValueError("gym_reset_kwargs are for the reset of reset_before_collect=True")


def _whole_rounds(n_step: int, collector: Any) -> int:
    """`n_step`, or the next number of steps that the collector can collect."""
    frames: int = collector._round_up(n_step)
    if frames != n_step:
        warnings.warn(
            f"n_step={n_step} is not a multiple of the {collector._env_num} environments: collecting {frames}",
            stacklevel=4,
        )
    return frames


def _episodes(
    collector: Any,
    n_episode: int,
    random: bool,
    on_step: CheckedHook | None,
    on_episode: Callable[[Episode], Any] | None,
    keep: bool,
) -> tuple[list[Any], Ended]:
    """Whole episodes, so many from each environment as was set before: no environment gets more by ending early."""
    n = collector._env_num
    quota = np.full(n, n_episode // n)
    quota[: n_episode % n] += 1
    collector._leave_started()
    cutter = EpisodeCutter()
    batches: list[Any] = []
    ends: list[Ended] = []
    while quota.any() and not (ends and collector._interruptor.collection_stopped()):
        batch, ended = collector._gather_checked(CHUNK * n, random, quota, on_step)
        ends.append(ended)
        if keep:
            batches.append(batch.flatten())
        if on_episode is not None:
            for episode in cutter.cut(batch):
                on_episode(episode)
    if on_step is not None:
        for batch in batches:
            on_step.fill(batch.extras, batch.shape)
    in_shape = collector._payment.in_shape  # the first ones, while nothing was paid, may have another
    batches = [replace(batch, reward=in_shape(batch.reward, batch.env_ids)) for batch in batches]
    ends = [each._replace(returns=in_shape(each.returns, each.env_ids)) for each in ends]
    all_ends = Ended(*(np.concatenate(column) for column in zip(*ends, strict=True)))
    order = np.argsort(all_ends.env_ids, kind="stable")
    return batches, Ended(*(column[order] for column in all_ends))
