"""DMControlEnv: tasks of the DeepMind control suite with gymnasium's semantics, also with pixels, in vector envs."""

import os
import subprocess
import sys

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from tests.support.backends import FULL, NEEDS_DM_CONTROL
from tests.support.paths import ROOT
from vecenv import DMControlEnv, ShmemVectorEnv, ThreadVectorEnv

pytestmark = NEEDS_DM_CONTROL


@pytest.fixture
def suite():
    """Return dm_control's suite, after DMControlEnv has chosen its renderer."""
    assert DMControlEnv.available_envs
    from dm_control import suite

    return suite


def renders():
    """Return whether this machine has an OpenGL."""
    assert DMControlEnv.available_envs
    return os.environ.get("MUJOCO_GL") != "disabled"


def swingup(**options):
    return DMControlEnv("cartpole", "swingup", **options)


def pixels():
    return swingup(from_pixels=True, height=24, width=32)


def in_fresh_python(program, **variables):
    """Run the program in a new process with these environment variables. Return its output."""
    env = {k: v for k, v in os.environ.items() if k not in ("MUJOCO_GL", "PYOPENGL_PLATFORM", "DISPLAY")}
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=ROOT, env={**env, **variables}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


# Observations and seeds.


@pytest.mark.filterwarnings("ignore:.*A Box observation space m:UserWarning")  # dm_control sets no bounds
@FULL
def test_it_passes_the_check_of_gymnasium(suite):
    assert DMControlEnv.available_envs["acrobot"] == ["swingup", "swingup_sparse"]
    assert sum(map(len, DMControlEnv.available_envs.values())) == len(suite.ALL_TASKS)
    for task in (("cartpole", "balance"), ("walker", "walk")):  # the height of a walker is a number
        env = DMControlEnv(*task)
        check_env(env, skip_render_check=True)
        assert {part.dtype.name for part in env.observation_space.values()} == {"float64"}
        assert (env.action_space.low == -1).all()
        env.close()


def test_it_gives_what_dm_control_gives(suite):
    env, original = swingup(), suite.load("cartpole", "swingup", task_kwargs={"random": 7})
    first, info = env.reset(seed=7)
    kept, obs = {name: part.copy() for name, part in first.items()}, first
    timestep = original.reset()
    for action in np.linspace(-1, 1, 20)[:, None]:
        for name, part in timestep.observation.items():
            np.testing.assert_array_equal(obs[name], part)
        obs, reward, terminated, truncated, info = env.step(action)
        timestep = original.step(action)
        assert (reward, terminated, truncated, info) == (timestep.reward, False, False, {})
        assert type(reward) is float
    np.testing.assert_equal(first, kept)
    env.close()


def test_a_seed_decides_the_episode_and_the_model():
    """The model of lqr is drawn when the env is made. Seeds may exceed the limit of numpy's RandomState."""
    envs = [DMControlEnv("lqr", "lqr_2_1"), DMControlEnv("lqr", "lqr_2_1")]
    for seed in (0, 2**63 - 1):
        left, right = ([env.reset(seed=seed)[0], *(env.step(np.ones(1))[0] for _ in range(5))] for env in envs)
        np.testing.assert_equal(left, right)
    starts = [env.reset()[0]["position"] for env in (swingup(), swingup())]  # without a seed, starts differ
    assert not np.array_equal(*starts)


# How episodes end.


def test_an_end_that_the_task_decides_is_a_termination():
    env = DMControlEnv("lqr", "lqr_2_1")
    env.reset(seed=0)
    with env.physics.reset_context():
        env.physics.data.qpos[:] = env.physics.data.qvel[:] = 0  # lqr ends here
    assert env.step([0.0])[2:4] == (True, False)


def test_frame_skip_sums_rewards_and_stops_at_the_end_of_the_episode():
    skipping, plain = swingup(frame_skip=4, task_kwargs={"time_limit": 0.06}), swingup()
    skipping.reset(seed=0)
    plain.reset(seed=0)
    for frames, is_over in ((4, False), (2, True)):
        steps = [plain.step([0.5]) for _ in range(frames)]
        obs, reward, *flags, _ = skipping.step([0.5])
        assert reward == pytest.approx(sum(step[1] for step in steps))
        assert flags == [False, is_over]
        np.testing.assert_equal(obs, steps[-1][0])
    assert (skipping.metadata["render_fps"], plain.metadata["render_fps"]) == (25, 100)


