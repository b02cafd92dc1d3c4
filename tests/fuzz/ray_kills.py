"""The part of `tests.fuzz.kills` on a Ray cluster: drivers and actors are killed.

An actor finds orders in a folder when it makes its first env: it writes its pid there, and where there is an order to
kill itself at a system call of a commit, it takes it.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import gymnasium

from tests.fuzz import kills

ACTORS = 2
PREFIX = "ray@"
"""Of the name of a backend, before the address of the cluster."""
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


def settings(orders: Path) -> dict[str, Any]:
    """Of the job, in the place of those of a local one: envs in the process of the actor."""
    orders.mkdir(exist_ok=True)
    return {"env": "tests.fuzz.ray_kills:cartpole", "env_kwargs": {"orders": str(orders)}, "backend": "dummy"}


def kill_until_complete(out: Path, backend: str, episodes: int, rng: random.Random) -> Iterator[bool]:
    """As `kills.kill_until_complete`: at a time the driver or an actor is killed, or both."""
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
        running = kills.start(out, backend, episodes, kills.moment(rng) if driver and inject else "")
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
    """A Ray on this machine, which has more CPUs than there are: it gives the name of the backend."""
    os.environ["RAY_AUTH_MODE"] = "disabled"  # a token is for the process that starts Ray, and its children
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2 * ACTORS, "include_dashboard": False})
    try:
        yield PREFIX + made.address
    finally:
        made.shutdown()
