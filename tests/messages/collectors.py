"""Messages of collectors, of `rollout`, and of the forms of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from collector import AsyncDataCollector, EpisodeSeeds, MultiStep, SyncDataCollector, rollout
from collector.policy.policy_call import set_exploration_type
from tests.messages.rows import NOTHING, Subject, rows_for
from tests.support.collector_envs import batch_of, countdowns, zeros
from tests.support.countdown import Countdown, DictObs
from vecenv import (
    AECVectorEnv,
    DummyVectorEnv,
    GymnasiumVectorEnv,
    ParallelVectorEnv,
    VectorEnvNormObs,
    VectorEnvWrapper,
)
from vecenv.transforms import CatFrames, Resize, TransformedVectorEnv, VecNorm

FNS = [partial(gymnasium.make, "CartPole-v1")] * 2


class TenTimes(VectorEnvWrapper):
    """Wrapper in tianshou's interface, which has no `send` and `recv`."""

    def step(self, action: Any, id: Any = None, **kwargs: Any) -> Any:
        obs, reward, *rest = self.venv.step(action, id, **kwargs)
        return obs, 10 * reward, *rest


class Named(TenTimes):
    """Subclass that changes no behaviour."""


def returning(name: str) -> Callable[[Any], Any]:
    """Return a policy with a further output."""
    return lambda obs: {"action": zeros(obs), name: zeros(obs)}


def sync(source: Any = None, policy: Any = zeros, frames: Any = 6, **options: Any) -> SyncDataCollector:
    source = countdowns(9, 9, 9) if source is None else source
    return SyncDataCollector(source, policy, frames_per_batch=frames, **options)


def asynchronous(source: Any = FNS, policy: Any = None, frames: Any = 6, **options: Any) -> AsyncDataCollector:
    return AsyncDataCollector(source, policy, frames_per_batch=frames, backend="dummy", **options)


def used(collector: Any, use: Callable[[Any], Any] = next) -> None:
    """Use a collector that was made for this row, and shut it down."""
    with collector:
        use(collector)


def each(values: Iterable[Any], call: Callable[[Any, Any], Any], error: Any, *says: str) -> list[Any]:
    """Return a row for each value. VALUE in a text stands for the value."""
    return [(partial(call, value), error, *(text.replace("VALUE", str(value)) for text in says)) for value in values]


# Arguments of constructors.


@contextmanager
def _envs(**options: Any) -> Iterator[DummyVectorEnv]:
    with DummyVectorEnv(countdowns(9, 9, 9), **options) as venv:
        yield venv


def _usable(venv: DummyVectorEnv) -> None:
    assert not venv.is_closed
    assert venv.reset()[0].shape == (3, 2)


ENVS = Subject(_envs, _usable)
WAITING_ENVS = Subject(partial(_envs, wait_num=1), _usable)


def _with_sb3(use: Callable[[Any], Any]) -> None:
    pytest.importorskip("stable_baselines3")
    from vecenv.facades.to_sb3 import SB3VecEnv

    with DummyVectorEnv(FNS) as venv:
        use(SB3VecEnv(venv))


def _with_agents(make: Any) -> None:
    pytest.importorskip("pettingzoo")
    with make() as envs:
        sync(envs)


def _on_tensors(venv: Any) -> None:
    pytest.importorskip("torch")
    from collector import TorchVectorEnv

    sync(TorchVectorEnv(venv, "cpu"))


def _on_device(**device: str) -> None:
    pytest.importorskip("torch")
    sync(**device)


