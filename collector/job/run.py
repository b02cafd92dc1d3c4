"""A collection job: whole episodes of one env, written to a folder until there are enough steps.

What is stored are whole episodes only: each ends with `terminated` or `truncated` in its last row. Episodes that are
in progress when the job ends are counted and left out; their length would depend on when the job stopped.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from collector.episodes.episode import EpisodeCutter
from collector.interruptor import Interruptor, StopSignals
from collector.job.store import PICTURE, DatasetWriter, check_folder, check_storable, prepare_folder
from collector.policy.random_policy import RandomPolicy
from collector.sync_collector import SyncDataCollector
from vecenv.envs.gym_env import find_spec
from vecenv.tuning.auto_backend import VECTOR_ENVS
from vecenv.venvs import DummyVectorEnv

BATCH_BYTES = 64 * 2**20
POLICIES = {"mlp": "a network with random weights, not trained", "random": "uniform random actions"}
DEVICES = ("auto", "cpu", "cuda")


class JobError(RuntimeError):
    """A job cannot run with its settings; the message has the reason, and what to change."""


@dataclass(frozen=True)
class JobConfig:
    """What to collect, how, and where to."""

    env: str
    """A gymnasium id, such as "CartPole-v1" or "my_module:MyEnv-v0"."""
    out: Path
    """The folder for the episodes; made if it does not exist."""
    steps: int = 50_000
    """End once whole episodes with this many steps are collected."""
    num_envs: int = 8
    backend: str = "shmem"
    """"dummy" (in this process), "thread" (in its threads), "subproc" or "shmem" (in worker processes); "auto": "dummy"
    or "shmem", whichever is faster, for which one env more is made in a worker."""
    workers: int | None = None
    """Worker processes; None: the backend's own choice."""
    policy: str = "mlp"
    """"mlp": a small network with random weights, which does not learn. "random": uniform random actions."""
    device: str = "auto"
    """Where the network runs: "auto" (CUDA where there is one), "cpu" or "cuda"."""
    policy_threads: int | None = 1
    """Threads of torch for the network on the CPU; None: as many as torch uses elsewhere. Its actions may depend on the
    number, because sums are added up in another order."""
    seed: int = 0
    max_episode_steps: int | None = None
    """Truncate episodes at this length; None: at the limit of the env."""
    plot: bool = True
    """Draw the returns over time."""
    overwrite: bool = False
    """Replace what an earlier job wrote to `out`."""
    shard_bytes: int = 64 * 2**20
    """Commit a shard when its episodes are this large,"""
    shard_seconds: float = 30.0
    """or when the last one is this old. A job that is killed loses what it has not committed."""


@dataclass
class JobState:
    """The progress of a job, passed to `on_progress` and returned at its end."""

    config: JobConfig
    steps: int = 0
    """Steps of the whole episodes so far."""
    returns: list[float] = field(default_factory=list)
    """The return of each episode, in the order of their ends."""
    lengths: list[int] = field(default_factory=list)
    seconds: float = 0.0
    """Since the first step."""
    unfinished_steps: int = 0
    """Steps of episodes that have begun and not ended: not stored."""
    bottleneck: str = ""
    """What most of the time goes to, and its share: "envs 80 %"; "idle" is the writing of episodes."""
    workers: int = 1
    device: str = "cpu"
    status: str = "failed"
    """"complete" or "interrupted" once the job has ended so; "failed" before."""
    signum: int = 0
    """The signal that ended the job; 0: none did."""
    manifest: dict[str, Any] = field(default_factory=dict)
    picture: Path | None = None

    @property
    def steps_per_second(self) -> float:
        """Steps collected a second, those of unfinished episodes too."""
        return (self.steps + self.unfinished_steps) / self.seconds if self.seconds else 0.0


def run_job(config: JobConfig, on_progress: Callable[[JobState], None] = lambda state: None) -> JobState:
    """Collect, write, draw; return what was done. Signals end it cleanly only in the main thread.

    `on_progress` is called after every batch. A signal, or an exception while collecting, still commits the whole
    episodes so far. Raises `DatasetError` where the folder cannot be used, `JobError` where the settings or the env do
    not allow the job or a library is missing, and whatever the env raises.

    Example::

        state = run_job(JobConfig("CartPole-v1", Path("data/cartpole"), steps=10_000))
        print(len(state.returns), "episodes", state.status)
    """
    _check_libraries(config)
    _check_env(config.env)
    state = JobState(config, device=_device(config))
    check_folder(config.out, config.overwrite)
    with StopSignals() as stop, _make_env(config) as env:
        state.workers = 0 if isinstance(env, DummyVectorEnv) else env.num_workers
        policy = _make_policy(config, env, state.device)
        frames = env.env_num * _steps_per_batch(config, env)
        with SyncDataCollector(
            env, policy, frames_per_batch=frames, interruptor=stop, policy_threads=config.policy_threads
        ) as batches:
            batches.set_seed(config.seed)
            # Now that the job can run: this is the end of the old episodes.
            prepare_folder(config.out, config.overwrite)
            writer = DatasetWriter(config.out, _config_record(state))
            try:
                _collect(state, batches, writer, stop, on_progress)
                state.status = "complete"
                if state.steps < config.steps:
                    state.status, state.signum = "interrupted", stop.signum
            except KeyboardInterrupt:
                state.status = "interrupted"
                raise
            finally:
                writer.close(state.status)
                state.manifest = writer.manifest
    if config.plot and state.returns:
        state.picture = _draw(state)
    return state


