"""Separate envs in which `collector.evaluate` plays episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from collector.collectors.env_source import below_facade
from collector.policy.random_policy import RandomPolicy
from vecenv import EnvCreator, VectorEnvNormObs, VectorEnvWrapper, nest
from vecenv.layout import space_tree
from vecenv.transforms.arrays import row_of
from vecenv.transforms.compose import HasTransforms
from vecenv.transforms.transform import Freezable


def why_not_remakeable(source: Any, made: Any) -> str | None:
    """Return the reason why `source` cannot make a second vector env like `made`, or `None`."""
    for wrapper in _wrappers(made):
        if not isinstance(wrapper, (HasTransforms, VectorEnvNormObs)):
            return f"a new vector env would lack the statistics of the {type(wrapper).__name__} around this vector env"
    source = source if isinstance(source, Sequence) else [source]
    if hasattr(source[0], "step") and not isinstance(source[0], type):
        return "you passed a vector env or env, not functions that make envs"
    return None


def needs_eval_env(why: str) -> ValueError:
    return ValueError(
        f"evaluate() needs separate envs, and this collector cannot make them: {why}; pass eval_env=, a vector env "
        "for evaluation"
    )


def policy_for_evaluation(policy: Any) -> Any:
    """Return the policy. A `RandomPolicy` becomes `None`, because its random streams belong to the training envs."""
    return None if type(policy) is RandomPolicy else policy


def unfrozen_statistics(env: Any) -> list[str]:
    learning = getattr(env, "learning_wrappers", ())  # custom vector envs lack the attribute
    names = {name for each in learning for name in each or ()}
    for wrapper in _wrappers(env):
        if isinstance(wrapper, HasTransforms):
            own = [each for each in wrapper.transform if isinstance(each, Freezable) and not each.frozen]
            names.update(type(each).__name__ for each in own)
        elif not isinstance(wrapper, VectorEnvNormObs) or wrapper.update_obs_rms:
            names.add(type(wrapper).__name__)
    return sorted(names)


def copy_statistics(train: Any, other: Any) -> None:
    """Copy the running statistics of `train`'s wrappers into `other`'s wrappers. Freeze the copies."""
    for known, new in zip(_wrappers(train), _wrappers(other), strict=True):
        if isinstance(new, HasTransforms):
            new.transform.load_state_dict(known.transform.state_dict())
            _freeze(new)
        else:
            new.set_obs_rms(known.get_obs_rms())
            new.update_obs_rms = False


def _freeze(env: HasTransforms) -> None:
    for each in env.transform:
        if isinstance(each, Freezable):
            each.freeze().leaves_rewards = True


def observation_trees(env: Any) -> list[Any]:
    """Return the arrays of an observation for each env of a vector env. Envs without a space are left out."""
    found = getattr(env, "observation_space", None)
    return [space_tree(each, "obs") for each in (found if isinstance(found, list) else [found]) if each is not None]


def check_observations(known: list[Any], eval_env: Any) -> None:
    """Raise `ValueError` if `eval_env` has observations unlike all of `known`, the observations of the training."""
    if known and (others := [each for each in observation_trees(eval_env) if each not in known]):
        raise ValueError(
            f"eval_env has observations with {_shown(others[0])}, and the policy is trained on {_shown(known[0])}: put "
            "the transforms of the training envs around eval_env too, for example TransformedVectorEnv(eval_env, "
            "CatFrames(4, -1)), or play in it with a collector of its own: SyncDataCollector(eval_env, policy, "
            "frames_per_batch=n).collect(n_episode=8)"
        )


def _shown(tree: Any) -> str:
    leaves = ((each.path, row_of(each)) for each in nest.leaves(tree))
    return ", ".join(path if row is None else f"{path} of shape {row[0]} and dtype {row[1]}" for path, row in leaves)


class Evaluation:
    """Maker of the collectors for `evaluate`.

    source: first argument of the training collector. train: the training vector env, with statistics to copy, or
        `None` if Ray actors have the training envs. add_transforms: puts transforms around a vector env, at the place
        of the collector's `transforms=`. `None`: the collector has no `transforms=`.
    """

    def __init__(
        self,
        source: Any,
        make_env: Callable[[Any], Any],
        train: Any = None,
        add_transforms: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self._source, self._make_env, self._train, self._add_transforms = source, make_env, train, add_transforms
        self._observations = observation_trees(train)
        self._no_remake_reason = None if train is None else why_not_remakeable(source, train)
        self._creators: dict[EnvCreator, EnvCreator] = {}
        """`EnvCreator` of training envs -> its copy with frozen statistics."""
        self._kept_collector: Any = None

    @contextmanager
    def collector(self, make_collector: Callable[[Any], Any], eval_env: Any, stay_open: bool) -> Iterator[Any]:
        """Provide a collector on `eval_env`, or on separate envs if `eval_env` is `None`.

        `stay_open` keeps the separate envs for later calls.
        """
        eval_env = below_facade(eval_env)
        if eval_env is not None and not hasattr(eval_env, "env_num"):
            raise TypeError(
                f"eval_env must be a vector env of vecenv, got {eval_env!r}: pass for example "
                "DummyVectorEnv([make_env] * 4)"
            )
        if eval_env is not None:
            eval_env = self._like_training(eval_env)
        if eval_env is None and self._kept_collector is None:
            self._kept_collector = self._make(make_collector)
        if eval_env is None:
            self._copy_statistics(self._kept_collector.env)
        collector = self._kept_collector if eval_env is None else make_collector(eval_env)
        try:
            yield collector
        finally:
            if eval_env is not None:
                collector.shutdown(close_env=False)
            elif not stay_open:
                self.close()

    def _like_training(self, eval_env: Any) -> Any:
        """Return `eval_env` with frozen copies of the collector's `transforms=` around it.

        An `eval_env` with as many wrappers that change rows as the training env has its transforms already.
        """
        missing = _row_changers(self._train)[: -len(_row_changers(eval_env)) or None]
        if missing and self._add_transforms is not None:
            eval_env = self._add_transforms(eval_env, missing.pop(0).transform.frozen_copy())
            _freeze(eval_env)
        if names := [
            name for name in _norms_of_observations(self._train) if name not in _norms_of_observations(eval_env)
        ]:
            raise ValueError(
                f"the training env normalises observations by {' and '.join(names)}, and eval_env does not: pass "
                "TransformedVectorEnv(eval_env, collector.env.transform.frozen_copy()), or "
                "VectorEnvNormObs(eval_env, update_obs_rms=False) that got set_obs_rms(collector.env.get_obs_rms())"
            )
        check_observations(self._observations, eval_env)
        return eval_env

    def _make(self, make_collector: Callable[[Any], Any]) -> Any:
        if self._no_remake_reason is not None:
            raise needs_eval_env(self._no_remake_reason)
        source = self._source
        env = self._make_env(
            [*map(self._frozen_env_fn, source)] if isinstance(source, Sequence) else self._frozen_env_fn(source)
        )
        try:
            self._copy_statistics(env)
            if names := unfrozen_statistics(env):
                raise needs_eval_env(
                    f"new envs would lack the statistics of {' and '.join(names)} in the training envs, unless VecNorm "
                    "is in transforms= of a local collector, envs come from EnvCreator(env_fn), or env_fns load and "
                    "freeze the statistics"
                )
            return make_collector(env)
        except BaseException:
            env.close()
            raise

    def _frozen_env_fn(self, env_fn: Any) -> Any:
        if self._train is None or not isinstance(env_fn, EnvCreator):
            return env_fn
        if env_fn not in self._creators:
            self._creators[env_fn] = env_fn.frozen_copy(shared_only=True)
        return self._creators[env_fn]

    def _copy_statistics(self, env: Any) -> None:
        for known, copy in self._creators.items():
            copy.load_state_dict(known.state_dict())
        if self._train is not None:
            copy_statistics(self._train, env)

    def close(self) -> None:
        if self._kept_collector is not None:
            own, self._kept_collector = self._kept_collector, None
            own.shutdown()


def _row_changers(env: Any) -> list[Any]:
    return [each for each in _wrappers(env) if isinstance(each, (HasTransforms, VectorEnvNormObs))]


def _norms_of_observations(env: Any) -> list[str]:
    """Return the names of the wrappers and transforms of a vector env that normalise observations."""
    found: list[Any] = []
    for wrapper in _row_changers(env):
        transforms = wrapper.transform if isinstance(wrapper, HasTransforms) else None
        found += [wrapper] if transforms is None else [each for each in transforms if _normalises(each)]
    return [type(each).__name__ for each in found]


def _normalises(transform: Any) -> bool:
    return isinstance(transform, Freezable) and transform.in_keys != []


def _wrappers(env: Any) -> list[Any]:
    found: list[Any] = []
    while isinstance(env, VectorEnvWrapper):
        found.append(env)
        env = env.venv
    return found