NUMBERS = {
    "frames": 2.5,
    "total_frames": float("nan"),
    "max_frames_per_traj": float("inf"),
    "init_random_frames": "10",
}
CONSTRUCTORS = [
    *rows_for(
        NOTHING,
        (lambda _: sync(frames=0), ValueError, "frames_per_batch", "at least 1"),
        (lambda _: sync(total_frames=0), ValueError, "total_frames", "at least 1"),
        *each(
            NUMBERS, lambda name, _: sync(**{name: NUMBERS[name]}), TypeError, "VALUE", "must be a whole number, got"
        ),
        (lambda _: asynchronous(groups=[10]), TypeError, "groups must be a whole number, got [10]"),
        (lambda _: asynchronous(groups=0), ValueError, "groups must be an integer of at least 1, got 0"),
        (lambda _: sync(env_device="cuda"), ValueError, "env_device must be None or 'cpu', got 'cuda'"),
        (lambda _: sync(reset_when_done=False), ValueError, "reset_when_done=False is not supported"),
        (lambda _: sync(exploration_type="best"), ValueError, "one of random, mode, mean; got 'best'"),
        (
            lambda _: sync(backend="dummy", step_timeout=3),
            TypeError,
            "SyncDataCollector has no argument 'step_timeout'",
        ),
        (
            lambda _: sync([FNS[0], Countdown(3)]),
            TypeError,
            "create_env_fn[1] must be a callable",
            "lambda: make_env()",
        ),
        (lambda _: sync("CartPole-v1"), TypeError, "for 8 such envs pass ['CartPole-v1'] * 8"),
        (lambda _: SyncDataCollector(None, frames_per_batch=6), TypeError, "create_env_fn must be", "got None"),
        (lambda _: sync(Countdown(3), create_env_kwargs={"length": 3}), RuntimeError, "already exists"),
        (lambda _: sync(num_worker=3), TypeError, "has no argument 'num_worker'; did you mean 'num_workers'"),
        (lambda _: sync(total_frame=3), TypeError, "has no argument 'total_frame'; did you mean 'total_frames'"),
        (
            lambda _: asynchronous(group=3),
            TypeError,
            "AsyncDataCollector has no argument 'group'; did you mean 'groups'",
        ),
        (lambda _: AsyncDataCollector(FNS), TypeError, "AsyncDataCollector needs frames_per_batch="),
        *each(
            ("device", "policy_device", "storing_device"),
            lambda name, _: _on_device(**{name: "cuda:99"}, policy=None if name == "device" else zeros),
            ValueError,
            "there is no device cuda:99",
        ),
        *each(
            (sync, lambda envs: rollout(envs, 3)),
            lambda use, _: _with_sb3(use),
            TypeError,
            "SB3VecEnv",
            "pass its `.venv`",
        ),
        *each(
            (
                lambda: ParallelVectorEnv(["classic/rps-v2"] * 2, backend="dummy"),
                lambda: AECVectorEnv(["classic/tictactoe-v3"], backend="dummy"),
            ),
            lambda make, _: _with_agents(make),
            TypeError,
            "steps many agents",
            "one agent per env: pass flatten_agents(env)",
        ),
        (
            lambda _: sync(reset_at_each_iter=True, episode_seeds=EpisodeSeeds(0)),
            ValueError,
            "reset_at_each_iter cannot",
        ),
        (lambda _: asynchronous(episode_seeds=EpisodeSeeds(0)), ValueError, "use SyncDataCollector"),
        (
            lambda _: sync(lambda: DummyVectorEnv(FNS), transforms=Resize(4)),
            ValueError,
            "finds no part to transform in",
        ),
        *each(
            ((0, 0.9), (0.99, 3), (True, 0.9), (3, 0.0), (3, 1.5)),
            lambda arguments, _: MultiStep(*arguments),
            ValueError,
            "MultiStep(n, gamma) needs",
        ),
        *each((-1, 2**63), lambda seed, _: EpisodeSeeds(seed), ValueError, "a seed must be at least 0", "got VALUE"),
        *each(
            (-1, 2**63),
            lambda number, _: next(EpisodeSeeds(0, numbers=[number])),
            ValueError,
            "are numbered",
            "got VALUE",
        ),
    ),
    *rows_for(
        ENVS,
        (
            lambda venv: sync(venv, num_workers=1),
            ValueError,
            "num_workers cannot be used with a vector env that is already",
        ),
        (
            lambda venv: sync(GymnasiumVectorEnv(venv), wait_num=1),
            ValueError,
            "wait_num cannot be used with a vector env",
        ),
        (
            lambda _: sync(partial(DummyVectorEnv, FNS), backend="auto"),
            ValueError,
            "backend cannot be used with a vector",
        ),
        (lambda venv: sync(zeros, venv), TypeError, "DummyVectorEnv(3 envs", "comes first, then the policy"),
        (lambda venv: sync(venv, 3), TypeError, "a policy is a function"),
        (lambda venv: sync(venv, lambda a, b: a), TypeError, "are incompatible", "needs ['a', 'b']"),
        (_on_tensors, TypeError, "without TorchVectorEnv"),
        *each(
            (TenTimes, Named, lambda venv: VectorEnvNormObs(TenTimes(venv))),
            lambda wrap, venv: AsyncDataCollector(wrap(venv), zeros, frames_per_batch=3),
            TypeError,
            "TenTimes defines step, but",
            "by send and recv: define these in TenTimes",
        ),
        (lambda venv: GymnasiumVectorEnv(TenTimes(venv)), TypeError, "TenTimes defines step, but"),
        (
            lambda venv: sync(TenTimes(venv), episode_seeds=EpisodeSeeds(0)),
            TypeError,
            "TenTimes defines step, but a collector",
        ),
        (lambda venv: sync(venv, transforms=Resize(4, in_keys=["pixels"])), ValueError, "finds no ('pixels',) in"),
        (lambda venv: sync(venv, transforms=3), TypeError, "a transform must be a Transform or a function"),
        (lambda venv: rollout(venv, 2, auto_reset=False), RuntimeError, "needs the observations"),
        (lambda venv: rollout(venv, 2, obs=np.zeros((3, 2))), ValueError, "obs, which needs auto_reset=False"),
        (
            lambda venv: rollout(venv, 2, auto_reset=False, obs=np.zeros((2, 2))),
            ValueError,
            "rows, expected one for each of 3 envs",
        ),
        *each((Countdown, None, [Countdown]), lambda wrong, _: rollout(wrong, 3), TypeError, "already made"),
    ),
    *rows_for(WAITING_ENVS, (sync, ValueError, "use AsyncDataCollector for a vector env with wait_num")),
]


