"""`DMControlEnv`: env of the DeepMind control suite.

Without a display, MUJOCO_GL must be set before MuJoCo's renderer is imported, or the first frame ends the process.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from vecenv.envs.gym_env import ClassProperty, check_frame_skip

OPENGL_ADVICE = (
    'install an OpenGL that needs no display ("apt-get install libegl1" or "apt-get install libosmesa6", then start '
    "the program again), or set MUJOCO_GL to egl, osmesa or glfw before the program starts"
)

_rendered = _rendered_before_fork = False


def _record_fork() -> None:
    global _rendered_before_fork
    _rendered_before_fork = _rendered


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_record_fork)


def begin_rendering() -> None:
    """Record that this process renders. Raise RuntimeError if the parent rendered before a fork (OpenGL would hang)."""
    global _rendered
    if _rendered_before_fork:
        raise RuntimeError(
            "this process was forked from one that had already rendered with MuJoCo, and OpenGL does not survive a "
            'fork; make vector envs with context="forkserver" (the default) or "spawn"'
        )
    _rendered = True


def choose_gl() -> None:
    """Set MUJOCO_GL on Linux without a display, to the first of `egl`, `osmesa` and `disabled` that can be loaded.

    Do nothing if MUJOCO_GL is set or dm_control is imported.
    """
    has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if sys.platform != "linux" or has_display or "MUJOCO_GL" in os.environ or "dm_control" in sys.modules:
        return
    for gl in ("egl", "osmesa", "disabled"):
        os.environ["MUJOCO_GL"] = gl
        try:
            importlib.import_module("dm_control._render")
            return
        except Exception:  # also PyOpenGL's errors for a missing library
            os.environ.pop("PYOPENGL_PLATFORM", None)
            for name in [name for name in sys.modules if name.partition(".")[0] in ("dm_control", "OpenGL")]:
                del sys.modules[name]
    del os.environ["MUJOCO_GL"]  # dm_control is not installed


PIXELS = "pixels"
_CLOSED = "is closed"
_MAX_SEED = 2**32
"""Seeds of numpy's RandomState are below this number."""


