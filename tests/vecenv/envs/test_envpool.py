"""EnvPool's pools as vector envs, without crashes, hangs and steps of finished envs.

By default the tests use a double of EnvPool. The slow tier uses the package (740 MB), which `make test-slow` installs.
"""

import subprocess
import sys

import numpy as np
import pytest

from collector import EpisodeSeeds, SyncDataCollector
from tests.support.interrupts import interrupted_at
from tests.support.paths import ROOT
from tests.support.pool_double import MISSING, PoolDouble, real_pool
from vecenv import BaseVectorEnv, ClosedError, EnvPoolVectorEnv, GymnasiumVectorEnv, MultiThreadedEnv
from vecenv import MultiThreadedEnvWrapper as Wrapper
from vecenv.arguments import seed_chain


@pytest.fixture(params=[PoolDouble.make, pytest.param(real_pool, marks=pytest.mark.slow)], ids=["double", "envpool"])
def make(request):
    """Return a function that makes pools of short episodes with arguments of `envpool.make`."""
    yield request.param
    PoolDouble.made.clear()


def elapsed(info):
    return [row["elapsed_step"] for row in info]


def ids_of(info):
    return [row["env_id"] for row in info]


def run(venv, steps):
    """Return (obs, rew, terminated, truncated) of each step. Finished envs are reset in the next round."""
    done = np.zeros(len(venv), np.bool_)
    log = []
    for t in range(steps):
        *result, info = venv.step(np.full(len(venv), t % 2), reset=done)
        log.append([*result, elapsed(info)])
        done = result[2] | result[3]
    return log


# Results.


def test_results_are_those_of_every_vector_env(make):
    with EnvPoolVectorEnv(make(3, seed=1)) as venv:
        assert isinstance(venv, BaseVectorEnv)
        assert (len(venv), venv.num_envs, venv.is_async) == (3, 3, False)
        obs, info = venv.reset()
        for step in range(1, 3):
            assert obs.shape == (3, *venv.observation_space[0].shape)
            assert obs.dtype == np.float32
            assert info.dtype == object
            assert info.tolist() == [{"env_id": i, "elapsed_step": step - 1} for i in range(3)]
            obs, rew, terminated, truncated, info = venv.step([1, 0, 1])
            assert (rew.dtype, terminated.dtype, truncated.dtype) == (np.float64, np.bool_, np.bool_)
            assert rew.shape == terminated.shape == truncated.shape == (3,)
        assert venv.observation_space[0].contains(obs[0])
        assert "autoreset_mode" not in venv.metadata[2]
    with EnvPoolVectorEnv(make(2, batch_size=0)) as venv:  # 0 means all envs
        assert (venv.is_async, venv.reset()[0].shape[0]) == (False, 2)
        left, right = venv.action_space  # each env has separate spaces
        left.seed(1), right.seed(1)
        assert [left.sample() for _ in range(20)] == [right.sample() for _ in range(20)]
        assert left is not right
        assert (venv.observation_space[0].low <= 0).all()
        assert np.isinf(venv.observation_space[0].high).any()


def test_returned_arrays_never_change(make):
    with EnvPoolVectorEnv(make(3)) as venv:
        obs, _ = venv.reset()
        results = [venv.step([0, 0, 0]), venv.step([1, 1], [2, 0])]
        kept = [np.copy(part) for part in (obs, *results[0][:4], *results[1][:4])]
        venv.reset()
        run(venv, 10)
        for now, then in zip((obs, *results[0][:4], *results[1][:4]), kept, strict=True):
            np.testing.assert_array_equal(now, then)


def test_a_run_is_that_of_the_bare_pool_where_finished_envs_reset_in_the_round_of_the_others(make):
    pool = make(4, seed=5)
    with EnvPoolVectorEnv(make(4, seed=5)) as venv:
        np.testing.assert_array_equal(venv.reset()[0], pool.reset()[0])
        for t, result in enumerate(run(venv, 60)):
            *expected, info = pool.step(np.full(4, t % 2, np.int32))
            for ours, theirs in zip(result, [*expected, info["elapsed_step"]], strict=True):
                np.testing.assert_array_equal(ours, theirs)


# Ids and rounds.


