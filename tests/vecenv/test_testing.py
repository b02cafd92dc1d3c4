"""`check_vector_env` passes on each backend, and finds the defects of broken vector envs."""

import threading

import numpy as np
import pytest

from tests.support.backends import FULL, RAY
from tests.support.cases import NEAR_ON_RAY, WITH_TWO_WORKERS, custom, near, sharing
from tests.support.commands import CommandVectorEnv
from tests.support.coroutine_envs import CoroutineVectorEnv
from tests.support.local_ray import FAR
from vecenv import (
    BaseVectorEnv,
    ClosedError,
    DummyVectorEnv,
    RayVectorEnv,
    ShmemVectorEnv,
    SubprocVectorEnv,
    VectorEnvWrapper,
)
from vecenv.backends.dummy import DummyBackend
from vecenv.backends.ipc.opcodes import STEP, STEP_OBJECT
from vecenv.testing import CHECKS, FakeBackend, check_rounds, check_vector_env


def fake(env_fns, **options):
    return BaseVectorEnv(env_fns, backend=FakeBackend(), **options)


def wrapped(env_fns, **options):
    return VectorEnvWrapper(VectorEnvWrapper(DummyVectorEnv(env_fns, **options)))


MAKERS = [
    *(DummyVectorEnv, fake, custom, wrapped, *WITH_TWO_WORKERS, CoroutineVectorEnv),
    pytest.param(sharing(ShmemVectorEnv, 5), marks=FULL),
    *(pytest.param(make, marks=RAY) for make in (near, sharing(RayVectorEnv, 2, **FAR))),
]
CARRIED = ("mixed_rounds", "env_errors", "close")
"""Checks that depend on how a worker is reached, and that test_spaces.py does not make."""


@pytest.mark.guarantee("G2.4", "G2.7", "G2.8", "G3.3", "G3.8", "G4.1", "G6.3", "G8.1", "G8.3", "G8.8", "G9.1", "G9.15")
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_our_backends_keep_the_contract(make, check):
    check_vector_env(make, [check])


@pytest.mark.parametrize("check", CARRIED)
@pytest.mark.parametrize("make", [NEAR_ON_RAY, pytest.param(sharing(CommandVectorEnv, 2), marks=FULL)])
def test_actors_and_commands_keep_the_contract(make, check):
    check_vector_env(make, [check])


class LosesAnAnswer(DummyBackend):
    """Backend that never announces the last env's operation."""

    given_up = threading.Event()

    def send(self, ids, ops, payloads):
        super().send(ids, ops, payloads)
        self.arena.status[-1] = STEP

    def wait(self, done, deadline):
        if done is not None and not done():
            self.given_up.wait()
        return 0.0


class SwapsRows(DummyBackend):
    """Backend that swaps the observations of envs 0 and 1 in rounds of all envs."""

    def send(self, ids, ops, payloads):
        super().send(ids, ops, payloads)
        if ids is None:
            for leaf in self.arena.outputs():
                leaf[[0, 1]] = leaf[[1, 0]]


class ForgetsSeeds(DummyBackend):
    def send(self, ids, ops, payloads):
        for payload in payloads.values():
            if isinstance(payload, dict):
                payload.pop("seed", None)
        super().send(ids, ops, payloads)


class WrapsEnvErrors(DummyBackend):
    """Backend that turns each failure into a RuntimeError."""

    def take(self, ids):
        taken = super().take(ids)
        for extra in taken.extras.values():
            if extra.failure is not None:
                extra.failure.error = RuntimeError("something failed")
        return taken


class SharesActions(DummyBackend):
    """Backend that gives the caller's array to the envs."""

    def send(self, ids, ops, payloads):
        if ids is None and isinstance(ops, int) and ops == STEP:
            payloads, ops = dict.fromkeys(range(len(self.arena.status)), self.arena.action[0]), STEP_OBJECT
        super().send(ids, ops, payloads)


class LeavesEnvsOpen(DummyBackend):
    def close(self, timeout):
        return []


def on(backend_class):
    """Return the factory that a user of the contract would write."""

    def factory(env_fns, **options):
        return BaseVectorEnv(env_fns, backend=backend_class(), **options)

    factory.__name__ = backend_class.__name__
    return factory


def broken(name, base=DummyVectorEnv, **methods):
    """Return a vector env class with these methods replaced."""
    return type(name, (base,), methods)


def write_into_own_info(self):
    result = DummyVectorEnv.recv(self)
    for env in self.envs:
        env.own_info["env_id"] = env.env_id
    return result


def return_float32(self):
    obs, rew, *rest = DummyVectorEnv.recv(self)
    return obs, rew.astype(np.float32), *rest


