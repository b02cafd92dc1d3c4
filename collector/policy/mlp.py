"""A small policy network, so that a job has something to run."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

try:
    import torch
    from torch import distributions, nn
except ImportError as error:
    raise ImportError("the MLP policy needs PyTorch: pip install vecenv[torch]; or use the random policy") from error


class MLPPolicy(nn.Module):
    """Two hidden layers of tanh units that choose actions for array observations.

    Observations: Box (flattened; uint8 scaled to 0..1) or Discrete (one-hot). Actions: Discrete, of a softmax; or a
    bounded float Box, of a normal distribution that is squashed into the bounds. It returns the distribution, and the
    collector takes a sample or the mode of it. Other spaces raise `TypeError`. The weights come from torch's
    random stream.

    Example::

        policy = MLPPolicy(env.observation_space, env.action_space)
        actions = policy(torch.zeros(8, 4)).sample()      # int64 (8,) for Discrete; (8, ...) as the space for Box
    """

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, hidden: int = 64) -> None:
        super().__init__()
        encoder, inputs = _encoder(observation_space)
        head, outputs = _head(action_space)
        layers = [
            nn.Linear(inputs, hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, outputs),
        ]
        self.net = nn.Sequential(encoder, *layers, head)

    def forward(self, obs: torch.Tensor) -> Any:
        """The distribution of actions `(k, ...)` for observations `(k, ...)`."""
        return self.net(obs)


def _encoder(space: spaces.Space) -> tuple[nn.Module, int]:
    if isinstance(space, spaces.Discrete):
        return _OneHot(space), int(space.n)
    if isinstance(space, spaces.Box):
        return _Flat(space), int(np.prod(space.shape))
    raise TypeError(f"the MLP policy takes Box and Discrete observations, not {space}")


def _head(space: spaces.Space) -> tuple[nn.Module, int]:
    if isinstance(space, spaces.Discrete):
        return _OfDiscrete(space), int(space.n)
    if isinstance(space, spaces.Box) and space.is_bounded() and np.issubdtype(space.dtype, np.floating):
        return _OfBox(space), int(np.prod(space.shape))
    raise TypeError(f"the MLP policy returns Discrete and bounded float Box actions, not {space}")


class _Flat(nn.Module):
    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        self._scale = 1 / 255 if space.dtype == np.uint8 else 1.0

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        rows = obs.flatten(1).float()
        return rows if self._scale == 1.0 else rows * self._scale


class _OneHot(nn.Module):
    def __init__(self, space: spaces.Discrete) -> None:
        super().__init__()
        self._n, self._start = int(space.n), int(space.start)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(obs.long() - self._start, self._n).float()


class _Transformed(distributions.TransformedDistribution):
    """Its mode is that of the base distribution, transformed: torch has none."""

    @property
    def mode(self) -> torch.Tensor:
        action = self.base_dist.mode
        for transform in self.transforms:
            action = transform(action)
        return action


class _OfDiscrete(nn.Module):
    """The softmax of its inputs, as a distribution."""

    def __init__(self, space: spaces.Discrete) -> None:
        super().__init__()
        self._start = int(space.start)

    def forward(self, logits: torch.Tensor) -> distributions.Distribution:
        indices = distributions.Categorical(logits=logits, validate_args=False)
        if not self._start:
            return indices
        shift = distributions.AffineTransform(self._start, 1)
        return _Transformed(indices, [shift], validate_args=False)


class _OfBox(nn.Module):
    """A unit normal distribution around its inputs, squashed into the bounds of the space."""

    low: torch.Tensor
    width: torch.Tensor

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        low, high = torch.from_numpy(space.low.copy()), torch.from_numpy(space.high.copy())
        width = high - low
        # The sum of both can round to a value just above the bound, which some envs refuse.
        width = torch.where(low + width > high, torch.nextafter(width, torch.zeros_like(width)), width)
        self.register_buffer("low", low)
        self.register_buffer("width", width)

    def forward(self, mean: torch.Tensor) -> distributions.Distribution:
        loc = mean.view(-1, *self.low.shape).to(self.low.dtype)
        squash = [distributions.SigmoidTransform(), distributions.AffineTransform(self.low, self.width)]
        normal = distributions.Normal(loc, torch.ones_like(loc), validate_args=False)
        squashed = _Transformed(normal, squash, validate_args=False)
        return distributions.Independent(squashed, self.low.dim(), validate_args=False)
