"""Job: what to collect and how, as one value that a file, the command line or a program makes."""

from __future__ import annotations

import re
from typing import Any, Literal

try:
    import msgspec
except ImportError as error:
    raise ImportError("collection jobs need msgspec: pip install 'vecenv[job]'") from error

Backend = Literal["auto", "dummy", "ray", "shmem", "subproc", "thread"]
WORKERLESS = ("dummy",)
POLICIES = ("random", "mlp")
"""Policies that are named without a module."""
MOST = 2**16
"""Envs and threads; one more than a machine runs, and few enough to be counted out in memory."""
ANYWHERE = frozenset(
    {"backend", "num_workers", "step_timeout", "on_error", "retries", "max_failed"}
    | {"shard_bytes", "shard_seconds", "compress"}
)
"""What may differ when a job is resumed: it decides where episodes are played and how they are stored, not which."""


class JobError(RuntimeError):
    """A job cannot run with its settings; the message has the reason, and what to change."""


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something to call, by its name, with keyword arguments: `{call = "FlattenObservation"}`."""

    call: str
    """`module:attr`; a wrapper of `gymnasium.wrappers` and a transform of `vecenv.transforms` need no module."""
    kwargs: dict[str, Any] = {}


class Frozen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Statistics that a job file names, as they were when it was read: the job does not need the file any more."""

    file: str
    sha256: str
    """Of the file."""
    state: dict[str, Any]
    """As JSON: what the transform's `state_dict` returned."""


