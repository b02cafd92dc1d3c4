"""Wrap the user's policy in a `CollectorPolicy`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from collector.basics.timing import Clock
from collector.batch.step_extras import InfoExtras
from collector.policy.array_policy import ArrayPolicy, OutputCheck
from collector.policy.collector_policy import CollectorPolicy, RandomActions
from collector.policy.keyed_noise import KeyedNoise
from collector.policy.keyed_policy import KeyedPolicy
from collector.policy.policy_call import ExplorationType, Policy, PolicyCall, choose, signature_of
from collector.policy.random_policy import RandomPolicy

Options = bool | dict[str, Any]


KERNELS_MAY_DIFFER = (
    "the math library may compute a row differently at another place in a batch: set MKL_CBWR=COMPATIBLE before Python "
    "starts"
)


def make_policy(
    policy: Policy | None,
    env: Any,
    exploration: ExplorationType,
    device: Any = None,
    *,
    storing_device: Any = None,
    clock: Clock | None = None,
    threads: int | None = None,
    job_seed: int | None = None,
    compile: Options = False,
    cudagraph: Options = False,
    info_keys: Sequence[str] = (),
) -> CollectorPolicy:
    """Return the policy of a collector.

    policy: `None` for random actions. clock: measures policy, transfers and checks. job_seed: seed of keyed noise, if
        the collector has `episode_seeds`. Other arguments: `exploration_type`, `policy_device`, `storing_device`,
        `policy_threads`, `compile_policy`, `cudagraph_policy` and `info_keys` of the collector.
    """
    clock = clock or Clock()
    noise = None if job_seed is None else KeyedNoise(job_seed, env.env_num)
    if policy is None or isinstance(policy, RandomPolicy):
        return random_actions(policy, env, clock, noise)
    if not callable(policy):
        raise TypeError(f"a policy is a function of a batch of observations, or a module; got {policy!r}")
    signature, check = signature_of(policy, env.observation_space[0], info_keys), OutputCheck(env)
    columns = InfoExtras(signature.info_keys) if signature.info_keys else None
    pick = choose if noise is None else noise.choose
    faster = {"compile": _keywords(compile), "cudagraph": _keywords(cudagraph)}
    torch, rows = sys.modules.get("torch"), np.arange(env.env_num)
    on_tensors = device is not None or (torch is not None and isinstance(policy, torch.nn.Module))
    if not on_tensors and any(each is not None for each in faster.values()):
        raise ValueError(
            "compile_policy and cudagraph_policy are for policies on tensors; this one gets arrays: "
            "pass a torch module, or name a policy_device"
        )
    if on_tensors:
        from collector.device.tensors import Transfer, moved
        from collector.policy.tensor_policy import TensorPolicy

        target = _device_of(policy, device, cudagraph=faster["cudagraph"] is not None)
        policy = moved(policy, target)
        if noise is not None:
            rows = _rows_of_a_batch(noise, env.env_num, "env_id" in signature.named, target)
        on_device = getattr(env, "on_device", None) if getattr(env, "device", None) == target else None
        transfer = Transfer(target, len(rows))
        call = PolicyCall(policy, signature, len(rows), exploration, pick, **faster)
        made: ArrayPolicy = TensorPolicy(
            call, check, clock, threads, columns, policy, transfer, on_device, storing_device
        )
    else:
        call = PolicyCall(policy, signature, len(rows), exploration, pick)
        made = ArrayPolicy(call, check, clock, threads, columns)
    return made if noise is None else KeyedPolicy(made, policy, noise, rows)


def _device_of(policy: Policy, device: Any, cudagraph: bool) -> Any:
    """Return `device`, by default the parameters' device.

    Raises `ValueError` if `cudagraph` needs a CUDA device, or if PyTorch does not see `device`.
    """
    from collector.device.tensors import resolve_device, tensors_of, torch

    home = next((tensor.device for tensor in tensors_of(policy)), torch.device("cpu"))
    target = home if device is None else resolve_device(device)
    if cudagraph and target.type != "cuda":
        raise ValueError(
            f"cudagraph_policy needs the policy on a CUDA device, and it is on {target}: "
            "pass policy_device='cuda', or do not pass cudagraph_policy"
        )
    return target


def _rows_of_a_batch(noise: KeyedNoise, env_num: int, knows_ids: bool, target: Any) -> np.ndarray:
    """Return the ids of a call's rows, padded so that outputs do not depend on a row's position."""
    from collector.device.math_libraries import full_rows, rows_are_exact

    # Padding rows have no valid env id, so a policy with `env_id` gets no padding.
    rows = np.arange(env_num if knows_ids else full_rows(env_num))
    noise.resize(len(rows))
    if not rows_are_exact(len(rows), target):
        noise.not_keyed(KERNELS_MAY_DIFFER)
    return rows


def random_actions(
    policy: RandomPolicy | None,
    env: Any,
    clock: Clock,
    noise: KeyedNoise | None,
    instead_of: CollectorPolicy | None = None,
) -> RandomActions:
    """Return random actions. Raises `TypeError` if a space cannot be sampled, or if spaces differ."""
    policy = RandomPolicy(env.action_space) if policy is None else policy
    if noise is not None:
        noise.seed_random(policy, env.action_space)
    return RandomActions(policy, clock, noise, instead_of)


def _keywords(option: Options) -> dict[str, Any] | None:
    return None if option is None or option is False else {} if option is True else dict(option)
