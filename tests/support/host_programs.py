"""Programs that `Hosts` runs on simulated hosts: `python -m tests.support.host_programs NAME ARGUMENTS`."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.support.faulty import counters
from vecenv import DummyVectorEnv, RayVectorEnv
from vecenv.errors import VectorEnvError


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def await_signal() -> None:
    sys.stdin.readline()


def connect(hosts: int) -> Any:
    """Connect to the cluster, and wait until it has `hosts` hosts."""
    import ray

    from vecenv.ray_cluster import unreachable_nodes

    ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
    while sum(node["Alive"] for node in ray.nodes()) - len(unreachable_nodes()) < hosts:
        time.sleep(0.2)
    return ray


def spread(make: Callable[[], Any], nodes: Callable[[Any], Sequence[str]], hosts: int) -> Any:
    """Call `make` until the actors of the object are on all hosts, because Ray guarantees no even spread."""
    while len(nodes(found := make())) < hosts:
        found.__exit__(None, None, None)
    return found


def steps_on(hosts: str) -> None:
    """Step envs until the head is lost, which ends the program."""
    connect(int(hosts))
    with RayVectorEnv(counters(6), num_workers=3) as venv:
        venv.reset()
        say(steps=True)
        while True:
            venv.step([0] * 6)


def steps(hosts: str) -> None:
    """Step envs on each host. The test takes a host away between two steps."""
    connect(int(hosts))

    def nodes(venv: RayVectorEnv) -> list[str]:
        return sorted({worker.where.split()[-1] for worker in venv.engine.backend.pool.workers})

    with spread(lambda: RayVectorEnv(counters(6), num_workers=3, step_timeout=5.0), nodes, int(hosts)) as venv:
        venv.reset()
        venv.step([0] * 6)
        say(where=nodes(venv))
        await_signal()
        began = time.monotonic()
        error: VectorEnvError | None = None
        while error is None:
            try:
                venv.step([0] * 6)
            except VectorEnvError as found:
                error = found
        say(noticed=time.monotonic() - began, error=type(error).__name__, lost=list(venv.failed_id))
        while venv.failed_id:
            with contextlib.suppress(VectorEnvError):
                venv.reset(venv.failed_id)
        venv.step([0] * 6)
        say(usable=time.monotonic() - began, where=nodes(venv))


def batches(hosts: str, cpus: str) -> None:
    """Collect, and update the weights after each batch. The test takes a host away meanwhile."""
    from collector import ActorConfig, MLPPolicy, RayCollector
    from tests.support.collector_envs import cartpoles

    connect(int(hosts))
    make = cartpoles(2)
    with DummyVectorEnv(make) as venv:
        policy = MLPPolicy(venv.observation_space[0], venv.action_space[0])

    def take() -> None:
        collector.next()
        collector.update_policy_weights_()

    actors = ActorConfig(num_cpus=float(cpus), rollout_timeout=5.0, start_timeout=15.0)

    def collect() -> RayCollector:
        return RayCollector(make, policy, num_actors=3, frames_per_batch=40, sync=False, actors=actors)

    def nodes(collector: RayCollector) -> list[str]:
        return sorted({actor.node for actor in collector.stats().actors})

    with spread(collect, nodes, int(hosts)) as collector:
        for _ in range(6):
            take()
        say(nodes=nodes(collector))
        await_signal()
        began, noticed = time.monotonic(), None
        longest = 0.0
        while noticed is None or time.monotonic() < noticed + 20.0:
            last = time.monotonic()
            take()
            longest = max(longest, time.monotonic() - last)
            if noticed is None and collector.stats().restarts:
                noticed = time.monotonic()
        found = collector.stats()
        same = found.requested == found.delivered + found.lost + found.discarded + found.in_flight
        states = [actor.state for actor in found.actors]
        failures = len(found.failures)
        say(noticed=noticed - began, longest=longest, same=same, states=states, nodes=nodes(collector), failed=failures)
        if "no place" in states:
            await_signal()
            began = time.monotonic()
            while "no place" in states:
                collector.next()
                states = [actor.state for actor in collector.stats().actors]
            restarts = max(actor.restarts for actor in collector.stats().actors)
            say(taken=time.monotonic() - began, nodes=nodes(collector), restarts=restarts)


def job(hosts: str, out: str, episodes: str, copy: str = "") -> None:
    """Run or resume a job. At the end, copy its folder to `copy`."""
    from collector import run_job
    from tests.support.job_envs import counting
    from tests.support.job_envs import job as make_job

    connect(int(hosts)).shutdown()
    wanted = make_job(**counting(seconds=0.01), episodes=int(episodes), shard_seconds=1.0)
    begun: list[float] = []

    def on_progress(state: Any) -> None:
        if not begun:
            begun.append(time.monotonic())
            say(episodes=state.episodes)

    state = run_job(wanted, out, resume=True, cluster="auto", cluster_actors=3, on_progress=on_progress)
    if copy:
        shutil.copytree(out, copy)
    say(status=state.status, episodes=state.episodes, seconds=time.monotonic() - begun[0], notes=state.notes)


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    {"steps": steps, "steps_on": steps_on, "batches": batches, "job": job}[name](*arguments)
