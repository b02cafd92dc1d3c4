"""Random bits and samples that depend only on job seed, episode number and step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import distributions as D

from collector import MLPPolicy, action_seed, episode_seed
from collector.episodes.seeds import action_seeds, episode_keys, random_bits, uniforms
from collector.policy.keyed_noise import KeyedNoise

ROWS = 4000


def noise(rows: int = ROWS, seed: int = 1) -> KeyedNoise:
    made = KeyedNoise(seed, rows)
    made.numbers = np.arange(rows)
    return made


def test_random_bits_of_steps_episodes_and_jobs_have_nothing_in_common():
    grid = uniforms(random_bits(episode_keys(5, np.arange(300))[:, None], np.arange(200), 1))[..., 0]
    other = uniforms(random_bits(episode_keys(6, np.arange(300))[:, None], np.arange(200), 1))[..., 0]
    for left, right in ((grid[1:], grid[:-1]), (grid[:, 1:], grid[:, :-1]), (grid, other)):
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 0.02
    bits = np.array([0, 1, 2**32, 2**63, 2**64 - 1, 0x9E3779B97F4A7C15], np.uint64)
    assert uniforms(bits).min() > 0
    assert uniforms(bits).max() < 1


@pytest.mark.guarantee("G6.8")
def test_seeds_and_noise_follow_from_the_job_seed_and_the_number_alone():
    assert [episode_seed(3, number) for number in (0, 1, 2, 10**6)] == [1663660961, 1215352495, 974320961, 1132517010]
    assert episode_seed(2**63 - 1, 2**63 - 1) == 738932066
    assert [action_seed(3, number) for number in (0, 1, 10**6)] == [1665845680, 834886420, 1191958466]
    for job, numbers in ((3, np.arange(9)), (2**63 - 1, np.array([0, 2**40, 2**63 - 1]))):
        assert list(action_seeds(job, numbers)) == [action_seed(job, number) for number in numbers.tolist()]
    bits = random_bits(episode_keys(3, np.array([0, 10**6])), np.array([0, 5]), 1)
    assert bits.tolist() == [[16244026015683490169], [11134568982115070775]]
    seeds = {seed(job, number) for seed in (episode_seed, action_seed) for job in range(4) for number in range(2000)}
    assert len(seeds) > 15980
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_numbers_that_are_drawn_ahead_are_those_of_their_step():
    """Episodes end, rows pause, and the number of words changes, in any order."""
    rng, made = np.random.default_rng(3), noise(rows=5)
    for _ in range(300):
        made.steps += rng.random(5) < 0.9
        if rng.random() < 0.2:
            row = rng.integers(5)
            made.numbers[row], made.steps[row] = rng.integers(-1, 1000), 0
        words = int(rng.choice([1, 1, 1, 1, 2]))
        expected = uniforms(random_bits(episode_keys(1, made.numbers), made.steps, words))
        np.testing.assert_array_equal(made.uniforms(words), expected)


# Distributions.


def rows(*values: float) -> torch.Tensor:
    return torch.tensor(values).repeat(ROWS, 1)


TANH = D.TanhTransform()
NORMAL = D.Normal(rows(0.3, -1.0), rows(0.5, 2.0))
FAMILIES = {
    "categorical": D.Categorical(probs=rows(0.1, 0.0, 0.6, 0.3, 0.0)),
    "categorical of logits": D.Categorical(logits=rows(-2.0, 0.5, 0.0)),
    "several categoricals": D.Independent(D.Categorical(logits=torch.arange(4.0).repeat(ROWS, 3, 1)), 1),
    "one-hot": D.OneHotCategorical(probs=rows(0.2, 0.8)),
    "bernoulli": D.Bernoulli(probs=rows(0.0, 0.3, 1.0)),
    "independent bernoulli": D.Independent(D.Bernoulli(logits=rows(0.4, -1.0)), 1),
    "normal": NORMAL,
    "float64 normal": D.Normal(rows(3.0).double(), rows(0.5).double()),
    "independent normal": D.Independent(NORMAL, 1),
    "tanh normal": D.TransformedDistribution(NORMAL, [TANH]),
    "independent tanh normal": D.Independent(D.TransformedDistribution(NORMAL, [TANH, D.AffineTransform(1.0, 3.0)]), 1),
    "tanh of independent": D.TransformedDistribution(D.Independent(NORMAL, 1), [TANH]),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_samples_have_the_form_and_the_moments_of_torchs(name):
    distribution = FAMILIES[name]
    own, theirs = noise().sample(distribution), distribution.sample()
    assert (own.shape, own.dtype, own.device) == (theirs.shape, theirs.dtype, theirs.device)
    for moment in (lambda each: each.double().mean(0), lambda each: each.double().std(0)):
        difference = (moment(own) - moment(theirs)).abs()
        assert (difference < 0.09 * (1 + moment(theirs).abs())).all()
    assert torch.equal(own, noise().sample(distribution))
    assert not torch.equal(own, noise(seed=2).sample(distribution))
    distribution.log_prob(own)  # raises for values outside of the support


def test_a_sample_does_not_depend_on_the_rows_beside_it():
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    some, permuted, order = noise(6), noise(6), [5, 2, 0, 1, 3, 4]
    some.steps[:] = [0, 4, 2, 9, 1, 0]
    permuted.numbers, permuted.steps = some.numbers[order], some.steps[order]
    whole = some.sample(D.Categorical(logits=logits))
    assert torch.equal(permuted.sample(D.Categorical(logits=logits[order])), whole[order])


def test_no_action_of_the_mlp_policy_is_rounded_out_of_its_bounds():
    low, high = np.float32([-0.13210486]), np.float32([0.12573022])
    assert low + (high - low) > high
    policy = MLPPolicy(gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.Box(low, high))
    with torch.no_grad():
        policy.net[-1].bias[:] = 1e9
        assert noise(1).sample(policy(torch.zeros(1, 3))).numpy() <= high


class OwnSample(D.Normal):
    def rsample(self, sample_shape: Any = ()) -> torch.Tensor:
        return torch.zeros(self.batch_shape)


@pytest.mark.guarantee("G11.5")
@pytest.mark.parametrize(
    "distribution",
    [
        D.Beta(rows(1.0), rows(2.0)),
        D.Gamma(rows(1.0), rows(2.0)),
        D.Independent(D.Gamma(rows(1.0), rows(2.0)), 1),
        D.TransformedDistribution(D.Beta(rows(1.0), rows(2.0)), [TANH]),
        OwnSample(rows(0.0), rows(1.0)),
        D.Normal(torch.zeros(3), torch.ones(3)),
        SimpleNamespace(sample=lambda: 0, log_prob=lambda x: 0),
    ],
)
def test_other_distributions_are_not_known(distribution):
    assert noise().sample(distribution) is None


@pytest.mark.parametrize(
    "distribution",
    [
        D.Categorical(probs=rows(1.0, np.nan), validate_args=False),
        D.Categorical(logits=rows(-np.inf, -np.inf), validate_args=False),
        D.Bernoulli(probs=rows(np.nan), validate_args=False),
    ],
)
def test_probabilities_that_are_none_are_refused(distribution):
    with pytest.raises(ValueError, match="NaN or zero"):
        noise().sample(distribution)
