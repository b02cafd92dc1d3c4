"""Build the vector env and the policy that a `Job` describes."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from collector.episodes.seeds import action_seed, episode_seed
from collector.jobs.job import BUILT_IN_POLICIES, Call, Job, JobError
from collector.jobs.names import ATARI_MODULE, TRANSFORM, WRAPPER, as_call, find_class, load_attr, names_of_script
from collector.jobs.transform_statistics import freeze, from_json
from collector.policy.keyed_noise import restored_generators
from vecenv import transforms
from vecenv.arguments import NamedEnv
from vecenv.envs.gym_env import find_spec
from vecenv.errors import OneEnvPerProcess
from vecenv.transforms.compose import flat
from vecenv.tuning.auto_backend import VECTOR_ENVS, retried_alone
from vecenv.tuning.repeats import RepeatProbe

WITH_STATISTICS = ("NormalizeObservation", "NormalizeReward")
"""gymnasium's wrappers that carry statistics from one episode to the next."""
MLP = "collector.policy.mlp:MLPPolicy"
WRONG_ENV = re.compile(
    "unexpected keyword argument|multiple values for|required (positional|keyword-only) argument|expected an env with"
)
MAX_RESTARTS = 10
"""Restarts per env and minute. If an env fails more often, the job creates a new vector env."""
CHECK_TIMEOUT = 120.0
"""Seconds after which a worker that checks whether the env repeats episodes is ended."""
NOT_CHECKED = "not checked, because the check failed with "


def make_env(
    job: Job, render_mode: str | None = None, statistics: dict[str, Any] | None = None, program: Mapping[str, Any] = {}
) -> gymnasium.Env[Any, Any]:
    """Create an env of a job, with wrappers and transforms.

    `statistics`: running statistics of the transforms, as JSON types. `program`: objects of the user's `__main__` by
    name ("__main__:make_env"), because workers cannot import `__main__`.
    """
    if job.worker_command:
        raise JobError(f"{job.env} is made by the job's worker_command, so this program cannot make it")
    kwargs = {} if render_mode is None else {"render_mode": render_mode}
    factory = program.get(job.env) or _env_function(job.env)
    # Each object gets a copy of its arguments, because it may change them.
    env = _maker(job)(**kwargs) if factory is None else factory(**deepcopy(job.env_kwargs) | kwargs)
    try:
        if factory is not None and job.max_episode_steps is not None:
            env = gymnasium.wrappers.TimeLimit(env, job.max_episode_steps)
        for each in map(as_call, job.wrappers):
            wrapper = program.get(each.call) or find_class(WRAPPER, each.call)
            with _naming(f"the wrapper {each.call}"):
                env = wrapper(env, **deepcopy(each.kwargs))
        return _add_transforms(env, job, statistics, program) if job.transforms else env
    except BaseException:
        env.close()
        raise


def _maker(job: Job) -> Callable[..., gymnasium.Env[Any, Any]]:
    limit = {} if job.max_episode_steps is None else {"max_episode_steps": job.max_episode_steps}
    return partial(gymnasium.make, id_with_module(job.env), **deepcopy(job.env_kwargs) | limit)


def _env_function(name: str) -> Any:
    module, _, attr = name.rpartition(":")
    if not module or not attr.isidentifier():
        return None
    try:
        return load_attr(name)
    except JobError:
        with suppress(gymnasium.error.Error):  # `attr` is an env id without a version
            find_spec(attr)
            return None
        raise


def _add_transforms(
    env: Any, job: Job, statistics: dict[str, Any] | None, program: Mapping[str, Any]
) -> gymnasium.Env[Any, Any]:
    chain = [make_transform(each, program) for each in map(as_call, job.transforms)]
    with _naming(f"the transforms of {job.env}"):
        transformed = transforms.TransformedEnv(env, chain)
    if statistics is not None:
        try:
            transformed.load_state_dict(from_json(statistics))
        except (ValueError, TypeError, KeyError) as error:
            raise JobError(f"the statistics that are stored do not fit the transforms of the job: {error}") from None
    for each, transform in zip(map(as_call, job.transforms), chain, strict=True):
        if each.frozen is not None:
            freeze(transform, each)
    return transformed


