"""RayCollector on real clusters: three nodes on this machine, actors that are killed, held, slow or impossible."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from collector_envs import arrays, assert_equal, cartpoles, countdowns, lean
from countdown import Breaks, Countdown
from gymnasium import spaces
from rollout_envs import gated, signed

from collector import ExplorationType, RayCollector, Rollout, SyncDataCollector, set_exploration_type
from tests.ledger import gone
from vecenv import ShmemVectorEnv, WorkerDiedError, WorkerTimeoutError
from vecenv.testing import Gates

# Ray warns of what it will change, and leaves files and sockets to the garbage collector.
pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning"),
]
NODES = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head and two nodes with two CPUs each; the head has the resource "head"."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "resources": {"head": 8}})
    for _ in range(NODES - 1):
        made.add_node(num_cpus=2)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(autouse=True)
def no_leaks(cluster: Any) -> Iterator[None]:
    """In place of the check for all tests, which counts Ray's own processes and files: no actor is left."""
    yield
    _, left = psutil.wait_procs(actor_processes(), timeout=30)
    assert not left


def actor_processes() -> list[psutil.Process]:
    """Ray names its processes after the method that they run, or their class."""
    return [child for child in psutil.Process().children(recursive=True) if is_actor(child)]


def is_actor(process: psutil.Process) -> bool:
    try:
        return "RolloutActor" in " ".join(process.cmdline())
    except psutil.Error:
        return False


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return str(tmp_path / "steps")


def steps_taken(ledger: str) -> int:
    return Path(ledger).stat().st_size


def held(ledger: str, gates: Gates, **options: Any) -> RayCollector:
    """Two actors of one env each, whose steps wait at gates 0 and 1; four steps a rollout, one rollout in flight."""
    options = {"sync": False, "frames_per_batch": 4, "max_in_flight": 1, **options}
    kwargs = [{"gate": index} for index in range(2)]
    return RayCollector(partial(gated, ledger, gates.folder), num_actors=2, create_env_kwargs=kwargs, **options)


def kill_in_mid_rollout(collector: RayCollector, gates: Gates, actor: int) -> int:
    """Kill the actor when it has taken two of the four steps of a rollout; returns its pid."""
    gates.open(actor, times=2)
    for _ in range(3):
        gates.await_arrival(actor)
    pid = collector.stats().actors[actor].pid
    os.kill(pid, signal.SIGKILL)
    return pid