class TransformCall(Call, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A transform by its name: `{call = "VecNorm", frozen = "statistics.json"}`."""

    frozen: str | Frozen | None = None
    """A file of statistics, which it takes over and does not update; relative to the job file."""


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A collection job. A file with these names (JSON, TOML, YAML) is one, too: `load_job`.

    Episode e of a job is reset with a seed that follows from `seed` and e alone. With random actions, or a policy that
    returns a distribution, so do its actions: the episodes are the same whatever `backend` and `num_workers` are.
    Raises `JobError` for values that cannot be.

    >>> Job(env="CartPole-v1", episodes=400, seed=3).num_envs
    8
    """

    env: str
    """A gymnasium id, such as "CartPole-v1", "ALE/Pong-v5" or "my_module:MyEnv-v0"; or "my_module:make_env", a
    function."""
    episodes: int | None = None
    """Collect so many whole episodes: numbers 0 to `episodes - 1`."""
    steps: int | None = None
    """Or collect the first episodes, by number, that have so many steps together."""
    seed: int = 0
    """What all seeds follow from."""
    num_envs: int = 8
    """Envs side by side."""
    backend: Backend = "shmem"
    """"dummy" (in this process), "thread" (in its threads), "subproc" or "shmem" (in worker processes), "ray" (in
    actors); "auto": "dummy" or "shmem", whichever is faster, for which one env more is made in a worker."""
    num_workers: int | None = None
    """Worker processes, threads or actors; None: the backend's own choice."""
    policy: str = "random"
    """"random": uniform random actions. "mlp": a small network with random weights, or those of `checkpoint`.
    "my_module:policy": a policy (see `collector.policy`), or a class that is made with the observation space, the
    action space and `policy_kwargs`."""
    checkpoint: str | None = None
    """A file that `torch.save` wrote of the policy's `state_dict()`; read with `weights_only=True`."""
    device: str = "auto"
    """Where the policy runs: "auto" (CUDA where there is one), "cpu", "cuda", "cuda:1"."""
    max_episode_steps: int | None = None
    """Truncate episodes at this length; None: at the limit of the env."""
    on_error: Literal["retry", "raise"] = "retry"
    """"retry": an episode whose env fails is played again alone, `retries` times, and then skipped and counted.
    "raise": the job ends with the env's error; what is whole is kept."""
    retries: int = 1
    """How often an episode is played again."""
    max_failed: int = 10
    """How many episodes may be skipped, those of earlier runs included: with one more the job ends."""
    step_timeout: float | None = None
    """Seconds after which an env that does not return has failed; None: it is waited for."""
    shard_bytes: int = 64 * 2**20
    """Commit a shard when its episodes are this large,"""
    shard_seconds: float = 30.0
    """or when the oldest one is this old. A job that is killed plays again what it has not committed."""
    compress: bool = False
    """Compress the shards: smaller for pictures, slower to write and read."""
    policy_threads: int | None = 1
    """Threads of torch for a policy on the CPU; None: as many as torch uses elsewhere. Its actions may depend on the
    number, because sums are added up in another order."""
    env_kwargs: dict[str, Any] = {}
    """Keyword arguments for the env."""
    wrappers: tuple[str | Call, ...] = ()
    """Wrappers around each env, the innermost first: of `gymnasium.wrappers` by their name, others as `module:attr`."""
    transforms: tuple[str | TransformCall, ...] = ()
    """Transforms of `vecenv.transforms` around each env and its wrappers, in the order of observations. One that has
    statistics (VecNorm, NormalizeReward) goes on with its own when the job is resumed; with `frozen`, a file, it takes
    over those and keeps them, and the job is repeatable."""
    policy_kwargs: dict[str, Any] = {}
    """Keyword arguments for the class of the policy."""

    def __post_init__(self) -> None:
        """Refuse what cannot be, in the names that the job file has."""
        if (self.episodes is None) == (self.steps is None):
            raise JobError("a job has either episodes = N or steps = N" + (", not both" if self.steps else ""))
        for name in ("episodes", "steps", "num_workers", "max_episode_steps", "shard_bytes"):
            _at_least(self, name, 1)
        for name in ("num_envs", "policy_threads"):
            _at_least(self, name, 1, MOST)
        for name in ("seed", "retries", "max_failed"):
            _at_least(self, name, 0)
        for name in ("step_timeout", "shard_seconds"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise JobError(f"{name} must be a positive number of seconds, got {value!r}")
        if self.num_workers is not None and self.backend in WORKERLESS:
            raise JobError(f'num_workers: the {self.backend} backend has none; use backend = "shmem" or "subproc"')
        if self.num_workers is not None and self.num_workers > self.num_envs:
            raise JobError(f"num_workers: {self.num_workers} workers for {self.num_envs} envs; one each is the most")
        if self.policy not in POLICIES and ":" not in self.policy:
            raise JobError(f'policy must be "random", "mlp" or "module:attr", got {self.policy!r}')
        if self.policy == "random" and (self.checkpoint or self.policy_kwargs):
            raise JobError("random actions have no checkpoint and no policy_kwargs; name a policy")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise JobError(f'device must be "auto", "cpu", "cuda" or "cuda:N", got {self.device!r}')


def _at_least(job: Job, name: str, least: int, most: int | None = None) -> None:
    value = getattr(job, name)
    if value is not None and most is not None and value > most:
        raise JobError(f"{name} must be at most {most:,}, got {value:,}")
    if value is not None and value < least:
        raise JobError(f"{name} must be at least {least}, got {value}")


def as_record(job: Job) -> dict[str, Any]:
    """The job as JSON types: what the head of a folder holds.

    >>> as_record(Job(env="CartPole-v1", episodes=2))["episodes"]
    2
    """
    record: dict[str, Any] = msgspec.to_builtins(job)
    return record


def as_shown(job: Job) -> dict[str, Any]:
    """The job as JSON types for people: the name of a file of statistics stands for its numbers."""
    return shown_record(as_record(job))


def shown_record(record: dict[str, Any]) -> dict[str, Any]:
    """The same of what `as_record` returned.

    >>> frozen = {"file": "a.json", "sha256": "0123456789abcdef0", "state": {}}
    >>> shown_record({"transforms": ["DoubleToFloat", {"call": "VecNorm", "frozen": frozen}]})["transforms"][1]
    {'call': 'VecNorm', 'frozen': 'a.json (sha256 0123456789abcdef)'}
    """
    entries, found = record.get("transforms"), []
    if not isinstance(entries, (list, tuple)):
        return record
    for each in entries:
        frozen = each.get("frozen") if isinstance(each, dict) else None
        if isinstance(frozen, dict):
            each = {**each, "frozen": f"{frozen.get('file')} (sha256 {str(frozen.get('sha256'))[:16]})"}
        found.append(each)
    return {**record, "transforms": found}
