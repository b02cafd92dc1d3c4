"""`python -m tests.fuzz.ray_kills`: as `tests.fuzz.kills`, but kill drivers and tasks on a Ray cluster.

When a task's process makes its first env, it writes its pid into the folder of orders. If the folder has an order, the
process takes the order, and kills itself at the named system call of a commit.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

from tests.fuzz import kills

ACTORS = 2
_knows_orders = False


def cartpole(orders: str) -> gymnasium.Env[Any, Any]:
    """CartPole, in an actor that obeys."""
    global _knows_orders
    if not _knows_orders:
        _knows_orders = True
        folder = Path(orders)
        taken = folder / f"taken-{os.getpid()}"
        with open(folder / "pids", "a") as file:
            file.write(f"{os.getpid()}\n")
        with suppress(FileNotFoundError):
            (folder / "order").rename(taken)
            kills.arm(taken.read_text(), lambda: taken.rename(folder / f"done-{os.getpid()}"))
    return gymnasium.make("CartPole-v1")


@dataclass(frozen=True)
class RayJobs(kills.LocalJobs):
    """Jobs on the cluster with this address. Without an address they run in this process."""

    backend: str = "dummy"
    address: str = ""

    def settings(self, out: Path) -> dict[str, Any]:
        logging.getLogger("vecenv").setLevel(logging.ERROR)  # it warns of actors that die
        orders = out.parent / "orders"
        orders.mkdir(exist_ok=True)
        kwargs = {"orders": str(orders)}
        return {"env": "tests.fuzz.ray_kills:cartpole", "env_kwargs": kwargs, "backend": self.backend}

    def options(self) -> dict[str, Any]:
        return {"cluster": self.address, "cluster_actors": ACTORS} if self.address else {}

    def undisturbed(self) -> RayJobs:
        return RayJobs()

    def kill_until_complete(self, out: Path, episodes: int, rng: random.Random) -> Iterator[bool]:
        """Kill the driver, an actor or both, and resume the job until it is complete."""
        orders = out.parent / "orders"
        orders.mkdir(exist_ok=True)
        committed: set[int] = set()
        while True:
            for path in orders.iterdir():
                path.unlink()
            driver, actor = rng.choice([(True, False), (False, True), (True, True)])
            inject = rng.random() < 2 / 3
            if actor and inject:
                (orders / "order").write_text(kills.moment(rng))
            running = kills.start(out, self, episodes, kills.moment(rng) if driver and inject else "")
            outside = 0
            if not inject:
                kills.wait_for_growth(out, running)
                time.sleep(rng.random() * 0.2)
                outside = actor and kill_an_actor(orders, rng)
                if driver:
                    time.sleep(rng.random() * 0.5)
                    running.kill()
            code = kills.finish(running, (0, -signal.SIGKILL))
            committed = kills.check(out, committed)
            yield from [False] * outside
            yield from [True] * len(list(orders.glob("done-*")))
            if code == 0:
                return
            yield inject


def kill_an_actor(orders: Path, rng: random.Random) -> int:
    """Kill one that runs; how many were killed: 1 or 0."""
    file = orders / "pids"
    pids = [int(line) for line in file.read_text().split()] if file.exists() else []  # all may be there already
    for pid in rng.sample(pids, len(pids)):
        with suppress(OSError):
            if b"play_range" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
                return 1
    return 0


@contextmanager
def cluster() -> Iterator[str]:
    """Start a Ray on this machine with more CPUs than the machine has, and yield its address."""
    os.environ["RAY_AUTH_MODE"] = "disabled"  # a token is for the process that starts Ray, and its children
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2 * ACTORS, "include_dashboard": False})
    try:
        yield str(made.address)
    finally:
        made.shutdown()


def main() -> None:
    options = kills.parser(__doc__, 30).parse_args()
    with cluster() as address:
        kills.report("ray", RayJobs(address=address), options.kills, options.seed)


if __name__ == "__main__":
    main()
