"""Code that was written for tianshou works: subclasses, arguments, workers."""

from functools import partial

import numpy as np
import pytest
from gymnasium import spaces

from tests.support.backends import one_of
from tests.support.cases import BareWorker, LocalWorker, ProcessWorker, counting, custom
from vecenv import (
    BaseVectorEnv,
    ClosedError,
    DummyVectorEnv,
    ShmemVectorEnv,
    SubprocVectorEnv,
    VectorEnvWrapper,
)
from vecenv.testing import CountingEnv, ExitsOnStep, RaisesOnStep

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # ProcessWorker forks


def test_a_cooperative_subclass_between_base_and_backend(backend):
    class Finite(BaseVectorEnv):
        def __init__(self, env_fns, **options):
            super().__init__(env_fns, **options)
            self.alive_ids = set(range(self.env_num))

        def reset(self, id=None, **kwargs):
            return super().reset([i for i in self._wrap_id(id) if i in self.alive_ids], **kwargs)

        def step(self, action, id=None):
            return super().step(action, self._wrap_id(id))

    class FiniteBackend(Finite, backend):
        pass

    with FiniteBackend(counting(3)) as venv:
        venv.alive_ids.discard(1)
        assert [row["env_id"] for row in venv.reset()[1]] == [0, 2]
        venv.alive_ids.add(1)
        venv.reset(1)
        assert venv.step([1, 2, 3])[0][:, 4].tolist() == [1, 2, 3]
        assert venv._wrap_id(np.array([2, 0])) == [2, 0]


@pytest.mark.parametrize("share_memory", one_of([True, False]))
def test_arguments_have_tianshous_positions(share_memory):
    """The class says which backend runs: with shared memory, it is ShmemVectorEnv's."""
    with SubprocVectorEnv(counting(2), None, None, share_memory, "fork") as venv:
        assert ("shmem" in type(venv.engine.backend).__module__) == share_memory
        assert venv.reset(seed=3)[0][:, 3].tolist() == [3, 4]
    with pytest.raises(ValueError, match=r"context must be one of .* got 'thread'"):
        SubprocVectorEnv(counting(2), None, None, share_memory, "thread")


# Workers.


def test_what_is_concrete_in_tianshous_worker_is_concrete_here():
    worker = BareWorker(CountingEnv)
    assert worker.action_space is worker.env.action_space
    worker.reset()
    worker.send(8)
    assert worker.recv() is worker.result
    worker.seed(5)
    other = spaces.Discrete(100, seed=5)
    assert [worker.action_space.sample() for _ in range(5)] == [other.sample() for _ in range(5)]
    assert worker.wait([worker], 1, 0.1) == [worker]
    assert not worker.is_closed
    for _ in range(2):
        worker.close()
    assert worker.is_closed


class Seeds(BareWorker):
    def seed(self, seed=None):
        super().seed(seed)
        self.env.seeded = seed


@pytest.mark.parametrize(("worker_fn", "resets"), [(BareWorker, 1), (Seeds, 0)])
def test_a_worker_without_a_seed_method_is_seeded_by_a_reset_and_another_is_not_reset(worker_fn, resets):
    with BaseVectorEnv(counting(2), worker_fn) as venv:
        venv.seed(3)
        assert venv.get_env_attr("seeded") == [3, 4]
        assert venv.get_env_attr("episode") == [resets - 1] * 2


class Tuned(CountingEnv):
    def tune(self, length):
        self.length = length
        return length


class Calls(ProcessWorker):
    def call(self, name, *args, **kwargs):
        return self.ask(name, *args, **kwargs)


def test_a_call_reaches_the_env_or_is_refused():
    for worker_fn in (Calls, BareWorker):
        with BaseVectorEnv([Tuned, Tuned], worker_fn) as venv:
            assert venv.call("tune", 9) == [9, 9]
            assert venv.get_env_attr("length") == [9, 9]
    with BaseVectorEnv([Tuned], ProcessWorker) as venv:
        with pytest.raises(TypeError, match=r"get_env_attr\('tune'\) of ProcessWorker returned a method of a copy"):
            venv.call("tune", 9)
        assert venv.call("length") == [5]


def test_workers_are_at_hand_unless_they_are_in_other_processes():
    with VectorEnvWrapper(custom(counting(2))) as venv:
        assert [worker.env.unwrapped.env_id for worker in venv.workers] == [0, 1]
        assert {type(worker) for worker in venv.workers} == {LocalWorker}
    with pytest.raises(ClosedError):
        venv.workers  # noqa: B018
    with DummyVectorEnv(counting(2)) as venv:
        assert [worker.env for worker in venv.workers] == venv.envs
    with ShmemVectorEnv(counting(2)) as venv, pytest.raises(AttributeError, match="reach its envs by get_env_attr"):
        venv.workers  # noqa: B018


def test_an_object_that_is_not_a_worker_is_closed_like_the_others():
    class Half(BareWorker):
        wait = None

    made = []
    with pytest.raises(TypeError, match=r"which is not an EnvWorker: it lacks \['wait'\]"):
        BaseVectorEnv(counting(2), lambda env_fn: made.append(Half(env_fn)) or made[-1])
    assert [worker.is_closed for worker in made] == [True]


def test_a_worker_whose_env_raises_is_not_replaced():
    with BaseVectorEnv([partial(RaisesOnStep, at=1)], BareWorker) as venv:
        venv.reset()
        (worker,) = venv.workers
        with pytest.raises(ValueError, match="boom in step"):
            venv.step([0])
        assert venv.alive() == [True]
        venv.reset()
        assert venv.workers == [worker]


# Workers that end.


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


@pytest.mark.parametrize("worker_fn", one_of([ProcessWorker, Remote]))
def test_a_reset_makes_a_new_worker_in_place_of_one_that_has_ended(worker_fn):
    """In a step, and while it is idle. If there is no room for the new one, the next reset tries again."""
    has_room = [True]

    def make(env_fn):
        if not has_room[0]:
            raise OSError("no room")
        return worker_fn(env_fn)

    with BaseVectorEnv([CountingEnv, partial(ExitsOnStep, 1, at=2)], make) as venv:
        venv.reset()
        venv.step([3, 4])
        old = venv.workers[1]
        with pytest.raises(EOFError) as caught:
            venv.step([5, 6])
        assert caught.value.partial.env_id.tolist() == [0]
        assert (venv.alive(), venv.failed_id) == ([True, False], [1])
        with pytest.raises(EOFError) as caught:
            venv.step([6], [1])
        assert "or reset(1), where `reset` takes ids" in "".join(caught.value.__notes__)
        has_room[0] = False
        for _ in range(2):
            with pytest.raises(OSError, match="no room"):
                venv.reset(1)
        has_room[0] = True
        obs, info = venv.reset(1)
        assert (obs.tolist(), info[0]["env_id"]) == ([[1, 0, 0, -1, -1]], 1)
        assert venv.workers[1] is not old
        assert old.is_closed
        assert (venv.alive(), venv.failed_id, venv.stats()["restarts"]) == ([True, True], [], 1)
        assert venv.step([7, 8])[0][:, [2, 4]].tolist() == [[3, 7], [1, 8]]
        process = getattr(venv.workers[1], "process", None) or venv.workers[1].there
        process.kill()
        process.join()
        assert venv.alive() == [True, False]
        assert venv.reset()[0][:, 0].tolist() == [0, 1]
        assert venv.alive() == [True, True]
