"""RayVectorEnv on a local Ray of two nodes: the contract, placement, life cycle and facades.

`make test` runs the contract on the driver's node, and a few rows of the fault tests. `make test-ray` runs all tests.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from collector import ActorConfig, AsyncDataCollector, RayCollector, SyncDataCollector
from tests.fuzz.envs import assert_same
from tests.support.collector_envs import arrays, assert_equal, lean
from tests.support.faulty import Counter, HangsElsewhere, counters
from tests.support.ledger import Ledger, gone, pids
from tests.support.local_ray import FAR, NEAR
from tests.support.paths import ROOT
from vecenv import (
    DummyVectorEnv,
    RayVectorEnv,
    SB3VecEnv,
    WorkerDiedError,
    WorkerTimeoutError,
    make_vec,
)
from vecenv.testing import CountingEnv, check_vector_env

pytestmark = pytest.mark.local_ray
CARTPOLE = partial(gym.make, "CartPole-v1")


@pytest.mark.ray
def test_results_do_not_depend_on_the_place_of_the_actors() -> None:
    """The contract suite has actors on the driver's node, and actors on the other node."""
    make = partial(RayVectorEnv, num_workers=2)
    with make([CARTPOLE] * 8) as venv:
        assert sorted(worker.on_this_node for worker in venv.engine.backend.pool.workers) == [False, True]
    check_vector_env(make, ["rows", "mixed_rounds", "autoreset"])


@pytest.mark.ray
def test_actors_that_find_no_place_are_an_error_that_says_what_was_asked_for() -> None:
    asked = r"2 of 2 actors have not started within 1 s. Each asks for 1000 CPU; the cluster has 2 nodes with 32 CPU"
    with pytest.raises(WorkerTimeoutError, match=asked):
        RayVectorEnv([CARTPOLE] * 2, num_workers=2, num_cpus=1000, start_timeout=1)


class Pictures(CountingEnv):
    """Env that shows its state in pixels."""

    def __init__(self, env_id: int) -> None:
        super().__init__(env_id)
        self.observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)

    def _observation(self) -> np.ndarray:
        seed = [self.env_id, self.episode, self.t]
        return np.random.default_rng(seed).integers(0, 256, (4, 84, 84), np.uint8)

    def step(self, action: Any) -> Any:
        *row, info = super().step(action)
        return *row, {**info, "note": "x" * 1000 * self.env_id}


@pytest.mark.ray
def test_answers_that_are_larger_than_a_message_arrive_whole() -> None:
    """A block of 8 pictures takes 226 KB, and the last observations of its episodes take the same."""
    env_fns = [partial(Pictures, i) for i in range(16)]
    with RayVectorEnv(env_fns, num_workers=2, **FAR) as venv, DummyVectorEnv(env_fns) as other:
        assert all(worker.channel.results == 4 for worker in venv.engine.backend.pool.workers)
        assert_same(venv.reset(), other.reset(), "reset")
        for t in range(12):
            assert_same(*(each.step([0] * 16, autoreset=True) for each in (venv, other)), f"step {t}")


class HasTable(Counter):
    """Env with a private table."""

    def __init__(self, table: dict[str, np.ndarray], id: int) -> None:
        super().__init__(id)
        self.total = int(table["rows"].sum())
        table["rows"][:] = 0


@pytest.mark.ray
@pytest.mark.parametrize("options", [NEAR, FAR], ids=["driver's node", "other node"])
def test_each_env_gets_a_copy_of_an_object_that_env_fns_share(options: dict[str, Any]) -> None:
    table = {"rows": np.arange(1_000_000)}
    with RayVectorEnv([partial(HasTable, table, i) for i in range(4)], num_workers=2, **options) as venv:
        assert venv.get_env_attr("total") == [table["rows"].sum()] * 4
        venv.reset()
        os.kill(pids(venv)[0], signal.SIGKILL)
        with pytest.raises(WorkerDiedError):
            venv.step([0] * 4)
        venv.reset(venv.failed_id)
        assert venv.get_env_attr("total") == [table["rows"].sum()] * 4


@pytest.mark.ray
def test_a_worker_on_another_node_names_the_env_that_hangs() -> None:
    with RayVectorEnv(counters(3, env1=HangsElsewhere), num_workers=1, step_timeout=2.0, **FAR) as venv:
        venv.reset()
        venv.step([0] * 3)
        with pytest.raises(WorkerTimeoutError, match=r"env 1 has been busy for more than step_timeout=2.0 s") as found:
            venv.reset([1, 2])
        assert "on_reset" in str(found.value), "the stack"