def make_transform(each: Call, program: Mapping[str, Any] = {}) -> transforms.Transform:
    transform = program.get(each.call) or find_class(TRANSFORM, each.call)
    with _naming(f"the transform {each.call}"):
        made: transforms.Transform = transform(**deepcopy(each.kwargs))
    return made


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Raise `JobError` for the errors with which constructors refuse arguments."""
    try:
        yield
    except (TypeError, ValueError, AssertionError) as error:
        raise JobError(f"{what} cannot be made: {error}") from error


def env_fn(job: Job, statistics: dict[str, Any] | None = None) -> Callable[[], gymnasium.Env[Any, Any]]:
    """Return a function that creates an env. Prefer `gymnasium.make`, because workers import less for this function.

    With a `worker_command`, return the name and the arguments of the function.
    """
    if job.worker_command:
        limit = {} if job.max_episode_steps is None else {"max_episode_steps": job.max_episode_steps}
        return NamedEnv(id_with_module(job.env), job.env_kwargs | limit)
    nested = any(isinstance(each, (dict, list)) for each in job.env_kwargs.values())
    if nested or job.wrappers or job.transforms or job.env.rpartition(":")[2].isidentifier():
        program = {name: load_attr(name) for name in names_of_script(job)}
        return partial(make_env, job, statistics=statistics, program=program)
    return _maker(job)


def make_venv(job: Job, statistics: Sequence[dict[str, Any]] | None = None) -> Any:
    check_env_name(job)
    each_of = [None] * job.num_envs if statistics is None else statistics[: job.num_envs]
    env_fns = [env_fn(job, each) for each in each_of]
    # Views of shared memory are fastest. A user's policy gets copies, because the policy may keep its inputs.
    options: dict[str, Any] = {"copy": job.policy not in BUILT_IN_POLICIES}
    if job.backend != "dummy":
        options["num_workers"] = job.num_workers
    if job.on_error == "retry":
        options |= {"on_error": "restart", "max_restarts": MAX_RESTARTS}
    if job.step_timeout is not None:
        options["step_timeout"] = job.step_timeout
    if job.worker_command:
        options["worker_command"] = list(job.worker_command)
    if job.spare_envs:
        options["spare_envs"] = job.spare_envs
    if job.recycle_after is not None:
        options["recycle_after"] = job.recycle_after
    make = partial(VECTOR_ENVS[job.backend], env_fns, **options)
    try:
        if job.num_workers is not None or job.backend not in ("shmem", "subproc", "ray"):  # "auto" retries by itself
            return make()
        return retried_alone(make, partial(make, num_workers=job.num_envs), job.num_envs)
    except (gymnasium.error.Error, ImportError, OneEnvPerProcess) as error:
        raise JobError(f"{job.env} cannot be made: {error}") from None
    except TypeError as error:
        if not WRONG_ENV.search(str(error)):
            raise
        raise JobError(f"{job.env} cannot be made with these kwargs: {error}") from error


def find_env_difference(job: Job) -> str:
    """Play the first steps of episodes in two more envs. Return why the env does not repeat episodes, or "".

    If the check fails, the result begins with `NOT_CHECKED`. The check runs where the envs of the job run, but in a
    worker process for "auto", and in the calling thread for "thread". The generators of the process are restored.
    """
    if job.worker_command:
        return f"{NOT_CHECKED}a worker_command"
    backend = {"dummy": "dummy", "thread": "dummy", "ray": "ray"}.get(job.backend, "shmem")
    seeds = [(episode_seed(job.seed, number), action_seed(job.seed, number)) for number in range(2)]
    limits = {} if backend == "dummy" else {"start_timeout": CHECK_TIMEOUT, "step_timeout": CHECK_TIMEOUT}
    try:
        with (
            restored_generators(),
            VECTOR_ENVS[backend]([partial(RepeatProbe, env_fn(job), seeds)], **limits) as venv,
        ):
            return str(venv.call("find_difference")[0])
    except Exception as error:
        text = str(error).strip().partition("\n")[0].partition(";")[0]  # advice and stacks follow
        return f"{NOT_CHECKED}{type(error).__name__}: {text}".rstrip(": ")


def check_env_name(job: Job) -> None:
    """Raise `JobError` for an unknown env id, or if ale-py is missing. "module:Id-v0" passes without an import."""
    if job.worker_command:  # which may know other envs
        return
    name = id_with_module(job.env)
    if name.startswith(ATARI_MODULE) and importlib.util.find_spec(ATARI_MODULE[:-1]) is None:
        raise JobError(f"{job.env} needs ale-py: pip install 'vecenv[atari]'")
    if ":" in name:
        return
    try:
        find_spec(name)
    except gymnasium.error.Error as error:
        raise JobError(
            f"there is no env {job.env}: {error} If a package registers the env, use package:{job.env}"
        ) from None


def id_with_module(env: str) -> str:
    """Put "ale_py:" before Atari ids, because this module registers them.

    >>> id_with_module("ALE/Pong-v5"), id_with_module("CartPole-v1")
    ('ale_py:ALE/Pong-v5', 'CartPole-v1')
    """
    return f"{ATARI_MODULE}{env}" if env.startswith("ALE/") else env


def wrappers_with_statistics(job: Job) -> list[str]:
    """Return the names of wrappers with running statistics. A job cannot store these statistics."""
    names = [as_call(each).call for each in job.wrappers]
    return [name for name in names if name.rpartition(":")[2] in WITH_STATISTICS]


def transforms_with_statistics(job: Job) -> list[str]:
    """Return the names of transforms with running (not frozen) statistics. A job stores these statistics."""
    calls = [each for each in map(as_call, job.transforms) if each.frozen is None]
    base = transforms.Transform.state_dict
    return [
        each.call for each in calls if any(type(part).state_dict is not base for part in flat(make_transform(each)))
    ]


def names_with_statistics(job: Job) -> list[str]:
    return [*wrappers_with_statistics(job), *transforms_with_statistics(job)]


def device_of_policy(job: Job) -> str:
    if job.policy == "random":
        return "cpu"
    try:
        from collector.device.tensors import resolve_device

        return str(resolve_device(job.device))
    except (ImportError, ValueError) as error:
        of_torch = job.policy == "mlp" or job.checkpoint or job.device not in ("auto", "cpu")
        if isinstance(error, ImportError) and not of_torch:
            return "cpu"  # policies without torch need no device
        raise JobError(str(error)) from None


def make_job_policy(job: Job, venv: Any, device: str) -> Any:
    if job.policy == "random":
        return None
    policy, kwargs = job.policy, job.policy_kwargs
    made: Any = load_attr(MLP if policy == "mlp" else policy)
    if isinstance(made, type):
        made = _make_seeded(job, made, (venv.observation_space[0], venv.action_space[0]), kwargs)
    elif kwargs:
        raise JobError(f"policy_kwargs are for a class, and {policy} is {made!r}")
    if not callable(made):
        raise JobError(f"{policy} is not a policy: {made!r} cannot be called with observations")
    if job.checkpoint is not None:
        _load_weights(made, job.checkpoint)
    if hasattr(made, "parameters") and hasattr(made, "to"):
        made = made.to(device)
    return made


def _make_seeded(job: Job, kind: type, spaces: tuple[Any, Any], kwargs: dict[str, Any]) -> Any:
    try:
        with ExitStack() as seeded:
            with suppress(ImportError):
                import torch

                seeded.enter_context(restored_generators())
                torch.manual_seed(job.seed)
            return kind(*spaces, **deepcopy(kwargs))
    except (TypeError, ValueError) as error:
        if job.policy == "mlp":
            raise JobError(f"{job.env}: {error}; try the random policy") from error
        called = f"{kind.__name__}(observation_space, action_space{', **policy_kwargs' * bool(kwargs)})"
        raise JobError(f"the job makes its policy by {called}, which failed: {error}") from error


def _load_weights(policy: Any, checkpoint: str) -> None:
    import torch

    if not hasattr(policy, "load_state_dict"):
        raise JobError(f"checkpoint: {policy!r} has no load_state_dict to load {checkpoint} with")
    path = Path(checkpoint)
    if not path.is_file():
        raise JobError(f"checkpoint: there is no file {path}")
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the class depends on the file
        raise JobError(f"checkpoint: {path} cannot be read with weights_only=True: {error}") from None
    try:
        policy.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError, KeyError) as error:
        raise JobError(f"checkpoint: {path} does not fit {type(policy).__name__}: {error}") from None


def check_cluster(job: Job, cluster: str | None, actors: int | None) -> None:
    if cluster is None:
        if actors is not None:
            raise JobError(f'cluster_actors = {actors} are for a cluster: pass cluster = "auto" too (--cluster auto)')
        return
    if actors is not None and not (isinstance(actors, (int, np.integer)) and actors >= 1):
        raise JobError(f"cluster_actors must be an integer of at least 1, got {actors!r}")
    if names := names_with_statistics(job):
        raise JobError(
            f"the statistics of {', '.join(names)} would differ between the tasks of a cluster: freeze "
            'them (frozen = "statistics.json"), or run the job without --cluster'
        )
    if job.backend == "ray":
        raise JobError(
            'backend = "ray" puts each env into an actor, and with --cluster whole episodes are given to tasks: leave '
            'it out, or name the backend of each task, such as backend = "shmem"'
        )
    name, _, number = job.device.partition(":")
    if number:
        raise JobError(f'device = "{job.device}": a task sees its own GPU only; use device = "{name}"')
