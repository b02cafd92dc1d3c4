"""`AtariVectorEnv`: ALE's C++ vector env."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv

from vecenv.arguments import check_count
from vecenv.envs.gymnasium_arguments import as_autoreset_mode, as_seeds, split_options
from vecenv.nest import object_array

try:
    from ale_py import roms
    from ale_py.vector_env import AtariVectorEnv as _AleVectorEnv
except ImportError as error:
    raise ImportError(
        f"AtariVectorEnv needs ale-py, which cannot be imported ({error}): pip install 'vecenv[atari]'"
    ) from error

_MAX_SEED = 2**31
AtariStep = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


class AtariVectorEnv(_AleVectorEnv, VectorEnv):  # skrl looks only at direct bases
    """ALE's vector env with ALE's arguments, corrected to follow gymnasium's contract.

    Arguments:
        game: a ROM of ale-py, such as "breakout", "Breakout" or "ALE/Breakout-v5".
        num_envs: number of envs.
        autoreset_mode: NEXT_STEP or SAME_STEP. DISABLED raises ValueError, because ALE always resets.
        kwargs: ALE's other arguments, with ALE's defaults: `repeat_action_probability=0.0`, `reward_clipping=True`,
            `use_fire_reset=True`, ...

    Observations are uint8 (n, stack_num, img_height, img_width), or (..., 3) with `grayscale=False`. With `batch_size`
    below `num_envs`, row k of a batch and of the next actions is for env `infos["env_id"][k]`. After
    `reset(options={"reset_mask": mask})`, rows of envs outside `mask` repeat their latest results.

    Differences from ALE's class:
        - Rewards are float64.
        - `infos` has a mask `_key` for each `key`. In SAME_STEP mode, `final_obs` is an object array. `final_info` is
          empty, because ALE drops the infos of an episode's last step.
        - `life_loss_info=True` raises ValueError in SAME_STEP mode, because ALE returns a wrong `final_obs`.
        - A seed is an int s (env i gets s + i) or a list with a seed per env. Seeds are taken modulo 2**31.
        - Actions of a wrong shape raise ValueError. So do Discrete actions outside the space, because ALE would hang.
          Discrete actions that are not integers raise TypeError.
        - A reset never returns results of earlier steps. So with `batch_size` below `num_envs`, a second reset of all
          envs makes new envs.
        - Calls in a wrong order raise gymnasium's ResetNeeded, AlreadyPendingCallError, NoAsyncCallError or
          ClosedEnvironmentError.

    >>> envs = AtariVectorEnv("breakout", num_envs=2)
    >>> obs, infos = envs.reset(seed=0)
    >>> obs, rewards, terminations, truncations, infos = envs.step(np.array([1, 0]))
    >>> obs.shape, rewards.dtype, infos["lives"]
    ((2, 4, 84, 84), dtype('float64'), array([5, 5], dtype=int32))
    >>> envs.close()
    """

    def __init__(
        self, game: str, num_envs: int, *, autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP, **kwargs: Any
    ) -> None:
        self.closed = True  # until it is open, because `VectorEnv.__del__` of gymnasium 1.2 closes it
        mode = as_autoreset_mode(autoreset_mode)
        if mode is AutoresetMode.DISABLED:
            raise ValueError(
                "ALE's vector env resets finished envs by itself: autoreset_mode must be NEXT_STEP or SAME_STEP; to "
                'reset them yourself use ShmemVectorEnv([lambda: gym.make("ALE/Pong-v5")] * n)'
            )
        for name in ("img_height", "img_width", "stack_num", "frameskip"):
            if name in kwargs:
                kwargs[name] = check_count(name, kwargs[name])
        num_envs = check_count("num_envs", num_envs)
        if kwargs.get("batch_size", 0) != 0:  # 0 means all envs in ALE
            kwargs["batch_size"] = check_count("batch_size", kwargs["batch_size"], num_envs)
        goes_on = kwargs.get("life_loss_info") and not kwargs.get("episodic_life")
        if goes_on and mode is AutoresetMode.SAME_STEP:
            raise ValueError(
                "with life_loss_info=True, ALE's final_obs after a lost life is not the last observation: make the "
                "AtariVectorEnv with autoreset_mode NEXT_STEP, or with episodic_life=True instead"
            )
        self.metadata = {}  # a new dict, because ALE writes into it
        self._was_reset = self._was_sent = False
        self._in_flight = 0
        """Number of env results that `recv` has not returned yet."""
        self._arguments = {"game": game, "num_envs": num_envs, "autoreset_mode": mode, **kwargs}
        super().__init__(_rom(game), num_envs, autoreset_mode=mode, **kwargs)
        self.closed = False

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, np.ndarray]]:
        self._check_open()
        mask, _ = split_options(options, self.num_envs)
        chosen = np.arange(self.num_envs) if mask is None else np.flatnonzero(mask)
        if (seeds := as_seeds(seed, self.num_envs)) is not None:
            seed = np.array([-1 if s is None else s % _MAX_SEED for s in seeds], np.int32)[chosen]
        if mask is not None and not self._was_reset:
            raise ResetNeeded(
                "the first reset of an AtariVectorEnv must reset all envs: call reset() without reset_mask"
            )
        if self._was_sent:
            raise AlreadyPendingCallError("reset() was called while a step is waiting for its recv()", "send")
        if self._in_flight and mask is None:
            # ALE would return results in flight as results of the reset.
            self.ale = AtariVectorEnv(**self._arguments).ale
        obs, infos = super().reset(seed=seed, options=None if mask is None else {"reset_mask": mask})
        self._was_reset = True
        self._in_flight = self.num_envs - self.batch_size
        return obs, _with_masks(infos)

    def send(self, actions: Any) -> None:
        """Check the actions and start the step, without waiting."""
        self._check_open()
        if not self._was_reset:
            raise ResetNeeded("an AtariVectorEnv was stepped before its first reset()")
        if self._was_sent:
            raise AlreadyPendingCallError("send() was called while a step is waiting for its recv()", "send")
        super().send(self._checked(np.asarray(actions)))
        self._was_sent = True
        self._in_flight += self.batch_size

    def recv(self) -> AtariStep:
        self._check_open()
        if self._in_flight < self.batch_size:
            raise NoAsyncCallError(
                f"recv() waits for {self.batch_size} results, but {self._in_flight} are on the way; call send() first",
                "send",
            )
        obs, rewards, terminations, truncations, ale_infos = super().recv()
        self._was_sent = False
        self._in_flight -= self.batch_size
        final_obs = ale_infos.pop("final_obs", None)
        infos: dict[str, Any] = {**_with_masks(ale_infos)}
        done = terminations | truncations
        if final_obs is not None and done.any():
            last = [row if over else None for row, over in zip(final_obs, done, strict=True)]
            infos |= {"final_obs": object_array(last), "_final_obs": done, "final_info": {}, "_final_info": done.copy()}
        return obs, rewards.astype(np.float64), terminations, truncations, infos

    def step(self, actions: Any) -> AtariStep:
        self.send(actions)
        return self.recv()

    def _checked(self, actions: np.ndarray) -> np.ndarray:
        space, shape = self.single_action_space, self.action_space.shape
        if actions.shape != shape:
            raise ValueError(f"actions have the shape {actions.shape}, expected {shape}")
        if isinstance(space, Box):
            return actions.astype(np.float32)
        assert isinstance(space, Discrete)
        if actions.dtype.kind not in "iu":
            raise TypeError(f"actions are {actions.dtype}, expected integers in {space}")
        if actions.min() < 0 or actions.max() >= space.n:
            raise ValueError(f"actions are {actions}, expected all of them in {space}")
        return actions.astype(np.int64)

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError("this AtariVectorEnv is closed")

    def close_extras(self, **kwargs: Any) -> None:
        del self.ale


def _rom(game: str) -> str:
    if not isinstance(game, str):
        raise TypeError(f"game must be the name of a ROM or of an env, got {game!r}")
    known = roms.get_all_rom_ids()
    by_id = {rom.title().replace("_", ""): rom for rom in known}  # ale-py's names of envs
    name = game.removeprefix("ALE/").partition("-")[0]
    if name not in known and name not in by_id:
        raise ValueError(f"ale-py has no game {game!r}; it has {known}")
    return by_id.get(name, name)


def _with_masks(infos: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    masks = {f"_{key}": np.ones(len(column), dtype=np.bool_) for key, column in infos.items()}
    return {**infos, **masks}
