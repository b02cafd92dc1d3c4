"""`GymEnv`, and its wrappers for frame skip and pixels."""

from __future__ import annotations

import importlib
import inspect
import math
import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any
from weakref import WeakValueDictionary

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, load_env_creator, parse_env_id
from gymnasium.utils import RecordConstructorArgs

from vecenv.arguments import check_count, check_mapping
from vecenv.backends.host.env_access import render_in_turn

Env = gymnasium.Env[Any, Any]


class ClassProperty:
    def __init__(self, compute: Callable[[], Any]) -> None:
        self._compute = compute

    def __get__(self, env: Any, owner: type) -> Any:
        return self._compute()


class GymEnv(gymnasium.ObservationWrapper, RecordConstructorArgs):
    """Gymnasium env with the arguments of torchrl's GymEnv. `gymnasium.make(env.spec)` makes an equal env.

    An observation that is a colour image becomes a dict with the key `pixels`, uint8 (height, width, 3), even without
    `from_pixels`.

    Arguments:
        env_name: id of a registered env, `module:id` to import `module` first, or an env. `ALE/` ids import ale_py.
        frame_skip: steps per action (fewer if the episode ends). Rewards are summed. An env that already skips this
            number of frames (Atari, gymnasium's wrappers) is not changed.
        from_pixels: observe the rendered image. An env must have `render_mode="rgb_array"`. An id gets this mode.
        pixels_only: False: keep the env's observation too. If it is not a dict, its key is "observation".
        render_kwargs: arguments of the env's `render`. Most envs take width and height in `kwargs` instead.
        env: an env, in place of `env_name`.
        kwargs: arguments of `gymnasium.make`.

    Raises ValueError if `frame_skip` is below 1 or contradicts the env, or if the env cannot render. Raises TypeError
    for a `frame_skip` that is not an integer, for both or neither of `env_name` and `env`, and for `kwargs` with an
    env. Raises ImportError for an Atari env without ale-py.

    >>> env = GymEnv("Pendulum-v1", frame_skip=4)
    >>> obs, info = env.reset(seed=0)
    >>> obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
    >>> obs.shape, env.frame_skip, "CartPole-v1" in GymEnv.available_envs
    ((3,), 4, True)
    """

    available_envs = ClassProperty(lambda: sorted(gymnasium.registry))

    def __init__(
        self,
        env_name: str | Env | None = None,
        *,
        frame_skip: int | None = None,
        from_pixels: bool = False,
        pixels_only: bool = True,
        render_kwargs: dict[str, Any] | None = None,
        env: Env | None = None,
        **kwargs: Any,
    ) -> None:
        self.frame_skip = check_frame_skip(frame_skip)
        self.from_pixels, self.pixels_only = from_pixels, pixels_only
        RecordConstructorArgs.__init__(
            self,
            frame_skip=None if frame_skip is None else self.frame_skip,
            from_pixels=from_pixels,
            pixels_only=pixels_only,
            render_kwargs=render_kwargs,
        )
        if env_name is not None and env is not None:
            raise TypeError(f"env_name and env were both passed, expected one of them: {env_name!r} and {env!r}")
        given = env if env_name is None else env_name
        if isinstance(given, str):
            if from_pixels:
                kwargs.setdefault("render_mode", "rgb_array")
            made = _make(given, frame_skip, kwargs)
        elif isinstance(given, gymnasium.Env):
            if kwargs:
                raise TypeError(
                    f"{sorted(kwargs)} are arguments for gymnasium.make: pass them with an id, not with an env"
                )
            made = given
        else:
            raise TypeError(f"env_name must be the id of an env or an env, got {given!r}")
        try:
            env = skip_frames(made, frame_skip)
            own = made.observation_space
            self._is_picture = _is_picture(own)
            if not self._is_picture and from_pixels and not (isinstance(own, spaces.Dict) and "pixels" in own.spaces):
                env = Pixels(env, pixels_only, render_kwargs=render_kwargs)
        except BaseException:
            if made is not given:
                made.close()
            raise
        super().__init__(env)
        if self._is_picture:
            self.observation_space = spaces.Dict({"pixels": own})
        if isinstance(self.observation_space, spaces.Dict) and "pixels" in self.observation_space.spaces:
            self.from_pixels = True

    def observation(self, observation: Any) -> Any:
        return {"pixels": observation} if self._is_picture else observation


def _make(name: str, frame_skip: int | None, kwargs: dict[str, Any]) -> Env:
    module, _, env_id = name.rpartition(":")
    if not module and env_id.startswith("ALE/") and env_id not in gymnasium.registry:
        module = "ale_py"
    if module:
        find_spec(f"{module}:{env_id}")
    if frame_skip is not None:
        if kwargs.get("frameskip", frame_skip) != frame_skip:
            raise ValueError(
                f"frame_skip={frame_skip} contradicts frameskip={kwargs['frameskip']!r}; pass frame_skip only"
            )
        if _takes_frameskip(env_id):
            kwargs["frameskip"] = int(frame_skip)
    return gymnasium.make(env_id, **kwargs)


def find_spec(env_id: str) -> EnvSpec:
    """Return the spec of a registered env, by default the latest version. "module:id" imports the module."""
    module, _, own_id = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        namespace, name, version = parse_env_id(own_id)
        if version is None:
            version = find_highest_version(namespace, name)
        return gymnasium.spec(get_env_id(namespace, name, version))
    except gymnasium.error.Error as error:
        if module:
            error.args = (f"{error} The module {module!r} was imported, and registers no env {own_id!r}.",)
        raise
    except ModuleNotFoundError as error:
        if error.name != "ale_py":
            raise
        raise ImportError(f"{own_id} needs ale-py: pip install 'vecenv[atari]'") from error


