"""Envs that break the API: each is a failure of that env. `tests/messages/engine.py` has the wrong calls."""

import gymnasium
import numpy as np
import pytest
import torch

from tests.support.backends import full
from tests.support.cases import counting, custom
from vecenv import DummyVectorEnv, EnvContractError, ObservationError, ShmemVectorEnv
from vecenv.testing import CountingEnv

NAN = float("nan")


def returning(step=None, reset=None):
    """Return an env class whose results of step or reset these functions change."""

    class Wrong(CountingEnv):
        def step(self, action):
            return step(*super().step(action)) if step else super().step(action)

        def reset(self, **kwargs):
            result = super().reset(**kwargs)
            return reset(*result) if reset and self.episode else result

    return Wrong


class Unseeded(CountingEnv):
    """Env whose reset takes no arguments, as in crafter 1.8.3. Each step ends the episode."""

    def reset(self):
        return super().reset()

    def step(self, action):
        obs, reward, _, *rest = super().step(action)
        return obs, reward, True, *rest


STEPS = {
    "four values": (lambda o, r, te, tr, i: (o, r, te, i),
                    r"step\(\) returned 4 values, expected 5: \(obs(.|\n)*make\('GymV21Environment-v0', env=env\)"),
    "one value": (lambda o, r, te, tr, i: o, r"step\(\) returned a ndarray, expected 5"),
    "info is no dict": (lambda o, r, te, tr, i: (o, r, te, tr, None), "an info of type NoneType, expected a dict"),
    "reward None": (lambda o, r, te, tr, i: (o, None, te, tr, i), r"the reward None, expected a number or a vector"),
    "reward text": (lambda o, r, te, tr, i: (o, "1", te, tr, i), r"the reward '1', expected a number or a vector"),
    "reward ragged": (lambda o, r, te, tr, i: (o, [[1], [1, 2]], te, tr, i), r"the reward \[\[1\], \[1, 2\]\]"),
    "truncated 2": (lambda o, r, te, tr, i: (o, r, te, 2, i), "truncated=2 of type int, expected a bool"),
    "terminated array": (lambda o, r, te, tr, i: (o, r, np.array([True, False]), tr, i), "terminated=array"),
    "terminated 0.5": (lambda o, r, te, tr, i: (o, r, 0.5, tr, i), "terminated=0.5 of type float, expected a bool"),
    "truncated NaN": (lambda o, r, te, tr, i: (o, r, te, np.float32("nan"), i), r"truncated=.*nan.* of type float32"),
}  # fmt: skip
RESETS = {
    "reset: obs alone": (lambda o, i: o, r"reset\(\) returned a ndarray, expected 2: \(obs, info\)"),
    "reset: a dict alone": (lambda o, i: {"base": o}, r"return \(obs, \{\}\)"),  # gym-quadruped 1.1.8
    "reset: three values": (lambda o, i: (o, i, 1), r"reset\(\) returned 3 values, expected 2"),
    "reset: info is no dict": (lambda o, i: (o, [1]), r"the second a list, expected 2: \(obs, info\) with a dict"),
}
ALLOWED = {
    "a list": lambda o, r, te, tr, i: [o, r, te, tr, i],
    "flags as arrays": lambda o, r, te, tr, i: (o, r, np.array(te), np.array([tr]), i),
    "flags as floats": lambda o, r, te, tr, i: (o, r, np.array(-0.0), np.array([tr], np.float16), i),
    "a reward that is a bfloat16": lambda o, r, te, tr, i: (o, torch.tensor(r).bfloat16(), te, tr, i),
    "a reward with a gradient": lambda o, r, te, tr, i: (o, torch.tensor([r], requires_grad=True), te, tr, i),
    "flags as tensors": lambda o, r, te, tr, i: (
        o, r, torch.tensor(te).bfloat16(), torch.tensor(float(tr), requires_grad=True), i
    ),
    "NaN as reward": lambda o, r, te, tr, i: (o, NAN, te, tr, i),
    "true as int": lambda o, r, te, tr, i: (o, r, 1, np.int8(1), i),
    "true as floats": lambda o, r, te, tr, i: (o, r, 1.0, np.array([1.0]), i),
}  # fmt: skip
"""gymnasium's SyncVectorEnv and SB3's DummyVecEnv take the tensors, too."""