class DMControlEnv(gymnasium.Env):
    """Gymnasium env for a task of dm_control's suite, with arguments and observation keys of torchrl's DMControlEnv.

    Arguments:
        domain, task: for example "cartpole" and "swingup". `DMControlEnv.available_envs` is {domain: tasks}.
            An unknown pair raises RuntimeError.
        from_pixels: observe frames, uint8 (height, width, 3), under the key "pixels".
        pixels_only: observe only frames. False: add frames to the task's observations.
        camera_id: number or name of the camera; -1 is the free camera. An unknown camera raises ValueError.
        height, width: size of frames.
        frame_skip: steps per action (fewer if the episode ends). Rewards are summed, and only the last frame is
            rendered.
        render_mode: "rgb_array" allows `render`.
        task_kwargs, environment_kwargs: arguments of dm_control's `suite.load`.

    Observations are dicts of float64 arrays (and "pixels"). Scalars have the shape (1,). An episode that ends with a
    discount below 1 is `terminated`, otherwise `truncated` (as in dm_env). A step outside an episode raises
    RuntimeError, because dm_control would silently start an episode. `reset(seed=s)` starts the same episode as
    `task_kwargs={"random": s}`, except in lqr, where `task_kwargs` also changes the model.

    On Linux without a display, this class sets MUJOCO_GL to "egl", "osmesa" or "disabled", unless you set it. Raises
    RuntimeError if rendering fails, and ImportError without dm_control: `pip install 'vecenv[dmcontrol]'`, on Python
    3.11 or 3.12.

    >>> env = DMControlEnv("cartpole", "swingup", frame_skip=2)
    >>> obs, info = env.reset(seed=0)
    >>> {name: part.shape for name, part in obs.items()}
    {'position': (3,), 'velocity': (2,)}
    >>> env.close()
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}
    available_envs = ClassProperty(
        lambda: {domain: [*tasks] for domain, tasks in _load_suite().TASKS_BY_DOMAIN.items()}
    )

    def __init__(
        self,
        domain: str,
        task: str,
        *,
        from_pixels: bool = False,
        pixels_only: bool = True,
        camera_id: int | str = 0,
        height: int = 240,
        width: int = 320,
        frame_skip: int | None = None,
        render_mode: str | None = None,
        task_kwargs: Mapping[str, Any] | None = None,
        environment_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        frame_skip = check_frame_skip(frame_skip)
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f'render_mode must be "rgb_array" or None, got {render_mode!r}')
        self.render_mode = render_mode
        self._name = f"{domain}, {task}"
        self.frame_skip = frame_skip
        self._render_arguments = {"height": height, "width": width, "camera_id": camera_id}
        self.from_pixels, self.pixels_only = from_pixels, from_pixels and pixels_only
        self._step_refusal: str | None = "has not been reset"
        self._env = _load(domain, task, task_kwargs or {}, environment_kwargs)
        self._check_camera(camera_id)
        self.metadata = {**self.metadata, "render_fps": round(1 / self._env.control_timestep() / frame_skip)}
        self.action_space = _space(self._env.action_spec())
        self.observation_space = self._spaces(height, width)
        if from_pixels:
            self._frame()  # raise now if rendering does not work

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        if self._step_refusal == _CLOSED:
            raise RuntimeError(f"the env ({self._name}) {_CLOSED}")
        super().reset(seed=seed)
        if seed is not None:
            _seed(self._env, seed % _MAX_SEED)
        self._step_refusal = None
        return self._observation(self._env.reset()), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        if self._step_refusal is not None:
            raise RuntimeError(f"the env ({self._name}) {self._step_refusal}; call reset() before step()")
        if np.shape(action) != self.action_space.shape:
            raise ValueError(f"the action has the shape {np.shape(action)}, expected {self.action_space.shape}")
        reward = 0.0
        for _ in range(self.frame_skip):
            timestep = self._env.step(action)
            reward += float(timestep.reward)
            if timestep.last():
                self._step_refusal = "has ended its episode"
                break
        terminated = timestep.last() and bool(timestep.discount < 1.0)
        return self._observation(timestep), reward, terminated, timestep.last() and not terminated, {}

    def render(self) -> np.ndarray:
        if self.render_mode is None:
            raise RuntimeError('render() needs an env that was made for it: DMControlEnv(..., render_mode="rgb_array")')
        return self._frame()

    def close(self) -> None:
        if self._step_refusal != _CLOSED:
            self._step_refusal = _CLOSED
            self._env.physics.free()

    @property
    def physics(self) -> Any:
        """dm_control's `Physics`, to read or change the state."""
        return self._env.physics

    def _check_camera(self, camera_id: Any) -> None:
        model = self._env.physics.model
        names = [model.id2name(i, "camera") for i in range(model.ncam)]
        if camera_id not in names and camera_id not in range(-1, len(names)):
            raise ValueError(
                f"the task ({self._name}) has no camera {camera_id!r}; it has {names}, numbered from 0, and -1, "
                "the free camera"
            )

    def _spaces(self, height: int, width: int) -> spaces.Dict:
        parts: dict[str, spaces.Space[Any]] = {}
        if not self.pixels_only:
            parts = {name: _space(spec) for name, spec in self._env.observation_spec().items()}
        if self.from_pixels:
            if PIXELS in parts:
                raise ValueError(f"the task ({self._name}) already has an observation named {PIXELS!r}")
            parts[PIXELS] = spaces.Box(0, 255, (height, width, 3), np.uint8)
        return spaces.Dict(parts)

    def _observation(self, timestep: Any) -> dict[str, Any]:
        """Return copies, because dm_control reuses its buffers."""
        parts = {}
        if not self.pixels_only:
            parts = {name: np.array(value, ndmin=1) for name, value in timestep.observation.items()}
        if self.from_pixels:
            parts[PIXELS] = self._frame()
        return parts

    def _frame(self) -> np.ndarray:
        begin_rendering()
        try:
            frame = self._env.physics.render(**self._render_arguments)
        except ValueError:  # wrong size or camera
            raise
        except Exception as error:
            raise RuntimeError(f"MuJoCo cannot render here ({error}); {OPENGL_ADVICE}") from error
        return np.array(frame, order="C")


def _load_suite() -> Any:
    choose_gl()
    try:
        from dm_control import suite
    except ImportError as error:
        advice = "pip install 'vecenv[dmcontrol]'"
        if sys.version_info >= (3, 13):
            version = f"{sys.version_info[0]}.{sys.version_info[1]}"
            advice = f"use Python 3.12, because labmaze, which dm_control needs, has no wheel for Python {version}"
        raise ImportError(f"DMControlEnv needs dm_control, which cannot be imported ({error}): {advice}") from error
    return suite


def _load(domain: str, task: str, task_kwargs: Mapping[str, Any], environment_kwargs: Any) -> Any:
    suite = _load_suite()
    if (domain, task) not in suite.ALL_TASKS:
        known = suite.TASKS_BY_DOMAIN.get(domain)
        there = f"the domains are {sorted(suite.TASKS_BY_DOMAIN)}" if known is None else f"the domain has {list(known)}"
        raise RuntimeError(f"dm_control has no task {task!r} in the domain {domain!r}; {there}")
    # Seed 0, so that all workers make the same random model (lqr). `_seed(env, None)` makes episodes differ.
    random = {} if "random" in task_kwargs else {"random": 0}
    env = suite.load(domain, task, {**task_kwargs, **random}, environment_kwargs)
    if random:
        _seed(env, None)
    return env


def _seed(env: Any, seed: int | None) -> None:
    env.task._random = np.random.RandomState(seed)


def _space(spec: Any) -> spaces.Box:
    low, high = getattr(spec, "minimum", -np.inf), getattr(spec, "maximum", np.inf)
    shape = spec.shape or (1,)
    return spaces.Box(
        np.broadcast_to(low, shape).astype(spec.dtype),
        np.broadcast_to(high, shape).astype(spec.dtype),
        dtype=spec.dtype,
    )
