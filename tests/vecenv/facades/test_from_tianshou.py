"""Code that was written for tianshou works: subclasses, arguments, workers."""

from functools import partial

import numpy as np
import pytest
from gymnasium import spaces

from tests.support.backends import FULL, one_of
from tests.support.cases import BareWorker, LocalWorker, ProcessWorker, counting, custom
from vecenv import (
    BaseVectorEnv,
    ClosedError,
    DummyVectorEnv,
    ShmemVectorEnv,
    SubprocVectorEnv,
    VectorEnvWrapper,
    WorkerDiedError,
)
from vecenv.backends.shmem import ShmemBackend
from vecenv.testing import CountingEnv, ExitsOnStep, RaisesOnStep, check_vector_env
from vecenv.testing.model import ReferenceEnvs


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
    """Arguments in tianshou's positions."""

    @FULL
    def test_shared_memory_for_subprocesses(self):
        reference = ReferenceEnvs(2)
        with SubprocVectorEnv(reference.env_fns, None, None, True, "fork") as venv:
            assert isinstance(venv.engine.backend, ShmemBackend)
            reference.compare([0, 1], venv.reset(), [reference.reset(0), reference.reset(1)])
        with SubprocVectorEnv(reference.env_fns, wait_num=1, share_memory=False, context="fork") as venv:
            assert not isinstance(venv.engine.backend, ShmemBackend)

    def test_the_context_comes_after_it(self):
        for share_memory in (False, True):
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

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
    def test_a_call_reaches_the_env_or_is_refused(self):
        class Calls(ProcessWorker):
            def call(self, name, *args, **kwargs):
                return self.ask(name, *args, **kwargs)

        for worker_fn in (Calls, BareWorker):
            with BaseVectorEnv([Tuned, Tuned], worker_fn) as venv:
                assert venv.call("tune", 9) == [9, 9]
                assert venv.get_env_attr("length") == [9, 9]
        with BaseVectorEnv([Tuned], BareWorker) as venv:
            asked = []
            venv.workers[0].get_env_attr = lambda name: asked.append(name) or getattr(venv.workers[0].env, name)
            assert [venv.call("tune", length) for length in (3, 4)] == [[3], [4]]
            assert asked == ["tune"] * 3, "one more at first, to see that it is no method of a copy"
        with BaseVectorEnv([Tuned], ProcessWorker) as venv:
            with pytest.raises(TypeError, match=r"get_env_attr\('tune'\) of ProcessWorker returned a method of a copy"):
                venv.call("tune", 9)
            assert venv.call("length") == [5]

    def test_they_are_at_hand_but_those_in_other_processes(self):
        with VectorEnvWrapper(custom(counting(2))) as venv:
            assert [worker.env.unwrapped.env_id for worker in venv.workers] == [0, 1]
            assert {type(worker) for worker in venv.workers} == {LocalWorker}
        with pytest.raises(ClosedError):
            venv.workers  # noqa: B018
        with DummyVectorEnv(counting(2)) as venv:
            assert [worker.env for worker in venv.workers] == venv.envs
            venv.workers[1].env.length = 9
            assert venv.get_env_attr("length") == [5, 9]
        with ShmemVectorEnv(counting(2)) as venv, pytest.raises(AttributeError, match="reach its envs by get_env_attr"):
            venv.workers  # noqa: B018

    def test_what_is_no_worker_is_closed_like_the_others(self):
        class Half(BareWorker):
            wait = None

        made = []
        with pytest.raises(TypeError, match=r"which is not an EnvWorker: it lacks \['wait'\]"):
            BaseVectorEnv(counting(2), lambda env_fn: made.append(Half(env_fn)) or made[-1])
        assert [worker.is_closed for worker in made] == [True]


class Tuned(CountingEnv):
    def tune(self, length):
        self.length = length
        return length


class SaysSo(ProcessWorker):
    """Worker that raises vecenv's error for the end of its process."""

    def recv(self):
        try:
            return super().recv()
        except EOFError as error:
            raise WorkerDiedError(f"{self.process} has ended") from error


