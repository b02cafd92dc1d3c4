"""Vector envs with tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from collector.device.tensors import Transfer, as_tensor, resolve_device, to_device, torch
from vecenv import Partial, VectorEnvWrapper, nest
from vecenv.layout import Leaf, common_layout
from vecenv.nest import tensor_on_host
from vecenv.transforms import TransformedVectorEnv

TensorStep = tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor, Any]
"""(obs, rew, terminated, truncated, info)"""


class TorchVectorEnv(VectorEnvWrapper):
    """Vector env with tensors on `device` instead of arrays.

        venv = TorchVectorEnv(ShmemVectorEnv(env_fns), "cuda")
        obs, info = venv.reset(seed=0)
        while True:
            obs, rew, terminated, truncated, info = venv.step(policy(obs))
            done = terminated | truncated
            if done.any():
                obs[done], _ = venv.reset(done)

    Observations keep dtype, shape and nesting. `terminated` and `truncated` are bool. Rewards are cast to
    `reward_dtype` on the CPU; float64 keeps every bit. (MPS has no float64, so float64 arrives there as float32.) If a
    call raises, `error.partial` has tensors. Infos stay an array of dicts. Actions, ids and masks may be tensors on any
    device. Other attributes come from `venv`.

    docs/guarantees.md ("Copies") says who owns tensors.

    `transforms` (see `vecenv.transforms`) run on the device. With `transforms`, the object has the methods and spaces
    of `TransformedVectorEnv`, and `final_obs` in infos has tensors.

    Not thread-safe. Step and reset `venv` only through this object.

    Raises `TypeError` if `venv` is not a vector env, if observations cannot be tensors, or if `reward_dtype` is not
    float16, float32 or float64. Raises `ValueError` for a device that PyTorch does not see.

    >>> import gymnasium as gym
    >>> from vecenv import DummyVectorEnv
    >>> with TorchVectorEnv(DummyVectorEnv([lambda: gym.make("CartPole-v1")] * 2), "cpu") as venv:
    ...     obs, info = venv.reset(seed=0)
    ...     obs, rew, terminated, truncated, info = venv.step(torch.tensor([0, 1]))
    ...     obs.shape, rew
    (torch.Size([2, 4]), tensor([1., 1.]))
    """

    def __init__(
        self, venv: Any, device: Any, *, reward_dtype: torch.dtype = torch.float32, transforms: Any = None
    ) -> None:
        check_can_be_tensors(venv, type(self).__name__)
        self.device = resolve_device(device)
        self.reward_dtype = reward_dtype
        self._reward_dtype = _numpy_dtype(reward_dtype)
        self._inner, self._has_transforms = venv, transforms is not None
        self._all_tensors = False
        self._transfer = Transfer(self.device, venv.env_num if hasattr(venv, "env_num") else venv.num_envs)
        if transforms is not None:
            plain = TorchVectorEnv(venv, self.device, reward_dtype=reward_dtype)
            plain._all_tensors = True
            venv = TransformedVectorEnv(plain, transforms)
        super().__init__(venv)

    def to(self, device: Any) -> TorchVectorEnv:
        """Return a new object for the same vector env, with tensors on `device` and cloned transforms."""
        transforms = self.venv.transform.clone() if self._has_transforms else None
        return type(self)(self._inner, device, reward_dtype=self.reward_dtype, transforms=transforms)

    def get_state(self, id: Any = None) -> list[Any]:
        """Call `venv.get_state`. The state of transforms is in arrays."""
        states: list[Any] = self.venv.get_state(*_positional(id))
        return states

    def set_state(self, states: Sequence[Any], id: Any = None) -> None:
        """Call `venv.set_state`."""
        self.venv.set_state(states, *_positional(id))

    def reset(self, id: Any = None, **kwargs: Any) -> tuple[Any, Any]:
        """Call `venv.reset`, and return tensors."""
        obs, info = self._checked(self.venv.reset, *_positional(id), **_on_host(kwargs))
        return obs if self._has_transforms else self._tensors(obs), info

    def step(self, action: Any, id: Any = None, **kwargs: Any) -> TensorStep:  # type: ignore[override]
        """Call `venv.step`, and return tensors."""
        return self._result(self._checked(self.venv.step, self._actions(action), *_positional(id), **_on_host(kwargs)))

    def send(self, action: Any, id: Any = None, **kwargs: Any) -> None:
        """Call `venv.send`."""
        self.venv.send(self._actions(action), *_positional(id), **_on_host(kwargs))

    def recv(self) -> TensorStep:  # type: ignore[override]
        """Call `venv.recv`, and return tensors."""
        return self._result(self._checked(self.venv.recv))

    def _checked(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            partial = getattr(error, "partial", None)
            if not self._has_transforms and isinstance(partial, Partial):
                error.partial = Partial(partial.env_id, *self._result(partial[1:]))  # type: ignore[attr-defined]
            raise

    def _actions(self, action: Any) -> Any:
        action = _stacked(action)
        # Not `to_numpy`: an env may keep its action, but `to_numpy` reuses buffers.
        return action if self._has_transforms else self._transfer.own_arrays(action)

    def _result(self, step: Any) -> TensorStep:
        if self._has_transforms:
            return step
        obs, rew, terminated, truncated, info = step
        rew = rew if rew.dtype == object else rew.astype(self._reward_dtype, copy=False)
        if self._all_tensors:
            for row in info:
                if "final_obs" in row:
                    row["final_obs"] = to_device(nest.map(np.asarray, row["final_obs"]), self.device)
        return (*self._tensors((obs, rew, terminated, truncated)), info)

    def _tensors(self, tree: Any) -> Any:
        try:
            return self._transfer.to_device(tree)
        except TypeError as error:
            raise TypeError(
                f"{error} (from {self.venv!r}): observations and rewards must be stacked arrays of numbers; make the "
                "vector env with stack_obs=True, and its envs with one shape and dtype"
            ) from error


def check_can_be_tensors(venv: Any, user: str) -> None:
    if isinstance(venv, TorchVectorEnv):
        raise TypeError("this is a TorchVectorEnv already; use its to(device) for another device")
    if not (hasattr(venv, "step") and (hasattr(venv, "env_num") or hasattr(venv, "num_envs"))):
        raise TypeError(
            f"{user} wraps a vector env, got {type(venv).__name__}; for a single env, pass "
            "DummyVectorEnv([lambda: env])"
        )
    found = venv.observation_space
    each = found if isinstance(found, (list, tuple)) else [found]
    if any(isinstance(space, spaces.Space) for space in each):
        for leaf in nest.leaves(common_layout(each, each).obs):
            if not isinstance(leaf, Leaf):
                raise TypeError(
                    f"{leaf.path} of {venv!r} has no fixed shape and dtype that all envs share, so it cannot be a "
                    f"tensor; drop it from the observation, or use the vector env without {user}"
                )
            as_tensor(np.empty(0, leaf.dtype))


def _stacked(action: Any) -> Any:
    """Stack a list of tensors of one shape, dtype and device, so that they are copied together."""
    rows = action if isinstance(action, list) else ()  # a tuple may hold a batch per part of a Tuple space
    if not rows or not all(isinstance(row, torch.Tensor) for row in rows):
        return action
    same = len({(row.shape, row.dtype, row.device) for row in rows}) == 1
    return torch.stack(list(rows)) if same else action


def _positional(id: Any) -> tuple[Any, ...]:
    """Return positional arguments for an id. Omit `None`, because some vector envs have no parameter `id`."""
    return () if id is None else (tensor_on_host(id),)


def _on_host(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor_on_host(value) for name, value in kwargs.items()}


def _numpy_dtype(dtype: Any) -> np.dtype[Any]:
    if dtype not in (torch.float16, torch.float32, torch.float64):
        raise TypeError(f"reward_dtype must be torch.float16, torch.float32 or torch.float64; got {dtype!r}")
    return torch.empty(0, dtype=dtype, device="cpu").numpy().dtype


class TransformedOnDevice(TransformedVectorEnv):
    """TransformedVectorEnv that runs transforms on `device` and returns arrays.

        observations (numpy) --one copy per array--> device --transforms--> device --one copy per array--> numpy

    Rewards are float64 before and after. Transforms of actions get arrays.
    """

    def __init__(self, venv: Any, transform: Any, device: Any) -> None:
        check_can_be_tensors(venv, type(self).__name__)
        self.device = resolve_device(device)
        self._transfer = Transfer(self.device, len(venv))
        self._latest: tuple[Any, Any] = (None, None)
        super().__init__(venv, transform)

    def with_transforms(self, transforms: Any) -> TransformedOnDevice:
        return TransformedOnDevice(self.base_env, transforms, self.device)

    def on_device(self, obs: Any) -> Any:
        """Return the tensors of `obs` if `obs` is the object that `reset` or `step` returned last, else `None`."""
        return self._latest[1] if obs is self._latest[0] else None

    def map_reset(self, obs: Any, info: np.ndarray) -> tuple[Any, np.ndarray]:
        with torch.no_grad():
            tensors, info = super().map_reset(self._transfer.to_device(obs), info)
        return self._returned(tensors, self._transfer.own_arrays(tensors)), info

    def map_step(self, obs: Any, rew: Any, terminated: Any, truncated: Any, info: np.ndarray) -> Any:
        with torch.no_grad():
            obs, rew, terminated, truncated = self._transfer.to_device((obs, rew, terminated, truncated))
            *tensors, info = super().map_step(obs, rew, terminated, truncated, info)
        obs, rew, terminated, truncated = self._transfer.own_arrays(tuple(tensors))
        if not nest.has_float64(torch, self.device):
            rew = rew.astype(np.float64)
        return self._returned(tensors[0], obs), rew, terminated, truncated, info

    def map_repeated(self, obs: Any, rew: Any, terminated: Any, truncated: Any, info: np.ndarray) -> Any:
        with torch.no_grad():
            columns = self._transfer.to_device((obs, rew, terminated, truncated))
            tensors = super().map_repeated(columns[0], columns[1], columns[2], columns[3], info)[0]
        return self._returned(tensors, self._transfer.own_arrays(tensors)), rew, terminated, truncated, info

    def _returned(self, tensors: Any, obs: Any) -> Any:
        self._latest = obs, tensors
        return obs

    def close(self) -> None:
        self._latest = None, None
        super().close()
