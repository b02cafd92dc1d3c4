"""A job copies an observation three times: into the log, out of the log, and into the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from collector import Dataset, Job, run_job
from tests.support.job_envs import stop_at, stopped
from tests.support.memory import Memory

ENVS = 4  # a network gets a multiple of four rows


def test_three_copies_of_an_observation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of CartPole count as large here. Small rows of an episode that spans batches are copied once more."""
    pytest.importorskip("torch.distributions")  # a traced import takes a minute
    monkeypatch.setattr("collector.episodes.cutter.LARGE_ROW", 16)
    options = {"num_workers": 1, "backend": "shmem", "policy": "mlp", "device": "cpu"}
    wanted = Job(env="CartPole-v1", episodes=10_000, num_envs=ENVS, **options)
    with Memory((4,), np.float32).watched() as memory:
        stopped(run_job, wanted, tmp_path / "a", on_progress=stop_at(40))  # while each env has a next episode
    blocks = memory.count()
    inside = sorted(blocks[row.tobytes()] for episode in Dataset(tmp_path / "a") for row in episode.obs[:-1])
    # The log, and the memory of the episode. The first observations of a batch are copied more often.
    assert inside[0] == inside[len(inside) // 2] == 2
