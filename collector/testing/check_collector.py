"""`check_collector`: checks that a collector keeps the guarantees of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from vecenv.testing import CountingEnv, RaisesOnStep

Factory = Callable[..., Any]
FRAMES = 24
LENGTHS = (2, 3, 5)
ENV_FNS = [partial(CountingEnv, length=length) for length in LENGTHS]
"""Episodes end within batches and between batches."""
COLUMNS = ("obs", "action", "reward", "terminated", "truncated", "done", "env_ids", "traj_ids", "step_count")
EPISODE, T, SEED, ACTION = 1, 2, 3, 4
"""Columns of the observations of `CountingEnv`."""
Steps = dict[str, np.ndarray]


def steps_of(batch: Any) -> Steps:
    """Return the columns of the real steps of a batch, by env and time."""
    flat = batch.flatten()
    found = {name: np.asarray(getattr(flat, name)) for name in COLUMNS}
    return found | {"next_obs": np.asarray(flat.next.obs)}


def next_action(obs: Any) -> np.ndarray:
    """Policy whose action follows from the observation, so that a check sees which observation the policy got."""
    obs = np.asarray(obs)
    return (7 * obs[:, EPISODE] + 3 * obs[:, T] + 1) % 100


def collected(factory: Factory, batches: int = 6, **options: Any) -> list[Steps]:
    with factory(ENV_FNS, next_action, frames_per_batch=FRAMES, **options) as collector:
        return [steps_of(collector.next()) for _ in range(batches)]


def by_env(batches: Iterable[Steps]) -> dict[int, Steps]:
    """Join the steps of each env over all batches."""
    joined = {name: np.concatenate([steps[name] for steps in batches]) for name in (*COLUMNS, "next_obs")}
    ids = np.unique(joined["env_ids"])
    return {int(i): {name: column[joined["env_ids"] == i] for name, column in joined.items()} for i in ids}


def check_steps(factory: Factory) -> None:
    """Check that each step has its own observation, action, reward and next observation."""
    for steps in collected(factory):
        obs, after = steps["obs"], steps["next_obs"]
        _equal(steps["action"], next_action(obs), "the actions are not those of the observations")
        _equal(after[:, ACTION], steps["action"], "the envs got other actions")
        _equal(after[:, [EPISODE, T]], obs[:, [EPISODE, T]] + [0, 1], "next.obs is not the observation after the step")
        _equal(steps["reward"], (after[:, T] / 1024).astype(steps["reward"].dtype), "the rewards are of other steps")
        _equal(steps["step_count"], obs[:, T], "step_count is not the number of earlier steps in the episode")


def check_episodes(factory: Factory) -> None:
    """Check that episodes continue from batch to batch, that no step is lost or repeated, and how episodes end."""
    for i, steps in by_env(collected(factory)).items():
        length = LENGTHS[i % len(LENGTHS)]
        place = steps["obs"][:, EPISODE] * length + steps["obs"][:, T]
        _equal(place, np.arange(len(place)), f"env {i}: steps are missing, or came twice")
        episode, is_last = steps["obs"][:, EPISODE], steps["next_obs"][:, T] == length
        _equal(steps["terminated"], is_last & (episode % 2 == 0), f"env {i}: terminated")
        _equal(steps["truncated"], is_last & (episode % 2 == 1), f"env {i}: truncated")
        changes = np.diff(steps["traj_ids"]) != 0
        _equal(changes, np.diff(episode) != 0, f"env {i}: traj_ids do not change with the episode")


def check_ends(factory: Factory) -> None:
    """Check that `done` is True exactly where the next row is not the next step of the episode."""
    for steps in collected(factory):
        env, obs = steps["env_ids"], steps["obs"][:, [EPISODE, T]]
        continues = (env[1:] == env[:-1]) & (np.diff(obs, axis=0) == [0, 1]).all(1)
        _equal(steps["done"], np.append(~continues, True), "done is not where the trajectories of the batch end")
    ids = [np.unique(steps["traj_ids"]) for steps in by_env(collected(factory)).values()]
    _equal(len(np.unique(np.concatenate(ids))), sum(map(len, ids)), "an episode id is used by two envs")


def check_batches_stay(factory: Factory) -> None:
    """Check that batches are writable, and that later batches do not change them."""
    with factory(ENV_FNS, next_action, frames_per_batch=FRAMES) as collector:
        first = collector.next()
        before = {name: column.copy() for name, column in steps_of(first).items()}
        second = collector.next()
        for name, column in steps_of(first).items():
            _equal(column, before[name], f"{name} of a batch changed when the next batch was collected")
        kept = np.asarray(second.reward).copy()
        first.reward[...] = -1
        _equal(np.asarray(second.reward), kept, "two batches share memory")


def check_total_frames(factory: Factory) -> None:
    """Check that the iterator ends at `total_frames`, and shuts the collector down."""
    with factory(ENV_FNS, next_action, frames_per_batch=FRAMES, total_frames=3 * FRAMES) as collector:
        frames = [batch.frames for batch in islice(collector, 9)]
        _equal(sum(frames), 3 * FRAMES, "frames of all batches")
        _equal(collector.frames, 3 * FRAMES, "frames that the collector counts")
        assert collector.next() is None, "a batch came after total_frames"


def check_seeds(factory: Factory) -> None:
    """Check that the envs get different seeds, and that the same seed gives the same steps of each env."""
    runs = []
    for _ in range(2):
        with factory(ENV_FNS, None, frames_per_batch=FRAMES) as collector:
            collector.set_seed(5)
            runs.append(by_env([steps_of(collector.next()) for _ in range(3)]))
    assert runs[0].keys() == runs[1].keys(), f"batches are of envs {sorted(runs[0])}, then of {sorted(runs[1])}"
    seeds = [int(steps["obs"][0, SEED]) for steps in runs[0].values()]
    assert min(seeds) >= 0, f"set_seed gave the envs the seeds {seeds}"
    _equal(len(set(seeds)), len(seeds), "two envs have the same seed")
    for i, steps in runs[0].items():
        other = runs[1][i]
        common = min(len(steps["obs"]), len(other["obs"]))  # envs of asynchronous collectors have their own pace
        for name in ("obs", "action", "next_obs"):
            _equal(steps[name][:common], other[name][:common], f"env {i}: {name} differs between runs with one seed")


def check_errors(factory: Factory) -> None:
    """Check that an env's exception is raised. Then the collector is shut down, or begins new episodes."""
    fns = [*ENV_FNS[:2], partial(RaisesOnStep, at=4, length=5)]
    with factory(fns, next_action, frames_per_batch=FRAMES) as collector:
        _raises(ValueError, "boom in step", lambda: [collector.next() for _ in range(6)], "an env that raises")
        try:
            steps = steps_of(collector.rollout())
        except (RuntimeError, ValueError):
            return
        first = np.append(True, np.diff(steps["env_ids"]) != 0)
        _equal(steps["obs"][first, T], np.zeros(first.sum()), "after an exception, a batch goes on in old episodes")


