"""From gymnasium: a `gymnasium.vector.VectorEnv` with the methods by which SB3VecEnv drives a vector env of ours."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from vecenv import nest
from vecenv.engine.arguments.ids import as_ids
from vecenv.engine.results import Step
from vecenv.facades.to_gymnasium.vector_env import GymnasiumVectorEnv
from vecenv.facades.to_gymnasium.vector_infos import split_infos

_FINAL = ("final_obs", "final_info")


class SameStepEnvs:
    """Steps without autoreset and resets by id, on a VectorEnv that resets within the step (SAME_STEP mode).

    `step` returns the last observations of episodes that ended; the first ones of the next episodes, which the
    VectorEnv has made already, are what `reset` of these envs then returns. So the ids of a reset must be all envs, or
    those whose episodes ended in the step before. Methods and attributes of some envs can be reached in a VectorEnv of
    ours; in another one attributes can be read, all else is for all envs at once (ValueError).

    Raises ValueError for a VectorEnv in another mode.
    """

    waiting_id = ()

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        mode = envs.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.SAME_STEP:
            raise ValueError(
                f"{envs} has autoreset_mode={mode}, and SB3 resets an env within the step: pass "
                "autoreset_mode=AutoresetMode.SAME_STEP (of gymnasium.vector) where it is made"
            )
        self.envs: Any = envs
        self._engine = envs.venv if isinstance(envs, GymnasiumVectorEnv) else None
        n = self.env_num = envs.num_envs
        self.observation_space, self.action_space = [envs.single_observation_space] * n, [envs.single_action_space] * n
        self.metadata = [envs.metadata] * n
        self._begun: tuple[Any, list[dict[str, Any]]] = (None, [{}] * n)

    def reset(self, id: Any = None, **kwargs: Any) -> tuple[Any, np.ndarray]:
        """All envs; or those whose episodes ended in the last step, whose new ones have begun."""
        if id is None:
            obs, infos = self.envs.reset(**kwargs)
            return nest.map(np.array, obs), nest.object_array(split_infos(infos, self.env_num))
        if kwargs:
            raise ValueError(f"{self.envs} resets within the step: {sorted(kwargs)} must be the same for all envs")
        obs, infos = self._begun
        ids = as_ids(id, self.env_num)
        return nest.take(obs, ids), nest.object_array([infos[i] for i in ids])

    def step(self, action: Any) -> Step:
        """Step all envs."""
        obs, rew, terminated, truncated, infos = self.envs.step(action)
        obs, done = nest.map(np.array, obs), np.flatnonzero(terminated | truncated)
        rows = split_infos({key: value for key, value in infos.items() if key.lstrip("_") not in _FINAL}, self.env_num)
        if done.size:
            self._begun = nest.map(np.copy, obs), list(rows)
            # Some VectorEnvs (Atari's) keep no info of the last step apart.
            ends = split_infos(infos["final_info"], self.env_num) if "final_info" in infos else [*map(dict, rows)]
            for i in done.tolist():
                nest.put(obs, i, infos["final_obs"][i])
                rows[i] = ends[i]
        flags = np.array(terminated, dtype=np.bool_), np.array(truncated, dtype=np.bool_)
        return obs, np.array(rew, dtype=np.float64), *flags, nest.object_array(rows)

    def get_env_attr(self, key: str, id: Any = None) -> list[Any]:
        """The attribute of each env, or that of the VectorEnv if it has no attributes of single envs."""
        if hasattr(self.envs, "get_attr"):
            values = self.envs.get_attr(key)
        else:
            values = [getattr(self.envs, key)] * self.env_num
        return [values[i] for i in (range(self.env_num) if id is None else as_ids(id, self.env_num))]

    def call(self, name: str, *args: Any, id: Any = None, **kwargs: Any) -> list[Any]:
        """Call the method."""
        if self._engine is not None:
            return list(self._engine.call(name, *args, id=id, **kwargs))
        self._check_all(id)
        values = self.envs.call(name, *args, **kwargs)
        return [values[i] for i in (range(self.env_num) if id is None else id)]

    def render(self) -> list[Any]:
        """The frame of each env."""
        return list(self.envs.render())

    def close(self) -> None:
        """Close the VectorEnv."""
        self.envs.close()

    def _check_all(self, id: Any) -> None:
        if id is not None and len(as_ids(id, self.env_num)) < self.env_num:
            raise ValueError(
                f"{self.envs} does this for all its envs only, got {id}; use vecenv.AsyncVectorEnv, or SB3VecEnv over "
                "ShmemVectorEnv(env_fns), for some envs"
            )
