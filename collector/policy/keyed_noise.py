"""Keyed random numbers of policies: a number depends only on job seed, episode and step.

Random actions come from the action space, seeded for each episode. Samples of torch's distributions are uniform
numbers, transformed by the inverse distribution function. The numbers are float64 and computed on the CPU, so
that equal parameters give equal samples on every device.
"""

from __future__ import annotations

import math
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from collector.episodes.seeds import action_seeds, episode_keys, random_bits, uniforms
from collector.policy.policy_call import ExplorationType, choose, has_torch_sampling, is_distribution
from collector.policy.random_policy import RandomPolicy
from collector.policy.weights import change_count, is_module
from vecenv.nest import as_array

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


MAX_STEPS_AHEAD = 16
MAX_BLOCK_SIZE = 4096
SMALL = 2**16
"""Maximum size of a parameter without gradient, such as a running mean, that is compared by value."""
UNKNOWN_RANDOMNESS = (
    "the randomness of the policy is unknown: return a distribution. If actions depend only on the inputs, set "
    "policy.repeatable = True for a job"
)


class KeyedNoise:
    """Random numbers for the rows of a policy's input.

    The collector writes each row's episode number and step into `numbers` and `steps`, int64 `(rows,)`.
    """

    def __init__(self, job_seed: int, rows: int) -> None:
        self.job_seed = job_seed
        self.reason = ""
        """Reason why an action was not keyed, or ""."""
        self.resize(rows)
        self._policy: RandomPolicy | None = None

    def not_keyed(self, reason: str) -> None:
        self.reason = self.reason or reason

    def resize(self, rows: int) -> None:
        self.numbers = np.full(rows, -1)
        self.steps = np.zeros(rows, np.int64)
        # `_block`: uniform numbers (rows, steps, numbers per step). `_used_steps`: number of steps that used `_block`.
        self._rows, self._block, self._used_steps = np.arange(rows), np.zeros((rows, 0, 0)), 0
        self._block_numbers, self._block_steps = b"", self.steps

    def begin(self, env_ids: np.ndarray) -> None:
        if self._policy is not None:
            self._policy.seed(env_ids, action_seeds(self.job_seed, self.numbers[env_ids]))

    def seed_random(self, policy: RandomPolicy, action_spaces: Any) -> None:
        """Seed this policy now and in each `begin`. Raises `TypeError` if action spaces differ."""
        for env_id, space in enumerate(action_spaces):
            if space != action_spaces[0]:
                raise TypeError(
                    "an episode may be played in any env, so all envs need equal action spaces; "
                    f"env {env_id} has {space}, env 0 has {action_spaces[0]}"
                )
        self._policy = policy
        ids = np.arange(len(action_spaces))
        policy.seed(ids, action_seeds(self.job_seed, self.numbers[ids]))

    def watch(self, call: Callable[[], T]) -> T:
        """Call a policy. If the policy uses a global generator (as in dropout), record that actions are not keyed."""
        before = _generator_states()
        returned = call()
        if before != _generator_states():
            self.not_keyed("the policy draws from the global random generators of torch, numpy or Python")
        return returned

    @contextmanager
    def watch_state(self, policy: Any) -> Iterator[None]:
        """Record if the policy changes itself, because actions that depend on earlier episodes are not keyed."""
        before = marks_of(policy)
        yield
        if before is not None and marks_of(policy) != before:
            self.not_keyed("the policy changes itself while it acts (training mode, a counter or a normaliser)")

    def uniforms(self, words: int) -> np.ndarray:
        """Return numbers between 0 and 1, float64 `(rows, words)`. Calls in the same step return equal numbers."""
        ahead = self.steps - self._block_steps
        if (
            self._block.shape[2] != words
            or self.numbers.tobytes() != self._block_numbers
            or ahead.view(np.uint64).max() >= self._block.shape[1]  # negative numbers are large as uint64
        ):
            # A large block takes numpy hardly longer, but a new episode discards the block. So `count` is twice
            # the number of used steps.
            count = max(
                1, min(2 * self._used_steps, MAX_STEPS_AHEAD, MAX_BLOCK_SIZE // max(1, len(self._rows) * words))
            )
            self._block_numbers, self._block_steps, self._used_steps = self.numbers.tobytes(), self.steps.copy(), 0
            keys = episode_keys(self.job_seed, self.numbers)[:, None]
            self._block = uniforms(random_bits(keys, self.steps[:, None] + np.arange(count), words))
            ahead = np.zeros_like(self.steps)
        self._used_steps += 1
        drawn: np.ndarray = self._block[self._rows, ahead]
        return drawn

    def choose(self, action: Any, wanted: ExplorationType) -> Any:
        """Call `policy_call.choose`, but draw samples of known distributions from this noise."""
        if is_distribution(type(action)):  # type: ignore[arg-type]
            if wanted is not ExplorationType.RANDOM:
                return choose(action, wanted)
            if (sample := self.sample(action)) is not None:
                return sample
        if is_distribution(type(action)):  # type: ignore[arg-type]
            self.not_keyed(f"samples of {type(action).__name__} are drawn by torch")
        else:  # arrays, or distributions in a dict or tuple
            self.not_keyed(UNKNOWN_RANDOMNESS)
        return choose(action, wanted)

    def sample(self, distribution: Any) -> torch.Tensor | None:
        """Return a sample in the dtype and on the device of a distribution, or `None` for unknown distributions.

        Known distributions have `len(self.numbers)` rows, and are `Categorical`, `OneHotCategorical`, `Bernoulli`,
        `Normal`, or `Independent` or `TransformedDistribution` of these. Raises `ValueError` for probabilities that
        are NaN or all zero.
        """
        if tuple(getattr(distribution, "batch_shape", ())[:1]) != self.numbers.shape:
            return None  # a wrong number of rows, which `OutputCheck` refuses
        found = self._sample(distribution)
        return None if found is None else found[0].to(found[1])

    def _sample(self, distribution: Any) -> tuple[torch.Tensor, torch.dtype] | None:
        if not has_torch_sampling(type(distribution)):  # type: ignore[arg-type]
            return None
        import torch
        from torch import distributions as families

        if isinstance(distribution, families.Independent):
            return self._sample(distribution.base_dist)
        if isinstance(distribution, families.TransformedDistribution):
            found = self._sample(distribution.base_dist)
            if found is None:
                return None
            value, dtype = found
            for transform in distribution.transforms:
                value = transform(value)
            return value, dtype
        if isinstance(distribution, families.OneHotCategorical):
            probs = distribution.probs
            return torch.nn.functional.one_hot(self._indices(probs), probs.shape[-1]), probs.dtype
        if isinstance(distribution, families.Categorical):
            # `torch.softmax` is faster than the property `probs`, which computes the same.
            is_known = "probs" in vars(distribution) or type(distribution) is not families.Categorical
            probs = distribution.probs if is_known else torch.softmax(distribution.logits, -1)
            return self._indices(probs), torch.int64
        if isinstance(distribution, families.Bernoulli):
            probs = distribution.probs
            on_host = _float64(probs)
            below = self._unit(probs.shape) < _checked(on_host, on_host >= 0)
            return torch.from_numpy(below).to(probs.device), probs.dtype
        if isinstance(distribution, families.Normal):
            from collector.device.tensors import to_device

            loc, scale = distribution.loc, distribution.scale
            standard = to_device(_normals(self._unit(loc.shape)), loc.device)
            return loc.to(standard.dtype) + scale.to(standard.dtype) * standard, loc.dtype
        return None

    def _indices(self, probs: torch.Tensor) -> torch.Tensor:
        """Sample indices of the last dimension, in numpy, because a GPU does not sum in a fixed order."""
        sums = np.add.accumulate(_float64(probs), axis=-1)
        total = sums[..., -1:]
        if not total.min() > 0:
            _checked(total, total > 0)
        # If the product rounds up to the total, the index would be too large.
        at = np.minimum(self._unit(probs.shape[:-1])[..., None] * total, np.nextafter(total, 0.0))
        indices: torch.Tensor = sys.modules["torch"].from_numpy(np.add.reduce(sums <= at, -1, np.int64))
        return indices.to(probs.device)

    def _unit(self, shape: Any) -> np.ndarray:
        return self.uniforms(math.prod(shape[1:])).reshape(shape)


def _generator_states() -> list[Any]:
    states: list[Any] = [random.getstate(), pickle.dumps(np.random.get_state(legacy=False))]
    if (torch := sys.modules.get("torch")) is not None:
        kind, devices = _used_accelerators(torch)
        on_devices = [getattr(torch, kind).get_rng_state(device) for device in devices]
        states += [each.numpy().tobytes() for each in (torch.get_rng_state(), *on_devices)]
    return states


def _used_accelerators(torch: Any) -> tuple[str, range]:
    """Return the type and the numbers of the accelerators that have generators in this process."""
    device = torch.accelerator.current_accelerator(check_available=True)
    kind = "cuda" if device is None else device.type
    # A question to the generators of CUDA would start CUDA. MPS has no `is_initialized`.
    is_used = device is not None and getattr(getattr(torch, kind), "is_initialized", lambda: True)()
    return kind, range(torch.accelerator.device_count() if is_used else 0)


def _normals(unit: np.ndarray) -> np.ndarray:
    from statistics import NormalDist  # a slow import

    inverse = NormalDist().inv_cdf
    return np.array([inverse(each) for each in unit.ravel().tolist()]).reshape(unit.shape)


def _float64(tensor: torch.Tensor) -> np.ndarray:
    return as_array(tensor).astype(np.float64)


def _checked(values: np.ndarray, valid: Any) -> np.ndarray:
    if not bool(valid.all()):
        raise ValueError(f"the policy returned a distribution with probabilities that are NaN or zero: {values}")
    return values


@contextmanager
def restored_generators() -> Iterator[None]:
    torch = sys.modules.get("torch")
    kind, devices = ("", range(0)) if torch is None else _used_accelerators(torch)
    states = random.getstate(), np.random.get_state()
    try:
        with nullcontext() if torch is None else torch.random.fork_rng(devices, device_type=kind):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def marks_of(policy: Any) -> list[tuple[str, Any]] | None:
    """Return a mark for each value that a policy may carry from call to call. If marks differ, the policy has changed.

    Values are buffers, weights, and attributes that are arrays, tensors, numbers or random generators. Return `None`
    for a lazy module that has not made its parameters.
    """
    holder = getattr(policy, "__self__", policy)  # the object of a bound method
    marks = []
    for part in holder.modules() if is_module(holder) else [holder]:
        own = getattr(part, "__dict__", {})
        for name, value in own.get("_parameters", {}).items():
            if hasattr(value, "materialize"):
                return None
            if value is not None:
                # Hashing weights is slow, but torch counts no changes of `.data` and of inference tensors.
                is_hashed = value.is_inference() or (not value.requires_grad and value.numel() <= SMALL)
                marks.append((name, _mark(value) if is_hashed else change_count(value)))
        marks += [(name, _mark(value)) for name, value in [*own.items(), *own.get("_buffers", {}).items()]]
    return marks


def _mark(value: Any) -> Any:
    if isinstance(value, (bool, int, float, complex, np.generic)):
        return repr(value)
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return pickle.dumps(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return pickle.dumps(value.get_state())
    if hasattr(value, "get_state") and type(value).__module__ == "torch":  # torch.Generator
        value = value.get_state()
    try:
        if isinstance(value, np.ndarray) or hasattr(value, "detach"):
            return hash(as_array(value).tobytes())
    except (RuntimeError, TypeError, NotImplementedError):  # such as meta tensors
        pass
    return None
