"""Base class of collectors: iterates over batches and counts steps (frames)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, TypeVar

from collector.collectors.collector_config import CollectorConfig
from collector.episodes.episode import CollectStats
from collector.policy.policy_call import ExplorationType, as_exploration_type, set_exploration_type
from vecenv.arguments import at_least_one
from vecenv.errors import warn_caller

Self = TypeVar("Self", bound="BaseCollector")


class BaseCollector(ABC):
    _closed = False
    _shutdown_cause = ""
    """Class name of the exception that caused the shutdown, "the last batch", or ""."""
    _first_argument = "the vector env"
    _weights: Any
    _evaluation: Any = None

    def __init__(self, policy: Any, config: CollectorConfig) -> None:
        if hasattr(policy, "env_num"):
            raise TypeError(f"{policy!r} is passed as the policy: {self._first_argument} comes first, then the policy")
        self._config = config
        self.requested_frames_per_batch: int = config.frames_per_batch
        self.total_frames: int = config.total_frames
        self.storing_device, self.policy_device = config.storing_device, config.policy_device
        self.env_device = config.env_device
        self.init_random_frames: int = config.init_random_frames
        self.frames = 0
        """Number of steps in the iterator's batches, including failed steps of a `Rollout`."""
        self.policy: Any = policy
        self._batches = 0
        self._reused_batches: dict[type, Any] = {}

    @property
    @abstractmethod
    def frames_per_batch(self) -> int:
        """Steps in a full batch."""

    @abstractmethod
    def _collect_batch(self) -> Any:
        """Collect one batch of numpy arrays."""

    @abstractmethod
    def _make_evaluator(self, env: Any) -> Any:
        """Make a collector on `env` in this process, with the same policy."""

    @abstractmethod
    def shutdown(self) -> None:
        """End the collector."""

    @property
    def policy_version(self) -> int:
        """Number of weight updates. An optimizer's changes in place count as one update when the next batch begins."""
        version: int = self._weights.version
        return version

    def update_policy_weights_(self, policy_weights: Any = None) -> None:
        """Copy the weights of a module, state dict or `TensorDict` into the policy, for the next batch (with Ray: for
        each actor's next rollout).

        `policy_weights=None` copies from the policy that was passed to the collector. Raises `RuntimeError` if the
        policy is not a module, and `TypeError` or `ValueError` if names, shapes or dtypes do not fit.
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
        """Collect `n_episode` whole episodes in separate envs, with the current policy in this process.

        Training episodes continue, and `frames` does not change. Returns are sums of rewards before a `VecNorm` or
        `NormalizeReward` of the collector. See docs/guides/collecting.md.

        exploration_type: value to take from a distribution that the policy returns.
        seed: seed of the separate envs, so that each evaluation starts the same episodes.
        eval_env: vector env to play in, which stays open. Frozen copies of the collector's `transforms=` go around it,
            unless it already has as many `TransformedVectorEnv`s around it as the training env.
            `None`: make envs like the collector's, for all evaluations. They get copies of running statistics, but not
            what `set_env_attr`, `call` or reset options changed.
        keep: True to return the steps too.

        Raises `ValueError` if the collector cannot make the envs (then pass `eval_env`), or if `eval_env` lacks the
        statistics, or has other shapes or dtypes of observations than the training envs.
        """
        count, wanted = at_least_one("n_episode", n_episode), as_exploration_type(exploration_type, None)
        own = self._evaluation.collector(self._make_evaluator, eval_env, stay_open=not self._closed)
        with self._weights.kept(), own as collector, set_exploration_type(wanted):
            if seed is not None:
                collector.set_seed(seed)
            stats: CollectStats = collector.collect(n_episode=count, keep=keep)
        return stats

    def state_dict(self) -> dict[str, Any]:
        """Return weights, counts and transform statistics, in a form that any collector can load.

        Statistics are copies. Weights change with the policy, as in the `state_dict` of a torch module: save them, or
        use `copy.deepcopy` to keep them.
        """
        return {
            "env_state_dict": self._env_state(),
            "frames": self.frames,
            "iter": self._batches,
            "traj_pool": self._next_id,
            **self._weights.state_dict(),
        }

    def _env_state(self) -> dict[str, Any]:
        return {}

    @property
    @abstractmethod
    def _next_id(self) -> int:
        """Id above all used episode ids."""

    def _load_progress(self, state: dict[str, Any], strict: bool, *needed: str, check: Any = None) -> None:
        if missing := [name for name in needed if name not in state]:
            raise ValueError(f"the state lacks {missing}; pass the result of a collector's `state_dict()`")
        if check is not None:
            check(state["env_state_dict"])
        if "policy_state_dict" in state:
            self._weights.load(state["policy_state_dict"], strict)
        self._weights.version = state.get("policy_version", 0)
        self.frames, self._batches = state["frames"], state["iter"]

    def _check_open(self) -> None:
        if self._closed and self._shutdown_cause:
            raise RuntimeError(f"the collector was shut down after {self._shutdown_cause}; make a new collector")
        if self._closed:
            raise RuntimeError("the collector is shut down; make a new collector")

    def _warn_of_rounding(self, envs: str, each: str = "") -> None:
        asked, frames = self.requested_frames_per_batch, self.frames_per_batch
        if frames != asked:
            warn_caller(f"frames_per_batch={asked} is not a multiple of {envs}: batches have {each}{frames} frames")

    def _is_complete(self) -> bool:
        return 0 <= self.total_frames <= self.frames

    def __iter__(self) -> Iterator[Any]:
        return self.iterator()

    def __next__(self) -> Any:
        if self._is_complete():
            raise StopIteration
        try:
            batch = self._collect_batch()
            self.frames += batch.frames + batch.dropped_rows
            self._batches += 1
            if self._is_complete():
                self._shutdown_cause = "the last batch"
                self.shutdown()
            return self._finish(batch)
        except StopIteration as error:  # a `for` loop would end without an error
            notes = "; ".join(getattr(error, "__notes__", ()))
            said = "an env, the policy or postproc raised StopIteration"
            raise RuntimeError(f"{said}. {notes}" if notes else said) from error

    def __len__(self) -> int:
        """Return the number of batches. Raises `TypeError` without `total_frames`."""
        if self.total_frames < 0:
            raise TypeError("a collector without total_frames has no length")
        return -(-self.total_frames // self.frames_per_batch)

    def __bool__(self) -> bool:
        return True

    def next(self) -> Any:
        """Return the next batch, or `None` after the last batch."""
        return next(self, None)

    def iterator(self) -> Iterator[Any]:
        """Iterate over batches until `total_frames`, then shut down. See `rollout` for errors."""
        return self

    def rollout(self) -> Any:
        """Collect one batch without counting, splitting or post-processing it.

        Exceptions of envs and policy, and KeyboardInterrupt, are raised unchanged. The steps of this batch are lost,
        and the next batch begins new episodes. Collectors with Ray actors, `episode_seeds` or a closed vector env shut
        down instead.
        """
        return self._store(self._collect_batch())

    def _store(self, batch: Any) -> Any:
        if self.storing_device is not None:
            batch = batch.to(self.storing_device)
        if not self._config.return_same_td:
            return batch
        kept = self._reused_batches.setdefault(type(batch), batch)
        fields = {**batch.__dict__}
        kept.__dict__.clear()  # runs of the previous batch too
        kept.__dict__.update(fields)
        return kept

    def _finish(self, batch: Any) -> Any:
        batch = self._store(batch.split_trajectories() if self._config.split_trajs else batch)
        if self._config.postproc is not None:
            batch = self._config.postproc(batch)
        extras = batch if hasattr(batch, "keys") else getattr(batch, "extras", {})
        for name in [*extras.keys()]:
            if isinstance(name, str) and name.startswith("_"):
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

    def _note_exception(self, error: BaseException) -> None:  # noqa: B027  optional
        """Receive the exception that is about to cause a `shutdown`."""