def test_steps_and_resets_of_some_leave_the_others_alone(make):
    with EnvPoolVectorEnv(make(3, seed=0)) as venv:
        venv.reset()
        *_, info = venv.step([0, 1], [2, 1])
        assert (ids_of(info), elapsed(info)) == ([2, 1], [1, 1])
        _, info = venv.reset(np.array([False, True, True]))
        assert (ids_of(info), elapsed(info)) == ([1, 2], [0, 0])
        before = venv.stats()
        *_, info = venv.step([0, 1, 0])
        assert elapsed(info) == [1, 1, 1]
        # Reset an env within its episode, in a round of steps.
        _, rew, terminated, truncated, info = venv.step([0, 1, 0], reset=[1])
        assert (ids_of(info), elapsed(info)) == ([0, 1, 2], [2, 0, 2])
        assert (rew[1], terminated[1], truncated[1]) == (0, False, False)
        *_, info = venv.step([1, 0], [2, 1], reset=[2])
        assert (ids_of(info), elapsed(info)) == ([2, 1], [0, 1])
        assert venv.stats()["steps"] == before["steps"] + 3 + 2 + 1
        assert venv.stats()["wait_s"] > before["wait_s"]
        assert elapsed(venv.step([0, 99, 0], reset=[1])[4]) == [3, 0, 1]  # the action of env 1 is ignored


def test_two_rounds_in_flight_come_back_together(make):
    with EnvPoolVectorEnv(make(4)) as venv:
        venv.reset()
        venv.send([0, 1], [2, 0])
        assert venv.waiting_id == [0, 2]
        with pytest.raises(RuntimeError, match="env 0 is still stepping"):
            venv.send([0], [0])
        venv.send([1], [3])
        *_, info = venv.recv()
        assert (ids_of(info), elapsed(info)) == ([2, 0, 3], [1, 1, 1])
        assert venv.ready_id == [0, 1, 2, 3]


# Steps of finished envs.


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
        assert elapsed(venv.step([0, 0, 0])[4])[over] == 1


def lives_at_ends(n, reset, step, ends=12):
    """Return the lives of env 0 at the ends of its episodes."""
    lives, done = [], np.zeros(n, np.bool_)
    reset()
    for t in range(9000):
        if len(lives) == ends:
            return lives
        terminated, truncated, found = step(np.full(n, t % 3), done)
        done = terminated | truncated
        lives += [int(found)] if done[0] else []
    raise AssertionError(f"only {lives}")


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("how", ["reset", "step", "facade", "collector"])
def test_a_game_goes_on_after_a_lost_life_as_in_the_bare_pool(make, how, num_envs):
    task = {} if make == PoolDouble.make else {"task": "Breakout-v5"}
    pool, venv = (make(num_envs, episodic_life=True, seed=3, **task) for _ in range(2))

    def bare(action, done):
        *_, terminated, truncated, infos = pool.step(action.astype(np.int32))
        return terminated, truncated, infos["lives"][0]

    expected = lives_at_ends(num_envs, pool.reset, bare)
    assert expected[:6] == [4, 3, 2, 1, 0, 4]
    with EnvPoolVectorEnv(venv) as venv:
        if how == "facade":
            envs = GymnasiumVectorEnv(venv)

            def one(action, done):
                *_, terminated, truncated, infos = envs.step(action)
                return terminated, truncated, infos["lives"][0]

            assert lives_at_ends(num_envs, envs.reset, one) == expected
        elif how == "collector":
            with SyncDataCollector(venv, frames_per_batch=300 * num_envs, info_keys=["lives"]) as collector:
                found = []
                while len(found) < len(expected):
                    batch = collector.next()
                    ends = (batch.terminated | batch.truncated)[0]
                    found += batch.extras["lives"][0][ends].tolist()
            assert found[: len(expected)] == expected
        else:

            def one(action, done):
                if how == "reset" and done.any():
                    venv.reset(done)
                *_, terminated, truncated, info = venv.step(action, reset=done if how == "step" else None)
                return terminated, truncated, info[0]["lives"]

            assert lives_at_ends(num_envs, venv.reset, one) == expected


