"""The contract of a vector env: stepping, ids, results, life. Every test runs on every backend."""

import copy
import functools
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
from cases import Records, counting, custom
from gymnasium import spaces

from tests.backends import BACKENDS, RAY, and_ray
from tests.local_ray import FAR, NEAR
from vecenv import ClosedError, DummyVectorEnv, RayVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv
from vecenv.testing import CountingEnv
from vecenv.testing.model import Twins

backend = and_ray(BACKENDS)

N = 4


ARRANGEMENTS = {
    "dummy": DummyVectorEnv,
    "custom workers": custom,
    **{
        f"{cls.__name__} {workers} workers": functools.partial(cls, num_workers=workers)
        for cls in (SubprocVectorEnv, ShmemVectorEnv, ThreadVectorEnv)
        for workers in (1, 3, N)
    },
}
ON_RAY = {
    f"RayVectorEnv {place} {workers} workers": pytest.param(
        functools.partial(RayVectorEnv, num_workers=workers, **where), marks=RAY
    )
    for place, where, workers in (("near", NEAR, 3), ("far", FAR, 3), ("both", {}, N))
}


@pytest.fixture(params=[*ARRANGEMENTS.values(), *ON_RAY.values()], ids=[*ARRANGEMENTS, *ON_RAY])
def make(request):
    """Makes a vector env: each backend, with several numbers of workers, and workers of a user's own."""
    return request.param


class TestStepping:
    def test_rows_are_those_of_the_ids_in_their_order(self, make):
        twins = Twins(N)
        with make(twins.env_fns) as venv:
            twins.compare(range(N), venv.reset(), [twins.reset(i) for i in range(N)])
            twins.compare(range(N), venv.step([9, 8, 7, 6]), [twins.step(i, 9 - i) for i in range(N)])
            for ids in ([2], [3, 1], [0, 3, 2], [1, 0, 3, 2]):
                twins.compare(ids, venv.step([i + 20 for i in ids], ids), [twins.step(i, i + 20) for i in ids])
                back = ids[::-1]
                twins.compare(back, venv.reset(back), [twins.reset(i) for i in back])

    @pytest.mark.parametrize(
        ("ids", "meant"),
        [
            (2, [2]),
            (np.int64(2), [2]),
            (np.array(2), [2]),
            ([3, 0], [3, 0]),
            ((3, 0), [3, 0]),
            (range(1, 3), [1, 2]),
            (np.array([3, 0]), [3, 0]),
            (np.array([1, 2], dtype=np.uint8), [1, 2]),
            (np.array([False, True, False, True]), [1, 3]),
            ([True, False, False, True], [0, 3]),
            (None, [0, 1, 2, 3]),
        ],
        ids=repr,
    )
    def test_ids_may_be_an_int_a_list_an_array_or_a_mask(self, backend, ids, meant):
        with backend(counting(N), num_workers=2) as venv:
            _, info = venv.reset(ids)
            assert [row["env_id"] for row in info] == meant
            for info in (venv.step([0] * len(meant), ids)[4], venv.step([0] * len(meant), env_id=ids)[4]):
                assert [row["env_id"] for row in info] == meant
            assert [row["env_id"] for row in venv.reset(env_id=ids)[1]] == meant
            assert venv.get_env_attr("env_id", ids) == meant

    def test_both_names_of_the_ids_at_once_are_refused(self, backend):
        with backend(counting(2)) as venv, pytest.raises(TypeError, match="two names of one argument"):
            venv.reset(0, env_id=1)

    def test_there_is_no_autoreset(self, make):
        twins = Twins(2, length=2)
        with make(twins.env_fns, **({} if make in (DummyVectorEnv, custom) else {"num_workers": 1})) as venv:
            twins.compare([0, 1], venv.reset(), [twins.reset(i) for i in (0, 1)])
            for _ in range(3):
                result = venv.step([1, 2])
                twins.compare([0, 1], result, [twins.step(0, 1), twins.step(1, 2)])
            assert result[2].all()

    def test_terminated_and_truncated_are_reported_apart(self, backend):
        with backend(counting(2, length=1)) as venv:
            venv.reset()
            venv.reset(1)
            _, _, terminated, truncated, _ = venv.step([0, 0])
            assert terminated.tolist() == [True, False]
            assert truncated.tolist() == [False, True]

    def test_the_loop_of_the_docstring_collects_whole_episodes(self, make):
        twins = Twins(N, length=3)
        with make(twins.env_fns) as venv:
            obs, _ = venv.reset()
            for _ in range(10):
                obs, _, terminated, truncated, info = venv.step(np.zeros(N, np.int64))
                done = terminated | truncated
                if done.any():
                    obs[done], info[done] = venv.reset(done)
            assert obs[:, :3].tolist() == [[i, 3, 1] for i in range(N)]


