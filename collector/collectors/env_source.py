"""Make a collector's vector env from its `create_env_fn`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Env, spaces
from gymnasium.vector import VectorEnv

from vecenv import ShmemVectorEnv, VectorEnvWrapper
from vecenv.arguments import OF_WORKERS, check_mapping, check_options, resolve_env_fns
from vecenv.transforms import TransformedVectorEnv
from vecenv.transforms.compose import flat
from vecenv.tuning.auto_backend import VECTOR_ENVS

PROCESSES = ("num_workers", *OF_WORKERS)
"""Keywords that require a vector env with worker processes."""
_IF_BY_ID = (
    "or pass from_gymnasium(envs, resets_by_id=True) if its reset takes options['reset_mask'] and a seed per env"
)


class VectorEnvMaker:
    """Maker of a vector env from a list of env_fns, with a collector's `backend` and `env_options`.

    default: backend if `backend` is `None`. A default of "dummy" becomes "shmem" if `options` has a key of `PROCESSES`.
    """

    def __init__(self, user: type[Any], backend: str | None, default: str, options: Mapping[str, Any]) -> None:
        if backend is not None and backend not in VECTOR_ENVS:
            raise ValueError(f"backend must be one of {list(VECTOR_ENVS)}, or None for {default!r}; got {backend!r}")
        options = {name: value for name, value in options.items() if value is not None}
        if backend is None:
            backend = "shmem" if default == "dummy" and not options.keys().isdisjoint(PROCESSES) else default
            self._given = [*options]
        else:
            self._given = ["backend", *options]
        kind = VECTOR_ENVS[backend]
        takers = kind if isinstance(kind, type) else ShmemVectorEnv
        check_options(user, options, user, takers, hidden=("env_fns", "worker_fn", "share_memory", "lazy"))
        self._make, self._options = kind, options
        self._used = False

    def __call__(self, env_fns: Sequence[Callable[[], Any]]) -> Any:
        self._used = True
        return self._make(env_fns, **self._options)

    def check_used(self) -> None:
        if self._given and not self._used:
            raise ValueError(
                f"{' and '.join(self._given)} cannot be used with a vector env that is already made: set them in the "
                "vector env you pass, or pass a list of callables that make one env each"
            )


def make_vector_env(source: Any, kwargs: dict[str, Any] | None, make: Callable[[list[Callable[[], Any]]], Any]) -> Any:
    """Return the vector env of `source` (`create_env_fn`)."""
    kwargs = check_mapping("create_env_kwargs", kwargs)
    if isinstance(source, str):
        raise TypeError(f"create_env_fn is the text {source!r}: for 8 such envs pass [{source!r}] * 8")
    if isinstance(source, Sequence) and len(source) == 1 and hasattr(source[0], "step") and not callable(source[0]):
        source = source[0]
    if isinstance(source, Sequence):
        source = [partial(gymnasium.make, each) if isinstance(each, str) else each for each in source]
        for env_id, each in enumerate(source):
            if not callable(each):
                raise TypeError(
                    f"create_env_fn[{env_id}] must be a callable that makes an env; got {each!r}: "
                    "pass lambda: make_env() instead of make_env()"
                )
        return make([partial(each, **kwargs) for each in resolve_env_fns(source)])
    if not callable(source) and not hasattr(source, "step"):
        raise TypeError(f"create_env_fn must be a vector env, a callable that makes one, or a list; got {source!r}")
    made_here = isinstance(source, type) or not hasattr(source, "step")
    if made_here:
        source = source(**kwargs)
    elif kwargs:
        raise RuntimeError(
            f"create_env_kwargs={kwargs} cannot be used, because the env already exists: {source}; pass a callable "
            "that makes the env"
        )
    if instead := _unsupported_error(source):
        if made_here:
            source.close()
        raise TypeError(instead)
    source = below_facade(source)
    if isinstance(source, VectorEnv):
        from vecenv import from_gymnasium

        given = source
        try:
            source = from_gymnasium(given)
        except BaseException:
            if made_here:
                given.close()
            raise
    if getattr(source, "lazy", False):
        source.start()
    return source if hasattr(source, "env_num") else make([lambda: source])


def below_facade(env: Any) -> Any:
    """Return the vector env below vecenv's gymnasium facade, which would reset envs by itself, or `env`."""
    below = vars(env).get("venv") if isinstance(env, VectorEnv) else None
    return below if hasattr(below, "env_num") else env


def is_wrapped(source: Any) -> bool:
    """Return True if `make_vector_env` wraps a gymnasium VectorEnv, which the end of an unreleased wrapper closes."""
    return isinstance(below_facade(source), VectorEnv)