# Calls of a collector.


def _goes_on(collector: Any) -> None:
    batch = collector.next().flatten()
    assert batch.frames == 6
    assert (batch.step_count == batch.obs[:, 1]).all()
    assert batch.obs[:, 0].max() == 0, "no env was reset"


SYNC = Subject(partial(sync, backend="dummy"), _goes_on)
ASYNC = Subject(lambda: asynchronous(countdowns(9, 9, 9), zeros), _goes_on)


@contextmanager
def _seeded() -> Iterator[Any]:
    with sync(episode_seeds=EpisodeSeeds(0)) as collector:
        collector.next()
        yield collector


SEEDED = Subject(_seeded, _goes_on)


def _loaded_without(name: str, collector: Any) -> None:
    state = collector.state_dict()
    del state[name]
    collector.load_state_dict(state)


@contextmanager
def _finished() -> Iterator[Any]:
    with sync(total_frames=6) as collector:
        assert len(list(collector)) == 1
        yield collector


def _after(end: Callable[[Any], Any], collector: Any) -> None:
    collector.next()
    end(collector)
    collector.rollout()


def _of_actions(n: int) -> Countdown:
    env = Countdown(3)
    env.action_space = gymnasium.spaces.Discrete(n)
    return env


def _hook(result: Callable[[Any], Any], collector: Any) -> None:
    collector.collect(n_step=9, on_step=result)


def _seeds(pairs: Any, _: Any) -> None:
    used(sync(episode_seeds=pairs), lambda collector: collector.rollout())


