"""Faster policies: `compile_policy` and `cudagraph_policy` of a collector."""

from __future__ import annotations

from typing import Any

from collector.device.tensors import resolve_device, torch
from collector.policy.cuda_graphs import GraphedPolicy, unchecked_distributions
from collector.policy.exploration import ExplorationType
from collector.policy.interface import Policy
from collector.policy.padding import PaddedPolicy
from collector.policy.signature import is_tensordict_module

Options = bool | dict[str, Any]


def prepare_policy(
    policy: Policy,
    device: Any,
    cudagraph: Options = False,
    compile: Options = False,
    *,
    rows: int,
    exploration: ExplorationType = ExplorationType.RANDOM,
) -> Policy:
    """The policy itself, or one that does the same faster, on tensors on `device` with up to `rows` rows.

    `compile`: by `torch.compile`, for the sizes of `batch_sizes`; a dict holds keyword arguments for it. `cudagraph`:
    as CUDA graphs; a dict holds `sizes`, `generators` or `warmup` for `GraphedPolicy`. Both: the compiled policy is
    recorded. Transforms that run before the policy on the device go into it (`torch.nn.Sequential(transform, module)`).

    A module must be on `device` already. Its weights stay where they are: changed in place, they take effect.

    Raises `ValueError` for CUDA graphs of a policy that is not on a CUDA device or is compiled with them already, and
    `TypeError` for a policy on a `TensorDict`.

    >>> policy = prepare_policy(torch.nn.Linear(4, 2), "cpu", compile={"backend": "eager"}, rows=8)
    >>> policy(torch.zeros(5, 4)).shape
    torch.Size([5, 2])
    """
    graph_options, compile_options = _options(cudagraph), _options(compile)
    if graph_options is None and compile_options is None:
        return policy
    target = resolve_device(device)
    _refuse_tensordict(policy)
    if graph_options is not None and target.type != "cuda":
        raise ValueError(
            f"cudagraph_policy needs the policy on a CUDA device, and it is on {target}: "
            "pass policy_device='cuda', or do not pass cudagraph_policy"
        )
    faster = policy
    if compile_options is not None:
        if graph_options is not None and _makes_graphs(compile_options):
            raise ValueError(
                f"compile_policy={compile_options} makes CUDA graphs by itself: do not pass cudagraph_policy, "
                "or compile in another mode"
            )
        # Each batch size is compiled separately: code for any size is slower, and there are few sizes.
        faster = _compiled(policy, {"dynamic": False, **compile_options})
    if graph_options is not None:
        return GraphedPolicy(policy, rows, exploration, faster=faster, **graph_options)
    return PaddedPolicy(policy, rows, exploration, faster=faster)


def _makes_graphs(options: dict[str, Any]) -> bool:
    """Whether torch.compile with these options makes CUDA graphs by itself."""
    wanted = options.get("options") or {}
    return options.get("mode") in ("reduce-overhead", "max-autotune") or bool(wanted.get("triton.cudagraphs"))


def _compiled(policy: Policy, options: dict[str, Any]) -> Policy:
    """The compiled policy, whose distributions do not check their arguments: checks cannot be compiled.

    torch.compile turns checks off for the whole process, permanently; here they are off while the policy is called.
    """
    with unchecked_distributions():
        compiled = torch.compile(policy, **options)

    def call(*args: Any, **kwargs: Any) -> Any:
        with unchecked_distributions():
            return compiled(*args, **kwargs)

    return call


def _options(option: Options | None) -> dict[str, Any] | None:
    """The keyword arguments of an option; None where it is off."""
    if option is None or option is False:
        return None
    return {} if option is True else dict(option)


def _refuse_tensordict(policy: Policy) -> None:
    if is_tensordict_module(policy):
        raise TypeError(
            f"compile_policy and cudagraph_policy take policies on tensors; {type(policy).__name__} works on a "
            "TensorDict: wrap it with torch.compile or tensordict.nn.CudaGraphModule yourself"
        )
