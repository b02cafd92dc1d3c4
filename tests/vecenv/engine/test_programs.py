"""Random programs on a vector env, against a plain loop over the same envs. Also real envs against gymnasium."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from tests.fuzz.driver import run
from tests.fuzz.engine import Fuzz
from tests.support.backends import BACKENDS, FULL, RAY
from tests.support.cases import TAXI, equal_bits
from tests.support.coroutine_envs import CoroutineVectorEnv
from vecenv import DummyVectorEnv, RayVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv, nest
from vecenv.testing import Gates
from vecenv.testing.model import ReferenceEnvs


@pytest.mark.guarantee(
    "G2.1", "G2.2", "G2.3", "G2.4", "G2.9", "G3.1", "G3.2", "G3.6", "G4.1", "G5.1", "G5.3", "G6.1", "G6.2", "G6.4",
    "G7.1", "G7.2", "G7.3", "G7.4", "G7.5", "G8.3", "G8.5", "G8.9", "G8.13",
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", [*BACKENDS, pytest.param(CoroutineVectorEnv, marks=FULL)])
def test_random_programs_return_what_a_loop_over_the_envs_returns(backend):
    """All calls of a vector env in all their forms, with failures, dead workers and replaced workers."""
    run(type(backend.__name__, (Fuzz,), {"backend": backend}), [0], count=30)


@pytest.mark.guarantee("G2.7")
@pytest.mark.parametrize(
    ("backend", "seeds"),
    [
        (ShmemVectorEnv, 6),
        *(pytest.param(cls, 20, marks=FULL) for cls in (SubprocVectorEnv, ThreadVectorEnv)),
        pytest.param(RayVectorEnv, 4, marks=RAY),
    ],
)
def test_rounds_in_flight_agree_with_the_model(backend, seeds):
    """Gates open in random order, so the test knows which envs a call returns."""
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        n, options = int(rng.integers(2, 5)), {"form": ["array", "dict"][seed % 2], "length": 3}
        wait_num = int(rng.integers(1, n + 1))
        with Gates(n, **options) as gates, backend(gates.env_fns, wait_num=wait_num) as venv:
            waiting = random_rounds(venv, gates, ReferenceEnvs(n, **options), rng)
            gates.open(*waiting)


def random_rounds(venv, gates, reference, rng, turns=40):
    """Send, receive and reset some envs. Return the envs in flight, with their expected answers."""
    waiting = {}  # in the order of sending
    if not venv.is_async:  # if the call waits for all envs in flight
        gates.open(times=2 * turns)
    let_through = gates.open if venv.is_async else lambda *ids: None

    def some(ids):
        return rng.permutation(ids)[: rng.integers(1, len(ids) + 1)].tolist()

    for turn in range(turns):
        ready = [i for i in range(len(venv)) if i not in waiting]
        assert (venv.ready_id, venv.waiting_id, venv.failed_id) == (ready, sorted(waiting), [])
        kind = rng.choice(["send", "send", "receive", "receive", "reset"])
        if kind == "receive" and waiting:
            ids = sorted(rng.permutation(list(waiting))[: venv.wait_num].tolist()) if venv.is_async else list(waiting)
            let_through(*ids)
            reference.compare(ids, venv.recv(), [waiting.pop(i) for i in ids])
        elif kind == "reset" and ready:
            ids = some(ready)
            let_through(*ids)
            reference.compare(ids, venv.reset(ids, seed=turn), [reference.reset(i, seed=turn + i) for i in ids])
        elif kind == "send" and ready:
            ids = some(ready)
            resets = [i for i in ids if rng.random() < 0.3]
            venv.send([turn] * len(ids), ids, reset=resets)
            waiting |= {i: reference.reset(i) if i in resets else reference.step(i, turn) for i in ids}
        for i in list(waiting)[:1]:
            with pytest.raises(RuntimeError, match=f"environment {i} which is stepping"):
                venv.reset(i)
    return waiting


@pytest.mark.guarantee("G1.1")
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0", TAXI, "Blackjack-v1"])
def test_real_envs_do_what_gymnasium_sync_vector_env_does(env_id):
    env_fns, done = [lambda: gymnasium.make(env_id, max_episode_steps=25)] * 3, np.zeros(3, np.bool_)
    peer = SyncVectorEnv(env_fns)
    peer.action_space.seed(1)
    with DummyVectorEnv(env_fns) as venv:
        got, want = venv.reset(seed=11)[0], peer.reset(seed=11)[0]
        for _ in range(60):
            assert all(map(equal_bits, nest.leaves(got), nest.leaves(want)))
            action = peer.action_space.sample()
            got, want = venv.step(action, reset=done)[:4], peer.step(action)[:4]
            done = got[2] | got[3]
    peer.close()