def test_a_step_outside_of_an_episode_is_refused():
    env = swingup(task_kwargs={"time_limit": 0.01})
    with pytest.raises(RuntimeError, match=r"\(cartpole, swingup\) has not been reset; call reset\(\)"):
        env.step([0.0])
    env.reset()
    assert env.step([0.0])[3]
    with pytest.raises(RuntimeError, match="has ended its episode"):
        env.step([0.0])
    for _ in range(2):
        env.close()
    for use in (lambda: env.step([0.0]), env.reset):
        with pytest.raises(RuntimeError, match="is closed"):
            use()


# Errors.


MISTAKES = [
    (RuntimeError, r"no task 'fly' in the domain 'cartpole'; .* \['balance'", lambda: DMControlEnv("cartpole", "fly")),
    (RuntimeError, r"no task 'fly' in the domain 'rocket'; .* \['acrobot'", lambda: DMControlEnv("rocket", "fly")),
    (TypeError, "task", lambda: DMControlEnv("cartpole")),
    (ValueError, "frame_skip must be an integer of at least 1", lambda: swingup(frame_skip=0)),
    (ValueError, "render_mode", lambda: swingup(render_mode="human")),
    (
        ValueError,
        r"has no camera 'zz'; it has \['fixed', 'lookatcart'\]",
        lambda: swingup(camera_id="zz", from_pixels=True),
    ),
    (ValueError, r"has no camera 2;", lambda: swingup(camera_id=2, from_pixels=True)),
    (RuntimeError, 'render_mode="rgb_array"', lambda: swingup().render()),
]


@FULL
@pytest.mark.parametrize(("error", "message", "make"), MISTAKES)
def test_arguments_that_do_not_exist_are_refused(error, message, make):
    with pytest.raises(error, match=message):
        make()


def test_an_action_of_a_wrong_shape_is_refused():
    env = swingup(frame_skip=2)
    env.reset()
    with pytest.raises(ValueError, match=r"the action has the shape \(2,\), expected \(1,\)"):
        env.step([0.0, 0.0])


# Pixels. On a machine that cannot render, the error must name the package to install.


def renders_or_says_what_to_install(make):
    """Return the result of `make`, or None if this machine has no OpenGL and the error says so."""
    if renders():
        return make()
    with pytest.raises(RuntimeError, match="apt-get install libegl1"):
        make()
    return None


@FULL
@pytest.mark.parametrize("kind", [ShmemVectorEnv, ThreadVectorEnv])
def test_pixels_in_workers(kind):
    """Two envs in separate workers or threads. The frames show the state of each env."""
    venv = renders_or_says_what_to_install(lambda: kind([pixels] * 2, num_workers=2))
    if venv is not None:
        with venv:
            start = venv.reset(seed=[1, 1])[0]["pixels"]
            assert (start.shape, start.dtype) == ((2, 24, 32, 3), np.uint8)
            assert start.std() > 0
            np.testing.assert_array_equal(start[0], start[1])
            for _ in range(8):
                obs, *_ = venv.step([[1.0], [-1.0]])
            assert not np.array_equal(obs["pixels"][0], obs["pixels"][1])
            np.testing.assert_array_equal(venv.reset(seed=[1, 1])[0]["pixels"], start)


@FULL
def test_pixels_are_added_to_the_state():
    env = renders_or_says_what_to_install(
        lambda: swingup(from_pixels=True, pixels_only=False, height=24, width=32, render_mode="rgb_array")
    )
    if env is not None:
        obs, _ = env.reset(seed=0)
        assert set(obs) == {"position", "velocity", "pixels"}
        assert env.observation_space.contains(obs)
        np.testing.assert_array_equal(env.render(), obs["pixels"])
        with pytest.raises(ValueError, match="width"):  # larger than the model allows
            swingup(from_pixels=True, width=4000)


@FULL
def test_where_nothing_renders_the_error_says_what_to_install():
    program = """
from vecenv import DMControlEnv
print(DMControlEnv("cartpole", "swingup").reset(seed=0)[0]["position"].shape)
try:
    DMControlEnv("cartpole", "swingup", from_pixels=True)
except RuntimeError as error:
    print(error)
"""
    state, error = in_fresh_python(program, MUJOCO_GL="disabled").splitlines()
    assert state == "(3,)"
    assert "apt-get install libegl1" in error
    assert "MUJOCO_GL" in error


@FULL
def test_rendering_in_a_fork_of_a_process_that_rendered_is_an_error_and_no_hang():
    program = """
import os
from vecenv.envs.dm_control_env import begin_rendering
begin_rendering()
if os.fork():
    os.wait()
else:
    try:
        begin_rendering()
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
"""
    assert 'context="forkserver"' in in_fresh_python(program)
