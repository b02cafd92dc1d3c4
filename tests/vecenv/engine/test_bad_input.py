"""Wrong calls and envs that break the API: each raises its error, and a rejected call changes nothing.

Tests use DummyVectorEnv, or ShmemVectorEnv if a value would be sent.
"""

import re
from fractions import Fraction
from types import MappingProxyType

import gymnasium
import numpy as np
import pytest
import torch

from tests.support.backends import and_ray, full
from tests.support.cases import LocalWorker, counting, custom
from vecenv import (
    BaseVectorEnv,
    DummyVectorEnv,
    EnvContractError,
    ObservationError,
    ShmemVectorEnv,
    SyncVectorEnv,
    ThreadVectorEnv,
)
from vecenv.arguments import check_count, check_timeout
from vecenv.testing import CountingEnv

remote_backend = and_ray([ShmemVectorEnv])

N = 3
NAN, INF = float("nan"), float("inf")


class TestConstructors:
    @pytest.mark.parametrize(
        ("env_fns", "error", "text"),
        [
            ([], ValueError, "env_fns is empty; pass at least one callable"),
            ([CountingEnv()], TypeError, r"env_fns\[0\] is an Env instance, not a function that makes an env; use"),
            ([CountingEnv, 5], TypeError, r"env_fns\[1\] is of type int, not a function that makes an env"),
            (CountingEnv, TypeError, "env_fns must be a sequence of callables"),
            (5, TypeError, "env_fns must be a sequence of callables"),
            ("CartPole-v1", TypeError, "env_fns must be a sequence of callables"),
            ([CountingEnv, lambda: None], TypeError, r"env_fns\[1\]\(\) returned None, expected an env with step and"),
            ([lambda: 7], TypeError, r"env_fns\[0\]\(\) returned 7"),
            ([CountingEnv, lambda: gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")], TypeError,
             r"env_fns\[1\]\(\) returned the vector env SyncVectorEnv.*, expected one env; use lambda:"),
            ([CountingEnv, lambda: DummyVectorEnv([CountingEnv])], TypeError,
             r"env_fns\[1\]\(\) returned the vector env DummyVectorEnv.*, expected one env; use lambda:"),
            ([CountingEnv, lambda: CountingEnv], TypeError,
             r"env_fns\[1\]\(\) returned the class CountingEnv, expected an env; use lambda: CountingEnv\(\)"),
        ],
        ids=lambda value: repr(value)[:30],
    )  # fmt: skip
    def test_env_fns(self, env_fns, error, text):
        with pytest.raises(error, match=text):
            DummyVectorEnv(env_fns)

    @pytest.mark.parametrize("name", ["observation_space", "action_space", "metadata", "spec"])
    def test_an_env_that_cannot_say_what_it_is(self, name):
        def refuse(env):
            raise LookupError("not known yet")

        shy = type("Shy", (CountingEnv,), {name: property(refuse, lambda env, value: None)})
        with pytest.raises(LookupError, match="not known yet") as caught:
            DummyVectorEnv([CountingEnv, lambda: shy()])
        assert "env 1, __init__()" in "".join(caught.value.__notes__)

    @pytest.mark.parametrize("backend", [DummyVectorEnv, ThreadVectorEnv])
    def test_the_same_env_for_all_is_refused_where_it_would_be_stepped_twice(self, backend):
        env = CountingEnv()
        text = r"env_fns\[0\] and env_fns\[1\] returned the same env object; each must make a new one"
        with pytest.raises(ValueError, match=text):
            backend([lambda: env] * 2, num_workers=2)
        with pytest.raises(ValueError, match="same env object"):
            backend([lambda: env, lambda: gymnasium.wrappers.TimeLimit(env, 3)], num_workers=2)

    @pytest.mark.parametrize("value", [0, 9, -1, 1.5, True, "2", [1], np.float64(2), np.True_], ids=repr)
    def test_counts_that_are_out_of_range_or_no_integers(self, value):
        error = ValueError if type(value) is int else TypeError
        text = rf"num_workers must be an integer in \[1, 3\], got {re.escape(repr(value))}"
        with pytest.raises(error, match=text):
            check_count("num_workers", value, 3)
        for name in ("num_workers", "wait_num"):
            with pytest.raises(error, match=text.replace("num_workers", name)):
                DummyVectorEnv(counting(N), **{name: value})

    @pytest.mark.parametrize("timeout", [0, -1, 0.0, NAN, INF, True, "1", [1]])
    def test_timeouts(self, timeout):
        with pytest.raises(ValueError, match="timeout must be a positive number of seconds or None, got "):
            check_timeout(timeout)

    @pytest.mark.parametrize(
        ("value", "error"),
        [
            *[(value, ValueError) for value in (0, -1, "2", "GiB", "0 GiB", "-1 GiB", "2 GiBs", "1.2.3 MB", "", 0.0)],
            *[(value, TypeError) for value in (NAN, 1.5, True, [1], b"2 GiB")],
        ],
        ids=repr,
    )
    def test_recycle_after(self, value, error):
        right = r'recycle_after=1000\), .*recycle_after="2 GiB"\), or a function that takes a worker and returns a bool'
        with pytest.raises(error, match=f"recycle_after must be .*{right}, got {re.escape(repr(value))}"):
            ShmemVectorEnv(counting(N), recycle_after=value)

    @pytest.mark.parametrize("backend", [DummyVectorEnv, ThreadVectorEnv])
    def test_workers_that_are_no_processes(self, backend):
        text = "recycle_after'; memory that an env leaks is only free after the end of its process.*use ShmemVectorEnv"
        with pytest.raises(TypeError, match=text):
            backend(counting(N), recycle_after=9)
        with pytest.raises(TypeError, match="spare_envs'; it needs worker processes: use ShmemVectorEnv"):
            backend(counting(N), spare_envs=1)

    @pytest.mark.parametrize("value", [-1, 1.5, True, "1", None], ids=repr)
    def test_spare_envs(self, value):
        with pytest.raises((ValueError, TypeError), match="spare_envs must be an integer of at least 0, got "):
            ShmemVectorEnv(counting(N), spare_envs=value)

    @pytest.mark.parametrize("backend", [DummyVectorEnv, ShmemVectorEnv, ThreadVectorEnv])
    def test_other_options(self, backend):
        limits = ["timeout"] if backend is DummyVectorEnv else ["timeout", "start_timeout", "step_timeout"]
        for name in limits:
            with pytest.raises(ValueError, match=f"{name} must be a positive number of seconds or None, got -1"):
                backend(counting(N), **{name: -1})
        with pytest.raises(ValueError, match='on_error must be "raise" or "restart", got \'ignore\''):
            backend(counting(N), on_error="ignore")
        with pytest.raises(ValueError, match="max_restarts must be a positive integer, got 0"):
            backend(counting(N), max_restarts=0)
        with pytest.raises(TypeError, match="nonsense"):
            backend(counting(N), nonsense=1)

    def test_limits_of_years_counts_of_numpy_and_generators_are_fine(self, remote_backend):
        counts = {"wait_num": np.int32(3), "num_workers": np.uint8(1)}
        with remote_backend((fn for fn in counting(N)), start_timeout=1e9, step_timeout=1e9, **counts) as venv:
            venv.reset()
            assert venv.step([0] * N)[0][:, 2].tolist() == [1] * N

    def test_a_start_method_that_does_not_exist(self):
        with pytest.raises(
            ValueError, match=r"context must be one of \('fork', 'forkserver', 'spawn'\) or None, got 'thread'"
        ):
            ShmemVectorEnv(counting(N), context="thread")

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({}, "pass either worker_fn"),
            ({"worker_fn": lambda env_fn: env_fn()}, "which is not an EnvWorker: it lacks"),
            ({"worker_fn": 5}, "worker_fn must be callable and backend a Backend, got"),
            ({"backend": 5}, "worker_fn must be callable and backend a Backend, got"),
            ({"backend": DummyVectorEnv}, "worker_fn must be callable and backend a Backend, got"),
        ],
    )
    def test_what_is_no_worker_fn_or_backend(self, options, text):
        with pytest.raises(TypeError, match=text):
            BaseVectorEnv(counting(2), **options)

    def test_workers_of_several_classes(self):
        class Other(LocalWorker):
            pass

        kinds = iter([LocalWorker, Other])
        with pytest.raises(TypeError, match=r"workers of several classes, \['LocalWorker', 'Other'\]"):
            BaseVectorEnv(counting(2), lambda env_fn: next(kinds)(env_fn))


