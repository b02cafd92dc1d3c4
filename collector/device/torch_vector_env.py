"""`TorchVectorEnv`: a vector env that takes and returns tensors on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from collector.device.tensors import Transfer, as_tensor, resolve_device, to_device, torch
from vecenv import nest
from vecenv.errors import Partial
from vecenv.extending import Leaf, common_layout
from vecenv.nest import tensor_on_host
from vecenv.transforms import TransformedVectorEnv
from vecenv.wrappers import VectorEnvWrapper

TensorStep = tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor, Any]
"""(obs, rew, terminated, truncated, info)"""


class TorchVectorEnv(VectorEnvWrapper):
    """Any vector env with tensors on `device` in place of arrays (what torchrl calls `env.to(device)`).

        venv = TorchVectorEnv(ShmemVectorEnv(env_fns), "cuda")
        obs, info = venv.reset(seed=0)
        while True:
            obs, rew, terminated, truncated, info = venv.step(policy(obs))
            done = terminated | truncated
            if done.any():
                obs[done], _ = venv.reset(done)

    Observations keep their dtype and shape (uint8 frames are transferred as uint8) and come as a tensor, or a dict or
    tuple of tensors; `terminated` and `truncated` are bool. Rewards are cast to `reward_dtype` before they go to the
    device: float32 by default; float64 keeps every bit. The `partial` of an error has tensors too. Infos stay an array
    of dicts. Actions, ids and masks may be tensors on any device, or what `venv` takes. Everything else (spaces,
    attributes, `seed`, `close`, ...) is that of `venv`.

    docs/guarantees.md ("Copies") says to whom tensors belong. On CUDA a step makes one copy a leaf and waits once.

    With `transforms` (see `vecenv.transforms`) what is returned is transformed on the device, as by a
    `TransformedVectorEnv`, whose `transform`, `append_transform`, `insert_transform`, `state_dict` and spaces this
    object then has. Then `final_obs` in infos has tensors too.

    Assumes that `venv` itself is stepped and reset through this object only, and one thread.

    Raises `TypeError` for what is no vector env, for observations that cannot be tensors, and for a `reward_dtype` that
    is no floating dtype; `ValueError` for a CUDA device that is not there.

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
        """True if `final_obs` in infos becomes tensors."""
        self._transfer = Transfer(self.device, venv.env_num if hasattr(venv, "env_num") else venv.num_envs)
        if transforms is not None:
            plain = TorchVectorEnv(venv, self.device, reward_dtype=reward_dtype)
            plain._all_tensors = True
            venv = TransformedVectorEnv(plain, transforms)
        super().__init__(venv)

    def to(self, device: Any) -> TorchVectorEnv:
        """Another TorchVectorEnv around the same vector env, with tensors on `device` and clones of the transforms;
        this one stays usable.
        """
        transforms = self.venv.transform.clone() if self._has_transforms else None
        return type(self)(self._inner, device, reward_dtype=self.reward_dtype, transforms=transforms)

    def get_state(self, id: Any = None) -> list[Any]:
        """As `venv.get_state`, with what transforms keep along the episodes, in arrays."""
        states: list[Any] = self.venv.get_state(*_positional(id))
        return states

    def set_state(self, states: Sequence[Any], id: Any = None) -> None:
        """As `venv.set_state`."""
        self.venv.set_state(states, *_positional(id))

    def reset(self, id: Any = None, **kwargs: Any) -> tuple[Any, Any]:
        """As `venv.reset`; returns (obs, info) with tensors."""
        obs, info = self._checked(self.venv.reset, *_positional(id), **_on_host(kwargs))
        return obs if self._has_transforms else self._tensors(obs), info

    def step(self, action: Any, id: Any = None, **kwargs: Any) -> TensorStep:  # type: ignore[override]
        """As `venv.step`; returns (obs, rew, terminated, truncated, info) with tensors, but for infos."""
        return self._result(self._checked(self.venv.step, self._actions(action), *_positional(id), **_on_host(kwargs)))

    def send(self, action: Any, id: Any = None, **kwargs: Any) -> None:
        """As `venv.send`."""
        self.venv.send(self._actions(action), *_positional(id), **_on_host(kwargs))

    def recv(self) -> TensorStep:  # type: ignore[override]
        """As `venv.recv`; returns what `step` does."""
        return self._result(self._checked(self.venv.recv))

    def _checked(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The result of `call`; the partial of its error as tensors."""
        try:
            return call(*args, **kwargs)
        except Exception as error:
            partial = getattr(error, "partial", None)
            if not self._has_transforms and isinstance(partial, Partial):
                error.partial = Partial(partial.env_id, *self._result(partial[1:]))  # type: ignore[attr-defined]
            raise

    def _actions(self, action: Any) -> Any:
        """Actions as arrays, where no transform gets them first; the wait for them is the one of the step."""
        action = _stacked(action)
        return action if self._has_transforms else self._transfer.own_arrays(action)  # own: an env may keep its action

    def _result(self, step: Any) -> TensorStep:
        if self._has_transforms:  # these are tensors
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
    """Raise `TypeError` for what is no vector env, or one whose observations cannot be tensors."""
    if isinstance(venv, TorchVectorEnv):
        raise TypeError("this is a TorchVectorEnv already; use its to(device) for another device")
    if not (hasattr(venv, "step") and (hasattr(venv, "env_num") or hasattr(venv, "num_envs"))):
        raise TypeError(
            f"{user} wraps a vector env, got {type(venv).__name__}; make one of a single env by "
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
    """A list of equal tensors, one for each env, as one tensor: one copy instead of many."""
    rows = action if isinstance(action, list) else ()  # a tuple of tensors may be the batches of a Tuple space
    if not rows or not all(isinstance(row, torch.Tensor) for row in rows):
        return action
    same = len({(row.shape, row.dtype, row.device) for row in rows}) == 1
    return torch.stack(list(rows)) if same else action


def _positional(id: Any) -> tuple[Any, ...]:
    """`id` as arguments: none where it was not given, for vector envs that take no ids."""
    return () if id is None else (tensor_on_host(id),)


def _on_host(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Ids and masks among keyword arguments as arrays."""
    return {name: tensor_on_host(value) for name, value in kwargs.items()}


def _numpy_dtype(dtype: Any) -> np.dtype[Any]:
    if dtype not in (torch.float16, torch.float32, torch.float64):
        raise TypeError(f"reward_dtype must be torch.float16, torch.float32 or torch.float64; got {dtype!r}")
    return torch.empty(0, dtype=dtype).numpy().dtype


class TransformedOnDevice(TransformedVectorEnv):
    """A TransformedVectorEnv whose transforms get tensors on `device`, and that returns arrays all the same.

        rows of the envs (numpy) --one copy a leaf--> device --transforms--> device --one copy a leaf--> numpy

    What goes up is what the envs return (uint8 frames as uint8), in one wait for the device a round. Rewards are
    float64 there too. Transforms of actions work on the arrays that the vector env takes.

    Raises what TransformedVectorEnv and TorchVectorEnv raise.
    """

    def __init__(self, venv: Any, transform: Any, device: Any) -> None:
        check_can_be_tensors(venv, type(self).__name__)
        self.device = resolve_device(device)
        self._transfer = Transfer(self.device, len(venv))
        self._latest: tuple[Any, Any] = (None, None)
        super().__init__(venv, transform)

    def with_transforms(self, transforms: Any) -> TransformedOnDevice:
        """Wrap the same base env anew, with these transforms on the same device."""
        return TransformedOnDevice(self.base_env, transforms, self.device)

    def on_device(self, obs: Any) -> Any:
        """The tensors of observations that are the very object which the latest call has returned, else None."""
        return self._latest[1] if obs is self._latest[0] else None

    def map_reset(self, obs: Any, info: np.ndarray) -> tuple[Any, np.ndarray]:
        """The rows, transformed."""
        with torch.no_grad():
            tensors, info = super().map_reset(self._transfer.to_device(obs), info)
        return self._returned(tensors, self._transfer.own_arrays(tensors)), info

    def map_step(self, obs: Any, rew: Any, terminated: Any, truncated: Any, info: np.ndarray) -> Any:
        """The rows, transformed."""
        with torch.no_grad():
            obs, rew, terminated, truncated = self._transfer.to_device((obs, rew, terminated, truncated))
            *tensors, info = super().map_step(obs, rew, terminated, truncated, info)
        obs, *others = self._transfer.own_arrays(tuple(tensors))
        return self._returned(tensors[0], obs), *others, info

    def map_repeated(self, obs: Any, rew: Any, terminated: Any, truncated: Any, info: np.ndarray) -> Any:
        """The rows, whose observations are transformed."""
        with torch.no_grad():
            columns = self._transfer.to_device((obs, rew, terminated, truncated))
            tensors = super().map_repeated(columns[0], columns[1], columns[2], columns[3], info)[0]
        return self._returned(tensors, self._transfer.own_arrays(tensors)), rew, terminated, truncated, info

    def _returned(self, tensors: Any, obs: Any) -> Any:
        self._latest = obs, tensors
        return obs

    def close(self) -> None:
        """Close `venv`. Safe to call again."""
        self._latest = None, None
        super().close()
