"""Spaces of envs in a batch, and custom spaces, registered with gymnasium or not."""

import functools
import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import utils

from tests.support.backends import FULL, one_of
from tests.support.gymnasium_cases import OURS, Echo, Reports, assert_same
from vecenv import SyncVectorEnv


class Word(gym.Space):
    """Custom space that is not registered."""

    def __init__(self, length=3):
        super().__init__()
        self.length = length

    def sample(self, mask=None, probability=None):
        return "w" * self.length

    def contains(self, x):
        return isinstance(x, str)

    def __eq__(self, other):
        return isinstance(other, Word) and self.length == other.length


class Pair(Word):
    """Custom space, registered for all of gymnasium's functions: batches of letters."""


@utils.batch_space.register(Pair)
def _batch_space(space, n=1):
    return spaces.Tuple([Pair(space.length)] * 2)


@utils.create_empty_array.register(Pair)
def _create_empty_array(space, n=1, fn=np.zeros):
    return {"joined": [None] * n}


@utils.concatenate.register(Pair)
def _concatenate(space, items, out):
    out["joined"][:] = [item.upper() for item in items]
    return out


class Reversed(spaces.Box):
    """Box with custom functions, so that users see the batch in another order, and give actions in this order."""


@utils.concatenate.register(Reversed)
def _reversed(space, items, out):
    return np.stack(list(items)[::-1], out=out)


class Holds(Reports):
    def __init__(self, space, action_space=None):
        super().__init__()
        self.observation_space = space
        self.action_space = action_space or self.action_space

    def _obs(self):
        return self.observation_space.sample()


def low_high(high):
    return spaces.Box(0, high, (2,), np.float32)


UNLIKE = {
    "same, bounds": ("same", [low_high(1), low_high(2)]),
    "same, shapes": ("same", [low_high(1), spaces.Box(0, 1, (3,))]),
    "different, shapes": ("different", [low_high(1), spaces.Box(0, 1, (3,))]),
    "different, dtypes": ("different", [low_high(1), spaces.Box(0, 1, (2,), np.float64)]),
    "different, kinds": ("different", [low_high(1), spaces.Discrete(3)]),
    "different, keys": ("different", [spaces.Dict(a=low_high(1)), spaces.Dict(b=low_high(1))]),
    "different, texts": ("different", [spaces.Text(3), spaces.Text(4)]),
    "custom, all": ((spaces.Box(0, 1, (2, 5)), spaces.Box(0, 1, (5,))), [low_high(1)] * 2),
    "custom, one": ((spaces.Box(0, 1, (2, 2)), low_high(9)), [low_high(1), spaces.Box(0, 1, (3,))]),
    "same, actions": ("same", [low_high(1)] * 2, [spaces.Discrete(2), spaces.Discrete(3)]),
    "different, actions": ("different", [low_high(1)] * 2, [spaces.Discrete(2), spaces.Discrete(3)]),
    "same, observations before actions": ("same", [low_high(2), low_high(3)], [spaces.Discrete(2), spaces.Discrete(3)]),
}


WORDS = [
    "VectorEnv(..., observation_mode='same') however ",
    "sub-environments observation spaces are not equivalent",
    "If this is intentional, use `observation_mode='different'` instead",
    "VectorEnv(..., observation_mode='different' or custom space) however the sub-environment",
    "do not share a common shape and dtype",
    "action space",
]


class ClosedIfRefused(gym.vector.AsyncVectorEnv):
    """Close the workers if a constructor fails. gymnasium's finalizers may close a pipe twice."""

    def __init__(self, *args, **kwargs):
        try:
            super().__init__(*args, **kwargs)
        except Exception:
            if hasattr(self, "_state"):  # the workers are running
                self.close(terminate=True)
            raise


def refusal(make, env_fns, **options):
    """Return the error of a constructor."""
    with pytest.raises((AssertionError, RuntimeError, TypeError, ValueError)) as caught:
        make(env_fns, **options)
    return caught.value.with_traceback(None)  # the traceback would keep the object alive


class TestObservationModes:
    @pytest.mark.parametrize("case", UNLIKE)
    @pytest.mark.parametrize("kind", one_of(["sync", "async"]))
    def test_envs_that_do_not_fit_are_refused_with_the_error_of_gymnasium_and_closed(self, kind, case):
        """The error has the words of both gymnasium classes, and names the env."""
        mode, *found = UNLIKE[case]
        env_fns = [functools.partial(Holds, *its) for its in zip(*found, strict=True)]
        # multiprocessing never frees its shared memory.
        theirs = {
            "sync": gym.vector.SyncVectorEnv,
            "async": functools.partial(ClosedIfRefused, shared_memory=False, context="spawn"),
        }
        want, got = (refusal(make[kind], env_fns, observation_mode=mode) for make in (theirs, OURS))
        assert re.search("[Ee]nv [01]", str(got))
        if isinstance(want, AssertionError):  # gymnasium 1.3
            return
        assert type(got) is type(want)
        words = [each for each in WORDS if each in str(want)]
        assert [each for each in WORDS if each in str(got)] == words
        assert words or str(want) in str(got)

    def test_different_bounds_are_batched_row_by_row(self):
        envs = SyncVectorEnv(
            [lambda high=high: Holds(low_high(high)) for high in (1, 2, 3)], observation_mode="different"
        )
        assert envs.observation_space.high.tolist() == [[1, 1], [2, 2], [3, 3]]
        assert envs.single_observation_space == low_high(1)
        obs, _ = envs.reset()
        assert obs in envs.observation_space

    def test_a_pair_of_spaces_is_taken_as_batched_and_single(self):
        batched, single = spaces.Box(-9, 9, (2, 2), np.float32), spaces.Box(-9, 9, (2,), np.float32)
        envs = SyncVectorEnv([lambda: Holds(low_high(1))] * 2, observation_mode=(batched, single))
        assert (envs.observation_space, envs.single_observation_space) == (batched, single)
        assert envs.reset()[0] in batched


