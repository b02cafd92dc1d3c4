"""Waiting for some: `wait_num` and `timeout`. Gates decide which env is done when; no test sleeps to order events."""

import os
import threading
import time

import numpy as np
import pytest
from cases import LocalWorker, counting

from tests.backends import BACKENDS, and_ray
from vecenv import BaseVectorEnv, DummyVectorEnv
from vecenv.backends.ipc import opcodes
from vecenv.testing import Gates
from vecenv.testing.model import Twins

backend = and_ray(BACKENDS)


def ids_of(result):
    return [row["env_id"] for row in result[-1]]


class TestWaitNum:
    def test_the_first_to_finish_come_first(self, remote_backend):
        with Gates(3, ops=["step"]) as gates, remote_backend(gates.env_fns, wait_num=1) as venv:
            twins = Twins(3)
            twins.compare(range(3), venv.reset(), [twins.reset(i) for i in range(3)])
            gates.open(2)
            twins.compare([2], venv.step([5, 6, 7]), [twins.step(2, 7)])
            assert (venv.waiting_id, venv.ready_id) == ([0, 1], [2])
            gates.open(0)
            twins.compare([0], venv.step(None), [twins.step(0, 5)])
            gates.open(2)
            twins.compare([2], venv.step([9], [2]), [twins.step(2, 9)])
            gates.open(1)
            twins.compare([1], venv.recv(), [twins.step(1, 6)])
            assert (venv.waiting_id, venv.ready_id) == ([], [0, 1, 2])

    def test_it_is_a_minimum(self, remote_backend):
        """Both of two envs are known to have finished before the wait begins: both come, though one would do."""
        with Gates(3, ops=["step"]) as gates, remote_backend(gates.env_fns, wait_num=2) as venv:
            venv.reset()
            venv.send([0, 0, 0])
            gates.open()
            came = []
            while len(came) < 3:
                ids = ids_of(venv.recv())
                assert len(ids) >= min(2, 3 - len(came))
                came += ids
            assert sorted(came) == [0, 1, 2]

    def test_answers_that_are_there_are_not_waited_for(self, remote_backend, monkeypatch):
        """They came in while something else was waited for: the CPU is not given away before they are taken."""
        with remote_backend(counting(4), wait_num=1, num_workers=2) as venv:
            venv.reset()
            venv.send([0, 0], [0, 2])
            while (venv.engine.arena.status < opcodes.DONE)[[0, 2]].any():
                venv.get_env_attr("calls", id=[1, 3])
            monkeypatch.setattr(os, "sched_yield", lambda: pytest.fail("waits for what is there"))
            assert ids_of(venv.recv()) == [0, 2]

    def test_fewer_in_flight_than_wait_num_are_enough(self, backend):
        with backend(counting(4), wait_num=3) as venv:
            venv.reset()
            venv.send([1], [2])
            assert ids_of(venv.recv()) == [2]
            assert ids_of(venv.step([4, 5], [3, 0])) in ([3, 0], [0, 3])

    def test_more_workers_than_wait_num_may_share(self, remote_backend):
        """Envs that share a worker finish one after the other; each is announced as it does."""
        with Gates(4, ops=["step"]) as gates, remote_backend(gates.env_fns, wait_num=1, num_workers=2) as venv:
            assert venv.num_workers == 2
            venv.reset()
            gates.open(2)
            assert ids_of(venv.step([0] * 4)) == [2]
            gates.open(0)
            assert ids_of(venv.step(None)) == [0]
            gates.open(1, 3)
            assert sorted(ids_of(venv.step(None)) + (ids_of(venv.step(None)) if venv.waiting_id else [])) == [1, 3]

    def test_every_env_is_returned_once_on_dummy(self):
        """One process: all that was sent is done, and none is skipped."""
        with DummyVectorEnv(counting(5), wait_num=1) as venv:
            venv.reset()
            assert ids_of(venv.step([0] * 5)) == [0, 1, 2, 3, 4]

    def test_custom_workers_are_waited_for_by_their_own_wait(self):
        asked = []

        class Stubborn(LocalWorker):
            @staticmethod
            def wait(workers, wait_num, timeout=None):
                asked.append((len(workers), wait_num, timeout))
                return workers[-1:]

        with BaseVectorEnv(counting(3), Stubborn, wait_num=1) as venv:
            venv.reset()
            asked.clear()
            assert ids_of(venv.step([0, 0, 0])) == [2]
            assert ids_of(venv.step(None)) == [1]
            assert ids_of(venv.step(None)) == [0]
            assert asked == [(3, 1, None), (2, 1, None), (1, 1, None)]


