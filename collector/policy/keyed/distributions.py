"""Samples of torch's distributions out of uniform numbers, by the inverse of their distribution functions.

The noise is float64 and comes from the host, whatever the device and dtype of the policy, so that the same parameters
give the same sample everywhere.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from torch.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Independent,
    Normal,
    OneHotCategorical,
    TransformedDistribution,
)

from collector.device.tensors import torch
from collector.policy.exploration import draws_as_torch
from collector.policy.keyed.draws import normals
from vecenv.nest import as_array


class Uniforms(Protocol):
    """Where the noise comes from."""

    numbers: np.ndarray
    """`(N,)`."""

    def uniforms(self, words: int) -> np.ndarray:
        """float64 `(N, words)`, between 0 and 1."""


def sample_keyed(distribution: Any, noise: Uniforms) -> torch.Tensor | None:
    """A sample of a distribution with a row for each row of the noise: of the shape, dtype and device of its `sample`.

    None for families that are not known: `Categorical`, `OneHotCategorical`, `Bernoulli` and `Normal` are, and
    `Independent` and `TransformedDistribution` of these. Raises `ValueError` where probabilities are NaN.
    """
    if tuple(getattr(distribution, "batch_shape", ())[:1]) != noise.numbers.shape:
        return None  # it has not a row for each observation, which is refused later on
    found = _sample(distribution, noise)
    return None if found is None else found[0].to(found[1])


def _sample(distribution: Any, noise: Uniforms) -> tuple[torch.Tensor, torch.dtype] | None:
    """A sample before it is rounded to the dtype of the distribution, and that dtype."""
    if not isinstance(distribution, Distribution) or not draws_as_torch(type(distribution)):  # type: ignore[arg-type]
        return None
    if isinstance(distribution, Independent):
        return _sample(distribution.base_dist, noise)
    if isinstance(distribution, TransformedDistribution):
        found = _sample(distribution.base_dist, noise)
        if found is None:
            return None
        value, dtype = found
        for transform in distribution.transforms:
            value = transform(value)
        return value, dtype
    if isinstance(distribution, OneHotCategorical):
        probs = distribution.probs
        index = _indices(probs, noise)
        return torch.nn.functional.one_hot(index, probs.shape[-1]), probs.dtype
    if isinstance(distribution, Categorical):
        return _indices(distribution.probs, noise), torch.int64
    if isinstance(distribution, Bernoulli):
        probs = distribution.probs
        unit = _unit(noise, probs.shape)
        return torch.from_numpy(unit < _checked(_float64(probs), probs >= 0)).to(probs.device), probs.dtype
    if isinstance(distribution, Normal):
        loc, scale = distribution.loc, distribution.scale
        standard = torch.from_numpy(normals(_unit(noise, loc.shape))).to(loc.device)
        return loc.double() + scale.double() * standard, loc.dtype
    return None


def _indices(probs: torch.Tensor, noise: Uniforms) -> torch.Tensor:
    """Indices of the last dimension. The sums are numpy's, one after another: on a GPU their order is not fixed."""
    sums = np.cumsum(_float64(probs), axis=-1)
    total = sums[..., -1:]
    _checked(total, total > 0)
    # Below the total, so that an index without probability at the end is not reached.
    at = np.minimum(_unit(noise, probs.shape[:-1])[..., None] * total, np.nextafter(total, 0.0))
    return torch.from_numpy((sums <= at).sum(-1)).to(probs.device)


def _unit(noise: Uniforms, shape: torch.Size) -> np.ndarray:
    return noise.uniforms(int(np.prod(shape[1:]))).reshape(shape)


def _float64(tensor: torch.Tensor) -> np.ndarray:
    return as_array(tensor).astype(np.float64)


def _checked(values: np.ndarray, valid: Any) -> np.ndarray:
    """The values; `ValueError` where one is not valid, as NaN never is."""
    if not bool(valid.all()):
        raise ValueError(f"the policy returned a distribution with probabilities that are NaN or zero: {values}")
    return values
