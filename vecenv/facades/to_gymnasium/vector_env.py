"""To gymnasium: vector envs as `gymnasium.vector.VectorEnv`, with autoreset, dicts of infos and the async calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from vecenv import nest
from vecenv.engine.checks import keeps
from vecenv.errors import EnvContractError, Partial
from vecenv.facades.discrete_ints import int_restorer
from vecenv.facades.engine import (
    LatestObs,
    OwnStep,
    as_partial,
    autoresets,
    check_engine,
    check_halves,
    check_idle,
    exchange,
    receive,
    returns_views,
    rounds_begun,
    steps_plainly,
)
from vecenv.facades.to_gymnasium.arguments import check_arguments
from vecenv.facades.to_gymnasium.async_calls import RESET, STEP, AsyncCalls, as_deadline
from vecenv.facades.to_gymnasium.batched_spaces import (
    ActionSplitter,
    ObservationJoiner,
    action_spaces,
    observation_spaces,
)
from vecenv.facades.to_gymnasium.episodes import Episodes
from vecenv.facades.to_gymnasium.random_initial_steps import spread_out
from vecenv.facades.to_gymnasium.reset_options import as_seeds, split_options
from vecenv.facades.to_gymnasium.same_step import EndedStep
from vecenv.facades.to_gymnasium.space_errors import AS_SYNC
from vecenv.facades.to_gymnasium.vector_infos import vector_infos

VectorStep = tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


class GymnasiumVectorEnv(AsyncCalls):
    """Any vector env of ours as a `gymnasium.vector.VectorEnv` (the contract of gymnasium 1.4's AsyncVectorEnv).

        envs = GymnasiumVectorEnv(ShmemVectorEnv(env_fns, num_workers=4))
        obs, infos = envs.reset(seed=42)
        obs, rewards, terminations, truncations, infos = envs.step(actions)

    Arguments:
        venv: a BaseVectorEnv without `wait_num` and `timeout`, which is closed with this object. It stays reachable as
            `.venv`, whose `step(actions, id=...)` steps some of the envs; whoever uses that resets them before `step`.
        observation_mode: "same", "different", or (batched space, single space), as in gymnasium.
        autoreset_mode: an AutoresetMode or its value. NEXT_STEP resets an env whose episode is over in the round in
            which the others step, SAME_STEP in that of its last step (with `seed_episodes` or a wrapper around the venv
            in a second one); in DISABLED mode a step of such an env is a ResetNeeded.
        copy: False passes on the views of a venv with copy=False: observations that are valid until the next call.
        final_info_format: "list" gives `final_observation`, and in `final_info` an array of dicts, as gymnasium 0.29
            did; for SAME_STEP mode.
        seed_episodes: every reset gets a seed, those of autoreset too: `next_seed` of the one before in the same env.
            `np_random_seed` tells it, so that any episode can be played again by itself.
        random_initial_steps: after a full reset each env makes between 0 and so many random steps, so that their
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
        check_engine(venv)
        check_halves(venv, type(self).__name__)
        self.observation_mode, self.copy = observation_mode, copy
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        n = self.num_envs = len(venv)
        self.metadata = {**(venv.metadata[0] or {}), "autoreset_mode": self.autoreset_mode}
        self.render_mode = _render_mode(venv)
        said = self._space_errors, type(self).__name__
        self.observation_space, self.single_observation_space = observation_spaces(
            observation_mode, venv.observation_space, *said
        )
        self.action_space, self.single_action_space = action_spaces(venv.action_space, *said)
        self.venv = venv  # from here on `close` closes it: nothing is refused any more
        self._final_as_list = final_info_format == "list"
        self._random_initial_steps = random_initial_steps
        self._actions = ActionSplitter(self.action_space, self.single_action_space)
        self._obs = ObservationJoiner(self.single_observation_space, n, reuse=not copy)
        self._as_ints = int_restorer(self.single_observation_space)
        self._latest = LatestObs(venv)
        # The seed of an episode has to be sent before it is known whether one ends.
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        self._one_round = same_step and not seed_episodes and autoresets(venv)
        self._has_views = returns_views(venv)
        self._episodes = Episodes(n, seed_episodes)
        are_ours = keeps(self, GymnasiumVectorEnv, "step_async", "step_wait")
        self._steps_plainly = steps_plainly(venv) and self._actions.takes_arrays and are_ours
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
        self.reset_async(seed, options)
        return self.reset_wait()

    def reset_async(self, seed: Any = None, options: dict[str, Any] | None = None) -> None:
        """The first half of `reset`: check, start, return at once."""
        self._begin("reset_async")
        seeds = as_seeds(seed, self.num_envs)
        mask, others = split_options(options, self.num_envs)
        check_idle(self.venv)
        ids = self._ids if mask is None else np.flatnonzero(mask).tolist()
        seeding = self._episodes.seeds_for(ids, None if seeds is None else [seeds[i] for i in ids])
        self._resetting = ids
        self._send(RESET, None, list(ids), False, **seeding, **({} if others is None else {"options": others}))
        self._episodes.begin(ids, seeding)

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """The second half of `reset`; `multiprocessing.TimeoutError` after `timeout` seconds: then wait again.

        Random initial steps, if there are any, are made here and take their own time.
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
        return self._obs.join(self._owned(batch)), vector_infos(infos.items(), self.num_envs)

    def _spread_out(self) -> None:
        """Make the random initial steps; if that fails or is interrupted, none of them is left in flight."""
        seed, space = self._episodes.first_seed, self.single_action_space
        try:
            spread_out(self.venv, space, self._random_initial_steps, seed, self._episodes, self._latest)
        except BaseException as error:
            self._give_up(error)
            if self._is_waiting():
                try:
                    step = self.venv.recv()
                    self._note(Partial(np.array([row["env_id"] for row in step[-1]]), *step))
                except Exception as another:
                    self._give_up(another)
            raise

    # Step.

    def step(self, actions: Any) -> VectorStep:
        """Step all envs; returns (obs, rewards, terminations, truncations, infos).

        `actions` is a batch of the action space or a sequence of one action an env, of any array library. rewards:
        float64 (n,), or (n, m) of envs whose rewards are vectors (beyond gymnasium's contract: its wrappers want
        numbers); terminations, truncations: bool (n,). TypeError or ValueError for anything but n actions;
        EnvContractError if envs differ in the shape of their rewards.
        """
        if self._steps_plainly:
            self._begin("step_async")
            if (step := self._exchange(actions)) is not None:
                return self._results(step, None)
        self.step_async(actions)
        return self.step_wait()

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
        if rew.dtype == object:
            self._refuse_mixture(step)
        if self._latest.is_kept:
            self._latest.note(self._ids, obs)
        self._episodes.note_all(terminated | truncated)
        if not self._episodes.ended or self.autoreset_mode is not AutoresetMode.SAME_STEP:
            batch = vector_infos(infos.items(), self.num_envs) if infos else {}
            return self._obs.join(obs), rew, terminated, truncated, batch
        return self._end_episodes((obs, rew, terminated, truncated, infos), deadline)

    def _refuse_mixture(self, step: OwnStep) -> None:
        """Raise EnvContractError: these rewards have several shapes."""
        ids_by_shape: dict[tuple[int, ...], list[int]] = {}
        for i, reward in enumerate(step[1]):
            ids_by_shape.setdefault(np.shape(reward), []).append(i)
        found = ", ".join(f"{shape} in envs {ids}" for shape, ids in ids_by_shape.items())
        error = EnvContractError(f"the rewards of one step must have one shape, the envs differ: {found}")
        error.env_id = list(ids_by_shape.values())[1][0]
        error.partial = as_partial(step)
        self._give_up(error)
        raise error

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
        """The results of the step, once the envs that it had left are reset."""
        if left := ended.left:
            first_obs, _, _, _, first_infos = self._receive(left)
            self._ended = None
            self._latest.note(left, first_obs)
            self._episodes.note(left, False)
            ended.begin(first_obs, first_infos)
        obs, rew, terminated, truncated, _ = ended.step
        return self._obs.join(obs), rew, terminated, truncated, ended.vector_infos(self._final_as_list)

    # The engine.

    def _exchange(self, actions: Any) -> OwnStep | None:
        """A step in one go, which costs less than its halves; None if it has to go by these: then nothing is done."""
        reset = None
        if self._episodes.ended:
            if not self._resets_plainly:
                return None
            reset = self._episodes.over
        before, self._autoreset = rounds_begun(self.venv), self._one_round
        try:
            step = exchange(self.venv, actions, reset, self._one_round)
        except BaseException as error:
            self._raised(STEP, before, error)
            raise
        return step if step is None or not self._has_views else self._as_copies(step)

    def _send(self, call: str, actions: Any, reset: Any, autoreset: bool, **kwargs: Any) -> None:
        """Start a round; the call is pending if anything was started, though it was interrupted."""
        before, self._autoreset = rounds_begun(self.venv), autoreset
        try:
            self.venv.send(actions, reset=reset, autoreset=autoreset, **kwargs)
        except BaseException as error:
            self._raised(call, before, error)
            raise
        self._pending = call

    def _raised(self, call: str, before: int, error: BaseException) -> None:
        """The call is pending if a round that it began goes on; `before` is how many had begun before it."""
        if rounds_begun(self.venv) != before and self._is_waiting():
            self._pending = call
        else:
            self._give_up(error)

    def _receive(self, ids: Sequence[int]) -> OwnStep:
        """The results of the round, which is of `ids`; no call is pending any more, unless this was interrupted."""
        try:
            step = receive(self.venv, ids)
        except BaseException as error:
            if not self._is_waiting():
                self._give_up(error)
            raise
        self._pending = None
        return self._as_copies(step) if self._has_views else step

    def _as_copies(self, step: OwnStep) -> OwnStep:
        """What the engine returned as views; only observations may be handed on as such."""
        obs, rew, terminated, truncated, infos = step
        return self._owned(obs), rew.copy(), terminated.copy(), truncated.copy(), infos

    def _is_waiting(self) -> bool:
        return not self.venv.is_closed and bool(self.venv.waiting_id)

    def _give_up(self, error: BaseException) -> None:
        """The round failed or was refused: what the envs that did not fail have returned is in the error."""
        partial = getattr(error, "partial", None)
        if isinstance(partial, Partial):
            self._note(partial)
        if self._ended is not None:  # the step itself went well
            error.partial = as_partial(self._ended.step)  # type: ignore[attr-defined]
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
