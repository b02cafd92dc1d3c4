"""From a job to its envs. `make_env` runs where the env lives: in a worker process, with most backends."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium

from collector.job.job import Call, Job, JobError, TransformCall
from collector.job.names import ATARI_MODULE, TRANSFORM, WRAPPER, as_call, find_class
from collector.job.statistics.frozen import freeze
from collector.job.statistics.state_json import from_json
from vecenv import transforms
from vecenv.envs.gym_env import find_spec
from vecenv.transforms.compose import flat
from vecenv.tuning.auto_backend import VECTOR_ENVS

WITH_STATISTICS = ("NormalizeObservation", "NormalizeReward")
"""Wrappers of gymnasium that carry numbers from one episode to the next."""
MAX_RESTARTS = 10
"""Failures of an env that the vector env absorbs in a minute; then the job makes all envs anew."""


def make_env(
    job: Job, render_mode: str | None = None, statistics: dict[str, Any] | None = None
) -> gymnasium.Env[Any, Any]:
    """One env of a job, with its wrappers and transforms. `statistics`: what these had learnt, as JSON types."""
    kwargs = {**job.env_kwargs} if render_mode is None else {**job.env_kwargs, "render_mode": render_mode}
    env = _bare_env(job, kwargs)
    try:
        for each in job.wrappers:
            call = as_call(each)
            env = find_class(WRAPPER, call.call)(env, **call.kwargs)
        if job.transforms:
            env = _transformed(env, job, statistics)
    except BaseException:
        env.close()
        raise
    return env


def env_fn(job: Job, statistics: dict[str, Any] | None = None) -> Callable[[], gymnasium.Env[Any, Any]]:
    """What makes one env of a job: gymnasium's own function where that will do, and workers import no more."""
    if job.wrappers or job.transforms or job.env.rpartition(":")[2].isidentifier():
        return partial(make_env, job, statistics=statistics)
    return partial(gymnasium.make, full_id(job.env), max_episode_steps=job.max_episode_steps, **job.env_kwargs)


def _bare_env(job: Job, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    module, _, name = job.env.rpartition(":")
    factory = getattr(importlib.import_module(module), name, None) if module and name.isidentifier() else None
    if factory is None:
        return gymnasium.make(full_id(job.env), max_episode_steps=job.max_episode_steps, **kwargs)
    env: gymnasium.Env[Any, Any] = factory(**kwargs)
    if job.max_episode_steps is None:
        return env
    return gymnasium.wrappers.TimeLimit(env, job.max_episode_steps)


def _transformed(env: gymnasium.Env[Any, Any], job: Job, statistics: dict[str, Any] | None) -> gymnasium.Env[Any, Any]:
    chain = [make_transform(each) for each in job.transforms]
    transformed = transforms.TransformedEnv(env, chain)
    if statistics is not None:
        try:
            transformed.load_state_dict(from_json(statistics))
        except (ValueError, TypeError, KeyError) as error:
            raise JobError(f"the statistics that are stored do not fit the transforms of the job: {error}") from None
    for each, transform in zip(job.transforms, chain, strict=True):
        if isinstance(each, TransformCall) and each.frozen is not None:
            freeze(transform, each)
    return transformed


def make_transform(each: str | Call) -> transforms.Transform:
    """The transform of an entry of `Job.transforms`."""
    call = as_call(each)
    kind = find_class(TRANSFORM, call.call)
    try:
        transform: transforms.Transform = kind(**call.kwargs)
    except (TypeError, ValueError) as error:
        raise JobError(f"the transform {call.call} cannot be made: {error}") from error
    return transform


def make_venv(job: Job, statistics: Sequence[dict[str, Any]] | None = None) -> Any:
    """The vector env of a job. Failures of envs are absorbed unless the job ends with them. `statistics`: what the
    transforms of each env had learnt.
    """
    check_env(job)
    if statistics is None:
        env_fns = [env_fn(job)] * job.num_envs
    else:
        env_fns = [env_fn(job, each) for each in statistics[: job.num_envs]]
    workers = {} if job.backend == "dummy" else {"num_workers": job.num_workers}
    options: dict[str, Any] = {"on_error": "restart", "max_restarts": MAX_RESTARTS} if job.on_error == "retry" else {}
    if job.step_timeout is not None and job.backend != "dummy":
        options["step_timeout"] = job.step_timeout
    try:
        return VECTOR_ENVS[job.backend](env_fns, **workers, **options)
    except (gymnasium.error.Error, ImportError) as error:
        raise JobError(f"{job.env} cannot be made: {error}") from None
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise JobError(f"{job.env} cannot be made with these kwargs: {error}") from error


def check_env(job: Job) -> None:
    """Raise `JobError` where gymnasium has no such env. What is behind a module's name is known in the workers."""
    name = full_id(job.env)
    if name.startswith(ATARI_MODULE) and importlib.util.find_spec(ATARI_MODULE[:-1]) is None:
        raise JobError(f"{job.env} needs ale-py: pip install 'vecenv[atari]'")
    if ":" in name:
        return
    try:
        find_spec(name)
    except gymnasium.error.Error as error:
        raise JobError(
            f"there is no env {job.env}: {error} One that a package registers is found as package:{job.env}"
        ) from None


def full_id(env: str) -> str:
    """The id of an env with the module that registers it, where that is known.

    >>> full_id("ALE/Pong-v5"), full_id("CartPole-v1")
    ('ale_py:ALE/Pong-v5', 'CartPole-v1')
    """
    return f"{ATARI_MODULE}{env}" if env.startswith("ALE/") else env


def with_statistics(job: Job) -> list[str]:
    """The wrappers and transforms that carry statistics from one episode to the next; what is frozen does not."""
    return [*wrappers_with_statistics(job), *transforms_with_statistics(job)]


def wrappers_with_statistics(job: Job) -> list[str]:
    """The wrappers that carry statistics from one episode to the next, which cannot be stored."""
    names = [as_call(each).call for each in job.wrappers]
    return [name for name in names if name.rpartition(":")[2] in WITH_STATISTICS]


def transforms_with_statistics(job: Job) -> list[str]:
    """The transforms that do, and are not frozen: what they have learnt is stored with the episodes."""

    def learns(each: str | Call) -> bool:
        if isinstance(each, TransformCall) and each.frozen is not None:
            return False
        parts = flat(make_transform(each))
        return any(type(part).state_dict is not transforms.Transform.state_dict for part in parts)

    return [as_call(each).call for each in job.transforms if learns(each)]
