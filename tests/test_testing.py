"""The contract on every backend; and a vector env that breaks it in one way fails the checks that are listed."""

import threading

import numpy as np
import pytest
from cases import NEAR_ON_RAY, WITH_TWO_WORKERS, custom, sharing

from tests.backends import BACKENDS, FULL, RAY
from tests.local_ray import FAR, NEAR
from vecenv import BaseVectorEnv, ClosedError, DummyVectorEnv, RayVectorEnv, SubprocVectorEnv
from vecenv.backends.base import Answered
from vecenv.backends.dummy import DummyBackend
from vecenv.backends.ipc.opcodes import AUTORESET, STEP, STEP_OBJECT
from vecenv.testing import CHECKS, FakeBackend, check_rounds, check_vector_env


def fake(env_fns, **options):
    return BaseVectorEnv(env_fns, backend=FakeBackend(), **options)


MAKERS = [
    *(DummyVectorEnv, fake, custom, *WITH_TWO_WORKERS),
    *(pytest.param(sharing(cls, k), marks=FULL) for cls in BACKENDS[1:] for k in (1, 3, 5)),
    *(pytest.param(sharing(RayVectorEnv, 2, **where), marks=RAY) for where in (NEAR, FAR, {})),
]
CARRIED = ("rows", "mixed_rounds", "attributes", "env_errors", "close")
"""What the way to the envs decides, and not only the code that is on both of its ends."""


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_our_backends_keep_the_contract(make, check):
    check_vector_env(make, [check])


@pytest.mark.parametrize("check", CARRIED)
@pytest.mark.parametrize("make", [NEAR_ON_RAY], ids=["actors"])
def test_actors_keep_the_contract(make, check):
    check_vector_env(make, [check])


class StaleBackend(DummyBackend):
    """Announces a second step without having written its row."""

    def send(self, ids, ops, payloads):
        before = [leaf.copy() for leaf in self.arena.outputs()]
        super().send(ids, ops, payloads)
        self.rounds = getattr(self, "rounds", 0) + 1
        if self.rounds == 2:
            for leaf, old in zip(self.arena.outputs(), before, strict=True):
                leaf[...] = old


class LosesAnAnswer(DummyBackend):
    """Runs the operation of the last env, but never announces it."""

    given_up = threading.Event()

    def send(self, ids, ops, payloads):
        super().send(ids, ops, payloads)
        self.arena.status[-1] = STEP

    def wait(self, done, deadline):
        if done is not None and not done():
            self.given_up.wait()
        return 0.0


class SwapsRows(DummyBackend):
    """Exchanges the observations of envs 0 and 1 in rounds of all envs."""

    def send(self, ids, ops, payloads):
        super().send(ids, ops, payloads)
        if ids is None:
            for leaf in self.arena.outputs():
                leaf[[0, 1]] = leaf[[1, 0]]


class RunsTwice(DummyBackend):
    """Runs the operation of env 0 twice in partial rounds, as a message that is sent twice would."""

    def send(self, ids, ops, payloads):
        if ids is not None and 0 in ids:
            super().send(np.array([0]), np.broadcast_to(ops, ids.shape)[ids == 0], payloads)
            self.take([0])
        super().send(ids, ops, payloads)


class ForgetsSeeds(DummyBackend):
    """Drops the seeds."""

    def call(self, ids, op, args):
        return Answered([True] * len(ids)) if op == "seed" else super().call(ids, op, args)


class WrapsEnvErrors(DummyBackend):
    """Every failure becomes a plain RuntimeError."""

    def take(self, ids):
        taken = super().take(ids)
        for extra in taken.extras.values():
            if extra.failure is not None:
                extra.failure.error = RuntimeError("something failed")
        return taken


class IgnoresAutoreset(DummyBackend):
    """Says that it resets envs in the round of their last step, and does not."""

    def send(self, ids, ops, payloads):
        super().send(ids, ops & (255 - AUTORESET), payloads)


class LeavesEnvsOpen(DummyBackend):
    def close(self, timeout):
        return []


def on(backend_class):
    """The factory that a user of the kit would write."""

    def factory(env_fns, **options):
        return BaseVectorEnv(env_fns, backend=backend_class(), **options)

    factory.__name__ = backend_class.__name__
    return factory


