"""RayCollector on three nodes on this machine: actors are killed, hang or find no place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import psutil
import pytest
import torch

from collector import ActorConfig, RayCollector
from tests.support.collector_envs import arrays, assert_equal, cartpoles
from tests.support.countdown import Breaks, Countdown
from tests.support.rollout_envs import gated, signed
from vecenv import ShmemVectorEnv, WorkerTimeoutError
from vecenv.testing import Gates

# Ray warns of future changes, and leaves files and sockets to the garbage collector.
pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning"),
]
NODES = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Start a head and two nodes with two CPUs each. The head has the resource "head", and claims a GPU."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 2, "num_gpus": 1, "resources": {"head": 8}}
    made = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(NODES - 1):
        made.add_node(num_cpus=2)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(autouse=True)
def no_leaks(cluster: Any) -> Iterator[None]:
    """Replace the general leak check, which would count Ray's processes and files: only actors must end."""
    yield
    children = psutil.Process().children(recursive=True)
    _, left = psutil.wait_procs([child for child in children if is_actor(child)], timeout=30)
    assert not left


def is_actor(process: psutil.Process) -> bool:
    """Return whether Ray has named the process after the actor's class or method."""
    try:
        return "RolloutActor" in " ".join(process.cmdline())
    except psutil.Error:
        return False


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    """Return the path of a file to which each step of an env appends a byte."""
    return str(tmp_path / "steps")


class Draws(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 2)

    def forward(self, obs: torch.Tensor) -> Any:
        return torch.distributions.Categorical(logits=self.net(obs))


@pytest.mark.guarantee("G10.15")
def test_with_one_seed_the_batches_are_the_same_on_one_node_and_on_three(cluster: Any) -> None:
    """The policy draws from torch's generator, so each actor must seed this generator."""
    import ray

    seen, nodes, policy = [], [], Draws()
    for placed in (ActorConfig(), ActorConfig(resources={"head": 1}, num_cpus=0.1)):
        with RayCollector(cartpoles(2), policy, num_actors=3, frames_per_batch=120, actors=placed) as collector:
            collector.set_seed(5)
            seen.append([arrays(collector.next()) for _ in range(2)])
            alive = [each for each in ray._private.state.actors().values() if each["State"] == "ALIVE"]
            nodes.append(len({each["Address"]["NodeID"] for each in alive}))
    assert nodes == [NODES, 1]
    for one, three in zip(*seen, strict=True):
        assert_equal(one, three)


@pytest.mark.guarantee("G10.17")
def test_no_frame_is_lost_twice_or_delivered_twice_while_actors_are_killed(ledger: str) -> None:
    options = {"num_actors": 3, "frames_per_batch": 10, "sync": False, "create_env_kwargs": {"ledger": ledger}}
    steps, episodes = list[Any](), dict[int, Any]()

    def take() -> None:
        batch = collector.next()
        for row, env in enumerate(batch.env_ids.tolist()):
            for traj, step in zip(batch.traj_ids[row].tolist(), batch.obs[row].tolist(), strict=True):
                steps.append(tuple(step))
                assert episodes.setdefault(traj, (env, step[0])) == (env, step[0]), "an id of two actors"
        assert len({*steps}) == len(steps), "a step was delivered twice"

    with RayCollector(signed, **options) as collector:
        for killed, victim in enumerate((0, 1, 2, 0)):
            for _ in range(6):
                take()
            os.kill(collector.stats().actors[victim].pid, signal.SIGKILL)
            while collector.stats().restarts == killed or collector.stats().actors[victim].state == "starts":
                take()
        assert [each.restarts for each in collector.stats().actors] == [2, 1, 1]
    stats = collector.stats()
    assert stats.requested == stats.delivered + stats.lost + stats.discarded + stats.in_flight
    assert stats.delivered == len(steps)
    assert stats.delivered <= Path(ledger).stat().st_size <= stats.requested


def test_the_driver_can_be_interrupted(ledger: str) -> None:
    """The actor's env steps only when its gate opens."""
    options = {"num_actors": 1, "frames_per_batch": 4, "create_env_kwargs": [{"gate": 0}]}
    with Gates(1) as gates, RayCollector(partial(gated, ledger, gates.folder), **options) as collector:
        threading.Thread(target=lambda: (gates.await_arrival(0), os.kill(os.getpid(), signal.SIGINT))).start()
        with pytest.raises(KeyboardInterrupt):
            collector.next()
        with pytest.raises(RuntimeError, match="shut down"):
            collector.next()


def workers_signed(ledger: str) -> Any:
    from tests.support.rollout_envs import Signed

    return ShmemVectorEnv([lambda: Signed(Countdown(3), ledger)])


