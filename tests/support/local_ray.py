"""Local Ray with two nodes, for all processes of a test run. The tests run on the node NEAR. The second node is FAR.

A separate process starts Ray, and stops Ray when the last user has ended, even by a kill: each user holds a shared lock
on a file, and the process waits for the exclusive lock. The process is not a child of a test process, so that the check
for leaked processes does not see Ray.
"""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NUM_CPUS = 16
"""More CPUs than the machine has, because several test processes place actors at the same time."""
START_TIMEOUT = 120.0
# A token is valid only for the process that starts Ray and its children. Other test processes are not its children.
os.environ["RAY_AUTH_MODE"] = "disabled"

HEAD = f"""
import fcntl, os, sys
if os.fork():
    os._exit(0)
os.setsid()
lock, address = sys.argv[1:]
from ray.cluster_utils import Cluster
head = dict(num_cpus={NUM_CPUS}, resources={{"near": 100}}, include_dashboard=False)
cluster = Cluster(initialize_head=True, head_node_args=head)
cluster.add_node(num_cpus={NUM_CPUS}, resources={{"far": 100}})
with open(address + ".new", "w") as file:
    file.write(cluster.address)
os.rename(address + ".new", address)
with open(lock) as file:
    fcntl.flock(file, fcntl.LOCK_EX)
cluster.shutdown()
"""

NEAR: dict[str, Any] = {"resources": {"near": 0.01}}
FAR: dict[str, Any] = {"resources": {"far": 0.01}}
"""Arguments of RayVectorEnv that place all actors on a single node. By default, actors are spread over both nodes."""


def start(folder: Path) -> tuple[str, Any]:
    """Return the address of this test run's Ray, and an object to keep open while it is used. The first caller starts
    Ray.
    """
    folder.mkdir(parents=True, exist_ok=True)
    users, address = open(folder / "users", "a"), folder / "address"  # noqa: SIM115  kept open
    fcntl.flock(users, fcntl.LOCK_SH)
    with open(folder / "start", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not address.exists():
            environ = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
            environ["RAY_worker_niceness"] = "0"
            arguments = [str(folder / "users"), str(address)]
            quiet = subprocess.DEVNULL
            subprocess.run([sys.executable, "-c", HEAD, *arguments], env=environ, check=True, stdin=quiet, stdout=quiet)
            deadline = time.monotonic() + START_TIMEOUT
            while not address.exists():
                assert time.monotonic() < deadline, "the local Ray did not start"
                time.sleep(0.05)
    return address.read_text(), users


def connect(address: str) -> None:
    import ray

    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
