"""`RayCollector.evaluate`: whole episodes in the driver's own process, so that the actors go on undisturbed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collector.cluster.published_weights import PublishedWeights
from collector.env_source import VectorEnvMaker, make_vector_env
from collector.episodes.statistics import CollectStats
from collector.evaluation import Evaluation
from collector.policy.exploration import ExplorationType
from collector.sync_collector import SyncDataCollector

OF_EVALUATION = ("max_frames_per_traj", "policy_threads")
"""Arguments of the actors' collectors that hold here too."""


class DriverEvaluation:
    """Plays episodes with the weights that actors get with their next rollout, on the driver's CPU.

    make_venv, env_kwargs: what an actor makes its vector env of; called here the first time. options: those of the
    actors' collectors. storing_device: of the batches that are kept.
    """

    def __init__(
        self,
        make_venv: Any,
        env_kwargs: dict[str, Any],
        weights: PublishedWeights,
        options: Mapping[str, Any],
        storing_device: Any,
    ) -> None:
        self._env_kwargs, self._weights = env_kwargs, weights
        self._backend = options.get("backend")
        self._options = {name: options[name] for name in OF_EVALUATION if name in options}
        self._options["storing_device"] = storing_device
        self._evaluation = Evaluation(make_venv, self._make_env)

    def run(self, n_episode: int, wanted: ExplorationType, **options: Any) -> CollectStats:
        """Collect; the options are those of `Evaluation.run`."""
        with self._weights.weights.kept():
            return self._evaluation.run(self._make_collector, n_episode, wanted, **options)

    def close(self) -> None:
        """Close the envs that were made here."""
        self._evaluation.close()

    def _make_env(self, make_venv: Any) -> Any:
        return make_vector_env(
            make_venv, self._env_kwargs, VectorEnvMaker(SyncDataCollector, self._backend, "dummy", {})
        )

    def _make_collector(self, env: Any) -> SyncDataCollector:
        return SyncDataCollector(env, self._weights.policy, frames_per_batch=env.env_num, **self._options)
