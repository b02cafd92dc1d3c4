"""From a job to its policy, and what is stored of it: the hash of its weights or of its source."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from typing import Any

from collector.job.job import Job, JobError
from collector.job.names import load_attr

DESCRIPTIONS = {"mlp": "a network with random weights, not trained", "random": "uniform random actions"}


def describe(job: Job) -> str:
    """The policy in words."""
    words = DESCRIPTIONS.get(job.policy, job.policy)
    return f"{job.policy}, weights of {job.checkpoint}" if job.checkpoint else words


def resolve_device(job: Job) -> str:
    """The device that the policy runs on. Raises `JobError` where there is none of that name."""
    if job.policy == "random":
        return "cpu"
    try:
        from collector.device.tensors import resolve_device as resolve

        return str(resolve(job.device))
    except ImportError as error:
        if job.policy == "mlp" or job.checkpoint or job.device.startswith("cuda"):
            raise JobError(str(error)) from None
        return "cpu"  # a function of arrays, without torch
    except ValueError as error:
        raise JobError(str(error)) from None


def make_policy(job: Job, observation_space: Any, action_space: Any, device: str) -> Any:
    """The policy of a job; None for random actions. Raises `JobError` where the spaces or the checkpoint do not fit."""
    if job.policy == "random":
        return None
    if job.policy == "mlp":
        policy = _make_mlp(job, observation_space, action_space)
    else:
        policy = load_attr(job.policy)
        if isinstance(policy, type):
            policy = _make(job, policy, observation_space, action_space, job.policy_kwargs)
        elif job.policy_kwargs:
            raise JobError(f"policy_kwargs are for a class, and {job.policy} is {policy!r}")
        if not callable(policy):
            raise JobError(f"{job.policy} is no policy: {policy!r} cannot be called with observations")
    if job.checkpoint is not None:
        _load_weights(policy, job.checkpoint)
    if hasattr(policy, "parameters") and hasattr(policy, "to"):
        policy = policy.to(device)
    return policy


def hash_of(policy: Any) -> str | None:
    """A hash of a policy's weights, or of its source where it has none; None for random actions and where neither can
    be read.
    """
    digest = hashlib.sha256()
    if hasattr(policy, "state_dict"):
        for name, value in sorted(policy.state_dict().items()):
            array = value.detach().cpu().contiguous()
            digest.update(f"{name} {array.dtype} {tuple(array.shape)} ".encode())
            digest.update(array.flatten().view(_bytes_type()).numpy().tobytes())
        return digest.hexdigest()
    if policy is None:
        return None
    try:
        source = inspect.getsource(policy if inspect.isroutine(policy) else type(policy))
    except (OSError, TypeError):
        return None
    return hashlib.sha256(source.encode()).hexdigest()


def declares_repeatable(policy: Any) -> bool:
    """Whether a policy says of itself, by `repeatable = True`, that its actions follow from what it gets alone."""
    return getattr(policy, "repeatable", False) is True


def _bytes_type() -> Any:
    import torch

    return torch.uint8


def _make_mlp(job: Job, observation_space: Any, action_space: Any) -> Any:
    try:
        from collector.policy.mlp import MLPPolicy
    except ImportError as error:
        raise JobError(str(error)) from None
    # The collector draws from a distribution by the key of the episode and the step.
    kwargs = {"as_distribution": True, **job.policy_kwargs}
    return _make(job, MLPPolicy, observation_space, action_space, kwargs)


def _make(job: Job, kind: type, observation_space: Any, action_space: Any, kwargs: dict[str, Any]) -> Any:
    """An object of this class; weights that are drawn follow from the job's seed, and the program's stream goes on."""
    try:
        import torch
    except ImportError:
        return _call(job, kind, observation_space, action_space, kwargs)
    with torch.random.fork_rng():
        torch.manual_seed(job.seed)
        return _call(job, kind, observation_space, action_space, kwargs)


def _call(job: Job, kind: type, observation_space: Any, action_space: Any, kwargs: dict[str, Any]) -> Any:
    try:
        return kind(observation_space, action_space, **kwargs)
    except TypeError as error:
        hint = "; the random policy may do" if job.policy == "mlp" else ""
        raise JobError(f"{job.env}: {error}{hint}") from error


def _load_weights(policy: Any, checkpoint: str) -> None:
    """Put the weights of a file into a policy."""
    import torch

    if not hasattr(policy, "load_state_dict"):
        raise JobError(f"checkpoint: {policy!r} has no load_state_dict to load {checkpoint} with")
    path = Path(checkpoint)
    if not path.is_file():
        raise JobError(f"checkpoint: there is no file {path}")
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many classes, by what the file holds
        raise JobError(f"checkpoint: {path} cannot be read with weights_only=True: {error}") from None
    try:
        policy.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError, KeyError) as error:
        raise JobError(f"checkpoint: {path} does not fit {type(policy).__name__}: {error}") from None