CALLS = {
    "too few actions": (lambda v: v.step([0, 1]), ValueError, r"got 2 actions for 3 envs \[0, 1, 2\]"),
    "too few actions for ids": (lambda v: v.step([0], [2, 1]), ValueError, r"got 1 actions for 2 envs \[2, 1\]"),
    "one action": (lambda v: v.step(1), ValueError, "got the single action .*pass one action per env"),
    "None in sync mode": (lambda v: v.step(None), ValueError, r"step\(None\) waits for steps in flight"),
    "recv without send": (lambda v: v.recv(), RuntimeError, "no step is in flight"),
    "send nothing": (lambda v: v.send(None), ValueError, "one action for each env, or ids to reset"),
    "fractions for Discrete": (lambda v: v.step([0, 0.5, 1]), TypeError, "must be whole numbers"),
    "NaN for Discrete": (lambda v: v.step([0, NAN, 1]), TypeError, "must be whole numbers"),
    "id too high": (lambda v: v.step([0, 0], [0, 9]), IndexError, "env id 9 is out of range for 3 envs"),
    "id negative": (lambda v: v.step([0, 0], [0, -1]), IndexError, "env id -1 is out of range for 3 envs"),
    "id huge": (lambda v: v.reset(2**70), TypeError, f"env ids must be integers, got {2**70}"),
    "unsigned id": (lambda v: v.reset(np.uint64(2**63)), IndexError, f"env id {2**63} is out of range"),
    "a string of actions": (lambda v: v.step("abc"), TypeError, "got the str 'abc'"),
    "a set of actions": (lambda v: v.step({0, 1, 2}), TypeError, "got the set"),
    "objects for Discrete": (lambda v: v.step(np.array([0, 0.5, 1], object)), TypeError, "must be whole numbers"),
    "id twice": (lambda v: v.step([0, 0, 0], [0, 2, 0]), ValueError, "env id 0 is given twice"),
    "no ids": (lambda v: v.reset([]), ValueError, "no env ids given; pass at least one, or None for all"),
    "one bool": (lambda v: v.reset(True), ValueError, r"must have the shape \(3,\), got \(\)"),
    "str id": (lambda v: v.reset("1"), TypeError, "env ids must be integers, got '1'"),
    "ragged ids": (lambda v: v.reset([[0], [1, 2]]), TypeError, "env ids must be integers"),
    "reset= outside of id": (lambda v: v.step([0, 0], [0, 1], reset=[2]), ValueError, "must be among the envs"),
    "reset= out of range": (lambda v: v.step([0] * 3, reset=[3]), IndexError, "env id 3 is out of range"),
    "seed without reset=": (lambda v: v.send([0] * 3, seed=1), TypeError, "only resets use, but no ids to reset"),
    "options without reset=": (lambda v: v.step([0] * 3, options={}), TypeError, "only resets use, but no ids to"),
    "options without an action": (lambda v: v.step(None, options={}), ValueError, "or ids to reset"),
    "options of too few envs": (lambda v: v.step([0] * 3, reset=[0, 1], options=[{}]), ValueError, "got 1 options"),
    "bad seed in a mixed round": (lambda v: v.send([0] * 3, reset=[1], seed=-1), ValueError, "at least 0"),
    "autoreset 0": (lambda v: v.step([0] * 3, autoreset=0), TypeError, "must be True, False, or one seed per env"),
    "autoreset text": (lambda v: v.step([0] * 3, autoreset="yes"), TypeError, "got 'yes'"),
    "autoreset array of one number": (lambda v: v.step([0] * 3, autoreset=np.array(1)), TypeError, "one seed per env"),
    "autoreset with bools": (lambda v: v.step([0] * 3, autoreset=np.ones(3, bool)), ValueError, "integer, got True"),
    "autoreset with a float": (lambda v: v.step([0] * 3, autoreset=[7.9, 1, 2]), ValueError, r"got 7\.9"),
    "autoreset with a text": (lambda v: v.send([0] * 3, autoreset=["a", 1, 2]), ValueError, "got 'a'"),
    "autoreset with floats": (lambda v: v.step([0] * 3, autoreset=np.ones(3)), ValueError, r"got 1\.0"),
    "autoreset below -1": (lambda v: v.step([0] * 3, autoreset=np.array([1, -2, 3])), ValueError, "at least 0"),
    "autoreset with too few": (lambda v: v.step([0] * 3, autoreset=[1, 2]), ValueError, "2 seeds in autoreset for 3"),
    "autoreset of all": (lambda v: v.step([0], [1], autoreset=np.arange(3)), ValueError, "3 seeds in autoreset for 1"),
    "autoreset with rows": (lambda v: v.step([0] * 3, autoreset=np.zeros((3, 1), int)), ValueError, r"got \[0\]"),
    "ragged reset=": (lambda v: v.step([0] * 3, reset=[0, [1]]), TypeError, "reset= must be ids or a mask"),
    "bytes as seeds": (lambda v: v.reset(seed=bytearray(b"abc")), ValueError, "integer, got bytearray"),
    "a number as states": (lambda v: v.set_state(1), TypeError, "a list with one state per env, got 1"),
    "too few seeds": (lambda v: v.seed([1, 2]), ValueError, r"got 2 seeds for 3 envs \[0, 1, 2\]"),
    "negative seed": (lambda v: v.seed(-1), ValueError, "a seed must be at least 0"),
    "float seed": (lambda v: v.seed(1.0), ValueError, r"a seed must be a non-negative integer, got 1\.0"),
    "bool seed": (lambda v: v.reset(seed=True), ValueError, "a seed must be a non-negative integer, got True"),
    "seed that grows too large": (lambda v: v.seed(2**63 - 2), ValueError, r"below 2\*\*63"),
    "bad seed of a chain": (lambda v: v.set_seed(-3), ValueError, "at least 0"),
    "unknown attribute": (lambda v: v.get_env_attr("nope"), AttributeError, "CountingEnv has no attribute 'nope'"),
    "attribute of an id out of range": (lambda v: v.get_env_attr("t", [3]), IndexError, "env id 3"),
    "id and env_id": (lambda v: v.step([0], 0, env_id=0), TypeError, "two names of one argument"),
}  # fmt: skip


