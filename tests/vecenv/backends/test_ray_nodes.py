"""RayVectorEnv when a node is lost, on a separate cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.faulty import counters
from tests.support.hosts import DRAIN
from tests.support.ledger import Ledger
from tests.support.local_ray import FAR
from vecenv import RayVectorEnv, WorkerDiedError
from vecenv.ray_cluster import actor_options, ends_soon, free_places, get_record, put_record, start_task

pytestmark = [pytest.mark.ray, pytest.mark.own_ray]


@pytest.fixture(scope="module")
def own_ray() -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False})
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    # the first actor makes Ray open descriptors, so count them afterwards
    with RayVectorEnv(counters(2), num_workers=1) as venv:
        venv.reset()
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_the_number_of_actors_is_that_of_free_cpus_at_most_one_an_env(own_ray: Any) -> None:
    with RayVectorEnv(counters(3)) as venv:
        assert venv.num_workers == 3
    with RayVectorEnv(counters(8), num_cpus=2) as venv:
        assert venv.num_workers == 2


def await_places(expected: int, **options: Any) -> None:
    """Wait until Ray counts `expected` places, because nodes report their resources with a delay."""
    while free_places(actor_options(**options)) != expected:
        time.sleep(0.1)


@pytest.mark.timeout(120)
def test_places_are_counted_per_node_and_resource_and_in_a_placement_group(own_ray: Any) -> None:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    node = own_ray.add_node(num_cpus=4, resources={"gold": 1})
    own_ray.wait_for_nodes()
    await_places(8)
    await_places(2, num_cpus=2.5)
    await_places(2, resources={"gold": 0.5})
    group = placement_group([{"CPU": 2}] * 3, strategy="SPREAD")
    ray.get(group.ready())
    await_places(6, placement_group=group)
    await_places(3, placement_group=group, num_cpus=1.5)
    await_places(2)
    remove_placement_group(group)
    own_ray.remove_node(node, allow_graceful=False)


def wait_for_drain() -> None:
    """Return when Ray announces the end of this node. Runs in a task."""
    assert not ends_soon()
    put_record("watches", "now")
    while not ends_soon():
        time.sleep(0.1)


@pytest.mark.timeout(120)
def test_an_announced_end_of_a_node_reaches_its_tasks_and_takes_its_places(own_ray: Any) -> None:
    import ray

    node = own_ray.add_node(num_cpus=4, resources={"far": 1})
    own_ray.wait_for_nodes()
    await_places(4, **FAR)
    task = start_task(wait_for_drain, {"num_cpus": 0, **FAR})
    while not get_record("watches"):
        assert not ray.wait([task], timeout=0.1)[0]
    environ = {**os.environ, "RAY_ADDRESS": own_ray.address}
    subprocess.run([sys.executable, "-c", DRAIN, node.node_id], env=environ, check=True, timeout=60)
    assert ray.get(task) is None
    await_places(0, **FAR)
    own_ray.remove_node(node, allow_graceful=False)


@pytest.mark.timeout(240)
def test_the_actors_of_a_lost_node_are_dead_and_reset_starts_others(own_ray: Any) -> None:
    node = own_ray.add_node(num_cpus=4)
    own_ray.wait_for_nodes()
    with RayVectorEnv(counters(4), num_workers=2) as venv:
        ledger = Ledger(venv)
        ledger.begin()
        far = [i for worker in venv.engine.backend.pool.workers if not worker.on_this_node for i in worker.ids]
        assert len(far) == 2
        own_ray.remove_node(node, allow_graceful=False)
        errors = ledger.round()
        while not errors:  # the actor continues until it notices the loss; the test has a time limit
            errors = ledger.round()
        assert {type(error) for error in errors} == {WorkerDiedError}
        assert venv.failed_id == far
        while venv.failed_id:  # until Ray has noticed the loss, Ray may place the new actor on the lost node
            with contextlib.suppress(WorkerDiedError):
                venv.reset(far)
        assert venv.step([0] * 4)[0][far, 2].tolist() == [1, 1]
        assert all(worker.on_this_node for worker in venv.engine.backend.pool.workers)
