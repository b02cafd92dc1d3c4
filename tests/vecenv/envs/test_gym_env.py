"""GymEnv: names, repeated actions, and pixels, alone and in workers. tests/messages/envs.py has the errors."""

import subprocess
import sys
import threading
from functools import partial

import ale_py
import gymnasium as gym
import numpy as np
import pygame.gfxdraw  # noqa: F401  # envs may now draw with gfxdraw
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.wrappers import AtariPreprocessing, MaxAndSkipObservation, TimeLimit

from tests.support.backends import FULL
from tests.support.cases import equal_bits
from vecenv import GymEnv, ThreadVectorEnv
from vecenv.testing import CountingEnv
from vecenv.transforms import PixelObservation, TransformedEnv


@pytest.fixture
def register():
    """Return a function that registers an env until the end of the test."""
    before = set(gym.registry)
    yield gym.register
    for name in gym.registry.keys() - before:
        del gym.registry[name]


# Names and specs.


def test_it_is_a_gymnasium_env_like_the_one_it_names():
    env, other = GymEnv("Pendulum-v1", g=2.0), gym.make("Pendulum-v1", g=2.0)
    assert isinstance(env, gym.Env)
    assert (env.observation_space, env.action_space) == (other.observation_space, other.action_space)
    assert data_equivalence(env.reset(seed=3), other.reset(seed=3))
    for _ in range(5):
        assert data_equivalence(env.step(np.ones(1, np.float32)), other.step(np.ones(1, np.float32)))
    assert (env.frame_skip, env.from_pixels) == (1, False)


def test_available_envs_are_those_registered_now(register):
    assert "MyOwn-v0" not in GymEnv.available_envs
    register("MyOwn-v0", entry_point=CountingEnv)
    assert "MyOwn-v0" in GymEnv.available_envs
    assert GymEnv.available_envs == sorted(gym.registry)
    assert GymEnv("MyOwn-v0", length=2).unwrapped.length == 2


@FULL
def test_atari_envs_are_found_without_an_import_or_the_error_says_what_to_install():
    program = (
        "import sys, gymnasium; from vecenv import GymEnv; sys.modules['ale_py'] = None\n"
        "try: GymEnv('ALE/Pong-v5')\n"
        "except ImportError as error: print(error)\n"
        "del sys.modules['ale_py']\n"
        "print(GymEnv('ALE/Pong-v5').spec.id)\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "ALE/Pong-v5 needs ale-py: pip install 'vecenv[atari]'\nALE/Pong-v5\n"


@pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version:UserWarning")
@pytest.mark.filterwarnings("ignore:.*A Box observation space m:UserWarning")  # CartPole's
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("CartPole-v1", {"frame_skip": np.int64(3)}),
        ("CartPole-v1", {"from_pixels": True, "pixels_only": False}),
        pytest.param("ALE/Pong-v5", {"frame_skip": 2, "repeat_action_probability": 0.0}, marks=FULL),
    ],
)
def test_it_passes_the_check_of_gymnasium_and_its_spec_makes_the_same_again(name, options):
    first = GymEnv(name, **options)
    if not first.from_pixels:
        check_env(first, skip_render_check=True)  # a render check opens a window
    spec = gym.envs.registration.EnvSpec.from_json(first.spec.to_json())
    again = gym.make(spec)
    assert isinstance(again, GymEnv)
    assert again.observation_space == first.observation_space
    assert data_equivalence(again.reset(seed=3), first.reset(seed=3))
    assert data_equivalence(again.step(1), first.step(1))
    first.close()
    again.close()


# Repeated actions.


def test_rewards_are_summed_the_last_observation_counts_and_the_end_of_an_episode_ends_it():
    env = GymEnv(GymEnv(CountingEnv(length=6), frame_skip=4), frame_skip=4)  # skips once
    for episode, end in enumerate([(True, False), (False, True)]):
        env.reset()
        obs, reward, terminated, truncated, info = env.step(7)
        assert (obs[2], obs[4], reward) == (4, 7, (1 + 2 + 3 + 4) / 1024)
        assert (terminated, truncated, info) == (False, False, {})
        obs, reward, *flags, _ = env.step(0)
        assert (obs[1], obs[2], reward, tuple(flags)) == (episode, 6, (5 + 6) / 1024, end)
    assert env.unwrapped.calls == 2 * 7


