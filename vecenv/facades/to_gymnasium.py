"""`GymnasiumVectorEnv`: facade for gymnasium."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from vecenv import nest
from vecenv.arguments import check_count
from vecenv.backends.info_batch import InfosById
from vecenv.engine.engine import Engine
from vecenv.engine.lifetime import NotStarted
from vecenv.engine.mark import BROKEN, is_layer_call, mark_of
from vecenv.engine.results import StepById
from vecenv.envs.gymnasium_arguments import as_autoreset_mode, as_seeds, split_options
from vecenv.errors import Partial
from vecenv.facades.async_calls import RESET, STEP, AnyVectorEnv, AsyncCalls, as_deadline
from vecenv.facades.batched_spaces import (
    action_spaces,
    check_observation_mode,
    empty_batch,
    is_tree_of_arrays,
    join_rows,
    observation_spaces,
    row_joiner,
    split_actions,
    takes_arrays,
)
from vecenv.facades.stepper import EndedStep, EpisodeTracker, Stepper, check_arrays, check_resets
from vecenv.facades.vector_infos import batch_infos, ended_columns, ended_infos
from vecenv.wrappers import check_send_and_recv

GymnasiumStep = tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


def check_facade_arguments(
    observation_mode: Any = "same",
    autoreset_mode: Any = AutoresetMode.NEXT_STEP,
    final_info_format: Any = "dict",
    random_initial_steps: Any = 0,
    **unchecked: Any,
) -> None:
    check_observation_mode(observation_mode)
    mode = as_autoreset_mode(autoreset_mode)
    if final_info_format not in ("dict", "list"):
        raise ValueError(f'final_info_format must be "dict" or "list", got {final_info_format!r}')
    if final_info_format == "list" and mode is not AutoresetMode.SAME_STEP:
        raise ValueError(
            'final_info_format="list" is for code that expects the autoreset of gymnasium 0.29: '
            f"pass autoreset_mode=AutoresetMode.SAME_STEP with it, got {mode}"
        )
    check_count("random_initial_steps", random_initial_steps, least=0)


class GymnasiumVectorEnv(AsyncCalls, AnyVectorEnv):
    """Vector env with the interface of gymnasium 1.4's `AsyncVectorEnv`. See docs/guarantees.md.

    Arguments:
        venv: a BaseVectorEnv without `wait_num` and `timeout`. `close` closes it. If you call `.venv.step` and an
            episode ends, call `.venv.reset` for the env, because the facade does not notice the end.
        observation_mode: "same", "different", or (batched space, single space), as in gymnasium.
        autoreset_mode: an AutoresetMode, its value or its name. NEXT_STEP resets a finished env while the other envs
            step. SAME_STEP resets the env within the step that ends the episode. The step needs a second round with
            `seed_episodes`, or if a wrapper ends episodes or overrides `step`. With DISABLED, a step before the reset
            raises ResetNeeded.
        copy: False returns observations as views, if `venv` also has `copy=False`. The next call changes the views.
        final_info_format: "list" (only with SAME_STEP) returns the keys of gymnasium 0.29: `final_observation`, and
            `final_info` with a dict per env.
        seed_episodes: give each autoreset, and each reset without a seed, the `next_seed` of the env's previous seed.
            An episode can then be replayed from `np_random_seed`.
        random_initial_steps: maximum number of random steps per env after a full reset, so that episodes end at
            different times.

    In contrast to gymnasium, values in infos are not cast, and a wait can be repeated after a timeout.

    >>> import gymnasium as gym
    >>> from vecenv import DummyVectorEnv
    >>> envs = GymnasiumVectorEnv(DummyVectorEnv([lambda: gym.make("CartPole-v1")] * 3))
    >>> obs, infos = envs.reset(seed=42)
    >>> obs.shape, envs.action_space, envs.np_random_seed
    ((3, 4), MultiDiscrete([2 2 2]), (42, 43, 44))
    >>> envs.close()
    """

    def __init__(
        self,
        venv: Any,
        *,
        observation_mode: Any = "same",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        final_info_format: str = "dict",
        seed_episodes: bool = False,
        random_initial_steps: int = 0,
    ) -> None:
        check_facade_arguments(observation_mode, autoreset_mode, final_info_format, random_initial_steps)
        _check_vector_env(venv)
        check_send_and_recv(venv, type(self).__name__)
        self.observation_mode, self.copy = observation_mode, copy
        self.autoreset_mode = as_autoreset_mode(autoreset_mode)
        check_arrays(venv)
        check_resets(venv, self.autoreset_mode)
        self.num_envs = len(venv)
        self.metadata = {**(venv.metadata[0] or {}), "autoreset_mode": self.autoreset_mode}
        self.render_mode = _render_mode(venv)
        self.observation_space, self.single_observation_space = observation_spaces(
            observation_mode, venv.observation_space, type(self).__name__
        )
        self.action_space, self.single_action_space = action_spaces(venv.action_space)
        self.venv = venv  # after all checks, because `close` also closes `self.venv`
        self.call_mark = mark_of(venv)
        self._stepper = Stepper(venv, copy)
        self._final_as_list = final_info_format == "list"
        self._random_initial_steps = random_initial_steps
        self._takes_arrays = takes_arrays(self.action_space, self.single_action_space)
        self._is_tree = is_tree_of_arrays(self.single_observation_space)
        self._join = row_joiner(self.single_observation_space, self.num_envs)
        self._reused = None if copy or self._is_tree else empty_batch(self.single_observation_space, self.num_envs)
        # With `seed_episodes`, a second round resets the ended envs with their seeds.
        self._resets_in_step = (
            self.autoreset_mode is AutoresetMode.SAME_STEP and not seed_episodes and self._stepper.autoresets
        )
        self._episodes = EpisodeTracker(venv, seed_episodes)
        own_halves = all(
            getattr(type(self), name) is getattr(GymnasiumVectorEnv, name) for name in ("step_async", "step_wait")
        )
        self._uses_exchange = self._stepper.engine is not None and self._takes_arrays and own_halves
        """True if `step` may bypass `step_async` and `step_wait`."""
        self._resets_without_seeds = self.autoreset_mode is AutoresetMode.NEXT_STEP and not seed_episodes
        self._ids = range(self.num_envs)
        self._resetting: Sequence[int] = ()
        self._ended: EndedStep | None = None
        """Step that ended episodes in SAME_STEP mode, until the reset of its envs."""
        self._pending = self._called = None

    @is_layer_call
    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or the envs of `options["reset_mask"]` (bool, (n,)). Return (obs of all envs, infos).

        With `seed=s`, env i gets the seed s + i. A list has a seed or `None` per env. The envs get the other options.
        Raises TypeError or ValueError for bad arguments before any env is reset.
        """
        self.reset_async(seed, options)
        return self.reset_wait()

    @is_layer_call
    def reset_async(self, seed: Any = None, options: dict[str, Any] | None = None) -> None:
        """Start a reset without waiting."""
        mask, others = split_options(options, self.num_envs)
        if mask is None and self.call_mark.owner == BROKEN:
            self.venv.engine.recover()
            self._pending = self._ended = self._called = None
        self._check_can_start("reset_async")
        self._stepper.use_engine()
        seeds = as_seeds(seed, self.num_envs)
        if self.venv.waiting_id:
            self.venv.engine.status.check_idle(None)
        self._resetting = ids = self._ids if mask is None else np.flatnonzero(mask).tolist()
        given = None if seeds is None else [seeds[i] for i in ids]
        self._send(RESET, None, ids, list(ids), given, **({} if others is None else {"options": others}))

    @is_layer_call
    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the results of `reset_async`. Raises `multiprocessing.TimeoutError` after `timeout` seconds.

        Random initial steps may exceed `timeout`.
        """
        self._check_pending(RESET)
        self._wait_until(RESET, as_deadline(timeout))
        ids = self._resetting
        obs, _, _, _, infos = self._receive(ids)
        self._episodes.record(ids, False, obs)
        if self._random_initial_steps and len(ids) == self.num_envs:
            try:
                self._episodes.make_random_steps(self._random_initial_steps, self.single_action_space)
            except BaseException as error:
                self._record_failure(error)
                raise
        obs = self._episodes.latest_obs()
        if self.copy and self._stepper.has_views:
            obs = nest.map(np.copy, obs)
        return self._joined(obs), batch_infos(infos, self.num_envs)

    def step(self, actions: Any) -> GymnasiumStep:
        """Step all envs. Return (obs, rewards, terminations, truncations, infos).

        `actions` is a batch or a sequence with an action per env, of any array library. As in gymnasium, actions are
        not cast to the action space's dtype. rewards: float64 (n,), or (n, m) for vector rewards, which gymnasium's
        wrappers refuse. terminations, truncations: bool (n,). Raises TypeError or ValueError unless there are n
        actions.
        """
        episodes = self._episodes
        if self._uses_exchange and (not episodes.ended or self._resets_without_seeds):
            if self.closed or self._pending is not None:
                self._check_can_start("step_async")  # raises
            if actions.__class__ is not np.ndarray or not actions.ndim:
                actions = split_actions(actions, self.action_space, self.single_action_space, True)
            mark = self.call_mark
            try:
                try:
                    step = self._stepper.exchange(
                        actions, episodes.over if episodes.ended else None, self._resets_in_step
                    )
                except Exception as error:
                    self._record_failure(error)
                    raise
                return self._results(step, None)
            except Exception:
                raise
            except BaseException:
                mark.owner = BROKEN
                raise
        return self._step_in_halves(actions)

    @is_layer_call
    def _step_in_halves(self, actions: Any) -> GymnasiumStep:
        self.step_async(actions)
        return self.step_wait()

    @is_layer_call
    def step_async(self, actions: Any) -> None:
        """Start a step without waiting."""
        self._check_can_start("step_async")
        actions = split_actions(actions, self.action_space, self.single_action_space, self._takes_arrays)
        if not (ids := self._episodes.ended):
            self._send(STEP, actions)
            return
        if self.autoreset_mode is AutoresetMode.DISABLED:
            raise ResetNeeded(
                f"the episodes of envs {ids} are over: reset these envs before the next step, with "
                "reset(options={'reset_mask': terminations | truncations}); autoreset_mode is DISABLED"
            )
        self._send(STEP, actions, ids, self._episodes.over)

    @is_layer_call
    def step_wait(self, timeout: float | None = None) -> GymnasiumStep:
        """Return the results of `step_async`. Raises `multiprocessing.TimeoutError` after `timeout` seconds."""
        self._check_pending(STEP)
        deadline = as_deadline(timeout)
        self._wait_until(STEP, deadline)
        if self._ended is None:
            return self._results(self._receive(self._ids), deadline)
        return self._finish(self._ended)

    def _results(self, step: StepById, deadline: float | None) -> GymnasiumStep:
        obs, rew, terminated, truncated, infos = step
        episodes = self._episodes
        episodes.record_step(terminated | truncated, obs)
        if episodes.ended and self.autoreset_mode is AutoresetMode.SAME_STEP:
            return self._end_episodes(step, deadline)
        batch = batch_infos(infos, self.num_envs) if infos else {}
        return obs if self._is_tree else self._joined(obs), rew, terminated, truncated, batch

    def _end_episodes(self, step: StepById, deadline: float | None) -> GymnasiumStep:
        episodes = self._episodes
        ids = episodes.ended
        obs, rew, terminated, truncated, by_id = step
        if self._resets_in_step and isinstance(by_id, InfosById):
            episodes.record(ids, False)
            episodes.begin(ids, {})
            infos = ended_columns(by_id, self.num_envs, self._final_as_list)
            return self._joined(obs), rew, terminated, truncated, infos
        ended = EndedStep(step, ids, self._resets_in_step)
        if self._resets_in_step:
            episodes.record(ids, False)
            episodes.begin(ids, {})
        else:
            self._ended = ended
            self._send(STEP, None, ended.not_reset, ended.not_reset)
            self._wait_until(STEP, deadline)
        return self._finish(ended)

    def _finish(self, ended: EndedStep) -> GymnasiumStep:
        if left := ended.not_reset:
            first_obs, _, _, _, first_infos = self._receive(left)
            self._ended = None
            self._episodes.record(left, False, first_obs)
            ended.begin(first_obs, first_infos)
        obs, rew, terminated, truncated, _ = ended.step
        infos = ended_infos(ended, self.num_envs, self._final_as_list)
        return self._joined(obs), rew, terminated, truncated, infos

    def _joined(self, obs: Any) -> Any:
        """Convert a batch to gymnasium's form. With `copy=False`, all calls fill the same objects."""
        if self._is_tree:
            return obs
        if self._reused is None:
            return self._join(obs)
        return join_rows(obs, self.single_observation_space, self.num_envs, self._reused)

    def _send(
        self, call: str, actions: Any, resets: Sequence[int] = (), reset: Any = None, given: Any = None, **kwargs: Any
    ) -> None:
        seeds = self._episodes.seeds_for(resets, given) if len(resets) else {}
        autoreset = self._resets_in_step and actions is not None
        try:
            self.venv.send(actions, reset=reset, autoreset=autoreset, **seeds, **kwargs)
        except BaseException as error:
            self._record_failure(error)
            raise
        self._pending = call
        self._episodes.begin(resets, seeds)

    def _receive(self, ids: Sequence[int]) -> StepById:
        """Return the results of the envs `ids`. If an error is raised while envs still step, the call stays pending."""
        try:
            step = self._stepper.receive(ids)
        except BaseException as error:
            if not self._is_waiting():
                self._record_failure(error)
            raise
        self._pending = None
        return step

    def _is_waiting(self) -> bool:
        return not self.venv.is_closed and bool(self.venv.waiting_id)

    def _record_failure(self, error: BaseException | None) -> None:
        partial = getattr(error, "partial", None)
        if isinstance(partial, Partial):
            over = partial.terminated | partial.truncated
            # An env has begun its next episode if its autoreset succeeded, even if its worker ended afterwards.
            over &= ["final_info" not in info for info in partial.info]
            self._episodes.record(partial.env_id, over, partial.obs)
        if error is not None and self._ended is not None:  # the step succeeded, but the reset after the step failed
            obs, rew, terminated, truncated, infos = self._ended.step
            info = nest.object_array([{**infos.get(i, {}), "env_id": i} for i in self._ids])
            whole = Partial(np.arange(self.num_envs), obs, rew, terminated, truncated, info)
            error.partial = whole  # type: ignore[attr-defined]
        self._pending = self._ended = None


def _render_mode(venv: Any) -> str | None:
    try:
        mode: str | None = venv.get_env_attr("render_mode", id=0)[0]
    except AttributeError:
        return None
    return mode


def _check_vector_env(venv: Any) -> None:
    engine = getattr(venv, "engine", None)
    if not isinstance(engine, (Engine, NotStarted)):
        raise TypeError(
            f"a vector env of vecenv is needed, such as ShmemVectorEnv([lambda: gym.make(...)] * 8), got {venv!r}"
        )
    if engine.is_async:
        raise ValueError("a gymnasium VectorEnv steps all envs together: make the venv without wait_num and timeout")
    if venv.splits_obs:
        raise ValueError("a gymnasium VectorEnv returns batches of observations: make the venv without stack_obs=False")