class TestSendAndRecv:
    def test_step_is_send_and_recv(self, make):
        twins = Twins(N)
        with make(twins.env_fns) as venv:
            twins.compare(range(N), venv.reset(), [twins.reset(i) for i in range(N)])
            assert venv.send([1, 2, 3, 4]) is None
            assert venv.waiting_id == list(range(N))
            assert venv.ready_id == []
            twins.compare(range(N), venv.recv(), [twins.step(i, i + 1) for i in range(N)])
            assert venv.ready_id == list(range(N))
            assert venv.waiting_id == []

    def test_what_was_sent_in_parts_comes_back_in_the_order_of_sending(self, make):
        twins = Twins(N)
        with make(twins.env_fns) as venv:
            venv.reset()
            for i in range(N):
                twins.reset(i)
            venv.send([5, 6], [3, 0])
            venv.send([7], [1])
            assert venv.waiting_id == [0, 1, 3]
            assert venv.ready_id == [2]
            twins.compare([3, 0, 1], venv.recv(), [twins.step(3, 5), twins.step(0, 6), twins.step(1, 7)])

    def test_a_reset_does_not_disturb_what_is_in_flight(self, make):
        twins = Twins(N)
        with make(twins.env_fns) as venv:
            venv.reset()
            for i in range(N):
                twins.reset(i)
            venv.send([5, 6], [3, 0])
            twins.compare([2], venv.reset(2), [twins.reset(2)])
            twins.compare([3, 0], venv.step(None), [twins.step(3, 5), twins.step(0, 6)])

    def test_resets_travel_with_steps(self, make):
        twins = Twins(N)
        with make(twins.env_fns) as venv:
            venv.reset()
            for i in range(N):
                twins.reset(i)
            result = venv.step([1, 2, 3, 4], reset=[2, 0])
            twins.compare(range(N), result, [twins.reset(0), twins.step(1, 2), twins.reset(2), twins.step(3, 4)])
            mask = np.array([True, False, False, False])
            twins.compare([1, 0], venv.step([8, 9], [1, 0], reset=mask), [twins.step(1, 8), twins.reset(0)])
            venv.send([1, 2], [2, 3], reset=[3], seed=40, options={"t": 2})
            twins.compare([2, 3], venv.recv(), [twins.step(2, 1), twins.reset(3, seed=43, options={"t": 2})])
            none = np.zeros(N, np.bool_)
            twins.compare(range(N), venv.step([0] * N, reset=none), [twins.step(i, 0) for i in range(N)])

    def test_a_round_of_resets_alone(self, make):
        twins = Twins(N)
        with make(twins.env_fns) as venv:
            venv.send(None, reset=[3, 1], seed=[30, 10])
            assert venv.waiting_id == [1, 3]
            twins.compare([3, 1], venv.recv(), [twins.reset(3, seed=30), twins.reset(1, seed=10)])
            result = venv.step(None, reset=[True, False, False, False])
            twins.compare([0], result, [twins.reset(0)])

    def test_actions_of_envs_that_are_reset_are_ignored(self, backend):
        with backend(counting(2), check_actions=True) as venv:
            venv.reset()
            obs = venv.step([1, -5], reset=[1])[0]
            assert obs[:, 1:3].tolist() == [[0, 1], [1, 0]]

    def test_actions_of_envs_that_are_reset_need_not_travel(self, backend):
        with backend([lambda: Records(spaces.Text(3))] * 2) as venv:
            venv.reset()
            venv.step([threading.Lock(), "a"], reset=[0])
            assert venv.get_env_attr("actions") == [[], ["a"]]


