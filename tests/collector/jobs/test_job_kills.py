"""SIGKILL of drivers and tasks on Ray at any moment. `tests/fuzz/jobs.py` kills local jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import kills


@pytest.mark.ray
@pytest.mark.usefixtures("forkserver_ends")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_killed_drivers_and_actors_on_ray_lose_and_repeat_nothing(count: int, ray_address: str, tmp_path: Path) -> None:
    killed, complete = kills.kill_jobs(tmp_path, kills.RayJobs(address=ray_address), count, seed=4, episodes=200)
    assert killed >= count
    assert complete > 0
