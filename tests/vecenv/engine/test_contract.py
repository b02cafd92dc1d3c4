"""Details of rounds, results and life cycle in BaseVectorEnv and its engine, on DummyVectorEnv.

`check_vector_env` is the contract of all backends (see test_testing.py).
"""

import copy
import gc
import pickle
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
from gymnasium import spaces

from tests.support.cases import Records, counting
from tests.support.faulty import counters
from tests.support.ledger import gone, pids, wait_until
from vecenv import ClosedError, DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv
from vecenv.backends.system_limits import usable_cpus
from vecenv.testing.model import ReferenceEnvs

N = 4


class TestRounds:
    @pytest.mark.guarantee("G2.1", "G2.2")
    def test_every_call_takes_ids_in_any_form_and_by_both_names(self):
        with DummyVectorEnv(counting(N)) as venv:
            for ids, meant in ((2, [2]), ((3, 0), [3, 0]), ([True, False, False, True], [0, 3]), (None, [0, 1, 2, 3])):
                actions = [0] * len(meant)
                resets = venv.reset(ids)[1], venv.reset(env_id=ids)[1]
                for info in (*resets, venv.step(actions, ids)[4], venv.step(actions, env_id=ids)[4]):
                    assert [row["env_id"] for row in info] == meant
                assert venv.get_env_attr("env_id", ids) == venv.call("env_id", id=ids) == meant

    @pytest.mark.guarantee("G6.2", "G7.1", "G7.2")
    def test_resets_among_steps_as_masks_and_alone(self):
        reference = ReferenceEnvs(N)
        mask, none = np.array([True, False, False, False]), np.zeros(N, np.bool_)
        with DummyVectorEnv(reference.env_fns) as venv:
            reference.compare([1, 0], venv.step([8, 9], [1, 0], reset=mask), [reference.step(1, 8), reference.reset(0)])
            reference.compare(range(N), venv.step([0] * N, reset=none), [reference.step(i, 0) for i in range(N)])
            venv.send(None, reset=[3, 1], seed=[30, 10], options={"t": 2})
            want = [reference.reset(i, seed=10 * i, options={"t": 2}) for i in (3, 1)]
            reference.compare([3, 1], venv.recv(), want)
            reference.compare([0], venv.step(None, reset=mask), [reference.reset(0)])
            for ids, reset, order in (
                (None, [3, 1], [3, 1]),
                ([1, 2, 3], (3, 1), [3, 1]),
                ([3, 1], np.array([False, True, False, True]), [1, 3]),  # as those of reset(mask)
            ):
                asked = list(range(N)) if ids is None else ids
                venv.send([0] * len(asked), ids, reset=reset, seed=[10 * i for i in order])
                want = [reference.reset(i, seed=10 * i) if i in order else reference.step(i, 0) for i in asked]
                reference.compare(asked, venv.recv(), want)

    @pytest.mark.parametrize("options", [{}, {"wait_num": N}, {"timeout": 9.0}], ids=str)
    def test_a_step_takes_arguments_for_its_resets(self, options):
        reference = ReferenceEnvs(N)
        none, kwargs = np.zeros(N, np.bool_), {"options": [{"t": 2}, None], "seed": [30, 10]}
        with DummyVectorEnv(reference.env_fns, **options) as venv:
            venv.reset()
            for i in range(N):
                reference.reset(i)
            reset = {3: {"options": {"t": 2}, "seed": 30}, 1: {"seed": 10}}
            want = [reference.reset(i, **reset[i]) if i in reset else reference.step(i, 0) for i in range(N)]
            reference.compare(range(N), venv.step([0] * N, reset=[3, 1], **kwargs), want)
            want = [reference.reset(i, options={"t": 1}) for i in (0, 2)]
            reference.compare([0, 2], venv.step(None, reset=[0, 2], options={"t": 1}), want)
            want = [reference.step(i, 0) for i in range(N)]
            reference.compare(range(N), venv.step([0] * N, reset=none, options={"t": 1}), want)

    @pytest.mark.guarantee("G7.2")
    def test_actions_of_envs_that_are_reset_are_ignored(self):
        with DummyVectorEnv(counting(2), check_actions=True) as venv:
            venv.reset()
            assert venv.step([1, -5], reset=[1])[0][:, 1:3].tolist() == [[0, 1], [1, 0]]

    def test_actions_of_envs_that_are_reset_need_not_travel(self):
        with ShmemVectorEnv([lambda: Records(spaces.Text(3))] * 2) as venv:
            venv.reset()
            venv.step([threading.Lock(), "a"], reset=[0])
            assert venv.get_env_attr("actions") == [[], ["a"]]


