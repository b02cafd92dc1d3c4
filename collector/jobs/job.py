"""`Job`: checked settings of a collection job, and their conversion to JSON."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any, Literal, get_args

try:
    import msgspec
except ImportError as error:
    raise ImportError("collection jobs need msgspec: pip install 'vecenv[job]'") from error

from collector.batch.step_extras import check_info_keys
from vecenv.arguments import as_recycle_after
from vecenv.tuning.auto_backend import VECTOR_ENVS

BUILT_IN_POLICIES = ("random", "mlp")
DEFAULT_MODULES = {"wrappers": "gymnasium.wrappers", "transforms": "vecenv.transforms"}
CHANGEABLE_SETTINGS = frozenset(
    {"backend", "num_workers", "step_timeout", "worker_command", "recycle_after", "spare_envs"}
    | {"on_error", "retries", "max_failed"}
    | {"shard_bytes", "shard_seconds", "compress", "ray"}
)
"""Settings that do not change episodes, so a resumed job may change them."""

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
NonNegativeInt = Annotated[int, msgspec.Meta(ge=0)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
SmallCount = Annotated[int, msgspec.Meta(ge=1, le=2**16)]
"""Number of envs or threads, limited so that a typo does not fill the memory."""
Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class JobError(RuntimeError):
    """Raised if a job cannot run with its settings."""


class FrozenStatistics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    file: str
    sha256: str
    state: dict[str, Any]


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A class or function with keyword arguments: `{call = "FlattenObservation"}`.

    Args:
        call: `module:attr`. Names in `gymnasium.wrappers` and `vecenv.transforms` need no module.
        kwargs: Keyword arguments.
        frozen: File with the unchanging statistics of a transform, relative to the job file's folder.
    """

    call: str
    kwargs: dict[str, Any] = {}
    frozen: str | FrozenStatistics | None = None


class RayOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options that a job on a Ray cluster passes to `ray.remote` for each task.

    Args:
        num_cpus: CPUs per task; default: the job's `num_workers`, or 1 if `num_workers` is not set.
        num_gpus: GPUs per task; default: 1 if the job's device is "cuda".
        memory: Bytes of memory per task.
        resources: Other resources, by name.
        runtime_env: Ray's runtime environment, such as {"pip": ["vecenv"]}.
        scheduling: "SPREAD" (over the nodes) or "DEFAULT" (Ray prefers nodes in use until they are half full).
        max_retries: Maximum deaths of tasks with the same episode. After one more death, the job fails.
    """

    num_cpus: Annotated[float, msgspec.Meta(ge=0)] | None = None
    num_gpus: Annotated[float, msgspec.Meta(ge=0)] | None = None
    memory: PositiveInt | None = None
    resources: dict[str, Annotated[float, msgspec.Meta(ge=0)]] = {}
    runtime_env: dict[str, Any] = {}
    scheduling: Literal["SPREAD", "DEFAULT"] = "SPREAD"
    max_retries: NonNegativeInt = 9


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of a collection job. `load_job` reads them from a JSON, TOML or YAML file.

    The seed of an episode depends only on `seed` and the episode's number. If actions are random, or the policy returns
    a common torch distribution, episodes are the same for every `backend` and `num_workers`. A program may pass a
    class or function instead of a name "module:attr". Raises `JobError` for invalid values.

    >>> Job(env="CartPole-v1", episodes=400, seed=3).num_envs
    8

    Args:
        env: A gymnasium id ("CartPole-v1", "ALE/Pong-v5", "my_module:MyEnv-v0"), or the name of a function or class
            ("my_module:make_env").
        episodes: Collect episodes 0 to `episodes - 1`.
        steps: Instead of `episodes`: collect episodes 0, 1, ... until they have this many steps in total.
        seed: Seed from which all other seeds are derived.
        num_envs: Number of parallel envs.
        backend: Where the envs run: "dummy" (in this process), "thread" (in its threads), "subproc" or "shmem" (in
            worker processes), "ray" (in actors). "auto" measures an additional env, and uses "shmem" with the fastest
            number of workers. If `on_error` is "raise", and `num_workers`, `step_timeout`, `recycle_after` and
            `spare_envs` are not set, "auto" may use "dummy" or "thread" instead.
        num_workers: Worker processes, threads or actors; by default the backend decides.
        worker_command: For backend "subproc": words of a command that starts each worker, such as ["ssh", "gpu-7",
            "python", "-m", "vecenv.worker"]. The command makes the env, so the env's wrappers must be in its function.
        policy: "random": uniform random actions. "mlp": a small network with random weights or `checkpoint`'s weights.
            "my_module:policy": a function of a batch of observations, or a class that takes the observation space, the
            action space and `policy_kwargs`.
        checkpoint: File with the policy's `state_dict()` from `torch.save`, read with `weights_only=True`.
        device: Device of the policy: "auto" (an accelerator if available), "cpu", or an accelerator of PyTorch, such as
            "cuda", "cuda:1", "xpu" or "mps".
        max_episode_steps: Truncate episodes at this length; default: the env's limit.
        on_error: "retry": a failed env's episode is retried alone. If all retries fail, the episode is skipped, and
            counts toward `max_failed`. "raise": the env's error ends the job. Whole episodes are kept.
        retries: Number of retries per episode. 0 means 1, because the failure of another env may interrupt an episode.
        max_failed: Maximum number of skipped episodes, earlier runs included. If more are skipped, the job fails.
        step_timeout: Seconds after which a hanging env counts as failed. Not for backend "dummy".
        recycle_after: Replace a worker between episodes, because its envs leak memory: a number of episodes per env, or
            the memory of a worker ("2 GiB"). Only for worker processes and actors.
        spare_envs: Number of envs per worker with a second instance, which is reset while the first instance steps.
            For envs with slow resets. Only for worker processes and actors.
        shard_bytes: Commit episodes (write them to a shard) when they have this many bytes.
        shard_seconds: Also commit when the oldest uncommitted episode is this old. A resumed job repeats only
            uncommitted episodes.
        compress: Compress the shards: pictures become smaller, but reading and writing slower.
        policy_threads: Torch threads of a CPU policy; None: torch's default. Actions may depend on this number,
            because it changes the order of sums.
        env_kwargs: Keyword arguments for the env. Tuples in all kwargs become lists, because JSON stores no tuples.
        wrappers: Wrappers around each env, the innermost first: names in `gymnasium.wrappers`, or `module:attr`; with
            arguments as {"call": NAME, "kwargs": {...}}.
        transforms: Transforms of `vecenv.transforms` around the wrappers of each env, the innermost first. A resumed
            job continues the statistics of VecNorm and NormalizeReward. {"call": NAME, "frozen": FILE} uses the file's
            statistics unchanged, so that the job is repeatable.
        policy_kwargs: Keyword arguments for the class of the policy.
        info_keys: Keys of infos to store: numbers, arrays or texts. `Episode.info[key]` has the entry after each step.
        ray: Options of a task on a cluster: `num_cpus`, `num_gpus`, `memory` (bytes), `resources`, `runtime_env`,
            `scheduling` ("SPREAD" or "DEFAULT") and `max_retries` (deaths of tasks with the same episode).
    """

    env: str
    episodes: PositiveInt | None = None
    steps: PositiveInt | None = None
    seed: Seed = 0
    num_envs: SmallCount = 8
    backend: Literal[tuple(sorted(VECTOR_ENVS))] = "auto"  # type: ignore[valid-type]
    num_workers: PositiveInt | None = None
    worker_command: tuple[str, ...] = ()
    policy: str = "random"
    checkpoint: str | None = None
    device: str = "auto"
    max_episode_steps: PositiveInt | None = None
    on_error: Literal["retry", "raise"] = "retry"
    retries: NonNegativeInt = 1
    max_failed: NonNegativeInt = 10
    step_timeout: Seconds | None = None
    recycle_after: int | str | None = None
    spare_envs: NonNegativeInt = 0
    shard_bytes: PositiveInt = 64 * 2**20
    shard_seconds: Seconds = 30.0
    compress: bool = False
    policy_threads: SmallCount | None = 1
    env_kwargs: dict[str, Any] = {}
    wrappers: tuple[str | Call, ...] = ()
    transforms: tuple[str | Call, ...] = ()
    policy_kwargs: dict[str, Any] = {}
    info_keys: tuple[str, ...] = ()
    ray: RayOptions = RayOptions()

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(self):
            value = _convert(field.name, getattr(self, field.name), field.type)
            msgspec.structs.force_setattr(self, field.name, value)
        if self.env.startswith(":"):
            raise JobError(f"env must be a name or module:name, got {self.env!r}")
        if (self.episodes is None) == (self.steps is None):
            raise JobError("a job has either episodes = N or steps = N" + (", not both" if self.steps else ""))
        if self.backend == "dummy" and self.num_workers is not None:
            raise JobError('num_workers: the dummy backend has no workers; use backend = "shmem" or "subproc"')
        if self.backend == "dummy" and self.step_timeout is not None:
            raise JobError(
                'step_timeout: the dummy backend cannot end an env that hangs; use backend = "shmem" or "subproc"'
            )
        self._check_command()
        try:
            as_recycle_after(self.recycle_after)
        except (TypeError, ValueError) as error:
            raise JobError(str(error)) from None
        if self.recycle_after is not None and self.backend in ("dummy", "thread"):
            raise JobError(
                f"recycle_after: memory that an env leaks is only free after the end of its process, and the "
                f'{self.backend} backend has no worker processes; use backend = "shmem" or "subproc"'
            )
        if self.spare_envs and self.backend in ("dummy", "thread"):
            raise JobError(
                f'spare_envs: the {self.backend} backend has no worker processes; use backend = "shmem" or "subproc"'
            )
        if self.num_workers is not None and self.num_workers > self.num_envs:
            raise JobError(
                f"num_workers: {self.num_workers} workers for {self.num_envs} envs; pass at most one per env"
            )
        if self.policy not in BUILT_IN_POLICIES and ":" not in self.policy:
            raise JobError(f'policy must be "random", "mlp" or "module:attr", got {self.policy!r}')
        if self.policy == "random" and (self.checkpoint or self.policy_kwargs):
            raise JobError("random actions have no checkpoint and no policy_kwargs; name a policy")
        if not re.fullmatch(r"[a-z]+(:\d+)?", self.device):
            raise JobError(
                f'device must be "auto", "cpu", "cuda", "cuda:N" or another name of PyTorch, got {self.device!r}'
            )
        if any(isinstance(each, Call) and each.frozen is not None for each in self.wrappers):
            raise JobError("wrappers: `frozen` is for transforms, which have statistics")
        for name in ("env_kwargs", "policy_kwargs"):
            msgspec.structs.force_setattr(self, name, _as_stored(name, getattr(self, name)))
        for name in DEFAULT_MODULES:
            entries = tuple(_stored_call(each) if isinstance(each, Call) else each for each in getattr(self, name))
            msgspec.structs.force_setattr(self, name, entries)
        try:
            check_info_keys(self.info_keys)
        except ValueError as error:
            raise JobError(str(error)) from None
        _as_stored("ray", msgspec.structs.asdict(self.ray))

    def _check_command(self) -> None:
        if not self.worker_command:
            return
        if self.backend != "subproc":
            raise JobError(f'worker_command: only backend = "subproc" has commands, got {self.backend!r}')
        if self.recycle_after is not None or self.spare_envs:
            raise JobError("worker_command: workers that a command starts have no recycle_after and no spare_envs")
        is_function = self.env.rpartition(":")[2].isidentifier()
        if self.wrappers or self.transforms or (is_function and self.max_episode_steps is not None):
            raise JobError(
                "worker_command: the command makes the env, so put wrappers, transforms and max_episode_steps into the "
                "function that makes it"
            )