@pytest.mark.guarantee("G1.2", "G3.7")
def test_a_result_of_another_form_is_a_failure_of_that_env():
    for name, (wrong, text) in (STEPS | RESETS).items():
        op = "step" if name in STEPS else "reset"
        with DummyVectorEnv([CountingEnv, returning(**{op: wrong})]) as venv:
            venv.reset()
            with pytest.raises(EnvContractError, match="env 1: (.|\n)*" + text) as caught:
                venv.step([0, 0]) if op == "step" else venv.reset()
            assert not isinstance(caught.value, ObservationError), name
            assert (caught.value.env_id, caught.value.op) == (1, op), name
            assert caught.value.partial.env_id.tolist() == [0], name


def test_results_that_gymnasium_takes_are_taken():
    for name, change in ALLOWED.items():
        with DummyVectorEnv([returning(step=change)]) as venv:
            venv.reset()
            _, rew, terminated, truncated, info = venv.step([0])
        assert [terminated.item(), truncated.item()] == ["true" in name] * 2, name
        assert info[0] == {"t": 1, "env_id": 0}, name
        assert np.isnan(rew[0]) if "NaN" in name else rew[0] == 1 / 1024, name


@pytest.mark.parametrize("autoreset", [False, True])
def test_a_reset_without_seed_says_so(autoreset):
    """As in crafter 1.8.3, or as in an env of gym 0.26 around it."""
    with DummyVectorEnv([Unseeded] * 2) as venv:
        venv.reset()
        text = r"env 0: reset\(\) takes no seed \(.*'seed'\), expected reset\(\*, seed=None, options=None\)"
        with pytest.raises(EnvContractError, match=text):
            venv.step([0, 0], autoreset=[1, 2]) if autoreset else venv.reset(seed=0)


def test_another_type_error_of_reset_is_the_envs_own():
    def fails(o, i):
        raise TypeError("make_world() got an unexpected keyword argument 'seed'")

    with DummyVectorEnv([returning(reset=fails)]) as venv:
        venv.reset()
        with pytest.raises(TypeError, match="make_world"):
            venv.reset()


@pytest.mark.guarantee("G3.5")
@pytest.mark.parametrize("name", ["observation_space", "action_space"])
@pytest.mark.parametrize("make", [DummyVectorEnv, custom, *full([ShmemVectorEnv])])
def test_spaces_of_another_package_are_refused(make, name):
    """As in envs of gym 0.26.2, and in crafter 1.8.3."""

    class Box:
        """Space of another package, with the interface of gymnasium's Box."""

        shape, dtype = (5,), np.float32

    Box.__module__, Box.__qualname__ = "gym.spaces.box", "Box"

    def make_env():
        env = CountingEnv(0)
        setattr(env, name, Box())
        return env

    text = rf"env_fns\[1\]\(\) returned an env whose {name} is a gym.spaces.box.Box, expected a space of gymnasium"
    with pytest.raises(TypeError, match=text + ".*GymV26Environment-v0"):
        make([CountingEnv, make_env])


def test_limits_of_years_counts_of_numpy_and_generators_are_fine():
    limits = {"start_timeout": 1e9, "step_timeout": 1e9}
    with ShmemVectorEnv((fn for fn in counting(3)), wait_num=np.int32(3), num_workers=np.uint8(1), **limits) as venv:
        venv.reset()
        assert venv.step([0] * 3)[0][:, 2].tolist() == [1] * 3


def test_ids_and_functions_are_the_same():
    with DummyVectorEnv(["CartPole-v1", lambda: gymnasium.make("CartPole-v1")]) as venv:
        obs, _ = venv.reset(seed=[3, 3])
        assert [spec.id for spec in venv.spec] == ["CartPole-v1"] * 2
    assert np.array_equal(*obs)
    with pytest.warns(UserWarning, match="latest versioned"), DummyVectorEnv(["CartPole"]) as venv:
        assert venv.spec[0].id == "CartPole-v1"
