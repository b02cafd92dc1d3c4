"""From observations to checked actions: asks the policy, wherever it runs, and refuses what does not fit."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from collector.policy.calling import PolicyCall, RecurrentState, signature_of
from collector.policy.exploration import ExplorationType
from collector.policy.interface import Policy, RandomPolicy
from vecenv import nest
from vecenv.backends.host.row_writer import cast_exactly
from vecenv.nest import as_array

Outputs = dict[str, np.ndarray]
Layout = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]


class Actor:
    """Asks one policy for the actions of some environments, and checks its outputs against the action space.

    `module` is the network that is asked (a copy of the policy where that lives on another device), or None.
    """

    def __init__(
        self,
        policy: Policy,
        device: Any,
        env: Any,
        exploration: ExplorationType,
        graph: bool | dict[str, Any] = False,
        compile: bool | dict[str, Any] = False,
    ) -> None:
        self.module: Any = None
        self._tensor: Any = None
        self._device: Any = None  # where the observations are that a policy on tensors gets
        self._space = _common_space(env.action_space)
        self._checked: Layout = {}
        self._needs_cast = False
        self._close: Callable[[], None] | None = None
        self.layout: Layout = {}
        """Shape of a row and dtype of each output, once the policy has been asked."""
        self._reads: Callable[[Any], Outputs]
        if not callable(policy):
            raise TypeError(f"a policy is a function of a batch of observations, or a module; got {policy!r}")
        signature = signature_of(policy, env.observation_space[0])
        self._call = PolicyCall(policy, signature, exploration, env.env_num)
        torch = sys.modules.get("torch")
        is_module = torch is not None and isinstance(policy, torch.nn.Module)
        if is_module or (device is not None and not isinstance(policy, RandomPolicy)):
            self._reads = self._on_tensors(policy, device, env, exploration, graph, compile)
        elif graph or compile:
            raise ValueError(
                "compile_policy and cudagraph_policy are for policies on tensors; this one gets arrays: "
                "pass a torch module, or name a policy_device"
            )
        else:
            self._reads = self._on_arrays
        if self._call.wants_rows:
            reads, rows = self._reads, self._call.rows
            self._reads = lambda obs: reads((obs, rows()))
        self._direct = policy if isinstance(policy, RandomPolicy) else None
        self._seconds = 0.0

    def close(self) -> None:
        """Let go of the memory that is kept for the way to the policy and back; it is not asked again."""
        if self._close is not None:
            self._close()
        del self._reads  # it refers to this object: both would stay until garbage is collected

    @property
    def transfer_seconds(self) -> float:
        """Time for the way to the policy and back; on CUDA that includes the wait for the device."""
        return self._seconds - self._call.seconds

    def begin(self, env_ids: Any) -> None:
        """Episodes begin in these environments: a recurrent policy starts afresh."""
        if self._call.memory is not None:
            self._call.memory.begin(env_ids)

    def __call__(self, obs: Any, env_ids: np.ndarray) -> Outputs:
        """The outputs of the policy for these environments: arrays `(k, ...)`, `action` among them.

        They are valid until the next call. Raises `ValueError` or `TypeError` that says what the policy should have
        returned.
        """
        if self._direct is not None:
            return {"action": self._direct(obs, env_ids)}
        begin = time.perf_counter()
        self._call.env_ids = env_ids
        outputs = self._reads(obs)
        layout = {name: (values.shape[1:], values.dtype) for name, values in outputs.items()}
        if layout != self._checked or {values.shape[:1] for values in outputs.values()} != {env_ids.shape}:
            self._check(outputs, layout, len(env_ids))
        if self._needs_cast:
            outputs = {**outputs, "action": self._as_in_space(outputs["action"])}
        self._seconds += time.perf_counter() - begin
        return outputs

    def peek(self, obs: Any, env_ids: np.ndarray) -> None:
        """Learn what the policy returns, as if it had not been asked: its answer is dropped, and no random stream of
        torch moves.
        """
        with _unmoved_streams():
            self(nest.map(np.copy, obs), env_ids)  # a policy may write into what it gets
        self.begin(env_ids)

    def _on_arrays(self, obs: Any) -> Outputs:
        outputs = self._call(obs)
        return {name: value if value.__class__ is np.ndarray else as_array(value) for name, value in outputs.items()}

    def _on_tensors(
        self, policy: Policy, device: Any, env: Any, exploration: ExplorationType, graph: Any, compile: Any
    ) -> Callable[[Any], Outputs]:
        from collector.device.transfer import memory_of
        from collector.policy.torch_policy import TorchPolicy

        torch_policy = TorchPolicy(
            policy, device, env.env_num, exploration, memory=memory_of(env), cudagraph=graph, compile=compile
        )
        self.module, self._close = torch_policy.module, torch_policy.close
        self._call.policy = torch_policy.policy
        if self._call.memory is not None:
            self._call.memory = RecurrentState(policy if self.module is None else self.module, env.env_num)
        self._tensor = sys.modules["torch"].Tensor
        return partial(torch_policy.carry, self._call_on_device)

    def _call_on_device(self, obs: Any) -> dict[str, Any]:
        outputs = self._call(obs)
        if self._device is None:
            self._device = next(nest.leaves(obs)).device
        for name, value in outputs.items():
            if isinstance(value, self._tensor) and value.device != self._device:
                raise ValueError(
                    f"the policy returned {name!r} on {value.device}; it must be on {self._device}, where its "
                    "observations were (see policy_device)"
                )
        return outputs

    def _check(self, outputs: Outputs, layout: Layout, rows: int) -> None:
        """Raise where outputs do not fit each other, those before, or the action space."""
        for name, values in outputs.items():
            if values.shape[:1] != (rows,):
                should = f"{(rows, *self._space[0])}" if name == "action" and self._space else f"({rows}, ...)"
                raise ValueError(
                    f"the policy returned {name!r} of shape {values.shape} for {rows} observations; it must be {should}"
                )
        if self._checked and layout != self._checked:
            raise TypeError(f"the policy returned {layout} (shape of a row, dtype) after {self._checked} before")
        if self._space is not None:
            self._check_action(outputs["action"], rows)
        self._checked = self.layout = layout
        if self._space is not None:
            self._needs_cast = layout["action"] != self._space
            self.layout = {**layout, "action": self._space}

    def _check_action(self, action: np.ndarray, rows: int) -> None:
        assert self._space is not None
        shape, dtype = self._space
        if action.shape[1:] != shape and action.shape[1:] + shape != (1,):
            raise ValueError(
                f"the policy returned actions of shape {action.shape}; "
                f"for the action space they must be {(rows, *shape)}"
            )
        if cast_exactly(np.zeros(1, action.dtype), dtype) is None or (action.dtype.kind == "f" and dtype.kind != "f"):
            raise TypeError(
                f"the policy returned actions of dtype {action.dtype}; for the action space they must be {dtype}"
            )

    def _as_in_space(self, action: np.ndarray) -> np.ndarray:
        """The action as the environments get it: what is stored is what was done."""
        assert self._space is not None
        shape, dtype = self._space
        cast = action if action.dtype == dtype else cast_exactly(action, dtype)
        if cast is None:
            raise TypeError(f"the policy returned actions that do not fit the dtype {dtype} of the space: {action!r}")
        return cast.reshape(len(action), *shape)


def _common_space(action_spaces: Sequence[Any]) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """Shape and dtype of an action, where all environments have the same and it is an array."""
    found = {(getattr(space, "shape", None), getattr(space, "dtype", None)) for space in action_spaces}
    shape, dtype = found.pop()
    return None if found or shape is None or dtype is None else (tuple(shape), np.dtype(dtype))


def _unmoved_streams() -> AbstractContextManager[Any]:
    """What is drawn from torch's random streams inside is drawn again after."""
    torch = sys.modules.get("torch")
    if torch is None:
        return nullcontext()
    used = torch.cuda.is_available() and torch.cuda.is_initialized()
    fork: AbstractContextManager[Any] = torch.random.fork_rng(range(torch.cuda.device_count()) if used else [])
    return fork