def with_transforms(env: Any, transforms: Any, policy: Any, device: Any) -> Any:
    """Wrap the vector env in transforms that run on `device` (default: the policy's device)."""
    if transforms is None:
        return env
    has_tensors = getattr(env, "returns_tensors", False)  # they are on their device already
    if not has_tensors and (device is not None or sys.modules.get("torch") is not None):
        from collector.device.tensors import resolve_device, tensors_of, torch

        home = next((tensor.device for tensor in tensors_of(policy)), torch.device("cpu"))
        target = home if device is None else resolve_device(device)
        if target.type != "cpu":
            from collector.device.torch_vector_env import TransformedOnDevice

            return TransformedOnDevice(env, transforms, target)
    return TransformedVectorEnv(env, transforms)


class SeededReset(VectorEnvWrapper):
    """Wrapper that keeps the results of the reset in `set_seed`."""

    found: tuple[Any, ...] = ()
    """Ids, observations and infos of the envs that were reset, or `()`."""

    def reset(self, id: Any = None, **kwargs: Any) -> tuple[Any, np.ndarray]:
        obs, info = self.venv.reset(id, **kwargs)
        self.found = np.arange(len(self)) if id is None else np.asarray(id), obs, info
        return obs, info


def vector_env_remaker(
    kwargs: dict[str, Any] | None, make: VectorEnvMaker, transforms: Any, policy: Any, device: Any
) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]:
    """Return a function that makes a second vector env from a source, with cloned transforms, and `with_transforms`
    for the policy's device.
    """

    def add(env: Any, transforms: Any) -> Any:
        return with_transforms(env, transforms, policy, device)

    def remake(source: Any) -> Any:
        clones = None if transforms is None else [each.clone() for each in flat(transforms)]
        return add(make_vector_env(source, kwargs, make), clones)

    return remake, add


def check_synchronous(env: Any, user: str, cuts: bool) -> None:
    """Raise `ValueError` if a step does not wait for all envs, or if `check_rounds` raises."""
    if env.is_async:
        raise ValueError(
            f"{user} waits for all envs in each round: use AsyncDataCollector for a vector env with wait_num or "
            "timeout, or make the vector env without these options"
        )
    check_rounds(env, mixed=False, cuts=cuts)


def check_rounds(env: Any, mixed: bool, cuts: bool) -> None:
    """Raise `ValueError` if the vector env steps all envs together and cannot make the resets that a collector needs.

    mixed: the collector resets envs while other envs step. cuts: the collector resets envs in mid-episode. With `cuts`,
        no observation may have a key `step_count`.
    """
    if cuts:
        check_step_count(env.observation_space)
    if not getattr(env, "steps_together", False):
        return
    if mixed and not env.resets_in_next_step:
        raise ValueError(
            f"{env!r} cannot reset some envs while other envs step, as an asynchronous collector does: use "
            "SyncDataCollector, or autoreset_mode NEXT_STEP"
        )
    if not mixed and not env.resets_alone:
        instead = "use AsyncDataCollector" if env.resets_in_next_step else "make it with autoreset_mode SAME_STEP"
        raise ValueError(
            f"{env!r} is not known to reset an env between two steps, as a synchronous collector does: {instead}; "
            f"{_IF_BY_ID}"
        )
    if cuts and (mixed or not env.resets_by_id):
        raise ValueError(
            f"{env!r} cannot reset an env in the middle of an episode, as max_frames_per_traj demands: give its envs a "
            f"time limit{'' if mixed else '; ' + _IF_BY_ID}"
        )


def check_separate_envs(env: Any) -> None:
    if getattr(env, "steps_together", False) or getattr(env, "seeds_together", False):
        raise ValueError(
            f"{env!r} steps or seeds all envs together, but episode_seeds give each env its own seed when its episode "
            "ends: pass a list of functions that each make one env"
        )


def check_step_count(observation_spaces: Sequence[Any]) -> None:
    for env_id, space in enumerate(observation_spaces):
        if isinstance(space, spaces.Dict) and "step_count" in space.spaces:
            raise ValueError(
                f"env {env_id} already has a 'step_count' in its observations, so it counts its own steps; "
                "rename the entry, or do not pass max_frames_per_traj"
            )


def _unsupported_error(source: Any) -> str | None:
    tensors = sys.modules.get("collector.device.torch_vector_env")
    if tensors is not None and isinstance(source, tensors.TorchVectorEnv):
        return "collectors move observations themselves: pass the vector env without TorchVectorEnv around it"
    if isinstance(source, Env) or hasattr(source, "env_num") or not hasattr(source, "num_envs"):
        return None
    if hasattr(source, "possible_agents"):
        return (
            f"{type(source).__name__} steps many agents in each env, and collectors step one agent per env: pass "
            "flatten_agents(env) if env is a ParallelVectorEnv, or a list of functions that each make a "
            "PettingZooEnv(...)"
        )
    if isinstance(source, VectorEnv):
        return None
    is_ours = hasattr(getattr(source, "venv", None), "env_num")
    instead = "its `.venv`" if is_ours else "a list of callables that make one env each"
    return (
        f"{type(source).__name__} resets envs by itself, as vector envs of Stable-Baselines3 do, but collectors decide "
        f"when an env is reset: pass {instead}"
    )
