"""To gymnasium: vector envs as `gymnasium.vector.VectorEnv`, with autoreset, dicts of infos and the async calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from vecenv import nest
from vecenv.engine.results import OwnStep
from vecenv.errors import Partial
from vecenv.facades.discrete_ints import int_restorer
from vecenv.facades.driver import Driver
from vecenv.facades.to_gymnasium.arguments import as_autoreset_mode, check_arguments, check_vector_env
from vecenv.facades.to_gymnasium.async_calls import RESET, STEP, AsyncCalls, as_deadline
from vecenv.facades.to_gymnasium.batched_spaces import (
    ActionSplitter,
    ObservationJoiner,
    action_spaces,
    observation_spaces,
)
from vecenv.facades.to_gymnasium.episodes import Episodes
from vecenv.facades.to_gymnasium.latest_obs import LatestObs
from vecenv.facades.to_gymnasium.random_initial_steps import spread_out
from vecenv.facades.to_gymnasium.reset_options import as_seeds, split_options
from vecenv.facades.to_gymnasium.same_step import EndedStep
from vecenv.facades.to_gymnasium.space_errors import AS_SYNC
from vecenv.facades.to_gymnasium.vector_infos import batch_infos
from vecenv.wrappers import check_send_and_recv

VectorStep = tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


class GymnasiumVectorEnv(AsyncCalls):
    """Any vector env of ours as a `gymnasium.vector.VectorEnv` (the contract of gymnasium 1.4's AsyncVectorEnv).

        envs = GymnasiumVectorEnv(ShmemVectorEnv(env_fns, num_workers=4))
        obs, infos = envs.reset(seed=42)
        obs, rewards, terminations, truncations, infos = envs.step(actions)

    Arguments:
        venv: a BaseVectorEnv without `wait_num` and `timeout`, which is closed with this object. It stays reachable as
            `.venv`, whose `step(actions, id=...)` steps some of the envs; reset those before the next `step`.
        observation_mode: "same", "different", or (batched space, single space), as in gymnasium.
        autoreset_mode: an AutoresetMode, its value or its name in any case. NEXT_STEP resets an env whose episode is
            over in the round in which the others step, SAME_STEP in that of its last step (with `seed_episodes` or a
            wrapper around the venv in a second one); in DISABLED mode a step of such an env is a ResetNeeded.
        copy: False passes on the views of a venv with copy=False: observations that are valid until the next call.
        final_info_format: "list" gives `final_observation`, and in `final_info` an array of dicts, as gymnasium 0.29
            did; for SAME_STEP mode.
        seed_episodes: every reset gets a seed, those of autoreset too: `next_seed` of the one before in the same env.
            `np_random_seed` is that seed, so that any episode can be played again by itself.
        random_initial_steps: after a full reset each env makes between 0 and this many random steps, so that their
            episodes do not end together.

    Guarantees: what is refused leaves every env untouched; returned arrays never change later (but see `copy`); no
    value of an info is cast to a type that cannot hold it; a wait that timed out loses nothing and can be repeated; the
    caller's `options` are not written to. Exceptions of an env arrive as the engine raises them, with the results of
    the other envs in `error.partial`, and a reset of that env makes it usable again.

    >>> import gymnasium as gym
    >>> from vecenv import DummyVectorEnv
    >>> envs = GymnasiumVectorEnv(DummyVectorEnv([lambda: gym.make("CartPole-v1")] * 3))
    >>> obs, infos = envs.reset(seed=42)
    >>> obs.shape, envs.action_space, envs.np_random_seed
    ((3, 4), MultiDiscrete([2 2 2]), (42, 43, 44))
    >>> envs.close()
    """

    _space_errors = AS_SYNC

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
        check_arguments(observation_mode, autoreset_mode, final_info_format, random_initial_steps)
        check_vector_env(venv)
        check_send_and_recv(venv, type(self).__name__)
        self.observation_mode, self.copy = observation_mode, copy
        self.autoreset_mode = as_autoreset_mode(autoreset_mode)
        n = self.num_envs = len(venv)
        self.metadata = {**(venv.metadata[0] or {}), "autoreset_mode": self.autoreset_mode}
        self.render_mode = _render_mode(venv)
        errors = self._space_errors, type(self).__name__
        self.observation_space, self.single_observation_space = observation_spaces(
            observation_mode, venv.observation_space, *errors
        )
        self.action_space, self.single_action_space = action_spaces(venv.action_space, *errors)
        self.venv = venv  # from here on `close` closes it: nothing is refused any more
        self._driver = Driver(venv)
        self._final_as_list = final_info_format == "list"
        self._random_initial_steps = random_initial_steps
        self._actions = ActionSplitter(self.action_space, self.single_action_space)
        self._obs = ObservationJoiner(self.single_observation_space, n, reuse=not copy)
        self._as_ints = int_restorer(self.single_observation_space)
        self._latest = LatestObs(venv)
        # The seed of an episode has to be sent before it is known whether one ends.
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        self._one_round = same_step and not seed_episodes and self._driver.autoresets
        self._has_views = not venv.engine.results.copies
        self._episodes = Episodes(n, seed_episodes)
        own_halves = all(
            getattr(type(self), name) is getattr(GymnasiumVectorEnv, name) for name in ("step_async", "step_wait")
        )
        self._exchanges = self._driver.engine is not None and self._actions.takes_arrays and own_halves
        """Whether `step` may run a round without `step_async` and `step_wait`."""
        self._resets_plainly = self.autoreset_mode is AutoresetMode.NEXT_STEP and not seed_episodes
        """Whether a step after ends of episodes is a round like others, without seeds to send and to note."""
        self._ids = range(n)
        self._resetting: Sequence[int] = ()
        self._ended: EndedStep | None = None
        """What a step that ended episodes has returned, while envs are being reset after it."""
        self._autoreset = False
        """Whether the last round was sent with `autoreset`."""
        self._pending = self._called = None

    # Reset.

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those of `options["reset_mask"]` (bool, (n,)); returns (obs, infos) of the whole batch.

        `seed`: an int s gives env i the seed s + i, a list or array has one for each env (None for no seed). The other
        options go to every env. TypeError and ValueError for bad arguments, before any env is touched.
        """
        try:
            self.reset_async(seed, options)
            return self.reset_wait()
        except KeyboardInterrupt as error:
            self._drop(error)
            raise

    def reset_async(self, seed: Any = None, options: dict[str, Any] | None = None) -> None:
        """The first half of `reset`: check, start, return at once."""
        self._begin("reset_async")
        seeds = as_seeds(seed, self.num_envs)
        mask, others = split_options(options, self.num_envs)
        if self.venv.waiting_id:
            self.venv.engine.readiness.check_idle(None)
        ids = self._ids if mask is None else np.flatnonzero(mask).tolist()
        seeding = self._episodes.seeds_for(ids, None if seeds is None else [seeds[i] for i in ids])
        self._resetting = ids
        self._send(RESET, None, list(ids), False, **seeding, **({} if others is None else {"options": others}))
        self._episodes.begin(ids, seeding)

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """The second half of `reset`; `multiprocessing.TimeoutError` after `timeout` seconds: then wait again.

        Random initial steps, if there are any, are made here and may exceed `timeout`.
        """
        self._expect(RESET)
        if timeout is not None:
            self._await(RESET, as_deadline(timeout))
        ids = self._resetting
        obs, _, _, _, infos = self._receive(ids)
        self._episodes.note(ids, False)
        self._latest.note(ids, obs)
        if self._random_initial_steps and len(ids) == self.num_envs:
            self._spread_out()
        batch = self._latest.batch()
        return self._obs.join(self._owned(batch)), batch_infos(infos, self.num_envs)

    def _spread_out(self) -> None:
        """Make the random initial steps."""
        seed, space = self._episodes.first_seed, self.single_action_space
        try:
            spread_out(self.venv, space, self._random_initial_steps, seed, self._episodes, self._latest)
        except BaseException as error:
            self._give_up(error)
            raise

    # Step.

    def step(self, actions: Any) -> VectorStep:
        """Step all envs; returns (obs, rewards, terminations, truncations, infos).

        `actions` is a batch of the action space or a sequence of one action an env, of any array library; an env gets
        its action in the type that it has there (a float64 row, a Python int), as in gymnasium. rewards:
        float64 (n,), or (n, m) of envs whose rewards are vectors (beyond gymnasium's contract: its wrappers want
        numbers); terminations, truncations: bool (n,). TypeError or ValueError for anything but n actions.
        """
        episodes = self._episodes
        if self._exchanges and (not episodes.ended or self._resets_plainly):
            self._begin("step_async")
            if actions.__class__ is not np.ndarray or not actions.ndim:
                actions = self._actions.split(actions)
            self._autoreset = self._one_round
            engine: Any = self._driver.engine
            try:
                taken = engine.exchange(actions, episodes.over if episodes.ended else None, self._one_round)
            except BaseException as error:
                self._give_up(error)
                raise
            step = engine.results.own_rows(None, taken)
            return self._results(self._as_copies(step) if self._has_views else step, None)
        try:
            self.step_async(actions)
            return self.step_wait()
        except KeyboardInterrupt as error:
            self._drop(error)
            raise

    def step_async(self, actions: Any) -> None:
        """The first half of `step`: check, start, return at once."""
        self._begin("step_async")
        actions = self._actions.split(actions)
        if not (ids := self._episodes.ended):
            self._send(STEP, actions, None, self._one_round)
            return
        if self.autoreset_mode is AutoresetMode.DISABLED:
            raise ResetNeeded(
                f"the episodes of envs {ids} are over: reset these envs before the next step, with "
                "reset(options={'reset_mask': terminations | truncations}); autoreset_mode is DISABLED"
            )
        seeding = self._episodes.seeds_for(ids, None)
        self._send(STEP, actions, self._episodes.over, self._one_round, **seeding)
        self._episodes.begin(ids, seeding)

    def step_wait(self, timeout: float | None = None) -> VectorStep:
        """The second half of `step`; `multiprocessing.TimeoutError` after `timeout` seconds: then wait again."""
        self._expect(STEP)
        deadline = None if timeout is None else as_deadline(timeout)
        if deadline is not None:
            self._await(STEP, deadline)
        if self._ended is None:
            return self._results(self._receive(self._ids), deadline)
        return self._finish(self._ended)

    def _results(self, step: OwnStep, deadline: float | None) -> VectorStep:
        """A step of the engine as `step` returns it; in SAME_STEP mode the envs are reset whose episodes it ended."""
        obs, rew, terminated, truncated, infos = step
        if self._latest.is_kept:
            self._latest.note(self._ids, obs)
        self._episodes.note_all(terminated | truncated)
        if not self._episodes.ended or self.autoreset_mode is not AutoresetMode.SAME_STEP:
            batch = batch_infos(infos, self.num_envs) if infos else {}
            return self._obs.join(obs), rew, terminated, truncated, batch
        return self._end_episodes((obs, rew, terminated, truncated, infos), deadline)

    # Episodes that end in SAME_STEP mode.

    def _end_episodes(self, step: OwnStep, deadline: float | None) -> VectorStep:
        """The results of a step that ended episodes; first the envs are reset that the step itself has not reset."""
        ids = self._episodes.ended
        failed = self.venv.failed_id if self._autoreset else ids
        left = [i for i in ids if i in failed]
        begun = [i for i in ids if i not in failed]
        ended = EndedStep(step, ids, left, self._as_ints)
        self._episodes.note(begun, False)
        self._episodes.begin(begun, {})
        if left:
            self._ended = ended
            seeding = self._episodes.seeds_for(left, None)
            self._send(STEP, None, left, False, **seeding)
            self._episodes.begin(left, seeding)
            if deadline is not None:
                self._await(STEP, deadline)
        return self._finish(ended)

    def _finish(self, ended: EndedStep) -> VectorStep:
        """The results of the step, once the envs that it did not reset are reset."""
        if left := ended.left:
            first_obs, _, _, _, first_infos = self._receive(left)
            self._ended = None
            self._latest.note(left, first_obs)
            self._episodes.note(left, False)
            ended.begin(first_obs, first_infos)
        obs, rew, terminated, truncated, _ = ended.step
        return self._obs.join(obs), rew, terminated, truncated, ended.vector_infos(self._final_as_list)

    # The engine.

    def _send(self, call: str, actions: Any, reset: Any, autoreset: bool, **kwargs: Any) -> None:
        """Start a round; then the call is pending."""
        self._autoreset = autoreset
        try:
            self.venv.send(actions, reset=reset, autoreset=autoreset, **kwargs)
        except BaseException as error:
            self._give_up(error)
            raise
        self._pending = call

    def _receive(self, ids: Sequence[int]) -> OwnStep:
        """The results of the round, which is of `ids`; no call is pending any more, unless a warning was raised."""
        try:
            step = self._driver.receive(ids)
        except BaseException as error:
            if not self._is_waiting():
                self._give_up(error)
            raise
        self._pending = None
        return self._as_copies(step) if self._has_views else step

    def _as_copies(self, step: OwnStep) -> OwnStep:
        """What the engine returned as views; only observations may be returned as views."""
        obs, rew, terminated, truncated, infos = step
        return self._owned(obs), rew.copy(), terminated.copy(), truncated.copy(), infos

    def _is_waiting(self) -> bool:
        return not self.venv.is_closed and bool(self.venv.waiting_id)

    def _drop(self, error: BaseException) -> None:
        """After an interrupted call, also between `x_async` and `x_wait`: nothing of it stays in flight."""
        if not self.closed and not self.venv.is_closed:
            self.venv.engine.abandon(error)
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """The round failed or was refused: what the envs that did not fail have returned is in the error."""
        partial = getattr(error, "partial", None)
        if isinstance(partial, Partial):
            self._note(partial)
        if self._ended is not None:  # the step itself went well
            error.partial = self._ended.as_partial()  # type: ignore[attr-defined]
        self._pending = self._ended = None

    def _note(self, rows: Partial) -> None:
        """What some envs have returned; after a step with `autoreset` the next episode has begun where none failed."""
        over = rows.terminated | rows.truncated
        if self._autoreset:
            over &= np.isin(rows.env_id, self.venv.failed_id)
        self._episodes.note(rows.env_id, over)
        self._latest.note(rows.env_id, rows.obs)

    def _owned(self, obs: Any) -> Any:
        return nest.map(np.copy, obs) if self.copy and self._has_views else obs


def _render_mode(venv: Any) -> str | None:
    try:
        mode: str | None = venv.get_env_attr("render_mode", id=0)[0]
    except AttributeError:
        return None
    return mode