# Calls on which EnvPool would crash or guess.


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, "for env 1 is 1000000, which is not in Discrete", lambda venv: venv.step([0, 10**6, 0])),
        (ValueError, "the action for env 1 is -1", lambda venv: venv.step([0, 0, -1], [2, 0, 1])),
        (TypeError, "must be whole numbers", lambda venv: venv.step([0.5, 0, 0])),
        (ValueError, "got 2 actions for 3 envs", lambda venv: venv.step([0, 0])),
        (ValueError, r"has the shape \(3, 2\), expected \(3,\)", lambda venv: venv.step([[0, 1]] * 3, [2, 0, 1])),
        (IndexError, "9", lambda venv: venv.step([0], [9])),
        (IndexError, "9", lambda venv: venv.reset([9])),
        (ValueError, "0", lambda venv: venv.step([0, 0], [0, 0])),
        (TypeError, "autoreset=True", lambda venv: venv.step([0, 0, 0], autoreset=True)),
        (TypeError, "takes only seed", lambda venv: venv.reset(options={"x": 1})),
        (TypeError, "takes only seed", lambda venv: venv.reset(length=3)),
        (ValueError, "of all its 3 envs at once", lambda venv: venv.reset([0], seed=1)),
        (ValueError, "of all its 3 envs at once", lambda venv: venv.reset([0, 1], seed=[1, 2])),
        (ValueError, "of all its 3 envs at once", lambda venv: venv.reset(seed=[1, None, 2])),
        (ValueError, "seeds all its envs together", lambda venv: venv.seed([1, None, 2])),
    ],
)
def test_what_is_refused_moves_no_env(make, error, message, call):
    with EnvPoolVectorEnv(make(3)) as venv:
        venv.reset(options=None)
        pool = venv.engine.backend._envpool
        with pytest.raises(error, match=message):
            call(venv)
        assert venv.engine.backend._envpool is pool
        assert elapsed(venv.step([0, 0, 0])[4]) == [1, 1, 1]


# Seeds.


def test_the_seeds_of_a_reset_are_those_that_a_pool_can_be_made_with(make):
    with EnvPoolVectorEnv(make(3, seed=0)) as venv:
        starts = [venv.reset(seed=7)[0], venv.reset(seed=[7, 8, 9])[0], venv.reset(seed=8)[0]]
        np.testing.assert_array_equal(starts[0], starts[1])
        assert not np.array_equal(starts[0], starts[2])
        np.testing.assert_array_equal(starts[0], make(3, seed=7).reset()[0])
        np.testing.assert_array_equal(starts[0], venv.reset(seed=[2**31 + 7, 8, 2**40 + 9])[0])  # modulo 2**31
        runs = [[venv.reset(seed=11), *run(venv, 30)][1:] for _ in range(2)]
        np.testing.assert_equal(runs[0], runs[1])


def test_numbered_episodes_are_refused_before_a_pool_steps(make):
    seeds = EpisodeSeeds(0, numbers=range(4))
    with EnvPoolVectorEnv(make(2)) as venv, pytest.raises(ValueError, match="steps or seeds all envs together, but ep"):
        SyncDataCollector(venv, frames_per_batch=8, episode_seeds=seeds)


def test_a_reset_with_seeds_makes_a_new_pool_and_closes_the_old_one():
    first = PoolDouble.make(3)
    PoolDouble.made[:] = [first]
    venv = EnvPoolVectorEnv(first)
    venv.reset(seed=1)
    venv.seed(2)
    assert [pool.is_closed for pool in PoolDouble.made] == [True, True, False]
    venv.close()
    assert PoolDouble.made.pop().is_closed


def test_seed_and_set_seed_are_for_the_next_reset(make):
    with EnvPoolVectorEnv(make(3)) as venv:
        venv.reset()
        assert venv.seed(7) == [7, 8, 9]
        with pytest.raises(RuntimeError, match="has not been reset"):
            venv.step([0, 0, 0])
        start = venv.reset()[0]
        np.testing.assert_array_equal(start, venv.reset(seed=7)[0])
        assert venv.set_seed(10) == seed_chain(10, 3)[3] == 3288080526
        chained = venv.reset()[0]
        np.testing.assert_array_equal(chained, venv.reset(seed=[10, *seed_chain(10, 3)[1:3]])[0])
        assert venv.seed(None) == [None] * 3
        assert elapsed(venv.step([0, 0, 0])[4]) == [1, 1, 1]


# Async, by the pool's batch_size.


@pytest.mark.parametrize(("num_envs", "batch_size"), [(6, 2), (10, 9), (4, 1)])
def test_wait_num_is_the_batch_size_and_nothing_waits_without_an_end(make, num_envs, batch_size):
    with EnvPoolVectorEnv(make(num_envs, batch_size=batch_size, seed=1)) as venv:
        assert (len(venv), venv.is_async, venv.wait_num) == (num_envs, True, batch_size)
        obs, info = venv.reset()
        assert ids_of(info) == list(range(num_envs))
        ages = np.zeros(num_envs, int)
        venv.send(np.zeros(num_envs, int))
        for t in range(60):
            obs, rew, terminated, truncated, info = venv.recv()
            ids = np.array(ids_of(info))
            assert batch_size <= len(ids) == len(obs) == len(rew)
            ages[ids] += 1
            assert elapsed(info) == ages[ids].tolist()
            done = ids[terminated | truncated]
            if len(done):  # other envs are in flight
                assert ids_of(venv.reset(done)[1]) == done.tolist()
                ages[done] = 0
            venv.send(np.full(len(ids), t % 2), ids)
        while venv.waiting_id:
            assert len(venv.recv()[4]) > 0
        assert elapsed(venv.reset(num_envs - 1)[1]) == [0]


