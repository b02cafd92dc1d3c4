"""Jobs from files, from the command line, and from the folders that they have filled; whether one is still the same."""

from __future__ import annotations

import difflib
import json
import os
import platform
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import vecenv
from collector.jobs.job import ANYWHERE, Job, JobError, as_record, as_shown
from collector.jobs.making import hash_of, with_statistics
from collector.jobs.names import check_names
from collector.jobs.transform_statistics import with_frozen
from collector.store.dataset_head import HEAD, make_head, read_head
from collector.store.safe_folder import DatasetError, FolderLock, SafeFolder
from collector.store.writer import check_files, contents

LARGEST_FILE = 2**20


def load_job(path: str | os.PathLike[str], settings: Iterable[str] = ()) -> Job:
    """The job of a file: JSON, TOML or YAML, by the end of its name. `settings` as in `with_settings`.

    Raises `JobError` where there is no such file, it cannot be read, or a name or value in it is wrong.

    Example::

        job = load_job("cartpole.toml", ["num_envs=16"])
        run_job(job, "data/cartpole")
    """
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


SAME = ("observation_space", "action_space", "policy_hash")
"""Entries of the head that are to be the same when a job goes on, besides the job itself."""
OTHER_FOLDER = "choose another folder, or replace what is there with --overwrite"


def check_folder(folder: Path, overwrite: bool) -> None:
    """Make a folder, with its parents, and see that a new job may write there. Raises `DatasetError`.

    The same is asked when the job begins to write; this is early, before envs are made.
    """
    try:
        with SafeFolder.make(folder) as opened:
            check_files(opened)
            FolderLock(opened).close()
            held = contents(opened) if opened.kind(HEAD) and not overwrite else ""
    except OSError as error:
        raise DatasetError(f"cannot write to {folder}: {error.strerror or error}; choose another folder") from error
    if held:
        raise DatasetError(
            f"{folder} already holds {held}: go on with it by `resume {folder}`, choose another folder, or "
            "replace it with --overwrite"
        )


class JobHead(msgspec.Struct, frozen=True):
    """Entries that a job needs in the head of its folder, besides those of every data set."""

    job: dict[str, Any]
    observation_space: dict[str, Any]
    action_space: dict[str, Any]
    policy_hash: str | None
    repeatable: bool
    versions: dict[str, str]
    cpu: str
    device: str


def read_job_head(folder: Path) -> dict[str, Any]:
    """The head of the folder of a job. Raises `DatasetError` where it is none, or no job wrote it."""
    head = read_head(folder)
    if head.get("job") is None:
        raise DatasetError(f"no job wrote {folder}: it has episodes, but nothing says how to play them")
    try:
        msgspec.convert(head, JobHead)
        make_job(head["job"], "job")
    except (msgspec.ValidationError, JobError) as error:
        raise DatasetError(f"{folder / HEAD} is not the head of a job: {error}; restore it, or collect again") from None
    return head


def stored_job(folder: Path) -> Job:
    """The job that a folder says it belongs to, to be compared or shown: not to be run, for it names code.

    Raises `DatasetError` as `read_job_head`.
    """
    return make_job(read_job_head(folder)["job"], str(folder))


def job_of(folder: Path, allow_import: Iterable[str] = ()) -> Job:
    """The job that a folder belongs to, which may be run.

    A folder may come from anybody, and a job names code: what the closed list of `collector.jobs.names` has, and
    classes and functions of the modules in `allow_import`, may be named. Raises `JobError` for all else, `DatasetError`
    as `stored_job`.
    """
    job = stored_job(folder)
    check_names(job, allow_import, folder)
    return job


def job_head(job: Job, batches: Any, device: str) -> dict[str, Any]:
    """The head of the folder of a job: what another run would need to give the same episodes.

    batches: the collector, which has collected a first batch.
    """
    venv, policy = batches.env, batches.policy
    # A policy says by `repeatable = True` that its actions follow from what it gets alone.
    keyed = getattr(policy, "repeatable", False) is True or batches.everything_keyed
    more: dict[str, Any] = {
        "ran_on": {"vector_env": type(venv).__name__, "num_workers": venv.num_workers},
        "cpu": cpu_capability(),
        "device": device,
        "policy_hash": hash_of(policy),
        "repeatable": keyed and not with_statistics(job),
    }
    versions = {"vecenv": vecenv.__version__}
    if "torch" in sys.modules:  # one more that decides about bits, beside numpy and gymnasium
        torch = sys.modules["torch"]
        versions["torch"] = str(torch.__version__)
        if device.startswith("cuda"):
            more["device"] += f" ({torch.cuda.get_device_name(device)})"
    head = make_head(venv.observation_space[0], venv.action_space[0], as_record(job), **more)
    return {**head, "versions": {**head["versions"], **versions}}


def cpu_capability() -> str:
    """The instructions of this CPU that numpy and torch choose by.

    >>> cpu_capability().startswith(platform.machine())
    True
    """
    config: Any = np.show_config(mode="dicts")
    found = config.get("SIMD Extensions", {}).get("found", [])
    torch = sys.modules.get("torch")
    more = [] if torch is None else [f"torch:{torch.backends.cpu.get_cpu_capability()}"]
    return " ".join([platform.machine(), *found, *more])


def check_unchanged(
    folder: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any], may_differ: Collection[str] = ()
) -> None:
    """Raise `JobError` with what differs, where anything does but `may_differ`."""
    changes = [
        f"{name} was {_short(stored.get(name))}, and is {_short(wanted.get(name))}"
        for name in {**stored, **wanted}
        if stored.get(name) != wanted.get(name) and name not in may_differ
    ]
    if changes:
        raise JobError(f"the job of {folder} has changed: {'; '.join(changes)}; {OTHER_FOLDER}")


def check_same_job(folder: Path, stored: Job, wanted: Job) -> None:
    """Raise `JobError` with what differs between the job of a folder and another one that is to go on with it."""
    old, new = (as_shown(as_record(job)) for job in (stored, wanted))
    before, after = old["transforms"], new["transforms"]
    if before != after and len(before) == len(after):  # rather the one that differs than the start of the list
        for i, pair in enumerate(zip(before, after, strict=True)):
            old[f"transforms[{i}]"], new[f"transforms[{i}]"] = pair
        old["transforms"] = new["transforms"] = None
    check_unchanged(folder, old, new, ANYWHERE)


def notes_on(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """List what has changed since a repeatable job began that may change bits, though not what the job is."""
    if not stored.get("repeatable"):
        return []
    old, new = (
        {**head.get("versions", {}), "cpu": head.get("cpu"), "device": head.get("device")} for head in (stored, now)
    )
    return [
        f"{name} was {old.get(name)} when the job began, and is {new[name]}: the same bits are not promised"
        for name in new
        if old.get(name) != new[name]
    ]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
