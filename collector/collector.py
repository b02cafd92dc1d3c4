"""The loop that turns a vector environment and a policy into batches of data.

A round asks the policy for the actions of the environments that are about to step, and sends them; environments whose
episode is over are reset in the same round. So a reset costs no round trip of its own; the environment merely falls a
row behind the others::

    round    1    2    3    4    5    6
    env 0    s0   s1   s2   s3   s4         s = step, with the row it is recorded in; R = reset
    env 1    s0   s1#  R    s2   s3   s4    # = the episode ends
    env 2    s0   s1   s2   s3#             (its reset travels with the first round of the next batch)

A batch is complete when every environment has T rows.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np

from collector.policy import ExplorationType, Policy, RandomPolicy, read_output
from collector.rollout import Rollout, Tape, Where
from vecenv import nest
from vecenv.venvs import DummyVectorEnv

Outputs = dict[str, np.ndarray]
Layout = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]
Asker = Callable[[Any, np.ndarray], Outputs]


class Interruptor:
    """A switch that ends the batch being collected after its current round, from a signal handler or another thread."""

    def __init__(self) -> None:
        self._stopped = False

    def start_collection(self) -> None:
        """Let batches be collected to their end."""
        self._stopped = False

    def stop_collection(self) -> None:
        """End the current batch, and each one after it, after one round."""
        self._stopped = True

    def collection_stopped(self) -> bool:
        """Whether batches are to end now."""
        return self._stopped


class SyncDataCollector:
    """Collects batches of `frames_per_batch` steps from all environments of a vector environment, in step.

    Guarantees:

    1. Only environments whose episode is over are reset, each once, and only if its next step is needed.
    2. Episodes go on from batch to batch: the same data comes whatever `frames_per_batch` is, as long as the policy's
       answer for one environment does not depend on which others it is asked for (see `collector.policy`).
    3. `batch.next.obs` at the end of an episode is its true last observation.
    4. Batches belong to the caller.

    Args:
        create_env_fn: a vector environment; or a callable that makes one (or a single environment); or a list of
            callables that make an environment each. The collector closes it in `shutdown`.
        policy: see `collector.policy`; None takes random actions.
        frames_per_batch: steps in a batch, all environments together. Where the number of environments does not divide
            it, it is rounded up to the next number that they do, with a warning.
        total_frames: stop after that many steps; -1: never. `ValueError` where `frames_per_batch` does not divide it.
        device: what `policy_device` and `storing_device` are where they are not given.
        storing_device: batches hold tensors on this device. None: numpy arrays.
        policy_device: the policy gets tensors on this device, and is copied there if it is a module that lives
            elsewhere. None: modules get tensors where their parameters are, other policies numpy arrays.
        env_device: None or "cpu", where environments are.
        create_env_kwargs: keyword arguments for `create_env_fn`.
        exploration_type: what is taken from a distribution that the policy returns.
        interruptor: asked after every round whether the batch ends now; what was not collected is masked.

    Example::

        with SyncDataCollector(venv, policy, frames_per_batch=2048, total_frames=1_024_000) as collector:
            collector.set_seed(0)
            for batch in collector:
                learn(batch)                      # a Rollout: batch.obs, batch.action, batch.next.obs, ...
    """

    def __init__(
        self,
        create_env_fn: Any,
        policy: Policy | None = None,
        *,
        frames_per_batch: int,
        total_frames: int = -1,
        device: Any = None,
        storing_device: Any = None,
        policy_device: Any = None,
        env_device: Any = None,
        create_env_kwargs: dict[str, Any] | None = None,
        exploration_type: ExplorationType = ExplorationType.RANDOM,
        interruptor: Interruptor | None = None,
    ) -> None:
        _check_frames(frames_per_batch, total_frames)
        if env_device is not None and str(env_device) != "cpu":
            raise ValueError(f"environments run on the CPU: env_device must be None or 'cpu', got {env_device!r}")
        self.frames = 0
        """Steps collected by the batches of this collector's iterator."""
        self.total_frames = total_frames
        policy_device, env_device = (device if each is None else each for each in (policy_device, env_device))
        self._storing_device = _storing_device(
            device if storing_device is None else storing_device, policy_device, env_device
        )
        self._interruptor = interruptor
        self._iterator: Iterator[Rollout] | None = None
        self._layout: Layout = {}
        self._obs: Any = None
        self.env = _vector_env(create_env_fn, create_env_kwargs or {})
        """The vector environment."""
        self._closed = False
        try:
            self._env_num = self.env.env_num
            self._steps = _steps_of(frames_per_batch, self._env_num)
            self._over = np.ones(self._env_num, np.bool_)
            self._episode = np.zeros(self._env_num, np.int64)
            self._ask, self._random = _asker(policy, policy_device, self.env, exploration_type)
            if self.env.is_async:
                raise ValueError("a synchronous collector needs a vector env without wait_num and timeout")
        except BaseException:
            self.shutdown()
            raise

    def __iter__(self) -> Iterator[Rollout]:
        return self.iterator()

    def iterator(self) -> Iterator[Rollout]:
        """Batches until `total_frames` are collected; then the environments are closed."""
        while self.total_frames < 0 or self.frames < self.total_frames:
            batch = self.rollout()
            self.frames += batch.frames
            if 0 <= self.total_frames <= self.frames:
                self.shutdown()
            yield batch

    def next(self) -> Rollout | None:
        """The next batch; None after the last one."""
        if self._iterator is None:
            self._iterator = self.iterator()
        return next(self._iterator, None)

    def reset(self) -> None:
        """Reset all environments before the next step; episodes in progress are left, and new ids begin."""
        self._episode = self._episode + ~self._over
        self._over[:] = True
        self._obs = None

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed all environments and the random actions, and reset: the batches that follow are reproducible.

        Each environment gets a seed of its own from the chain that begins with `seed` (with `static_seed`: `seed`
        itself). Returns the seed after the last one, to go on with.
        """
        following: int = self.env.set_seed(seed, static_seed)
        if self._random:
            self._ask, _ = _asker(None, None, self.env, ExplorationType.RANDOM)
        self.reset()
        return following

    def shutdown(self) -> None:
        """Close the environments. Safe to call again, and after any failure."""
        if not self._closed:
            self._closed = True
            self.env.close()

    def __enter__(self) -> SyncDataCollector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def rollout(self) -> Rollout:
        """Collect one batch; not counted in `frames`. Errors of environments and policy are raised after a shutdown."""
        if self._closed:
            raise RuntimeError("the collector is shut down; make a new one")
        try:
            batch = self._collect()
        except BaseException:
            self.shutdown()
            raise
        return batch if self._storing_device is None else batch.to(self._storing_device)

    def _collect(self) -> Rollout:
        """One batch, recorded on a tape: see the picture at the top of this file."""
        n, end = self._env_num, self._steps * self._env_num
        tape, cursor = Tape(n, self._steps), np.arange(n)  # the cursor of an environment is its next row
        ids, obs, interrupted = np.arange(n), self._obs, False
        if obs is not None:
            tape.write("obs", cursor, obs)
        while len(ids) and not interrupted:
            cursor[ids], self._over[ids], interrupted = self._run(tape, cursor[ids], ids, obs, self._over[ids])
            ids = np.flatnonzero(cursor < end)
            obs = tape.read("obs", cursor[ids])
        self._obs = tape.read("obs", cursor)
        batch = tape.finish(cursor // n, self._episode)
        self._episode = self._episode + batch.done.sum(1)
        return batch

    def _run(
        self, tape: Tape, rows: np.ndarray, ids: np.ndarray, obs: Any, over: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, bool]:
        """Rounds of the environments `ids` until one may have all its rows.

        `rows` are their cursors, `obs` their observations and `over` whether they are to be reset; returns the new
        cursors, whether they are over now, and whether the collection is interrupted.
        """
        n, everyone = self._env_num, len(ids) == self._env_num
        first, last = int(rows.min()) // n, int(rows.max()) // n
        where: Where = slice(first * n, first * n + n) if everyone and first == last else rows
        rounds, interrupted = self._steps - last, False
        while rounds and not interrupted:
            resets = np.count_nonzero(over)
            if resets == len(ids):
                obs, _ = self.env.reset(None if everyone else ids)
                tape.write("obs", where, obs)
                over = np.zeros_like(over)
                continue
            outputs = self._act(obs, ids) if not resets else self._act_but(obs, ids, over)
            # An environment that is reset writes to the row of its next step, which overwrites it.
            for name, values in outputs.items():
                tape.write(name, where, values)
            obs, reward, terminated, truncated, _ = (
                self.env.step(outputs["action"], None, reset=over if resets else None)
                if everyone
                else self.env.step(outputs["action"], ids, reset=ids[over] if resets else None)
            )
            tape.write("reward", where, reward)
            tape.write("terminated", where, terminated)
            tape.write("truncated", where, truncated)
            where = _advance(where, n, over if resets else None)
            tape.write("obs", where, obs)
            over = terminated | truncated
            if np.count_nonzero(over):
                tape.end_episodes(_as_rows(where)[over] - n, nest.take(obs, over))
            rounds -= 1
            interrupted = self._interruptor is not None and self._interruptor.collection_stopped()
        return _as_rows(where), over, interrupted

    def _act(self, obs: Any, ids: np.ndarray) -> Outputs:
        """What the policy says for these environments, checked against what it said at first."""
        outputs = self._ask(obs, ids)
        layout = {name: (values.shape[1:], values.dtype) for name, values in outputs.items()}
        if layout != self._layout or len(outputs["action"]) != len(ids):
            self._check_outputs(outputs, layout, len(ids))
        return outputs

    def _act_but(self, obs: Any, ids: np.ndarray, over: np.ndarray) -> Outputs:
        """The same, where those that are over are not asked for: they get a copy of another's answer."""
        asked = ~over
        outputs = self._act(nest.take(obs, asked), ids[asked])
        answer_of = np.maximum(np.cumsum(asked) - 1, 0)
        return {name: values[answer_of] for name, values in outputs.items()}

    def _check_outputs(self, outputs: Outputs, layout: Layout, rows: int) -> None:
        for name, values in outputs.items():
            if values.shape[:1] != (rows,):
                raise ValueError(
                    f"the policy returned {name!r} of shape {values.shape} for {rows} observations; "
                    f"its first dimension must be {rows}"
                )
        if self._layout and layout != self._layout:
            raise TypeError(f"the policy returned {layout} (shape of a row, dtype) after {self._layout} before")
        self._layout = layout