class Log:
    """What was delivered: each step once, and each id by one actor."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, ...]] = []
        self.episodes: dict[int, tuple[int, int]] = {}

    def add(self, batch: Rollout) -> Rollout:
        self.steps += [tuple(step) for step in batch.obs.reshape(-1, 3).tolist()]
        for row, env in enumerate(batch.env_ids.tolist()):
            for traj, step in zip(batch.traj_ids[row].tolist(), batch.obs[row].tolist(), strict=True):
                assert self.episodes.setdefault(traj, (env, step[0])) == (env, step[0]), "an id of two actors"
        assert len(set(self.steps)) == len(self.steps), "a step was delivered twice"
        return batch


def assert_accounted(collector: RayCollector, log: Log, ledger: str) -> None:
    """Frames that actors were asked for are delivered, lost, discarded or in flight; those that they took, too."""
    stats = collector.stats()
    assert stats.requested == stats.delivered + stats.lost + stats.discarded + stats.in_flight
    assert stats.delivered == len(log.steps)
    assert stats.delivered <= steps_taken(ledger) <= stats.requested


def test_with_one_seed_the_batches_are_the_same_on_one_node_and_on_three(cluster):
    """A policy that draws from torch's generator, so that each actor's own has to be seeded."""
    import ray

    seen, nodes = [], []
    policy = Draws()
    for placed in ({"scheduling": "SPREAD"}, {"resources": {"head": 1}, "num_cpus": 0.1}):
        with RayCollector(cartpoles(2), policy, num_actors=3, frames_per_batch=120, **placed) as collector:
            collector.set_seed(5)
            seen.append([arrays(collector.next()) for _ in range(2)])
            alive = [each for each in ray._private.state.actors().values() if each["State"] == "ALIVE"]
            nodes.append(len({each["Address"]["NodeID"] for each in alive}))
    assert nodes == [NODES, 1]
    for one, three in zip(*seen, strict=True):
        assert_equal(one, three)


class Draws(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 2)

    def forward(self, obs: torch.Tensor) -> Any:
        return torch.distributions.Categorical(logits=self.net(obs))


class Constant(torch.nn.Module):
    """Takes the action that its weight is; a Countdown rewards with it."""

    def __init__(self) -> None:
        super().__init__()
        self.value = torch.nn.Parameter(torch.zeros(1))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.value.long().expand(len(obs))


@pytest.mark.parametrize("sync", [True, False])
def test_weights_are_put_once_a_version_and_reach_every_actor(sync):
    policy = Constant()
    with RayCollector(countdowns(3), policy, num_actors=2, frames_per_batch=8, sync=sync) as collector:
        assert collector.next().policy_version.max() == 0
        policy.value.data += 1
        collector.update_policy_weights_()
        policy.value.data += 1
        collector.update_policy_weights_()
        seen = set()
        while len(seen) < 2:
            batch = collector.next()
            np.testing.assert_array_equal(batch.reward, batch.policy_version)
            assert set(batch.policy_version.ravel().tolist()) <= ({2} if sync else {0, 2})
            seen |= {env for env, rewards in zip(batch.env_ids.tolist(), batch.reward, strict=True) if rewards[0] == 2}
        assert (collector.policy_version, collector.stats().weight_puts) == (2, 1)
        with pytest.raises(ValueError, match="missing"):
            collector.update_policy_weights_({})


def test_asynchronous_batches_are_rollouts_of_one_actor_in_the_order_of_their_ends(ledger):
    with Gates(2) as gates, held(ledger, gates) as collector:
        log = Log()
        for _ in range(3):
            gates.open(1, times=4)
            assert log.add(collector.next()).env_ids.tolist() == [1]  # the other is held
        gates.open(0, times=4)
        gates.await_arrival(1)
        assert log.add(collector.next()).env_ids.tolist() == [0]
        assert_accounted(collector, log, ledger)


def test_results_in_flight_are_bounded(ledger):
    options = {"num_actors": 3, "frames_per_batch": 10, "sync": False, "create_env_kwargs": {"ledger": ledger}}
    with RayCollector(signed, **options) as collector:
        collector.next()
        assert collector.stats().in_flight == 3 * 2 * 10
    Path(ledger).unlink()
    with RayCollector(signed, max_bytes_in_flight=1, **options) as collector:
        for _ in range(8):
            collector.next()
        assert collector.stats().in_flight <= 10
        assert steps_taken(ledger) <= collector.stats().delivered + 10


@pytest.mark.parametrize("answer", ["restart", "drop", "raise"])
def test_an_actor_that_is_killed_in_mid_rollout(ledger, answer):
    log = Log()
    with Gates(2) as gates, held(ledger, gates, on_worker_failure=answer) as collector:
        gates.open(1, times=4)
        first = log.add(collector.next())
        for _ in range(4):
            gates.await_arrival(1)
        unfinished = first.traj_ids[0, -1]
        assert not first.done[0, -1]
        pid = kill_in_mid_rollout(collector, gates, 1)
        if answer == "raise":
            with pytest.raises(WorkerDiedError, match=rf"actor 1 \(pid {pid} on \S+; envs 1 to 1\) died") as caught:
                collector.next()
            assert (caught.value.env_ids, caught.value.pid) == ((1,), pid)
            with pytest.raises(RuntimeError, match="shut down"):
                collector.next()
        else:
            gates.open(0, times=40)
            gates.open(1, times=40)
            batches = [log.add(collector.next()) for _ in range(6)]
            ids = {int(env) for batch in batches for env in batch.env_ids}
            while answer == "restart" and 1 not in ids:
                batches.append(log.add(collector.next()))
                ids |= set(batches[-1].env_ids.tolist())
            assert ids == ({0, 1} if answer == "restart" else {0})
            assert [batch.broken_ids.tolist() for batch in batches if len(batch.broken_ids)] == [[unfinished]]
            assert_accounted(collector, log, ledger)
        failure = collector.stats().failures[0]
        assert (failure.actor, failure.env_ids, failure.pid, failure.answer) == (1, (1,), pid, answer)
        assert collector.stats().actors[1].lost == failure.frames_lost == 4
        assert collector.stats().restarts == (answer == "restart")


def test_a_synchronous_batch_waits_for_the_restarted_actor_which_gets_the_newest_weights():
    policy = Constant()
    with RayCollector(countdowns(3), policy, num_actors=2, frames_per_batch=8) as collector:
        collector.update_policy_weights_({"value": torch.ones(1)})
        collector.next()
        os.kill(collector.stats().actors[0].pid, signal.SIGKILL)
        batch = collector.next()
        assert batch.env_ids.tolist() == [0, 1]
        assert (batch.reward == 1).all()
        assert (batch.policy_version == 1).all()
        assert (collector.stats().weight_puts, collector.stats().restarts) == (1, 1)


def test_no_frame_is_lost_twice_or_delivered_twice_while_actors_are_killed(ledger):
    log = Log()
    options = {"num_actors": 3, "frames_per_batch": 10, "sync": False, "create_env_kwargs": {"ledger": ledger}}
    with RayCollector(signed, **options) as collector:
        for killed, victim in enumerate((0, 1, 2, 0)):
            for _ in range(6):
                log.add(collector.next())
            os.kill(collector.stats().actors[victim].pid, signal.SIGKILL)
            while collector.stats().restarts == killed:
                log.add(collector.next())
            while collector.stats().actors[victim].state == "starts":
                log.add(collector.next())
        assert [each.restarts for each in collector.stats().actors] == [2, 1, 1]
        assert_accounted(collector, log, ledger)
    assert_accounted(collector, log, ledger)


def test_an_actor_that_dies_again_and_again_is_raised():
    """Its env ends the process in the first step."""
    exits = [partial(Exits, 3)]
    with RayCollector(exits, num_actors=1, frames_per_batch=4, max_restarts=2) as collector:
        with pytest.raises(WorkerDiedError) as caught:
            collector.next()
        assert any("restarted 2 times without a rollout" in note for note in caught.value.__notes__)
        assert [failure.answer for failure in collector.stats().failures] == ["restart", "restart", "raise"]


class Absent(Breaks):
    def __init__(self, length: int) -> None:
        raise OSError("no such file")


class Exits(Breaks):
    def step(self, action: Any) -> Any:
        os._exit(1)


def test_a_batch_goes_without_an_actor_that_is_late_and_takes_its_rollout_later(ledger):
    log = Log()
    with Gates(2) as gates, held(ledger, gates, sync=True, frames_per_batch=8, straggler_timeout=0.05) as collector:
        gates.open(0, times=4)
        batch = log.add(collector.next())
        assert (batch.env_ids.tolist(), batch.frames, collector.stats().in_flight) == ([0], 4, 4)
        gates.open(0, times=400)
        gates.open(1, times=4)
        late = next(batch for batch in iter(collector.next, None) if 1 in log.add(batch).env_ids)
        assert late.traj_ids[-1].tolist() == [1] * 4
        assert_accounted(collector, log, ledger)


def test_an_actor_that_takes_too_long_is_killed(ledger):
    with Gates(2) as gates, held(ledger, gates, rollout_timeout=1.0, on_worker_failure="raise") as collector:
        pids = [each.pid for each in collector.stats().actors]
        with pytest.raises(
            WorkerTimeoutError, match=r"actor [01] .* has taken more than rollout_timeout=1 s"
        ) as caught:
            collector.next()
        assert caught.value.pid in pids
        assert caught.value.env_ids in [(0,), (1,)]


def test_a_dead_worker_of_the_envs_is_a_failure_of_the_actor(ledger):
    made = partial(ShmemVectorEnv, num_workers=1)
    with RayCollector(partial(workers_signed, made, ledger), num_actors=1, frames_per_batch=4) as collector:
        pid = int(collector.next().obs[0, 0, 0])
        assert pid != collector.stats().actors[0].pid
        os.kill(pid, signal.SIGKILL)
        assert int(collector.next().obs[0, 0, 0]) != pid
        assert "env 0" in collector.stats().failures[0].reason
        assert collector.stats().restarts == 1


def workers_signed(make: Any, ledger: str) -> Any:
    from countdown import Countdown
    from rollout_envs import Signed

    return make([lambda: Signed(Countdown(3), ledger)])


def test_what_the_cluster_cannot_give_is_an_error_with_what_it_has():
    with pytest.raises(WorkerTimeoutError) as caught:
        RayCollector(cartpoles(1), num_actors=2, frames_per_batch=4, num_cpus=64, start_timeout=1.5)
    text = str(caught.value)
    assert "2 of 2 actors have not started within 1.5 s. Each asks for 64 CPU" in text
    assert f"{NODES} nodes with 6 CPU (6 free)" in text


@pytest.fixture
def gpu(cluster: Any) -> Iterator[None]:
    """A node that says it has a GPU."""
    node = cluster.add_node(num_cpus=4, num_gpus=1)
    cluster.wait_for_nodes()
    yield
    cluster.remove_node(node)


@pytest.mark.usefixtures("gpu")
def test_actors_share_a_gpu_by_fractions():
    """What Ray gives them: the same GPU, by its index. A policy that needs none, so that no GPU has to be there."""
    options = {"num_actors": 4, "num_gpus": 0.25, "num_cpus": 0.1, "frames_per_batch": 8}
    with RayCollector([GpuEnv], **options) as collector:
        batch = collector.next()
        assert batch.obs.ravel().tolist() == [0] * 8
        with pytest.raises(WorkerTimeoutError, match=r"Each asks for 0.1 CPU, 0.25 GPU.* 1 GPU \(0 free\)"):
            RayCollector([GpuEnv], start_timeout=1.5, **{**options, "num_actors": 1})


class GpuEnv(Countdown):
    """Observes the number of the GPU that its process may use, -1 for none."""

    def __init__(self) -> None:
        super().__init__(100)
        self.observation_space = spaces.Box(-1, 9, (1,), np.int64)

    def reset(self, **kwargs: Any) -> Any:
        super().reset(**kwargs)
        return self._gpu(), {}

    def step(self, action: Any) -> Any:
        return self._gpu(), *super().step(action)[1:]

    def _gpu(self) -> np.ndarray:
        return np.array([int(os.environ.get("CUDA_VISIBLE_DEVICES") or -1)])


@pytest.mark.usefixtures("gpu")
@pytest.mark.skipif(torch.cuda.is_available(), reason="torch can use the GPU")
def test_a_gpu_that_torch_cannot_use_is_an_error_that_names_the_actor():
    options = {"num_actors": 2, "num_gpus": 0.5, "num_cpus": 0.1, "policy_device": "cuda"}
    with pytest.raises(ValueError, match="there is no device cuda: PyTorch sees 0 CUDA devices") as caught:
        RayCollector(cartpoles(1), Draws(), frames_per_batch=8, **options)
    assert any("raised in actor" in note for note in caught.value.__notes__)


def test_errors_of_constructors_and_of_steps_arrive_as_they_are():
    with pytest.raises(OSError, match="no such file") as caught:
        RayCollector([partial(Absent, 3)], num_actors=2, frames_per_batch=4)
    assert any(note.startswith("raised in actor") for note in caught.value.__notes__)
    with RayCollector([partial(Breaks, 3)], num_actors=2, frames_per_batch=4) as collector:
        with pytest.raises(OverflowError, match="the env broke") as caught:
            collector.next()
        assert any(note.startswith("raised in actor") for note in caught.value.__notes__)


def test_a_state_goes_to_another_collector_and_from_a_local_one(ledger):
    policy = Constant()
    options = {"num_actors": 2, "frames_per_batch": 8, "total_frames": 32}
    with RayCollector(countdowns(3), policy, **options) as collector:
        collector.update_policy_weights_({"value": torch.ones(1)})
        batches = [collector.next(), collector.next()]
        state = collector.state_dict()
    assert (state["frames"], state["iter"], state["policy_version"]) == (16, 2, 1)
    with RayCollector(countdowns(3), policy, **options) as collector:
        collector.next()
        collector.load_state_dict(state)
        batches += list(collector)
        assert (collector.frames, collector.policy_version) == (32, 1)
    assert len(batches) == 4
    assert all((batch.reward == 1).all() for batch in batches)
    before, after = (np.concatenate([batch.traj_ids for batch in half], 1) for half in (batches[:2], batches[2:]))
    assert before.max() < state["traj_pool"] <= after.min()
    with SyncDataCollector(countdowns(3, 3), policy, frames_per_batch=8) as local:
        local.load_state_dict(state)
        assert local.next().traj_ids.min() >= state["traj_pool"]


def test_reset_and_set_seed_discard_what_is_in_flight(ledger):
    options = {"num_actors": 2, "frames_per_batch": 10, "sync": False, "create_env_kwargs": {"ledger": ledger}}
    with RayCollector(signed, **options) as collector:
        log = Log()
        log.add(collector.next())
        collector.reset()
        assert collector.stats().discarded == 2 * 2 * 10
        assert (log.add(collector.next()).step_count[:, 0] == 0).all()
        collector.set_seed(3)
        assert (log.add(collector.next()).step_count[:, 0] == 0).all()
        assert_accounted(collector, log, ledger)


def test_frames_are_rounded_up_and_end_the_iterator_and_the_actors():
    options = {"frames_per_batch": 7, "total_frames": 21, "storing_device": "cpu"}
    with pytest.warns(UserWarning, match="not a multiple of the envs of 2 actors, 3 each: batches have 12 frames"):
        collector = RayCollector(cartpoles(3), lean, num_actors=2, **options)
    with (
        set_exploration_type(ExplorationType.MODE),
        pytest.raises(ValueError, match="has no effect on the policies of a RayCollector"),
    ):
        collector.next()
    assert (collector.frames_per_batch, len(collector)) == (12, 2)
    assert [(type(batch.reward), batch.frames) for batch in collector] == [(torch.Tensor, 12)] * 2
    assert collector.next() is None
    collector.shutdown()


def test_infos_of_the_actors_and_an_evaluation_beside_them():
    options = {"num_actors": 2, "frames_per_batch": 24, "total_frames": 48, "info_keys": ("prob",)}
    with RayCollector(["FrozenLake-v1"] * 3, **options) as collector:
        for _ in range(2):
            batch = collector.next()
            assert batch.extras["prob"].shape == (6, 4)
            assert (batch.extras["prob"] > 0).all()
            first = collector.evaluate(4, seed=1)
        assert len(first.returns) == 4
        assert collector.next() is None
        np.testing.assert_array_equal(collector.evaluate(4, seed=1).lens, first.lens)  # after the last batch
        assert collector.frames == 48


def test_the_driver_can_be_interrupted_while_it_waits(ledger):
    with Gates(2) as gates, held(ledger, gates) as collector:
        threading.Thread(target=lambda: (gates.await_arrival(0), os.kill(os.getpid(), signal.SIGINT))).start()
        with pytest.raises(KeyboardInterrupt):
            collector.next()
        with pytest.raises(RuntimeError, match="shut down"):
            collector.next()


OTHER = """
import sys
import ray
from collector import RayCollector
from rollout_envs import signed

