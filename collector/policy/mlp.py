"""`MLPPolicy`: a small network, for jobs without user code."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv.arguments import check_count

try:
    import torch
    from torch import distributions, nn
except ImportError as error:
    raise ImportError("the MLP policy needs PyTorch: pip install vecenv[torch]; or use the random policy") from error


class MLPPolicy(nn.Module):
    """Network with two hidden layers of `hidden` tanh units. Returns a distribution of actions.

    Observations: Box (flattened, uint8 scaled to 0..1) or Discrete (one-hot). Actions: Discrete, or a bounded float Box
    (a normal distribution, squashed into the bounds). Raises TypeError for other spaces. torch's global generator draws
    the initial weights.

    Example::

        policy = MLPPolicy(env.observation_space, env.action_space)
        actions = policy(torch.zeros(8, 4)).sample()      # int64 (8,) for Discrete; (8, *shape) for Box
    """

    low: torch.Tensor
    width: torch.Tensor

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, hidden: int = 64) -> None:
        super().__init__()
        self._spaces: tuple[Any, Any] = (observation_space, action_space)
        if not isinstance(observation_space, (spaces.Box, spaces.Discrete)):
            raise TypeError(f"the MLP policy takes Box and Discrete observations, not {observation_space}")
        inputs, outputs = (spaces.flatdim(each) for each in self._spaces)
        if isinstance(action_space, spaces.Box) and action_space.is_bounded() and action_space.dtype.kind == "f":
            low, high = torch.from_numpy(action_space.low.copy()), torch.from_numpy(action_space.high.copy())
            width = high - low
            # low + width may round to a value above the bound, which some envs refuse.
            width = torch.where(low + width > high, torch.nextafter(width, torch.zeros_like(width)), width)
            self.register_buffer("low", low)
            self.register_buffer("width", width)
        elif not isinstance(action_space, spaces.Discrete):
            raise TypeError(f"the MLP policy returns Discrete and bounded float Box actions, not {action_space}")
        hidden = check_count("hidden", hidden)
        first, second, last = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)
        self.net = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), last)
        self.to(first.weight.device)  # torch.set_default_device moves the layers, but not the buffers

    def forward(self, obs: torch.Tensor) -> distributions.Distribution:
        """Return the distribution of actions for a batch of observations."""
        observation_space, action_space = self._spaces
        dtype: Any = self.net[0].weight.dtype  # `parameters()` would walk all modules in every step
        if isinstance(observation_space, spaces.Discrete):
            indices = obs.long() - int(observation_space.start)
            rows = nn.functional.one_hot(indices, int(observation_space.n)).to(dtype)
        else:
            rows = obs.flatten(1).to(dtype)
            if observation_space.dtype == np.uint8:
                rows = rows * (1 / 255)
        output = self.net(rows)
        if isinstance(action_space, spaces.Box):
            loc = output.view(-1, *self.low.shape).to(self.low.dtype)
            squash = [distributions.SigmoidTransform(), distributions.AffineTransform(self.low, self.width)]
            normal = distributions.Normal(loc, torch.ones_like(loc), validate_args=False)
            squashed = _Transformed(normal, squash, validate_args=False)
            return distributions.Independent(squashed, self.low.dim(), validate_args=False)
        choices = distributions.Categorical(logits=output, validate_args=False)
        if not (start := int(action_space.start)):
            return choices
        return _Transformed(choices, [distributions.AffineTransform(start, 1)], validate_args=False)


class _Transformed(distributions.TransformedDistribution):
    @property
    def mode(self) -> torch.Tensor:
        action = self.base_dist.mode
        for transform in self.transforms:
            action = transform(action)
        return action