class TestResults:
    @pytest.mark.guarantee("G4.2")
    def test_views_on_request_are_valid_until_the_next_call(self):
        with DummyVectorEnv(counting(2), copy=False) as venv:
            first, _ = venv.reset()
            assert first[:, 2].tolist() == [0, 0]
            second = venv.step([0, 0])[0]
            assert np.shares_memory(first, second)
            assert second[:, 2].tolist() == [1, 1]
            assert not np.shares_memory(venv.step([0], [1])[0], second)

    @pytest.mark.guarantee("G3.2")
    def test_without_stack_obs_arrays_are_stacked_nevertheless(self):
        with DummyVectorEnv(counting(2), stack_obs=False) as venv:
            assert (venv.reset()[0].shape, venv.step([0, 0])[0].dtype) == ((2, 5), np.int64)

    @pytest.mark.guarantee("G3.2")
    def test_unstacked_observations_are_one_dict_an_env(self):
        reference = ReferenceEnvs(2, form="dict")
        with DummyVectorEnv(reference.env_fns, stack_obs=False) as venv:
            first, _ = venv.reset()
            assert (first.dtype, first.shape) == (object, (2,))
            assert first[1]["who"] == 1
            assert isinstance(first[1]["when"], tuple)
            assert np.array_equal(first[1]["when"][0], reference.reset(1)[0]["when"][0])
            assert first[1]["when"][1].dtype == np.float32
            venv.step([3, 3])
            assert first[1]["when"][0].tolist() == [0, 0, -1, -1]


class TestLife:
    @pytest.mark.parametrize(("backend", "num_workers"), [(DummyVectorEnv, 1), (ShmemVectorEnv, 2)])
    def test_numbers_and_names(self, backend, num_workers):
        with backend(counting(N), num_workers=2) as venv:
            assert venv.num_workers == num_workers
            assert (venv.ready_id, venv.waiting_id, venv.failed_id) == ([0, 1, 2, 3], [], [])
            assert (venv.is_async, venv.wait_num, venv.timeout, venv.is_closed) == (False, N, None, False)
            assert venv.alive() == [True] * N
            assert repr(venv) == f"{backend.__name__}(4 envs, {num_workers} workers)"
            venv.reset()
            venv.step([0] * N)
            stats = venv.stats()
            assert len(stats["worker_busy_s"]) == num_workers
            assert min(stats["worker_busy_s"]) > 0
            assert stats["slowest_worker"] == int(np.argmax(stats["worker_busy_s"]))
        assert repr(venv).endswith(", closed)")

    @pytest.mark.parametrize("backend", [ShmemVectorEnv, ThreadVectorEnv])
    @pytest.mark.parametrize(("wait_num", "timeout", "is_async"), [(N, None, False), (1, None, True), (N, 1, True)])
    def test_async_is_less_than_all_or_a_timeout_and_has_a_worker_for_each_env(
        self, backend, wait_num, timeout, is_async
    ):
        with backend(counting(N), wait_num, timeout) as venv:
            assert (venv.is_async, venv.wait_num, venv.timeout) == (is_async, wait_num, timeout)
            assert venv.num_workers == (N if is_async else min(N, usable_cpus()))
            text = f", wait_num={wait_num}, timeout={venv.timeout}" if is_async else ""
            assert repr(venv) == f"{backend.__name__}(4 envs, {venv.num_workers} workers{text})"

    def test_closing_twice_is_nothing_and_all_else_is_refused_after_it(self):
        venv = DummyVectorEnv(counting(N))
        for _ in range(2):
            venv.close()
        assert venv.is_closed
        for call in (
            venv.reset,
            lambda: venv.step([0] * N),
            lambda: venv.step(None),
            lambda: venv.send([0] * N),
            venv.recv,
            venv.render,
            venv.stats,
            lambda: venv.seed(1),
            lambda: venv.set_seed(1),
            lambda: venv.get_env_attr("t"),
            lambda: venv.set_env_attr("t", 1),
            lambda: venv.call("render"),
            lambda: venv.action_space,
            lambda: venv.observation_space,
            lambda: venv.spec,
            lambda: venv.metadata,
        ):
            with pytest.raises(ClosedError, match=r"Methods of DummyVectorEnv cannot be called after close\."):
                call()

    @pytest.mark.guarantee("G9.4")
    def test_a_with_statement_closes_also_after_an_error(self):
        with pytest.raises(ZeroDivisionError), DummyVectorEnv(counting(2)) as venv:
            1 / 0  # noqa: B018
        assert venv.is_closed

    @pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
    def test_pickling_and_copying_are_refused(self, duplicate):
        with DummyVectorEnv(counting(2)) as venv, pytest.raises(TypeError, match="cannot be pickled or copied"):
            duplicate(venv)

    @pytest.mark.guarantee("G9.2")
    @pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="context switches are read from /proc")
    @pytest.mark.parametrize("make", [ShmemVectorEnv, SubprocVectorEnv])
    def test_workers_without_work_sleep(self, make):
        with make(counters(2), num_workers=2) as venv:
            venv.reset()
            venv.step([0, 0])
            workers = [psutil.Process(pid) for pid in pids(venv)]
            wait_until(lambda: all(worker.status() == psutil.STATUS_SLEEPING for worker in workers))
            before = [worker.num_ctx_switches() for worker in workers]
            sum(range(10**7))  # some time passes
            assert [worker.num_ctx_switches() for worker in workers] == before

    @pytest.mark.guarantee("G9.4")
    def test_a_vector_env_without_references_is_closed(self):
        venv = ShmemVectorEnv(counters(2), num_workers=2)
        workers = pids(venv)
        with pytest.warns(ResourceWarning, match="unclosed ShmemVectorEnv"):
            venv = gc.collect()
        assert all(gone(pid) for pid in workers)