@pytest.fixture(scope="module")
def venv():
    """A single vector env for all calls, because no call may change it."""
    with DummyVectorEnv(counting(N)) as venv:
        venv.reset(seed=5)
        venv.step([1, 2, 3])
        yield venv


class TestCalls:
    @pytest.mark.guarantee("G2.9")
    @pytest.mark.parametrize("name", CALLS)
    def test_a_rejected_call_does_nothing(self, venv, name):
        call, error, text = CALLS[name]
        state = ("calls", "t", "episode", "seeded", "action")
        before = [venv.get_env_attr(key) for key in state]
        with pytest.raises(error, match=text) as caught:
            call(venv)
        assert not isinstance(caught.value, AssertionError)
        assert [venv.get_env_attr(key) for key in state] == before
        assert (venv.ready_id, venv.waiting_id, venv.failed_id) == ([0, 1, 2], [], [])
        obs = venv.step([4, 5, 6])[0]
        assert obs[:, 0].tolist() == [0, 1, 2]
        assert obs[:, 2].tolist() == [t + 1 for t in before[1]]
        assert obs[:, 4].tolist() == [4, 5, 6]

    @pytest.mark.guarantee("G7.3")
    def test_strict_refuses_steps_without_a_reset(self):
        with DummyVectorEnv(counting(N, length=1), strict=True) as venv:
            with pytest.raises(
                RuntimeError, match=r"env 0 has not been reset, or its episode is over; call reset\(0\) first"
            ):
                venv.step([0] * 3)
            venv.reset([0, 1])
            with pytest.raises(RuntimeError, match="env 2 has not been reset"):
                venv.step([0, 0], [1, 2])
            venv.step([0, 0], [0, 1])
            with pytest.raises(RuntimeError, match="env 1 has not been reset, or its episode is over"):
                venv.step([0], 1)
            assert venv.get_env_attr("calls") == [2, 2, 0]
            venv.step([0, 0], [1, 2], reset=[1, 2])
            assert venv.step([0, 0], [1, 2])[0].shape == (2, 5)

    def test_without_it_the_env_decides(self):
        with DummyVectorEnv(counting(1, length=1)) as venv:
            assert venv.step([0])[0][0, 1:3].tolist() == [-1, 1]
            assert venv.step([0])[0][0, 1:3].tolist() == [-1, 2]


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
    "four values": (lambda o, r, te, tr, i: (o, r, te, i), r"step\(\) returned 4 values, expected 5: \(obs"),
    "one value": (lambda o, r, te, tr, i: o, r"step\(\) returned a ndarray, expected 5"),
    "info is no dict": (lambda o, r, te, tr, i: (o, r, te, tr, None), "an info of type NoneType, expected a dict"),
    "reward None": (lambda o, r, te, tr, i: (o, None, te, tr, i), r"the reward None, expected a number or a vector"),
    "reward Fraction": (lambda o, r, te, tr, i: (o, Fraction(r), te, tr, i), r"the reward Fraction\(.*expected a"),
    "reward text": (lambda o, r, te, tr, i: (o, "1", te, tr, i), r"the reward '1', expected a number or a vector"),
    "reward complex": (lambda o, r, te, tr, i: (o, 1j, te, tr, i), r"the reward 1j, expected a number or a vector"),
    "reward ragged": (lambda o, r, te, tr, i: (o, [[1], [1, 2]], te, tr, i), r"the reward \[\[1\], \[1, 2\]\]"),
    "truncated 2": (lambda o, r, te, tr, i: (o, r, te, 2, i), "truncated=2 of type int, expected a bool"),
    "terminated array": (lambda o, r, te, tr, i: (o, r, np.array([True, False]), tr, i), "terminated=array"),
    "terminated 0.5": (lambda o, r, te, tr, i: (o, r, 0.5, tr, i), "terminated=0.5 of type float, expected a bool"),
    "truncated NaN": (lambda o, r, te, tr, i: (o, r, te, np.float32("nan"), i), r"truncated=.*nan.* of type float32"),
}  # fmt: skip
RESETS = {
    "reset: obs alone": (lambda o, i: o, r"reset\(\) returned a ndarray, expected 2: \(obs, info\)"),
    "reset: three values": (lambda o, i: (o, i, 1), r"reset\(\) returned 3 values, expected 2"),
    "reset: info is no dict": (
        lambda o, i: (o, [1]),
        r"reset\(\) returned 2 values, the second a list, expected 2: \(obs, info\) with a dict as info",
    ),
}
ALLOWED = {
    "a list": lambda o, r, te, tr, i: [o, r, te, tr, i],
    "flags as int": lambda o, r, te, tr, i: (o, r, int(te), np.int8(tr), i),
    "flags as arrays": lambda o, r, te, tr, i: (o, r, np.array(te), np.array([tr]), i),
    "flags as arrays of floats": lambda o, r, te, tr, i: (o, r, np.array(-0.0), np.array([tr], np.float16), i),
    "an info that is a mapping": lambda o, r, te, tr, i: (o, r, te, tr, MappingProxyType(i)),
    "a reward that is a bfloat16": lambda o, r, te, tr, i: (o, torch.tensor(r).bfloat16(), te, tr, i),
    "a reward with a gradient": lambda o, r, te, tr, i: (o, torch.tensor(r, requires_grad=True) * 1, te, tr, i),
    "a reward with a gradient, (1,)": lambda o, r, te, tr, i: (o, torch.tensor([r], requires_grad=True), te, tr, i),
    "flags as tensors": lambda o, r, te, tr, i: (
        o, r, torch.tensor(te).bfloat16(), torch.tensor(float(tr), requires_grad=True), i
    ),
    "NaN as reward": lambda o, r, te, tr, i: (o, NAN, te, tr, i),
    "true as int": lambda o, r, te, tr, i: (o, r, 1, 1, i),
    "true as floats": lambda o, r, te, tr, i: (o, r, 1.0, np.float32(1), i),
    "true as array": lambda o, r, te, tr, i: (o, r, np.array([1.0]), np.array(True), i),
}  # fmt: skip
"""gymnasium's SyncVectorEnv and SB3's DummyVecEnv take the tensors, too."""


