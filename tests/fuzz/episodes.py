"""Episodes of collectors and jobs against the same episodes, played alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collector import EpisodeCutter, SyncDataCollector
from tests.fuzz.envs import assert_same, stacked


def keyed_actions(env_fn: Any, policy: Any, episode_seeds: Any, most: int | None) -> dict[int, np.ndarray]:
    """Return the actions of each episode from a collector with one env: keyed noise depends on no other episode."""
    cutter, found, options = EpisodeCutter(), dict[int, Any](), {"max_frames_per_traj": most, "frames_per_batch": 5}
    with SyncDataCollector([env_fn], policy, episode_seeds=episode_seeds, **options) as collector:
        for batch in collector:
            found |= {episode.number: np.asarray(episode.action) for episode in cutter.cut(batch)}
    return found


def compare_episode(episode: Any, env: Any, seed: int, most: int | None, choose: Callable[..., Any]) -> None:
    """Play an episode of at most `most` steps, with the action `choose(obs, info, step)` in each step, and compare."""
    obs, info = env.reset(seed=seed)
    seen, rows, over = [obs], list[Any](), False
    while not over:
        action = choose(obs, info, len(rows))
        obs, reward, terminated, truncated, info = env.step(action)
        truncated = truncated or len(rows) + 1 == most
        seen.append(obs)
        rows.append((action, float(reward), terminated, truncated))
        over = terminated or truncated
    what = f"of episode {episode.number}"
    assert_same(as_arrays(episode.obs), stacked(env.observation_space, seen), f"obs {what}")
    for name, column in zip(("action", "reward", "terminated", "truncated"), zip(*rows, strict=True), strict=True):
        assert_same(np.asarray(getattr(episode, name)), np.array(column), f"{name} {what}")


def as_arrays(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: as_arrays(part) for key, part in tree.items()}
    return tuple(map(as_arrays, tree)) if isinstance(tree, (tuple, list)) else np.asarray(tree)