def test_an_asynchronous_pool_gives_the_trajectories_of_a_synchronous_one(make):
    """In every order of results: each env has a random generator, and spare envs use different generators."""
    with EnvPoolVectorEnv(make(4, seed=9)) as venv:
        first, _ = venv.reset()
        expected = {(i, t): row for t, step in enumerate(run(venv, 20)) for i, row in enumerate(step[0])}
    with EnvPoolVectorEnv(make(4, batch_size=3, seed=9)) as venv:
        np.testing.assert_array_equal(venv.reset(seed=9)[0], first)
        steps, over = np.zeros(4, int), np.zeros(4, np.bool_)
        venv.send(np.zeros(4, int))
        while steps.min() < 20:
            obs, _, terminated, truncated, info = venv.recv()
            ids = np.array(ids_of(info))
            for i, row in zip(ids, obs, strict=True):
                if steps[i] < 20:
                    np.testing.assert_array_equal(row, expected[i, steps[i]])
            steps[ids] += 1
            over[ids] = terminated | truncated
            venv.send(steps[ids] % 2, ids, reset=ids[over[ids]])
        while venv.waiting_id:
            assert len(venv.recv()[4]) > 0


# The remaining interface.


def test_attributes_frames_and_life(make):
    pool = make(2)
    venv = EnvPoolVectorEnv(pool)
    assert venv.get_env_attr("action_space", 1) == [venv.action_space[1]]
    for access in (lambda: venv.get_env_attr("x"), lambda: venv.set_env_attr("x", 1), lambda: venv.call("x")):
        with pytest.raises(AttributeError, match="C\\+\\+"):
            access()
    if isinstance(pool, PoolDouble):
        with pytest.raises(RuntimeError, match="render_mode"):
            venv.render()
        pool._render_mode = "rgb_array"
        venv.reset(seed=3)  # a new pool
        assert [(frame.shape, int(frame[0, 0, 0])) for frame in venv.render()] == [((2, 2, 3), 0), ((2, 2, 3), 1)]
    with pytest.raises(TypeError):
        venv.render(width=3)
    assert (venv.alive(), venv.failed_id) == ([True, True], [])
    assert repr(venv).startswith("EnvPoolVectorEnv(2 envs")
    venv.close()
    venv.close()
    for use in (lambda: venv.step([0, 0]), venv.reset):
        with pytest.raises(ClosedError):
            use()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_gymnasiums_autoreset_around_it_has_no_ghosts_but_its_own(make, mode):
    envs = GymnasiumVectorEnv(EnvPoolVectorEnv(make(3, seed=1)), autoreset_mode=mode)
    _, infos = envs.reset()
    ages, over, ends = infos["elapsed_step"], np.zeros(3, np.bool_), 0
    for _ in range(40):
        if mode == "Disabled" and over.any():
            _, infos = envs.reset(options={"reset_mask": over})
            assert infos["_elapsed_step"].tolist() == over.tolist()
            ages, over = np.where(over, 0, ages), np.zeros(3, np.bool_)
        _, _, terminations, truncations, infos = envs.step(np.ones(3, int))
        done = terminations | truncations
        ages = np.where(done if mode == "SameStep" else over, 0, ages + 1)
        assert infos["elapsed_step"].tolist() == ages.tolist()
        over, ends = done, ends + int(done.sum())
        if mode == "SameStep" and done.any():
            assert [obs is not None for obs in infos["final_obs"]] == done.tolist()
    assert ends > 3
    with pytest.raises(TypeError, match=r"takes only seed, got \['options'\]"):
        envs.reset(options={"speed": 2})
    envs.close()


def test_without_envpool_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    for make in (lambda: EnvPoolVectorEnv.make("CartPole-v1", 2), lambda: MultiThreadedEnv(2, "CartPole-v1")):
        with pytest.raises(ImportError, match=r"pip install 'vecenv\[envpool\]'"):
            make()


# torchrl's names.


def test_the_wrapper_of_torchrl_takes_a_synchronous_pool(make):
    with Wrapper(env=make(4), frame_skip=1, device="cpu", categorical_action_encoding=True) as env:
        assert (env.num_workers, env.batch_size) == (4, (4,))
        assert env.set_seed(1) == seed_chain(1, 4)[4]
        assert env.reset()[0].shape[0] == 4
        assert env.step([0, 1, 0, 1])[1].shape == (4,)


