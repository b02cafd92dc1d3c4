"""`KeyedNoise`: random numbers for a policy that depend only on the episode and the step.

Random actions come from the env's action space, seeded where the episode begins. Samples of torch's distributions are
made out of uniform numbers, by the inverse of their distribution functions. Those are float64 and come from the host,
whatever the device and dtype of the policy, so that the same parameters give the same sample everywhere.
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

from collector.episodes.seeds import action_seed, episode_keys, random_bits, uniforms
from collector.policy.policy_call import ExplorationType, choose, draws_as_torch, is_distribution
from collector.policy.policy_state import marks_of
from collector.policy.random_policy import RandomPolicy
from vecenv.nest import as_array

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


MOST_AHEAD = 16
"""Steps for which random numbers are computed at once."""
MOST_IN_A_BLOCK = 4096
UNKNOWN = (
    "the randomness of the policy is unknown: return a distribution, or declare that its actions follow from its "
    "inputs alone, by the attribute repeatable = True of the policy"
)


class KeyedNoise:
    """Draws for the rows with which a policy is called, each of which is at a step of an episode.

    `numbers` and `steps` (int64 `(rows,)`) are read at each draw: the loop writes into them.
    """

    def __init__(self, job_seed: int, rows: int) -> None:
        self.job_seed = job_seed
        self.reason = ""
        """The reason why not all actions so far were keyed; "" if all were: random, the mode or mean of a distribution,
        or a sample of a known family. What a policy returns as an action may come from anywhere."""
        self.resize(rows)
        self._policy: RandomPolicy | None = None

    @property
    def everything(self) -> bool:
        """True if all actions so far were keyed."""
        return not self.reason

    def not_keyed(self, reason: str) -> None:
        """Record why actions are not keyed; the first reason stays."""
        self.reason = self.reason or reason

    def resize(self, rows: int) -> None:
        """Draw for so many rows, none of which is in an episode."""
        self.numbers = np.full(rows, -1)
        self.steps = np.zeros(rows, np.int64)
        self._rows, self._block, self._drawn = np.arange(rows), np.zeros((rows, 0, 0)), 0
        """Uniform numbers for the next steps of each row, `(rows, steps, words)`, and how often they were of use."""
        self._block_numbers, self._block_steps = b"", self.steps

    def begin(self, env_ids: np.ndarray) -> None:
        """Record that episodes begin in these envs."""
        if self._policy is not None:
            self._policy.seed(env_ids, [action_seed(self.job_seed, each) for each in self.numbers[env_ids].tolist()])

    # Random actions.

    def seed_random(self, policy: RandomPolicy, action_spaces: Any) -> None:
        """Seed the streams of random actions of this policy with each episode that begins. Raises `TypeError` if action
        spaces differ.
        """
        for env_id, space in enumerate(action_spaces):
            if space != action_spaces[0]:
                raise TypeError(
                    f"an episode may be played in any env, so their action spaces must be equal; that of env {env_id} "
                    f"is {space}, that of env 0 is {action_spaces[0]}"
                )
        self._policy = policy
        ids = np.arange(len(action_spaces))
        policy.seed(ids, [action_seed(self.job_seed, each) for each in self.numbers[ids].tolist()])

    # What a policy draws.

    def watch(self, call: Callable[[], T]) -> T:
        """Call a policy and return its result. A policy that draws from the global generators of torch (dropout does),
        numpy or Python is not keyed.
        """
        before = _generator_states()
        returned = call()
        if before != _generator_states():
            self.not_keyed("the policy draws from the global random generators of torch, numpy or Python")
        return returned

    @contextmanager
    def watch_state(self, policy: Any) -> Iterator[None]:
        """Watch a batch. The actions of a policy that changes itself while it acts are not keyed, because they depend
        on the episodes before.
        """
        before = marks_of(policy)
        yield
        if before is not None and marks_of(policy) != before:
            self.not_keyed("the policy changes itself while it acts (training mode, a counter or a normaliser)")

    def uniforms(self, words: int) -> np.ndarray:
        """`words` numbers between 0 and 1 for each env: float64 `(N, words)`, the same ones at each call of a step."""
        ahead = self.steps - self._block_steps
        if (
            self._block.shape[2] != words
            or self.numbers.tobytes() != self._block_numbers
            or ahead.view(np.uint64).max() >= self._block.shape[1]  # also if one is below zero
        ):
            # An operation on a few numbers takes as long as one on hundreds. The end of an episode ends a block.
            count = max(1, min(2 * self._drawn, MOST_AHEAD, MOST_IN_A_BLOCK // max(1, len(self._rows) * words)))
            self._block_numbers, self._block_steps, self._drawn = self.numbers.tobytes(), self.steps.copy(), 0
            keys = episode_keys(self.job_seed, self.numbers)[:, None]
            self._block = uniforms(random_bits(keys, self.steps[:, None] + np.arange(count), words))
            ahead = np.zeros_like(self.steps)
        self._drawn += 1
        drawn: np.ndarray = self._block[self._rows, ahead]
        return drawn

    def choose(self, action: Any, wanted: ExplorationType) -> Any:
        """As `exploration.choose`, with samples of known families drawn from this noise."""
        if is_distribution(type(action)):  # type: ignore[arg-type]
            if wanted is not ExplorationType.RANDOM:
                return choose(action, wanted)
            if (sample := self.sample(action)) is not None:
                return sample
        if is_distribution(type(action)):  # type: ignore[arg-type]
            self.not_keyed(f"samples of {type(action).__name__} are drawn by torch")
        else:  # also distributions in a dict or tuple
            self.not_keyed(UNKNOWN)
        return choose(action, wanted)

    def sample(self, distribution: Any) -> torch.Tensor | None:
        """A sample of a distribution with a row for each row of the noise: of the shape, dtype and device of its
        `sample`.

        None for families that are not known: `Categorical`, `OneHotCategorical`, `Bernoulli` and `Normal` are, and
        `Independent` and `TransformedDistribution` of these. Raises `ValueError` where probabilities are NaN.
        """
        if tuple(getattr(distribution, "batch_shape", ())[:1]) != self.numbers.shape:
            return None  # it has not a row for each observation, which is refused later on
        found = self._sample(distribution)
        return None if found is None else found[0].to(found[1])

    def _sample(self, distribution: Any) -> tuple[torch.Tensor, torch.dtype] | None:
        """A sample before it is rounded to the dtype of the distribution, and that dtype."""
        if not draws_as_torch(type(distribution)):  # type: ignore[arg-type]
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
            # `probs` of torch is the same softmax, and takes three times as long.
            is_known = "probs" in vars(distribution) or type(distribution) is not families.Categorical
            probs = distribution.probs if is_known else torch.softmax(distribution.logits, -1)
            return self._indices(probs), torch.int64
        if isinstance(distribution, families.Bernoulli):
            probs = distribution.probs
            below = self._unit(probs.shape) < _checked(_float64(probs), probs >= 0)
            return torch.from_numpy(below).to(probs.device), probs.dtype
        if isinstance(distribution, families.Normal):
            loc, scale = distribution.loc, distribution.scale
            standard = torch.from_numpy(_normals(self._unit(loc.shape))).to(loc.device)
            return loc.double() + scale.double() * standard, loc.dtype
        return None

    def _indices(self, probs: torch.Tensor) -> torch.Tensor:
        """Indices of the last dimension. The sums are numpy's, one after another: on a GPU their order is not fixed."""
        sums = np.add.accumulate(_float64(probs), axis=-1)
        total = sums[..., -1:]
        if not total.min() > 0:
            _checked(total, total > 0)
        # Below the total, so that an index without probability at the end is not reached.
        at = np.minimum(self._unit(probs.shape[:-1])[..., None] * total, np.nextafter(total, 0.0))
        indices: torch.Tensor = sys.modules["torch"].from_numpy(np.add.reduce(sums <= at, -1, np.int64))
        return indices.to(probs.device)

    def _unit(self, shape: Any) -> np.ndarray:
        return self.uniforms(math.prod(shape[1:])).reshape(shape)