HOOKS = (
    (
        partial(_hook, lambda step: {"x": np.zeros(7)}),
        ValueError,
        "on_step returned 'x' of shape (7,) for the",
        ", ...)",
    ),
    (partial(_hook, lambda step: {"x": 0.0}), ValueError, "on_step returned 'x' of shape ()"),
    (partial(_hook, lambda step: [0]), TypeError, "on_step must return a dict of arrays or None; it returned list"),
    (
        partial(_hook, lambda step: {"x": np.zeros(len(step.obs), np.int64 if step.obs[0, 1] else np.float64)}),
        TypeError,
        "on_step returned 'x' as",
        "int64",
        "float64",
    ),
    *each(
        ("obs", "next", "policy_version"),
        lambda name, c: _hook(lambda step: {name: zeros(step.obs)}, c),
        ValueError,
        "on_step returned 'VALUE', which a batch has already",
    ),
)
CALLS = [
    *rows_for(
        SYNC,
        (lambda c: c.collect(), ValueError, "exactly one of n_step and n_episode; got n_step=None, n_episode=None"),
        (lambda c: c.collect(n_step=1, n_episode=1), ValueError, "exactly one"),
        (lambda c: c.collect(n_step=0), ValueError, "n_step must be an integer of at least 1, got 0"),
        (lambda c: c.collect(n_episode=-2), ValueError, "n_episode must be an integer of at least 1, got -2"),
        (lambda c: c.collect(n_step=2.5), TypeError, "n_step must be a whole number, got 2.5"),
        (lambda c: c.collect(n_episode="4"), TypeError, "n_episode must be a whole number, got '4'"),
        (lambda c: c.collect(n_step=3, on_episode=print), ValueError, "on_episode needs n_episode"),
        (lambda c: c.collect(n_step=3, gym_reset_kwargs={"seed": 1}), ValueError, "reset_before_collect=True"),
        *each(
            (-1, float("nan"), True, "human"),
            lambda pause, c: c.collect(n_step=3, render=pause),
            ValueError,
            "render is the pause after each frame in seconds",
        ),
        *each((3, -1), lambda env_id, c: c.reset([env_id]), IndexError, "env id VALUE is out of range"),
        (lambda c: c.reset([0, 0]), ValueError, "env id 0 is given twice"),
        *each(("env_state_dict", "frames", "iter"), _loaded_without, ValueError, "the state lacks ['VALUE']; pass the"),
        (lambda c: c.update_policy_weights_(), RuntimeError, "no weights to update"),
        (lambda c: c.load_state_dict(c.state_dict() | {"policy_state_dict": {}}), RuntimeError, "takes none"),
        (len, TypeError, "no length"),
        (lambda c: c.evaluate(0), ValueError, "n_episode must be an integer of at least 1"),
        (lambda c: c.evaluate(1, "best"), ValueError, "an exploration type is one of random, mode, mean; got 'best'"),
        (lambda c: set_exploration_type("best").__enter__(), ValueError, "an exploration type is one of"),
        *each(
            (FNS, FNS[0], Countdown(3), gymnasium.vector.SyncVectorEnv(FNS)),
            lambda wrong, c: c.evaluate(3, eval_env=wrong),
            TypeError,
            "eval_env must be a vector env of vecenv, got",
        ),
    ),
    *rows_for(ASYNC, (lambda c: c.collect(n_step=6, render=0.1), ValueError, "render needs a synchronous collector")),
    *rows_for(Subject(SYNC.make), *HOOKS),
    *rows_for(Subject(ASYNC.make), *HOOKS),
    *rows_for(
        Subject(SYNC.make),
        (partial(_after, lambda c: c.env.close()), RuntimeError, "vector env was closed"),
        (partial(_after, lambda c: c.shutdown()), RuntimeError, "is shut down; make a new collector"),
    ),
    *rows_for(
        NOTHING,
        *each(
            ("obs", "next", "policy_version"),
            lambda name, _: used(sync(policy=returning(name))),
            ValueError,
            "the policy returned 'VALUE', which a batch has already",
        ),
        (
            lambda _: used(sync(policy=returning("obs"), init_random_frames=6)),
            ValueError,
            "the policy returned 'obs', which a batch has already",
        ),
        *each(
            (3, (0, 1, 2)), lambda pair, _: _seeds([pair], _), TypeError, "must give pairs (number, seed), got VALUE"
        ),
        (partial(_seeds, [(-1, 0)]), ValueError, "numbered from 0"),
        (partial(_seeds, [(0, -1)]), ValueError, "a seed must be at least 0"),
        (partial(_seeds, [(0.5, 0)]), TypeError, "whole number"),
        (partial(_seeds, [(0, 0), (0, 1)]), ValueError, "gave episode 0 to env 1"),
        (partial(_seeds, []), RuntimeError, "all of episode_seeds have been played"),
        (
            lambda _: used(sync([partial(_of_actions, n) for n in (2, 3)], None, 4, episode_seeds=EpisodeSeeds(0))),
            TypeError,
            "an episode may be played in any env",
            "env 1 has Discrete",
        ),
    ),
    *rows_for(
        Subject(_finished),
        *each(
            (lambda c: c.rollout(), lambda c: c.set_seed(0), lambda c: c.reset(), lambda c: c.reset([0], seed=1)),
            lambda call, c: call(c),
            RuntimeError,
            "shut down after the last batch; make a new collector",
        ),
    ),
    *rows_for(
        SEEDED,
        *each(
            (lambda c: c.reset(0, seed=3), lambda c: c.set_seed(0), lambda c: c.collect(n_episode=3)),
            lambda call, c: call(c),
            ValueError,
            "cannot be used with episode_seeds",
        ),
        (lambda c: c.load_state_dict(c.state_dict()), RuntimeError, "episode 0 is in progress"),
    ),
    *rows_for(
        Subject(_seeded),
        (lambda c: (c.env.step(np.zeros(3, np.int64)), c.next()), RuntimeError, "episode 0 is in progress: make a new"),
    ),
]