def pool_of(**config):
    return lambda **arguments: Wrapper(PoolDouble.make(2, **config), **arguments)


def threaded(**arguments):
    return MultiThreadedEnv(**{"num_workers": 2, "env_name": "CartPole-v1", **arguments})


IGNORED = [
    ({"frame_skip": 4}, "create_env_kwargs"),
    ({"frame_skip": True}, "create_env_kwargs"),
    ({"device": "cuda:0"}, "collector"),
    ({"categorical_action_encoding": False}, "one-hot"),
    ({"disable_env_checker": False}, "check_vector_env"),
    ({"allow_done_after_reset": True}, "after a reset"),
]
MISTAKES = [
    *((make, given, ValueError, instead) for given, instead in IGNORED for make in (pool_of(), threaded)),
    (lambda: EnvPoolVectorEnv("CartPole-v1"), {}, TypeError, "expected a pool"),
    (lambda: EnvPoolVectorEnv(PoolDouble), {}, TypeError, "expected a pool"),
    (lambda: EnvPoolVectorEnv(PoolDouble.make(2, max_num_players=4)), {}, ValueError, "up to 4 players"),
    (lambda: EnvPoolVectorEnv.make("CartPole-v1", 0), {}, ValueError, "num_envs must be .* at least 1, got 0"),
    (lambda: EnvPoolVectorEnv.make("CartPole-v1", 1.5), {}, TypeError, "num_envs must be .* at least 1, got 1.5"),
    (lambda: EnvPoolVectorEnv.make(None, 1), {}, TypeError, "the task must be the id of an EnvPool task"),
    (Wrapper, {}, TypeError, "needs env"),
    (Wrapper, {"env": object()}, TypeError, "expected a pool"),
    (pool_of(), {"speed": 3}, TypeError, "unexpected argument 'speed'"),
    (pool_of(batch_size=1), {}, ValueError, r"asynchronous, 1 of 2 .*EnvPoolVectorEnv"),
    (lambda: MultiThreadedEnv(2), {}, TypeError, "env_name"),
    (threaded, {"env_name": None}, TypeError, "the task must be the id of an EnvPool task .* got None"),
    (
        threaded,
        {"create_env_kwargs": {"batch_size": 1}},
        ValueError,
        r"create_env_kwargs must not have \['batch_size'\]",
    ),
    (threaded, {"create_env_kwargs": [("seed", 1)]}, TypeError, "create_env_kwargs must be a dict"),
    (threaded, {"num_workers": 0}, ValueError, "num_workers must be an integer of at least 1, got 0"),
    (threaded, {"num_workers": "2"}, TypeError, "num_workers must be an integer of at least 1, got '2'"),
]


@pytest.mark.parametrize(("make", "arguments", "error", "message"), MISTAKES)
def test_mistakes_are_named_with_what_to_use_instead(make, arguments, error, message):
    with pytest.raises(error, match=message):
        make(**arguments)


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
@pytest.mark.parametrize(
    "task", ["CheetahRun-v1", "FrozenLake-v1", "HumanoidStand-v1", "LunarLander-v3", "Breakout-v5"]
)
def test_observations_are_in_their_spaces(task):
    with EnvPoolVectorEnv(real_pool(2, task)) as venv:
        space = venv.observation_space[0]
        for obs in (venv.reset()[0], venv.step([s.sample() for s in venv.action_space])[0], venv.reset([1])[0]):
            row = {k: np.asarray(part[-1]) for k, part in obs.items()} if isinstance(obs, dict) else obs[-1]
            assert space.contains(row)


@pytest.mark.slow
def test_the_program_of_the_page_runs():
    pytest.importorskip("envpool", reason=MISSING)
    page = (ROOT / "docs/guides/from-others.md").read_text("utf-8")
    program = page.partition("## EnvPool")[2].partition("```py\n")[2].partition("```")[0]
    assert "EnvPoolVectorEnv(pool)" in program
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# Interrupts.


@pytest.mark.parametrize("options", [{}, {"batch_size": 2}], ids=["sync", "async"])
@pytest.mark.parametrize("call", ["step", "partial", "reset"])
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
            _, info = venv.reset()
            assert elapsed(info) == [0, 0, 0]
            venv.send([1, 0, 1])
            found = {}
            while venv.waiting_id:
                *_, info = venv.recv()
                found |= dict(zip(ids_of(info), elapsed(info), strict=True))
            assert found == {0: 1, 1: 1, 2: 1}
            assert venv.failed_id == []
            n += 5
            if call != "reset":
                venv.reset()
        assert n > 50
