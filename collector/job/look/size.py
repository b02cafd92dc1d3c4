"""How much a job will write: from the sizes of a first batch, before there is a folder."""

from __future__ import annotations

import time
import zlib
from typing import Any

import msgspec
import numpy as np

from collector.episodes.seeds import EpisodeSeeds
from collector.job.job import Job, JobError
from collector.job.make_envs import make_venv
from collector.job.playing import is_of_env, steps_per_batch
from collector.job.policies import make_policy, resolve_device
from collector.job.stopping import Stopping
from collector.sync_collector import SyncDataCollector
from vecenv import nest

SAMPLE = 2**20
"""Bytes of an array that are compressed at its begin, in its middle and at its end, to know how small it becomes."""
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def bytes_of_step(steps: Any, compressed: bool) -> float:
    """Bytes that a step of an episode, or of a flat batch, takes in a shard, about; compressed ones by a sample.

    >>> from collector.episodes.episode import Episode
    >>> zeros, flags = np.zeros(8), np.zeros(8, bool)
    >>> bytes_of_step(Episode(np.zeros((8, 4), np.float32), zeros, zeros, flags, flags, 0), compressed=False)
    34.0
    """
    arrays = [*nest.leaves(steps.obs), *nest.leaves(steps.action), steps.reward, steps.terminated, steps.truncated]
    return sum(array.nbytes * (_ratio(array) if compressed else 1.0) for array in arrays) / max(1, len(steps.reward))


def _ratio(array: np.ndarray) -> float:
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    places = {0, max(0, len(content) - SAMPLE) // 2, max(0, len(content) - SAMPLE)}
    samples = [content[place : place + SAMPLE].tobytes() for place in places]
    whole, small = (sum(map(len, each)) for each in (samples, map(zlib.compress, samples)))
    return small / max(1, whole)


def job_bytes(job: Job, bytes_a_step: float, mean_length: float | None) -> float | None:
    """Bytes of all episodes of a job; None where it is not known how long they are."""
    if job.steps is not None:
        return job.steps * bytes_a_step
    assert job.episodes is not None
    return None if mean_length is None else job.episodes * mean_length * bytes_a_step


def measure_size(job: Job, seconds: float = 1.0) -> dict[str, Any]:
    """Collect for so long without a folder, and say how much the job will write: JSON types.

    `bytes_per_step`, and those with and without `compress`; `steps_per_second`, `bytes_per_hour`; `bytes` of the whole
    job, None where no episode has ended. Envs of Ray are measured in worker processes of this machine. Raises
    `JobError` where the env cannot be made or stepped.
    """
    if job.backend in ("ray", "auto"):
        job = msgspec.structs.replace(job, backend="shmem")
    stop, lengths, frames, took = Stopping(seconds), list[int](), 0, 0.0
    try:
        with make_venv(job) as venv:
            policy = make_policy(job, venv.observation_space[0], venv.action_space[0], resolve_device(job))
            with SyncDataCollector(
                venv,
                policy,
                frames_per_batch=venv.env_num * steps_per_batch(job, venv),
                interruptor=stop,
                policy_threads=job.policy_threads,
                episode_seeds=EpisodeSeeds(job.seed),
            ) as batches:
                stop.begin_slice()
                while not frames or not stop.collection_stopped():
                    began = time.monotonic()
                    batch = batches.rollout()
                    took += time.monotonic() - began
                    frames += batch.frames
                    lengths += (batch.step_count[batch.done] + 1).tolist()
    except Exception as error:
        if is_of_env(error) and not isinstance(error, JobError):
            raise JobError(f"{job.env} fails in its first steps: {type(error).__name__}: {error}") from error
        raise
    plain, small = (bytes_of_step(batch.flatten(), compressed) for compressed in (False, True))
    stored = small if job.compress else plain
    whole = job_bytes(job, stored, float(np.mean(lengths)) if lengths else None)
    return {
        "bytes_per_step": round(stored, 1),
        "plain_bytes_per_step": round(plain, 1),
        "compressed_bytes_per_step": round(small, 1),
        "steps_per_second": round(frames / took, 1),
        "bytes_per_hour": round(stored * frames / took * 3600),
        "bytes": None if whole is None else round(whole),
        "in_words": in_words(whole, stored, frames / took),
    }


def in_words(nbytes: float | None, bytes_a_step: float, steps_per_second: float) -> str:
    """A size in words.

    >>> in_words(3 * 2**30, 34.0, 1000.0)
    'about 3.0 GiB for the job: 34 bytes a step, 116.7 MiB an hour at 1,000 steps/s'
    """
    whole = "" if nbytes is None else f"{as_size(nbytes)} for the job: "
    hourly = as_size(bytes_a_step * steps_per_second * 3600)
    return f"about {whole}{as_size(bytes_a_step)} a step, {hourly} an hour at {steps_per_second:,.0f} steps/s"


def as_size(nbytes: float) -> str:
    """Bytes in the unit that fits.

    >>> as_size(17.0), as_size(2048)
    ('17 bytes', '2.0 KiB')
    """
    unit = 0
    while nbytes >= 1024 and unit < len(UNITS) - 1:
        nbytes, unit = nbytes / 1024, unit + 1
    return f"{nbytes:,.0f} bytes" if unit == 0 else f"{nbytes:,.1f} {UNITS[unit]}"
