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

from vecenv.envs.frame_skip import RepeatsActions, check_frame_skip, repeated_step, skips_by_itself
from vecenv.envs.pixels import Pixels


class _AvailableEnvs:
    """A property of the class: the ids change while modules register envs."""

    def __get__(self, env: Any, cls: Any) -> list[str]:
        return sorted(gymnasium.registry)


class GymEnv(gymnasium.Wrapper, RecordConstructorArgs, RepeatsActions):
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
        self._render_kwargs = dict(render_kwargs or {})
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
        super().__init__(made)
        try:
            self.repeats = 1 if skips_by_itself(made, frame_skip) else self.frame_skip
            self._observes(made.observation_space)
        except BaseException:
            if made is not given:
                made.close()
            raise

    def _observes(self, own: Any) -> None:
        """Settle what is observed, given the env's own space."""
        self._is_picture = _is_picture(own)
        self._pixels: Pixels | None = None
        if self._is_picture:
            self.from_pixels = True
            self.observation_space = spaces.Dict({"pixels": own})
        elif isinstance(own, spaces.Dict) and "pixels" in own.spaces:
            self.from_pixels = True
        elif self.from_pixels:
            self._pixels = Pixels(self.env, self.pixels_only, render_kwargs=self._render_kwargs)
            self.observation_space = self._pixels.space()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode: (obs, info)."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._observation(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Give the action to the env, `frame_skip` times or until the episode ends."""
        obs, reward, terminated, truncated, info = repeated_step(self.env, action, self.repeats)
        return self._observation(obs), reward, terminated, truncated, info

    def _observation(self, obs: Any) -> Any:
        if self._is_picture:
            return {"pixels": obs}
        return obs if self._pixels is None else self._pixels.observation(obs)


def _make(name: str, frame_skip: int | None, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """The env, which skips frames by itself if it can."""
    module, _, env_id = name.rpartition(":")
    if not module and env_id.startswith("ALE/") and env_id not in gymnasium.registry:
        module = "ale_py"
    if module:
        _import_module(module, name)
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
    """The spec of a registered env; of the latest version, as in `gymnasium.make`, where the id names none."""
    namespace, name, version = parse_env_id(env_id)
    if version is None:
        version = find_highest_version(namespace, name)
    return gymnasium.spec(get_env_id(namespace, name, version))


def _takes_frameskip(env_id: str) -> bool:
    """Whether the constructor of the env has an argument `frameskip`."""
    try:
        entry_point = find_spec(env_id).entry_point
    except gymnasium.error.Error:  # gymnasium.make raises a better error
        return False
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    return creator is not None and "frameskip" in inspect.signature(creator).parameters


def _is_picture(space: Any) -> bool:
    """Whether an observation is a picture in colour (the rule of torchrl)."""
    return (
        isinstance(space, spaces.Box)
        and len(space.shape) == 3
        and space.shape[-1] == 3
        and space.dtype == np.uint8
        and bool((space.low == 0).all() and (space.high == 255).all())
    )
