"""Jobs from files, and settings that take the place of what is in a file."""

from __future__ import annotations

import difflib
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from collector.job.job import Job, JobError, as_record
from collector.job.statistics.frozen import with_frozen

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
    except ImportError as error:
        raise JobError(f"{file} cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:  # what JSON, TOML and YAML readers raise
        raise JobError(f"{file} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise JobError(f"{file} is no job: it holds a {type(content).__name__}, and a job is names with values")
    return with_frozen(make_job(_with_settings(content, settings), str(file)), file.parent)


def make_job(content: Mapping[str, Any], source: str) -> Job:
    """The job that these names and values are. Raises `JobError`, which begins with `source`, where they are none.

    >>> make_job({"env": "CartPole-v1", "episods": 3}, "job.toml")
    Traceback (most recent call last):
    collector.job.job.JobError: job.toml: a job has no 'episods'; did you mean 'episodes'?
    """
    unknown = [name for name in content if name not in Job.__struct_fields__]
    if unknown:
        raise JobError(f"{source}: a job has no {unknown[0]!r}; {_suggestion(str(unknown[0]))}")
    if "env" not in content:
        raise JobError(f'{source}: a job has an env, such as env = "CartPole-v1"')
    try:
        return msgspec.convert(_in_lists(_whole_numbers(content)), Job)
    except JobError as error:
        raise JobError(f"{source}: {error}") from None
    except msgspec.ValidationError as error:
        raise JobError(f"{source}: {_in_words(error)}") from None


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
        place[names[-1]] = _value(text.strip())
        if names in (["steps"], ["episodes"]) and place[names[0]] is not None:
            # One of the two: the setting replaces whichever the file has.
            content["episodes" if names == ["steps"] else "steps"] = None
    return content


def _value(text: str) -> Any:
    """`text` as JSON (also `inf` free, and 1,000 as 1000), or as it is."""
    try:
        return json.loads(text, parse_constant=lambda name: name)
    except (ValueError, RecursionError):
        digits = text.replace(",", "")
        return int(digits) if digits.isdecimal() and digits.isascii() else text


def _whole_numbers(content: Mapping[str, Any]) -> dict[str, Any]:
    """Floats that are whole numbers, such as 1e6, as integers, where a job takes integers."""

    def whole(name: str, value: Any) -> Any:
        is_count = name not in ("step_timeout", "shard_seconds")
        if isinstance(value, float) and is_count and math.isfinite(value) and value.is_integer():
            return int(value)
        return value

    return {name: whole(name, value) for name, value in content.items()}


def _in_lists(content: dict[str, Any]) -> dict[str, Any]:
    """One wrapper or transform is a list of one."""
    lists = {name: content[name] for name in ("wrappers", "transforms") if name in content}
    return content | {name: [each] if isinstance(each, (str, dict)) else each for name, each in lists.items()}


def _suggestion(name: str) -> str:
    close = difflib.get_close_matches(name, Job.__struct_fields__, n=1)
    return f"did you mean {close[0]!r}?" if close else f"it has {', '.join(Job.__struct_fields__)}"


def _in_words(error: msgspec.ValidationError) -> str:
    """The message of msgspec with the name first: "num_envs: Expected `int`, got `str`"."""
    text, _, path = str(error).partition(" - at `$")
    return f"{path.rstrip('`').lstrip('.')}: {text}" if path.strip("`") else text


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
