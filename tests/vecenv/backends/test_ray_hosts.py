"""Ray on three simulated hosts: a host loses power, falls silent or returns, as in docs/guides/cluster.md."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector import Dataset, run_job
from tests.support import hosts as simulated
from tests.support.hosts import Hosts, Program
from tests.support.job_envs import assert_same, counting, job

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing() or "never"),
]
CPUS = 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with Hosts(tmp_path_factory.mktemp("hosts"), "ABC") as hosts:
        for name in hosts.names:
            hosts.start_ray(name, CPUS, head=name == "A")
        yield hosts


@pytest.fixture
def hosts(cluster: Hosts) -> Iterator[Hosts]:
    """All three hosts. Tests take host B away, so B returns after each test."""
    yield cluster
    cluster.kill_programs()
    cluster.set_link("B", up=True)
    if "B" in cluster._booted:
        cluster.power_off("B")
    cluster.boot("B")
    cluster.start_ray("B", CPUS)


@pytest.fixture(autouse=True)
def no_leaks() -> None:
    """Replace the leak check of all tests, because hosts that a test boots are processes of this process."""


def take_away(hosts: Hosts, name: str, how: str) -> None:
    if how == "drained":
        hosts.drain(name)
    elif how == "off":
        hosts.power_off(name)
    else:
        hosts.set_link(name, up=False)


def program(hosts: Hosts, *arguments: str) -> Program:
    return hosts.program("A", *arguments)


@pytest.mark.parametrize("how", ["off", "silent"])
def test_steps_go_on_before_ray_declares_the_host_dead(hosts: Hosts, how: str) -> None:
    driver = program(hosts, "steps", "3")
    assert driver.hears()["where"] == ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
    take_away(hosts, "B", how)
    driver.go_on()
    noticed = driver.hears()
    assert len(noticed["lost"]) == 2
    assert noticed["error"] in ("WorkerDiedError", "WorkerTimeoutError")
    usable = driver.hears()
    assert "10.77.0.2" not in usable["where"]
    assert driver.ends() == 0
    print(f"steps, {how}: noticed after {noticed['noticed']:.1f} s, usable after {usable['usable']:.1f} s")


@pytest.mark.parametrize(("how", "cpus"), [("off", "1"), ("silent", "1"), ("off", "2"), ("drained", "1")])
def test_batches_go_on_with_or_without_room_for_a_replacement(hosts: Hosts, how: str, cpus: str) -> None:
    driver = program(hosts, "batches", "3", cpus)
    assert driver.hears()["nodes"] == ["host-A", "host-B", "host-C"]
    take_away(hosts, "B", how)
    driver.go_on()
    found = driver.hears()
    assert found["same"], "each frame is delivered, lost, discarded or in flight"
    assert (found["failed"] == 0) == (how == "drained")
    if cpus == "1":
        assert "host-B" not in found["nodes"]
    else:
        assert found["states"].count("no place") == 1
        hosts.boot("B")
        hosts.start_ray("B", CPUS)
        driver.go_on()
        returned = driver.hears()
        assert returned["nodes"] == ["host-A", "host-B", "host-C"]
        assert returned["restarts"] == 1, "the wait for a place is no crash"
        print(f"batches, the host returns: it collects after {returned['taken']:.1f} s")
    assert driver.ends() == 0
    print(f"batches, {how}, {cpus} CPUs: noticed after {found['noticed']:.1f} s, longest wait {found['longest']:.1f} s")


EPISODES = 300


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    run_job(job(**counting(), episodes=EPISODES), folder)
    return folder


@pytest.mark.parametrize("how", ["off", "silent", "driver", "drained"])
def test_a_job_has_the_same_episodes(hosts: Hosts, whole: Path, how: str) -> None:
    out = hosts.shared / how
    # If host B loses power, the folder is on the disk of the driver alone, and the driver copies it at the end.
    places = ["/tmp/apart", str(EPISODES), str(out)] if how == "off" else [str(out), str(EPISODES)]
    driver = program(hosts, "job", "3", *places)
    driver.hears()
    if how == "driver":
        driver.kill()
        driver = hosts.program("C", "job", "3", str(out), str(EPISODES))  # resumes it from another host
        driver.hears()
    else:
        take_away(hosts, "B", how)
    found = driver.hears()
    assert (found["status"], found["episodes"]) == ("complete", EPISODES)
    assert driver.ends() == 0
    assert Dataset(out).verify() == []
    assert_same(out, whole)
    assert not (how == "drained" and any("failed" in note for note in found["notes"]))
    print(f"job, {how}: {found['seconds']:.1f} s after the first commit, {found['notes']}")


def test_programs_end_with_the_head_and_a_new_cluster_resumes_the_job(hosts: Hosts, whole: Path) -> None:
    """The last test, because no cluster is left."""
    out = hosts.shared / "head"
    drivers = [hosts.program("C", "job", "3", str(out), str(EPISODES)), hosts.program("C", "steps_on", "3")]
    for driver in drivers:
        driver.hears()
    began = time.monotonic()
    hosts.power_off("A")
    for driver, name in zip(drivers, ("job", "steps"), strict=True):
        code = driver.ends()
        print(f"head, {name}: ended with {code} after {time.monotonic() - began:.1f} s")
    for name in "BC":
        hosts.power_off(name)
    for name in "ABC":
        hosts.boot(name)
        hosts.start_ray(name, CPUS, head=name == "A")
    driver = program(hosts, "job", "3", str(out), str(EPISODES))
    driver.hears()
    found = driver.hears()
    assert (found["status"], found["episodes"]) == ("complete", EPISODES)
    assert driver.ends() == 0
    assert_same(out, whole)