def pong(**options):
    return gym.make("ALE/Pong-v5", **options)


SKIPPING = {
    "of its own": (lambda: pong(frameskip=4), 4, "4"),
    "no spec": (lambda: ale_py.AtariEnv(game="pong", frameskip=4), 4, "4"),
    "AtariPreprocessing": (lambda: AtariPreprocessing(pong(frameskip=1), frame_skip=4, noop_max=0), 4, "4"),
    "twice": (lambda: MaxAndSkipObservation(pong(), 2), 8, "2 times 4"),
    "random": (lambda: pong(frameskip=(2, 5)), None, r"\(2, 5\)"),
}
if hasattr(gym.wrappers, "RepeatAction"):  # since gymnasium 1.3
    SKIPPING["RepeatAction"] = (lambda: TimeLimit(gym.wrappers.RepeatAction(pong(frameskip=1), 4), 99), 4, "4")
"""Envs that skip frames already, how many per step, and their text."""


def frames_a_step(env):
    env.reset(seed=0)
    first, second = (env.step(0)[4]["episode_frame_number"] for _ in range(2))
    env.close()
    return second - first


@FULL
@pytest.mark.parametrize("kind", SKIPPING)
def test_an_env_that_skips_by_itself_skips_once(kind):
    make, skip, text = SKIPPING[kind]
    made = make()
    with pytest.raises(ValueError, match=f"skips frames already: {text} per step; pass frame_skip=None"):
        GymEnv(made, frame_skip=3)
    assert skip is None or frames_a_step(GymEnv(made, frame_skip=skip)) == skip


@FULL
@pytest.mark.parametrize("from_pixels", [True, False])
def test_the_frame_skip_of_an_id_replaces_its_own_and_pictures_are_pixels_already(from_pixels):
    env = GymEnv("ALE/Pong-v5", frame_skip=3, from_pixels=from_pixels, repeat_action_probability=0.0)
    assert (env.frame_skip, env.from_pixels) == (3, True)
    obs, _ = env.reset(seed=0)
    assert obs["pixels"].shape == (210, 160, 3)
    assert env.observation_space.contains(obs)
    assert frames_a_step(env) == 3
    assert frames_a_step(GymEnv("ALE/Pong-v5")) == 4


def test_a_frameskip_among_the_arguments_is_the_envs_own(register):
    class TakesAnything(CountingEnv):
        def __init__(self, **options):
            self.options = options
            super().__init__()

    register("TakesAnything-v0", entry_point=TakesAnything)
    env = GymEnv("TakesAnything-v0", frame_skip=4, frameskip=4)
    env.reset()
    assert env.unwrapped.options == {"frameskip": 4}
    assert env.step(0)[0][2] == 1  # a single frame, because the env ignores its frameskip
    with pytest.raises(ValueError, match="contradicts frameskip=2"):
        GymEnv("TakesAnything-v0", frame_skip=4, frameskip=2)


# Pixels.


class Pictures(CountingEnv):
    """Env that draws into a single array, and takes the size of its frames."""

    canvas = np.zeros((4, 4, 3), np.uint8)

    def render(self, height=2, width=3):
        self.canvas[...] = self.t
        return self.canvas[:height, :width]


class Filmed(CountingEnv):
    """Env whose first frame fixes the camera, as in the MuJoCo envs of gymnasium 1.4. A frame shows both places."""

    camera = None

    def render(self):
        place = int(self.np_random.bit_generator.seed_seq.entropy % 256)
        self.camera = place if self.camera is None else self.camera
        return np.array([self.camera, place, self.t], np.uint8).reshape(1, 1, 3)


PIXELS = [
    partial(GymEnv, from_pixels=True),
    lambda env: TransformedEnv(env, PixelObservation()),
    lambda env: TransformedEnv(env, TransformedEnv(Filmed(), PixelObservation()).transform[0].clone()),
]


