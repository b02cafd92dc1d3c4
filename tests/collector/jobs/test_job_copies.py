"""A job copies an observation three times: into the log, out of the log, and into the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from collector import Dataset, Job, run_job
from tests.support.job_envs import HERE, stop_at, stopped
from tests.support.memory import Memory

ENVS = 4  # a network gets a multiple of four rows


@pytest.mark.parametrize(
    ("env", "policy", "episodes"),
    [("CartPole-v1", "random", 40), ("CartPole-v1", "mlp", 40), (f"{HERE}:Pictures", "random", 6)],
)
def test_three_copies_of_an_observation(
    env: str, policy: str, episodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of CartPole count as large here. Small rows of an episode that spans batches are copied once more."""
    monkeypatch.setattr("collector.episodes.cutter.LARGE_ROW", 16)
    shape, dtype = ((4,), np.float32) if env == "CartPole-v1" else ((84, 84, 4), np.uint8)
    wanted = Job(env=env, episodes=10_000, num_envs=ENVS, num_workers=1, backend="shmem", policy=policy, device="cpu")
    with Memory(shape, dtype).watched() as memory:
        stopped(
            run_job, wanted, tmp_path / "a", on_progress=stop_at(episodes)
        )  # as long as each env has a next episode
    blocks = memory.count()
    inside = sorted(blocks[row.tobytes()] for episode in Dataset(tmp_path / "a") for row in episode.obs[:-1])
    assert inside[0] == 2, "the log, and the memory of the episode"
    assert inside[len(inside) // 2] == 2
    assert inside[-1] <= 5, "the last observations of a batch are also the first of the next batch"
