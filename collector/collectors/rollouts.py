"""`rollout`: one batch without a collector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from collector.basics.interruptor import Interruptor
from collector.batch.rollout import Rollout, truncate_last
from collector.batch.step_extras import StepBatch
from collector.collectors.batch_source import BatchSource
from collector.collectors.collector_config import CollectorConfig
from collector.collectors.env_source import check_synchronous, is_wrapped, make_vector_env
from collector.collectors.loop import BatchRequest, synchronous_loop
from collector.policy.action_trees import action_layouts
from collector.policy.collector_policy import masks_in
from collector.policy.policy_call import Policy
from collector.policy.random_policy import masks_of
from vecenv import DummyVectorEnv, nest
from vecenv.arguments import at_least_one
from vecenv.layout import Leaf, common_layout
from vecenv.random_actions import draw_action


def rollout(
    venv_or_env: Any,
    max_steps: int,
    policy: Policy | None = None,
    break_when_any_done: bool = True,
    break_when_all_done: bool = False,
    auto_reset: bool = True,
    set_truncated: bool = False,
    callback: Callable[[Any, StepBatch], Any] | None = None,
    *,
    obs: Any = None,
) -> Rollout:
    """Take at most `max_steps` steps of each env, and return a `Rollout` `(N, T)` (as torchrl's `env.rollout`).

    venv_or_env: a vector env of vecenv or gymnasium, or one env (N = 1). A lazy vector env is started. The vector env
        stays open.
    policy: as for a collector. `None` draws from the envs' action spaces, which `venv.seed` seeds. An `action_mask` in
        observations or infos is respected. (With `auto_reset=False`, there are no infos before the first step.)
    break_when_any_done: stop when the first episode ends. False: reset the env and continue.
    break_when_all_done: stop when each env has ended an episode. After its episode, an env pauses, with `mask` False.
        Takes precedence over `break_when_any_done`.
    auto_reset: reset all envs first. False continues from `obs`.
    set_truncated: mark the last step of each env as truncated.
    callback: called after each step with `venv_or_env` and a `StepBatch`.
    obs: observations of all envs, for example `batch.next.obs[:, -1]` of the last rollout. For an ended
        episode, pass the first observation of the next episode.

    Raises `RuntimeError` for `auto_reset=False` without `obs`, `ValueError` for `obs` with `auto_reset` or
    without N rows, and `TypeError` if `venv_or_env` cannot be stepped. Errors of envs and policy are raised unchanged.

    >>> import gymnasium as gym
    >>> from vecenv import DummyVectorEnv
    >>> with DummyVectorEnv([lambda: gym.make("Pendulum-v1")] * 3) as venv:
    ...     rollout(venv, 7)
    Rollout(3 envs, 7 steps, 21 frames, 0 episode ends)
    """
    max_steps = at_least_one("max_steps", max_steps)
    if isinstance(venv_or_env, type) or not callable(getattr(venv_or_env, "step", None)):
        raise TypeError(f"rollout() takes a vector env or an env that is already made, got {venv_or_env!r}")
    if not auto_reset and obs is None:
        raise RuntimeError(
            "rollout(auto_reset=False) needs the observations to continue from: "
            "obs=venv.reset()[0], or obs=batch.next.obs[:, -1] of the last rollout"
        )
    if auto_reset and obs is not None:
        raise ValueError("rollout() got obs, which needs auto_reset=False")
    call = None if callback is None else partial(_call, callback, venv_or_env)
    venv = make_vector_env(venv_or_env, None, lambda _: DummyVectorEnv([lambda: _BorrowedEnv(venv_or_env)]))
    try:
        check_synchronous(venv, "rollout()", cuts=False)
        quota = np.ones(venv.env_num, np.int64) if break_when_any_done or break_when_all_done else None
        stop = Interruptor() if quota is None or break_when_all_done else _StopAtFirstEnd(quota)
        config = CollectorConfig(frames_per_batch=max_steps * venv.env_num, interruptor=stop)
        policy = _SpacePolicy(venv) if policy is None else policy
        batch = _collect(BatchSource(venv, policy, config, synchronous_loop), policy, config, quota, call, obs)
    finally:
        if is_wrapped(venv_or_env):
            venv.release()
    if set_truncated:
        truncate_last(batch)
    return batch


def _collect(
    source: BatchSource, policy: Policy, config: CollectorConfig, quota: np.ndarray | None, hook: Any, obs: Any
) -> Rollout:
    try:
        source.recover()
        if obs is not None:
            obs, n = _as_observations(obs, source.env.observation_space), source.env.env_num
            counts = {len(rows) for rows in nest.leaves(obs)}
            if counts != {n}:
                raise ValueError(f"obs has {sorted(counts)} rows, expected one for each of {n} envs")
            source.begin(np.arange(n), obs, nest.object_array([{}] * n))
        if isinstance(policy, _SpacePolicy):
            policy.masks_of = lambda env_ids: masks_in(source.episodes.infos, env_ids)
        batch: Rollout = source.collect(BatchRequest(config.frames_per_batch, False, quota, source.extras(hook)))[0]
        source.warn()
        return batch
    finally:
        source.policy.close()


def _as_observations(obs: Any, observation_spaces: Sequence[Any]) -> Any:
    """Return the caller's observations as arrays, in dtypes that also hold later observations.

    A wrapper may return other dtypes than its observation space, so floats stay floats.
    """

    def fit(found: list[Any]) -> np.ndarray:
        leaf, rows = found
        if not isinstance(leaf, Leaf):
            return rows if isinstance(rows, np.ndarray) else nest.object_array(rows)
        array = nest.as_array(rows)
        becomes_float = leaf.dtype.kind == "f" and array.dtype.kind in "biu"
        return array.astype(leaf.dtype if becomes_float else np.promote_types(array.dtype, leaf.dtype))

    if isinstance(obs, np.ndarray) and obs.dtype == object:  # observations that are not stacked
        return obs
    return nest.merge(fit, [common_layout(observation_spaces, observation_spaces).obs, obs])


def _call(callback: Callable[[Any, StepBatch], Any], env: Any, step: StepBatch) -> None:
    callback(env, step)


class _StopAtFirstEnd(Interruptor):
    """Interruptor that stops when the first episode ends, because an entry of `quota` is then 0."""

    def __init__(self, quota: np.ndarray) -> None:
        super().__init__()
        self._quota = quota

    def collection_stopped(self) -> bool:
        return not self._quota.all()


class _BorrowedEnv:
    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def close(self) -> None:
        """Do nothing, because the env belongs to the caller."""


class _SpacePolicy:
    """Policy that continues the random streams of the envs' own action spaces."""

    def __init__(self, venv: Any) -> None:
        self._venv = venv
        self.masks_of: Callable[[Any], list[Any] | None] = lambda env_ids: None

    def __call__(self, obs: Any, env_id: Any) -> Any:
        every = self._venv.action_space
        spaces = [every[i] for i in env_id]
        masks = self.masks_of(env_id) or masks_of(obs, spaces[0], len(spaces)) or [None] * len(spaces)
        rows = [draw_action(space, mask) for space, mask in zip(spaces, masks, strict=True)]
        return {"action": nest.stack(rows)} if action_layouts(spaces) else rows
