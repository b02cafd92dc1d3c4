"""`step_async` and `step_wait`: a timeout, an error or an interrupt loses no results."""

import contextlib
import functools
import multiprocessing

import numpy as np
import pytest

from tests.support.backends import FULL, one_of
from tests.support.cases import counting
from tests.support.gymnasium_cases import OURS, Remembers
from vecenv import (
    AsyncVectorEnv,
    DummyVectorEnv,
    GymnasiumVectorEnv,
    InterruptedCallError,
    SB3VecEnv,
    VectorEnvWrapper,
)
from vecenv.testing import CountingEnv, Gates, RaisesOnReset

timed_out = functools.partial(pytest.raises, multiprocessing.TimeoutError, match="nothing is lost")


@pytest.fixture(params=one_of(["sync", "async"]))
def envs(request):
    with contextlib.closing(OURS[request.param]([Remembers] * 3)) as envs:
        envs.reset()
        yield envs


def test_the_exception_of_a_call_comes_when_it_is_waited_for_and_breaks_nothing(envs):
    """W4"""
    for name, error in (("typo", AttributeError), ("add", TypeError)):
        envs.call_async(name)
        with pytest.raises(error, match=name):
            envs.call_wait()
    assert envs.call("add", 1, b=2) == (3, 3, 3)
    assert envs.step([1, 2, 0])[1].tolist() == [1.0, 2.0, 0.0]


def test_closing_while_a_call_is_pending_warns(envs):
    envs.step_async([0, 0, 0])
    with pytest.warns(UserWarning, match="Calling `close` while waiting for a pending call to `step` to complete"):
        envs.close(timeout=1.0)
    assert envs.closed


@pytest.mark.parametrize("mode", ["SameStep", pytest.param("NextStep", marks=FULL)])
def test_a_wait_that_timed_out_can_be_repeated_and_returns_all(mode):
    """W2. In a reset, in a call, and in each phase of a step: after the other envs have answered, and during the
    resets of SAME_STEP mode.
    """
    with Gates(2, ops=["reset", "step", "echo"], length=1, infos=False) as gates:
        envs = AsyncVectorEnv(gates.env_fns, mode == "SameStep", autoreset_mode=mode, num_workers=2)
        envs.reset_async(seed=4)
        gates.open(0)
        with timed_out():
            envs.reset_wait(timeout=0.01)
        gates.open(1)
        assert envs.reset_wait(timeout=30)[0][:, 3].tolist() == [4, 5]
        envs.call_async("echo", "a")
        gates.open(1)
        for _ in range(2):
            with timed_out():
                envs.call_wait(timeout=0.01)
        gates.open(0)
        assert envs.call_wait(timeout=30) == ("a", "a")
        envs.step_async([6, 7])
        gates.open(1)
        with timed_out():
            envs.step_wait(timeout=0)
        gates.open(0)
        if mode == "SameStep":
            for gate in (0, 1):
                with timed_out():
                    envs.step_wait(timeout=0.01)
                gates.open(gate)
        obs, rewards, terminations, _, infos = envs.step_wait(timeout=float("inf"))
        last = infos["final_obs"] if mode == "SameStep" else obs
        assert [row[-1] for row in last] == [6, 7]
        assert obs[:, 2].tolist() == ([0, 0] if mode == "SameStep" else [1, 1])
        assert terminations.all()
        assert rewards.tolist() == [1 / 1024, 1 + 1 / 1024]
        envs.close()


def test_what_is_refused_is_not_pending(envs):
    """While a call below the facade steps an env."""
    envs.venv.send([2], id=[1])
    mask = {"reset_mask": np.array([True, False, False])}
    for call in (lambda: envs.step([0, 0, 0]), envs.reset, lambda: envs.reset(options=mask)):
        with pytest.raises(RuntimeError, match="env 1 is still stepping"):
            call()
    assert envs.venv.recv()[1].tolist() == [2.0]
    assert envs.step([1, 2, 0])[1].tolist() == [1.0, 2.0, 0.0]


@pytest.mark.parametrize("kind", one_of(["sync", "async"]))
def test_a_reset_that_fails_after_the_last_step_leaves_the_step_in_the_error(kind):
    """SAME_STEP mode: other envs continue, and the next step tries the reset again."""
    env_fns = [lambda: RaisesOnReset(0, at=1, length=2), *counting(2, length=2)[1:], lambda: CountingEnv(2, length=9)]
    with contextlib.closing(OURS[kind](env_fns, autoreset_mode="SameStep")) as envs:
        envs.reset()
        envs.step([1, 1, 1])
        with pytest.raises(ValueError, match="boom in reset") as caught:
            envs.step([2, 2, 2])
        partial = caught.value.partial
        assert partial.env_id.tolist() == [0, 1, 2]
        assert partial.terminated.tolist() == [True, True, False]
        assert [row.get("final_obs", obs)[-1] for row, obs in zip(partial.info, partial.obs, strict=True)] == [2, 2, 2]
        with pytest.raises(ValueError, match="boom in reset") as caught:
            envs.step([3, 3, 3])
        assert caught.value.partial.env_id.tolist() == [1, 2]
        assert caught.value.partial.obs[:, 2].tolist() == [1, 3]


class Interrupted(VectorEnvWrapper):
    """Wrapper that raises KeyboardInterrupt in the wait with the number `at`."""

    def __init__(self, venv, at):
        super().__init__(venv)
        self.at, self.waits = at, 0

    def recv(self):
        self.waits += 1
        if self.waits == self.at:
            raise KeyboardInterrupt
        return super().recv()


def test_after_an_interrupt_of_the_random_starts_the_envs_need_a_reset():
    """The answers of this call never become results of a later call."""

    def make(at):
        venv = Interrupted(DummyVectorEnv(counting(4, length=3), strict=True), at)
        return GymnasiumVectorEnv(venv, random_initial_steps=9)

    whole, envs = make(0), make(3)
    want, _ = whole.reset(seed=5)
    with pytest.raises(KeyboardInterrupt):
        envs.reset(seed=5)
    for use in (envs.reset_wait, envs.step_wait, lambda: envs.step([0] * 4)):
        with pytest.raises(InterruptedCallError):
            use()
    obs, _ = envs.reset(seed=5)
    assert obs[:, [0, 2, 4]].tolist() == want[:, [0, 2, 4]].tolist()  # the other columns count resets


@pytest.mark.parametrize("facade", [GymnasiumVectorEnv, SB3VecEnv])
@pytest.mark.parametrize("half", ["step_async", "step_wait"])
def test_a_subclass_may_change_one_half_of_a_step(facade, half):
    """`step` uses the two halves."""
    calls = []

    def changed(self, *args):
        calls.append(args)
        return getattr(facade, half)(self, *args)

    envs = type("Changed", (facade,), {half: changed})(DummyVectorEnv(counting(2)))
    envs.reset()
    envs.step(np.array([0, 1]))
    assert len(calls) == 1