class TestResults:
    def test_dtypes_and_shapes(self, make):
        with make(counting(N)) as venv:
            obs, info = venv.reset()
            assert (obs.dtype, obs.shape) == (np.int64, (N, 5))
            assert (info.dtype, info.shape) == (object, (N,))
            for k, ids in ((N, None), (2, [1, 3]), (1, 0)):
                obs, rew, terminated, truncated, info = venv.step([0] * k, ids)
                shapes = [(array.dtype, array.shape) for array in (obs, rew, terminated, truncated, info)]
                kinds = [np.int64, np.float64, np.bool_, np.bool_, object]
                assert shapes == [(np.dtype(kind), (k, 5) if kind is np.int64 else (k,)) for kind in kinds]

    def test_infos_have_the_env_id_and_the_envs_own_dict_is_untouched(self, make):
        with make(counting(N)) as venv:
            _, info = venv.reset()
            assert info.tolist() == [{"episode": 0, "env_id": i} for i in range(N)]
            assert venv.get_env_attr("own_info") == [{"episode": 0}] * N
            info = venv.step([0, 0], [3, 2])[4]
            assert info.tolist() == [{"t": 1, "env_id": 3}, {"t": 1, "env_id": 2}]
            assert all(type(row["env_id"]) is int for row in info)
            info[0]["t"] = "changed by the caller"
            assert venv.get_env_attr("own_info", [3, 2]) == [{"t": 1}] * 2

    @pytest.mark.parametrize("form", ["array", "dict", "object"])
    def test_what_was_returned_never_changes(self, make, form):
        with make(counting(N, form=form, length=3)) as venv:
            kept = []
            for turn in range(6):
                obs, _ = venv.reset([turn % N, (turn + 1) % N])
                results = (obs, *venv.step(np.arange(N))[:4], *venv.step([1, 2], [2, 0])[:4])
                kept += [(leaf, copy.deepcopy(leaf)) for result in results for leaf in arrays_of(result)]
                for array, then in kept:
                    assert np.array_equal(array, then)

    def test_an_array_in_an_info_never_changes_either(self, backend):
        class Live(CountingEnv):
            def step(self, action):
                *row, _ = super().step(action)
                self.state = getattr(self, "state", np.zeros(1))
                self.state += 1
                return (*row, {"state": self.state, "deep": [{"state": self.state}]})

        with backend([Live]) as venv:
            venv.reset()
            info = venv.step([0])[4][0]
            venv.step([0])
            assert (info["state"].tolist(), info["deep"][0]["state"].tolist()) == ([1], [1])

    def test_views_on_request_are_valid_until_the_next_call(self, backend):
        with backend(counting(2), copy=False) as venv:
            first, _ = venv.reset()
            assert first[:, 2].tolist() == [0, 0]
            second = venv.step([0, 0])[0]
            assert np.shares_memory(first, second)
            assert second[:, 2].tolist() == [1, 1]
            part = venv.step([0], [1])[0]
            assert not np.shares_memory(part, second)

    @pytest.mark.parametrize("workers", [1, 2])
    def test_unstacked_observations_are_one_dict_an_env(self, backend, workers):
        twins = Twins(2, form="dict")
        with backend(twins.env_fns, stack_obs=False, num_workers=workers) as venv:
            first, _ = venv.reset()
            assert (first.dtype, first.shape) == (object, (2,))
            want = twins.reset(1)[0]
            assert first[1]["who"] == 1
            assert np.array_equal(first[1]["when"][0], want["when"][0])
            assert first[1]["when"][1].dtype == np.float32
            venv.step([3, 3])
            assert first[1]["when"][0].tolist() == [0, 0, -1, -1]

    def test_dict_observations_are_a_dict_of_batches(self, make):
        with make(counting(N, form="dict")) as venv:
            obs, _ = venv.reset()
            assert list(obs) == list(venv.observation_space[0].spaces)
            assert obs["who"].tolist() == list(range(N))
            assert isinstance(obs["when"], tuple)
            assert [leaf.shape for leaf in obs["when"]] == [(N, 4), (N, 2, 3)]


