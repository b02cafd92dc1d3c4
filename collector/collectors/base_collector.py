"""Base class of all collectors: iterate over batches, count frames, close."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, TypeVar

from collector.basics.whole_numbers import at_least_one
from collector.collectors.collector_config import CollectorConfig
from collector.episodes.episode import CollectStats
from collector.policy.policy_call import ExplorationType, as_exploration_type, set_exploration_type
from vecenv.extending import warn_caller

Self = TypeVar("Self", bound="BaseCollector")


class BaseCollector(ABC):
    """Counts, finishes and ends what `_collect_batch` collects, and checks the arguments that all collectors have."""

    _closed = False
    _shut_down_by = ""
    """The failure that shut the collector down, by its class."""
    _first = "the vector env"
    """The first argument, for errors."""
    _weights: Any
    """The `PolicyWeights` of the collector."""
    _evaluation: Any = None
    """Its `Evaluation`."""

    def __init__(
        self,
        policy: Any,
        config: CollectorConfig,
    ) -> None:
        if hasattr(policy, "env_num"):
            raise TypeError(f"{policy!r} is passed as the policy: {self._first} comes first, then the policy")
        self._config = config
        self.requested_frames_per_batch: int = config.frames_per_batch
        self.total_frames: int = config.total_frames
        self.storing_device, self.policy_device = config.storing_device, config.policy_device
        self.env_device = config.env_device
        self.init_random_frames: int = config.init_random_frames
        self.frames = 0
        """Steps in the batches of this collector's iterator, with the rows of those in which an env failed."""
        self.policy: Any = policy
        self._batches = 0
        self._kept: dict[type, Any] = {}

    @property
    @abstractmethod
    def frames_per_batch(self) -> int:
        """Steps in a full batch."""

    @abstractmethod
    def _collect_batch(self) -> Any:
        """One batch of numpy arrays."""

    @abstractmethod
    def _make_evaluator(self, env: Any) -> Any:
        """A local collector with the same policy on another vector env."""

    @abstractmethod
    def shutdown(self) -> None:
        """End the collector."""

    @property
    def policy_version(self) -> int:
        """Number of updates of the policy's weights when the last batch began: by `update_policy_weights_`, or in
        place by a learner that shares them with a local collector.
        """
        version: int = self._weights.version
        return version

    def update_policy_weights_(self, policy_weights: Any = None) -> None:
        """Copy weights into the policy that collects: those of a module, a state dict or a `TensorDict`.

        None copies those of the policy that the collector was made with. Comes into effect with the next batch, or the
        next rollout that an actor is asked for. Raises `RuntimeError` where the policy has no weights, `ValueError`
        where names or shapes do not fit.
        """
        self._weights.update(policy_weights)

    def evaluate(
        self,
        n_episode: float,
        exploration_type: ExplorationType = ExplorationType.MODE,
        *,
        seed: int | None = None,
        eval_env: Any = None,
        keep: bool = False,
    ) -> CollectStats:
        """Collect `n_episode` whole episodes beside the training, in this process, in envs of their own, with the
        policy as it is. The episodes in progress go on, and nothing is counted in `frames`. See
        docs/guides/collecting.md.

        exploration_type: what is taken from the policy's distributions.
        seed: seeds the envs first, so that the same episodes begin each time.
        eval_env: the vector env that is used, and stays open; None: one that is made as the collector's own, and kept.
        keep: as for `collect`.

        Raises `ValueError` where no envs can be made as the collector's own: pass `eval_env` then.
        """
        count, wanted = at_least_one("n_episode", n_episode), as_exploration_type(exploration_type, None)
        own = self._evaluation.collector(self._make_evaluator, eval_env, stay_open=not self._closed)
        with self._weights.kept(), own as collector, set_exploration_type(wanted):
            if seed is not None:
                collector.set_seed(seed)
            stats: CollectStats = collector.collect(n_episode=count, keep=keep)
        return stats

    def state_dict(self) -> dict[str, Any]:
        """Weights of the policy and progress of the collector: local ones and `RayCollector` take each other's. The
        states of the envs are not in it.
        """
        return {
            "env_state_dict": self._env_state(),
            "frames": self.frames,
            "iter": self._batches,
            "traj_pool": self._next_id,
            **self._weights.state_dict(),
        }

    def _env_state(self) -> dict[str, Any]:
        """Return the state of the vector env."""
        return {}

    @property
    @abstractmethod
    def _next_id(self) -> int:
        """An id that is larger than those of all episodes so far."""

    def _load_progress(self, state: dict[str, Any], strict: bool, *needed: str) -> None:
        """Take over weights and counts of a `state_dict`. Raises `ValueError` where it lacks something."""
        if missing := [name for name in needed if name not in state]:
            raise ValueError(f"the state lacks {missing}; pass what `state_dict()` of a collector returned")
        if "policy_state_dict" in state:
            self._weights.load(state["policy_state_dict"], strict)
        self._weights.version = state.get("policy_version", 0)
        self.frames, self._batches = state["frames"], state["iter"]

    def _check_open(self) -> None:
        """Raise `RuntimeError` if the collector is shut down."""
        if self._closed and self._shut_down_by:
            raise RuntimeError(f"the collector was shut down by the {self._shut_down_by} before; make a new one")
        if self._closed:
            raise RuntimeError("the collector is shut down; make a new one")

    def _warn_of_rounding(self, envs: str, each: str = "") -> None:
        """Give a warning where batches have more steps than were asked for, because these envs divide them."""
        asked, frames = self.requested_frames_per_batch, self.frames_per_batch
        if frames != asked:
            warn_caller(f"frames_per_batch={asked} is not a multiple of {envs}: batches have {each}{frames} frames")

    def _is_complete(self) -> bool:
        """Return whether there are no more batches."""
        return 0 <= self.total_frames <= self.frames

    def _show_progress(self) -> None:  # noqa: B027  most show none
        """Called after each batch of the iterator."""

    def __iter__(self) -> Iterator[Any]:
        return self.iterator()

    def __next__(self) -> Any:
        if self._is_complete():
            raise StopIteration
        try:
            batch = self._collect_batch()
            self.frames += batch.frames + batch.dropped_rows
            self._batches += 1
            self._show_progress()
            if self._is_complete():
                self.shutdown()
            return self._finished(batch)
        except StopIteration as error:  # passed on, it would end the iterator as if all frames had been collected
            notes = "; ".join(getattr(error, "__notes__", ()))
            said = "an env, the policy or postproc raised StopIteration"
            raise RuntimeError(f"{said}. {notes}" if notes else said) from error

    def __len__(self) -> int:
        """Number of full batches in `total_frames`. Raises `TypeError` for a collector without end."""
        if self.total_frames < 0:
            raise TypeError("a collector without total_frames has no length")
        return -(-self.total_frames // self.frames_per_batch)

    def __bool__(self) -> bool:
        return True

    def next(self) -> Any:
        """The next batch; None after the last one."""
        return next(self, None)

    def iterator(self) -> Iterator[Any]:
        """Batches until `total_frames` are collected; then the collector is shut down. Of errors see `rollout`."""
        return self

    def rollout(self) -> Any:
        """Collect one batch, as it is: not counted in `frames`, not split, not post-processed.

        Errors of envs and policy, and KeyboardInterrupt, are raised as they are; the steps of that batch are lost. The
        next batch begins new episodes in all envs. Where there can be none (the vector env is closed, the collector has
        `episode_seeds`, or its envs are those of Ray actors), it is shut down; a note at the error of a local one says
        so.
        """
        return self._stored(self._collect_batch())

    def _stored(self, batch: Any) -> Any:
        """The batch on the storing device; with `return_same_td` the same object each time, one a class of batches."""
        if self.storing_device is not None:
            batch = batch.to(self.storing_device)
        if not self._config.return_same_td:
            return batch
        kept = self._kept.setdefault(type(batch), batch)
        kept.__dict__.update(batch.__dict__)
        return kept

    def _finished(self, batch: Any) -> Any:
        """Split a batch, store it and post-process it: the result is that of the iterator."""
        batch = self._stored(batch.split_trajectories() if self._config.split_trajs else batch)
        if self._config.postproc is not None:
            batch = self._config.postproc(batch)
        extras = batch if hasattr(batch, "keys") else getattr(batch, "extras", {})
        for name in [name for name in extras.keys() if isinstance(name, str) and name.startswith("_")]:  # noqa: SIM118
            del extras[name]
        return batch

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        try:
            if exception and exception[1] is not None:
                self._note_exception(exception[1])
        finally:
            self.shutdown()

    def _note_exception(self, error: BaseException) -> None:  # noqa: B027  most keep no data of their own
        """Called before the `shutdown` that an exception is the cause of."""
