"""`RayCollector`: rollouts of actors on a Ray cluster, each with envs and a copy of the policy of its own.

driver          weights --put once a version--> object store --read by--> actors
RayCollector    batch <--one copy-- object store <--whole rollouts-- actors
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import cloudpickle
import numpy as np

from collector.batch.rollout import Rollout
from collector.cluster.actor_config import ActorConfig, check_arguments
from collector.cluster.actor_pool import Actor, ActorPool
from collector.cluster.cluster_stats import ClusterStats, ProgressBar
from collector.cluster.published_weights import PublishedWeights
from collector.cluster.rollout_batches import RolloutBatches
from collector.collector_arguments import all_frames, at_least_one, limit, resolve_devices
from collector.env_source import VectorEnvMaker, make_vector_env
from collector.episodes.episode import CollectStats
from collector.evaluation import Evaluation
from collector.loops.batch_iterator import BatchIterator, Finishing
from collector.policy.exploration import ExplorationType, as_exploration_type, requested_exploration_type
from collector.policy.policy_call import Policy
from collector.sync_collector import SyncDataCollector
from vecenv.extending import check_seed, seed_chain, worker_seeds
from vecenv.ray_cluster import connect

OF_EVALUATION = ("max_frames_per_traj", "policy_threads")
"""Arguments of the actors' collectors that hold for `evaluate` too."""
PARTS_OF_STORE = 4
"""Rollouts in flight take one of these parts of the cluster's object store at most, by default."""