class TestLife:
    def test_numbers_and_names(self, backend):
        with backend(counting(N), num_workers=2) as venv:
            assert (len(venv), venv.env_num, venv.num_envs) == (N, N, N)
            assert venv.num_workers == (1 if backend is DummyVectorEnv else 2)
            assert (venv.ready_id, venv.waiting_id, venv.failed_id) == ([0, 1, 2, 3], [], [])
            assert (venv.is_async, venv.wait_num, venv.timeout, venv.is_closed) == (False, N, None, False)
            assert venv.alive() == [True] * N
            assert repr(venv) == f"{backend.__name__}(4 envs, {venv.num_workers} workers)"
        assert venv.is_closed
        assert repr(venv).endswith(", closed)")

    @pytest.mark.parametrize(("wait_num", "timeout", "is_async"), [(N, None, False), (1, None, True), (N, 1, True)])
    def test_async_is_less_than_all_or_a_timeout(self, backend, wait_num, timeout, is_async):
        with backend(counting(N), wait_num, timeout) as venv:
            assert venv.is_async is is_async
            assert (venv.wait_num, venv.timeout) == (wait_num, timeout)
            if is_async and backend is not DummyVectorEnv:
                assert venv.num_workers == N
                assert (
                    repr(venv) == f"{backend.__name__}(4 envs, 4 workers, wait_num={wait_num}, timeout={venv.timeout})"
                )

    def test_the_default_number_of_workers_is_that_of_the_usable_cpus(self, waiting_backend):
        from vecenv.backends.system_limits import usable_cpus

        with waiting_backend(counting(3)) as venv:
            assert venv.num_workers == min(3, usable_cpus())

    def test_closing_twice_is_nothing_and_all_else_is_refused_after_it(self, make):
        venv = make(counting(N))
        venv.reset()
        venv.close()
        venv.close()
        assert venv.is_closed
        assert len(venv) == N
        calls = [
            venv.reset,
            lambda: venv.step([0] * N),
            lambda: venv.step(None),
            lambda: venv.send([0] * N),
            venv.recv,
            venv.render,
            lambda: venv.seed(1),
            lambda: venv.set_seed(1),
            lambda: venv.get_env_attr("t"),
            lambda: venv.set_env_attr("t", 1),
            lambda: venv.call("render"),
            lambda: venv.action_space,
            lambda: venv.observation_space,
            lambda: venv.spec,
            lambda: venv.metadata,
        ]
        text = f"Methods of {type(venv).__name__} cannot be called after close."
        for call in calls:
            with pytest.raises(ClosedError, match=text):
                call()

    def test_closing_with_steps_in_flight(self, make):
        venv = make(counting(N))
        venv.reset()
        venv.send([0] * N)
        venv.close()
        assert venv.is_closed

    def test_a_with_statement_closes_also_after_an_error(self, backend):
        with pytest.raises(ZeroDivisionError), backend(counting(2)) as venv:
            1 / 0  # noqa: B018
        assert venv.is_closed

    @pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
    def test_pickling_and_copying_are_refused(self, backend, duplicate):
        with backend(counting(2)) as venv, pytest.raises(TypeError, match="cannot be pickled or copied"):
            duplicate(venv)

    def test_each_env_fn_is_called_once(self, make, tmp_path):
        def noted(i):
            Path(tmp_path, f"{i}-{threading.get_ident()}-{len(list(tmp_path.iterdir()))}").touch()
            return CountingEnv(i)

        with make([functools.partial(noted, i) for i in range(N)]) as venv:
            venv.reset()
            venv.seed(0)
            venv.action_space  # noqa: B018
        assert sorted(path.name[0] for path in tmp_path.iterdir()) == ["0", "1", "2", "3"]

    def test_stats_count_what_was_done(self, backend):
        with backend(counting(3), num_workers=2) as venv:
            venv.reset()
            venv.step([0, 0, 0])
            venv.step([0, 0], [2, 1])
            venv.step([0, 0, 0], reset=[1])
            venv.step(np.zeros(3, np.int64), reset=np.array([True, False, True]))
            stats = venv.stats()
            assert (stats["rounds"], stats["steps"], stats["resets"]) == (5, 3 + 2 + 2 + 1, 3 + 1 + 2)
            assert len(stats["worker_busy_s"]) == venv.num_workers
            assert stats["slowest_worker"] == int(np.argmax(stats["worker_busy_s"]))
            assert min(stats["worker_busy_s"]) > 0
            assert (stats["restarts"], stats["absorbed"]) == (0, 0)
            assert stats["dispatch_s"] > 0


def arrays_of(tree):
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, tuple) else None
    return [tree] if parts is None else [leaf for part in parts for leaf in arrays_of(part)]
