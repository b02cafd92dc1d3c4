"""Vector envs as envs of TorchRL."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from collector.device.tensors import resolve_device, torch
from collector.device.torch_vector_env import TorchVectorEnv
from vecenv import EnvContractError, nest

try:
    from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, Unbounded
    from torchrl.envs import EnvBase
except ImportError as error:
    raise ImportError(
        f"to_torchrl needs TorchRL, which cannot be imported ({error}): pip install 'vecenv[torchrl]'"
    ) from error

_RESERVED = frozenset({"action", "reward", "done", "terminated", "truncated", "next", "_reset"})


def to_torchrl(venv: Any, device: Any = None) -> TorchRLVectorEnv:
    """Return a vector env of vecenv as a `torchrl.envs.EnvBase` with the batch size `(n,)`.

        env = to_torchrl(ShmemVectorEnv([lambda: gym.make("CartPole-v1")] * 8))
        batch = env.rollout(100, policy, break_when_any_done=False)     # a TensorDict (8, 100)

    Array observations have the key `observation`. Dict observations keep their keys. Actions are unchanged, so Discrete
    actions are integers. Rewards are float32 (n, 1), or (n, m) if the envs have a `reward_space` of m numbers. `done`,
    `terminated` and `truncated` are bool (n, 1). Infos are dropped. `env.venv` is the vector env with tensors
    on `device` (`None`: the device of a `TorchVectorEnv`, else the CPU).

    Raises TypeError if `venv` is not a vector env, for unsupported spaces (Text, Graph, Tuple, Dict actions, Discrete
    actions that do not start at 0), and if the envs' spaces differ. Raises ValueError if `venv` has `wait_num` or
    `timeout`, or if TorchRL uses a key of the observation. Raises ImportError without TorchRL.
    """
    return TorchRLVectorEnv(venv, device)


class TorchRLVectorEnv(EnvBase):
    """Env that `to_torchrl` returns."""

    def __init__(self, venv: Any, device: Any = None) -> None:
        if not isinstance(venv, TorchVectorEnv):
            venv = TorchVectorEnv(venv, "cpu" if device is None else device)
        elif device is not None and resolve_device(device) != venv.device:
            venv = venv.to(device)
        if venv.is_async:
            raise ValueError(
                f"an env of TorchRL returns all rows together: make {venv.venv!r} without wait_num, timeout"
            )
        n = len(venv)
        super().__init__(device=venv.device, batch_size=torch.Size([n]))
        self.venv = venv
        for kind, each in (("observation", venv.observation_space), ("action", venv.action_space)):
            if any(space != each[0] for space in each):
                raise TypeError(f"the envs of one TorchRL env have equal spaces, got {kind} spaces {each}")
        observation, action = venv.observation_space[0], venv.action_space[0]
        self._is_dict = isinstance(observation, spaces.Dict)
        if self._is_dict and (taken := sorted(_RESERVED & observation.spaces.keys())):
            raise ValueError(f"TorchRL uses the keys {taken} itself: rename them in the observation (RenameTransform)")
        parts = observation if self._is_dict else spaces.Dict({"observation": observation})
        self.observation_spec = _spec(parts, n, self.device, "observation")
        if isinstance(action, spaces.Discrete) and action.start != 0:
            raise TypeError(f"actions of TorchRL begin at 0, but {action} does not")
        if isinstance(action, spaces.Dict):
            raise TypeError(f"TorchRL's env has one action, got {action}")
        self.action_spec = _spec(action, n, self.device, "action")
        self.reward_spec = Unbounded((n, *self._reward_shape()), device=self.device, dtype=torch.float32)
        flag = Categorical(2, (n, 1), device=self.device, dtype=torch.bool)
        self.done_spec = Composite(
            done=flag, terminated=flag.clone(), truncated=flag.clone(), shape=(n,), device=self.device
        )
        self._latest: Any = None
        self.is_closed = False

    def _reward_shape(self) -> tuple[int, ...]:
        try:
            (space,) = self.venv.get_env_attr("reward_space", 0)
        except AttributeError:
            return (1,)
        return tuple(space.shape) or (1,)

    def _reset(self, tensordict: Any, **kwargs: Any) -> Any:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        mask = None if mask is None else mask.reshape(self.batch_size)
        if mask is None or self._latest is None or bool(mask.all()):
            self._latest, _ = self.venv.reset()
        else:
            first, _ = self.venv.reset(mask)
            self._latest = nest.map(torch.clone, self._latest)
            nest.put(self._latest, mask, first)
        return self._as_tensordict(self._latest)

    def _step(self, tensordict: Any) -> Any:
        obs, reward, terminated, truncated, _ = self.venv.step(tensordict.get(self.action_key))
        self._latest = obs
        flags = {"terminated": terminated, "truncated": truncated, "done": terminated | truncated}
        out = self._as_tensordict(obs)
        if reward.numel() != self.reward_spec.shape.numel():
            found, expected = tuple(reward.shape[1:]), tuple(self.reward_spec.shape[1:])
            raise EnvContractError(
                f"to_torchrl expects rewards of shape {expected}, but the envs return {found}: give the envs a "
                f"reward_space, such as Box(-inf, inf, {found})"
            )
        out.update({name: flag.unsqueeze(-1) for name, flag in flags.items()})
        return out.set("reward", reward.reshape(self.reward_spec.shape))

    def _as_tensordict(self, obs: Any) -> Any:
        return self.full_done_spec.zero().update(obs if self._is_dict else {"observation": obs})

    def _set_seed(self, seed: int | None) -> None:
        self.venv.set_seed(seed)

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seed the envs with a chain from `seed`, or all with `seed` (`static_seed`). Return the next seed."""
        following: int | None = self.venv.set_seed(seed, static_seed)
        return following

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the vector env. Safe to call twice."""
        super().close(raise_if_closed=raise_if_closed)
        self.venv.close()

    def __repr__(self) -> str:
        return f"TorchRLVectorEnv({self.venv.venv!r}, device={self.device})"


def _spec(space: Any, n: int, device: Any, path: str) -> Any:
    if isinstance(space, spaces.Dict):
        children = {key: _spec(child, n, device, f"{path}[{key!r}]") for key, child in space.spaces.items()}
        return Composite(children, shape=(n,), device=device)
    if isinstance(space, spaces.MultiBinary):
        return Binary(shape=(n, *space.shape), device=device, dtype=torch.int8)
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 and not space.start.any():
        return MultiCategorical(space.nvec.tolist(), (n, *space.shape), device=device, dtype=_dtype(space))
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return Categorical(int(space.n), (n,), device=device, dtype=_dtype(space))
    if isinstance(space, spaces.Discrete):
        low, high = np.asarray(space.start), np.asarray(space.start + space.n - 1)
    elif isinstance(space, spaces.MultiDiscrete):
        low, high = space.start, space.start + space.nvec - 1
    elif isinstance(space, spaces.Box):
        low, high = space.low, space.high
    else:
        raise TypeError(f"the {path} space {space} has no spec in TorchRL")
    shape = (n, *space.shape)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return Unbounded(shape, device=device, dtype=_dtype(space))
    ends = [torch.as_tensor(np.broadcast_to(end, shape).astype(space.dtype)) for end in (low, high)]
    return Bounded(*ends, shape, device=device, dtype=_dtype(space))


def _dtype(space: Any) -> torch.dtype:
    return torch.from_numpy(np.empty(0, space.dtype)).dtype