def wait_for_all(self):
    self.engine.wait_for_all(None)
    return SubprocVectorEnv.recv(self)


def same_seed_for_all(self, id=None, *, seed=None, **kwargs):
    seed = [seed] * len(self._wrap_id(id)) if isinstance(seed, int) else seed
    return DummyVectorEnv.reset(self, id, seed=seed, **kwargs)


def act_before_the_checks(self, action, id=None, **kwargs):
    if isinstance(action, list) and id is not None and len(action) != len(np.atleast_1d(id)):
        DummyVectorEnv.step(self, action, id[: len(action)])
    return DummyVectorEnv.step(self, action, id, **kwargs)


class CloseRaisesTwice(DummyVectorEnv):
    def close(self):
        self.engine.check_open()
        super().close()


def views(env_fns, **options):
    """Make a vector env that returns views."""
    return DummyVectorEnv(env_fns, copy=False, **options)


def calls_env_fns_for_their_spaces(env_fns, **options):
    env_fns[0]().close()
    return DummyVectorEnv(env_fns, **options)


def refuses_constructors_errors(env_fns, **options):
    """Hide the error of a constructor."""
    try:
        return DummyVectorEnv(env_fns, **options)
    except ValueError:
        raise RuntimeError("could not be made") from None


BROKEN = [
    (on(SwapsRows), {"rows", "mixed_rounds", "autoreset", "async", "env_errors"}),
    (on(ForgetsSeeds), {"seeds"}),
    (on(WrapsEnvErrors), {"env_errors", "observations_fit_their_space"}),
    (on(SharesActions), {"actions_are_the_envs_own"}),
    (on(LeavesEnvsOpen), {"close"}),
    (views, {"returned_arrays_stay"}),
    (calls_env_fns_for_their_spaces, {"env_fns_are_called_once"}),
    (refuses_constructors_errors, {"errors_of_constructors"}),
    (broken("WaitsForAll", SubprocVectorEnv, recv=wait_for_all), {"waiting"}),
    (broken("WritesIntoEnvInfos", recv=write_into_own_info), {"infos"}),
    (broken("ReturnsFloat32", recv=return_float32), {"vector_rewards"}),
    (broken("SameSeedForAll", reset=same_seed_for_all), {"rows", "options_of_reset"}),
    (broken("ActsBeforeItChecks", step=act_before_the_checks), {"rejected_calls"}),
    (broken("CallsNothing", call=lambda self, name, *args, id=None, **kwargs: [None] * 5), {"attributes"}),
    (broken("HasNoSpec", spec=property(lambda self: None)), {"reports"}),
    (broken("DropsArguments", render=lambda self, **kwargs: DummyVectorEnv.render(self)), {"frames"}),
    (broken("HasNoStats", stats=lambda self: {}), {"stats"}),
    (broken("SaysThatAllAreAlive", SubprocVectorEnv, alive=lambda self: [True] * self.env_num), {"workers_that_end"}),
]


# A check that fails in the middle leaves a vector env to its `with` statement; one that fails in close leaves it open.
@pytest.mark.filterwarnings("ignore:unclosed")
@pytest.mark.parametrize(("factory", "caught_by"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_each_breach_of_the_contract_is_caught_by(factory, caught_by, monkeypatch):
    monkeypatch.setattr(check_rounds, "GATE_PATIENCE", 0.3)
    for check in caught_by:
        with pytest.raises(AssertionError, match=f"^{check}: "):
            check_vector_env(factory, [check])


def test_every_check_catches_something():
    assert set().union(*(names for _, names in BROKEN)) == CHECKS.keys()


@pytest.mark.filterwarnings("ignore:unclosed")
def test_a_lost_answer_is_reported_instead_of_waited_for():
    LosesAnAnswer.given_up.clear()
    try:
        with pytest.raises(AssertionError, match=r"rows: it did not end within 0.2 s: a result may be lost"):
            check_vector_env(on(LosesAnAnswer), ["rows"], patience=0.2)
    finally:
        LosesAnAnswer.given_up.set()


def test_messages_name_the_check_the_env_and_both_values():
    with pytest.raises(AssertionError, match=r"^rows: observation of env 0 is array\(\[ ?1, .*expected array\(\[ ?0"):
        check_vector_env(on(SwapsRows))


@pytest.mark.filterwarnings("ignore:unclosed")
def test_an_error_of_the_backend_is_an_assertion_error_with_its_cause():
    with pytest.raises(AssertionError, match="close: unexpected ClosedError") as caught:
        check_vector_env(CloseRaisesTwice, ["close"])
    assert isinstance(caught.value.__cause__, ClosedError)