def _convert(name: str, value: Any, kind: Any) -> Any:
    if name in ("env", "policy") and not isinstance(value, str):
        value = _import_name(name, value)
    elif name in DEFAULT_MODULES:  # a single entry needs no list
        entries = value if isinstance(value, (list, tuple)) else [value]
        value = [each if isinstance(each, (str, dict, Call)) else _import_name(name, each) for each in entries]
    elif name == "info_keys" and isinstance(value, str):
        value = [value]
    elif name == "ray" and isinstance(value, dict):
        value = {key: _whole(each) for key, each in value.items()}
    else:
        value = _whole(value)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        if choices := [each for each in get_args(kind) if isinstance(each, str)]:
            text += f"; it is one of {', '.join(choices)}"
        elif not path:
            text += f": {value!r}" if ", got " in text else f", got {value!r}"
        raise JobError(f"{name}{path.rstrip('`')}: {text}") from None


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _as_stored(path: str, value: Any) -> Any:
    """Convert tuples to lists, so that a resumed job, which reads JSON, gets the same value.

    Raises `JobError` for a value without a JSON form, such as a date.
    """
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise JobError(f"{path}: the key {key!r} cannot be stored: use a text")
        return {key: _as_stored(f"{path}.{key}", each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_stored(f"{path}[{i}]", each) for i, each in enumerate(value)]
    if (
        type(value) not in (str, int, float, bool, type(None))
        or value in (float("inf"), float("-inf"))
        or value != value
    ):
        raise JobError(
            f"{path}: {value!r} ({type(value).__name__}) cannot be stored: a job holds texts, finite numbers, true and "
            "false, lists and dicts; pass a text, and convert it in the env"
        )
    return value


def _stored_call(call: Call) -> Call:
    return msgspec.structs.replace(call, kwargs=_as_stored(f"kwargs of {call.call}", call.kwargs))


def _import_name(setting: str, value: Any) -> str:
    """Return the name by which workers and resumed jobs import a class or function."""
    home, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(name, str) and getattr(sys.modules.get(DEFAULT_MODULES.get(setting, "")), name, None) is value:
        return f"{DEFAULT_MODULES[setting]}:{name}"
    found: Any = sys.modules.get(str(home))
    for part in str(name).split("."):
        found = getattr(found, part, None)
    if found is None or found is not value:
        raise JobError(
            f"{setting}: {value!r} cannot be imported by workers and resumed jobs: pass a function "
            'or class from the top of a module, or its name, "module:name"'
        )
    return f"{home}:{name}"


def as_record(job: Job) -> dict[str, Any]:
    """Return the job as JSON types.

    >>> as_record(Job(env="CartPole-v1", episodes=2))["episodes"]
    2
    """
    record: dict[str, Any] = msgspec.to_builtins(job)
    return record


def as_display_record(record: dict[str, Any]) -> dict[str, Any]:
    """Replace frozen statistics in the result of `as_record` by their file's name and hash.

    >>> frozen = {"file": "a.json", "sha256": "0123456789abcdef0", "state": {}}
    >>> as_display_record({"transforms": ["DoubleToFloat", {"call": "VecNorm", "frozen": frozen}]})["transforms"][1]
    {'call': 'VecNorm', 'frozen': 'a.json (sha256 0123456789abcdef)'}
    """

    def shown(each: Any) -> Any:
        frozen = each.get("frozen") if isinstance(each, dict) else None
        if not isinstance(frozen, dict):
            return each
        return {**each, "frozen": f"{frozen.get('file')} (sha256 {str(frozen.get('sha256'))[:16]})"}

    entries = record.get("transforms")
    return {**record, "transforms": [shown(each) for each in entries] if isinstance(entries, (list, tuple)) else []}
