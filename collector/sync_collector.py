"""`SyncDataCollector`: batches of steps of all envs, which step together."""

from __future__ import annotations

from typing import Any

from collector.base_collector import BatchCollector
from collector.env_source import check_synchronous
from collector.loops.sync_loop import SyncLoop
from collector.policy.policy_call import Policy
from vecenv.wrappers import check_send_and_recv


class SyncDataCollector(SyncLoop, BatchCollector):
    """Collects batches of `frames_per_batch` steps from all envs of a vector env, in step.

    Guarantees (more in docs/guides/collecting.md and docs/semantics.md):

    1. Only envs whose episode is over are reset, each once, and only if its next step is needed.
    2. Episodes go on from batch to batch: the same data comes whatever `frames_per_batch` is.
    3. `batch.next.obs` at the end of an episode is its true last observation.
    4. Batches belong to the caller, unless `return_same_td` is set.
    5. The weights of the policy change between batches only.
    6. With `on_error="restart"` of the vector env only the row of a step that failed has `mask=False`; an exception
       loses the batch in progress, and the next one begins new episodes.

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
