"""EnvPool's pools as vector envs, without crashes, hangs and steps of finished envs.

By default the tests use a double of EnvPool. The slow tier uses the package (740 MB), which `make test-slow` installs.
Random programs use the double (tests/fuzz/pools.py). tests/messages/envs.py has the errors.
"""

import subprocess
import sys

import numpy as np
import pytest

from tests.fuzz import pools
from tests.fuzz.driver import run as run_programs
from tests.support.backends import FULL
from tests.support.interrupts import interrupted_at
from tests.support.paths import ROOT
from tests.support.pool_double import MISSING, PoolDouble, real_pool
from vecenv import (
    BaseVectorEnv,
    ClosedError,
    DummyVectorEnv,
    EnvPoolVectorEnv,
    GymnasiumVectorEnv,
    MultiThreadedEnv,
)
from vecenv import MultiThreadedEnvWrapper as Wrapper
from vecenv.testing import CountingEnv


@pytest.fixture(params=[PoolDouble.make, pytest.param(real_pool, marks=pytest.mark.slow)], ids=["double", "envpool"])
def make(request):
    """Return a function that makes pools of short episodes with arguments of `envpool.make`."""
    yield request.param
    PoolDouble.made.clear()


def elapsed(info):
    return [row["elapsed_step"] for row in info]


def ids_of(info):
    return [row["env_id"] for row in info]


@pytest.mark.filterwarnings("ignore")
def test_rows_are_those_of_the_same_envs_one_by_one():
    run_programs(pools.Fuzz, [0], count=15)


def test_results_are_those_of_every_vector_env(make):
    with EnvPoolVectorEnv(make(3, seed=1)) as venv:
        assert isinstance(venv, BaseVectorEnv)
        assert (len(venv), venv.num_envs, venv.is_async) == (3, 3, False)
        obs, info = venv.reset()
        assert (obs.shape, obs.dtype) == ((3, *venv.observation_space[0].shape), np.float32)
        assert info.tolist() == [{"env_id": i, "elapsed_step": 0} for i in range(3)]
        obs, *columns, info = venv.step([1, 0, 1])
        assert [(each.dtype, each.shape) for each in columns] == [(dtype, (3,)) for dtype in (float, bool, bool)]
        assert venv.observation_space[0].contains(obs[0])
        assert "autoreset_mode" not in venv.metadata[2]
        assert (venv.alive(), venv.failed_id) == ([True] * 3, [])
        assert venv.stats()["wait_s"] > 0
    with EnvPoolVectorEnv(make(2, batch_size=0)) as venv:  # 0 means all envs
        assert (venv.is_async, venv.reset()[0].shape[0]) == (False, 2)
        left, right = venv.action_space  # each env has separate spaces
        assert venv.get_env_attr("action_space", 1) == [right]
        left.seed(1), right.seed(1)
        assert [left.sample() for _ in range(20)] == [right.sample() for _ in range(20)]
        assert (venv.observation_space[0].low <= 0).all()
        assert np.isinf(venv.observation_space[0].high).any()
    for use in (lambda: venv.step([0, 0]), venv.reset):
        with pytest.raises(ClosedError):
            use()


def test_a_step_outside_of_an_episode_is_refused_and_moves_no_env(make):
    with EnvPoolVectorEnv(make(3, seed=2)) as venv:
        with pytest.raises(RuntimeError, match=r"env 0 has not been reset, or its episode is over; call reset\(0\)"):
            venv.step([0, 0, 0])
        venv.reset()
        ended = np.zeros(3, np.bool_)
        while not ended.any():
            _, _, terminated, truncated, _ = venv.step([0, 1, 0])
            ended = terminated | truncated
        over = int(np.argmax(ended))
        others = [i for i in range(3) if i != over]
        venv.reset(others)
        for refused in ([0, 0, 0], None), ([0], [over]), ([0, 0], [others[0], over]):
            with pytest.raises(RuntimeError, match=f"env {over} .* its episode is over"):
                venv.step(*refused)
        assert elapsed(venv.step([0, 0], others)[4]) == [1, 1]
        assert elapsed(venv.reset(over)[1]) == [0]
        assert elapsed(venv.step([0, 99, 0], reset=[1])[4])[1] == 0  # the action of an env that is reset is ignored


def lives_at_ends(envs, ends=12):
    """Return the lives of env 0 at the ends of its episodes."""
    lives = []
    envs.reset()
    for t in range(9000):
        *_, terminated, truncated, infos = envs.step(np.full(2, t % 3, np.int32))
        lives += [int(infos["lives"][0])] if terminated[0] or truncated[0] else []
        if len(lives) == ends:
            return lives
    raise AssertionError(f"only {lives}")


def test_a_game_goes_on_after_a_lost_life_as_in_the_bare_pool(make):
    task = {} if make == PoolDouble.make else {"task": "Breakout-v5"}
    pool, ours = (make(2, episodic_life=True, seed=3, **task) for _ in range(2))
    with EnvPoolVectorEnv(ours) as venv:
        found = lives_at_ends(GymnasiumVectorEnv(venv))
    assert found == lives_at_ends(pool)
    assert found[:6] == [4, 3, 2, 1, 0, 4]


