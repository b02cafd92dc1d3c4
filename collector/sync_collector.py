"""The arguments, batches and state of local collectors, and `SyncDataCollector`, whose envs step together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from gymnasium.vector import VectorEnv

from collector.batch.rollout import truncate_last
from collector.batch.step_extras import RowLayout, check_info_keys
from collector.collect import Collecting
from collector.collector_arguments import check_step_count, limit, threads
from collector.env_source import VectorEnvMaker, check_synchronous, make_vector_env, with_transforms
from collector.evaluation import Evaluation
from collector.interruptor import Interruptor
from collector.loops.collection_loop import BatchRequest
from collector.loops.sync_loop import SyncLoop
from collector.policy.exploration import ExplorationType, as_exploration_type
from collector.policy.policy_call import Policy
from vecenv.extending import flat
from vecenv.wrappers import check_send_and_recv


class BatchCollector(Collecting):
    """A collector without its loop; arguments and methods are documented in `SyncDataCollector`."""

    _default_backend = "dummy"

    def __init__(
        self,
        create_env_fn: Any,
        policy: Policy | None = None,
        *,
        frames_per_batch: float | None = None,
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
        policy_threads: int | None = 1,
        backend: str | None = None,
        episode_seeds: Iterable[tuple[int, int]] | None = None,
        transforms: Any = None,
        info_keys: Sequence[str] | None = None,
        **env_options: Any,
    ) -> None:
        make = VectorEnvMaker(type(self), backend, self._default_backend, env_options)
        devices = device, storing_device, policy_device, env_device
        finishing = postproc, split_trajs, return_same_td
        super().__init__(policy, frames_per_batch, total_frames, init_random_frames, devices, *finishing)
        if not reset_when_done:
            raise ValueError("reset_when_done is deprecated.")
        self._exploration_type = as_exploration_type(exploration_type, exploration_mode)
        self._seeds = episode_seeds
        self._info_keys = check_info_keys(info_keys)
        self._info_layout: dict[str, RowLayout] = {}
        if reset_at_each_iter:
            self._refuse_with_seeds("reset_at_each_iter")
        self.reset_at_each_iter, self.set_truncated = reset_at_each_iter, set_truncated
        self._limit = limit("max_frames_per_traj", max_frames_per_traj)
        self._interruptor = Interruptor() if interruptor is None else interruptor
        count = threads("policy_threads", policy_threads)
        self._options = {"cudagraph": cudagraph_policy, "compile": compile_policy, "threads": count}
        self._make_env(create_env_fn, create_env_kwargs, make, transforms, policy)

    def _make_env(
        self, source: Any, kwargs: dict[str, Any] | None, make: VectorEnvMaker, transforms: Any, policy: Any
    ) -> None:
        """Make the vector env, with the transforms around it, and prepare for the first batch."""
        self.env = make_vector_env(source, kwargs, make)
        is_own = self.env is not source and not isinstance(source, VectorEnv)
        try:
            make.check_used()
            if transforms is not None:
                self.env = with_transforms(self.env, transforms, policy, self.policy_device)
            if self._limit:
                check_step_count(self.env.observation_space)
            self._prepare(policy)
            again = partial(_make_again, kwargs, make, transforms, policy, self.policy_device)
            self._evaluation = Evaluation(source, again, self.env)
        except BaseException as error:
            # A vector env that was passed is the caller's until there is a collector.
            if is_own:
                self._note_exception(error)
            self._close(env_too=is_own)
            if isinstance(source, VectorEnv) and hasattr(self.env, "release"):
                self.env.release()
            raise

    # Batches.

    @property
    def frames_per_batch(self) -> int:
        """Steps in a full batch."""
        return self._round_up(self.requested_frames_per_batch)

    @property
    def exploration_type(self) -> ExplorationType:
        """The value taken from a distribution that the policy returns, where no `set_exploration_type` is around a call
        of the collector.
        """
        return self._exploration_type

    def __repr__(self) -> str:
        so_far = f"{self.frames} frames so far{', shut down' if self._closed else ''}"
        return f"{type(self).__name__}({self.env!r}, {self.frames_per_batch} frames a batch, {so_far})"

    def _is_complete(self) -> bool:
        """Return whether all of `total_frames`, or all of `episode_seeds`, are collected."""
        return super()._is_complete() or (self._seeds is not None and self.all_played)

    def _collect_batch(self) -> Any:
        if self.reset_at_each_iter:
            self.reset()
        random, hook = self.frames < self.init_random_frames, self._hook(None)
        batch, _ = self._gather_checked(BatchRequest(self.frames_per_batch, random, on_step=hook, reuse=self._reuse))
        if hook is not None:
            hook.fill(batch.extras, batch.shape)
        if self.set_truncated:
            truncate_last(batch)
        return batch

    # State.

    def state_dict(self) -> dict[str, Any]:
        """Weights of the policy and progress of the collector. The states of the envs are not in it."""
        return {
            "env_state_dict": self.env.state_dict() if hasattr(self.env, "state_dict") else {},
            "frames": self.frames,
            "iter": self._batches,
            "traj_pool": self._episodes.next_id,
            **self._weights.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Go on from a `state_dict`: its weights, its count of frames, and ids of episodes that it has not used.

        The envs begin new episodes. `strict` is for the policy's `load_state_dict`.
        """
        self._take_progress(state_dict, strict, "env_state_dict", "frames", "iter")
        if state_dict["env_state_dict"] and hasattr(self.env, "load_state_dict"):
            self.env.load_state_dict(state_dict["env_state_dict"])
        if not self._closed:
            self._recover()
            self._finish_steps(discard=True)
        self._episodes.skip_to(state_dict.get("traj_pool", 0))

    def _close(self, env_too: bool) -> None:
        try:
            if self._evaluation is not None:
                self._evaluation.close()
        finally:
            super()._close(env_too)