def _collect(
    state: JobState,
    batches: SyncDataCollector,
    writer: DatasetWriter,
    stop: Interruptor,
    on_progress: Callable[[JobState], None],
) -> None:
    """Collect until there are enough steps or a signal came; commit a shard whenever it is due."""
    config, cutter = state.config, EpisodeCutter()
    began = committed = time.monotonic()
    frames = 0
    while state.steps < config.steps and not stop.collection_stopped():
        batch = batches.rollout()
        if not frames:
            check_storable((batch.all_obs, batch.action))
        episodes = cutter.cut(batch)
        writer.add(episodes)
        state.returns += [episode.total_reward for episode in episodes]
        state.lengths += [len(episode) for episode in episodes]
        state.steps += sum(len(episode) for episode in episodes)
        frames += batch.frames
        state.unfinished_steps = frames - state.steps
        now = time.monotonic()
        state.seconds = now - began
        state.bottleneck = batches.stats().bottleneck_share
        if writer.waiting_bytes >= config.shard_bytes or now - committed >= config.shard_seconds:
            writer.commit()
            committed = now
        on_progress(state)


def _check_libraries(config: JobConfig) -> None:
    """Raise `JobError` with what to install, rather than at the end of an hour's collection."""
    try:
        if config.plot:
            import collector.job.plot
        if config.policy == "mlp":
            import collector.policy.mlp  # noqa: F401
    except ImportError as error:
        raise JobError(str(error)) from None


def _check_env(env: str) -> None:
    if ":" in env:
        return  # what is behind a module name is known once that is imported, in the workers
    try:
        find_spec(env)
    except gymnasium.error.Error as error:
        raise JobError(f"there is no env {env}: {error}") from None


def _device(config: JobConfig) -> str:
    """The device that the policy runs on."""
    if config.policy == "random":
        return "cpu"
    from collector.device.tensors import resolve_device

    try:
        return str(resolve_device(config.device))
    except ValueError as error:
        raise JobError(str(error)) from None


def _make_env(config: JobConfig) -> Any:
    make = partial(gymnasium.make, config.env, max_episode_steps=config.max_episode_steps)
    workers = {} if config.backend == "dummy" else {"num_workers": config.workers}
    try:
        return VECTOR_ENVS[config.backend]([make] * config.num_envs, **workers)
    except (gymnasium.error.Error, ImportError) as error:
        raise JobError(f"{config.env} cannot be made: {error}") from None


def _make_policy(config: JobConfig, env: Any, device: str) -> Any:
    """The policy for the collector; None for random actions."""
    try:
        if config.policy == "random":
            RandomPolicy(env.action_space)  # which refuses the spaces that it cannot draw from
            return None
        import torch

        from collector.policy.mlp import MLPPolicy

        torch.manual_seed(config.seed)
        return MLPPolicy(env.observation_space[0], env.action_space[0]).to(device)
    except TypeError as error:
        hint = "" if config.policy == "random" else "; the random policy may do"
        raise JobError(f"{config.env}: {error}{hint}") from None


def _steps_per_batch(config: JobConfig, env: Any) -> int:
    """64, or fewer where a batch would be large for the memory or the job."""
    rows = config.num_envs * max(1, _bytes_of(env.observation_space[0]))
    return max(1, min(64, BATCH_BYTES // rows, -(-config.steps // config.num_envs)))


def _bytes_of(space: gymnasium.Space[Any]) -> int:
    """Size of one observation, roughly where the space has no fixed one."""
    if isinstance(space, gymnasium.spaces.Dict):
        return sum(_bytes_of(part) for part in space.values())
    if isinstance(space, gymnasium.spaces.Tuple):
        return sum(_bytes_of(part) for part in space.spaces)
    return int(np.prod(space.shape)) * np.dtype(space.dtype).itemsize if space.shape is not None else 8


def _config_record(state: JobState) -> dict[str, Any]:
    """The settings and versions that another run would need."""
    config = {**asdict(state.config), "out": str(state.config.out), "workers": state.workers, "device": state.device}
    for name in ("plot", "overwrite", "shard_bytes", "shard_seconds"):
        del config[name]
    versions = {"python": platform.python_version(), "numpy": np.__version__, "gymnasium": gymnasium.__version__}
    return {**config, "versions": versions}


def _draw(state: JobState) -> Path:
    from collector.job.plot import draw_returns

    path = state.config.out / PICTURE
    draw_returns(path, state.returns, state.lengths, f"{state.config.env}, {POLICIES[state.config.policy]}")
    return path
