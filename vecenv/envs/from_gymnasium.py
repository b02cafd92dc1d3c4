"""`from_gymnasium`: use a gymnasium `VectorEnv` as a vector env of vecenv."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import AutoresetMode, VectorEnv

from vecenv import nest
from vecenv.backends.gymnasium_backend import GymnasiumBackend, in_the_library
from vecenv.backends.memory.arena import Leaf, common_layout
from vecenv.base import BaseVectorEnv
from vecenv.envs.gymnasium_arguments import as_autoreset_mode

_ASYNC = "gymnasium.vector.async_vector_env.AsyncVectorEnv"
_RESET_BY_ID = frozenset(
    {
        _ASYNC,
        "gymnasium.vector.sync_vector_env.SyncVectorEnv",
        "vecenv.facades.to_gymnasium.GymnasiumVectorEnv",
        "vecenv.envs.flatten_agents.FlattenedAgents",
        "ale_py.vector_env.AtariVectorEnv",
    }
)
"""Classes whose `reset` takes a mask and a seed for each env, and those derived from them."""


def from_gymnasium(
    envs: Any, *, autoreset_mode: AutoresetMode | str | None = None, resets_by_id: bool | None = None
) -> NativeVectorEnv:
    """Any `gymnasium.vector.VectorEnv` as a BaseVectorEnv: no autoreset, ids, infos by env, float64 rewards.

        venv = from_gymnasium(gym.make_vec("CartPole-v1", 64, vectorization_mode="vector_entry_point"))
        obs, info = venv.reset(seed=0)
        while True:
            obs, rew, terminated, truncated, info = venv.step(policy(obs), reset=done)
            done = terminated | truncated

    For vector envs that step their envs together in C++, JAX or numpy, and for `flatten_agents`; envs that are made one
    by one are faster in a ShmemVectorEnv. `envs` belongs to the vector env from now on, and is closed with it.

    `autoreset_mode`: what `envs` does when an episode ends; None: what its metadata say. `resets_by_id`: whether its
    `reset` takes `options["reset_mask"]` and one seed an env; None: whether it is a class of gymnasium, ALE or vecenv
    that does (one that ignores the mask would reset all envs).

    What can be done:
        `step` is of all envs, always. An env whose episode is over has to be reset before or, in NEXT_STEP mode, in
        that step: `step(action, reset=ids)` with exactly the ids whose episodes the step before has ended.
        `step(action, autoreset=True)` and `reset(ids)` with `resets_by_id`. In SAME_STEP mode without it too, as far as
        the episodes of `ids` have just ended: no env is reset twice.
    Anything else is a ValueError, before `envs` is called. There are no ghost transitions: last observations are those
    of `step`, first ones those of `reset`, and no action is dropped but those of envs in `reset`.

    Seeds: one an env with `resets_by_id`; else there is one random stream for all, which the first seed begins. After
    an exception of `envs` all its envs have to be reset.

    Raises TypeError for what is no VectorEnv, and for observations or actions that are no arrays of a fixed shape;
    ValueError where `autoreset_mode` is not known, and for gymnasium's AsyncVectorEnv without shared memory in
    NEXT_STEP mode, whose workers forget that their env was reset.

    >>> import gymnasium as gym
    >>> with from_gymnasium(gym.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point")) as venv:
    ...     obs, info = venv.reset(seed=0)
    ...     venv.step([0, 1, 0])[1], venv
    (array([1., 1., 1.]), NativeVectorEnv(CartPoleVectorEnv, 3 envs))
    """
    if not isinstance(envs, VectorEnv):
        raise TypeError(
            f"from_gymnasium takes a gymnasium.vector.VectorEnv, got {envs!r}; of single envs make a "
            "ShmemVectorEnv([lambda: gym.make(...)] * n)"
        )
    mode = _checked_mode(envs, autoreset_mode)
    inner: Any = envs.unwrapped
    classes = {f"{each.__module__}.{each.__qualname__}" for each in type(inner).__mro__}
    if _ASYNC in classes and not inner.shared_memory and mode is AutoresetMode.NEXT_STEP:
        raise ValueError(
            "an AsyncVectorEnv of gymnasium with shared_memory=False and autoreset_mode NEXT_STEP resets an env again "
            "in the step after its reset: make it with shared_memory=True or another mode"
        )
    if resets_by_id is None:
        resets_by_id = not classes.isdisjoint(_RESET_BY_ID) and not getattr(inner, "own_episodes", False)
    return NativeVectorEnv(envs, mode, resets_by_id)


def _checked_mode(envs: Any, autoreset_mode: AutoresetMode | str | None) -> AutoresetMode:
    """The mode that was asked for, or that of the metadata, of a VectorEnv whose batches are arrays."""
    mode = envs.metadata.get("autoreset_mode") if autoreset_mode is None else autoreset_mode
    if mode is None:
        raise ValueError(
            f"the metadata of {envs} have no autoreset_mode: pass autoreset_mode='NextStep', 'SameStep' or 'Disabled', "
            "whichever it does"
        )
    layout = common_layout([envs.single_observation_space], [envs.single_action_space])
    if layout.action is None or not all(isinstance(leaf, Leaf) for leaf in nest.leaves(layout.obs)):
        raise TypeError(
            f"the observations and actions of {envs} must be arrays of a fixed shape, got "
            f"{envs.single_observation_space} and {envs.single_action_space}; pass functions that make one env each to "
            "ShmemVectorEnv, which takes others too"
        )
    return as_autoreset_mode(mode)


class NativeVectorEnv(BaseVectorEnv):
    """A VectorEnv of gymnasium as `from_gymnasium` returns it."""

    _warns_unclosed = False

    steps_together = True
    """A step is of all envs."""

    def __init__(self, envs: Any, mode: AutoresetMode, resets_by_id: bool) -> None:
        self._name = type(envs.unwrapped).__name__
        self.resets_by_id = resets_by_id
        """True if some envs can be reset, whether their episodes ended or not."""
        self.resets_alone = resets_by_id or mode is AutoresetMode.SAME_STEP
        """True if envs whose episodes ended can be reset before the next step."""
        self.resets_in_next_step = mode is AutoresetMode.NEXT_STEP
        """True if they can be reset in the next step of the others."""
        self._backend = backend = GymnasiumBackend(envs, mode, resets_by_id)
        super().__init__([in_the_library] * backend.env_num, backend=backend, strict=True)

    @property
    def envs(self) -> Any:
        """The envs themselves, where the VectorEnv has them in this process; AttributeError where it has not."""
        return self._backend.envs.unwrapped.envs

    def note_exception(self, error: BaseException) -> None:
        """Pass it on to a wrapper of the VectorEnv that keeps data, as `RecordEpisodes` does."""
        self._backend.note_exception(error)

    def close(self) -> None:
        """Close the VectorEnv. A second call does nothing."""
        self._backend.closed_by_caller = True
        super().close()

    def release(self) -> None:
        """Close this object, and leave the VectorEnv open, which is the caller's again."""
        self._backend.release()
        self.close()

    def __repr__(self) -> str:
        return f"NativeVectorEnv({self._name}, {self.env_num} envs{', closed' if self.is_closed else ''})"