def _advance(where: Where, n: int, stay: np.ndarray | None) -> Where:
    """The next rows of all environments but those that `stay`."""
    if stay is not None:
        return _as_rows(where) + n * ~stay
    return slice(where.start + n, where.stop + n) if isinstance(where, slice) else where + n


def _as_rows(where: Where) -> np.ndarray:
    return np.arange(where.start, where.stop) if isinstance(where, slice) else where


def _check_frames(frames_per_batch: int, total_frames: int) -> None:
    if frames_per_batch < 1:
        raise ValueError(f"frames_per_batch must be at least 1, got {frames_per_batch}")
    if total_frames == 0:
        raise ValueError("total_frames must be at least 1, or -1 for a collector without end; got 0")
    if total_frames > 0 and total_frames % frames_per_batch:
        raise ValueError(
            f"total_frames={total_frames} is not a multiple of frames_per_batch={frames_per_batch}; "
            f"use {-(-total_frames // frames_per_batch) * frames_per_batch}, or another frames_per_batch"
        )


def _steps_of(frames_per_batch: int, env_num: int) -> int:
    """Steps of each environment in a batch."""
    steps = -(-frames_per_batch // env_num)
    if steps * env_num != frames_per_batch:
        warnings.warn(
            f"frames_per_batch={frames_per_batch} is not a multiple of the {env_num} environments: "
            f"batches have {steps} steps of each, {steps * env_num} frames",
            stacklevel=3,
        )
    return steps


def _storing_device(storing: Any, policy: Any, env: Any) -> Any:
    """Where batches are kept: as asked, else where policy and environments both are; None for numpy arrays."""
    chosen = env if storing is None and env is not None and str(env) == str(policy) else storing
    if chosen is None:
        return None
    from collector.device import resolve_device

    return resolve_device(chosen)


def _vector_env(source: Any, kwargs: dict[str, Any]) -> Any:
    """The vector environment that `create_env_fn` is, makes, or can be put in; nothing is built twice."""
    if isinstance(source, Sequence):
        return DummyVectorEnv([partial(make, **kwargs) for make in source])
    if isinstance(source, type) or not hasattr(source, "step"):
        source = source(**kwargs)
    elif kwargs:
        raise ValueError(
            f"create_env_kwargs {kwargs} need a callable that makes the environment; got {source}, already made"
        )
    return source if hasattr(source, "env_num") else DummyVectorEnv([lambda: source])


def _asker(policy: Policy | None, device: Any, env: Any, exploration: ExplorationType) -> tuple[Asker, bool]:
    """A function (observations, environment ids) -> outputs as arrays, and whether it is our own random policy."""
    if policy is None:
        policy = RandomPolicy(env.action_space)
        return lambda obs, ids: {"action": policy(obs, ids)}, True
    if isinstance(policy, RandomPolicy):
        return lambda obs, ids: {"action": policy(obs, ids)}, False
    torch = sys.modules.get("torch")
    if device is not None or (torch is not None and isinstance(policy, torch.nn.Module)):
        from collector.device import TorchPolicy

        on_tensors = TorchPolicy(policy, device, env.env_num, exploration)
        return lambda obs, ids: on_tensors(obs), False
    return lambda obs, ids: {k: np.asarray(v) for k, v in read_output(policy(obs), exploration).items()}, False