class TestTimeout:
    def test_what_is_ready_at_the_deadline_comes(self, remote_backend):
        with Gates(3, ops=["step"]) as gates, remote_backend(gates.env_fns, timeout=0.5) as venv:
            venv.reset()
            gates.open(1)
            begin = time.monotonic()
            assert ids_of(venv.step([0, 0, 0])) == [1]
            assert time.monotonic() - begin >= 0.5
            gates.open(0, 2)
            assert sorted(ids_of(venv.step(None)) + (ids_of(venv.step(None)) if venv.waiting_id else [])) == [0, 2]

    def test_it_is_not_waited_for_when_all_are_done(self, backend):
        with backend(counting(2), timeout=60) as venv:
            venv.reset()
            begin = time.monotonic()
            assert sorted(ids_of(venv.step([0, 0]))) == [0, 1]
            assert time.monotonic() - begin < 30

    def test_nor_when_wait_num_is_reached(self, remote_backend):
        with Gates(3, ops=["step"]) as gates, remote_backend(gates.env_fns, 2, 60) as venv:
            venv.reset()
            gates.open(0, 2)
            begin = time.monotonic()
            assert sorted(ids_of(venv.step([0, 0, 0]))) == [0, 2]
            assert time.monotonic() - begin < 30
            gates.open(1)
            assert ids_of(venv.recv()) == [1]

    def test_with_nothing_ready_the_first_env_ends_the_wait(self, remote_backend):
        with Gates(2, ops=["step"]) as gates, remote_backend(gates.env_fns, timeout=0.05) as venv:
            venv.reset()
            venv.send([0, 0])
            gates.await_arrival(0)
            gates.await_arrival(1)
            opener = Opener(gates, 1, after=0.3)
            begin = time.monotonic()
            assert ids_of(venv.recv()) == [1]
            took = time.monotonic() - begin
            opener.join()
            assert took >= 0.25
            gates.open(0)
            assert ids_of(venv.recv()) == [0]


class Opener:
    """Opens a gate after a while. The time is the input of the test, not its way to order events."""

    def __init__(self, gates, i, after):
        self.timer = threading.Timer(after, gates.open, [i])
        self.timer.start()

    def join(self):
        self.timer.join()


class TestResetsInAsyncMode:
    def test_reset_waits_for_all_that_it_resets(self, remote_backend):
        with Gates(3) as gates, remote_backend(gates.env_fns, wait_num=1) as venv:
            twins = Twins(3)
            gates.open(times=2)
            twins.compare([2, 0, 1], venv.reset([2, 0, 1]), [twins.reset(i) for i in (2, 0, 1)])
            venv.send([5], [1])
            twins.compare([0, 2], venv.reset([0, 2]), [twins.reset(0), twins.reset(2)])
            twins.compare([1], venv.recv(), [twins.step(1, 5)])

    def test_envs_reset_at_the_same_time(self, remote_backend):
        """All come to their gates before one may leave: none waits for another."""
        with Gates(4) as gates, remote_backend(gates.env_fns, num_workers=4) as venv:

            def let_through():
                for i in range(4):
                    gates.await_arrival(i)
                gates.open()

            thread = threading.Thread(target=let_through)
            thread.start()
            assert ids_of(venv.reset()) == [0, 1, 2, 3]
            thread.join()

    def test_a_reset_that_was_sent_is_waited_for_like_a_step(self, remote_backend):
        with Gates(3) as gates, remote_backend(gates.env_fns, wait_num=1) as venv:
            gates.open()
            venv.reset()
            venv.send([1, 2, 3], reset=[1])
            gates.open(1)
            obs, rew, terminated, truncated, info = venv.recv()
            assert info.tolist() == [{"episode": 1, "env_id": 1}]
            assert (obs[0, 1:3].tolist(), rew[0], terminated[0], truncated[0]) == ([1, 0], 0, False, False)
            gates.open(0, 2)
            left = ids_of(venv.recv())
            assert sorted(left + (ids_of(venv.recv()) if len(left) < 2 else [])) == [0, 2]