def check_shutdown(factory: Factory) -> None:
    """Check that `shutdown` may be called twice, and that no batch comes afterwards."""
    collector = factory(ENV_FNS, next_action, frames_per_batch=FRAMES)
    collector.next()
    for _ in range(2):
        collector.shutdown()
    _raises(RuntimeError, "", collector.next, "a batch after shutdown")


COLLECTOR_CHECKS: dict[str, Callable[[Factory], None]] = {
    name.removeprefix("check_"): check for name, check in [*vars().items()] if name.startswith("check_")
}
"""Functions that check a guarantee, by name."""


def check_collector(factory: Factory, checks: Iterable[str] | None = None) -> None:
    """Check the collectors that `factory(env_fns, policy, **options)` makes.

    factory: function that returns a collector, and accepts the options `frames_per_batch` and `total_frames`. Its
        batches must be `Rollout`s or `FlatRollout`s.
    checks: names in `COLLECTOR_CHECKS` (default: all).

    Raises AssertionError if a check fails.
    """
    for name in COLLECTOR_CHECKS if checks is None else checks:
        try:
            COLLECTOR_CHECKS[name](factory)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
        except Exception as error:
            raise AssertionError(f"{name}: unexpected {type(error).__name__}: {error}") from error


def _equal(found: Any, expected: Any, text: str) -> None:
    if not np.array_equal(found, expected):
        raise AssertionError(f"{text}: got {np.asarray(found)}, expected {np.asarray(expected)}")


def _raises(kind: type[Exception], said: str, call: Callable[[], Any], text: str) -> None:
    try:
        call()
    except kind as error:
        if said in str(error):
            return
        raise AssertionError(f"{text}: the text of the error is lost: {error}") from error
    raise AssertionError(f"{text}: no {kind.__name__} was raised")
