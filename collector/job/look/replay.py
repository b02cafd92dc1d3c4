"""Episodes played again, and compared with what is stored, bit for bit."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from collector.episodes.episode import Episode
from collector.job.head import job_of
from collector.job.job import Job, JobError
from collector.job.make_envs import make_env, with_statistics
from collector.job.plan import Plan
from collector.job.playing import Player
from collector.job.policies import make_policy, resolve_device
from collector.job.stopping import Stopping
from collector.store.dataset import Dataset
from vecenv import nest

COLUMNS = ("obs", "action", "reward", "terminated", "truncated")


class Replayed(Plan):
    """A plan of chosen numbers."""

    def __init__(self, seed: int, numbers: list[int]) -> None:
        super().__init__(seed, episodes=0)
        self.again(numbers)
        self._left = {*numbers}

    def finished(self, number: int, length: int) -> None:
        """Note an episode that was played again, or whose env failed."""
        self._left.discard(number)
        super().finished(number, length)

    @property
    def is_complete(self) -> bool:
        """Whether all have come back."""
        return not self._left


def replay_episodes(folder: str | os.PathLike[str], count: int, allow_import: Iterable[str] = ()) -> dict[int, str]:
    """Play `count` episodes of a folder again, from the first to the last, and say what differs from what is stored.

    Returns what is different for each number that was played; "" where nothing is. A job that is repeatable is played
    with its policy; of one that is not, the stored actions are repeated in the env. Raises `DatasetError` where the
    folder is no data set that a job wrote, `JobError` where it names modules that are not in `allow_import`, or has
    wrappers or transforms whose statistics go on from episode to episode.

    Example::

        assert not any(replay_episodes("data/cartpole", 10).values())
    """
    data, job = Dataset(folder), job_of(Path(folder), allow_import)
    if not len(data):
        return {}
    if names := with_statistics(job):
        raise JobError(
            f"the episodes of {folder} cannot be played again: {', '.join(names)} had statistics of the episodes "
            "before each; with statistics that are frozen they could"
        )
    chosen = {int(i) for i in np.linspace(0, len(data) - 1, num=min(count, len(data))).round()}
    stored = {episode.number: episode for episode in (data[i] for i in sorted(chosen))}
    if not data.head.get("repeatable"):
        return {number: repeat_actions(job, episode) for number, episode in stored.items()}
    played: dict[int, Episode] = {}
    with Stopping() as stop:
        plan, device = Replayed(job.seed, sorted(stored)), resolve_device(job)

        def make(env: Any) -> Any:
            return make_policy(job, env.observation_space[0], env.action_space[0], device)

        def keep(batches: Any, episodes: list[Episode]) -> None:
            played.update({episode.number: episode for episode in episodes})

        Player(job, plan, stop, make, keep).play()
        if stop.is_stopped:
            raise KeyboardInterrupt
    return {number: difference(stored[number], played.get(number)) for number in stored}


def difference(stored: Episode, played: Episode | None) -> str:
    """What differs between two episodes: "" where nothing does."""
    if played is None:
        return "its env failed"
    for step in range(max(len(stored), len(played)) + 1):
        for name in COLUMNS:
            rows = [_row(getattr(each, name), step) for each in (stored, played)]
            if not equal_rows(*rows):
                return f"{name} differs from step {step} on"
    return ""


def repeat_actions(job: Job, episode: Episode, env: Any = None, on_frame: Any = None) -> str:
    """Repeat the actions of an episode in an env of its own; returns from which step on what differs from it, or "".

    `env`: one that is made already, and stays open. `on_frame` is called with it after the reset and after each step.
    Raises `JobError` for an episode without a seed.
    """
    if episode.seed is None:
        raise JobError(f"episode {episode.number} has no seed, so it cannot be played again")
    own = make_env(job) if env is None else env
    try:
        obs, _ = own.reset(seed=episode.seed)
        found = "" if equal_rows(_row(episode.obs, 0), obs) else "obs differs from step 0 on"
        if on_frame is not None:
            on_frame(own)
        for step in range(len(episode)):
            obs, reward, terminated, truncated, _ = own.step(_action(own, nest.take(episode.action, step)))
            if on_frame is not None:
                on_frame(own)
            if not found:
                found = _difference_of_step(episode, step, obs, reward, terminated, truncated)
            if terminated or truncated:
                break
        return found
    finally:
        if env is None:
            own.close()


def _difference_of_step(episode: Episode, step: int, obs: Any, reward: Any, terminated: Any, truncated: Any) -> str:
    now = {"obs": obs, "reward": reward, "terminated": terminated, "truncated": truncated}
    for name, value in now.items():
        # One more observation than steps: that after the step.
        if not equal_rows(_row(getattr(episode, name), step + (name == "obs")), value):
            return f"{name} differs from step {step} on"
    return ""


def equal_rows(stored: Any, other: Any) -> bool:
    """Whether a row equals another one, once that has its dtype, bit for bit but for zeros and NaN.

    >>> equal_rows({"a": np.float32(0.1)}, {"a": 0.1}), equal_rows(np.zeros(2), np.ones(2))
    (True, False)
    """
    if stored is None or other is None:
        return stored is other
    if isinstance(stored, dict):
        return isinstance(other, dict) and all(key in other and equal_rows(stored[key], other[key]) for key in stored)
    if isinstance(stored, tuple):
        return len(stored) == len(other) and all(map(equal_rows, stored, other))
    own = np.asarray(stored)
    row = np.asarray(other).astype(own.dtype)
    return own.size == row.size and np.array_equal(own.ravel(), row.ravel(), equal_nan=own.dtype.kind == "f")


def _row(tree: Any, step: int) -> Any:
    """A row of a tree of arrays; None where it has not so many."""
    return nest.take(tree, step) if step < len(next(iter(nest.leaves(tree)))) else None


def _action(env: Any, row: Any) -> Any:
    """An action as envs expect it: a number where the space is one."""
    return row if isinstance(row, (dict, tuple)) or np.ndim(row) else row[()]
