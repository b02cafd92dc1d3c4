"""Job: which episodes to collect and how, as one value that a file, the command line or a program makes."""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

try:
    import msgspec
except ImportError as error:
    raise ImportError("collection jobs need msgspec: pip install 'vecenv[job]'") from error

POLICIES = ("random", "mlp")
"""Policies that are named without a module."""
NAMED_IN = {"wrappers": "gymnasium.wrappers", "transforms": "vecenv.transforms"}
"""Modules whose classes are named without them."""
ANYWHERE = frozenset(
    {"backend", "num_workers", "step_timeout", "on_error", "retries", "max_failed"}
    | {"shard_bytes", "shard_seconds", "compress"}
)
"""Settings that may differ when a job is resumed: they decide where episodes are played and how they are stored."""
LARGEST_FILE = 2**20

Some = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Few = Annotated[int, msgspec.Meta(ge=1, le=2**16)]
"""Envs and threads: one more than a machine runs, and few enough to be counted out in memory."""
Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class JobError(RuntimeError):
    """A job cannot run with its settings; the message has the reason, and what to change."""


class Frozen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Statistics as they were when the job file was read: the job does not need the file any more."""

    file: str
    sha256: str
    """Of the file."""
    state: dict[str, Any]
    """As JSON: what the transform's `state_dict` returned."""


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
            counted. "raise": the job ends with the env's error; what is whole is kept.
        retries: How often an episode is played again.
        max_failed: How many episodes may be skipped, those of earlier runs included: with one more the job ends.
        step_timeout: Seconds after which an env that does not return has failed; None: it is waited for.
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
    """

    env: str
    episodes: Some | None = None
    steps: Some | None = None
    seed: Count = 0
    num_envs: Few = 8
    backend: Literal["auto", "dummy", "ray", "shmem", "subproc", "thread"] = "auto"
    num_workers: Some | None = None
    policy: str = "random"
    checkpoint: str | None = None
    device: str = "auto"
    max_episode_steps: Some | None = None
    on_error: Literal["retry", "raise"] = "retry"
    retries: Count = 1
    max_failed: Count = 10
    step_timeout: Seconds | None = None
    shard_bytes: Some = 64 * 2**20
    shard_seconds: Seconds = 30.0
    compress: bool = False
    policy_threads: Few | None = 1
    env_kwargs: dict[str, Any] = {}
    wrappers: tuple[str | Call, ...] = ()
    transforms: tuple[str | Call, ...] = ()
    policy_kwargs: dict[str, Any] = {}

    def __post_init__(self) -> None:
        """Refuse what cannot be, in the names that the job file has."""
        for field in msgspec.structs.fields(self):
            value = _converted(field.name, getattr(self, field.name), field.type)
            msgspec.structs.force_setattr(self, field.name, value)
        if (self.episodes is None) == (self.steps is None):
            raise JobError("a job has either episodes = N or steps = N" + (", not both" if self.steps else ""))
        if self.num_workers is not None and self.backend == "dummy":
            raise JobError('num_workers: the dummy backend has none; use backend = "shmem" or "subproc"')
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
    elif isinstance(value, float) and value.is_integer() and not {*get_args(kind), kind} & {Seconds}:
        value = int(value)  # such as 1e6
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        choices = [each for each in get_args(kind) if isinstance(each, str)]
        if choices:
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


# Jobs from files and texts.


def load_job(path: str | os.PathLike[str], settings: Iterable[str] = ()) -> Job:
    """The job of a file: JSON, TOML or YAML, by the end of its name. `settings` as in `with_settings`.

    Raises `JobError` where there is no such file, it cannot be read, or a name or value in it is wrong.

    Example::

        job = load_job("cartpole.toml", ["num_envs=16"])
        run_job(job, "data/cartpole")
    """
    from collector.jobs.statistics import with_frozen

    file = Path(path)
    read = READERS.get(file.suffix.lower())
    if read is None:
        raise JobError(f"{file} is no job file: its name must end in {', '.join(READERS)}")
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise JobError(f"{file} is no job file: it has more than {LARGEST_FILE:,} bytes")
        content = read(file.read_text("utf-8"))
    except OSError as error:
        raise JobError(f"{file} cannot be read: {error.strerror or error}") from None
    except (ImportError, ValueError, RecursionError) as error:  # what JSON, TOML and YAML readers raise
        raise JobError(f"{file} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise JobError(f"{file} is no job: it holds a {type(content).__name__}, and a job is names with values")
    return with_frozen(make_job(_with_settings(content, settings), str(file)), file.parent)


def make_job(content: Mapping[str, Any], source: str) -> Job:
    """The job that these names and values are. Raises `JobError`, which begins with `source`, where they are none.

    >>> make_job({"env": "CartPole-v1", "episods": 3}, "job.toml")
    Traceback (most recent call last):
    collector.jobs.job.JobError: job.toml: a job has no 'episods'; did you mean 'episodes'?
    """
    unknown = [name for name in content if name not in Job.__struct_fields__]
    if unknown:
        raise JobError(f"{source}: a job has no {unknown[0]!r}; {_suggestion(str(unknown[0]))}")
    if "env" not in content:
        raise JobError(f'{source}: a job has an env, such as env = "CartPole-v1"')
    try:
        return Job(**content)
    except JobError as error:
        raise JobError(f"{source}: {error}") from None


def job_of_settings(settings: Iterable[str]) -> Job:
    """The job that these settings alone are. Raises `JobError`.

    >>> job_of_settings(["env=CartPole-v1", "steps=1e3"]).steps
    1000
    """
    from collector.jobs.statistics import with_frozen

    return with_frozen(make_job(_with_settings({}, settings), "the command line"))


def with_settings(job: Job, settings: Iterable[str]) -> Job:
    """The job with `settings`, each "name=value" or "name.key=value", in the place of its own.

    A value is read as JSON where it is, and as text where it is not. Raises `JobError` for a wrong one.

    >>> with_settings(Job(env="CartPole-v1", steps=50), ["steps=1e3", "backend=dummy"]).steps
    1000
    """
    return make_job(_with_settings(as_record(job), settings), "--set")


def _with_settings(content: dict[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    content = dict(content)
    for setting in settings:
        path, equals, text = setting.partition("=")
        names = path.strip().split(".")
        if not equals or not all(names):
            raise JobError(f"--set takes name=value, got {setting!r}")
        if names[0] not in Job.__struct_fields__:
            raise JobError(f"--set {setting}: a job has no {names[0]!r}; {_suggestion(names[0])}")
        place = content
        for name in names[:-1]:
            inner = place.get(name, {})
            if not isinstance(inner, dict):
                raise JobError(f"--set {setting}: {name} is {inner!r}, which has no {names[-1]!r}")
            place[name] = place = dict(inner)
        place[names[-1]] = _value(names[0], text.strip())
        if names in (["steps"], ["episodes"]) and place[names[0]] is not None:
            # One of the two: the setting replaces whichever the file has.
            content["episodes" if names == ["steps"] else "steps"] = None
    return content


def _value(name: str, text: str) -> Any:
    """`text` as JSON (also `inf` free, and 1,000 as 1000), or as it is. Raises `JobError` for broken JSON."""
    try:
        return json.loads(text, parse_constant=lambda name: name)
    except (ValueError, RecursionError) as error:
        if text[:1] in ("{", "["):
            raise JobError(f"{name}: {text} is no JSON: {error}") from None
        digits = text.replace(",", "")
        return int(digits) if digits.isdecimal() and digits.isascii() else text


def _suggestion(name: str) -> str:
    close = difflib.get_close_matches(name, Job.__struct_fields__, n=1)
    return f"did you mean {close[0]!r}?" if close else f"it has {', '.join(Job.__struct_fields__)}"


def _read_toml(text: str) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


def _read_yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise ImportError("YAML needs PyYAML: pip install 'vecenv[job]'; or write the job as TOML") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


READERS: dict[str, Callable[[str], Any]] = {
    ".toml": _read_toml,
    ".json": json.loads,
    ".yaml": _read_yaml,
    ".yml": _read_yaml,
}
"""What reads the text of a file, by the end of its name."""


# Jobs as JSON.


def as_record(job: Job) -> dict[str, Any]:
    """The job as JSON types: what the head of a folder holds.

    >>> as_record(Job(env="CartPole-v1", episodes=2))["episodes"]
    2
    """
    record: dict[str, Any] = msgspec.to_builtins(job)
    return record


def as_shown(record: dict[str, Any]) -> dict[str, Any]:
    """What `as_record` returned, for people: the name of a file of statistics stands for its numbers.

    >>> frozen = {"file": "a.json", "sha256": "0123456789abcdef0", "state": {}}
    >>> as_shown({"transforms": ["DoubleToFloat", {"call": "VecNorm", "frozen": frozen}]})["transforms"][1]
    {'call': 'VecNorm', 'frozen': 'a.json (sha256 0123456789abcdef)'}
    """
    entries, found = record.get("transforms"), []
    for each in entries if isinstance(entries, (list, tuple)) else ():
        frozen = each.get("frozen") if isinstance(each, dict) else None
        if isinstance(frozen, dict):
            each = {**each, "frozen": f"{frozen.get('file')} (sha256 {str(frozen.get('sha256'))[:16]})"}
        found.append(each)
    return {**record, "transforms": found}