WITHOUT_VECENV = """
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("vecenv", "collector"):
            raise ModuleNotFoundError(f"No module named {name.partition('.')[0]!r}", name=name)

sys.meta_path.insert(0, Hide())
"""


@pytest.mark.ray
def test_a_node_without_vecenv_is_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_VECENV)
    runtime_env = {"env_vars": {"PYTHONPATH": str(tmp_path)}}
    advice = r"no module .*: install vecenv there, .* or pass runtime_env="
    with pytest.raises(WorkerDiedError, match=advice):
        RayVectorEnv([CARTPOLE] * 2, num_workers=1, runtime_env=runtime_env, **FAR)
    actors = ActorConfig(runtime_env=runtime_env, num_cpus=0.1)
    with pytest.raises(WorkerDiedError, match=advice):
        RayCollector([CARTPOLE] * 2, num_actors=1, frames_per_batch=8, actors=actors)


@pytest.mark.ray
def test_facades_take_it() -> None:
    envs = make_vec("CartPole-v1", 4, backend="ray", venv_kwargs={"num_workers": 2})
    assert envs.reset(seed=0)[0].shape == (4, 4)
    assert envs.step(envs.action_space.sample())[0].shape == (4, 4)
    envs.close()
    sb3 = SB3VecEnv(RayVectorEnv([CARTPOLE] * 2, num_workers=1))
    assert sb3.reset().shape == (2, 4)
    sb3.close()


@pytest.mark.ray
def test_collectors_take_it() -> None:
    with (
        SyncDataCollector(RayVectorEnv([CARTPOLE] * 4, num_workers=2), lean, frames_per_batch=80) as collector,
        SyncDataCollector(DummyVectorEnv([CARTPOLE] * 4), lean, frames_per_batch=80) as other,
    ):
        assert collector.set_seed(3) == other.set_seed(3)
        for _ in range(2):
            assert_equal(arrays(collector.next()), arrays(other.next()))
    with AsyncDataCollector([CARTPOLE] * 4, lean, frames_per_batch=80, backend="ray") as collector:
        assert collector.next().frames == 80


DRIVER = """
import sys
from tests.support.faulty import counters
from tests.support.local_ray import connect
from vecenv import RayVectorEnv

connect(sys.argv[1])
with RayVectorEnv(counters(4), num_workers=2) as venv:
    venv.reset()
    print(*venv.get_env_attr("pid"), flush=True)
    for _ in range(int(sys.argv[2])):
        venv.step([0] * 4)
    print(venv.get_env_attr("t"), flush=True)
"""


@contextmanager
def driver(address: str, rounds: float) -> Iterator[tuple[subprocess.Popen[str], set[int]]]:
    """Start another driver on the same Ray, which steps its envs. Yield its process and its actors."""
    command = [sys.executable, "-c", DRIVER, address, str(rounds)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, {int(pid) for pid in process.stdout.readline().split()}
        process.kill()


@pytest.mark.ray
def test_two_drivers_use_one_cluster(ray_address: str) -> None:
    with driver(ray_address, 100) as (other, _), RayVectorEnv(counters(4), num_workers=2) as venv:
        ledger = Ledger(venv)
        ledger.begin()
        for _ in range(100):
            assert ledger.round() == []
        assert other.communicate()[0] == "[100, 100, 100, 100]\n"
        assert other.returncode == 0


@pytest.mark.ray
def test_no_actor_outlives_a_driver_that_is_killed(ray_address: str) -> None:
    with driver(ray_address, 10**9) as (killed, actors):
        assert len(actors) == 2
        killed.kill()
        assert all(gone(pid, 30) for pid in actors)


@pytest.mark.ray
def test_the_cluster_file_of_the_examples_is_one_for_ray_up() -> None:
    """Ray's own check of cluster files accepts the file."""
    import yaml
    from ray.autoscaler._private.util import prepare_config, validate_config

    file = ROOT / "examples" / "cluster.yaml"
    config = prepare_config(yaml.safe_load(file.read_text()))
    validate_config(config)
    assert config["provider"]["worker_ips"] == ["10.0.0.2", "10.0.0.3"]
    assert config["max_workers"] == 2
