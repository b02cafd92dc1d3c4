"""What all collectors share: their arguments, and what happens to a batch before and after it is collected."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from collector.arguments import all_frames, at_least_one, check_step_count, limit, resolve_devices
from collector.batch.postprocessing import Finishing, truncate_last
from collector.batch.rewards import Payment, check_rewards
from collector.batch.step_extras import CheckedHook, StepHook
from collector.collect import collect, showing
from collector.env_source import make_vector_env
from collector.episodes.progress import Episodes
from collector.episodes.statistics import CollectStats, Ended, EpisodeTracker
from collector.interruptor import Interruptor
from collector.iteration import Batches
from collector.policy.actor import Actor
from collector.policy.actors import Actors
from collector.policy.exploration import ExplorationType, as_exploration_type, set_exploration_type
from collector.policy.interface import Policy
from collector.policy.weights import PolicyWeights
from collector.timing import Clock, CollectorStats
from vecenv import nest
from vecenv.engine.ids import as_ids

Self = TypeVar("Self", bound="BatchCollector")


class BatchCollector(ABC):
    """A collector without its loop; `SyncDataCollector` says what the arguments and methods mean."""

    def __init__(
        self,
        create_env_fn: Any,
        policy: Policy | None = None,
        *,
        frames_per_batch: float,
        total_frames: float | None = -1,
        device: Any = None,
        storing_device: Any = None,
        policy_device: Any = None,
        env_device: Any = None,
        create_env_kwargs: dict[str, Any] | None = None,
        max_frames_per_traj: float | None = None,
        init_random_frames: float | None = None,
        reset_at_each_iter: bool = False,
        postproc: Callable[[Any], Any] | None = None,
        split_trajs: bool | None = None,
        exploration_type: ExplorationType = ExplorationType.RANDOM,
        exploration_mode: str | None = None,
        return_same_td: bool = False,
        reset_when_done: bool = True,
        interruptor: Interruptor | None = None,
        set_truncated: bool = False,
        compile_policy: bool | dict[str, Any] = False,
        cudagraph_policy: bool | dict[str, Any] = False,
    ) -> None:
        if hasattr(policy, "env_num"):
            raise TypeError(f"{policy!r} is passed as the policy: the vector environment comes first, then the policy")
        self.requested_frames_per_batch = at_least_one("frames_per_batch", frames_per_batch)
        self.total_frames = all_frames(total_frames, self.requested_frames_per_batch)
        if not reset_when_done:
            raise ValueError("reset_when_done is deprecated.")
        self._exploration_type = as_exploration_type(exploration_type, exploration_mode)
        self.storing_device, self.policy_device, self.env_device = resolve_devices(
            device, storing_device, policy_device, env_device
        )
        self.frames = 0
        """Steps in the batches of this collector's iterator."""
        self.init_random_frames = limit("init_random_frames", init_random_frames)
        self.reset_at_each_iter = reset_at_each_iter
        self.set_truncated = set_truncated
        self._limit = limit("max_frames_per_traj", max_frames_per_traj)
        self._interruptor = Interruptor() if interruptor is None else interruptor
        self._faster = {"graph": cudagraph_policy, "compile": compile_policy}
        self._reuse = return_same_td
        self._finishing = Finishing(self.storing_device, bool(split_trajs), postproc, return_same_td)
        self._batches = self._steps = 0
        self._clock = Clock()
        self._closed = False
        self._actors: Actors = None  # type: ignore[assignment]  # until the environments are known
        self.env = make_vector_env(create_env_fn, create_env_kwargs, self._make_env)
        """The vector environment."""
        try:
            if self._limit:
                check_step_count(self.env.observation_space)
            self._prepare(policy)
        except BaseException:
            # One that was passed is the caller's until there is a collector.
            self._close(env_too=self.env is not create_env_fn)
            raise

    def _prepare(self, policy: Policy | None) -> None:
        self._env_num: int = self.env.env_num
        self._all_ids = np.arange(self._env_num)
        self._episodes, self._tracker = Episodes(self._env_num), EpisodeTracker(self._env_num)
        self._payment = Payment()
        self._obs: Any = None
        self.policy: Any = policy
        self._actors = Actors(policy, self.policy_device, self.env, self._exploration_type, self._faster)
        self._weights = PolicyWeights(policy, self._actors.own.module)
        if self.init_random_frames:
            self._actors.pick(random=True)  # now, because it refuses spaces from which it cannot draw

    # What a loop defines.

    @abstractmethod
    def _make_env(self, env_fns: list[Callable[[], Any]]) -> Any:
        """A vector environment of these."""

    @abstractmethod
    def _gather(
        self, frames: int, actor: Actor, quota: np.ndarray | None, on_step: CheckedHook | None, reuse: bool
    ) -> Any:
        """Collect at most that many steps; `quota` `(N,)` are the episodes to be ended in each environment.

        reuse: where a loop can, in the memory of the last such batch.
        """

    @abstractmethod
    def _round_up(self, frames: int) -> int:
        """How many steps `_gather` collects where it is asked for `frames`."""

    @abstractmethod
    def _land(self) -> None:
        """Wait for the environments that are stepping."""

    @abstractmethod
    def _forget(self) -> None:
        """Drop steps that belong to no batch yet."""

    # Batches.

    @property
    def frames_per_batch(self) -> int:
        """Steps in a full batch."""
        return self._round_up(self.requested_frames_per_batch)

    @property
    def exploration_type(self) -> ExplorationType:
        """What is taken from a distribution that the policy returns; set when the collector is made."""
        return self._exploration_type

    @property
    def policy_version(self) -> int:
        """How often the policy's weights have been updated by `update_policy_weights_`."""
        return self._weights.version

    def __iter__(self) -> Iterator[Any]:
        return self.iterator()

    def __len__(self) -> int:
        """How many batches `total_frames` are. Raises `TypeError` for a collector without end."""
        if self.total_frames < 0:
            raise TypeError("a collector without total_frames has no length")
        return -(-self.total_frames // self.frames_per_batch)

    def __repr__(self) -> str:
        so_far = f"{self.frames} frames so far{', shut down' if self._closed else ''}"
        return f"{type(self).__name__}({self.env!r}, {self.frames_per_batch} frames a batch, {so_far})"

    def __bool__(self) -> bool:
        return True

    def iterator(self) -> Iterator[Any]:
        """Batches until `total_frames` are collected; then the environments are closed."""
        return Batches(self)

    def next(self) -> Any:
        """The next batch; None after the last one."""
        return next(self.iterator(), None)

    def rollout(self) -> Any:
        """Collect one batch, as it is: not counted in `frames`, not split, not post-processed.

        Errors of environments and policy are raised after a shutdown.
        """
        return self._finishing.store(self._collect_batch())

    def collect(
        self,
        n_step: float | None = None,
        n_episode: float | None = None,
        random: bool = False,
        render: float | None = None,
        reset_before_collect: bool = False,
        gym_reset_kwargs: dict[str, Any] | None = None,
        *,
        on_step: StepHook | None = None,
        on_episode: Callable[..., Any] | None = None,
        keep: bool = True,
    ) -> CollectStats:
        """Collect `n_step` steps or `n_episode` whole episodes (as tianshou's collector); exactly one of them.

        n_step: all environments together, rounded up to a multiple of them with a warning. Episodes go on from call
        to call, and count in the one in which they end.
        n_episode: exactly that many, each from its reset. How many an environment collects is set before the first step
        (`n_episode` divided among them, the first ones one more), so that short episodes are not preferred, as they are
        where whoever ends first goes on. Episodes in progress are left. An environment that has its share is neither
        stepped nor reset. An interruptor that is stopped leaves the episodes that have ended until then.

        random: random actions in place of the policy's. render: call `render` of the environments after each round,
        and wait so many seconds (synchronous collectors only; for environments that show themselves: what `render`
        returns is dropped). reset_before_collect: leave the episodes in progress;
        `gym_reset_kwargs` are for that reset. on_step: called after each round with a `StepBatch`; what it returns (a
        dict of `(k, ...)` arrays, or None) is stored in the batch's `extras`, which are zero where a round returned
        nothing (tianshou pads so, too). A name that the batch or the policy uses is a `ValueError`. on_episode: with
        `n_episode`, called with each `Episode` soon after it has ended, by the time of their ends (asynchronous
        collectors: those of some rounds by environment). keep: False returns no batch, for evaluations that need no
        memory.

        Returns the `CollectStats`; nothing is counted in `frames`.
        """
        if render is not None:
            on_step = self._showing(render, on_step)
        return collect(
            self, n_step, n_episode, random, reset_before_collect, gym_reset_kwargs, on_step, on_episode, keep
        )

    def _showing(self, pause: float, on_step: StepHook | None) -> StepHook:
        """The hook, with every round shown after it."""
        return showing(self.env, pause, on_step)

    def _is_complete(self) -> bool:
        """Whether all of `total_frames` are collected."""
        return 0 <= self.total_frames <= self.frames

    def _collect_batch(self) -> Any:
        if self.reset_at_each_iter:
            self.reset()
        random = self.frames < self.init_random_frames
        batch, _ = self._gather_checked(self.frames_per_batch, random, reuse=self._reuse)
        if self.set_truncated:
            truncate_last(batch)
        return batch

    def _gather_checked(
        self,
        frames: int,
        random: bool,
        quota: np.ndarray | None = None,
        on_step: CheckedHook | None = None,
        reuse: bool = False,
    ) -> tuple[Any, Ended]:
        """One batch of the loop, as numpy arrays, and the episodes that ended in it."""
        self._check_open()
        self._clock.lap("idle")
        actor = self._actors.pick(random)
        with self._shutdown_on_failure():
            with set_exploration_type(self._exploration_type), self._weights.kept():
                batch = self._gather(frames, actor, quota, on_step, reuse)
            check_rewards(batch)
            ended = self._tracker.update(batch)
        self._steps += batch.frames
        self._clock.lap("storage")
        return batch, ended

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the collector is shut down; make a new one")
        if getattr(self.env, "is_closed", False):
            raise RuntimeError("the vector environment was closed, and the collector cannot go on; make new ones")

    def _version(self, actor: Actor) -> int:
        """What is stored as the version of the policy that acted."""
        return -1 if self._actors.stands_in(actor) else self._weights.version

    # Episodes and seeds.

    def reset(self, index: Any = None, **kwargs: Any) -> None:
        """Reset environments (ids or a mask; None: all) before their next step; their episodes in progress are left.

        With `kwargs` (`seed`, `options`) for the environments' `reset` it is done at once. Ids that are wrong raise
        what the vector environment's `reset` raises for them, before anything is changed.
        """
        ids = self._all_ids if index is None else as_ids(index, self._env_num)
        self._land()
        if len(ids) == self._env_num:
            self._forget()
        self._episodes.abandon(ids)
        if kwargs:
            obs, _ = self.env.reset(ids, **kwargs)
            self._put_obs(ids, obs)
            self._episodes.over[ids] = False
            self._actors.own.begin(ids)

    def _leave_started(self) -> np.ndarray:
        """Leave the episodes of which a step has been taken; returns their ids."""
        left = self._episodes.ids(np.flatnonzero(self._episodes.taken))  # before steps in flight end some of them
        self._land()
        self._forget()
        self._episodes.abandon(np.flatnonzero(self._episodes.taken))
        return left

    def _put_obs(self, ids: np.ndarray, obs: Any) -> None:
        """What these environments are asked about next."""
        if self._obs is None:
            self._obs = nest.map(lambda rows: np.zeros((self._env_num, *rows.shape[1:]), rows.dtype), obs)
        nest.put(self._obs, ids, obs)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed all environments and the random actions, and reset: the batches that follow are reproducible.

        Each environment gets a seed of its own from the chain that begins with `seed` (with `static_seed`: `seed`
        itself). Returns the seed after the last one, to go on with. A policy that draws from torch's random stream
        needs `torch.manual_seed` beside.
        """
        self._land()
        following: int = self.env.set_seed(seed, static_seed)
        self._actors.draw_anew()
        self.reset()
        return following

    # State.

    def state_dict(self) -> dict[str, Any]:
        """Weights of the policy, and how far the collector is. The environments' own states are not in it."""
        return {
            "env_state_dict": self.env.state_dict() if hasattr(self.env, "state_dict") else {},
            "frames": self.frames,
            "iter": self._batches,
            "traj_pool": self._episodes.next_id,
            **self._weights.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Go on from a `state_dict`: its weights, its count of frames, and ids of episodes that it has not used.

        Environments begin new episodes. `strict` is for the policy's `load_state_dict`.
        """
        if missing := [name for name in ("env_state_dict", "frames", "iter") if name not in state_dict]:
            raise ValueError(f"the state lacks {missing}; pass what `state_dict()` of a collector returned")
        if "policy_state_dict" in state_dict:
            self._weights.load(state_dict["policy_state_dict"], strict)
        if state_dict["env_state_dict"] and hasattr(self.env, "load_state_dict"):
            self.env.load_state_dict(state_dict["env_state_dict"])
        if not self._closed:
            self._land()
            self._forget()
        self.frames, self._batches = state_dict["frames"], state_dict["iter"]
        self._episodes.skip_to(state_dict.get("traj_pool", 0))
        self._weights.version = state_dict.get("policy_version", 0)

    def update_policy_weights_(self, policy_weights: Any = None) -> None:
        """Copy weights into the policy that collects, in place: those of a module, a state dict or a `TensorDict`.

        None copies those of the policy that the collector was made with, where it collects with a copy of it on
        another device. Comes into effect with the next batch. Raises `RuntimeError` where the policy has no weights,
        `ValueError` where names or shapes do not fit.
        """
        self._weights.update(policy_weights)

    def stats(self) -> CollectorStats:
        """Where the time went since the first batch; `print(collector.stats())` names the bottleneck in one line."""
        return self._clock.stats(self._actors.transfer_seconds, self._steps)

    # Life.

    def shutdown(self) -> None:
        """Close the environments. Safe to call again, and after any failure."""
        if not self._closed:
            self._close(env_too=True)

    def _close(self, env_too: bool) -> None:
        self._closed = True
        try:
            if self._actors is not None:
                self._actors.close()
        finally:
            if env_too:
                self.env.close()

    @contextmanager
    def _shutdown_on_failure(self) -> Iterator[None]:
        """Whatever fails inside of `with` shuts the collector down."""
        try:
            yield
        except BaseException:
            self.shutdown()
            raise

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
