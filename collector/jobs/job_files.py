"""Read a `Job` from a file, from command-line flags, or from the folder of its data set."""

from __future__ import annotations

import difflib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import vecenv
from collector.jobs.builders import names_with_statistics
from collector.jobs.job import CHANGEABLE_SETTINGS, Job, JobError, as_display_record, as_record
from collector.jobs.names import check_names
from collector.jobs.transform_statistics import load_frozen_statistics
from collector.store.dataset_head import HEAD, changes, make_head, read_head
from collector.store.safe_folder import DatasetError

MAX_FILE_BYTES = 2**20
JSON, TOML, YAML = msgspec.json.decode, msgspec.toml.decode, msgspec.yaml.decode
PARSERS: dict[str, Callable[[str], Any]] = {".toml": TOML, ".json": JSON, ".yaml": YAML, ".yml": YAML}


def load_job(path: str | os.PathLike[str], settings: Iterable[str] = ()) -> Job:
    """Read a job from a JSON, TOML or YAML file. `settings` ("name=value") override the file, see `with_settings`.

    Raises `JobError` if the file cannot be read, or has a wrong name or value.

    Example::

        job = load_job("cartpole.toml", ["num_envs=16"])
        run_job(job, "data/cartpole")
    """
    file = Path(path)
    read = PARSERS.get(file.suffix.lower())
    if read is None:
        raise JobError(f"{file} is not a job file: its name must end in {', '.join(PARSERS)}")
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise JobError(f"{file} is not a job file: it has more than {MAX_FILE_BYTES:,} bytes")
        content = read(file.read_text("utf-8-sig"))  # skips a byte order mark
    except OSError as error:
        raise JobError(f"{file} cannot be read: {error.strerror or error}") from None
    except (ImportError, ValueError, RecursionError) as error:  # YAML needs PyYAML
        raise JobError(f"{file} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise JobError(f"{file} is not a job: it holds a {type(content).__name__} instead of names with values")
    return load_frozen_statistics(make_job(_with_settings(content, settings), str(file)), file.parent)


def make_job(content: Mapping[str, Any], source: str) -> Job:
    """Build a job. The message of a `JobError` begins with `source`.

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


def job_from_settings(settings: Iterable[str]) -> Job:
    """Build a job from texts "name=value".

    >>> job_from_settings(["env=CartPole-v1", "steps=1e3"]).steps
    1000
    """
    return load_frozen_statistics(make_job(_with_settings({}, settings), "the command line"))


def with_settings(job: Job, settings: Iterable[str]) -> Job:
    """Return the job with changed settings. Each setting is a text "name=value" or "name.key=value".

    A value is JSON, a number with commas (1,000), or text. Raises `JobError` for a wrong value.

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
        place[names[-1]] = _parse_value(names[0], text.strip())
        if names in (["steps"], ["episodes"]) and place[names[0]] is not None:
            # A job has either steps or episodes, so one setting removes the other.
            content["episodes" if names == ["steps"] else "steps"] = None
    return content


def _parse_value(name: str, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        if text[:1] in ("{", "["):
            raise JobError(f"{name}: {text} is not JSON: {error}") from None
        digits = text.replace(",", "")
        return int(digits) if digits.isdecimal() and digits.isascii() else text


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


def _suggestion(name: str) -> str:
    close = difflib.get_close_matches(name, Job.__struct_fields__, n=1)
    return f"did you mean {close[0]!r}?" if close else f"it has {', '.join(Job.__struct_fields__)}"


class JobHead(msgspec.Struct, frozen=True):
    job: dict[str, Any]
    observation_space: dict[str, Any]
    action_space: dict[str, Any]
    policy_hash: str | None
    repeatable: bool
    versions: dict[str, str]
    cpu: str
    device: str


def read_job(folder: Path) -> tuple[Job, dict[str, Any]]:
    """Read the job and the head (dataset.json) of a folder. Call `check_names` before you run an untrusted job.

    Raises `DatasetError` if no job wrote the folder, or the head is invalid.
    """
    head = read_head(folder)
    if head.get("job") is None:
        raise DatasetError(f"no job wrote {folder}: it has episodes, but nothing says how to play them")
    try:
        msgspec.convert(head, JobHead)
        return make_job(head["job"], "job"), head
    except (msgspec.ValidationError, JobError) as error:
        raise DatasetError(f"{folder / HEAD} is not the head of a job: {error}; restore it, or collect again") from None


def load_stored_job(folder: Path, allow_import: Iterable[str] = ()) -> Job:
    job, _ = read_job(folder)
    check_names(job, allow_import, folder)
    return job


def job_head(job: Job, batches: Any, device: str, policy_hash: str | None, env_difference: str = "") -> dict[str, Any]:
    """Build the head (dataset.json) of a job's data set.

    `batches`: collector after its first batch. `policy_hash`: hash of the policy before the first batch, because acting
    may change the policy. `env_difference`: result of `find_env_difference`.
    """
    venv, policy, torch = batches.env, batches.policy, sys.modules.get("torch")
    # A policy with `repeatable = True` promises that actions depend only on inputs.
    reason = "" if getattr(policy, "repeatable", False) is True else batches.not_keyed_because
    if not reason and (carried := names_with_statistics(job)):
        reason = f"{', '.join(carried)} carries statistics from one episode to the next; frozen ones do not"
    reason = reason or env_difference
    name = f" ({torch.cuda.get_device_name(device)})" if torch is not None and device.startswith("cuda") else ""
    head = make_head(
        venv.observation_space[0],
        venv.action_space[0],
        as_record(job),
        ran_on={"vector_env": type(venv).__name__, "num_workers": venv.num_workers},
        cpu=cpu_capability(),
        device=f"{device}{name}",
        policy_hash=policy_hash,
        repeatable=not reason,
        not_repeatable_because=reason,
    )
    head["versions"] |= {"vecenv": vecenv.__version__, **({} if torch is None else {"torch": str(torch.__version__)})}
    return head


def cpu_capability() -> str:
    """Return the CPU instructions that numpy and torch use.

    >>> cpu_capability().startswith(platform.machine())
    True
    """
    config: Any = np.show_config(mode="dicts")
    found = config.get("SIMD Extensions", {}).get("found", [])
    torch = sys.modules.get("torch")
    more = [] if torch is None else [f"torch:{torch.backends.cpu.get_cpu_capability()}"]
    return " ".join([platform.machine(), *found, *more])


def check_unchanged(folder: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    if found := changes(stored, wanted):
        advice = "choose another folder, or replace what is there with --overwrite"
        raise JobError(f"the job of {folder} has changed: {'; '.join(found)}; {advice}")


def fixed_settings(job: Job) -> dict[str, Any]:
    record = as_display_record(as_record(job))
    entries = {f"transforms[{i}]": each for i, each in enumerate(record.pop("transforms"))}
    return {name: value for name, value in {**record, **entries}.items() if name not in CHANGEABLE_SETTINGS}


def check_head(folder: Path, stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describe differences of two runs (versions, CPU, device) that may change the episodes of a repeatable job.

    Raises `JobError` if spaces or policy differ.
    """
    names = ("observation_space", "action_space", "policy_hash")
    check_unchanged(folder, *({name: head[name] for name in names} for head in (stored, now)))
    old, new = ({**head["versions"], "cpu": head["cpu"], "device": head["device"]} for head in (stored, now))
    found = changes(old, new) if stored["repeatable"] else []
    return [f"{each}, since the job began: the same bits are not promised" for each in found]
