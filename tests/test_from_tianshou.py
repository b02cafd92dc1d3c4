"""Code that was written for tianshou: its subclasses, its arguments, its workers."""

import numpy as np
import pytest
from cases import BareWorker, LocalWorker, counting, custom
from gymnasium import spaces
from test_actions import TestRowsBelongToTheEnvs as RowsBelongToTheEnvs

from vecenv import BaseVectorEnv, ClosedError, DummyVectorEnv, SubprocVectorEnv, VectorEnvWrapper
from vecenv.backends.shmem import ShmemBackend
from vecenv.testing import CountingEnv
from vecenv.testing.model import Twins


class TestSubclassing:
    """Cooperative subclasses."""

    def test_a_mixin_between_base_and_backend(self, backend):
        class Finite(BaseVectorEnv):
            def __init__(self, env_fns, **options):
                super().__init__(env_fns, **options)
                self.alive_ids = set(range(self.env_num))

            def reset(self, id=None, **kwargs):
                ids = [i for i in self._wrap_id(id) if i in self.alive_ids]
                return super().reset(ids, **kwargs)

            def step(self, action, id=None):
                ids = self._wrap_id(id)
                return super().step(action, ids)

        class FiniteBackend(Finite, backend):
            pass

        with FiniteBackend(counting(3)) as venv:
            assert isinstance(venv, BaseVectorEnv)
            venv.alive_ids.discard(1)
            assert [row["env_id"] for row in venv.reset()[1]] == [0, 2]
            venv.alive_ids.add(1)
            venv.reset(1)
            assert venv.step([1, 2, 3])[0][:, 4].tolist() == [1, 2, 3]
            assert venv._wrap_id(np.array([2, 0])) == [2, 0]
            assert venv._wrap_id() == [0, 1, 2]


class TestArguments:
    """Where tianshou has them."""

    def test_shared_memory_for_subprocesses(self):
        twins = Twins(2)
        with SubprocVectorEnv(twins.env_fns, None, None, True, "fork") as venv:
            assert isinstance(venv.engine.backend, ShmemBackend)
            twins.compare([0, 1], venv.reset(), [twins.reset(0), twins.reset(1)])
        with SubprocVectorEnv(twins.env_fns, wait_num=1, share_memory=False, context="fork") as venv:
            assert not isinstance(venv.engine.backend, ShmemBackend)

    @pytest.mark.parametrize("share_memory", [False, True])
    def test_the_context_comes_after_it(self, share_memory):
        with pytest.raises(ValueError, match=r"context must be one of .* got 'thread'"):
            SubprocVectorEnv(counting(2), None, None, share_memory, "thread")


class TestCustomWorkers:
    def test_what_is_concrete_in_tianshou_is_concrete_here(self):
        worker = BareWorker(CountingEnv)
        assert worker._env_fn is CountingEnv
        assert worker.action_space is worker.env.action_space
        assert not worker.is_closed
        assert worker.reset(seed=3)[0].tolist() == [0, 0, 0, 3, -1]
        assert worker.step(7)[0].tolist() == [0, 0, 1, 3, 7]
        worker.send(8)
        assert worker.recv() is worker.result
        worker.seed(5)
        other = spaces.Discrete(100)
        other.seed(5)
        assert [worker.action_space.sample() for _ in range(5)] == [other.sample() for _ in range(5)]
        assert worker.wait([worker], 1, 0.1) == [worker]
        worker.close()
        worker.close()
        assert worker.is_closed

    def test_a_worker_without_a_seed_of_its_own_is_seeded_by_a_reset(self):
        with BaseVectorEnv(counting(2), BareWorker) as venv:
            assert venv.seed(3) == [3, 4]
            assert venv.get_env_attr("seeded") == [3, 4]
            assert venv.step([1, 2])[0][:, 1:4].tolist() == [[0, 1, 3], [0, 1, 4]]

    def test_one_with_its_own_is_not_reset(self):
        class Seeds(BareWorker):
            def seed(self, seed=None):
                super().seed(seed)
                self.env.seeded = seed

        with BaseVectorEnv(counting(2), Seeds) as venv:
            venv.seed(3)
            assert venv.get_env_attr("seeded") == [3, 4]
            assert venv.get_env_attr("calls") == [0, 0]

    def test_they_are_at_hand(self):
        with VectorEnvWrapper(custom(counting(2))) as venv:
            assert [worker.env.unwrapped.env_id for worker in venv.workers] == [0, 1]
            assert {type(worker) for worker in venv.workers} == {LocalWorker}
        with pytest.raises(ClosedError):
            venv.workers  # noqa: B018

    def test_worker_processes_are_not(self, process_backend):
        with (
            process_backend(counting(2)) as venv,
            pytest.raises(AttributeError, match="reach its envs by get_env_attr"),
        ):
            venv.workers  # noqa: B018

    def test_the_workers_of_dummy_have_the_envs(self):
        with DummyVectorEnv(counting(2)) as venv:
            assert [worker.env for worker in venv.workers] == venv.envs
            venv.workers[1].env.length = 9
            assert venv.get_env_attr("length") == [5, 9]

    def test_what_is_no_worker_is_closed_like_the_others(self):
        class Half(BareWorker):
            wait = None

        made = []
        with pytest.raises(TypeError, match=r"which is no EnvWorker: it lacks \['wait'\]"):
            BaseVectorEnv(counting(2), lambda env_fn: made.append(Half(env_fn)) or made[-1])
        assert [worker.is_closed for worker in made] == [True]


class TestRowsBelongToTheEnvsOfCustomWorkers(RowsBelongToTheEnvs):
    """What holds for every backend holds for them."""

    @pytest.fixture
    def backend(self):
        return custom