def _generator_states() -> list[Any]:
    """Return the states of all global generators, to be compared."""
    states: list[Any] = [random.getstate(), pickle.dumps(np.random.get_state(legacy=False))]
    if (torch := sys.modules.get("torch")) is not None:
        on_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        states += [each.numpy().tobytes() for each in (torch.get_rng_state(), *on_cuda)]
    return states


def _normals(unit: np.ndarray) -> np.ndarray:
    """Uniform numbers as standard normal ones, by the inverse of the distribution function."""
    from statistics import NormalDist  # here, because few need it, and it imports much

    inverse = NormalDist().inv_cdf
    return np.array([inverse(each) for each in unit.ravel().tolist()]).reshape(unit.shape)


def _float64(tensor: torch.Tensor) -> np.ndarray:
    return as_array(tensor).astype(np.float64)


def _checked(values: np.ndarray, valid: Any) -> np.ndarray:
    """The values; `ValueError` where one is not valid, as NaN never is."""
    if not bool(valid.all()):
        raise ValueError(f"the policy returned a distribution with probabilities that are NaN or zero: {values}")
    return values


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the global generators of Python, numpy and torch afterwards: what is drawn inside is drawn again."""
    torch = sys.modules.get("torch")
    devices = range(torch.cuda.device_count()) if torch is not None and torch.cuda.is_initialized() else []
    states = random.getstate(), np.random.get_state()
    try:
        with nullcontext() if torch is None else torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
