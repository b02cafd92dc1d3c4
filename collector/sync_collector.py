"""`SyncDataCollector`: batches of steps of all envs, which step together."""

from __future__ import annotations

import warnings
from typing import Any

from collector.base_collector import BatchCollector
from collector.env_source import check_synchronous
from collector.loops.sync_loop import SyncLoop
from collector.policy.policy_call import Policy
from vecenv.wrappers import check_send_and_recv


class SyncDataCollector(SyncLoop, BatchCollector):
    """Collects batches of `frames_per_batch` steps from all envs of a vector env, in step.

    docs/semantics.md ("Batches of a collector") has the guarantees: what goes on from batch to batch, which observation
    is the last one, to whom batches belong, and what a failure leaves.

    Args:
        create_env_fn: a vector env; or a callable that makes one (or a single env); or a list of callables that make an
            env each, or of ids for `gymnasium.make`, as in `["CartPole-v1"] * 8`. The collector closes it in
            `shutdown`; one that was passed stays open where the arguments are refused. One made with `copy=False`
            spares large observations a copy; batches are the same, but a policy may not keep the array it is given.
        policy: see `collector.policy`; None takes random actions.
        frames_per_batch: steps in a batch, all envs together. Where the number of envs does not divide it, it is
            rounded up to the next number that they do, with a warning.
        total_frames: stop after that many steps; None or below zero: never. `ValueError` where `frames_per_batch` does
            not divide it. Numbers of steps may be floats that are whole, as 1e6.
        device: what `policy_device` and `storing_device` are where they are not given.
        storing_device: batches hold tensors on this device. None: numpy arrays.
        policy_device: the policy gets tensors on this device, and is copied there if it is a module that lives
            elsewhere. None: modules get tensors where their parameters are, other policies numpy arrays. Random
            actions are drawn on the CPU.
        env_device: None or "cpu", where envs are.
        create_env_kwargs: keyword arguments for `create_env_fn`.
        max_frames_per_traj: truncate episodes at that many steps, in each env, across batches. None, or a number below
            one: do not. `ValueError` where observations have an entry `step_count`.
        init_random_frames: take random actions until so many steps are collected, rounded up to whole batches. The
            policy's extras are zero there (it is called once to learn their shapes), and `batch.random` is True.
        reset_at_each_iter: reset all envs before each batch.
        postproc: called with each batch of the iterator, after `split_trajs`; what it returns is the batch. Moved to
            the storing device first, where it has `to`. Afterwards extras whose names begin with "_" are removed. It
            gets the `Rollout` (`collector.MultiStep(n, gamma)` is one); torchrl's own take a TensorDict:
            `lambda batch: postproc(batch.to_tensordict())`.
        split_trajs: the iterator returns `batch.split_trajectories()`.
        exploration_type: what is taken from a distribution that the policy returns; `exploration_mode` is its old name.
        return_same_td: return the same object with every batch, recorded in the same memory: what was in it is
            overwritten. Batches of `collect` still belong to the caller.
        reset_when_done: only True.
        interruptor: checked after every round; a batch that it ends has the steps collected so far.
        set_truncated: mark the last step of each env in a batch as truncated. Its episode goes on in the next batch.
        compile_policy: run a policy on tensors through `torch.compile`; True, or a dict of its keyword arguments.
        cudagraph_policy: replay a policy on CUDA as a graph in rounds of all envs, by tensordict's `CudaGraphModule`;
            True, or a dict of its keyword arguments. Weights that are replaced in place still take effect.
        policy_threads: threads of torch for a policy on the CPU while a batch is collected, the same on every machine:
            another number may change the last bits of what it computes, because long sums are added up in another
            order. The caller's `torch.set_num_threads` counts between batches, in `postproc` and `on_episode`, and at
            all times in other threads. What else runs in the collecting thread during a batch (`on_step`, envs of a
            `DummyVectorEnv`) has the policy's number. None: the caller's number for the policy too. `TypeError` or
            `ValueError` where it is no integer of at least 1.
        backend: for a list of callables: "dummy" (None means it here), "thread", "subproc", "shmem", or "auto": "dummy"
            or "shmem", whichever is faster for these envs. For "auto" one env more is made, in a worker, stepped for a
            moment (at most 1 s) and closed. Batches are the same.
        info_keys: entries of the envs' infos that are stored with each step, as `batch.extras[key]`: integers int64,
            other numbers float64, flags bool, arrays as they are; 0 or False where an info has no such entry. The first
            value that does not fit promotes its column from then on.
        env_options: for a list of callables: keywords of the vector env that is made of it, such as `num_workers`,
            `step_timeout` and `on_error`. Those that are for processes (`num_workers`, `step_timeout`, `context`, ...)
            make "shmem" the default. `TypeError` for what it has not.
        episode_seeds: `(number, seed)` of the episodes to be played, in the order in which they begin: an iterable, or
            `EpisodeSeeds(job_seed)`. An env that is free takes the next one and is reset with its seed, in the round in
            which the others step. When there are no more, envs are left out, and the iterator ends with the last
            episode. `traj_ids` are the numbers, `extras["episode_seed"]` the seeds. All noise is keyed: random actions
            (None as the policy, `init_random_frames`) and samples of the `Categorical`, `Bernoulli` and `Normal`
            distributions that a policy returns, also of `Independent` and transformed ones, depend on the job seed (0
            for an iterable without one), the episode's number and the step alone. The policy is called with a row for
            every env in each round. So an episode is the same in any env, on any backend, and after a restart; with
            random actions for any number of envs too. `everything_keyed` says whether that held. Every episode is
            played to its end: `reset`, `set_seed`, `reset_at_each_iter` and `collect(n_episode=)` raise `ValueError`.
        transforms: of observations, rewards and actions (`vecenv.transforms`): one, or a list of several. They work
            where the policy does: on tensors if that is a CUDA device, to which frames then go as uint8. Batches hold
            what they make of the rows. `env_state_dict` in the state of the collector is what they have learnt.

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
        frames = self.frames_per_batch
        if frames != self.requested_frames_per_batch:
            warnings.warn(
                f"frames_per_batch={self.requested_frames_per_batch} is not a multiple of the {self._env_num} "
                f"envs: batches have {frames // self._env_num} steps of each, {frames} frames",
                stacklevel=3,
            )

    def _like_this(self, env: Any, policy: Any, **options: Any) -> SyncDataCollector:
        return SyncDataCollector(env, policy, **options)
