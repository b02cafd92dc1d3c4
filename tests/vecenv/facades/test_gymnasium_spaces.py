"""Spaces of envs in a batch, and custom spaces, registered with gymnasium or not."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import utils

from tests.support.backends import FULL
from tests.support.cases import playing
from tests.support.gymnasium_cases import OURS, Echo, assert_same
from vecenv import SyncVectorEnv


class Word(gym.Space):
    """Custom space that is not registered."""

    def sample(self, mask=None, probability=None):
        return "www"

    def contains(self, x):
        return isinstance(x, str)

    def __eq__(self, other):
        return type(other) is type(self)


class Letters(Word):
    """Custom space, registered for all of gymnasium's functions: a batch is a dict of capitals."""


@utils.batch_space.register(Letters)
def _batch_space(space, n=1):
    return spaces.Tuple([Letters()] * 2)


@utils.create_empty_array.register(Letters)
def _create_empty_array(space, n=1, fn=np.zeros):
    return {"joined": [None] * n}


@utils.concatenate.register(Letters)
def _concatenate(space, items, out):
    out["joined"][:] = [item.upper() for item in items]
    return out


class Reversed(spaces.Box):
    """Box with a custom function, so that users see the batch in another order."""


@utils.concatenate.register(Reversed)
def _reversed(space, items, out):
    return np.stack(list(items)[::-1], out=out)


def test_different_bounds_are_batched_row_by_row():
    boxes = [spaces.Box(0, high, (2,), np.float32) for high in (1, 2, 3)]
    makes = [make for box in boxes for make in playing(box, [box.sample()])]
    envs = SyncVectorEnv(makes, observation_mode="different")
    assert envs.observation_space.high.tolist() == [[1, 1], [2, 2], [3, 3]]
    assert envs.single_observation_space == boxes[0]
    assert envs.reset()[0] in envs.observation_space
    pair = spaces.Box(-9, 9, (3, 2), np.float32), spaces.Box(-9, 9, (2,), np.float32)
    envs = SyncVectorEnv(makes, observation_mode=pair)
    assert (envs.observation_space, envs.single_observation_space) == pair


def test_one_that_is_registered_nowhere_gives_tuples():
    envs = SyncVectorEnv([lambda: Echo(Word())] * 2)
    assert envs.action_space == spaces.Tuple((Word(), Word()))
    assert envs.reset()[0] == ("www", "www")
    assert envs.step(("a", "b"))[0] == ("a", "b")


@pytest.mark.parametrize("copy", [True, False])
def test_registered_functions_decide_what_a_batch_is(copy):
    envs = SyncVectorEnv(playing(Letters(), ["abc"]) * 3, copy=copy)
    assert envs.observation_space == spaces.Tuple((Letters(), Letters()))
    first, _ = envs.reset()
    assert first == {"joined": ["ABC"] * 3}
    later, *_ = envs.step([0, 0, 0])
    assert later == first
    assert (later is first) == (not copy)


def test_a_registered_subclass_of_a_box_is_not_taken_for_a_box():
    space = Reversed(0, 9, (1,), np.float32)
    rows = [np.full(1, i, np.float32) for i in range(3)]
    alone = SyncVectorEnv(playing(space, *([row] for row in rows)))
    assert alone.reset()[0].tolist() == [[2], [1], [0]]
    in_a_dict = SyncVectorEnv(playing(spaces.Dict(a=space), *([{"a": row}] for row in rows)))
    assert in_a_dict.reset()[0]["a"].tolist() == [[2], [1], [0]]


ANY = spaces.Tuple(
    [
        spaces.Box(0, 255, (), np.uint8),
        spaces.MultiDiscrete([[2, 3], [4, 5]]),
        spaces.MultiBinary((2, 2)),
        spaces.Discrete(5, start=-2),
        spaces.Dict(a=spaces.Sequence(spaces.Box(0, 1, (2,))), b=spaces.Dict(c=spaces.Box(0, 1, (2,)))),
        spaces.Tuple((spaces.Text(4), spaces.Box(0, 1, (2,)))),
        spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
        spaces.OneOf((spaces.Discrete(3), spaces.Box(0, 1, (2,)))),
        spaces.Sequence(spaces.Discrete(3), stack=True),
    ]
)


@pytest.mark.parametrize("kind", ["sync", "async", pytest.param("async-subproc", marks=FULL)])
@pytest.mark.parametrize("space", [*ANY, ANY], ids=lambda space: type(space).__name__)
def test_every_kind_of_action_reaches_its_env_and_comes_back_as_observation(space, kind):
    """W9: gymnasium's shared memory refuses some spaces. Spaces are batched as in gymnasium, with equal generators."""
    space.seed(3)
    theirs, ours = gym.vector.SyncVectorEnv([lambda: Echo(space)] * 3), OURS[kind]([lambda: Echo(space)] * 3)
    for name in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
        assert getattr(ours, name) == getattr(theirs, name)
        assert_same(getattr(ours, name).sample(), getattr(theirs, name).sample())
    ours.reset()
    theirs.reset()
    for _ in range(2):
        actions = ours.action_space.sample()
        obs, *_ = ours.step(actions)
        assert_same(obs, theirs.step(actions)[0])
        assert obs in ours.observation_space
    ours.close()
