"""Random bits, actions and samples that depend on (job seed, episode number, step) alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions as D

from collector import KeyedRandomPolicy, episode_seed
from collector.episodes.keys import episode_keys, random_bits, scaled, uniforms
from collector.policy.keyed.distributions import sample_keyed
from collector.policy.keyed.noise import KeyedNoise
from vecenv import nest

INF = np.inf


def mixed_box(dtype: Any = np.float32) -> spaces.Box:
    return spaces.Box(np.array([-2, -INF, 1, -INF], dtype), np.array([2, INF, INF, 5], dtype), dtype=dtype)


SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(5, start=-2),
    "multi-discrete": spaces.MultiDiscrete([[2, 3], [100, 1]], start=[[0, 5], [-50, 7]]),
    "multi-binary": spaces.MultiBinary((2, 2)),
    "box": spaces.Box(-1, 3, (2,)),
    "float64 box": spaces.Box(-1e308, 1e308, (2,), np.float64),
    "mixed bounds": mixed_box(),
    "uint8 box": spaces.Box(0, 255, (3,), np.uint8),
    "int8 box": spaces.Box(-128, 127, (2,), np.int8),
    "int64 box": spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64),
    "uint64 box": spaces.Box(2**62, 2**64 - 1, (2,), np.uint64),
    "number": spaces.Box(0, 1, ()),
    "dict": spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Tuple((spaces.Box(0, 1, (1,)), spaces.MultiBinary(2)))}),
}
GOLDEN: dict[str, Any] = {
    "discrete": [-1, -1, 0],
    "multi-discrete": [[[0, 5], [-49, 7]], [[0, 6], [-19, 7]], [[1, 6], [7, 7]]],
    "multi-binary": [[[0, 0], [0, 1]], [[0, 0], [0, 1]], [[1, 0], [1, 0]]],
    "box": [
        [0.2590639889240265, 0.03653723746538162],
        [0.42034706473350525, 0.9588373899459839],
        [1.2170673608779907, 0.9846535325050354],
    ],
    "float64 box": [
        [-3.704680105462626e307, -4.817313816627651e307],
        [-2.89826461461739e307, -2.0581293698230885e306],
        [1.0853366480752528e307, -7.673230441947477e305],
    ],
    "mixed bounds": [
        [-0.7409360408782959, -0.6460165977478027, 5.165952682495117, 4.803722858428955],
        [-0.5796529054641724, -0.025797687470912933, 2.152642250061035, 4.540548324584961],
        [0.21706733107566833, -0.009617116302251816, 1.5567046403884888, 3.1518688201904297],
    ],
    "uint8 box": [[80, 66, 3], [90, 125, 80], [141, 127, 146]],
    "int8 box": [[-48, -62], [-38, -3], [13, -1]],
    "int64 box": [
        [-3416964289021617123, -4443187754903764086],
        [-2673177280186772602, -189828928778557952],
        [1001046369043095919, -70773059090603014],
    ],
    "uint64 box": [
        [8966491829302256917, 8196824229890646695],
        [9524332085928390308, 11386843349484551296],
        [12279999822850791699, 11476135251750517499],
    ],
    "number": [0.314765989780426, 0.3550867736339569, 0.5542668104171753],
    "dict": {
        "a": ([[0.314765989780426], [0.3550867736339569], [0.5542668104171753]], [[0, 0], [0, 0], [0, 1]]),
        "b": [2, 1, 0],
    },
}
"""Float32 of normal numbers: the logarithm of the C library may differ in the last bit of a float64."""


def rows_of(tree: Any) -> list[Any]:
    return [nest.take(tree, row) for row in range(len(next(nest.leaves(tree))))]


@pytest.mark.parametrize("name", SPACES)
def test_actions_are_these_with_every_version_of_numpy(name):
    actions = KeyedRandomPolicy(SPACES[name], 7)(None, [0, 1, 2**40], [0, 5, 3])
    assert nest.map(lambda leaf: leaf.tolist(), actions) == GOLDEN[name]


@pytest.mark.parametrize("name", SPACES)
def test_actions_are_in_the_space_in_any_order_and_any_company(name):
    """Also as in a job: the first blocks of the next episodes are drawn ahead, and some come again, or far behind."""
    space, rng, sequence = SPACES[name], np.random.default_rng(0), iter([*range(60), 3, 2**40, 200, 4])
    numbers, steps = np.array([next(sequence) for _ in range(4)]), np.zeros(4, np.int64)
    policy, played = KeyedRandomPolicy([space] * 4, 1), []
    while numbers is not None:
        played += zip(numbers.tolist(), steps.tolist(), rows_of(policy(None, numbers, steps)), strict=True)
        steps += 5
        for row in np.flatnonzero(rng.random(4) < 0.3).tolist():
            if (number := next(sequence, None)) is None:
                numbers = None
                break
            numbers[row], steps[row] = number, 0
    assert all(space.contains(np.asarray(action) if space.shape == () else action) for *_, action in played)
    order, alone = rng.permutation(len(played)), KeyedRandomPolicy(space, 1)
    for some in np.array_split(order, len(played) // 7):
        keys = np.array([played[row][:2] for row in some.tolist()])
        for row, action in zip(some.tolist(), rows_of(alone(None, *keys.T)), strict=True):
            for left, right in zip(nest.leaves(action), nest.leaves(played[row][2]), strict=True):
                assert np.asarray(left).tobytes() == np.asarray(right).tobytes()


def test_each_action_is_as_likely_as_another():
    policy = KeyedRandomPolicy(spaces.MultiDiscrete([6, 10]), 5)
    numbers, steps = (each.ravel() for each in np.meshgrid(np.arange(300), np.arange(200)))
    actions = policy(None, numbers, steps)
    for column, n in ((0, 6), (1, 10)):
        found = np.bincount(actions[:, column], minlength=n)
        expected = len(actions) / n
        assert ((found - expected) ** 2 / expected).sum() < 35  # chi square with 9 degrees: 1 in 10,000 is larger
    pairs = actions[:, 0] * 10 + actions[:, 1]
    assert np.bincount(pairs, minlength=60).min() > 800  # of 1000
    # Consecutive steps, consecutive episodes and consecutive job seeds have nothing in common.
    grid = uniforms(random_bits(episode_keys(5, np.arange(300))[:, None], np.arange(200), 1))[..., 0]
    other = uniforms(random_bits(episode_keys(6, np.arange(300))[:, None], np.arange(200), 1))[..., 0]
    for left, right in ((grid[1:], grid[:-1]), (grid[:, 1:], grid[:, :-1]), (grid, other)):
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 0.02


def test_the_seeds_of_episodes_are_of_the_same_keys():
    numbers = np.array([0, 1, 2, 10**6, 2**40, 2**63 - 1])
    for job in (0, 5, 2**63 - 1):
        bits = [int(key) ^ 0x8CB92BA72F3D8DD7 for key in episode_keys(job, numbers)]
        for factor, shift in ((0xBF58476D1CE4E5B9, 30), (0x94D049BB133111EB, 27)):
            bits = [(each ^ each >> shift) * factor % 2**64 for each in bits]
        wanted = [(each ^ each >> 31) >> 33 for each in bits]
        assert [episode_seed(job, number) for number in numbers.tolist()] == wanted


def test_numbers_are_scaled_exactly():
    bits = np.array([0, 1, 2**32, 2**63, 2**64 - 1, 0x9E3779B97F4A7C15], np.uint64)
    for span in (1, 2, 3, 1000, 2**32 - 1, 2**32, 2**32 + 1, 2**63 + 5, 2**64 - 1):
        found = scaled(bits, np.array([span], np.uint64))
        assert found.tolist() == [int(each) * span >> 64 for each in bits]
    assert scaled(bits, np.array([0], np.uint64)).tolist() == bits.tolist()
    assert uniforms(bits).min() > 0
    assert uniforms(bits).max() < 1


def test_spaces_without_bounds_get_normal_and_exponential_numbers():
    policy = KeyedRandomPolicy(mixed_box(np.float64), 3)
    drawn = policy(None, np.arange(20_000), np.zeros(20_000))
    bounded, normal, above, below = drawn.T
    for values, mean, std in ((bounded, 0, 4 / 12**0.5), (normal, 0, 1), (above, 2, 1), (below, 4, 1)):
        assert abs(values.mean() - mean) < 0.04
        assert abs(values.std() - std) < 0.04


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))})])
def test_other_spaces_are_refused(space):
    with pytest.raises(TypeError, match="random actions are drawn from"):
        KeyedRandomPolicy(space)


# Masks.


def test_masks_leave_what_they_allow_and_change_nothing_where_all_is_allowed():
    numbers, steps = np.arange(500), np.zeros(500, np.int64)
    discrete = KeyedRandomPolicy(spaces.Discrete(5, start=1), 2)
    free = discrete(None, numbers, steps)
    assert discrete({"action_mask": np.ones((500, 5), np.int8)}, numbers, steps).tolist() == free.tolist()
    mask = np.array([0, 1, 0, 1, 1], np.int8)
    some = discrete(None, numbers, steps, [mask if row % 2 else None for row in range(500)])
    assert some[::2].tolist() == free[::2].tolist()
    assert np.bincount(some[1::2], minlength=6)[[2, 4, 5]].min() > 50
    assert set(some[1::2].tolist()) == {2, 4, 5}
    assert discrete({"action_mask": np.zeros((500, 5))}, numbers, steps).tolist() == [1] * 500  # as gymnasium's


def test_masks_of_the_other_spaces_have_the_form_that_sample_takes():
    numbers, steps = np.arange(200), np.zeros(200, np.int64)
    multi = KeyedRandomPolicy(spaces.MultiDiscrete([2, 3]), 2)
    parts = (np.array([0, 1], np.int8), np.array([1, 0, 1], np.int8))
    as_tuple = multi(None, numbers, steps, [parts] * 200)
    flat = multi({"action_mask": np.tile(np.concatenate(parts), (200, 1))}, numbers, steps)
    assert as_tuple.tolist() == flat.tolist()
    assert {tuple(row) for row in flat.tolist()} == {(1, 0), (1, 2)}
    binary = KeyedRandomPolicy(spaces.MultiBinary(3), 2)(None, numbers, steps, [np.array([0, 1, 2], np.int8)] * 200)
    assert {tuple(row) for row in binary.tolist()} == {(0, 1, 0), (0, 1, 1)}
    tree = KeyedRandomPolicy(SPACES["dict"], 2)(None, numbers, steps, [{"b": np.array([0, 0, 1], np.int8)}] * 200)
    assert set(tree["b"].tolist()) == {2}
    assert len(set(tree["a"][0].ravel().tolist())) == 200


@pytest.mark.parametrize(
    ("space", "mask", "error"),
    [
        (spaces.Discrete(3), np.ones(4, np.int8), ValueError),
        (spaces.Discrete(3), np.array(["a"] * 3), ValueError),
        (spaces.MultiDiscrete([2, 3]), np.ones(6, np.int8), ValueError),
        (spaces.MultiDiscrete([2, 3]), (np.ones(2, np.int8),), ValueError),
        (spaces.MultiBinary(3), np.ones(2, np.int8), ValueError),
        (spaces.Box(0, 1, (2,)), np.ones(2, np.int8), TypeError),
        (SPACES["dict"], np.ones(2, np.int8), ValueError),
    ],
)
def test_masks_of_another_form_are_refused(space, mask, error):
    with pytest.raises(error, match="mask"):
        KeyedRandomPolicy(space)(None, [0], [0], [mask])


# Distributions.

ROWS = 4000


def noise(rows: int = ROWS, seed: int = 1) -> KeyedNoise:
    made = KeyedNoise(seed, rows)
    made.numbers = np.arange(rows)
    return made


def rows(*values: float) -> torch.Tensor:
    return torch.tensor(values).repeat(ROWS, 1)


TANH = D.TanhTransform()
FAMILIES = {
    "categorical": D.Categorical(probs=rows(0.1, 0.0, 0.6, 0.3, 0.0)),
    "categorical of logits": D.Categorical(logits=rows(-2.0, 0.5, 0.0)),
    "several categoricals": D.Independent(D.Categorical(logits=torch.randn(ROWS, 3, 4) * 0 + torch.arange(4.0)), 1),
    "one-hot": D.OneHotCategorical(probs=rows(0.2, 0.8)),
    "bernoulli": D.Bernoulli(probs=rows(0.0, 0.3, 1.0)),
    "independent bernoulli": D.Independent(D.Bernoulli(logits=rows(0.4, -1.0)), 1),
    "normal": D.Normal(rows(3.0, -1.0), rows(0.5, 2.0)),
    "float64 normal": D.Normal(rows(3.0).double(), rows(0.5).double()),
    "independent normal": D.Independent(D.Normal(rows(3.0, -1.0), rows(0.5, 2.0)), 1),
    "tanh normal": D.TransformedDistribution(D.Normal(rows(0.3, -1.0), rows(0.5, 2.0)), [TANH]),
    "independent tanh normal": D.Independent(
        D.TransformedDistribution(D.Normal(rows(0.3, -1.0), rows(0.5, 2.0)), [TANH, D.AffineTransform(1.0, 3.0)]), 1
    ),
    "tanh of independent": D.TransformedDistribution(
        D.Independent(D.Normal(rows(0.3, -1.0), rows(0.5, 2.0)), 1), [TANH]
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_samples_have_the_form_and_the_moments_of_torchs(name):
    distribution = FAMILIES[name]
    torch.manual_seed(0)
    own, theirs = sample_keyed(distribution, noise()), distribution.sample()
    assert (own.shape, own.dtype, own.device) == (theirs.shape, theirs.dtype, theirs.device)
    for moment in (lambda each: each.double().mean(0), lambda each: each.double().std(0)):
        difference = (moment(own) - moment(theirs)).abs()
        assert (difference < 0.09 * (1 + moment(theirs).abs())).all()
    again, other = sample_keyed(distribution, noise()), sample_keyed(distribution, noise(seed=2))
    assert torch.equal(own, again)
    assert not torch.equal(own, other)
    distribution.log_prob(own)  # which refuses what is outside of the support


def test_a_sample_does_not_depend_on_the_rows_beside_it():
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    some = noise(6)
    some.steps[:] = [0, 4, 2, 9, 1, 0]
    whole = sample_keyed(D.Categorical(logits=logits), some)
    order = [5, 2, 0, 1, 3, 4]
    permuted = noise(6)
    permuted.numbers, permuted.steps = some.numbers[order], some.steps[order]
    assert torch.equal(sample_keyed(D.Categorical(logits=logits[order]), permuted), whole[order])


class OwnSample(D.Normal):
    def rsample(self, sample_shape: Any = ()) -> torch.Tensor:
        return torch.zeros(self.batch_shape)


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
    assert sample_keyed(distribution, noise()) is None


@pytest.mark.parametrize(
    "distribution",
    [
        D.Categorical(probs=rows(1.0, np.nan), validate_args=False),
        D.Categorical(logits=rows(-INF, -INF), validate_args=False),
        D.Bernoulli(probs=rows(np.nan), validate_args=False),
    ],
)
def test_probabilities_that_are_none_are_refused(distribution):
    with pytest.raises(ValueError, match="NaN or zero"):
        sample_keyed(distribution, noise())
