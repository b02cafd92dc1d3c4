"""From a job to its envs. `make_env` runs where the env lives: in a worker process, with most backends."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import gymnasium

from collector.job.job import Call, Job, JobError
from vecenv import transforms
from vecenv.envs.gym_env import find_spec
from vecenv.tuning.auto_backend import VECTOR_ENVS

WITH_STATISTICS = ("NormalizeObservation", "NormalizeReward", "VecNorm")
"""What carries numbers from one episode to the next: wrappers of gymnasium, and a transform."""
MAX_RESTARTS = 10
"""Failures of an env that the vector env absorbs in a minute; then the job makes all envs anew."""


def make_env(job: Job, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """One env of a job, with its wrappers and transforms."""
    kwargs = {**job.env_kwargs} if render_mode is None else {**job.env_kwargs, "render_mode": render_mode}
    env = _bare_env(job, kwargs)
    try:
        for each in job.wrappers:
            call = _as_call(each)
            env = load_attr(call.call, "a wrapper")(env, **call.kwargs)
        if job.transforms:
            env = transforms.TransformedEnv(env, transforms.Compose(*map(make_transform, job.transforms)))
    except BaseException:
        env.close()
        raise
    return env


def env_fn(job: Job) -> Callable[[], gymnasium.Env[Any, Any]]:
    """What makes one env of a job: gymnasium's own function where that will do, and workers import no more."""
    if job.wrappers or job.transforms or job.env.rpartition(":")[2].isidentifier():
        return partial(make_env, job)
    return partial(gymnasium.make, job.env, max_episode_steps=job.max_episode_steps, **job.env_kwargs)


def _bare_env(job: Job, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    module, _, name = job.env.rpartition(":")
    factory = getattr(importlib.import_module(module), name, None) if module and name.isidentifier() else None
    if factory is None:
        return gymnasium.make(job.env, max_episode_steps=job.max_episode_steps, **kwargs)
    env: gymnasium.Env[Any, Any] = factory(**kwargs)
    if job.max_episode_steps is None:
        return env
    return gymnasium.wrappers.TimeLimit(env, job.max_episode_steps)


def make_transform(each: str | Call) -> transforms.Transform:
    """The transform of an entry of `Job.transforms`."""
    call = _as_call(each)
    kind = getattr(transforms, call.call, None) if ":" not in call.call else load_attr(call.call, "a transform")
    if kind is None:
        raise JobError(f"there is no transform {call.call!r} in vecenv.transforms; one of your own is module:name")
    transform: transforms.Transform = kind(**call.kwargs)
    return transform


def load_attr(name: str, what: str) -> Any:
    """What `module:attr` names. Raises `JobError` where there is nothing of that name."""
    module, colon, attr = name.partition(":")
    if not colon:
        raise JobError(f"{what} is named module:attr, got {name!r}")
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise JobError(f"{name} cannot be imported: {error}") from None
    for part in attr.split("."):
        if not hasattr(found, part):
            raise JobError(f"there is no {part!r} in {name.rpartition(part)[0].rstrip('.:')}, which the job names")
        found = getattr(found, part)
    return found


def make_venv(job: Job) -> Any:
    """The vector env of a job. Failures of envs are absorbed unless the job ends with them."""
    check_env(job)
    workers = {} if job.backend == "dummy" else {"num_workers": job.num_workers}
    options: dict[str, Any] = {"on_error": "restart", "max_restarts": MAX_RESTARTS} if job.on_error == "retry" else {}
    if job.step_timeout is not None and job.backend != "dummy":
        options["step_timeout"] = job.step_timeout
    try:
        return VECTOR_ENVS[job.backend]([env_fn(job)] * job.num_envs, **workers, **options)
    except (gymnasium.error.Error, ImportError) as error:
        raise JobError(f"{job.env} cannot be made: {error}") from None


def check_env(job: Job) -> None:
    """Raise `JobError` where gymnasium has no such env. What is behind a module's name is known in the workers."""
    if ":" in job.env:
        return
    try:
        find_spec(job.env)
    except gymnasium.error.Error as error:
        raise JobError(f"there is no env {job.env}: {error}") from None


def with_statistics(job: Job) -> list[str]:
    """The wrappers and transforms that carry statistics from one episode to the next."""
    entries: Iterable[Call] = map(_as_call, (*job.wrappers, *job.transforms))
    return [each.call for each in entries if each.call.rpartition(":")[2] in WITH_STATISTICS]


def imported_names(job: Job) -> list[str]:
    """What a job names as `module:attr`, and is imported and called."""
    names = [job.env, job.policy, *(_as_call(each).call for each in (*job.wrappers, *job.transforms))]
    return [name for name in names if ":" in name]


def _as_call(each: str | Call) -> Call:
    return Call(each) if isinstance(each, str) else each