class Remote(ProcessWorker):
    """Worker with a remote process. Only the worker's method knows whether the process is alive."""

    def __init__(self, env_fn):
        super().__init__(env_fn)
        self.there = vars(self).pop("process")

    def is_alive(self):
        return self.there.is_alive()

    def close_env(self):
        self.process = self.there
        super().close_env()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # these tests fork
class TestCustomWorkersThatEnd:
    @pytest.mark.parametrize("worker_fn", one_of([ProcessWorker, SaysSo, Remote]))
    def test_a_reset_makes_a_new_one(self, worker_fn):
        with BaseVectorEnv([CountingEnv, partial(ExitsOnStep, 1, at=2)], worker_fn) as venv:
            venv.reset()
            venv.step([3, 4])
            old = venv.workers[1]
            with pytest.raises((EOFError, WorkerDiedError)) as caught:
                venv.step([5, 6])
            assert caught.value.partial.env_id.tolist() == [0]
            assert (venv.alive(), venv.failed_id) == ([True, False], [1])
            with pytest.raises((EOFError, WorkerDiedError)) as caught:
                venv.step([6], [1])
            assert "or reset(1), where `reset` takes ids" in "".join(caught.value.__notes__)
            obs, info = venv.reset(1)
            assert (obs.tolist(), info[0]["env_id"]) == ([[1, 0, 0, -1, -1]], 1)
            assert venv.workers[1] is not old
            assert old.is_closed
            assert (venv.alive(), venv.failed_id, venv.stats()["restarts"]) == ([True, True], [], 1)
            assert venv.step([7, 8])[0][:, [2, 4]].tolist() == [[3, 7], [1, 8]]

    @FULL
    @pytest.mark.parametrize("worker_fn", [ProcessWorker, SaysSo, Remote])
    def test_they_keep_that_part_of_the_contract(self, worker_fn):
        check_vector_env(partial(BaseVectorEnv, worker_fn=worker_fn), ["workers_that_end", "env_errors"])

    @FULL
    def test_restart_replaces_it(self):
        with BaseVectorEnv([CountingEnv, partial(ExitsOnStep, 1, at=2)], ProcessWorker, on_error="restart") as venv:
            venv.reset()
            for _ in range(2):
                venv.step([3, 4])
                _, _, _, truncated, info = venv.step([5, 6])
                assert truncated.tolist() == [False, True]
                assert info[1]["restarted"]
                obs, _ = venv.reset([0, 1])
                assert obs[:, 2].tolist() == [0, 0]
            assert venv.alive() == [True, True]
            assert venv.stats()["restarts"] == 2

    @FULL
    @pytest.mark.parametrize("worker_fn", [ProcessWorker, Remote])
    def test_one_that_ends_while_nothing_is_asked_of_it(self, worker_fn):
        with BaseVectorEnv([CountingEnv, partial(CountingEnv, 1)], worker_fn) as venv:
            venv.reset()
            process = getattr(venv.workers[1], "process", None) or venv.workers[1].there
            process.kill()
            process.join()
            assert venv.alive() == [True, False]
            assert venv.reset()[0][:, 0].tolist() == [0, 1]
            assert venv.alive() == [True, True]

    @FULL
    def test_one_that_cannot_be_made_again_is_tried_again(self):
        broken = []

        def made(env_fn):
            if broken:
                raise OSError("no room")
            return ProcessWorker(env_fn)

        with BaseVectorEnv([partial(ExitsOnStep, at=1)], made) as venv:
            venv.reset()
            with pytest.raises((EOFError, WorkerDiedError)):
                venv.step([1])
            broken.append(True)
            for _ in range(2):
                with pytest.raises(OSError, match="no room"):
                    venv.reset()
            broken.clear()
            assert venv.reset()[0][0, 2] == 0


def test_a_worker_whose_env_raises_is_not_replaced():
    with BaseVectorEnv([partial(RaisesOnStep, at=1)], BareWorker) as venv:
        venv.reset()
        (worker,) = venv.workers
        with pytest.raises(ValueError, match="boom in step"):
            venv.step([0])
        assert venv.alive() == [True]
        venv.reset()
        assert venv.workers == [worker]