# Evaluation.


def _evaluated(source: Any, wrap: Any, **options: Any) -> None:
    with DummyVectorEnv(FNS) as eval_env, SyncDataCollector(source, frames_per_batch=4, **options) as collector:
        collector.next()
        collector.evaluate(1, eval_env=wrap(eval_env))


def _norm(venv: Any) -> Any:
    return TransformedVectorEnv(venv, VecNorm(["observation"]))


EVALUATIONS = rows_for(
    NOTHING,
    (
        lambda _: _evaluated(DummyVectorEnv(FNS), lambda _: None),
        ValueError,
        "you passed a vector env or env, not functions",
        "eval_env=",
    ),
    (
        lambda _: _evaluated(_norm(DummyVectorEnv(FNS)), lambda env: env),
        ValueError,
        "normalises observations by VecNorm, and eval_env does not: pass",
    ),
    (
        lambda _: _evaluated(VectorEnvNormObs(DummyVectorEnv(FNS)), lambda env: env),
        ValueError,
        "normalises observations by VectorEnvNormObs, and eval_env does not: pass",
    ),
    (
        lambda _: _evaluated(lambda: TransformedVectorEnv(DummyVectorEnv(FNS), CatFrames(2, -1)), lambda env: env),
        ValueError,
        "observations with obs of shape (4,)",
        "trained on obs of shape (8,)",
    ),
    (
        lambda _: _evaluated(lambda: VectorEnvWrapper(DummyVectorEnv(FNS)), lambda _: None),
        ValueError,
        "would lack the statistics of the VectorEnvWrapper around this vector env",
    ),
)


# Forms of a batch.


def _batch(**options: Any) -> Any:
    return batch_of(countdowns(3, 5), zeros, 10, **options)


def _entries(name: str) -> Any:
    batch = batch_of([lambda: DictObs(Countdown(3))], zeros, 5)
    all_obs, final_obs = ({**obs, name: obs["a"]} for obs in (batch.all_obs, batch.final_obs))
    return replace(batch, all_obs=all_obs, final_obs=final_obs)


def _objects(name: str, batch: Any) -> Any:
    """Return the batch with an entry that torch has no dtype for."""
    none = np.full(batch.action.shape, None)
    if name == "action":
        return replace(batch, action=none)
    if name == "extras":
        return replace(batch, extras={"who": none})
    all_obs, final_obs = (np.full(rows.shape, None) for rows in (batch.all_obs, batch.final_obs))
    place = {
        "obs": lambda rows: rows,
        "dict": lambda rows: {"who": rows},
        "tuple": lambda rows: {"all": (np.zeros(rows.shape), rows)},
    }
    return replace(batch, all_obs=place[name](all_obs), final_obs=place[name](final_obs))


PLACES = {"obs": "obs", "dict": "obs['who']", "tuple": "obs['all'][1]", "action": "action", "extras": "extras['who']"}
BATCHES = rows_for(
    NOTHING,
    *each(
        ("3", 1.5j, None, [1, 2]), lambda x, _: _batch().split_trajectories(x), TypeError, "pad_value must be a number"
    ),
    *each(
        ("action", "collector", "next"),
        lambda name, _: _entries(name).to_tensordict(),
        ValueError,
        "the observation has an entry 'VALUE', and so has the tensordict",
    ),
    *(
        (
            partial(lambda name, _: _objects(name, _batch()).flatten().to("cpu"), name),
            TypeError,
            f"no dtype for {place}, an",
        )
        for name, place in PLACES.items()
    ),
    *each(
        (lambda batch: batch, lambda batch: batch.flatten(), lambda batch: batch.split_trajectories()),
        lambda form, _: form(_objects("obs", _batch())).to("cpu"),
        TypeError,
        "no dtype for obs, an array of",
        ": drop it in a wrapper",
        "or keep numpy batches",
    ),
    (
        lambda _: _objects("extras", _batch()).to_tensordict(),
        TypeError,
        "no dtype for extras['who'], ",
        "to_tensordict",
    ),
    *each(
        (None, "cpu"),
        lambda device, _: used(
            sync(postproc=MultiStep(3, 0.9), storing_device=device), lambda c: c.next().split_trajectories()
        ),
        ValueError,
        "split_trajs=True",
    ),
)
ROWS = [*CONSTRUCTORS, *CALLS, *EVALUATIONS, *BATCHES]
