"""Simulators that step all envs in one call, written in numpy, torch and JAX, with gymnasium's vector interface."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

ACTIONS = 12


class Simulator(VectorEnv[Any, Any, Any]):
    """Envs of `size` numbers whose episodes have `length` steps, or no end if `length` is 0.

    With `apart`, the envs have begun at different times. Infos have four columns or none.

    As in ManiSkill and Isaac Lab, a step resets the envs that end.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, n: int, length: int, columns: int, size: int = 48, apart: bool = False) -> None:
        self.num_envs, self.length, self.columns, self.apart = n, length, columns, apart
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.single_action_space = spaces.Box(-1, 1, (ACTIONS,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, n)
        self.action_space = batch_space(self.single_action_space, n)
        draw = np.random.default_rng(0)
        self.start = self.as_own(draw.normal(size=(n, size)).astype(np.float32))
        self.weights = self.as_own((draw.normal(size=(size, size)) / size**0.5).astype(np.float32))
        self.inputs = self.as_own((draw.normal(size=(ACTIONS, size)) / ACTIONS**0.5).astype(np.float32))
        self.never, self.always = (self.as_own(np.full(n, flag)) for flag in (False, True))
        places = np.arange(n) % length if apart else np.zeros(n)
        self.ends = [self.as_own(places == t) for t in range(length)] if apart else [self.always]
        """Masks of the envs that end. `apart`: by number of the step, modulo `length`."""

    def as_own(self, array: Any) -> Any:
        """Return an array of the simulator's library."""
        return array

    def where(self, mask: Any, state: Any, other: Any) -> Any:
        return np.where(mask, state, other)

    def advance(self, state: Any, actions: Any) -> Any:
        """Return the next state (n, size) and the rewards (n,)."""
        state = np.tanh(state @ self.weights + actions @ self.inputs)
        return state, state.mean(1)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.state, self.t = self.start, 0
        return self.state, {}

    def step(self, actions: Any) -> Any:
        self.t += 1
        self.state, rewards = self.advance(self.state, self.as_own(actions))
        infos, over = self.infos(self.state) if self.columns else {}, self.never
        if self.length and (self.apart or self.t % self.length == 0):
            over = self.ends[self.t % len(self.ends)]
            infos = {"final_obs": self.state, "_final_obs": over, "final_info": infos, **infos}
            self.state = self.where(over[:, None], self.start, self.state)
        return self.state, rewards, self.never, over, infos

    def infos(self, state: Any) -> dict[str, Any]:
        return {
            "height": state[:, 0],
            "speed": state[:, 1:4],
            "success": state[:, 4] > 0,
            "contacts": state[:, 5:7] > 0,
        }


class TorchSimulator(Simulator):
    def as_own(self, array: Any) -> Any:
        import torch

        return torch.as_tensor(array)

    def where(self, mask: Any, state: Any, other: Any) -> Any:
        import torch

        return torch.where(mask, state, other)

    def advance(self, state: Any, actions: Any) -> Any:
        import torch

        state = torch.tanh(state @ self.weights + actions @ self.inputs)
        return state, state.mean(1)


class JaxSimulator(Simulator):
    def __init__(self, *arguments: Any) -> None:
        import jax

        super().__init__(*arguments)
        self._step = jax.jit(partial(self._advance, self.weights, self.inputs))

    def as_own(self, array: Any) -> Any:
        import jax.numpy as jnp

        return jnp.asarray(array)

    def where(self, mask: Any, state: Any, other: Any) -> Any:
        import jax.numpy as jnp

        return jnp.where(mask, state, other)

    @staticmethod
    def _advance(weights: Any, inputs: Any, state: Any, actions: Any) -> Any:
        import jax.numpy as jnp

        state = jnp.tanh(state @ weights + actions @ inputs)
        return state, state.mean(1)

    def advance(self, state: Any, actions: Any) -> Any:
        return self._step(state, actions)


SIMULATORS = {"numpy": Simulator, "torch": TorchSimulator, "jax": JaxSimulator}


def make_simulator(
    library: str, n: int, length: int = 0, columns: int = 0, size: int = 48, apart: bool = False
) -> Simulator:
    """Return a simulator of n envs. Raise ImportError if its library is not installed."""
    return SIMULATORS[library](n, length, columns, size, apart)
