"""Episodes beside the training: with the same policy, in envs of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from collector.episodes.statistics import CollectStats
from collector.policy.exploration import ExplorationType, set_exploration_type
from vecenv.wrappers import VectorEnvWrapper


def cannot_be_made_again(source: Any, made: Any) -> str | None:
    """Why another vector env cannot be made of what a collector was made with (`made` is its vector env), or None."""
    if isinstance(made, VectorEnvWrapper):
        return f"what the {type(made).__name__} around the vector env has learned is not in a new one"
    if isinstance(source, Sequence):
        source = source[0]
    if hasattr(source, "unshared"):
        return "its envs share state (EnvCreator), which evaluation would change"
    if hasattr(source, "step") and not isinstance(source, type):
        return "it was made with a vector env or env, not with functions that make one"
    return None


def needs_eval_env(why: str) -> ValueError:
    """The error of `evaluate` where no envs can be made for it."""
    return ValueError(
        f"evaluate() needs envs of its own, and this collector cannot make them: {why}; pass eval_env=, a vector env "
        "that evaluation may use"
    )


class Evaluation:
    """Collects whole episodes with collectors of their own; the one whose envs are made here is kept."""

    def __init__(self, why_not: str | None, make_env: Callable[[], Any]) -> None:
        self._why_not, self._make_env = why_not, make_env
        self._own: Any = None

    def run(
        self,
        make_collector: Callable[[Any], Any],
        n_episode: int,
        wanted: ExplorationType,
        *,
        seed: int | None,
        eval_env: Any,
        keep: bool,
        stay_open: bool,
    ) -> CollectStats:
        """Collect; `stay_open` keeps the envs for the next time. Raises `ValueError` where there are none."""
        if eval_env is None and self._own is None:
            if self._why_not is not None:
                raise needs_eval_env(self._why_not)
            env = self._make_env()
            try:
                self._own = make_collector(env)
            except BaseException:
                env.close()
                raise
        collector = self._own if eval_env is None else make_collector(eval_env)
        try:
            if seed is not None:
                collector.set_seed(seed)
            with set_exploration_type(wanted):
                stats: CollectStats = collector.collect(n_episode=n_episode, keep=keep)
            return stats
        finally:
            if eval_env is not None:
                collector.shutdown(close_env=False)
            elif not stay_open:
                self.close()

    def close(self) -> None:
        """Close the envs that were made here."""
        if self._own is not None:
            own, self._own = self._own, None
            own.shutdown()