class ReturnsViews(DummyVectorEnv):
    """Zero copies, no lifetime."""

    def __init__(self, env_fns, **options):
        super().__init__(env_fns, copy=False, **options)


class DropsARow(DummyVectorEnv):
    """Partial batches come without their last row."""

    def recv(self):
        obs, rew, *rest = super().recv()
        short = slice(None) if len(rew) in (1, self.env_num) else slice(-1)
        return tuple(part if isinstance(part, (dict, tuple)) else part[short] for part in (obs, rew, *rest))


class RepeatsARow(DummyVectorEnv):
    """In async mode the first row comes twice."""

    def recv(self):
        parts = super().recv()
        return tuple(np.concatenate([part, part[:1]]) for part in parts) if self.is_async else parts


class Float32Rewards(DummyVectorEnv):
    def recv(self):
        obs, rew, *rest = super().recv()
        return obs, rew.astype(np.float32), *rest


class WritesIntoEnvInfos(DummyVectorEnv):
    def recv(self):
        result = super().recv()
        for row in result[4]:
            if not self.waiting_id:
                own = self.get_env_attr("own_info", row["env_id"])[0]
                self.set_env_attr("own_info", {**own, "env_id": row["env_id"]}, row["env_id"])
        return result


class SortsRows(DummyVectorEnv):
    """Rows come in the order of ids, whatever was asked for."""

    def reset(self, id=None, **kwargs):
        return super().reset(id if id is None else np.sort(np.atleast_1d(id)), **kwargs)


class SameSeedForAll(DummyVectorEnv):
    def reset(self, id=None, *, seed=None, **kwargs):
        return super().reset(id, seed=[seed] * len(self._wrap_id(id)) if isinstance(seed, int) else seed, **kwargs)


class ActsBeforeItChecks(DummyVectorEnv):
    def step(self, action, id=None, **kwargs):
        if isinstance(action, list) and id is not None and len(action) != len(np.atleast_1d(id)):
            super().step(action, id[: len(action)])
        return super().step(action, id, **kwargs)


class NoneForUnknownAttributes(DummyVectorEnv):
    def get_env_attr(self, key, id=None):
        try:
            return super().get_env_attr(key, id)
        except AttributeError:
            return [None] * self.env_num


class CallsEnvFnsForTheirSpaces(DummyVectorEnv):
    def __init__(self, env_fns, **options):
        env_fns[0]().close()
        super().__init__(env_fns, **options)


class CloseRaisesTwice(DummyVectorEnv):
    def close(self):
        self.engine.check_open()
        super().close()


class WaitsForAll(SubprocVectorEnv):
    """Whatever `wait_num` and `timeout` say."""

    def recv(self):
        self.engine.wait_for_all(None)
        return super().recv()


class DropsVectorRewards(DummyVectorEnv):
    """Of a vector only the first number is left."""

    def recv(self):
        obs, rew, *rest = super().recv()
        return obs, rew.reshape(len(rew), -1)[:, 0], *rest


class ReusesInfos(DummyVectorEnv):
    """Each env has one dict for all its infos."""

    def __init__(self, env_fns, **options):
        super().__init__(env_fns, **options)
        self.infos = [{} for _ in env_fns]

    def recv(self):
        *rest, info = super().recv()
        for j, row in enumerate(info):
            info[j] = self.infos[row["env_id"]]
            info[j].clear()
            info[j].update(row)
        return *rest, info


class CallsNothing(DummyVectorEnv):
    def call(self, name, /, *args, id=None, **kwargs):
        return [None] * len(self._wrap_id(id))


class IgnoresSetSeed(DummyVectorEnv):
    def set_seed(self, seed, static_seed=False):
        return seed


class DropsArgumentsOfRender(DummyVectorEnv):
    def render(self, **kwargs):
        return super().render()


class HasNoStats(DummyVectorEnv):
    def stats(self):
        return {}


class SharesValues(DummyVectorEnv):
    """An attribute is the caller's own object."""

    def set_env_attr(self, key, value, id=None):
        for env in self.envs:
            setattr(env, key, value)


