"""`SB3VecEnv`: facade for Stable-Baselines3."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeGuard

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from vecenv import nest
from vecenv.arguments import check_seed
from vecenv.backends.columns import rows
from vecenv.backends.host.env_access import copy_if_possible
from vecenv.backends.host.row_writer import IMMUTABLE_TYPES
from vecenv.backends.info_batch import InfosById
from vecenv.base import BaseVectorEnv
from vecenv.engine.engine import Engine
from vecenv.engine.mark import BROKEN, Layer, is_layer_call, mark_of
from vecenv.engine.results import StepById
from vecenv.envs.from_gymnasium import from_gymnasium
from vecenv.errors import EnvContractError
from vecenv.facades.stepper import EndedStep, Stepper, check_arrays, check_resets
from vecenv.facades.to_gymnasium import GymnasiumVectorEnv

try:
    from stable_baselines3.common.vec_env import VecEnv
except ImportError as error:
    raise ImportError("SB3VecEnv needs Stable-Baselines3: pip install 'vecenv[sb3]'") from error


TRUNCATED = "TimeLimit.truncated"


class SB3VecEnv(Layer, VecEnv):
    """Vector env with the interface of Stable-Baselines3's `VecEnv`. See docs/guarantees.md.

    Results equal SB3's DummyVecEnv bit for bit: rewards float32 (n,), `dones` bool (n,), infos a list of dicts with
    `TimeLimit.truncated`. A step that ends an episode also resets the env. `infos[i]` then has `terminal_observation`,
    and the observation and `reset_infos[i]` belong to the next episode.

    Arguments:
        venv: a vecenv vector env whose envs have equal spaces, vecenv's AsyncVectorEnv or SyncVectorEnv (any autoreset
            mode), or any gymnasium `VectorEnv` with SAME_STEP. `close` closes it.

    Between `step_async` and `step_wait`, `reset` drops the step, `close` works, and other calls to envs raise
    RuntimeError.

    Raises TypeError for other objects, and ValueError for `wait_num`, `timeout`, `stack_obs=False`, different spaces,
    or a VectorEnv without SAME_STEP.

    >>> import gymnasium as gym
    >>> from vecenv import DummyVectorEnv
    >>> env = SB3VecEnv(DummyVectorEnv([lambda: gym.make("CartPole-v1")] * 2))
    >>> env.seed(0)
    [0, 1]
    >>> env.reset().shape
    (2, 4)
    >>> obs, rewards, dones, infos = env.step(np.array([0, 1]))
    >>> rewards, infos[0]
    (array([1., 1.], dtype=float32), {'TimeLimit.truncated': False})
    >>> env.close()
    """

    def __init__(self, venv: BaseVectorEnv | VectorEnv[Any, Any, Any]) -> None:
        self._facade = venv if _is_facade_of_ours(venv) else None
        """Gymnasium facade that was passed as `venv`, kept because its garbage collection would close the envs."""
        self.venv: Any = _checked(venv if self._facade is None else self._facade.venv)
        self.call_mark = mark_of(self.venv)
        self._stepper = Stepper(self.venv)
        engine = self._stepper.engine
        # A wrapper or subclass may change only `step` (as in tianshou), which `send` and `recv` would bypass.
        self._has_own_step = engine is None
        self._resets_in_step = self._stepper.autoresets
        self._steps_together = getattr(self.venv, "steps_together", False)
        self._copies_infos = self._stepper.has_env_objects
        self._has_own_halves = all(
            getattr(type(self), name) is getattr(SB3VecEnv, name) for name in ("step_async", "step_wait")
        )
        self._actions: Any = None
        self._pending = False
        super().__init__(self.venv.env_num, self.venv.observation_space[0], self.venv.action_space[0])
        self.metadata = dict(self.venv.metadata[0] or {})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.venv!r})"

    @is_layer_call
    def reset(self) -> Any:
        """Reset all envs with the values that `seed` and `set_options` stored. Return the observations."""
        if self.call_mark.owner == BROKEN:
            self.venv.engine.recover()
        self._drop_pending()
        seeds, options = self._seeds, self._options
        if not any(options) or all(entry is options[0] for entry in options):
            obs, infos = self._stepper.reset(None, **_arguments(seeds, options[0]))
        else:
            rows = [self._stepper.reset([i], **_arguments([seeds[i]], options[i])) for i in range(self.num_envs)]
            obs = nest.stack([nest.take(row, 0) for row, _ in rows])
            infos = [info for _, (info,) in rows]
        self.reset_infos = infos
        self._reset_seeds()
        self._reset_options()
        return nest.map(_own, obs)

    @is_layer_call
    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        if self._has_own_halves:
            self._check_idle()
            return self._results(self._stepper.step(actions, self._resets_in_step))
        self.step_async(actions)
        return self.step_wait()

    @is_layer_call
    def step_async(self, actions: np.ndarray) -> None:
        """Start a step. Raises ValueError for a wrong number of actions.

        If a wrapper or subclass overrides `step`, only `step_wait` steps and raises.
        """
        self._check_idle()
        if self._has_own_step:
            self._actions = actions
        else:
            self.venv.send(actions, autoreset=self._resets_in_step)
        self._pending = True

    @is_layer_call
    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Wait for the step. Return (obs, rewards, dones, infos).

        Raises RuntimeError if no step is pending, and EnvContractError for vector rewards.
        """
        if not self._pending:
            raise RuntimeError("step_wait() without step_async(): no step is pending")
        self._pending = False
        if self._has_own_step:
            return self._results(self._stepper.step(self._actions, self._resets_in_step))
        return self._results(self._stepper.receive(range(self.num_envs)))

    def _results(self, results: StepById) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        obs, rewards, terminated, truncated, env_infos = results
        if rewards.ndim != 1:
            raise EnvContractError(
                f"SB3 needs rewards that are numbers, the envs return the shape {rewards.shape[1:]}; wrap each env, "
                "for example with gymnasium.wrappers.TransformReward(env, sum)"
            )
        dones = terminated | truncated
        if self._stepper.engine is None:  # a wrapper may return views
            obs = nest.map(_own, obs)
        if not env_infos and not dones.any():
            return obs, rewards.astype(np.float32), dones, [{TRUNCATED: False} for _ in range(self.num_envs)]
        if isinstance(env_infos, InfosById):
            infos, last_obs = self._from_columns(env_infos)
        else:
            infos, last_obs = self._from_dicts((obs, rewards, terminated, truncated, env_infos), dones)
        for info, is_cut in zip(infos, (truncated > terminated).tolist(), strict=True):
            info[TRUNCATED] = is_cut
        for i, last in last_obs.items():
            if last is None:  # SB3 would add the value of the next episode's first observation
                infos[i][TRUNCATED] = False
            else:
                infos[i]["terminal_observation"] = last
        if self._copies_infos and env_infos:  # as SB3; other infos are copies already
            infos = [info if _is_plain(info) else copy_if_possible(info) for info in infos]
        return obs, rewards.astype(np.float32), dones, infos

    def _from_columns(self, env_infos: InfosById) -> tuple[list[dict[str, Any]], dict[int, Any]]:
        """Return infos, and last observations by id, of envs that step together and that the step has reset."""
        infos = rows(_without_metrics(env_infos.first_columns), self.num_envs)
        ids, last_obs, last_infos = env_infos.lasts()
        for i, last_info in zip(ids, last_infos, strict=True):
            self.reset_infos[i], infos[i] = infos[i], _without_metrics(last_info)
        return infos, dict(zip(ids, last_obs, strict=True))

    def _from_dicts(self, step: StepById, dones: np.ndarray) -> tuple[list[dict[str, Any]], dict[int, Any]]:
        """Return infos, and last observations by id. Reset the envs whose episode is over, if the step has not."""
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        last_obs: dict[int, Any] = {}
        for i, info in step[4].items():
            infos[i] = info
        if dones.any():
            ids = dones.nonzero()[0].tolist()
            ended = EndedStep(step, ids, self._resets_in_step)
            if ended.not_reset:
                first_obs, first_infos = self._stepper.reset(ended.not_reset)
                ended.begin(first_obs, dict(zip(ended.not_reset, first_infos, strict=True)))
            for i, last_info in zip(ids, ended.last_infos, strict=True):
                self.reset_infos[i], infos[i] = ended.infos[i], dict(last_info)
            last_obs = dict(zip(ids, ended.last_obs, strict=True))
        return infos, last_obs

    def _drop_pending(self) -> None:
        self._pending = False
        self._actions = None
        if not self.closed and self.venv.waiting_id:
            with suppress(Exception):
                self.venv.recv()

    def _check_idle(self) -> None:
        if self._pending:
            raise RuntimeError("a step is pending: call step_wait() first, or reset() to drop it")

    def close(self) -> None:
        self._pending = False
        (self.venv if self._facade is None else self._facade).close()

    @property
    def waiting(self) -> bool:
        """True if a step is pending."""
        return self._pending

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return bool(self.venv.is_closed)

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seed env i with `seed + i` at the next reset (`None`: random seeds). Return the seeds."""
        return super().seed(None if seed is None else check_seed(seed))

    def set_options(self, options: list[dict[str, Any]] | dict[str, Any] | None = None) -> None:
        """Set options of the next reset: a dict, or a list with a dict per env."""
        each = options if isinstance(options, (list, tuple)) else [options or {}]
        if not all(isinstance(entry, dict) for entry in each):
            raise TypeError(f"set_options() takes one dict, or a list of one dict for each env; got {options!r}")
        if isinstance(options, (list, tuple)) and len(options) != self.num_envs:
            raise ValueError(f"got {len(options)} options for {self.num_envs} envs; pass one dict, or one for each")
        if self._steps_together and any(entry is not each[0] and (entry or each[0]) for entry in each):
            raise ValueError(f"{self.venv!r} resets all its envs together: pass one dict of options for all envs")
        super().set_options(options)

    @property
    def envs(self) -> list[Any]:
        """Env objects. Raises AttributeError if the envs are not in this process."""
        envs: list[Any] | None = getattr(self.venv, "envs", None)
        if envs is None:
            raise AttributeError(
                f"{self} has no 'envs', because its envs are not in this process: use get_attr, set_attr and env_method"
            )
        return envs

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return self._each(indices, lambda ids: self.venv.get_env_attr(attr_name, ids))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set the attribute on the outermost wrapper, even if an inner layer has it (as SB3)."""
        self.env_method("__setattr__", attr_name, value, indices=indices)

    def has_attr(self, attr_name: str) -> bool:
        return all(self._ask(None, "has_attr", attr_name))

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Call a method of the envs `indices`, once per env. Return a result per index."""
        if isinstance(caller := self._stepper.call_target(), Engine):
            return self._ask(indices, "call", method_name, method_args, method_kwargs)
        if "id" in method_kwargs:
            raise TypeError(f"env_method() cannot pass on a keyword argument named 'id' through {caller!r}")
        return self._each(indices, lambda ids: caller.call(method_name, *method_args, id=ids, **method_kwargs))

    def env_is_wrapped(self, wrapper_class: type[gymnasium.Wrapper], indices: Any = None) -> list[bool]:
        """Return for each env whether it has a wrapper of this class or a subclass.

        False if the envs are in processes of gymnasium's AsyncVectorEnv.
        """
        name = f"{wrapper_class.__module__}.{wrapper_class.__qualname__}"
        return [name in found for found in self._ask(indices, "wrapper_classes")]

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Return an image per env. Warn and return a list of None unless `render_mode` is "rgb_array"."""
        self._check_idle()
        if self.render_mode != "rgb_array":
            warnings.warn(f'get_images() needs render_mode="rgb_array", got {self.render_mode!r}', stacklevel=2)
            return [None] * self.num_envs
        return self.venv.render()

    def _ask(self, indices: Any, op: str, *args: Any) -> list[Any]:
        calls = self.venv.engine.calls
        return self._each(indices, lambda ids: calls.run(np.array(ids), op, args))

    def _each(self, indices: Any, call: Callable[[list[int]], list[Any]]) -> list[Any]:
        ids = self._ids(indices)
        asked = list(dict.fromkeys(ids))
        values = dict(zip(asked, call(asked), strict=True)) if asked else {}
        return [values[i] for i in ids]

    def _ids(self, indices: Any) -> list[int]:
        self._check_idle()
        if indices is None:
            return list(range(self.num_envs))
        chosen = [operator.index(i) for i in (indices if hasattr(indices, "__iter__") else [indices])]
        for i in chosen:
            if not -self.num_envs <= i < self.num_envs:
                raise IndexError(f"env index {i} is out of range for {self.num_envs} envs")
        return [i % self.num_envs for i in chosen]


