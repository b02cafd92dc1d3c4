"""`from_gymnasium`: makes a `BaseVectorEnv` from a gymnasium `VectorEnv`."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import AutoresetMode, VectorEnv

from vecenv import nest
from vecenv.backends.gymnasium_backend import GymnasiumBackend, of_vector_env
from vecenv.backends.native_backend import library_makes_env
from vecenv.base import BaseVectorEnv
from vecenv.envs.gymnasium_arguments import as_autoreset_mode
from vecenv.envs.native_class import ASYNC, NativeClass
from vecenv.layout import Leaf, common_layout

SIMULATOR = ("num_envs", "single_observation_space", "single_action_space")
"""Attributes of envs that step together, but are no VectorEnv, as in Isaac Lab and mjlab."""


def from_gymnasium(
    envs: Any,
    *,
    autoreset_mode: AutoresetMode | str | None = None,
    resets_by_id: bool | None = None,
    tensors: bool = False,
    copy: bool = True,
    has_final_obs: bool = True,
) -> NativeVectorEnv:
    """Return a BaseVectorEnv around any `gymnasium.vector.VectorEnv`, with float64 rewards and without autoreset.

    Use it for a simulator that steps many envs in numpy, torch, JAX or C++, or for `flatten_agents`. `close` also
    closes `envs`. An object with `num_envs`, `single_observation_space`, `single_action_space`, and the `reset` and
    `step` of a VectorEnv counts too, as in Isaac Lab.

    Arguments:
        autoreset_mode: mode of `envs`. Default: the mode in its metadata.
        resets_by_id: True if `envs.reset` takes `options["reset_mask"]` and a seed per env. Pass False if the
            mask is ignored. Default: True for the classes of gymnasium, ALE and vecenv that take both.
        tensors: True if `envs` works with tensors of torch or JAX. Observations, rewards (in the dtype of `envs`),
            flags and infos then stay tensors on their device, and `envs` gets actions as tensors. By default, results
            are numpy arrays.
        copy: False returns arrays and tensors of `envs` itself, which the next call may overwrite.
        has_final_obs: False if `envs` has the mode SAME_STEP and loses the last observations of episodes. The info of
            an ended env then has `no_final_obs=True`, so that nobody computes a value of the lost observation.

    `info.columns` has an array `(n, ...)` per key, and under `_key` a bool mask of the envs with this key (none: all
    envs), as in gymnasium. `info[i]` is the dict of env i, made when you read it. With `autoreset=True`, the columns
    have `final_obs` and `final_info` if episodes have ended.

    `step` steps all envs. Reset finished envs in one of these ways:

    - `reset()`
    - `reset(ids)` or `step(action, autoreset=True)`, with `resets_by_id` or in SAME_STEP mode
    - `step(action, reset=ids)` with exactly the finished envs, in NEXT_STEP mode

    Other resets raise an error before any env steps. The first reset must be of all envs.

    Without `resets_by_id`, `envs.reset` gets only the first seed. If `envs` raises an exception, reset all envs.

    Rewards and flags have the shape (n,). `envs` may return (n, 1). A result with another shape, or a column of infos
    that changes its dtype, raises EnvContractError.

    Raises TypeError unless `envs` is a VectorEnv with arrays of a fixed shape. Raises ValueError for an unknown or
    missing `autoreset_mode`, and for gymnasium's AsyncVectorEnv without shared memory in NEXT_STEP mode, because its
    workers reset an env twice.

    >>> import gymnasium as gym
    >>> with from_gymnasium(gym.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point")) as venv:
    ...     obs, info = venv.reset(seed=0)
    ...     venv.step([0, 1, 0])[1], venv
    (array([1., 1., 1.]), NativeVectorEnv(CartPoleVectorEnv, 3 envs))
    """
    if not isinstance(envs, VectorEnv) and any(of_vector_env(envs, name) is None for name in SIMULATOR):
        raise TypeError(
            f"from_gymnasium takes a gymnasium.vector.VectorEnv, got {envs!r}; for single envs use "
            "ShmemVectorEnv([lambda: gym.make(...)] * n)"
        )
    mode = _checked_mode(envs, autoreset_mode)
    native = NativeClass(envs, resets_by_id)
    inner: Any = getattr(envs, "unwrapped", envs)
    if ASYNC in native.names and not inner.shared_memory and mode is AutoresetMode.NEXT_STEP:
        raise ValueError(
            "an AsyncVectorEnv of gymnasium with shared_memory=False and autoreset_mode NEXT_STEP resets an env again "
            "in the step after its reset: make it with shared_memory=True or another mode"
        )
    return NativeVectorEnv(envs, mode, native, tensors=tensors, copy=copy, has_final_obs=has_final_obs)


def _checked_mode(envs: Any, autoreset_mode: AutoresetMode | str | None) -> AutoresetMode:
    metadata = of_vector_env(envs, "metadata") or {}
    mode = metadata.get("autoreset_mode") if autoreset_mode is None else autoreset_mode
    if mode is None:
        raise ValueError(
            f"the metadata of {envs} have no autoreset_mode: pass autoreset_mode='NextStep', 'SameStep' or 'Disabled', "
            "whichever this VectorEnv implements"
        )
    obs_space, action_space = (of_vector_env(envs, f"single_{name}_space") for name in ("observation", "action"))
    layout = common_layout([obs_space], [action_space])
    if layout.action is None or not all(isinstance(leaf, Leaf) for leaf in nest.leaves(layout.obs)):
        raise TypeError(
            f"the observations and actions of {envs} must be arrays of a fixed shape, got "
            f"{obs_space} and {action_space}; for other spaces use "
            "ShmemVectorEnv([lambda: gym.make(...)] * n)"
        )
    return as_autoreset_mode(mode)


class NativeVectorEnv(BaseVectorEnv):
    """Vector env that `from_gymnasium` returns."""

    _warns_unclosed = False

    steps_together = True

    def __init__(self, envs: Any, mode: AutoresetMode, native: NativeClass, **options: bool) -> None:
        self._name = type(getattr(envs, "unwrapped", envs)).__name__
        self.resets_by_id = native.resets_by_id
        """True if `reset` can reset some envs at any time."""
        self.seeds_by_id = native.seeds_by_id
        """True if the seed of an env repeats its episode."""
        self.resets_alone = native.resets_by_id or mode is AutoresetMode.SAME_STEP
        """True if `reset(ids)` can reset finished envs without the others."""
        self.resets_in_next_step = mode is AutoresetMode.NEXT_STEP
        """True if the next step can reset finished envs."""
        self.has_final_obs = options["has_final_obs"] or mode is not AutoresetMode.SAME_STEP
        """False if the last observations of episodes are unknown."""
        self.returns_tensors = options["tensors"]
        """True if results are tensors."""
        self._backend = backend = GymnasiumBackend(envs, mode, native, **options)
        super().__init__([library_makes_env] * backend.env_num, backend=backend)

    @property
    def envs(self) -> Any:
        """Env objects. Raises AttributeError if they are not in this process."""
        return self._backend.envs.unwrapped.envs

    def note_exception(self, error: BaseException) -> None:
        """Report the exception to a wrapper that records data, such as `RecordEpisodes`."""
        self._backend.note_exception(error)

    def close(self) -> None:
        self._backend.closed_by_caller = True
        super().close()

    def release(self) -> None:
        """Close this object, but leave the VectorEnv open."""
        self._backend.release()
        self.close()

    def __repr__(self) -> str:
        return f"NativeVectorEnv({self._name}, {self.env_num} envs{', closed' if self.is_closed else ''})"