def test_the_seeds_of_a_reset_are_those_that_a_pool_can_be_made_with(make):
    """Finished envs are reset in the round of the others, as in the bare pool."""
    with EnvPoolVectorEnv(make(3, seed=0)) as venv:
        for seed in (7, [7, 8, 9], [2**31 + 7, 8, 2**40 + 9]):  # modulo 2**31
            pool, done = make(3, seed=7), np.zeros(3, np.bool_)
            np.testing.assert_array_equal(venv.reset(seed=seed)[0], pool.reset()[0])
            for t in range(60):
                *result, info = venv.step(np.full(3, t % 2), reset=done)
                *expected, infos = pool.step(np.full(3, t % 2, np.int32))
                np.testing.assert_equal([*result, elapsed(info)], [*expected, infos["elapsed_step"].tolist()])
                done = result[2] | result[3]
        assert venv.seed(7) == [7, 8, 9]
        with pytest.raises(RuntimeError, match="has not been reset"):
            venv.step([0, 0, 0])
        np.testing.assert_array_equal(venv.reset()[0], make(3, seed=7).reset()[0])
        assert venv.set_seed(10) == 3288080526
        np.testing.assert_array_equal(venv.reset()[0][0], venv.reset(seed=10)[0][0])
        assert venv.seed(None) == [None] * 3
        assert elapsed(venv.step([0, 0, 0])[4]) == [1, 1, 1]


def test_a_reset_with_seeds_makes_a_new_pool_and_closes_the_old_one():
    first = PoolDouble.make(2)
    first._render_mode = "rgb_array"
    PoolDouble.made[:] = [first]
    with EnvPoolVectorEnv(first) as venv:
        venv.reset(seed=1)
        venv.seed(2)
        assert [pool.is_closed for pool in PoolDouble.made] == [True, True, False]
        venv.reset()
        assert [(frame.shape, int(frame[0, 0, 0])) for frame in venv.render()] == [((2, 2, 3), 0), ((2, 2, 3), 1)]
    assert PoolDouble.made.pop().is_closed


def test_wait_num_is_the_batch_size(make):
    with EnvPoolVectorEnv(make(10, batch_size=9, seed=1)) as venv:
        assert (len(venv), venv.is_async, venv.wait_num) == (10, True, 9)
        assert ids_of(venv.reset()[1]) == list(range(10))
        assert len(venv.step(np.zeros(10, int))[0]) >= 9


def test_the_wrapper_of_torchrl_takes_a_synchronous_pool(make):
    options = {"frame_skip": 1, "device": "cpu", "categorical_action_encoding": True}
    with Wrapper(env=make(4), **options) as env, DummyVectorEnv([CountingEnv] * 4) as plain:
        assert (env.num_workers, env.batch_size) == (4, (4,))
        assert env.set_seed(1) == plain.set_seed(1)
        assert env.reset()[0].shape[0] == 4
        assert env.step([0, 1, 0, 1])[1].shape == (4,)


# Tasks of the EnvPool package.


@pytest.mark.slow
def test_multi_threaded_env_makes_the_pool():
    pytest.importorskip("envpool", reason=MISSING)
    with MultiThreadedEnv(3, "Pendulum-v1", create_env_kwargs={"max_episode_steps": 5}) as env:
        assert env.reset(seed=0)[0].shape == (3, 3)
        ends = [env.step(np.zeros((3, 1), np.float32))[3] for _ in range(5)]
        assert np.all(ends, axis=1).tolist() == [False] * 4 + [True]
    with MultiThreadedEnv(1, "ALE/Pong-v5") as env:
        assert env.env_name == "Pong-v5"
        obs, info = env.reset()
        assert (obs.shape, obs.dtype) == ((1, 4, 84, 84), np.uint8)
        assert info[0]["ram"].shape == (128,)


@pytest.mark.slow
def test_the_program_of_the_page_runs():
    pytest.importorskip("envpool", reason=MISSING)
    page = (ROOT / "docs/guides/from-others.md").read_text("utf-8")
    program = page.partition("## EnvPool")[2].partition("```py\n")[2].partition("```")[0]
    assert "EnvPoolVectorEnv(pool)" in program
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# Interrupts.


@pytest.mark.parametrize(
    ("call", "options"),
    [
        ("partial", {"batch_size": 2}),
        pytest.param("step", {}, marks=FULL),
        pytest.param("reset", {"batch_size": 2}, marks=FULL),
    ],
)
def test_after_an_interrupt_at_any_bytecode_a_reset_makes_all_usable(make, call, options):
    calls = {
        "step": lambda: venv.step([0, 1, 0]),
        "partial": lambda: venv.step([1, 0], [2, 0], reset=[0]),
        "reset": lambda: venv.reset(),
    }
    with EnvPoolVectorEnv(make(3, **options)) as venv:
        venv.reset()
        n = 1
        while interrupted_at(n, calls[call]):
            while venv.waiting_id:  # the interrupt came after the step
                venv.recv()
            assert elapsed(venv.reset()[1]) == [0, 0, 0]
            venv.send([1, 0, 1])
            found = {}
            while venv.waiting_id:
                *_, info = venv.recv()
                found |= dict(zip(ids_of(info), elapsed(info), strict=True))
            assert found == {0: 1, 1: 1, 2: 1}
            assert venv.failed_id == []
            n += 13
            if call != "reset":
                venv.reset()
        assert n > 50