def _is_facade_of_ours(venv: Any) -> TypeGuard[GymnasiumVectorEnv]:
    return isinstance(venv, GymnasiumVectorEnv) and (type(venv).step, type(venv).reset) == (
        GymnasiumVectorEnv.step,
        GymnasiumVectorEnv.reset,
    )


def _checked(venv: Any) -> BaseVectorEnv:
    if isinstance(venv, VectorEnv):
        if (mode := venv.metadata.get("autoreset_mode")) is not AutoresetMode.SAME_STEP:
            raise ValueError(
                f"{venv} has autoreset_mode={mode}, but SB3 resets an env within the step: create it with "
                "autoreset_mode=AutoresetMode.SAME_STEP (of gymnasium.vector)"
            )
        return from_gymnasium(venv)
    if not isinstance(venv, BaseVectorEnv):
        raise TypeError(f"SB3VecEnv takes a vector env, such as ShmemVectorEnv(env_fns), got {type(venv).__name__}")
    if venv.is_async:
        raise ValueError("SB3 steps all envs together: make the vector env without wait_num and timeout")
    if venv.splits_obs:
        raise ValueError("SB3 takes Dict and Tuple observations stacked: make the vector env with stack_obs=True")
    check_arrays(venv)
    check_resets(venv, AutoresetMode.SAME_STEP)
    for name in ("observation_space", "action_space"):
        found = getattr(venv, name)
        for i, space in enumerate(found):
            if space != found[0]:
                raise ValueError(
                    f"SB3 needs envs with equal spaces: the {name} is {space} in env {i}, but {found[0]} in env 0"
                )
    return venv


def _arguments(seeds: Sequence[int | None], options: dict[str, Any]) -> dict[str, Any]:
    given = {} if all(seed is None for seed in seeds) else {"seed": seeds}
    return {**given, **({"options": options} if options else {})}


def _is_plain(info: dict[str, Any]) -> bool:
    """Return True if the env cannot change the values of `info` later. Arrays are already copied."""
    return all(
        value.__class__ in IMMUTABLE_TYPES or (value.__class__ is np.ndarray and value.dtype != object)
        for value in info.values()
    )


def _without_metrics(infos: dict[Any, Any]) -> dict[Any, Any]:
    """Remove a dict `episode` without a return "r", which SB3's log takes for the result of a `Monitor`."""
    if isinstance(episode := infos.get("episode"), Mapping) and "r" not in episode:
        return {key: value for key, value in infos.items() if key not in ("episode", "_episode")}
    return infos


def _own(leaf: np.ndarray) -> np.ndarray:
    """Copy a view, because the next step would overwrite it."""
    return leaf if leaf.flags.owndata else leaf.copy()
