"""Transforms of a vector env that work on the device of a policy."""

from __future__ import annotations

from typing import Any

import numpy as np

from collector.device.tensors import resolve_device, torch
from collector.device.torch_vector_env import check_can_be_tensors
from collector.device.transfer import Transfer
from vecenv.transforms.transformed_vector_env import TransformedVectorEnv


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