class TestSpacesOfAUsersOwn:
    def test_one_that_is_registered_nowhere_gives_tuples(self):
        envs = SyncVectorEnv([lambda: Echo(Word())] * 2)
        assert envs.action_space == spaces.Tuple((Word(), Word()))
        assert envs.reset()[0] == ("www", "www")
        assert envs.step(("a", "b"))[0] == ("a", "b")

    def test_registered_functions_decide_what_a_batch_is(self):
        envs = SyncVectorEnv([lambda: Holds(Pair())] * 3)
        assert envs.observation_space == spaces.Tuple((Pair(), Pair()))
        first, _ = envs.reset()
        assert first == {"joined": ["WWW"] * 3}
        later, *_ = envs.step([0, 0, 0])
        assert later == first
        assert later is not first

    def test_without_copies_the_registered_functions_write_to_one_batch(self):
        envs = SyncVectorEnv([lambda: Holds(Pair())] * 3, copy=False)
        assert envs.reset()[0] is envs.step([0, 0, 0])[0]

    @pytest.mark.parametrize("wrap", [lambda space: space, lambda space: spaces.Dict(a=space, b=spaces.Discrete(3))])
    def test_a_registered_subclass_of_a_box_is_not_taken_for_a_box(self, wrap):
        envs = SyncVectorEnv([lambda i=i: Numbered(i, wrap(Reversed(0, 9, (1,), np.float32))) for i in range(3)])
        obs, _ = envs.reset()
        boxes = obs["a"] if isinstance(obs, dict) else obs
        assert boxes.tolist() == [[2], [1], [0]]


class Numbered(Holds):
    def __init__(self, i, space):
        super().__init__(space)
        self.i = i

    def _obs(self):
        row = np.full(1, self.i, np.float32)
        return {"a": row, "b": 1} if isinstance(self.observation_space, spaces.Dict) else row


BATCHES = [
    spaces.Box(-1, 1, (3,), np.float16),
    spaces.Box(0, 255, (), np.uint8),
    spaces.Discrete(5, start=-2),
    spaces.MultiBinary((2, 2)),
    spaces.MultiDiscrete([[2, 3], [4, 5]]),
    spaces.Dict(a=spaces.Discrete(3), b=spaces.Dict(c=spaces.Box(0, 1, (2,)))),
    spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, (2,)))),
    spaces.Tuple((spaces.Text(4), spaces.Box(0, 1, (2,)))),
    spaces.Dict(a=spaces.Sequence(spaces.Box(0, 1, (2,))), b=spaces.MultiBinary(2)),
    spaces.Text(3),
    spaces.Graph(spaces.Box(0, 1, (2,)), None),
    spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
    spaces.OneOf((spaces.Discrete(3), spaces.Box(0, 1, (2,)))),
    spaces.Sequence(spaces.Discrete(3), stack=True),
]


@pytest.mark.parametrize(
    ("kind", "space"),
    [
        *(("sync", space) for space in BATCHES),
        ("async", spaces.Text(5)),
        pytest.param("async", spaces.Tuple(BATCHES), id="async-all"),
        pytest.param("async-subproc", spaces.Tuple(BATCHES), marks=FULL, id="async-subproc-all"),
    ],
    ids=str,
)
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
    theirs.close()


class Lists(gym.Env):
    """Env that returns lists for Tuple spaces, as vmas 1.5.2 does. Episodes have three steps."""

    observation_space = spaces.Tuple(
        [spaces.Box(0, 9, (2,)), spaces.Tuple([spaces.Discrete(9), spaces.MultiBinary(2)])]
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action):
        self.t += 1
        return self._obs(), 1.0, self.t == 3, False, {}

    def _obs(self):
        return [self.np_random.random(2, np.float32), [self.t, np.array([1, 0], np.int8)]]


@pytest.mark.parametrize("mode", [gym.vector.AutoresetMode.NEXT_STEP, gym.vector.AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("kind", one_of(["sync", "async"]))
def test_lists_are_elements_of_tuple_spaces(kind, mode):
    theirs, ours = (make([Lists] * 2, autoreset_mode=mode) for make in (gym.vector.SyncVectorEnv, OURS[kind]))
    assert_same(ours.reset(seed=1), theirs.reset(seed=1))
    for _ in range(5):
        assert_same(ours.step([0, 1]), theirs.step([0, 1]))
    ours.close()
    theirs.close()
