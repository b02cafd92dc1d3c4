"""Transforms: chains, transforms of a single env, tensors. See also test_episode_layers.py.

Random programs compare the forms of a transform (tests/fuzz/transforms.py). The errors are in
tests/messages/transforms.py.
"""

import copy
import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.fuzz import transforms as programs
from tests.fuzz.driver import run as run_programs
from tests.support.cases import counting
from tests.support.transform_envs import IMAGE, MIXED, VECTOR, Samples, plain
from tests.support.transform_forms import Seen
from vecenv import DummyVectorEnv, GymnasiumVectorEnv, nest
from vecenv import transforms as tf


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", programs.CHAINS)
def test_forms_of_a_transform_return_the_same(first: str) -> None:
    """In a worker, around a vector env, on tensors and on a device. Each observation is in its space."""
    fuzz = type("Fuzz", (programs.Fuzz,), {"only": DummyVectorEnv, "first": first, "steps": 8})
    run_programs(fuzz, [0], count=2)


def test_what_comes_from_views_is_not_written_to():
    with tf.TransformedVectorEnv(DummyVectorEnv(counting(2, length=2), copy=False), tf.CatFrames(2, -1)) as venv:
        venv.reset()
        raw = venv.base_env.step([0, 0])[0].copy()
        venv.step([1, 1], autoreset=True)
        assert venv.base_env.reset()[0][:, 0].tolist() == raw[:, 0].tolist()


def test_a_transform_that_ends_episodes_takes_no_autoreset():
    with DummyVectorEnv([plain(VECTOR, 3)] * 2) as venv:
        ends = tf.TransformedVectorEnv(venv, tf.TimeLimit(2))
        for wrapped in (ends, tf.TransformedVectorEnv(ends, tf.RewardSum())):
            wrapped.reset()
            with pytest.raises(TypeError, match="ends episodes by itself"):
                wrapped.step(np.zeros((2, 2), np.float32), autoreset=True)
            facade = GymnasiumVectorEnv(wrapped, autoreset_mode="SameStep")
            facade.reset()
            assert [facade.step(np.zeros((2, 2), np.float32))[3].any() for _ in range(4)] == [False, True] * 2


# Chains.


def test_transforms_are_added_one_at_a_time_and_spaces_follow():
    env = tf.TransformedEnv(Samples(IMAGE), tf.Compose(tf.ToTensorImage(), tf.Resize(6)))
    assert env.observation_space == spaces.Box(0, 1, (3, 6, 6), np.float32)
    assert env.append_transform(tf.GrayScale()) is env
    env.insert_transform(0, tf.CenterCrop(8))
    assert [type(each) for each in env.transform] == [tf.CenterCrop, tf.ToTensorImage, tf.Resize, tf.GrayScale]
    refused = tf.SqueezeTransform(1)
    with pytest.raises(ValueError, match="expected the size 1 in dimension 1"):
        env.append_transform(refused)
    assert not refused.is_attached
    assert env.observation_space.shape == env.reset(seed=0)[0].shape == (1, 6, 6)
    assert env.base_env.observation_space == IMAGE


def in_parent(env, *transforms):
    return tf.TransformedVectorEnv(DummyVectorEnv([lambda: env]), *transforms)


@pytest.mark.parametrize("wrap", [tf.TransformedEnv, in_parent])
def test_the_parent_of_a_transform_is_the_env_with_those_before_it(wrap):
    env = wrap(Samples(IMAGE), [tf.GrayScale(), tf.Resize(6), tf.CatFrames(2, -1)])
    parent = env.transform[2].parent
    assert type(parent) is type(env)
    assert [type(each) for each in parent.transform] == [tf.GrayScale, tf.Resize]
    assert parent.base_env is env.base_env
    assert parent.transform[0] is not env.transform[0]
    assert parent.reset(seed=1)[0].shape[-3:] == (6, 6, 1)
    assert tf.Resize(6).parent is None
    env.close()


def test_actions_pass_the_last_transform_first():
    class Adds(tf.Transform):
        def inv(self, action):
            return action + 1

    class Doubles(tf.Transform):
        def inv(self, action):
            return action * 2

    for wrap, action in (
        (tf.TransformedEnv, np.array([1, 2], np.float32)),
        *((in_parent, batch) for batch in (np.array([[1, 2]], np.float32), [[1.0, 2.0]], ([1.0, 2.0],))),
    ):
        env = wrap(Seen(), [Adds(), Doubles()])
        env.reset(seed=0)
        info = env.step(action)[-1]
        assert (info if wrap is tf.TransformedEnv else info[0])["action"].tolist() == [3, 5]
        env.close()