class TestEnvsThatBreakTheApi:
    @pytest.mark.guarantee("G1.2", "G3.7")
    @pytest.mark.parametrize("name", [*STEPS, *RESETS])
    def test_each_is_a_failure_of_that_env(self, name):
        op = "step" if name in STEPS else "reset"
        wrong, text = (STEPS | RESETS)[name]
        with DummyVectorEnv([CountingEnv, returning(**{op: wrong})]) as venv:
            venv.reset()
            with pytest.raises(EnvContractError, match="env 1: .*" + text) as caught:
                venv.step([0, 0]) if op == "step" else venv.reset()
            assert not isinstance(caught.value, ObservationError)
            assert (caught.value.env_id, caught.value.op) == (1, op)
            assert caught.value.partial.env_id.tolist() == [0]

    @pytest.mark.parametrize("name", ALLOWED)
    def test_what_is_close_enough(self, name):
        with DummyVectorEnv([returning(step=ALLOWED[name])]) as venv:
            venv.reset()
            _, rew, terminated, truncated, info = venv.step([0])
            assert [terminated.item(), truncated.item()] == ["true" in name] * 2
            assert info[0] == {"t": 1, "env_id": 0}
            assert np.isnan(rew[0]) if "NaN" in name else rew[0] == 1 / 1024

    @pytest.mark.parametrize(
        ("wrong", "is_old"),
        [
            ({"step": lambda o, r, te, tr, i: (o, r, te, i)}, True),
            ({"step": lambda o, r, te, tr, i: (o, r, te)}, False),
            ({"reset": lambda o, i: {"base": o}}, False),  # gym-quadruped 1.1.8
        ],
    )
    def test_only_four_values_of_step_are_the_old_gym(self, wrong, is_old):
        with DummyVectorEnv([returning(**wrong)]) as venv:
            venv.reset()
            with pytest.raises(EnvContractError) as caught:
                venv.reset() if "reset" in wrong else venv.step([0])
        assert ("import shimmy; gymnasium.make('GymV21Environment-v0', env=env)" in str(caught.value)) is is_old
        assert ("return (obs, {})" in str(caught.value)) is ("reset" in wrong)

    @pytest.mark.parametrize("make", [DummyVectorEnv, *full([ThreadVectorEnv, ShmemVectorEnv])])
    @pytest.mark.parametrize("autoreset", [False, True])
    def test_a_reset_without_seed_says_so(self, make, autoreset):
        """As in crafter 1.8.3, or as in an env of gym 0.26 around it."""
        with make([Unseeded] * 2) as venv:
            venv.reset()
            text = r"env 0: reset\(\) takes no seed \(.*'seed'\), expected reset\(\*, seed=None, options=None\)"
            with pytest.raises(EnvContractError, match=text):
                venv.step([0, 0], autoreset=[1, 2]) if autoreset else venv.reset(seed=0)

    def test_another_type_error_of_reset_is_the_envs_own(self):
        def fails(o, i):
            raise TypeError("make_world() got an unexpected keyword argument 'seed'")

        with DummyVectorEnv([returning(reset=fails)]) as venv:
            venv.reset()
            with pytest.raises(TypeError, match="make_world"):
                venv.reset()

    @pytest.mark.guarantee("G3.5")
    @pytest.mark.parametrize("name", ["observation_space", "action_space"])
    @pytest.mark.parametrize("make", [DummyVectorEnv, SyncVectorEnv, custom, *full([ShmemVectorEnv])])
    def test_spaces_of_another_package_are_refused(self, make, name):
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

    def test_an_info_may_hold_the_env_itself(self):
        def selfish(o, r, te, tr, i):
            return o, r, te, tr, {"env": CountingEnv(41)}

        with DummyVectorEnv([returning(step=selfish)]) as venv:
            venv.reset()
            assert venv.step([0])[4][0]["env"].env_id == 41