def _takes_frameskip(env_id: str) -> bool:
    try:
        entry_point = find_spec(env_id).entry_point
    except gymnasium.error.Error:  # gymnasium.make raises a better error
        return False
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    return creator is not None and "frameskip" in inspect.signature(creator).parameters


def _is_picture(space: Any) -> bool:
    """Return True if an observation is a colour image (by torchrl's rule)."""
    return (
        isinstance(space, spaces.Box)
        and len(space.shape) == 3
        and space.shape[-1] == 3
        and space.dtype == np.uint8
        and bool((space.low == 0).all() and (space.high == 255).all())
    )


class SkipFrames(gymnasium.Wrapper):
    """Wrapper that makes `repeats` steps per action, and sums the rewards."""

    spec = property(attrgetter("env.spec"))  # `GymEnv` makes this wrapper, so the spec must not list it

    def __init__(self, env: Env, repeats: int) -> None:
        super().__init__(env)
        self.repeats = repeats

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        for _ in range(self.repeats - 1):
            if terminated or truncated:
                break
            obs, more, terminated, truncated, info = self.env.step(action)
            reward = reward + more  # type: ignore[operator]
        return obs, reward, terminated, truncated, info


def check_frame_skip(frame_skip: Any) -> int:
    return 1 if frame_skip is None else check_count("frame_skip", frame_skip)


def skip_frames(env: Env, frame_skip: int | None) -> Env:
    own = _frame_skips(env)
    if frame_skip is None or (frame_skip == 1 and not own):
        return env
    if not own:
        return SkipFrames(env, int(frame_skip))
    if all(isinstance(skip, (int, np.integer)) for skip in own) and math.prod(own) == frame_skip:
        return env
    raise ValueError(
        f"frame_skip={frame_skip}, but {env} skips frames already: {' times '.join(map(str, own))} per step; pass "
        "frame_skip=None to keep this number, or an env that does not skip frames"
    )


def _frame_skips(env: Env) -> list[Any]:
    skips: list[Any] = []
    while isinstance(env, gymnasium.Wrapper):
        skips += [getattr(env, _SKIPPING[cls.__name__], None) for cls in type(env).__mro__ if cls.__name__ in _SKIPPING]
        env = env.env
    spec_kwargs = {} if env.spec is None else env.spec.kwargs
    skips.append(getattr(env, "_frameskip", getattr(env, "frameskip", spec_kwargs.get("frameskip", 1))))
    return [skip for skip in skips if skip not in (None, 1)]


_SKIPPING = {
    "SkipFrames": "repeats",
    "MaxAndSkipObservation": "_skip",
    "RepeatAction": "num_repeats",
    "AtariPreprocessing": "frame_skip",
}


_FILMED = WeakValueDictionary[int, Env]()
"""Base envs whose first frame `Pixels` has rendered, by `id`."""


class Pixels(gymnasium.ObservationWrapper):
    """Wrapper that adds rendered frames to the observation under `key`. With `only`, frames replace the observation.

    Without `shape`, or if the env has rendered no frame for this class, the wrapper resets the env twice to get the
    shape of a frame. If pygame's gfxdraw is imported, threads render in turn, because gfxdraw is not thread-safe.
    """

    spec = property(attrgetter("env.spec"))

    def __init__(
        self,
        env: Env,
        only: bool,
        key: str = "pixels",
        render_kwargs: dict[str, Any] | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        if env.render_mode != "rgb_array":
            raise ValueError(f'from_pixels needs an env with render_mode="rgb_array", got {env.render_mode!r}')
        super().__init__(env)
        self._only, self._key, self._render_kwargs = only, key, check_mapping("render_kwargs", render_kwargs)
        self._in_turn = True
        """True for the first frame, which may import gfxdraw, and while gfxdraw is imported."""
        if shape is None or _FILMED.get(id(env.unwrapped)) is not env.unwrapped:
            shape = self._first_frame().shape
            _FILMED[id(env.unwrapped)] = env.unwrapped
        own = env.observation_space
        self.shape = shape
        parts = {} if only else own.spaces if isinstance(own, spaces.Dict) else {"observation": own}
        self.observation_space = spaces.Dict({**parts, key: spaces.Box(0, 255, shape, np.uint8)})

    def observation(self, observation: Any) -> dict[str, Any]:
        own = {} if self._only else observation if isinstance(observation, dict) else {"observation": observation}
        return {**own, self._key: self._frame()}

    def _first_frame(self) -> np.ndarray:
        """Render after a reset, because most envs cannot render before.

        The first frame may fix the camera (in gymnasium's MuJoCo envs). So all envs render it after the same seed.
        Another reset with fresh entropy then undoes that seed.
        """
        self.env.reset(seed=0)
        frame = self._frame()
        self.env.reset(seed=int(np.random.default_rng().integers(2**31)))
        return frame

    def _frame(self) -> np.ndarray:
        frame = render_in_turn(self._render) if self._in_turn else self._render()
        self._in_turn = "pygame.gfxdraw" in sys.modules
        if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.dtype != np.uint8:
            got = f"{frame.dtype} {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
            raise ValueError(
                f"from_pixels needs frames that are uint8 arrays (height, width, 3), render() of {self.env} returned "
                f"{'None' if frame is None else got}"
            )
        return frame.copy(order="C")

    def _render(self) -> Any:
        if not self._render_kwargs:
            return self.env.render()
        render: Any = self.env.unwrapped.render
        try:
            return render(**self._render_kwargs)
        except TypeError as error:
            raise TypeError(
                f"render() of {self.env} was called with render_kwargs={self._render_kwargs}: {error}; sizes are "
                "often arguments of the constructor: GymEnv(name, width=..., height=...)"
            ) from error