def test_the_action_space_of_a_transform_is_seeded():
    drawn = []
    for _ in range(2):
        with tf.TransformedVectorEnv(DummyVectorEnv([plain(VECTOR, 3)] * 2), tf.ActionScaling()) as venv:
            venv.set_seed(7)
            drawn.append([space.sample().tolist() for space in venv.action_space])
            assert venv.seed(3) == [3, 4]
            drawn[-1] += [space.sample().tolist() for space in venv.action_space]
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[0][1]


def test_parts_have_one_order_in_workers_in_the_parent_and_in_the_space():
    for make in (tf.RewardSum, lambda: tf.CatTensors(["x", "v"], "all"), lambda: tf.Flatten(in_keys=["pixels"])):
        with (
            tf.TransformedVectorEnv(DummyVectorEnv([plain(MIXED, 3)]), make()) as parent,
            DummyVectorEnv([lambda make=make: tf.TransformedEnv(Samples(MIXED), make())]) as workers,
        ):
            rows = [nest.take(venv.reset(seed=0)[0], 0) for venv in (parent, workers)]
            assert all(space.contains(row) for space in parent.observation_space for row in rows)
            orders = [list(row) for row in rows]
            orders += [list(venv.observation_space[0]) for venv in (parent, workers)]
            assert orders == orders[:1] * 4


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_the_transforms_of_a_copied_env_belong_to_the_copy(copied):
    env = tf.TransformedEnv(gymnasium.make("CartPole-v1"), [tf.CatFrames(2, -1), tf.StepCounter()])
    env.reset(seed=0)
    again = copied(env)
    np.testing.assert_array_equal(again.step(1)[0]["observation"], env.step(1)[0]["observation"])
    assert again.transform[1].parent.base_env is again.base_env
    with pytest.raises(RuntimeError, match="belongs to an env already"):
        tf.TransformedEnv(gymnasium.make("CartPole-v1"), again.transform)
    copy.copy(env)
    assert env.transform[1].parent.base_env is env.base_env


def test_a_clone_and_a_pickle_have_the_settings_and_no_env():
    env = tf.TransformedEnv(Samples(IMAGE), tf.Compose(tf.GrayScale("709"), tf.Resize(6, 5)))
    for copied in (env.transform.clone(), pickle.loads(pickle.dumps(env.transform)), env.transform[:2]):
        assert not any(each.is_attached for each in copied)
        assert tf.TransformedEnv(Samples(IMAGE), copied).observation_space == env.observation_space
        assert copied[0].weights == "709"


# Transforms of a single env.


def test_noops_are_as_many_as_the_seed_says():
    def begin(seeds=range(40), **options):
        env = tf.TransformedEnv(Samples(length=99), [tf.StepCounter(), tf.NoopReset(6, **options)])
        return [int(env.reset(seed=seed)[0]["step_count"][0]) for seed in seeds]

    assert begin(random=False) == [6] * 40
    assert set(begin()) == set(range(7))
    assert begin() == begin()
    assert len(set(begin([5] * 9))) == 1
    assert len(set(begin([5, *[None] * 20]))) > 1


@pytest.mark.parametrize("pixels_only", [True, False])
def test_pixels_are_those_of_the_rendered_env(pixels_only):
    env = tf.TransformedEnv(
        gymnasium.make("CartPole-v1", render_mode="rgb_array"),
        [tf.PixelObservation(pixels_only), tf.ToTensorImage(), tf.Resize(20)],
    )
    obs, _ = env.reset(seed=0)
    assert obs["pixels"].shape == (3, 20, 20)
    assert ("observation" in obs) is not pixels_only
    assert env.observation_space.contains(obs)
    want = tf.Compose(tf.ToTensorImage(), tf.Resize(20))(env.render()[None])[0]
    assert np.array_equal(obs["pixels"], want)
    state = env.base_env.unwrapped.state
    assert set(env.transform[1].parent.observation_space) == set(env.observation_space)
    assert env.base_env.unwrapped.state is state  # reading `parent` does not reset the env


def test_parts_that_differ_between_envs_are_refused_in_the_parent_and_work_in_the_workers():
    sizes = [(12, 10, 3), (9, 11, 3)]
    fns = [plain(spaces.Box(0, 255, size, np.uint8), 3) for size in sizes]
    with DummyVectorEnv(fns) as venv, pytest.raises(ValueError, match="TransformedEnv around each env"):
        tf.TransformedVectorEnv(venv, tf.Resize(4))
    with DummyVectorEnv([lambda fn=fn: tf.TransformedEnv(fn(), tf.Resize(4)) for fn in fns]) as venv:
        assert venv.reset()[0].shape == (2, 4, 4, 3)