class SyncDataCollector(SyncLoop, BatchCollector):
    """Collects batches of `frames_per_batch` steps from all envs of a vector env, in step.

    docs/semantics.md ("Batches of a collector") has the guarantees: what goes on from batch to batch, which observation
    is the last one, to whom batches belong, and what a failure leaves.

    Args:
        create_env_fn: a vector env, a callable that makes one (or an env), or a list of ids or of callables.
        policy: a callable, see `collector.policy`; None takes random actions.
        frames_per_batch: steps in a batch, all envs together, rounded up to a multiple of them with a warning.
        total_frames: stop after that many steps, a multiple of `frames_per_batch`; None or below zero: never.
        device: the `policy_device` and `storing_device` where they are not given.
        storing_device: batches hold tensors on this device; None: numpy arrays.
        policy_device: the policy gets tensors on this device; None: modules where their parameters are, others arrays.
        env_device: None or "cpu", where envs are.
        create_env_kwargs: keyword arguments for `create_env_fn`.
        max_frames_per_traj: truncate episodes at that many steps; None or below one: do not.
        init_random_frames: take random actions until so many steps are collected, rounded up to whole batches.
        reset_at_each_iter: reset all envs before each batch.
        postproc: called with each batch of the iterator, after `split_trajs`; its result is the batch.
        split_trajs: the iterator returns `batch.split_trajectories()`.
        exploration_type: what is taken from a distribution that the policy returns.
        exploration_mode: the old name of `exploration_type`.
        return_same_td: return the same object with every batch, in the same memory.
        reset_when_done: only True.
        interruptor: checked after every round; a batch that it ends has the steps collected so far.
        set_truncated: mark the last step of each env in a batch as truncated; its episode goes on.
        compile_policy: run a policy on tensors through `torch.compile`; True, or a dict of its keyword arguments.
        cudagraph_policy: replay a policy on CUDA as a graph by tensordict's `CudaGraphModule`; True, or a dict.
        policy_threads: threads of torch for a policy on the CPU while a batch is collected; None: the caller's number.
        backend: for a list: "dummy" (None means it here), "thread", "subproc", "shmem", or "auto", the faster one.
        episode_seeds: `(number, seed)` of the episodes to be played, each to its end: an iterable, or `EpisodeSeeds`.
        transforms: a transform of `vecenv.transforms`, or a list of several; they work where the policy does.
        info_keys: entries of the envs' infos that are stored with each step, as `batch.extras[key]`.
        env_options: for a list: keywords of the vector env, such as `num_workers`, `step_timeout` and `on_error`.

    Raises `TypeError` and `ValueError` for arguments that it does not take; a vector env that was passed stays open.

    Example::

        with SyncDataCollector(venv, policy, frames_per_batch=2048, total_frames=1_024_000) as collector:
            collector.set_seed(0)
            for batch in collector:
                learn(batch)                      # a Rollout: batch.obs, batch.action, batch.next.obs, ...

    >>> import gymnasium as gym
    >>> with SyncDataCollector([lambda: gym.make("CartPole-v1")] * 2, frames_per_batch=10) as collector:
    ...     collector.next()
    Rollout(2 envs, 5 steps, 10 frames, 0 episode ends)
    """

    def _prepare(self, policy: Policy | None) -> None:
        check_synchronous(self.env, "SyncDataCollector", cuts=self._limit > 0)
        if self._seeds is not None:
            check_send_and_recv(self.env, "a collector with episode_seeds")
        super()._prepare(policy)
        self._warn_of_rounding(f"the {self._env_num} envs", f"{self.frames_per_batch // self._env_num} steps of each, ")

    def _like_this(self, env: Any, policy: Any, **options: Any) -> SyncDataCollector:
        return SyncDataCollector(env, policy, **options)


def _make_again(
    kwargs: dict[str, Any] | None, make: VectorEnvMaker, transforms: Any, policy: Any, device: Any, source: Any
) -> Any:
    """A vector env as the collector's own, with clones of its transforms around it."""
    clones = None if transforms is None else [each.clone() for each in flat(transforms)]
    env = make_vector_env(source, kwargs, make)
    return env if clones is None else with_transforms(env, clones, policy, device)
