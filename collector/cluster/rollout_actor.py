"""Actor of a `RayCollector`: a local collector that runs in a Ray worker process.

Actor a of A, with N envs, has the envs a * N ... a * N + N - 1 of a vector env of A * N. Nothing here imports ray: the
class also works as it is, in the process that makes it.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from collector.collectors.sync_collector import SyncDataCollector
from collector.policy.weights import take_over
from vecenv import nest
from vecenv.extending import seed_generators

Columns = dict[str, Any]
STEPS = ["all_obs", "action", "reward", "terminated", "truncated", "traj_ids", "step_count", "policy_version"]
STEPS += ["mask", "broken", "extras"]
"""The entries of a rollout with a row for each env and a column for each step."""
OTHERS = ["env_ids", "broken_ids", "final_obs", "final_env", "final_time"]
"""Entries that belong to envs, or to ends of episodes."""


class Started(NamedTuple):
    """Report of an actor once its vector env is made."""

    env_num: int
    frames: int
    """Steps in each of its rollouts."""


class RolloutReport(NamedTuple):
    """Report of an actor with each rollout, beside its arrays."""

    seconds: float
    """Seconds of collecting."""
    waited: float
    """Seconds in which the actor had nothing to do before."""


class RolloutActor:
    """Collects rollouts with a vector env and a copy of the policy of its own."""

    def __init__(self, index: int, count: int) -> None:
        self._index, self._count = index, count
        self._collector: SyncDataCollector = None  # type: ignore[assignment]  # until `start`
        self._idle_since = 0.0

    def whereabouts(self) -> tuple[int, str]:
        """The pid of this process, and the name of its machine."""
        return os.getpid(), socket.gethostname()

    def start(
        self,
        pickled: bytes,
        env_kwargs: dict[str, Any],
        entropy: Sequence[int],
        seed: tuple[int, bool] | None,
        next_id: int,
        import_path: Sequence[str] = (),
    ) -> Started:
        """Make the vector env and the collector. Constructors raise here, not in `__init__`, so that their exception
        reaches the driver as it is.

        pickled: `(make_venv, policy, options)`, the arguments of a `SyncDataCollector`. seed: as for `set_seed`, or
        None. env_kwargs: for `make_venv`. next_id: episodes get no id below it. import_path: `sys.path` of the driver,
        searched last: Ray passes on no more of it than the folder of the script and the current one.
        """
        sys.path += [folder for folder in import_path if folder not in sys.path]
        make_venv, policy, options = cloudpickle.loads(pickled)
        self._seed_generators(entropy)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="frames_per_batch=")  # the driver warns, once
            # Recorded in the same memory each time: Ray copies a rollout into its store before the next begins.
            self._collector = SyncDataCollector(
                make_venv, policy, create_env_kwargs=env_kwargs, return_same_td=True, **options
            )
        if next_id:
            self.skip_to(next_id)
        if seed is not None:
            self.set_seed(entropy, *seed)
        self._idle_since = time.perf_counter()
        return Started(self._collector.env.env_num, self._collector.frames_per_batch)

    def set_seed(self, entropy: Sequence[int], first: int, static_seed: bool) -> None:
        """Seed the envs with the chain that begins with `first`, and the generators of this process, from which the
        policy may draw.
        """
        self._collector.set_seed(first, static_seed)
        self._seed_generators(entropy)

    def reset(self) -> None:
        """Abandon the episodes in progress."""
        self._collector.reset()

    def skip_to(self, next_id: int) -> None:
        """Abandon the episodes in progress, and use no id below this one from now on."""
        index = -(-next_id // (self._count * self._collector.env.env_num))
        nothing: dict[str, Any] = {"env_state_dict": {}, "frames": 0, "iter": 0}
        self._collector.load_state_dict({**nothing, "traj_pool": index * self._collector.env.env_num})

    def collect(self, version: int, weights: Any, random_actions: bool) -> tuple[RolloutReport, Columns]:
        """Collect a rollout with the weights of this version; None: those that the actor has are these.

        Its arrays are time first, as they lie in memory, so that they travel without a copy; its envs and episodes have
        the ids that they have among those of all actors.
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
        columns |= {name: getattr(batch, name) for name in OTHERS}
        self._idle_since = time.perf_counter()
        return RolloutReport(self._idle_since - begin, waited), columns

    def close(self) -> None:
        """Close the vector env."""
        if self._collector is not None:
            self._collector.shutdown()

    def _number(self, ids: np.ndarray) -> np.ndarray:
        env_num = self._collector.env.env_num
        index, env = np.divmod(ids, env_num)
        return (index * self._count + self._index) * env_num + env

    def _seed_generators(self, entropy: Sequence[int]) -> None:
        """Seed the global generators, torch's too: without it each process has the same, and actors draw the same."""
        state = np.random.SeedSequence([*entropy, self._index]).generate_state(18)
        seed_generators((state[:8].tobytes(), state[8:16].tobytes()))
        if (torch := sys.modules.get("torch")) is not None:
            torch.manual_seed(int(state[16:].view(np.uint64)[0]))
