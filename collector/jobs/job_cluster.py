"""The cluster of a job: check that the job can run there, connect, and name what Ray reserves for a task."""

from __future__ import annotations

import re
import signal
import socket
from typing import Any

from collector.jobs.builders import with_statistics
from collector.jobs.job import Job, JobError
from vecenv.extending import RayCluster, connect


def check_cluster(job: Job, cluster: str | None, actors: int | None) -> None:
    """Raise `JobError` for a job that cannot be played by so many tasks (None: as many as find a place)."""
    if cluster is None:
        if actors is not None:
            raise JobError(f'cluster_actors = {actors} are for a cluster: pass cluster = "auto" too (--cluster auto)')
        return
    if actors is not None and actors < 1:
        raise JobError(f"cluster_actors must be at least 1, got {actors}")
    if names := with_statistics(job):
        raise JobError(
            f"the statistics of {', '.join(names)} go from one episode to the next, and each task on a cluster would "
            'have its own: freeze them (frozen = "statistics.json"), or run the job without --cluster'
        )
    if job.backend == "ray":
        raise JobError(
            'backend = "ray" puts each env into an actor, and with --cluster whole episodes are given to tasks: leave '
            'it out, or name the backend of each task, such as backend = "shmem"'
        )
    if job.device not in ("auto", "cpu", "cuda"):
        raise JobError(f'device = "{job.device}": a task sees its own GPU only; use device = "cuda"')


def connect_to(address: str) -> RayCluster:
    """Connect to the cluster of a job. Raises `JobError` where there is none."""
    try:
        if re.fullmatch(r"[\w.-]+:\d+", address):
            host, port = address.split(":")
            socket.create_connection((host, int(port)), timeout=5.0).close()  # Ray itself tries for minutes
        return connect(address)
    except SystemExit:  # what Ray makes of a SIGTERM while it starts
        raise SystemExit(128 + signal.SIGTERM) from None
    except OSError as error:
        raise JobError(
            f'there is no Ray cluster at {address!r}: {error}; --cluster takes "auto", or the address of one, such '
            "as 10.0.0.1:6379"
        ) from error


def task_options(job: Job) -> dict[str, Any]:
    """Return what Ray reserves for each task, and its environment, as `ray.remote` takes them."""
    ray, options = job.ray, dict[str, Any]()
    options["num_cpus"] = (job.num_workers or 1) if ray.num_cpus is None else ray.num_cpus
    options["num_gpus"] = int(device_of_tasks(job) == "cuda") if ray.num_gpus is None else ray.num_gpus
    given = {name: getattr(ray, name) for name in ("memory", "resources", "runtime_env")}
    return options | {name: value for name, value in given.items() if value} | {"scheduling_strategy": ray.scheduling}


def device_of_tasks(job: Job) -> str:
    """The device of the policies: a GPU only where the job asks for them."""
    return "cpu" if job.device == "auto" else job.device
