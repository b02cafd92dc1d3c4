"""The base of the loops: one batch at a time of a vector env and a policy, and what is left after a failure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from collector.batch.rollout import RewardShape, check_rewards
from collector.batch.step_extras import CheckedHook
from collector.episodes.env_episodes import EnvEpisodes
from collector.episodes.episode import Ended, EpisodeCutter
from collector.interruptor import Interruptor
from collector.policy.exploration import ExplorationType, exploring, requested_exploration_type
from collector.policy.keyed_noise import KeyedNoise
from collector.policy.policy_call import Policy
from collector.policy.runner import PolicyRunner
from collector.policy.weights import PolicyWeights
from collector.timing import Clock, CollectorStats
from vecenv import nest
from vecenv.errors import warn_caller
from vecenv.extending import add_note, as_ids
from vecenv.wrappers import resets_in_step


class BatchRequest(NamedTuple):
    """One batch that a loop is to collect."""

    frames: int
    """The largest number of steps."""
    random: bool
    """Whether random actions take the place of the policy's."""
    quota: np.ndarray | None = None
    """int `(N,)`: the episodes that are to end in each env; the loop counts them down. None: any number."""
    on_step: CheckedHook | None = None
    reuse: bool = False
    """Whether to record into the memory of the last such batch, where a loop can."""


