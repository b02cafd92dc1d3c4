"""`RayCollector`: collects batches with actors on a Ray cluster. Each actor has envs and a copy of the policy.

driver          weights --put once per version--> object store --read by--> actors
RayCollector    batch <--one copy-- object store <--whole rollouts-- actors
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import cloudpickle
import numpy as np

from collector.batch.rollout import Rollout
from collector.cluster.actor_config import ActorConfig, check_arguments
from collector.cluster.actor_pool import Actor, ActorPool
from collector.cluster.cluster_stats import ClusterStats
from collector.cluster.rollout_batches import RolloutBatches
from collector.collectors.base_collector import BaseCollector
from collector.collectors.collector_config import CollectorConfig
from collector.collectors.env_source import VectorEnvMaker, make_vector_env
from collector.collectors.evaluation import Evaluation, policy_for_evaluation
from collector.collectors.sync_collector import SyncDataCollector
from collector.policy.policy_call import Policy, requested_exploration_type
from collector.policy.weights import PublishedWeights
from vecenv.arguments import check_seed, seed_chain
from vecenv.ray_cluster import connect
from vecenv.seeds import worker_seeds

OF_EVALUATION = ("info_keys", "max_frames_per_traj", "policy_threads")
"""Options that the collectors of the actors and of `evaluate` share."""
PARTS_OF_STORE = 4


class RayCollector(BaseCollector):
    """Collector of batches from `num_actors` Ray actors.

    See docs/guarantees.md ("Batches of a collector").

    Args:
        make_venv: Function that makes a vector env, called in each actor; or a list of functions that make one env
            each.
        policy: Policy or module. The actors get copies. The collector never changes the original.
        num_actors: Number of actors.
        frames_per_batch: Steps in a batch: of all actors with `sync`, else of one actor.
        total_frames, init_random_frames: See `SyncDataCollector`; for all actors together.
        sync: True: a batch has a rollout of each actor, with the newest weights; False: the rollout that finished
            first.
        actors: Options of the actors.
        max_in_flight: Maximum rollouts in flight per actor; default: 1 with `sync`, else 2.
        max_bytes_in_flight: Maximum bytes of all rollouts in flight; default: a quarter of the object store.
        straggler_timeout: With `sync`, seconds that a batch waits for other actors after its first rollout. Later
            rollouts join the next batch, with older weights.
        device: Default of `policy_device` and `storing_device`.
        policy_device: Device of the actors' policies.
        storing_device, postproc, split_trajs: See `SyncDataCollector`; applied in this process.
        create_env_kwargs: Keyword arguments for `make_venv`; or a list with a dict per actor.
        options: Other arguments of `SyncDataCollector`, for the actors.

    Raises `TypeError` and `ValueError` for invalid arguments, `ImportError` without ray, `WorkerTimeoutError` if actors
    do not start in time, and errors of `make_venv`.

    Example::

        with RayCollector(make_venv, policy, num_actors=8, frames_per_batch=8192, total_frames=8_192_000) as collector:
            collector.set_seed(0)
            for batch in collector:
                learn(batch)                        # a Rollout: batch.obs, batch.env_ids, batch.policy_version, ...
                collector.update_policy_weights_()  # the learned weights of `policy`
            print(collector.stats())
    """

    _first_argument = "make_venv"

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
        check_arguments(make_venv, count, sync, *flow, actors, kwargs, policy_device, options)
        config = CollectorConfig.of("RayCollector", {**locals(), "policy_device": None})
        super().__init__(policy, config)
        self._count, self._sync = count, sync
        self._env_kwargs = [*kwargs] if isinstance(kwargs, Sequence) else [kwargs or {}] * count
        self._env_num = self._frames = 0
        self._first_id = 0
        """Lower bound for ids of new episodes, from `load_state_dict`, or 0."""
        self._seed: tuple[int, bool] | None = None
        make_env = VectorEnvMaker(SyncDataCollector, options.get("backend"), "dummy", {})
        self._evaluation = Evaluation(make_venv, partial(make_vector_env, kwargs=self._env_kwargs[0], make=make_env))
        self._of_evaluation = {name: options[name] for name in OF_EVALUATION if name in options}
        options |= {
            "frames_per_batch": -(-self.requested_frames_per_batch // (count if sync else 1)),
            "policy_device": policy_device,
            "init_random_frames": self.init_random_frames,
        }
        self._start(make_venv, options, actors, flow)

    def _start(self, make_venv: Any, options: dict[str, Any], config: ActorConfig, flow: Any) -> None:
        self._may_leave = config.on_worker_failure == "restart"
        with ExitStack() as opened:
            cluster = opened.enter_context(connect())
            ray = cluster.ray
            self._weights = PublishedWeights(self.policy, ray.put)
            self._pickled = ray.put(cloudpickle.dumps((make_venv, self._weights.policy, options)))
            depth, max_bytes, straggler_timeout = flow
            if max_bytes is None:
                max_bytes = ray.cluster_resources().get("object_store_memory", 0) // PARTS_OF_STORE
            self._pool = ActorPool(cluster, self._count, config, self._start_arguments)
            opened.callback(self._pool.close)
            self._pool.start()
            self._check_alike()
            flow = depth or (1 if self._sync else 2), max_bytes, straggler_timeout
            self._rollouts = RolloutBatches(self._pool, self._weights, self._frames, *flow)
            opened.callback(self._evaluation.close)
            self._opened = opened.pop_all()

    def _start_arguments(self, actor: Actor) -> tuple[Any, ...]:
        """Return the arguments of `RolloutActor.start`.

        A restarted actor gets new episode ids, and new seeds unless `static_seed`.
        """
        entropy = self._entropy(actor)
        seed = None
        if self._seed is not None:
            first, static_seed = self._first_seed(actor.index), self._seed[1]
            if actor.restarts_since_seed and not static_seed:
                first = int(np.random.SeedSequence([*entropy, first]).generate_state(1)[0])
            seed = first, static_seed
        kwargs = self._env_kwargs[actor.index]
        return self._pickled, kwargs, entropy, seed, self._next_id, sys.path, self._may_leave

    @property
    def _next_id(self) -> int:
        index = max((actor.next_index for actor in self._pool.actors), default=0)
        return max(self._first_id, index * self._count * self._env_num)

    def _entropy(self, actor: Actor) -> list[int]:
        if self._seed is not None:
            return [self._seed[0], actor.restarts_since_seed]
        return [int.from_bytes(worker_seeds(actor.index)[0], "little")]

    def _first_seed(self, index: int) -> int:
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
        users = f"{self._count} actors" if self._sync else "an actor"
        self._warn_of_rounding(f"the envs of {users}, {self._env_num} each")

    @property
    def frames_per_batch(self) -> int:
        """Steps in a full batch."""
        return self._frames * (self._count if self._sync else 1)

    def _make_evaluator(self, env: Any) -> SyncDataCollector:
        options = {"frames_per_batch": env.env_num, "storing_device": self.storing_device, **self._of_evaluation}
        return SyncDataCollector(env, policy_for_evaluation(self._weights.policy), **options)

    def __repr__(self) -> str:
        so_far = f"{self.frames} frames so far{', shut down' if self._closed else ''}"
        mode = "sync" if self._sync else "async"
        return f"RayCollector({self._count} actors x {self._env_num} envs, {mode}, {so_far})"

    def _collect_batch(self) -> Rollout:
        if requested_exploration_type() is not None:
            raise ValueError(
                "set_exploration_type has no effect on the policies of a RayCollector, which run in actors: make the "
                "collector with exploration_type="
            )
        with self._in_use():
            collect = self._rollouts.of_all if self._sync else self._rollouts.first
            return collect(self.init_random_frames - self.frames)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        self._check_open()
        try:
            yield
        except BaseException:
            self._rollouts.discard()
            self.shutdown()
            raise

    def reset(self) -> None:
        """Abandon the episodes and rollouts in progress."""
        with self._in_use():
            self._pool.run("reset", lambda actor: ())

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed all envs and the actors' global generators (torch's too), and reset. Rollouts in flight are discarded.

        Envs get seeds as in one vector env of all envs (`SyncDataCollector.set_seed`). Returns the chain's next seed.
        """
        checked = check_seed(seed), static_seed
        with self._in_use():
            self._seed = checked
            for actor in self._pool.actors:
                actor.restarts_since_seed = 0
            self._pool.run("set_seed", lambda actor: (self._entropy(actor), self._first_seed(actor.index), static_seed))
        return seed if static_seed else seed_chain(seed, self._count * self._env_num)[-1]

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Continue from a `state_dict`: weights, frame count and unused episode ids.

        The envs begin new episodes. Rollouts in flight are discarded.

        strict: raise if the names of weights differ, or if the state has statistics of envs, which actors do not load.
        """
        self._check_open()
        if strict and (statistics := state_dict.get("env_state_dict")):
            raise ValueError(
                f"the state has the statistics {sorted(statistics)}, which a RayCollector cannot load: let make_venv "
                "load them, and pass strict=False"
            )
        self._load_progress(state_dict, strict, "frames", "iter")
        self._first_id = next_id = max(self._next_id, state_dict.get("traj_pool", 0))
        with self._in_use():
            self._pool.run("skip_to", lambda actor: (next_id,))

    def stats(self) -> ClusterStats:
        """Return statistics of each actor, and the last failures. `print` shows a table."""
        actors = tuple(actor.figures() for actor in self._pool.actors)
        return ClusterStats(actors=actors, weight_puts=self._weights.puts, failures=tuple(self._pool.failures))

    def shutdown(self) -> None:
        """End the actors, and leave the cluster. May be called repeatedly, and after any failure.

        A cluster that vecenv started ends with its last collector or vector env in this process.
        """
        if not self._closed:
            self._closed = True
            self._opened.close()