def test_a_dead_worker_of_the_envs_is_a_failure_of_the_actor(ledger: str) -> None:
    with RayCollector(partial(workers_signed, ledger), num_actors=1, frames_per_batch=4) as collector:
        pid = int(collector.next().obs[0, 0, 0])
        assert pid != collector.stats().actors[0].pid
        os.kill(pid, signal.SIGKILL)
        assert int(collector.next().obs[0, 0, 0]) != pid
        assert "env 0" in collector.stats().failures[0].reason
        assert collector.stats().restarts == 1


class GpuEnv(gymnasium.ObservationWrapper):
    """Env that observes the index of its process's GPU, or -1."""

    def observation(self, observation: Any) -> Any:
        return observation * 0 + int(os.environ.get("CUDA_VISIBLE_DEVICES") or -1)


def test_actors_share_a_gpu_by_fractions_and_what_the_cluster_cannot_give_is_an_error_with_what_it_has() -> None:
    """Ray assigns the GPU by index. The policy needs no GPU, so the machine may have none."""
    text = rf"2 of 2 actors have not started within 1.5 s. Each asks for 64 CPU.* {NODES} nodes with 6 CPU \(6 free\)"
    with pytest.raises(WorkerTimeoutError, match=text):
        RayCollector(cartpoles(1), num_actors=2, frames_per_batch=4, actors=ActorConfig(num_cpus=64, start_timeout=1.5))
    shared: dict[str, Any] = {"num_gpus": 0.25, "num_cpus": 0.1}
    envs = [lambda: GpuEnv(Countdown(100))]
    with RayCollector(envs, num_actors=4, frames_per_batch=8, actors=ActorConfig(**shared)) as collector:
        assert not collector.next().obs.any()
        with pytest.raises(WorkerTimeoutError, match=r"Each asks for 0.1 CPU, 0.25 GPU.* 1 GPU \(0 free\)"):
            RayCollector(envs, num_actors=1, frames_per_batch=8, actors=ActorConfig(start_timeout=1.5, **shared))
    if not torch.cuda.is_available():
        options: dict[str, Any] = {"num_actors": 2, "actors": ActorConfig(**shared), "policy_device": "cuda"}
        with pytest.raises(ValueError, match="there is no device cuda: PyTorch sees 0 CUDA devices") as caught:
            RayCollector(cartpoles(1), Draws(), frames_per_batch=8, **options)
        assert any("raised in actor" in note for note in caught.value.__notes__)


class Absent(Breaks):
    def __init__(self, length: int) -> None:
        raise OSError("no such file")


@pytest.mark.guarantee("G10.12")
def test_errors_of_constructors_and_of_steps_arrive_as_they_are() -> None:
    with pytest.raises(OSError, match="no such file") as caught:
        RayCollector([partial(Absent, 3)], num_actors=2, frames_per_batch=4)
    assert any(note.startswith("raised in actor") for note in caught.value.__notes__)
    with RayCollector([partial(Breaks, 3)], num_actors=2, frames_per_batch=4) as collector:
        with pytest.raises(OverflowError, match="the env broke") as caught:
            collector.next()
        assert any(note.startswith("raised in actor") for note in caught.value.__notes__)
        with pytest.raises(RuntimeError, match="the collector is shut down"):
            collector.next()


PROGRAM = """
import gymnasium as gym
from collector import ActorConfig, RayCollector
from vecenv.ray_cluster import connect

envs, config = [lambda: gym.make("CartPole-v1")] * 2, ActorConfig(num_cpus=0.5)
with RayCollector(envs, num_actors=2, frames_per_batch=40, actors=config) as collector, connect() as other:
    assert collector.next().frames == 40
    collector.shutdown()
    assert other.ray.is_initialized()
import ray
assert not ray.is_initialized()
ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
with connect() as mine:
    pass
assert ray.is_initialized()
ray.shutdown()
print("done")
"""


def test_a_local_ray_is_started_silently_and_ended_by_its_last_user_alone() -> None:
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, "-"], input=PROGRAM, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert not [line for line in done.stderr.splitlines() if line and "FutureWarning" not in line and line[0] != " "]


def test_a_collector_starts_with_fewer_actors_and_the_others_join_with_a_new_node(cluster: Any) -> None:
    actors = ActorConfig(num_cpus=2, min_actors=2, start_timeout=20.0)
    options = {"frames_per_batch": 80, "sync": False, "actors": actors}
    with pytest.raises(WorkerTimeoutError, match="of 4 actors have not started"):
        RayCollector(cartpoles(2), num_actors=4, **{**options, "actors": replace(actors, min_actors=4)})
    with RayCollector(cartpoles(2), num_actors=4, **options) as collector:
        collector.next()
        assert [actor.state for actor in collector.stats().actors].count("no place") == 1
        node = cluster.add_node(num_cpus=2)
        while not all(actor.delivered for actor in collector.stats().actors):
            assert collector.next().frames == 80
        assert collector.stats().restarts == 0
    cluster.remove_node(node)