class TestReadiness:
    @pytest.fixture
    def stepping(self, remote_backend):
        """Env 1 of three is stepping, and stays so until the end of the test."""
        with Gates(3, ops=["step"]) as gates, remote_backend(gates.env_fns, wait_num=1) as venv:
            venv.reset()
            venv.send([0], [1])
            gates.await_arrival(1)
            before = venv.get_env_attr("calls", [0, 2])
            yield venv
            assert venv.get_env_attr("calls", [0, 2]) == before
            assert venv.waiting_id == [1]
            gates.open(1)
            assert ids_of(venv.recv()) == [1]

    @pytest.mark.parametrize(
        "call",
        [
            lambda venv: venv.step([0, 0], [0, 1]),
            lambda venv: venv.step([0, 0, 0]),
            lambda venv: venv.send([0], 1),
            lambda venv: venv.step([0, 0, 0], reset=[1]),
            lambda venv: venv.send(None, reset=[1]),
            lambda venv: venv.reset(),
            lambda venv: venv.reset([2, 1]),
            lambda venv: venv.get_env_attr("calls"),
            lambda venv: venv.set_env_attr("length", 3, [0, 1]),
            lambda venv: venv.call("render", id=1),
            lambda venv: venv.seed(0),
            lambda venv: venv.set_seed(0),
        ],
    )
    def test_an_env_that_is_stepping_is_left_alone_and_so_are_the_others(self, stepping, call):
        text = "Cannot interact with environment 1 which is stepping now: env 1 is still stepping; wait for it with"
        with pytest.raises(RuntimeError, match=text):
            call(stepping)

    def test_a_step_of_all_is_reported_to_name_those_that_were_returned(self, stepping):
        with pytest.raises(RuntimeError, match=r"or pass only the ids that were returned: step\(action, id\)"):
            stepping.step([0, 0, 0])

    def test_render_says_who_is_stepping(self, stepping):
        with pytest.raises(RuntimeError, match=r"Environments \[1\] are still stepping, cannot render them now\."):
            stepping.render()

    def test_the_others_answer(self, stepping):
        assert stepping.get_env_attr("env_id", [2, 0]) == [2, 0]
        assert stepping.action_space == [stepping.action_space[0]] * 3

    def test_nothing_in_flight_is_nothing_to_wait_for(self, backend):
        with backend(counting(2), wait_num=1) as venv:
            venv.reset()
            for call in (lambda: venv.step(None), venv.recv):
                with pytest.raises(RuntimeError, match=r"step\(None\): no step is in flight"):
                    call()


def test_the_data_does_not_depend_on_who_is_fast(remote_backend):
    """Gates open in random order; every env still sees its own actions, in order, exactly once."""
    n, rng = 4, np.random.default_rng(5)
    with Gates(n, ops=["step"], length=1000) as gates, remote_backend(gates.env_fns, wait_num=1) as venv:
        twins = Twins(n, length=1000)
        venv.reset()
        for i in range(n):
            twins.reset(i)
        waiting, free = {}, list(range(n))
        for turn in range(40):
            if free:
                actions = [(turn + i) % 100 for i in free]
                waiting |= {i: twins.step(i, a) for i, a in zip(free, actions, strict=True)}
                venv.send(actions, free)
            chosen = int(rng.choice(sorted(waiting)))
            gates.open(chosen)
            result = venv.recv()
            free = ids_of(result)
            assert free == [chosen]
            twins.compare(free, result, [waiting.pop(chosen)])
        gates.open(*waiting)
        while waiting:
            result = venv.recv()
            twins.compare(ids_of(result), result, [waiting.pop(i) for i in ids_of(result)])
