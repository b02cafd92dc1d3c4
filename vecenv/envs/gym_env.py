"""GymEnv: a gymnasium env by its name, with repeated actions and observations in pixels on request."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, load_env_creator, parse_env_id
from gymnasium.utils import RecordConstructorArgs

from vecenv.envs.frame_wrappers import Pixels, check_frame_skip, skip_frames


class _AvailableEnvs:
    """A property of the class: the ids change while modules register envs."""

    def __get__(self, env: Any, cls: Any) -> list[str]:
        return sorted(gymnasium.registry)


class GymEnv(gymnasium.Wrapper, RecordConstructorArgs):
    """A gymnasium env made by its name (arguments of torchrl's GymEnv). It is a `gymnasium.Env` as any other.

    `gymnasium.make(env.spec)` makes the same again.

    Observations in pixels are a dict with the key `pixels`, uint8 (height, width, 3). An env that observes pictures by
    itself, such as Atari's, has them under that key too; all other observations stay as they are.

    Arguments:
        env_name: the id of a registered env, `module:id` to import `module` first, or an env. Envs in `ALE/` are found
            without an import.
        frame_skip: give each action to the env this many times: the rewards are summed, the observation and info are
            the last, and the end of the episode ends it. An env that takes `frameskip` itself (Atari) is made with
            it, and skips no second time; nor does one that is known to skip: by its `frameskip`, or by gymnasium's
            MaxAndSkipObservation, RepeatAction or AtariPreprocessing. None leaves the env as it is.
        from_pixels: observe what `render` returns; the env is made with `render_mode="rgb_array"`.
        pixels_only: with `from_pixels`, drop the env's own observation. False keeps it as well, as `observation` or
            under the keys of its Dict.
        render_kwargs: arguments for the env's own `render` when it is observed. Most envs take width and height when
            they are made instead: pass those in `kwargs`.
        env: an env, instead of `env_name`: the name under which `gymnasium.make` passes it.
        kwargs: for `gymnasium.make`.

    Attributes: `frame_skip` (int), `from_pixels` (also True where the env observes pictures by itself), `pixels_only`.
    `GymEnv.available_envs` lists the ids that are registered now.

    Raises ValueError for a `frame_skip` that is no positive integer or contradicts that of the env itself, and where
    nothing can be rendered; TypeError for what is neither name nor env; ImportError for an Atari env without ale-py.

    >>> env = GymEnv("Pendulum-v1", frame_skip=4)
    >>> obs, info = env.reset(seed=0)
    >>> obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
    >>> obs.shape, env.frame_skip, "CartPole-v1" in GymEnv.available_envs
    ((3,), 4, True)
    """

    available_envs = _AvailableEnvs()

    def __init__(
        self,
        env_name: str | gymnasium.Env[Any, Any] | None = None,
        *,
        frame_skip: int | None = None,
        from_pixels: bool = False,
        pixels_only: bool = True,
        render_kwargs: dict[str, Any] | None = None,
        env: gymnasium.Env[Any, Any] | None = None,
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
        given = env if env_name is None else env_name
        if isinstance(given, str):
            if from_pixels:
                kwargs.setdefault("render_mode", "rgb_array")
            made = _make(given, frame_skip, kwargs)
        elif isinstance(given, gymnasium.Env):
            if kwargs:
                raise TypeError(
                    f"{sorted(kwargs)} are arguments for gymnasium.make; the env given has been made already"
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

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode: (obs, info)."""
        obs, info = self.env.reset(seed=seed, options=options)
        return {"pixels": obs} if self._is_picture else obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Give the action to the env, `frame_skip` times or until the episode ends."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return {"pixels": obs} if self._is_picture else obs, reward, terminated, truncated, info


def _make(name: str, frame_skip: int | None, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """The env, which skips frames by itself if it can."""
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


def _import_module(module: str, name: str) -> None:
    """Import what registers the env `name`."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != "ale_py":
            raise
        raise ImportError(f"{name} needs ale-py: pip install 'vecenv[atari]'") from error


def find_spec(env_id: str) -> EnvSpec:
    """Find the spec of a registered env; of the latest version, as in `gymnasium.make`, where the id names none.

    "module:id" imports the module that registers it. Raises gymnasium's errors for an unknown id.
    """
    module, _, own_id = env_id.rpartition(":")
    if module:
        _import_module(module, own_id)
    try:
        namespace, name, version = parse_env_id(own_id)
        if version is None:
            version = find_highest_version(namespace, name)
        return gymnasium.spec(get_env_id(namespace, name, version))
    except gymnasium.error.Error as error:
        if module:
            error.args = (f"{error} The module {module!r} was imported, and registers no env {own_id!r}.",)
        raise


def _takes_frameskip(env_id: str) -> bool:
    """Return whether the constructor of the env has an argument `frameskip`."""
    try:
        entry_point = find_spec(env_id).entry_point
    except gymnasium.error.Error:  # gymnasium.make raises a better error
        return False
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    return creator is not None and "frameskip" in inspect.signature(creator).parameters


def _is_picture(space: Any) -> bool:
    """Return whether an observation is a picture in colour (the rule of torchrl)."""
    return (
        isinstance(space, spaces.Box)
        and len(space.shape) == 3
        and space.shape[-1] == 3
        and space.dtype == np.uint8
        and bool((space.low == 0).all() and (space.high == 255).all())
    )
