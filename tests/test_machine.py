"""A state machine: any sequence of rounds, with any of them in flight, agrees on any backend with a model.

The programs of test_differential.py compare backends with each other and do not wait for some; this does both.
"""

import copy

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run

from tests.backends import FULL, RAY
from vecenv import DummyVectorEnv, RayVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv, nest
from vecenv.testing import Gates
from vecenv.testing.model import Twins

LENGTH = 3


class Machine(RuleBasedStateMachine):
    """Drives one vector env of GateEnvs. What comes back never depends on time: only gates of its choice are open."""

    cls = DummyVectorEnv

    def __init__(self):
        super().__init__()
        self.venv = self.gates = None
        self.kept = []

    @initialize(n=st.integers(1, 4), wait_num=st.none() | st.integers(1, 4), form=st.sampled_from(["array", "dict"]))
    def open(self, n, wait_num, form):
        self.n = n
        self.twins = Twins(n, form=form, length=LENGTH)
        self.gates = Gates(n, form=form, length=LENGTH)
        self.venv = self.cls(self.gates.env_fns, wait_num=None if wait_num is None else min(wait_num, n))
        self.waiting = {}  # in the order of sending: what each env will answer
        self.gates.open(times=1000 if self.everything_open() else 0)

    def everything_open(self):
        """Whether envs never wait: in sync mode all are waited for anyway, and Dummy runs them in this very thread."""
        return issubclass(self.cls, DummyVectorEnv) or not self.venv.is_async

    def let_through(self, ids):
        if ids and not self.everything_open():
            self.gates.open(*ids)

    def subset(self, data, of):
        return data.draw(st.permutations(of).flatmap(lambda p: st.integers(1, len(p)).map(lambda k: list(p[:k]))))

    def ready(self):
        return [i for i in range(self.n) if i not in self.waiting]

    def keep(self, result):
        leaves = [leaf for part in result for leaf in nest.leaves(part)]
        self.kept = (self.kept + [(leaf, copy.deepcopy(leaf)) for leaf in leaves])[-40:]

    @precondition(lambda self: self.ready())
    @rule(data=st.data(), seed=st.none() | st.integers(0, 99))
    def reset(self, data, seed):
        ids = self.subset(data, self.ready())
        self.let_through(ids)
        result = self.venv.reset(ids) if seed is None else self.venv.reset(ids, seed=seed)
        want = [self.twins.reset(i, seed=None if seed is None else seed + i) for i in ids]
        self.twins.compare(ids, result, want)
        self.keep(result)

    @precondition(lambda self: self.ready())
    @rule(data=st.data(), action=st.integers(0, 99))
    def send(self, data, action):
        ids = self.subset(data, self.ready())
        mixed = data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
        resets = [i for i, m in zip(ids, mixed, strict=True) if m]
        actions = [(action + i) % 100 for i in ids]
        self.venv.send(actions, ids, reset=resets)
        for i, a in zip(ids, actions, strict=True):
            self.waiting[i] = self.twins.reset(i) if i in resets else self.twins.step(i, a)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def receive(self, data):
        """Let as many envs go on as are waited for: exactly they come back."""
        chosen = list(self.waiting)
        if not self.everything_open():
            chosen = sorted(data.draw(st.permutations(chosen))[: self.venv.wait_num])
        self.let_through(chosen)
        result = self.venv.recv()
        came = [row["env_id"] for row in result[4]]
        assert sorted(came) == sorted(chosen)
        if not self.venv.is_async:
            assert came == chosen
        self.twins.compare(came, result, [self.waiting.pop(i) for i in came])
        self.keep(result)

    @precondition(lambda self: self.waiting)
    @rule()
    def touch_what_is_stepping(self):
        i = next(iter(self.waiting))
        for call in (
            lambda: self.venv.reset(i),
            lambda: self.venv.step([0], i),
            lambda: self.venv.get_env_attr("t", i),
        ):
            with pytest.raises(RuntimeError, match=f"environment {i} which is stepping"):
                call()

    @invariant()
    def ids_are_parted(self):
        if self.venv is not None:
            assert self.venv.waiting_id == sorted(self.waiting)
            assert self.venv.ready_id == self.ready()
            assert self.venv.failed_id == []

    @invariant()
    def nothing_that_was_returned_has_changed(self):
        for array, then in self.kept:
            assert array.dtype == then.dtype
            assert np.array_equal(array, then)

    def teardown(self):
        if self.venv is not None:
            self.gates.open(times=1000)
            self.venv.close()
            self.gates.close()


def check(backend, **options):
    """Run the machine on vector envs of this class."""
    machine = type(f"Machine{backend.__name__}", (Machine,), {"cls": backend})
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run(machine, settings=settings(deadline=None, suppress_health_check=quiet, **options))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("backend", "examples"),
    [
        (DummyVectorEnv, 10),
        (ShmemVectorEnv, 6),
        pytest.param(SubprocVectorEnv, 12, marks=FULL),
        pytest.param(ThreadVectorEnv, 12, marks=FULL),
        pytest.param(RayVectorEnv, 4, marks=RAY),
    ],
)
def test_any_sequence_of_calls_agrees_with_the_model(backend, examples):
    check(backend, max_examples=examples, stateful_step_count=25, derandomize=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("backend", [DummyVectorEnv, SubprocVectorEnv, ShmemVectorEnv])
def test_many_sequences_of_calls_agree_with_the_model(backend):
    check(backend, max_examples=300, stateful_step_count=50)


class Forgets(DummyVectorEnv):
    """Breaks one promise: a reset in a mixed round comes without its seed of the episode before."""

    def send(self, action, id=None, **kwargs):
        super().send(action, id, **kwargs)
        if kwargs.get("reset"):
            obs = self.engine.arena.obs
            obs[...] = 0 if isinstance(obs, np.ndarray) else obs


def test_the_machine_finds_a_vector_env_that_breaks_the_contract():
    with pytest.raises(AssertionError, match="observation of env"):
        check(Forgets, max_examples=50, stateful_step_count=20, derandomize=True, phases=[Phase.generate])
