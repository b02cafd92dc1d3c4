"""SIGKILL at any moment: jobs lose no committed episode, and store none twice.

The quick tier has one program of `tests/fuzz/jobs.py`. `python -m tests.fuzz jobs --minutes 10` kills more jobs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import kills
from tests.support.backends import FULL

pytestmark = pytest.mark.usefixtures("forkserver_ends")


@pytest.mark.guarantee("G11.4")
@pytest.mark.parametrize(
    ("backend", "count", "seed"),
    [pytest.param("dummy", 3, 1, marks=FULL), pytest.param("shmem", 10, 3, marks=pytest.mark.slow)],
)
@pytest.mark.timeout(600)
def test_a_killed_job_goes_on_and_ends_as_if_nothing_had_happened(
    backend: str, count: int, seed: int, tmp_path: Path
) -> None:
    killed, complete = kills.kill_jobs(tmp_path, kills.LocalJobs(backend), count, seed, episodes=100)
    assert killed == count
    assert complete > 0


@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_killed_drivers_and_actors_on_ray_lose_and_repeat_nothing(count: int, ray_address: str, tmp_path: Path) -> None:
    killed, complete = kills.kill_jobs(tmp_path, kills.RayJobs(address=ray_address), count, seed=4, episodes=200)
    assert killed >= count
    assert complete > 0