def test_pixels_replace_the_observation():
    env = GymEnv("CartPole-v1", from_pixels=True)
    assert env.observation_space == spaces.Dict({"pixels": spaces.Box(0, 255, (400, 600, 3), np.uint8)})
    obs, _ = env.reset(seed=0)
    assert obs["pixels"].std() > 0
    assert equal_bits(obs["pixels"], env.render())
    assert env.observation_space.contains(env.step(1)[0])
    assert (env.from_pixels, env.pixels_only) == (True, True)


@pytest.mark.parametrize(("form", "keys"), [("array", {"observation", "pixels"}), ("dict", {"who", "when", "pixels"})])
def test_pixels_come_beside_the_observation_or_its_parts(form, keys):
    env = GymEnv(CountingEnv(form=form), from_pixels=True, pixels_only=False)
    obs, _ = env.reset(seed=5)
    assert obs.keys() == env.observation_space.keys() == keys
    assert form == "dict" or obs["observation"][3] == 5
    again = GymEnv(env, from_pixels=True)  # an env with the key pixels is unchanged
    assert again.from_pixels
    assert again.reset()[0].keys() == keys


def test_only_the_last_of_the_repeated_frames_is_rendered_with_the_arguments_of_the_env():
    env = GymEnv(TimeLimit(Pictures(length=9), 9), from_pixels=True, frame_skip=3, render_kwargs={"width": 4})
    assert env.observation_space["pixels"].shape == env.reset()[0]["pixels"].shape == (2, 4, 3)
    frames = [env.step(0)[0]["pixels"] for _ in range(3)]
    assert [frame.max() for frame in frames] == [3, 6, 9]  # frames are copies of the env's canvas


@pytest.mark.guarantee("G6.6")
@pytest.mark.parametrize("wrap", PIXELS)
def test_pixels_depend_only_on_the_seed_although_the_first_frame_fixes_the_camera(wrap):
    envs = [wrap(Filmed(length=9)) for _ in range(3)]
    envs[1].reset(seed=7)
    frames = [[env.reset(seed=5)[0]["pixels"], env.step(0)[0]["pixels"]] for env in envs]
    assert equal_bits(frames[0], frames[1])
    assert equal_bits(frames[0], frames[2])
    assert frames[0][0][0, 0, 1] == 5
    drawn = {wrap(Filmed()).reset()[0]["pixels"][0, 0, 1] for _ in range(20)}
    assert len(drawn) > 1  # the generator is left unseeded


# Frames in threads.


class Meets(CountingEnv):
    """Env that tells whether two envs render at the same time. Outside resets it waits for the other env."""

    patience = 0.05

    def __init__(self, env_id, inside, met):
        super().__init__(env_id)
        self.inside, self.met = inside, met

    def render(self):
        if self.t:
            self.inside.append(self.env_id)
            if len(self.inside) > 1:
                self.met.set()
            self.met.wait(self.patience)
            self.inside.remove(self.env_id)
        return super().render()


@pytest.mark.parametrize("gfxdraw", [True, False])
def test_frames_are_made_in_turn_where_gfxdraw_may_draw_them(gfxdraw, monkeypatch):
    """Other envs do not wait for each other: a simulator behind a port may take long to send a frame."""
    if not gfxdraw:
        monkeypatch.delitem(sys.modules, "pygame.gfxdraw")
        monkeypatch.setattr(Meets, "patience", 20)
    inside, met = [], threading.Event()
    fns = [lambda i=i: GymEnv(Meets(i, inside, met), from_pixels=True) for i in range(2)]
    with ThreadVectorEnv(fns, num_workers=2) as venv:
        venv.reset()
        venv.step([0, 0])
        if gfxdraw:
            venv.render()
            venv.call("render")
    assert met.is_set() is not gfxdraw


def test_a_frame_that_never_comes_does_not_keep_the_others_waiting(monkeypatch):
    monkeypatch.setattr("vecenv.backends.host.env_access.RENDER_PATIENCE", 0.05)
    begun, end = threading.Event(), threading.Event()

    class Hangs(CountingEnv):
        def render(self):
            begun.set()
            end.wait(60)
            return super().render()

    hangs = threading.Thread(target=partial(GymEnv, Hangs(), from_pixels=True))
    hangs.start()
    assert begun.wait(60)
    GymEnv(CountingEnv(), from_pixels=True)
    assert hangs.is_alive()
    end.set()
    hangs.join()
