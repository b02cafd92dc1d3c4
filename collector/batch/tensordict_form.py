"""Convert batches to `TensorDict`s, and call policies that take a `TensorDict`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from collector.device.tensors import as_tensor
from vecenv import nest

try:
    import torch
    from tensordict import TensorDict
    from tensordict.nn import InteractionType, set_interaction_type
except ImportError as error:
    raise ImportError("tensordicts need tensordict: pip install 'vecenv[tensordict]'") from error


def as_tensordict(batch: Any, shape: Sequence[int], names: Sequence[Any]) -> Any:
    batch = batch if isinstance(batch.reward, torch.Tensor) else batch.to("cpu")
    after = batch.next
    dims = len(shape)

    def column(tensor: Any) -> Any:
        return tensor.unsqueeze(-1) if tensor.dim() == dims else tensor

    start = column(torch.zeros_like(batch.terminated))  # before a step, the env is never finished
    step = {
        "action": _nested(batch.action),
        "terminated": start,
        "truncated": start.clone(),
        "done": start.clone(),
        "step_count": column(batch.step_count),
        "collector": {"traj_ids": batch.traj_ids, "mask": batch.mask, "policy_version": batch.policy_version},
        **batch.extras,
    }
    truncated = after.truncated | (after.done & ~after.terminated)
    flags = {"terminated": after.terminated, "truncated": truncated, "done": after.done}
    columns = {"reward": after.reward.to(torch.float32), **flags, "step_count": after.step_count}
    outcome = {name: column(rows) for name, rows in columns.items()}
    seen = _observations(batch.obs)
    for name in seen:
        if name in ("next", *step, *outcome):
            raise ValueError(
                f"the observation has an entry {name!r}, and so has the tensordict: rename the entry of the "
                "observation in a wrapper of the env, or in postproc"
            )
    root = {**seen, **step, "next": {**_observations(after.obs), **outcome}}
    return TensorDict(root, batch_size=list(shape), names=[*names], device=batch.reward.device)


def transitions_as_tensordict(transitions: Any) -> Any:
    columns = {name: tree for name, tree in transitions.as_dict().items() if name != "info"}
    for path, array in nest.items(columns):
        if array.dtype == object:
            raise TypeError(f"{'.'.join(map(str, path))} are texts, which a TensorDict of tensors cannot hold")
    rows = nest.map(lambda array: torch.from_numpy(np.ascontiguousarray(array)), columns)
    outcome = {name: rows[name].reshape(len(transitions), -1) for name in ("reward", "terminated", "truncated")}
    outcome |= {"reward": outcome["reward"].to(torch.float32), "done": outcome["terminated"] | outcome["truncated"]}
    step = {"action": _nested(rows["action"]), "step_count": rows["step"][:, None]}
    root = {
        **_observations(rows["obs"]),
        **step,
        "collector": {"traj_ids": rows["episode"]},
        "next": {**_observations(rows["next_obs"]), **outcome},
    }
    return TensorDict(root, batch_size=[len(transitions)])


def call_with_tensordict(policy: Any, obs: Any, interaction: str) -> dict[str, Any]:
    """Call the policy. Return the entries that the policy added. `interaction` names an `InteractionType`."""
    tensors = nest.map(lambda leaf: leaf if isinstance(leaf, torch.Tensor) else as_tensor(leaf), obs)
    first = next(nest.leaves(tensors))
    inputs = TensorDict(_observations(tensors), batch_size=[len(first)], device=first.device)
    known = set(inputs.keys(True, True))
    with set_interaction_type(InteractionType[interaction]):
        outputs = policy(inputs)
    written = [key for key in outputs.keys(True, True) if key not in known]
    if "action" not in written:
        raise TypeError(f"the policy wrote no 'action' into the tensordict, only {written}")
    return {key if isinstance(key, str) else ".".join(key): outputs[key] for key in written}


def _observations(tree: Any) -> dict[str, Any]:
    return _nested(tree) if isinstance(tree, dict) else {"observation": _nested(tree)}


def _nested(tree: Any) -> Any:
    if isinstance(tree, tuple):
        return {str(i): _nested(child) for i, child in enumerate(tree)}
    if isinstance(tree, dict):
        return {name: _nested(child) for name, child in tree.items()}
    return tree
