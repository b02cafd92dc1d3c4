"""Details of results and of the life of a vector env. Random programs and `check_vector_env` test all backends."""

import copy
import pickle
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.support.backends import full
from tests.support.cases import counting
from tests.support.faulty import counters
from tests.support.ledger import pids, wait_until
from vecenv import ClosedError, DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv
from vecenv.testing import CountingEnv

N = 4


@pytest.mark.guarantee("G6.2")
def test_the_seeds_of_a_mask_follow_ascending_ids():
    mask = np.array([False, True, False, True])
    with DummyVectorEnv(counting(N)) as venv:
        assert venv.reset(mask, seed=[10, 30])[0][:, 3].tolist() == [10, 30]
        venv.send([0, 0], [3, 1], reset=np.array([False, True, False, True]), seed=[11, 31])
        assert venv.recv()[0][:, [0, 3]].tolist() == [[3, 31], [1, 11]]
        assert venv.step(None, reset=mask)[0][:, 0].tolist() == [1, 3]
        assert venv.step([0] * N, reset=np.zeros(N, bool))[0][:, 2].tolist() == [1, 1, 1, 1]


@pytest.mark.guarantee("G6.3")
def test_set_seed_seeds_the_envs_with_a_chain_and_returns_the_next_seed():
    """The numbers are those of TorchRL."""
    with DummyVectorEnv(counting(3)) as venv:
        assert venv.set_seed(0) == 2309840538
        assert venv.get_env_attr("seeded") == [0, 795726461, 2841183792]
        assert venv.set_seed(1) != venv.set_seed(10) == 3288080526


@pytest.mark.guarantee("G3.2")
def test_without_stack_obs_each_env_has_a_dict_and_arrays_are_stacked():
    """Random programs compare the values on all backends."""
    with DummyVectorEnv(counting(2, form="dict"), stack_obs=False) as venv:
        obs, _ = venv.reset()
        assert (obs.dtype, obs.shape) == (object, (2,))
        assert [(type(one), type(one["when"]), one["who"]) for one in obs] == [(dict, tuple, 0), (dict, tuple, 1)]
    with DummyVectorEnv(counting(2), stack_obs=False) as venv:
        assert (venv.reset()[0].shape, venv.step([0, 0])[0].dtype) == ((2, 5), np.int64)


@pytest.mark.guarantee("G4.2")
def test_views_on_request_are_valid_until_the_next_call():
    with DummyVectorEnv(counting(2), copy=False) as venv:
        first, _ = venv.reset()
        assert first[:, 2].tolist() == [0, 0]
        second = venv.step([0, 0])[0]
        assert np.shares_memory(first, second)
        assert second[:, 2].tolist() == [1, 1]
        assert not np.shares_memory(venv.step([0], [1])[0], second)


@pytest.mark.guarantee("G4.6")
def test_an_object_in_an_info_may_be_the_envs_own_but_containers_are_copies():
    class Shows(CountingEnv):
        own = {"list": [0], "object": Path("a")}

        def step(self, action):
            return *super().step(action)[:4], self.own

    with DummyVectorEnv([Shows]) as venv:
        venv.reset()
        info = venv.step([0])[4][0]
        assert (info["list"], info["list"] is Shows.own["list"]) == ([0], False)
        assert info["object"] is Shows.own["object"]


@pytest.mark.parametrize(("wait_num", "timeout"), [(None, None), (N, None), (1, None), (None, 1)])
def test_numbers_and_names(wait_num, timeout):
    """An async vector env has a worker per env."""
    is_async = wait_num == 1 or timeout is not None
    with ThreadVectorEnv(counting(N), wait_num, timeout) as venv:
        assert (venv.is_async, venv.wait_num, venv.timeout) == (is_async, wait_num or N, timeout)
        assert (venv.ready_id, venv.waiting_id, venv.failed_id, venv.is_closed) == ([0, 1, 2, 3], [], [], False)
        assert venv.num_workers == N if is_async else venv.num_workers <= N
        assert venv.alive() == [True] * N
        text = f", wait_num={venv.wait_num}, timeout={venv.timeout}" if is_async else ""
        assert repr(venv) == f"ThreadVectorEnv(4 envs, {venv.num_workers} workers{text})"
    assert repr(venv).endswith(", closed)")


@pytest.mark.guarantee("G9.4")
def test_a_with_statement_closes_also_after_an_error_and_all_calls_are_refused_then():
    with pytest.raises(ZeroDivisionError), DummyVectorEnv(counting(N)) as venv:
        1 / 0  # noqa: B018
    venv.close()
    assert venv.is_closed
    for call in (
        venv.reset,
        lambda: venv.step([0] * N),
        venv.recv,
        venv.render,
        venv.stats,
        lambda: venv.seed(1),
        lambda: venv.get_env_attr("t"),
        lambda: venv.set_env_attr("t", 1),
        lambda: venv.call("render"),
        lambda: venv.action_space,
        lambda: venv.metadata,
    ):
        with pytest.raises(ClosedError, match=r"Methods of DummyVectorEnv cannot be called after close\."):
            call()


def test_pickling_and_copying_are_refused():
    with DummyVectorEnv(counting(2)) as venv:
        for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot be pickled or copied"):
                duplicate(venv)


@pytest.mark.guarantee("G9.2")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="context switches are read from /proc")
@pytest.mark.parametrize("make", [ShmemVectorEnv, *full([SubprocVectorEnv])])
def test_workers_without_work_sleep(make):
    with make(counters(2), num_workers=2) as venv:
        venv.reset()
        venv.step([0, 0])
        workers = [psutil.Process(pid) for pid in pids(venv)]
        wait_until(lambda: all(worker.status() == psutil.STATUS_SLEEPING for worker in workers))
        before = [worker.num_ctx_switches() for worker in workers]
        sum(range(10**7))  # some time passes
        assert [worker.num_ctx_switches() for worker in workers] == before
