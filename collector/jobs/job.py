"""`Job`: the settings of a collection job as one dataclass."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any, Literal, get_args

try:
    import msgspec
except ImportError as error:
    raise ImportError("collection jobs need msgspec: pip install 'vecenv[job]'") from error

from vecenv.extending import VECTOR_ENVS

POLICIES = ("random", "mlp")
"""Policies that are named without a module."""
NAMED_IN = {"wrappers": "gymnasium.wrappers", "transforms": "vecenv.transforms"}
"""Modules whose classes are named without them."""
FREE_SETTINGS = frozenset(
    {"backend", "num_workers", "step_timeout", "on_error", "retries", "max_failed"}
    | {"shard_bytes", "shard_seconds", "compress", "ray"}
)
"""Settings that may differ when a job is resumed: they decide where episodes are played and how they are stored."""

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
NonNegativeInt = Annotated[int, msgspec.Meta(ge=0)]
SmallCount = Annotated[int, msgspec.Meta(ge=1, le=2**16)]
"""Envs and threads: one more than a machine runs, and few enough to be counted out in memory."""
Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class JobError(RuntimeError):
    """A job cannot run with its settings; the message has the reason, and what to change."""


class Frozen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Statistics as they were when the job file was read: the job does not need the file any more."""

    file: str
    sha256: str
    """Hash of the file."""
    state: dict[str, Any]
    """Result of the transform's `state_dict`, as JSON."""


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Something to call, by its name, with keyword arguments: `{call = "FlattenObservation"}`.

    Args:
        call: `module:attr`; a wrapper of `gymnasium.wrappers` and a transform of `vecenv.transforms` need no module.
        kwargs: Keyword arguments.
        frozen: Of a transform: a file of statistics, which it takes over and does not update; relative to the job file.
    """

    call: str
    kwargs: dict[str, Any] = {}
    frozen: str | Frozen | None = None


class RayOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of the tasks of a job on a Ray cluster, as in `ray.remote`.

    Args:
        num_cpus: CPUs that Ray reserves for each task; None: one for each of its workers, or 1.
        num_gpus: GPUs that Ray reserves for each task; None: 1 if the job's device is "cuda".
        memory: Bytes of memory that Ray reserves for each task.
        resources: Other resources, by name.
        runtime_env: The environment of the tasks, such as {"pip": ["vecenv"]}.
        scheduling: "SPREAD" (over the nodes) or "DEFAULT" (nodes are filled one after the other).
        max_retries: The job ends if more than so many tasks die with the same episode.
    """

    num_cpus: Annotated[float, msgspec.Meta(ge=0)] | None = None
    num_gpus: Annotated[float, msgspec.Meta(ge=0)] | None = None
    memory: PositiveInt | None = None
    resources: dict[str, Annotated[float, msgspec.Meta(ge=0)]] = {}
    runtime_env: dict[str, Any] = {}
    scheduling: Literal["SPREAD", "DEFAULT"] = "SPREAD"
    max_retries: NonNegativeInt = 9


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A collection job. A file with these names (JSON, TOML, YAML) is one, too: `load_job`.

    Episode e of a job is reset with a seed that follows from `seed` and e alone. With random actions, or a policy that
    returns a distribution, so do its actions: the episodes are the same whatever `backend` and `num_workers` are.
    Where a name `module:attr` is taken, a program may pass the class or function itself. Raises `JobError` for values
    that cannot be.

    >>> Job(env="CartPole-v1", episodes=400, seed=3).num_envs
    8

    Args:
        env: A gymnasium id, such as "CartPole-v1", "ALE/Pong-v5" or "my_module:MyEnv-v0"; or "my_module:make_env", a
            function or class.
        episodes: Collect so many whole episodes: numbers 0 to `episodes - 1`.
        steps: Or collect the first episodes, by number, that have so many steps together.
        seed: What all seeds follow from.
        num_envs: Envs side by side.
        backend: "dummy" (in this process), "thread" (in its threads), "subproc" or "shmem" (in worker processes),
            "ray" (in actors); "auto": "dummy" or "shmem", whichever is faster, for which one env more is made in a
            worker.
        num_workers: Worker processes, threads or actors; None: the backend's own choice.
        policy: "random": uniform random actions. "mlp": a small network with random weights, or those of `checkpoint`.
            "my_module:policy": a policy (see `collector.policy`), or a class that is made with the observation space,
            the action space and `policy_kwargs`.
        checkpoint: A file that `torch.save` wrote of the policy's `state_dict()`; read with `weights_only=True`.
        device: Where the policy runs: "auto" (CUDA where there is one), "cpu", "cuda", "cuda:1".
        max_episode_steps: Truncate episodes at this length; None: at the limit of the env.
        on_error: "retry": an episode whose env fails is played again alone, `retries` times, and then skipped and
            counted. "raise": the job ends with the env's error; whole episodes are kept.
        retries: How often an episode is played again.
        max_failed: How many episodes may be skipped, those of earlier runs included: with one more the job ends.
        step_timeout: Seconds after which an env that does not return has failed; None: it is waited for. Not for
            backend "dummy".
        shard_bytes: Commit a shard when its episodes are this large,
        shard_seconds: or when the oldest one is this old. A job that is killed plays again what it has not committed.
        compress: Compress the shards: smaller for pictures, slower to write and read.
        policy_threads: Threads of torch for a policy on the CPU; None: as many as torch uses elsewhere. Its actions may
            depend on the number, because sums are added up in another order.
        env_kwargs: Keyword arguments for the env.
        wrappers: Wrappers around each env, the innermost first: of `gymnasium.wrappers` by their name, others as
            `module:attr`; with arguments as {"call": NAME, "kwargs": {...}}.
        transforms: Transforms of `vecenv.transforms` around each env and its wrappers, in the order of observations.
            One that has statistics (VecNorm, NormalizeReward) goes on with its own when the job is resumed; with
            {"call": NAME, "frozen": FILE} it takes over those of the file and keeps them, and the job is repeatable.
        policy_kwargs: Keyword arguments for the class of the policy.
        ray: Options of the tasks on a cluster: `num_cpus`, `num_gpus`, `memory`, `resources`, `runtime_env`,
            `scheduling` and `max_retries`, as `RayOptions` describes them.
    """

    env: str
    episodes: PositiveInt | None = None
    steps: PositiveInt | None = None
    seed: NonNegativeInt = 0
    num_envs: SmallCount = 8
    backend: Literal[tuple(sorted(VECTOR_ENVS))] = "auto"  # type: ignore[valid-type]
    num_workers: PositiveInt | None = None
    policy: str = "random"
    checkpoint: str | None = None
    device: str = "auto"
    max_episode_steps: PositiveInt | None = None
    on_error: Literal["retry", "raise"] = "retry"
    retries: NonNegativeInt = 1
    max_failed: NonNegativeInt = 10
    step_timeout: Seconds | None = None
    shard_bytes: PositiveInt = 64 * 2**20
    shard_seconds: Seconds = 30.0
    compress: bool = False
    policy_threads: SmallCount | None = 1
    env_kwargs: dict[str, Any] = {}
    wrappers: tuple[str | Call, ...] = ()
    transforms: tuple[str | Call, ...] = ()
    policy_kwargs: dict[str, Any] = {}
    ray: RayOptions = RayOptions()

    def __post_init__(self) -> None:
        """Refuse what cannot be, in the names that the job file has."""
        for field in msgspec.structs.fields(self):
            value = _converted(field.name, getattr(self, field.name), field.type)
            msgspec.structs.force_setattr(self, field.name, value)
        if (self.episodes is None) == (self.steps is None):
            raise JobError("a job has either episodes = N or steps = N" + (", not both" if self.steps else ""))
        if self.backend == "dummy" and self.num_workers is not None:
            raise JobError('num_workers: the dummy backend has no workers; use backend = "shmem" or "subproc"')
        if self.backend == "dummy" and self.step_timeout is not None:
            raise JobError(
                'step_timeout: the dummy backend cannot end an env that hangs; use backend = "shmem" or "subproc"'
            )
        if self.num_workers is not None and self.num_workers > self.num_envs:
            raise JobError(f"num_workers: {self.num_workers} workers for {self.num_envs} envs; one each is the most")
        if self.policy not in POLICIES and ":" not in self.policy:
            raise JobError(f'policy must be "random", "mlp" or "module:attr", got {self.policy!r}')
        if self.policy == "random" and (self.checkpoint or self.policy_kwargs):
            raise JobError("random actions have no checkpoint and no policy_kwargs; name a policy")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise JobError(f'device must be "auto", "cpu", "cuda" or "cuda:N", got {self.device!r}')
        if any(isinstance(each, Call) and each.frozen is not None for each in self.wrappers):
            raise JobError("wrappers: `frozen` is for transforms, which have statistics")


def _converted(name: str, value: Any, kind: Any) -> Any:
    """A value of a setting, as its type has it. Raises `JobError`."""
    if name in ("env", "policy") and not isinstance(value, str):
        value = _name_of(name, value)
    elif name in NAMED_IN:  # one entry is a list of one
        entries = value if isinstance(value, (list, tuple)) else [value]
        value = [each if isinstance(each, (str, dict, Call)) else _name_of(name, each) for each in entries]
    elif isinstance(value, float) and value.is_integer():
        value = int(value)  # such as 1e6
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        if choices := [each for each in get_args(kind) if isinstance(each, str)]:
            text += f"; it is one of {', '.join(choices)}"
        elif not path:
            text += f": {value!r}" if ", got " in text else f", got {value!r}"
        raise JobError(f"{name}{path.rstrip('`')}: {text}") from None


def _name_of(setting: str, value: Any) -> str:
    """The name by which workers, and those who resume the job, find a class or function. Raises `JobError`."""
    home, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(name, str) and getattr(sys.modules.get(NAMED_IN.get(setting, "")), name, None) is value:
        return f"{NAMED_IN[setting]}:{name}"
    found: Any = sys.modules.get(str(home))
    for part in str(name).split("."):
        found = getattr(found, part, None)
    if found is None or found is not value:
        raise JobError(
            f"{setting}: {value!r} has no name by which workers, and a job that is resumed, find it: pass a function "
            'or class from the top of a module, or its name, "module:name"'
        )
    return f"{home}:{name}"


# Jobs as JSON.


def as_record(job: Job) -> dict[str, Any]:
    """The job as JSON types: what the head of a folder holds.

    >>> as_record(Job(env="CartPole-v1", episodes=2))["episodes"]
    2
    """
    record: dict[str, Any] = msgspec.to_builtins(job)
    return record


def as_shown(record: dict[str, Any]) -> dict[str, Any]:
    """Convert the result of `as_record` for people: the name of a file of statistics stands for its numbers.

    >>> frozen = {"file": "a.json", "sha256": "0123456789abcdef0", "state": {}}
    >>> as_shown({"transforms": ["DoubleToFloat", {"call": "VecNorm", "frozen": frozen}]})["transforms"][1]
    {'call': 'VecNorm', 'frozen': 'a.json (sha256 0123456789abcdef)'}
    """

    def shown(each: Any) -> Any:
        frozen = each.get("frozen") if isinstance(each, dict) else None
        if not isinstance(frozen, dict):
            return each
        return {**each, "frozen": f"{frozen.get('file')} (sha256 {str(frozen.get('sha256'))[:16]})"}

    entries = record.get("transforms")
    return {**record, "transforms": [shown(each) for each in entries] if isinstance(entries, (list, tuple)) else []}
