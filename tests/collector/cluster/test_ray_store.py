"""RayCollector with rollouts that exceed Ray's object store: Ray spills them to disk, and no rollout is lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from collector import RayCollector

pytestmark = [
    pytest.mark.ray,
    pytest.mark.own_ray,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning"),  # Ray warns of future changes
]
STORE = 80 << 20
"""Bytes of the object store, close to Ray's minimum."""
SIZE, STEPS, DEPTH = 2 << 20, 4, 8
"""Bytes of an observation, steps of a rollout, and rollouts in flight per actor. Together they need twice the store."""


@pytest.fixture(scope="module")
def own_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start a Ray with a small object store, and return the folder to which it spills."""
    import ray
    from ray.cluster_utils import Cluster

    folder = tmp_path_factory.mktemp("spilled")
    head = {"num_cpus": 4, "include_dashboard": False, "object_store_memory": STORE}
    head["object_spilling_directory"] = str(folder)
    cluster = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    with RayCollector(
        [Large], num_actors=1, frames_per_batch=STEPS
    ) as collector:  # Ray's first descriptors are now open
        collector.next()
    yield folder
    ray.shutdown()
    cluster.shutdown()


class Large(gymnasium.Env):
    """Env with large observations. Every element is the number of steps."""

    observation_space: Any = spaces.Box(0, 2**40, (SIZE // 8,), np.int64)
    action_space: Any = spaces.Discrete(2)

    def __init__(self) -> None:
        self.taken = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken += 1
        return self.observe(), 0.0, False, False, {}

    def observe(self) -> np.ndarray:
        return np.full(SIZE // 8, self.taken)


def spilled(folder: Path) -> int:
    """Return the bytes on disk that Ray has spilled and not yet deleted."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_rollouts_that_do_not_fit_into_the_store_all_arrive_once_and_in_order(own_ray: Path) -> None:
    seen: dict[int, list[int]] = {0: [], 1: []}

    def take() -> None:
        batch = collector.next()
        assert (batch.obs == batch.obs[..., :1]).all()
        seen[int(batch.env_ids[0])] += batch.obs[0, :, 0].tolist()

    bounds = {"max_in_flight": DEPTH, "max_bytes_in_flight": 100 * STORE}
    with RayCollector([Large], num_actors=2, frames_per_batch=STEPS, sync=False, **bounds) as collector:
        take()
        deadline = time.monotonic() + 120
        while spilled(own_ray) < STORE // 2:  # the actors continue without calls
            assert time.monotonic() < deadline, "nothing was spilled"
            time.sleep(0.1)
        for _ in range(4 * DEPTH):
            take()
        stats = collector.stats()
        assert stats.delivered == len(seen[0]) + len(seen[1])
        assert (stats.lost, stats.discarded, stats.failures) == (0, 0, ())
    for steps in seen.values():
        assert steps == list(range(len(steps)))


def test_by_default_what_is_in_flight_fits_into_the_store(own_ray: Path) -> None:
    options = {"num_actors": 2, "frames_per_batch": STEPS, "sync": False, "max_in_flight": DEPTH}
    with RayCollector([Large], **options) as collector:
        for _ in range(2 * DEPTH):
            rollout = collector.next().all_obs.nbytes
            assert collector.stats().in_flight // STEPS * rollout <= STORE // 4