address, ledger, then = sys.argv[1:]
ray.init(address=address, log_to_driver=False, logging_level="ERROR")
options = {"num_actors": 2, "num_cpus": 0.5, "frames_per_batch": 10, "sync": False}
with RayCollector(signed, create_env_kwargs={"ledger": ledger}, **options) as collector:
    print(*[each.pid for each in collector.stats().actors], flush=True)
    while then == "stay" or collector.frames < 200:
        collector.next()
    print(collector.stats().delivered, collector.stats().restarts, flush=True)
"""


@pytest.fixture
def driver(cluster: Any, tmp_path: Path) -> Iterator[Any]:
    """Starts another driver on the same cluster, which prints the pids of its actors."""
    started = []

    def start(then: str) -> subprocess.Popen[str]:
        folder = Path(__file__).parent
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder.parent), os.environ.get("PYTHONPATH", "")])}
        command = [sys.executable, "-W", "ignore", "-c", OTHER, cluster.address, str(tmp_path / "other"), then]
        started.append(subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_two_drivers_use_one_cluster(driver, ledger):
    other = driver("end")
    others = {int(pid) for pid in other.stdout.readline().split()}
    options = {"num_actors": 2, "num_cpus": 0.5, "frames_per_batch": 10, "sync": False}
    with RayCollector(signed, create_env_kwargs={"ledger": ledger}, **options) as collector:
        log = Log()
        for _ in range(20):
            log.add(collector.next())
        os.kill(collector.stats().actors[0].pid, signal.SIGKILL)  # of this driver alone
        while not collector.stats().restarts:
            log.add(collector.next())
        assert not {each.pid for each in collector.stats().actors} & others
        assert_accounted(collector, log, ledger)
    assert other.stdout.readline() == "200 0\n"
    assert other.wait(30) == 0


def test_no_actor_outlives_a_driver_that_is_killed(driver):
    killed = driver("stay")
    actors = [int(pid) for pid in killed.stdout.readline().split()]
    assert len(actors) == 2
    killed.kill()
    assert all(gone(pid, within=30) for pid in actors)


PROGRAM = """
import gymnasium as gym
from collector import RayCollector
from vecenv.ray_cluster import connect