class RayCollector(BatchIterator):
    """Collects batches of rollouts from `num_actors` Ray actors.

    docs/semantics.md ("Batches of a collector") has the guarantees: when batches are the same, which ids envs and
    trajectories have, and what becomes of each frame.

    Args:
        make_venv: makes the local vector env of an actor, with any backend; or a list of callables that make an env
            each. Called in each actor; all must be alike. Both this and the policy travel by cloudpickle.
        policy: as for `SyncDataCollector`. The driver's module is never changed; actors get the weights that it has
            now, and later those of `update_policy_weights_`.
        num_actors: how many actors.
        frames_per_batch: steps in a batch. `sync=True`: of all actors together, as many of each; else of one actor.
            Rounded up to the next number that the envs divide, with a warning.
        sync: True: a batch has a rollout of each actor, made with the newest weights; actors wait while the driver
            learns. False: a batch is the rollout that was finished first, and actors go on with the weights that they
            have.
        actors: where actors run, how long they may take, and what follows a failure, see `ActorConfig`. Episodes that
            break off with an actor are in `batch.broken_ids` of the next batch.
        max_in_flight: rollouts that an actor may be asked for before the driver takes the first. 1 with `sync`, 2
            without: the second is collected while the first waits.
        max_bytes_in_flight: bytes of rollouts in flight, all actors together; None: a quarter of the object store. One
            at a time is always asked for.
        straggler_timeout: with `sync`, seconds that a batch waits for the other actors once the first rollout has come.
            A batch may then lack envs (see `batch.env_ids`); what came too late is in the next one.
        progress: show a progress bar; needs `vecenv[job]`.
        create_env_kwargs: keyword arguments for `make_venv`; a list has those of each actor.
        total_frames, device, storing_device, policy_device, init_random_frames, postproc, split_trajs: as for
            `SyncDataCollector`, `total_frames` and `init_random_frames` of all actors together. `storing_device` is
            one of the driver, `policy_device` one of the actors.
        options: other arguments of `SyncDataCollector`, for the actors: `max_frames_per_traj`, `reset_at_each_iter`,
            `exploration_type`, `set_truncated`, `compile_policy`, `cudagraph_policy`, `policy_threads`, `info_keys`,
            `backend`. There is no `interruptor` and no `return_same_td`.

    Raises `ImportError` where ray is not installed, `WorkerTimeoutError` where actors cannot be scheduled, and what
    `make_venv` raises.

    Example::

        with RayCollector(make_venv, policy, num_actors=8, frames_per_batch=8192, total_frames=8_192_000) as collector:
            collector.set_seed(0)
            for batch in collector:
                learn(batch)                        # a Rollout: batch.obs, batch.env_ids, batch.policy_version, ...
                collector.update_policy_weights_()  # those of `policy`, which has learned
            print(collector.stats())
    """

    def __init__(
        self,
        make_venv: Any,
        policy: Policy | None = None,
        *,
        num_actors: int,
        frames_per_batch: float,
        total_frames: float | None = -1,
        sync: bool = True,
        actors: ActorConfig | None = None,
        max_in_flight: int | None = None,
        max_bytes_in_flight: float | None = None,
        straggler_timeout: float | None = None,
        progress: bool = False,
        device: Any = None,
        storing_device: Any = None,
        policy_device: Any = None,
        create_env_kwargs: dict[str, Any] | Sequence[dict[str, Any]] | None = None,
        init_random_frames: float | None = None,
        postproc: Callable[[Any], Any] | None = None,
        split_trajs: bool | None = None,
        **options: Any,
    ) -> None:
        actors = actors or ActorConfig()
        policy_device = device if policy_device is None else policy_device
        count, kwargs, flow = num_actors, create_env_kwargs, (max_in_flight, max_bytes_in_flight, straggler_timeout)
        check_arguments(make_venv, policy, count, sync, *flow, actors, kwargs, policy_device, options)
        self._count, self._sync = count, sync
        self._env_kwargs = [*kwargs] if isinstance(kwargs, Sequence) else [kwargs or {}] * count
        self.requested_frames_per_batch = at_least_one("frames_per_batch", frames_per_batch)
        self.total_frames = all_frames(total_frames, self.requested_frames_per_batch)
        self.storing_device, _, _ = resolve_devices(device, storing_device, None, None)
        self.init_random_frames = limit("init_random_frames", init_random_frames)
        self.frames = 0
        """Steps in the batches so far."""
        self.policy: Any = policy
        self._finishing = Finishing(self.storing_device, bool(split_trajs), postproc, reuse=False)
        self._batches = self._env_num = self._frames = 0
        self._first_id = 0
        """Below it are the ids of a state that was loaded."""
        self._seed: tuple[int, bool] | None = None
        self._closed = False
        make_env = VectorEnvMaker(SyncDataCollector, options.get("backend"), "dummy", {})
        self._evaluation = Evaluation(make_venv, partial(make_vector_env, kwargs=self._env_kwargs[0], make=make_env))
        self._of_evaluation = {name: options[name] for name in OF_EVALUATION if name in options}
        options |= {
            "frames_per_batch": -(-self.requested_frames_per_batch // (count if sync else 1)),
            "policy_device": policy_device,
            "init_random_frames": self.init_random_frames,
        }
        with ExitStack() as opened:
            cluster = opened.enter_context(connect())
            ray = cluster.ray
            self._weights = PublishedWeights(policy, ray.put)
            self._pickled = ray.put(cloudpickle.dumps((make_venv, self._weights.policy, options)))
            share = ray.cluster_resources().get("object_store_memory", 0) // PARTS_OF_STORE
            max_bytes = share if max_bytes_in_flight is None else max_bytes_in_flight
            self._pool = ActorPool(cluster, count, actors, self._start_arguments)
            opened.callback(self._pool.close)
            self._pool.start()
            self._check_alike()
            depth = max_in_flight or (1 if sync else 2)
            self._rollouts = RolloutBatches(
                self._pool, self._weights, self._frames, depth, max_bytes, straggler_timeout
            )
            opened.callback(self._evaluation.close)
            self._bar = ProgressBar(self.total_frames) if progress else None
            if self._bar is not None:
                opened.callback(self._bar.close)
            self._opened = opened.pop_all()

    def _start_arguments(self, actor: Actor) -> tuple[Any, ...]:
        """Return the arguments of `RolloutActor.start`. A restarted actor has other seeds: it would repeat episodes."""
        entropy = self._entropy(actor)
        seed = None
        if self._seed is not None:
            first, static_seed = self._first_seed(actor.index), self._seed[1]
            if actor.stats.restarts and not static_seed:
                first = int(np.random.SeedSequence([*entropy, first]).generate_state(1)[0])
            seed = first, static_seed
        return self._pickled, self._env_kwargs[actor.index], entropy, seed, self._next_id, sys.path

    @property
    def _next_id(self) -> int:
        """An id that is larger than all that have come so far."""
        index = max((actor.next_index for actor in self._pool.actors), default=0)
        return max(self._first_id, index * self._count * self._env_num)

    def _entropy(self, actor: Actor) -> list[int]:
        """Return the entropy of the generators in the actor's process; without a seed it follows from the driver's."""
        if self._seed is not None:
            return [self._seed[0], actor.stats.restarts]
        return [int.from_bytes(worker_seeds(actor.index)[0], "little")]

    def _first_seed(self, index: int) -> int:
        """The seed of the actor's first env, in the chain of all envs."""
        assert self._seed is not None
        seed, static_seed = self._seed
        return seed if static_seed else seed_chain(seed, index * self._env_num)[-1]

    def _check_alike(self) -> None:
        started = [actor.started for actor in self._pool.actors if actor.started is not None]
        if len(set(started)) > 1:
            raise ValueError(
                f"the vector envs of the actors have {[each.env_num for each in started]} envs; make_venv must make "
                "the same number in each"
            )
        self._env_num, self._frames = started[0]
        if self.frames_per_batch != self.requested_frames_per_batch:
            warnings.warn(
                f"frames_per_batch={self.requested_frames_per_batch} is not a multiple of the envs of "
                f"{f'{self._count} actors' if self._sync else 'an actor'}, {self._env_num} each: batches have "
                f"{self.frames_per_batch} frames",
                stacklevel=3,
            )

    # Batches.

    @property
    def frames_per_batch(self) -> int:
        """Steps in a full batch."""
        return self._frames * (self._count if self._sync else 1)

    @property
    def policy_version(self) -> int:
        """Number of times that the policy's weights have been updated by `update_policy_weights_`."""
        return self._weights.version

    def evaluate(
        self,
        n_episode: float,
        exploration_type: ExplorationType = ExplorationType.MODE,
        *,
        seed: int | None = None,
        eval_env: Any = None,
        keep: bool = False,
    ) -> CollectStats:
        """Collect `n_episode` whole episodes beside the training, with the weights of the last update; nothing is
        counted in `frames`. It may be called after the last batch, too.

        They are played in this process, on its CPU, in a vector env that `make_venv` makes the first time, with the
        `create_env_kwargs` of actor 0. Arguments and errors are those of `SyncDataCollector.evaluate`.
        """
        count, wanted = at_least_one("n_episode", n_episode), as_exploration_type(exploration_type, None)
        options: dict[str, Any] = {"seed": seed, "eval_env": eval_env, "keep": keep, "stay_open": not self._closed}
        with self._weights.kept():
            return self._evaluation.run(self._make_local, count, wanted, **options)

    def _make_local(self, env: Any) -> SyncDataCollector:
        options = {"frames_per_batch": env.env_num, "storing_device": self.storing_device, **self._of_evaluation}
        return SyncDataCollector(env, self._weights.policy, **options)

    def __repr__(self) -> str:
        so_far = f"{self.frames} frames so far{', shut down' if self._closed else ''}"
        mode = "sync" if self._sync else "async"
        return f"RayCollector({self._count} actors x {self._env_num} envs, {mode}, {so_far})"

    def _show_progress(self) -> None:
        if self._bar is not None:
            self._bar.show(self.frames, self.stats())

    def _collect_batch(self) -> Rollout:
        if requested_exploration_type() is not None:
            raise ValueError(
                "set_exploration_type has no effect on the policies of a RayCollector, which run in actors: make one "
                "with exploration_type="
            )
        with self._in_use():
            collect = self._rollouts.of_all if self._sync else self._rollouts.first
            return collect(self.init_random_frames - self.frames)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the collector is shut down; make a new one")

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Raise `RuntimeError` if the collector is shut down, and shut it down where an exception passes."""
        self._check_open()
        try:
            yield
        except BaseException:
            self.shutdown()
            raise

    # Episodes and seeds.

    def reset(self) -> None:
        """Abandon the episodes in progress, and what is in flight."""
        with self._in_use():
            self._pool.run("reset", lambda actor: ())

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed all envs and what policies draw from (the global generators of the actors, torch's too), and reset.

        Envs get the seeds that those of one vector env would get (`SyncDataCollector.set_seed`); what is in flight is
        discarded. Returns the seed after the last one, to go on with.
        """
        checked = check_seed(seed), static_seed
        with self._in_use():
            self._seed = checked
            self._pool.run("set_seed", lambda actor: (self._entropy(actor), self._first_seed(actor.index), static_seed))
        return seed if static_seed else seed_chain(seed, self._count * self._env_num)[-1]

    # State.

    def state_dict(self) -> dict[str, Any]:
        """Weights of the policy and progress of the collector, as those of a local one: either takes both."""
        return {
            "env_state_dict": {},
            "frames": self.frames,
            "iter": self._batches,
            "traj_pool": self._next_id,
            **self._weights.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Go on from a `state_dict`: its weights, its count of frames, and ids of episodes that it has not used.

        The envs begin new episodes; what is in flight is discarded.
        """
        if missing := [name for name in ("frames", "iter") if name not in state_dict]:
            raise ValueError(f"the state lacks {missing}; pass what `state_dict()` of a collector returned")
        self._check_open()
        if "policy_state_dict" in state_dict:
            self._weights.load(state_dict["policy_state_dict"], strict)
        self._weights.version = state_dict.get("policy_version", 0)
        self.frames, self._batches = state_dict["frames"], state_dict["iter"]
        self._first_id = next_id = max(self._next_id, state_dict.get("traj_pool", 0))
        with self._in_use():
            self._pool.run("skip_to", lambda actor: (next_id,))

    def update_policy_weights_(self, policy_weights: Any = None) -> None:
        """Collect with these weights from the next rollout on that is asked for: those of a module, a state dict or a
        `TensorDict`; None: those that the policy of the constructor has now.

        They are put into the object store once, when the next rollout is asked for. Raises `RuntimeError` where the
        policy has no weights, `ValueError` where names or shapes do not fit.
        """
        self._weights.update(policy_weights)

    def stats(self) -> ClusterStats:
        """Return the figures of each actor, and the last failures; `print(collector.stats())` is a table."""
        actors = tuple(actor.figures() for actor in self._pool.actors)
        return ClusterStats(actors=actors, weight_puts=self._weights.puts, failures=tuple(self._pool.failures))

    def shutdown(self) -> None:
        """End the actors, and leave the cluster; a local one that this collector started is shut down unless others use
        it. Safe to call again, and after any failure.
        """
        if not self._closed:
            self._closed = True
            self._opened.close()