class CannotCloseInFlight(DummyVectorEnv):
    def close(self):
        if not self.is_closed and self.waiting_id:
            self.recv()
            raise RuntimeError("envs are in flight")
        super().close()


class RefusesConstructorsErrors(DummyVectorEnv):
    """Says only that something went wrong in a constructor."""

    def __init__(self, env_fns, **options):
        try:
            super().__init__(env_fns, **options)
        except ValueError:
            raise RuntimeError("could not be made") from None


class SharesActions(DummyBackend):
    """Gives the caller's own array to the envs."""

    def send(self, ids, ops, payloads):
        if ids is None and isinstance(ops, int) and ops == STEP:
            payloads, ops = dict.fromkeys(range(len(self.arena.status)), self.arena.action[0]), STEP_OBJECT
        super().send(ids, ops, payloads)


def without(name):
    """A vector env that does not tell one of the lists."""
    return type(f"Without_{name}", (DummyVectorEnv,), {name: property(lambda self: None)})


BROKEN = [
    (on(StaleBackend), {"rows", "options_of_reset", "mixed_rounds", "autoreset", "async", "env_errors"}),
    (on(SwapsRows), {"rows", "mixed_rounds", "autoreset", "async", "env_errors"}),
    (on(RunsTwice), {"rows", "mixed_rounds", "autoreset"}),
    (on(ForgetsSeeds), {"seeds"}),
    (on(WrapsEnvErrors), {"env_errors", "observations_fit_their_space"}),
    (ReturnsViews, {"returned_arrays_stay"}),
    (DropsARow, {"rows", "mixed_rounds", "autoreset", "vector_rewards", "env_errors"}),
    (RepeatsARow, {"async"}),
    (Float32Rewards, {"rows", "mixed_rounds", "autoreset", "async", "vector_rewards", "env_errors"}),
    (WritesIntoEnvInfos, {"infos"}),
    (SortsRows, {"options_of_reset"}),
    (SameSeedForAll, {"rows", "options_of_reset"}),
    (ActsBeforeItChecks, {"rejected_calls"}),
    (NoneForUnknownAttributes, {"attributes"}),
    (CallsEnvFnsForTheirSpaces, {"env_fns_are_called_once"}),
    (CloseRaisesTwice, {"close"}),
    (on(IgnoresAutoreset), {"autoreset"}),
    (WaitsForAll, {"waiting"}),
    (DropsVectorRewards, {"vector_rewards"}),
    (ReusesInfos, {"infos"}),
    (CallsNothing, {"attributes"}),
    (IgnoresSetSeed, {"seeds"}),
    (without("observation_space"), {"reports"}),
    (without("metadata"), {"reports"}),
    (without("spec"), {"reports"}),
    (DropsArgumentsOfRender, {"frames"}),
    (HasNoStats, {"stats"}),
    (SharesValues, {"attributes"}),
    (CannotCloseInFlight, {"close"}),
    (RefusesConstructorsErrors, {"errors_of_constructors"}),
    (on(SharesActions), {"actions_are_the_envs_own"}),
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
        with pytest.raises(AssertionError, match=r"rows: it did not end within 0.2 s; an answer was lost"):
            check_vector_env(on(LosesAnAnswer), ["rows"], patience=0.2)
    finally:
        LosesAnAnswer.given_up.set()


def test_envs_that_are_left_open_are_reported():
    with pytest.raises(AssertionError, match=r"close: close closed the envs \[\], expected all 5"):
        check_vector_env(on(LeavesEnvsOpen), ["close"])


def test_messages_name_the_check_the_env_and_both_values():
    with pytest.raises(AssertionError, match=r"^rows: observation of env 0 is array\(\[ ?1, .*expected array\(\[ ?0"):
        check_vector_env(on(SwapsRows))


@pytest.mark.filterwarnings("ignore:unclosed")
def test_an_error_of_the_backend_is_an_assertion_error_with_its_cause():
    with pytest.raises(AssertionError, match="close: unexpected ClosedError") as caught:
        check_vector_env(CloseRaisesTwice, ["close"])
    assert isinstance(caught.value.__cause__, ClosedError)
