"""Waiting for some envs: `wait_num` and `timeout`. Gates decide when an env finishes.

`check_vector_env` checks on all backends that a step does not wait for slow envs.
"""

import threading
from functools import partial

import pytest

from tests.support.backends import and_ray
from tests.support.cases import LocalWorker, counting
from tests.support.threads import beside
from vecenv import BaseVectorEnv, ShmemVectorEnv
from vecenv.testing import FakeBackend, GateEnv, Gates

remote_backend = and_ray([ShmemVectorEnv])

LONG = 1e6
"""Seconds that a passing test never waits."""


def ids_of(result):
    return [row["env_id"] for row in result[-1]]


def test_custom_workers_are_waited_for_by_their_own_wait():
    asked = []

    class Stubborn(LocalWorker):
        @staticmethod
        def wait(workers, wait_num, timeout=None):
            asked.append((len(workers), wait_num, timeout))
            return workers[-1:]

    with BaseVectorEnv(counting(3), Stubborn, wait_num=1) as venv:
        venv.reset()
        asked.clear()
        assert [ids_of(venv.step(action)) for action in ([0, 0, 0], None, None)] == [[2], [1], [0]]
        assert asked == [(3, 1, None), (2, 1, None), (1, 1, None)]


@pytest.mark.guarantee("G2.8")
def test_a_timeout_is_not_waited_for_when_all_are_done_or_wait_num_is_reached(remote_backend):
    with remote_backend(counting(2), timeout=LONG) as venv:
        venv.reset()
        assert ids_of(venv.step([0, 0])) == [0, 1]
    with Gates(3, ops=["step"]) as gates, remote_backend(gates.env_fns, 2, LONG) as venv:
        venv.reset()
        gates.open(0, 2)
        assert ids_of(venv.step([0, 0, 0])) == [0, 2]
        gates.open(1)
        assert ids_of(venv.recv()) == [1]


@pytest.mark.guarantee("G2.5")
@pytest.mark.parametrize("options", [{"wait_num": 1}, {"timeout": 1e-3}], ids=repr)
def test_envs_reset_at_the_same_time(remote_backend, options):
    """All envs reach their gates before a gate opens, so no env waits for a different env."""
    with Gates(2) as gates, remote_backend(gates.env_fns, num_workers=2, **options) as venv:
        thread, _ = beside(lambda: (gates.await_arrival(0), gates.await_arrival(1), gates.open()))
        assert ids_of(venv.reset()) == [0, 1]
        thread.join()


@pytest.mark.guarantee("G2.5")
def test_a_reset_waits_for_its_own_envs(remote_backend):
    """The answer of another env does not end the wait. Env 0 has answered when env 1 arrives at its gate."""
    with Gates(3) as gates:
        ops = {1: ["step"], 2: ["reset"]}
        env_fns = [partial(GateEnv, gates.folder, i, ops.get(i, [])) for i in range(3)]
        with remote_backend(env_fns, num_workers=2, wait_num=1) as venv:
            gates.open(2)
            venv.reset()
            gates.await_arrival(2)
            venv.send([0, 0], [0, 1])
            gates.await_arrival(1)
            returned = threading.Event()

            def let_through():
                gates.await_arrival(2)
                returned.wait(0.2)  # a reset that does not wait returns meanwhile
                gates.open(2)

            thread, _ = beside(let_through)
            obs, _ = venv.reset([2])
            returned.set()
            thread.join()
            gates.open(1)
            assert obs[0, :3].tolist() == [2, 1, 0]
            assert sorted(ids_of(venv.recv()) + (ids_of(venv.recv()) if venv.waiting_id else [])) == [0, 1]


@pytest.mark.guarantee("G2.6")
def test_an_env_that_is_stepping_is_left_alone_and_so_are_the_others():
    text = "Cannot interact with environment 1 which is stepping now: .* pass only the ids that were returned"
    with BaseVectorEnv(counting(3), wait_num=1, backend=FakeBackend()) as venv:
        venv.reset()
        venv.send([0], [1])
        for call in (
            lambda: venv.step([0, 0], [0, 1]),
            lambda: venv.send(None, reset=[1]),
            lambda: venv.reset([2, 1]),
            lambda: venv.get_env_attr("calls"),
            lambda: venv.call("render", id=1),
            lambda: venv.seed(0),
        ):
            with pytest.raises(RuntimeError, match=text):
                call()
        with pytest.raises(RuntimeError, match=r"Environments \[1\] are still stepping, cannot render them now\."):
            venv.render()
        assert venv.get_env_attr("calls", [0, 2]) == [1, 1]
        assert venv.waiting_id == [1]
        assert ids_of(venv.recv()) == [1]