envs = [lambda: gym.make("CartPole-v1")] * 2
with RayCollector(envs, num_actors=2, frames_per_batch=40, num_cpus=0.5) as collector, connect() as other:
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


def test_a_local_ray_is_started_silently_and_ended_by_its_last_user_alone():
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, "-"], input=PROGRAM, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert not [line for line in done.stderr.splitlines() if line and "FutureWarning" not in line and line[0] != " "]


def test_the_actor_of_a_node_that_is_lost_goes_on_elsewhere(cluster):
    """The last test, because the cluster counts that node for a while."""
    nodes = first, second = [cluster.add_node(num_cpus=1, resources={"extra": 1}) for _ in range(2)]
    with RayCollector(cartpoles(2), lean, num_actors=1, frames_per_batch=8, resources={"extra": 0.6}) as collector:
        collector.next()
        pid = collector.stats().actors[0].pid
        lost = first if psutil.Process(pid).ppid() in pids_of(first) else second
        cluster.remove_node(nodes.pop(nodes.index(lost)), allow_graceful=False)
        while not collector.stats().restarts:  # the actor's process may outlive its node for a moment
            assert collector.next().frames == 8
        assert collector.next().frames == 8
        assert collector.stats().failures[0].pid == pid
    cluster.remove_node(nodes.pop())


def pids_of(node: Any) -> set[int]:
    return {info.process.pid for infos in node.all_processes.values() for info in infos}
