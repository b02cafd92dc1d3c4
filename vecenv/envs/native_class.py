"""`NativeClass`: facts about a gymnasium `VectorEnv` that its interface does not tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vecenv.arguments import spread_seeds
from vecenv.backends.gymnasium_backend import of_vector_env
from vecenv.errors import EnvContractError

ASYNC = "gymnasium.vector.async_vector_env.AsyncVectorEnv"
_AGENTS = "vecenv.envs.flatten_agents.FlattenedAgents"
_ALE = "ale_py.vector_env.AtariVectorEnv"
_COLLECTS_ENVS = frozenset(
    {
        ASYNC,
        _AGENTS,
        "gymnasium.vector.sync_vector_env.SyncVectorEnv",
        "vecenv.facades.to_gymnasium.GymnasiumVectorEnv",
    }
)
"""VectorEnv classes that build the columns of their infos from single envs."""
_RESETS_BY_ID = _COLLECTS_ENVS | {_ALE}
"""VectorEnv classes with a `reset` that takes a mask and a seed per env. Subclasses count too."""
_LIFE_LOSS = (
    "make the VectorEnv with life_loss_info=False and read infos['lives'], or with episodic_life=True, which begins a "
    "new game after a lost life"
)


class NativeClass:
    """Facts about the class of a VectorEnv. `resets_by_id` is for a class that vecenv does not know.

    Raises ValueError for ALE with `life_loss_info=True`. There a lost life sets `terminated`, and the game continues.
    The next row should begin an episode, but it is a step of the same game. In SAME_STEP mode, `final_obs` is not the
    last observation.
    """

    def __init__(self, envs: Any, resets_by_id: bool | None = None) -> None:
        inner = getattr(envs, "unwrapped", envs)
        self.names = {f"{each.__module__}.{each.__qualname__}" for each in type(inner).__mro__}
        agents = _AGENTS in self.names
        if resets_by_id is None:
            resets_by_id = not self.names.isdisjoint(_RESETS_BY_ID) and not (agents and inner.own_episodes)
        below = getattr(inner, "venv", None)  # of a facade
        self.resets_by_id = resets_by_id = resets_by_id and getattr(below, "resets_by_id", True)
        """True if `reset` takes `options["reset_mask"]` and a seed per env."""
        self.seeds_by_id = resets_by_id and not agents and getattr(below, "seeds_by_id", True)
        """True if a row's seed alone repeats the row. False if rows share a generator, or are agents of one game."""
        self.collects_envs = not self.names.isdisjoint(_COLLECTS_ENVS)
        """True if the columns of infos depend on single envs, so that their dtypes may change."""
        self._num_envs = of_vector_env(envs, "num_envs")
        self._is_ale = _ALE in self.names
        if self._is_ale and _loses_lives(inner):
            raise ValueError(f"ALE does not reset a game after a lost life with life_loss_info=True: {_LIFE_LOSS}")
        self._seeds_reset_envs_only = type(inner).__module__ == "ale_py.vector_env"
        """True if `reset` takes an array with a seed for each env in the mask, instead of a list for all envs."""
        self._restarts: Any = None

    @property
    def checks_autoreset(self) -> bool:
        """True if `check_autoreset` has something to check."""
        return self._restarts is not None

    def seeds(self, seed: Any, ids: Sequence[int]) -> list[int | None]:
        """Return the seeds that the envs `ids` get from `reset(seed=seed)` of these envs, or None where unknown."""
        if not self.seeds_by_id:
            return [None] * len(ids)
        if self._seeds_reset_envs_only:
            return spread_seeds(seed, range(len(ids)))
        seeds = spread_seeds(seed, range(self._num_envs))
        return [seeds[i] for i in ids]

    def seed_argument(self, seeds: Sequence[int | None], ids: Sequence[int]) -> Any:
        """Return `seed` for a reset of the envs `ids`, where env i gets `seeds[i]`."""
        if self._seeds_reset_envs_only:
            return np.array([-1 if (seed := seeds[i]) is None else seed % 2**31 for i in ids], np.int32)
        first = next(seed for seed in seeds if seed is not None)
        # Pass only the first seed if `reset` takes no list, or derives the same seeds (seed + i for env i).
        is_one = not self.resets_by_id or list(seeds) == list(range(first, first + self._num_envs))
        return first if is_one else list(seeds)

    def record_reset(self, infos: Mapping[str, Any]) -> None:
        """Record the infos of a reset for `check_autoreset`."""
        if self._is_ale and "episode_frame_number" in infos:  # a wrapper may remove it
            self._restarts = _restarts(infos)

    def check_autoreset(self, ids: np.ndarray, infos: Mapping[str, Any]) -> None:
        """Raise `EnvContractError` if a step of ALE with these infos did not reset the envs `ids`, which were over.

        ALE's class does not store `life_loss_info`. But only a reset restarts `episode_frame_number`.
        """
        if self._restarts is None or not len(ids) or "episode_frame_number" not in infos:
            return
        restarts = _restarts(infos)
        for i in ids[restarts[ids] == self._restarts[ids]].tolist():
            raise EnvContractError(
                f"env {i}: its episode ended, but ALE did not reset the game, as with life_loss_info=True: {_LIFE_LOSS}"
            )
        self._restarts[ids] = restarts[ids]


def _loses_lives(ale: Any) -> bool:
    """Return True if the arguments of ALE's class are known, as with `gymnasium.make_vec`, and continue such games."""
    arguments = getattr(ale, "_arguments", None) or getattr(ale.spec, "kwargs", {})
    return bool(arguments.get("life_loss_info")) and not arguments.get("episodic_life")


def _restarts(infos: Mapping[str, Any]) -> np.ndarray:
    """Return the number (n,) of the frame at which each env's game began."""
    return np.array(infos["frame_number"]) - infos["episode_frame_number"]
