"""Simulators that step all envs in one call, written in numpy, torch and JAX, with gymnasium's vector interface."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

SIZE, ACTIONS = 48, 12


class Simulator(VectorEnv[Any, Any, Any]):
    """Envs of 48 numbers that end together after `length` steps, if `length` is not 0. Infos have four columns or none.

    As in ManiSkill and Isaac Lab, a step resets the envs that end.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, n: int, length: int, columns: int) -> None:
        self.num_envs, self.length, self.columns = n, length, columns
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (SIZE,), np.float32)
        self.single_action_space = spaces.Box(-1, 1, (ACTIONS,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, n)
        self.action_space = batch_space(self.single_action_space, n)
        draw = np.random.default_rng(0)
        self.start = self.as_own(draw.normal(size=(n, SIZE)).astype(np.float32))
        self.weights = self.as_own((draw.normal(size=(SIZE, SIZE)) / SIZE**0.5).astype(np.float32))
        self.inputs = self.as_own((draw.normal(size=(ACTIONS, SIZE)) / ACTIONS**0.5).astype(np.float32))
        self.never, self.always = (self.as_own(np.full(n, flag)) for flag in (False, True))

    def as_own(self, array: Any) -> Any:
        """Return an array of the simulator's library."""
        return array

    def advance(self, state: Any, actions: Any) -> Any:
        """Return the next state (n, 48) and the rewards (n,)."""
        state = np.tanh(state @ self.weights + actions @ self.inputs)
        return state, state.mean(1)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.state, self.t = self.start, 0
        return self.state, {}

    def step(self, actions: Any) -> Any:
        self.t += 1
        self.state, rewards = self.advance(self.state, self.as_own(actions))
        infos, over = self.infos(self.state) if self.columns else {}, self.t == self.length
        if over:
            infos = {"final_obs": self.state, "_final_obs": self.always, "final_info": infos}
            self.state, self.t = self.start, 0
        return self.state, rewards, self.never, self.always if over else self.never, infos

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

    def advance(self, state: Any, actions: Any) -> Any:
        import torch

        state = torch.tanh(state @ self.weights + actions @ self.inputs)
        return state, state.mean(1)


class JaxSimulator(Simulator):
    def __init__(self, n: int, length: int, columns: int) -> None:
        import jax

        super().__init__(n, length, columns)
        self._step = jax.jit(partial(self._advance, self.weights, self.inputs))

    def as_own(self, array: Any) -> Any:
        import jax.numpy as jnp

        return jnp.asarray(array)

    @staticmethod
    def _advance(weights: Any, inputs: Any, state: Any, actions: Any) -> Any:
        import jax.numpy as jnp

        state = jnp.tanh(state @ weights + actions @ inputs)
        return state, state.mean(1)

    def advance(self, state: Any, actions: Any) -> Any:
        return self._step(state, actions)


SIMULATORS = {"numpy": Simulator, "torch": TorchSimulator, "jax": JaxSimulator}


def make_simulator(library: str, n: int, length: int = 0, columns: int = 0) -> Simulator:
    """Return a simulator of n envs. Raise ImportError if its library is not installed."""
    return SIMULATORS[library](n, length, columns)