class CollectionLoop(ABC):
    """Collects one batch after another; knows nothing of what they are for.

    A collector sets the attributes below from its arguments and calls `_prepare`; `SyncDataCollector` and
    `AsyncDataCollector` define the loop itself. After a failure the next batch begins new episodes in all envs; where
    there can be none, the collector is shut down.
    """

    env: Any
    """The vector env."""
    policy: Any
    policy_device: Any
    init_random_frames: int
    _exploration_type: ExplorationType
    _options: dict[str, Any]
    """Those of the `PolicyRunner`."""
    _limit: int
    """Steps at which an episode is truncated, or 0."""
    _seeds: Iterable[tuple[int, int]] | None
    """`episode_seeds`."""
    _interruptor: Interruptor
    _runner: PolicyRunner = None  # type: ignore[assignment]  # until the envs are known
    _closed = False
    _failed = False
    """Whether a failure ended the last batch."""
    _shut_down_by = ""
    """The failure that shut the collector down, by its class."""

    def _prepare(self, policy: Policy | None) -> None:
        self._env_num: int = self.env.env_num
        self._all_ids = np.arange(self._env_num)
        self._cutter = EpisodeCutter()
        self._autoreset = resets_in_step(self.env)
        self._episodes = EnvEpisodes(self._env_num, self._seeds, ahead=self._autoreset)
        self._noise: KeyedNoise | None = None
        if self._seeds is not None:
            self._noise = KeyedNoise(getattr(self._seeds, "job_seed", 0), self._env_num)
        self._reward_shape = RewardShape()
        self._steps = 0
        self._warned_of_failures = False
        self._clock = Clock()
        self._obs: Any = None
        self.policy = policy
        self._runner = PolicyRunner(
            policy, self.env, self._exploration_type, self.policy_device, noise=self._noise, **self._options
        )
        if self._noise is not None:
            self._episodes.share(self._noise.numbers[: self._env_num], self._noise.steps[: self._env_num])
        self._weights = PolicyWeights(policy, self._runner.module)
        if self.init_random_frames:
            self._runner.replaces(random=True)  # now, because it refuses spaces from which it cannot draw

    # What a loop defines.

    @abstractmethod
    def _gather(self, request: BatchRequest) -> Any:
        """Collect one batch of numpy arrays."""

    @abstractmethod
    def _round_up(self, frames: int) -> int:
        """Number of steps that `_gather` collects for a request of `frames`."""

    @abstractmethod
    def _finish_steps(self, discard: bool) -> None:
        """Wait for the envs that are stepping; `discard`: also discard the steps that belong to no batch yet."""

    @abstractmethod
    def _discard_steps(self) -> None:
        """After a failure: discard the steps that belong to no batch, and what envs in flight return or raise."""

    # What loops share.

    def _begin(self, env_ids: np.ndarray) -> None:
        """Note that episodes begin in these envs."""
        self._episodes.begin(env_ids)
        self._runner.begin(env_ids)  # the policy's state begins too where random actions take its place

    def _count_steps(
        self, ids: np.ndarray, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, resets: Any = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Count the steps of a round, of which the envs in the mask `resets` took none.

        Returns the rewards in their shape, the flags with long episodes cut, and which episodes the envs themselves
        have ended.
        """
        if resets is None and len(ids) == self._env_num:
            self._episodes.taken += 1
        elif resets is None:
            self._episodes.taken[ids] += 1
        else:
            self._episodes.taken[ids] += ~resets
            terminated, truncated = terminated & ~resets, truncated & ~resets
        by_env = terminated | truncated
        if self._limit:
            truncated = truncated | (self._episodes.taken[ids] >= self._limit)
        return self._reward_shape.fit(reward), terminated, truncated, by_env

    def _end_episodes(self, ids: np.ndarray, ended: np.ndarray, info: Any, quota: np.ndarray | None) -> np.ndarray:
        """End the episodes in the rows `ended` of a round; returns in which of them the env failed: a mask."""
        failures = self._episodes.note_failures(ids, ended, info)
        failed = np.isin(ended, failures) if failures else np.zeros(len(ended), np.bool_)
        self._episodes.end(ids[ended])
        if quota is not None:
            quota[ids[ended[~failed]]] -= 1
        return failed

    # One batch.

    def _gather_checked(self, request: BatchRequest) -> tuple[Any, Ended]:
        """One batch of the loop, as numpy arrays, and the episodes that ended in it."""
        self._check_open()
        self._recover()
        self._clock.lap("idle")
        request = request._replace(random=self._runner.replaces(request.random))
        wanted = requested_exploration_type() or self._exploration_type
        self._runner.explore(wanted)
        try:
            with exploring(wanted), self._weights.kept(), self._runner.on_threads():
                batch = self._gather(request)
            check_rewards(batch)
        except BaseException as error:
            self._note_failure(error)
            raise
        ended = self._cutter.totals(batch)
        self._steps += batch.frames
        self._clock.lap("storage")
        self._warn_of_failures()
        return batch, ended

    def _warn_of_failures(self) -> None:
        """Give a warning after the first batch in which episodes broke off."""
        count = self._episodes.broken
        if not count or self._warned_of_failures:
            return
        self._warned_of_failures = True
        which = "1 episode" if count == 1 else f"{count} episodes"
        warn_caller(
            f"{which} of this batch broke off where envs failed ({self._episodes.first_failure}): `batch.broken` marks "
            "their steps, and `mask` leaves out the rows of the failures. Others are only counted: collector.stats()"
        )

    def _note_failure(self, error: BaseException) -> None:
        """Note that an exception ended a batch: new episodes come next. Where there can be none, shut down."""
        if self._seeds is not None:
            why = "its steps are lost, and with episode_seeds every episode is played to its end"
        elif getattr(self.env, "is_closed", False):
            why = "its vector env is closed"
        else:
            self._failed = True
            add_note(error, "the steps of this batch are lost; the collector can go on, with new episodes in all envs")
            return
        add_note(error, f"the collector was shut down by this: {why}")
        self._shut_down_by = type(error).__name__
        self._note_exception(error)
        self.shutdown()

    def _recover(self) -> None:
        """After a failure: abandon the episodes in progress, and what is in flight."""
        if self._failed:
            self._discard_steps()
            self._episodes.abandon()
            self._runner.begin(self._all_ids)
            self._failed = False

    def _check_open(self) -> None:
        if self._closed and self._shut_down_by:
            raise RuntimeError(f"the collector was shut down by the {self._shut_down_by} before; make a new one")
        if self._closed:
            raise RuntimeError("the collector is shut down; make a new one")
        if getattr(self.env, "is_closed", False):
            raise RuntimeError("the vector env was closed, and the collector cannot go on; make new ones")

    # Episodes and seeds.

    @property
    def all_played(self) -> bool:
        """Return whether all of `episode_seeds` have been played to their end; False for a collector without.

        The iterator ends then; `rollout` and `collect` raise `RuntimeError`.
        """
        return self._seeds is not None and self._episodes.all_played

    @property
    def everything_keyed(self) -> bool:
        """Return whether all actions so far depend on the observations, the weights, and the job seed, number and
        step of their episode alone. See `episode_seeds`; False for a collector without.
        """
        return self._noise is not None and self._noise.everything

    def _refuse_with_seeds(self, what: str) -> None:
        if self._seeds is not None:
            raise ValueError(
                f"{what} cannot be used with episode_seeds: each episode is reset with its own seed and played to its "
                "end; limit them with EpisodeSeeds(job_seed, numbers=range(n))"
            )

    def reset(self, index: Any = None, **kwargs: Any) -> None:
        """Reset envs (ids or a mask; None: all) before their next step; their episodes in progress are abandoned.

        With `kwargs` (`seed`, `options`) for the envs' `reset` it is done at once. Ids that are wrong raise what the
        vector env's `reset` raises for them, before anything is changed.
        """
        self._refuse_with_seeds("reset()")
        ids = self._all_ids if index is None else as_ids(index, self._env_num)
        self._recover()
        self._finish_steps(discard=len(ids) == self._env_num)
        self._episodes.abandon(ids)
        if kwargs:
            obs, _ = self.env.reset(ids, **kwargs)
            self._put_obs(ids, obs)
            self._begin(ids)

    def _abandon_started(self) -> np.ndarray:
        """Abandon the episodes of which a step has been taken; returns their ids."""
        self._recover()
        abandoned = self._episodes.ids[self._episodes.taken > 0]  # before steps in flight end some of them
        self._finish_steps(discard=True)
        self._episodes.abandon(np.flatnonzero(self._episodes.taken))
        return abandoned

    def _put_obs(self, ids: np.ndarray, obs: Any) -> None:
        """Set the observations that the policy gets next for these envs."""
        if self._obs is None:
            self._obs = nest.map(lambda rows: np.zeros((self._env_num, *rows.shape[1:]), rows.dtype), obs)
        nest.put(self._obs, ids, obs)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed all envs and the random actions, and reset: the batches that follow are reproducible.

        Each env gets its own seed from the chain that begins with `seed` (with `static_seed`: `seed` itself).
        Returns the seed after the last one, to go on with. A policy that draws from torch's random stream needs
        `torch.manual_seed` too.
        """
        self._refuse_with_seeds("set_seed()")
        self._recover()
        self._finish_steps(discard=False)
        following: int = self.env.set_seed(seed, static_seed)
        self._runner.reseed_random_actions()
        self.reset()
        return following

    # Life.

    def stats(self) -> CollectorStats:
        """Seconds since the first batch by what took them; `print(collector.stats())` names the bottleneck in one
        line.
        """
        return self._clock.stats(self._runner.transfer_seconds, self._steps, self._episodes.broken)

    def shutdown(self, close_env: bool = True) -> None:
        """End the collector, and close the vector env unless `close_env` is False. Safe to call again, and after any
        failure.
        """
        if not self._closed:
            self._close(env_too=close_env)

    def _note_exception(self, error: BaseException) -> None:
        """Before an exception closes the vector env: let it know, so that `RecordEpisodes` ends no data set."""
        if not self._closed and (note := getattr(self.env, "note_exception", None)) is not None:
            note(error)

    def _close(self, env_too: bool) -> None:
        self._closed = True
        try:
            if self._runner is not None:
                self._runner.close()
        finally:
            if env_too:
                self.env.close()
