"""Whole episodes, for `collect(n_episode=)`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from collector.batch.rollout import FlatRollout, concatenate
from collector.batch.step_extras import StepBatch, StepHook
from collector.collectors.loop import BatchRequest
from collector.episodes.cutter import EpisodeCutter
from collector.episodes.env_episodes import Episodes
from collector.episodes.unfinished import Ended

STEPS_PER_CHECK = 64
"""Maximum number of steps of each env in a small batch."""


def collect_episodes(
    count: int,
    request: BatchRequest,
    collect: Callable[[BatchRequest], tuple[Any, Ended]],
    stops: Callable[[], bool],
    episodes: Episodes,
    on_episode: Callable[..., Any] | None,
    keep: bool,
) -> tuple[FlatRollout | None, Ended]:
    """Collect `count` episodes in small batches. Return a batch (`None` without `keep`), and all ended episodes.

    collect: returns a small batch and the episodes that ended in it. stops: returns True if the collection has to end.
    """
    # Each env has a quota, because otherwise envs with short episodes would play more of the `count` episodes.
    env_num, reward_shape, hook = len(episodes.ids), episodes.reward_shape, request.on_step
    quota = count // env_num + (np.arange(env_num) < count % env_num)
    request = request._replace(frames=STEPS_PER_CHECK * env_num, quota=quota, on_host=on_episode is not None)
    cutter, batches, ends = EpisodeCutter(), list[FlatRollout](), list[Ended]()
    while quota.any() and not (ends and stops()):
        batch, ended = collect(request)
        ends.append(ended)
        if keep:
            batches.append(batch.flatten())
        for episode in () if on_episode is None else cutter.cut(batch):
            on_episode(episode)  # type: ignore[misc]
    for each in batches if hook is not None else ():
        hook.fill(each.extras, each.shape)  # type: ignore[union-attr]
    # If no env had returned a vector of rewards yet, a batch has scalar rewards.
    batches = [replace(each, reward=reward_shape.fit(each.reward)) for each in batches]
    ends = [each._replace(returns=reward_shape.fit(each.returns)) for each in ends]
    all_ends = Ended(*(np.concatenate(column) for column in zip(*ends, strict=True)))
    order = np.argsort(all_ends.env_ids, kind="stable")
    all_ends = Ended(*(column[order] for column in all_ends))
    return replace(_whole(batches), episode_returns=all_ends.returns) if keep else None, all_ends


def _whole(batches: list[FlatRollout]) -> FlatRollout:
    """Join batches without the steps of episodes that were stopped or abandoned."""
    started, ended = (
        np.concatenate(ids)
        for ids in zip(*((b.traj_ids, b.traj_ids[b.terminated | b.truncated]) for b in batches), strict=True)
    )
    return concatenate(batches, [np.setdiff1d(started, ended)])


def check_collect(
    env: Any, n_step: Any, n_episode: Any, on_episode: Any, reset_before_collect: bool, reset_kwargs: Any
) -> None:
    if (n_step is None) == (n_episode is None):
        raise ValueError(f"pass exactly one of n_step and n_episode; got n_step={n_step}, n_episode={n_episode}")
    if on_episode is not None and n_episode is None:
        raise ValueError(
            "on_episode needs n_episode: with n_step, an episode may have begun before this call, and its first steps "
            "would be missing"
        )
    if reset_kwargs and not reset_before_collect:
        raise ValueError("gym_reset_kwargs needs reset_before_collect=True")
    if n_episode is not None and getattr(env, "steps_together", False):
        raise ValueError(
            f"n_episode pauses envs that have played their part, but {env!r} steps all envs together: pass n_step"
        )


def render_hook(env: Any, pause: float, on_step: StepHook | None) -> StepHook:
    if isinstance(pause, bool) or not isinstance(pause, (int, float)) or not 0 <= pause < float("inf"):
        raise ValueError(f"render is the pause after each frame in seconds, 0 or more; got {pause!r}")

    def render(step: StepBatch) -> dict[str, Any] | None:
        extras = None if on_step is None else on_step(step)
        env.render()
        time.sleep(pause)
        return extras

    return render
