"""`RolloutActor`: a `SyncDataCollector` in a Ray worker process, for a `RayCollector`."""

from __future__ import annotations

import os
import random
import socket
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from collector.basics.interruptor import Interruptor, stop_when_host_ends
from collector.collectors.sync_collector import SyncDataCollector
from collector.policy.weights import take_over
from vecenv import nest

Columns = dict[str, Any]
STEPS = ["all_obs", "action", "reward", "terminated", "truncated", "traj_ids", "step_count", "policy_version"]
STEPS += ["mask", "broken", "extras"]
"""Fields of `Rollout` with the dimensions env and time."""
OTHERS = ["env_ids", "broken_ids", "episode_returns", "final_obs", "final_env", "final_time"]
"""Fields of `Rollout` with a row per env or ended episode."""


class Started(NamedTuple):
    env_num: int
    frames: int
    """Steps per rollout."""


class RolloutReport(NamedTuple):
    seconds: float
    waited: float
    """Seconds that the actor was idle before the rollout."""
    frames: int
    """Steps of the rollout, fewer than `Started.frames` if it ended early."""
    leaves: bool
    """True if the actor's host ends soon. Each rollout then ends after one step per env."""


class RolloutActor:
    def __init__(self, index: int, count: int) -> None:
        self._index, self._count = index, count
        self._collector: SyncDataCollector = None  # type: ignore[assignment]  # until `start`
        self._interruptor, self._host_watch = Interruptor(), threading.Event()
        self._idle_since = 0.0

    def __repr__(self) -> str:
        return f"RolloutActor({self._index} of {self._count})"

    def whereabouts(self) -> tuple[int, str]:
        return os.getpid(), socket.gethostname()

    def start(
        self,
        pickled: bytes,
        env_kwargs: dict[str, Any],
        entropy: Sequence[int],
        seed: tuple[int, bool] | None,
        next_id: int,
        import_path: Sequence[str] = (),
        may_leave: bool = False,
    ) -> Started:
        """Make the vector env and the collector. Exceptions here, unlike in `__init__`, reach the driver unchanged.

        Args:
            pickled: Pickled `(make_venv, policy, options)`.
            env_kwargs: Arguments for `make_venv`.
            entropy: Seed of the global generators.
            seed: `first` and `static_seed` of `set_seed`, or None.
            next_id: Lower bound for ids of new episodes.
            import_path: The driver's `sys.path`, searched last. Ray passes only part of it.
            may_leave: End the rollout early when Ray announces the end of this host.
        """
        sys.path += [folder for folder in import_path if folder not in sys.path]
        make_venv, policy, options = cloudpickle.loads(pickled)
        self._seed_generators(entropy)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="frames_per_batch=")  # the driver warns
            # Rollouts reuse memory, because Ray copies each before the next begins.
            self._collector = SyncDataCollector(
                make_venv,
                policy,
                create_env_kwargs=env_kwargs,
                return_same_td=True,
                interruptor=self._interruptor,
                **options,
            )
        if next_id:
            self.skip_to(next_id)
        if seed is not None:
            self.set_seed(entropy, *seed)
        if may_leave:
            self._host_watch = stop_when_host_ends(self._interruptor)
        self._idle_since = time.perf_counter()
        return Started(self._collector.env.env_num, self._collector.frames_per_batch)

    def set_seed(self, entropy: Sequence[int], first: int, static_seed: bool) -> None:
        self._collector.set_seed(first, static_seed)
        self._seed_generators(entropy)

    def reset(self) -> None:
        self._collector.reset()

    def skip_to(self, next_id: int) -> None:
        index = -(-next_id // (self._count * self._collector.env.env_num))
        nothing: dict[str, Any] = {"env_state_dict": {}, "frames": 0, "iter": 0}
        self._collector.load_state_dict({**nothing, "traj_pool": index * self._collector.env.env_num}, strict=False)

    def collect(self, version: int, weights: Any, random_actions: bool) -> tuple[RolloutReport, Columns]:
        """Collect a rollout. `weights` is None if the actor already has this version.

        Arrays of `STEPS` have the shape `(time, env, ...)`, which is contiguous, so Ray needs no further copy. Ids of
        envs and episodes are unique among all actors. If the rollout ends early, missing steps are zero, with -1 as
        `traj_ids`.
        """
        begin = time.perf_counter()
        waited = begin - self._idle_since
        if weights is not None:
            take_over(self._collector, weights)
        self._collector.init_random_frames = sys.maxsize if random_actions else 0
        batch = self._collector.rollout()
        batch = replace(
            batch,
            env_ids=batch.env_ids + self._index * self._collector.env.env_num,
            traj_ids=self._number(batch.traj_ids),
            broken_ids=self._number(batch.broken_ids),
            policy_version=np.where(batch.random, -1, version),
        )
        columns = {name: nest.map(lambda rows: rows.swapaxes(0, 1), getattr(batch, name)) for name in STEPS}
        envs, steps = batch.shape
        if missing := self._collector.frames_per_batch // envs - steps:
            columns = nest.map(
                lambda rows: np.concatenate([rows, np.zeros_like(rows, shape=(missing, *rows.shape[1:]))]), columns
            )
            columns["traj_ids"][steps:] = -1
        columns |= {name: getattr(batch, name) for name in OTHERS}
        self._idle_since = time.perf_counter()
        leaves = self._interruptor.collection_stopped()
        return RolloutReport(self._idle_since - begin, waited, envs * steps, leaves), columns

    def close(self) -> None:
        self._host_watch.set()
        if self._collector is not None:
            self._collector.shutdown()

    def _number(self, ids: np.ndarray) -> np.ndarray:
        env_num = self._collector.env.env_num
        index, env = np.divmod(ids, env_num)
        return (index * self._count + self._index) * env_num + env

    def _seed_generators(self, entropy: Sequence[int]) -> None:
        state = np.random.SeedSequence([*entropy, self._index]).generate_state(18)
        np.random.seed(state[:8])
        random.seed(state[8:16].tobytes())
        if (torch := sys.modules.get("torch")) is not None:
            torch.manual_seed(int(state[16:].view(np.uint64)[0]))
