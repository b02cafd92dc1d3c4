"""Which jobs a cluster can play, and the connection to it."""

from __future__ import annotations

import re
import signal
import socket

from collector.job.job import Job, JobError
from collector.job.make_envs import with_statistics
from vecenv.ray_cluster import RayCluster, connect


def check_cluster(job: Job, cluster: str | None, actors: int | None) -> None:
    """Raise `JobError` for a job that cannot be played by so many actors (None: as many as find a place)."""
    if cluster is None:
        if actors is not None:
            raise JobError(f'cluster_actors = {actors} are for a cluster: pass cluster = "auto" too (--cluster auto)')
        return
    if actors is not None and actors < 1:
        raise JobError(f"cluster_actors must be at least 1, got {actors}")
    if names := with_statistics(job):
        raise JobError(
            f"the statistics of {', '.join(names)} go from one episode to the next, and each actor of a cluster would "
            'have its own: freeze them (frozen = "statistics.json"), or run the job without --cluster'
        )
    if job.backend == "ray":
        raise JobError(
            'backend = "ray" puts each env into an actor, and with --cluster whole episodes are given to actors: leave '
            'it out, or name the backend of each actor, such as backend = "shmem"'
        )
    if job.device not in ("auto", "cpu", "cuda"):
        raise JobError(f'device = "{job.device}": an actor sees its own GPU only; use device = "cuda"')


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


def device_of_actors(job: Job) -> str:
    """Where the policies run: on GPUs only where the job asks for them."""
    return "cpu" if job.device == "auto" else job.device
