"""`ActorConfig`, and checks of the arguments of `RayCollector`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from collector.batch.step_extras import check_info_keys
from vecenv.arguments import at_least_one, check_count, check_mapping, check_resources, check_timeout
from vecenv.ray_cluster import actor_options

ACTOR_ARGUMENTS = [
    "backend",
    "compile_policy",
    "cudagraph_policy",
    "env_device",
    "exploration_mode",
    "exploration_type",
    "info_keys",
    "max_frames_per_traj",
    "policy_threads",
    "reset_at_each_iter",
    "reset_when_done",
    "set_truncated",
]
"""Arguments that a `RayCollector` passes to the `SyncDataCollector` of each actor."""

RAY_FIELDS = ("num_cpus", "num_gpus", "resources", "runtime_env", "scheduling", "placement_group")


@dataclass(frozen=True, kw_only=True)
class ActorConfig:
    """Options of the actors of a `RayCollector`.

    Args:
        num_cpus, num_gpus: Resources that Ray reserves per actor, without limiting usage. A policy on "cuda" needs
            `num_gpus`; 0.25 puts four actors on a GPU.
        resources, runtime_env: As in `ray.remote`.
        scheduling: "SPREAD", "DEFAULT" or a scheduling strategy of Ray.
        placement_group: A placement group of Ray, which replaces `scheduling`.
        start_timeout: Maximum seconds until an actor runs, and from then until its vector env is ready.
        rollout_timeout: Maximum seconds of a rollout. An actor that needs longer is killed.
        on_worker_failure: Reaction if an actor dies, hangs or loses a worker of its vector env: "restart" (with new
            envs), "drop" (continue without the actor), "raise" (`WorkerDiedError` or `WorkerTimeoutError`). A
            restarted actor may wait for resources while other actors collect. Always raised: exceptions of envs and
            policy, and failures in the constructor if all nodes are reachable.
        max_restarts: Maximum restarts of an actor in a row, without a rollout in between. The next failure is raised.
        min_actors: Number of actors with which the collector starts, if the cluster lacks resources for more within
            `start_timeout`. Other actors join later. None requires all.

    Raises `ValueError` or `TypeError` for invalid values.
    """

    num_cpus: float = 1
    num_gpus: float = 0
    resources: Mapping[str, float] | None = None
    runtime_env: Mapping[str, Any] | None = None
    scheduling: Any = "SPREAD"
    placement_group: Any = None
    start_timeout: float | None = 60.0
    rollout_timeout: float | None = 1800.0
    on_worker_failure: str = "restart"
    max_restarts: int = 5
    min_actors: int | None = None

    def __post_init__(self) -> None:
        check_resources(self.num_cpus, self.num_gpus, self.resources, self.runtime_env)
        check_timeout(self.start_timeout, "start_timeout")
        check_timeout(self.rollout_timeout, "rollout_timeout")
        check_count("max_restarts", self.max_restarts)
        if self.min_actors is not None:
            check_count("min_actors", self.min_actors)
            if self.on_worker_failure != "restart":
                raise ValueError('min_actors needs on_worker_failure="restart": the other actors wait for a place')
        if self.on_worker_failure not in ("restart", "drop", "raise"):
            raise ValueError(f'on_worker_failure must be "restart", "drop" or "raise", got {self.on_worker_failure!r}')

    def ray_options(self) -> dict[str, Any]:
        """Return arguments for `ray.remote(cls).options(...)`."""
        return actor_options(**{name: getattr(self, name) for name in RAY_FIELDS})


def check_arguments(
    make_venv: Any,
    num_actors: int,
    sync: bool,
    max_in_flight: int | None,
    max_bytes_in_flight: float | None,
    straggler_timeout: float | None,
    actors: ActorConfig,
    create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
    policy_device: Any,
    options: Mapping[str, Any],
) -> None:
    many = isinstance(make_venv, Sequence) and not isinstance(make_venv, str)
    if not callable(make_venv) and not many:
        raise TypeError(
            f"make_venv must be a callable that makes a vector env in each actor, or a list of callables that make an "
            f"env each; got {make_venv!r}"
        )
    if misplaced := [each.name for each in fields(ActorConfig) if each.name in options]:
        raise TypeError(f"pass actors=ActorConfig({', '.join(f'{name}=...' for name in misplaced)})")
    if unknown := options.keys() - {*ACTOR_ARGUMENTS}:
        raise TypeError(f"RayCollector has no arguments {sorted(unknown)}; besides its own, it takes {ACTOR_ARGUMENTS}")
    check_info_keys(options.get("info_keys"))
    count = check_count("num_actors", num_actors)
    if max_in_flight is not None and check_count("max_in_flight", max_in_flight) > 1 and sync:
        raise ValueError("max_in_flight above 1 needs sync=False: a rollout would begin with old weights")
    if max_bytes_in_flight is not None:
        at_least_one("max_bytes_in_flight", max_bytes_in_flight)
    if check_timeout(straggler_timeout, "straggler_timeout") is not None and not sync:
        raise ValueError("straggler_timeout needs sync=True: without it no batch waits for a slow actor")
    if isinstance(create_env_kwargs, Sequence) and len(create_env_kwargs) != count:
        raise ValueError(
            f"create_env_kwargs has {len(create_env_kwargs)} entries for {count} actors; pass one dict, or a list with "
            "one for each actor"
        )
    for kwargs in create_env_kwargs if isinstance(create_env_kwargs, Sequence) else [create_env_kwargs]:
        check_mapping("create_env_kwargs", kwargs)
    if str(policy_device).startswith("cuda") and not actors.num_gpus:
        raise ValueError(
            f"policy_device={str(policy_device)!r} needs a GPU in each actor, and num_gpus is 0: pass "
            "actors=ActorConfig(num_gpus=1), or a fraction such as 0.25, so that four actors share one"
        )
