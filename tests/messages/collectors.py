"""Messages of collectors, of `rollout`, and of the forms of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from operator import methodcaller as call
from typing import Any

import gymnasium
import numpy as np

from collector import AsyncDataCollector, EpisodeSeeds, MultiStep, SyncDataCollector, TorchVectorEnv, rollout
from collector.policy.policy_call import set_exploration_type
from tests.messages.rows import NOTHING, Subject, each, rows_for
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
from vecenv.sb3 import SB3VecEnv
from vecenv.transforms import CatFrames, Resize, TransformedVectorEnv, VecNorm

FNS = [partial(gymnasium.make, "CartPole-v1")] * 2


class TenTimes(VectorEnvWrapper):
    """Wrapper in tianshou's interface, which has no `send` and `recv`."""

    def step(self, action: Any, id: Any = None, **kwargs: Any) -> Any:
        obs, reward, *rest = self.venv.step(action, id, **kwargs)
        return obs, 10 * reward, *rest


class Named(TenTimes):
    """Subclass that changes no behaviour."""


def sync(source: Any = None, policy: Any = zeros, frames: Any = 6, **options: Any) -> SyncDataCollector:
    source = countdowns(9, 9, 9) if source is None else source
    return SyncDataCollector(source, policy, frames_per_batch=frames, **options)


def asynchronous(source: Any = FNS, policy: Any = None, frames: Any = 6, **options: Any) -> AsyncDataCollector:
    return AsyncDataCollector(source, policy, frames_per_batch=frames, backend="dummy", **options)


def used(collector: Any, use: Callable[[Any], Any] = next) -> None:
    """Use a collector that was made for this row, and shut it down."""
    with collector:
        use(collector)


# Arguments of constructors.


@contextmanager
def _envs(**options: Any) -> Iterator[DummyVectorEnv]:
    with DummyVectorEnv(countdowns(9, 9, 9), **options) as venv:
        yield venv


def _usable(venv: DummyVectorEnv) -> None:
    assert not venv.is_closed
    assert venv.reset()[0].shape == (3, 2)


ENVS = Subject(_envs, _usable)


def _with_sb3(use: Callable[[Any], Any]) -> None:
    with DummyVectorEnv(FNS) as venv:
        use(SB3VecEnv(venv))


def _with_agents(kind: Any) -> None:
    with kind(["classic/rps-v2"] * 2, backend="dummy") as envs:
        sync(envs)


def _collects_with(venv: Any, wrap: Any) -> object:
    return AsyncDataCollector(wrap(venv), zeros, frames_per_batch=3)


def _multi(pair: Any) -> object:
    return MultiStep(*pair)


def _seeded_ten_times(venv: Any) -> object:
    return sync(TenTimes(venv), episode_seeds=EpisodeSeeds(0))


def _on_device(name: str) -> None:
    sync(**{name: "cuda:99"}, policy=None if name == "device" else zeros)


TEN_TIMES = TenTimes, Named, lambda venv: VectorEnvNormObs(TenTimes(venv))
UNKNOWN = "SyncDataCollector has no argument "
CONSTRUCTORS = [
    *rows_for(
        NOTHING,
        (lambda: sync(frames=2.5), TypeError, "frames_per_batch must be a whole number, got 2.5"),
        (lambda: sync(total_frames=0), ValueError, "total_frames", "at least 1"),
        (lambda: sync(env_device="cuda"), ValueError, "env_device must be None or 'cpu', got 'cuda'"),
        (lambda: sync(reset_when_done=False), ValueError, "reset_when_done=False is not supported"),
        (lambda: sync(backend="dummy", step_timeout=3), TypeError, f"{UNKNOWN}'step_timeout'; it needs workers"),
        (lambda: sync(num_worker=3), TypeError, f"{UNKNOWN}'num_worker'; did you mean 'num_workers'"),
        (lambda: asynchronous(group=3), TypeError, "has no argument 'group'; did you mean 'groups'"),
        (lambda: AsyncDataCollector(FNS), TypeError, "AsyncDataCollector needs frames_per_batch="),
        (lambda: sync([FNS[0], Countdown(3)]), TypeError, "create_env_fn[1] must be a callable", "lambda: make_env()"),
        (lambda: sync("CartPole-v1"), TypeError, "for 8 such envs pass ['CartPole-v1'] * 8"),
        (lambda: SyncDataCollector(None, frames_per_batch=6), TypeError, "create_env_fn must be", "got None"),
        (lambda: sync(Countdown(3), create_env_kwargs={"length": 3}), RuntimeError, "the env already exists"),
        (each(("device", "policy_device", "storing_device"), _on_device), ValueError, "there is no device cuda:99"),
        (each((sync, partial(rollout, max_steps=3)), _with_sb3), TypeError, "SB3VecEnv", "pass its `.venv`"),
        (each((ParallelVectorEnv, AECVectorEnv), _with_agents), TypeError, "many agents", "pass flatten_agents(env)"),
        (lambda: sync(reset_at_each_iter=True, episode_seeds=EpisodeSeeds(0)), ValueError, "reset_at_each_iter cannot"),
        (lambda: asynchronous(episode_seeds=EpisodeSeeds(0)), ValueError, "use SyncDataCollector"),
        (lambda: sync(lambda: DummyVectorEnv(FNS), transforms=Resize(4)), ValueError, "no part to transform in"),
        (each(((0, 0.9), (True, 0.9), (3, 0.0), (3, 1.5)), _multi), ValueError, "MultiStep(n, gamma) needs"),
        (lambda: EpisodeSeeds(2**63), ValueError, f"a seed must be at least 0 and below 2**63, got {2**63}"),
        (lambda: next(EpisodeSeeds(0, numbers=[2**63])), ValueError, "are numbered from 0", f"got {2**63}"),
    ),
    *rows_for(
        ENVS,
        (lambda venv: sync(venv, num_workers=1), ValueError, "num_workers cannot be used with a vector env that is"),
        (lambda venv: sync(zeros, venv), TypeError, "DummyVectorEnv(3 envs", "comes first, then the policy"),
        (lambda venv: sync(venv, lambda a, b: a), TypeError, "are incompatible", "needs ['a', 'b']"),
        (lambda venv: sync(TorchVectorEnv(venv, "cpu")), TypeError, "without TorchVectorEnv"),
        (each(TEN_TIMES, _collects_with), TypeError, "TenTimes defines step, but", "define these in TenTimes"),
        ([lambda v: GymnasiumVectorEnv(TenTimes(v)), _seeded_ten_times], TypeError, "TenTimes defines step, but"),
        (lambda venv: rollout(venv, 2, auto_reset=False), RuntimeError, "needs the observations"),
        (lambda venv: rollout(venv, 2, obs=np.zeros((3, 2))), ValueError, "obs, which needs auto_reset=False"),
        (lambda v: rollout(v, 2, auto_reset=False, obs=[0, 0]), ValueError, "rows, expected one for each of 3 envs"),
        (each((Countdown, None), lambda venv, wrong: rollout(wrong, 3)), TypeError, "that is already made, got VALUE"),
    ),
    *rows_for(
        Subject(partial(_envs, wait_num=1), _usable),
        (sync, ValueError, "use AsyncDataCollector for a vector env with wait_num"),
    ),
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


def _loaded_without(collector: Any, name: str) -> None:
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


def _hook(result: Callable[[Any], Any]) -> Callable[[Any], object]:
    return lambda collector: collector.collect(n_step=9, on_step=result)


def _changes_dtype(step: Any) -> Any:
    return {"x": np.zeros(len(step.obs), np.int64 if step.obs[0, 1] else np.float64)}


def _seeds(*pairs: Any) -> None:
    used(sync(episode_seeds=pairs), lambda collector: collector.rollout())


def _evaluates_in(collector: Any, eval_env: Any) -> object:
    return collector.evaluate(3, eval_env=eval_env)


def _rendered(collector: Any, pause: Any) -> object:
    return collector.collect(n_step=3, render=pause)


def _with_weights(collector: Any) -> None:
    collector.load_state_dict(collector.state_dict() | {"policy_state_dict": {}})


def _mode(collector: Any) -> None:
    set_exploration_type("best").__enter__()


def _named(collector: Any, name: str) -> None:
    _hook(lambda step: {name: zeros(step.obs)})(collector)


def _returned(name: str) -> None:
    used(sync(policy=lambda obs: {"action": zeros(obs), name: zeros(obs)}))


def _unlike_actions() -> None:
    used(sync([partial(_of_actions, n) for n in (2, 3)], None, 4, episode_seeds=EpisodeSeeds(0)))


NAMES = "obs", "next", "policy_version"
RESEEDS = [call("reset", 0, seed=3), call("set_seed", 0), call("collect", n_episode=3)]
AN_INTEGER = "n_episode must be an integer of at least 1, got 0"
CALLS = [
    *rows_for(
        SYNC,
        (call("collect"), ValueError, "exactly one of n_step and n_episode; got n_step=None, n_episode=None"),
        ([call("collect", n_episode=0), call("evaluate", 0)], ValueError, AN_INTEGER),
        (call("collect", n_step=2.5), TypeError, "n_step must be a whole number, got 2.5"),
        (call("collect", n_step=3, on_episode=print), ValueError, "on_episode needs n_episode"),
        (call("collect", n_step=3, gym_reset_kwargs={"seed": 1}), ValueError, "reset_before_collect=True"),
        (each((-1, float("nan"), True, "human"), _rendered), ValueError, "render is the pause after each frame"),
        (call("reset", [3]), IndexError, "env id 3 is out of range for 3 envs"),
        (each(("env_state_dict", "frames", "iter"), _loaded_without), ValueError, "the state lacks ['VALUE']; pass"),
        (lambda c: c.update_policy_weights_(), RuntimeError, "no weights to update"),
        (_with_weights, RuntimeError, "the state has weights of a policy, but this collector's policy takes none"),
        (len, TypeError, "without total_frames has no length"),
        ([call("evaluate", 1, "best"), _mode], ValueError, "one of random, mode, mean; got 'best'"),
        (each((FNS, Countdown(3)), _evaluates_in), TypeError, "eval_env must be a vector env of vecenv, got"),
    ),
    *rows_for(ASYNC, (call("collect", n_step=6, render=0.1), ValueError, "needs a synchronous collector")),
    *rows_for(
        Subject(SYNC.make),
        (_hook(lambda step: {"x": np.zeros(7)}), ValueError, "on_step returned 'x' of shape (7,) for the 3", ", ...)"),
        (_hook(lambda step: [0]), TypeError, "on_step must return a dict of arrays or None; it returned list"),
        (_hook(_changes_dtype), TypeError, "on_step returned 'x' as", "int64", "float64"),
        (each(NAMES, _named), ValueError, "on_step returned 'VALUE', which a batch has already"),
        (partial(_after, lambda c: c.env.close()), RuntimeError, "vector env was closed"),
        (partial(_after, lambda c: c.shutdown()), RuntimeError, "is shut down; make a new collector"),
    ),
    *rows_for(
        NOTHING,
        (each(NAMES, _returned), ValueError, "the policy returned 'VALUE', which a batch has already"),
        (each((3, (0, 1, 2)), _seeds), TypeError, "must give pairs (number, seed), got VALUE"),
        (partial(_seeds, (0.5, 0)), TypeError, "the number of an episode must be a whole number, got 0.5"),
        (partial(_seeds, (0, 0), (0, 1)), ValueError, "gave episode 0 to env 1"),
        (_seeds, RuntimeError, "all of episode_seeds have been played"),
        (_unlike_actions, TypeError, "an episode may be played in any env", "env 1 has Discrete"),
    ),
    *rows_for(
        Subject(_finished),
        ([call("rollout"), call("set_seed", 0), call("reset", [0])], RuntimeError, "after the last batch; make a new"),
    ),
    *rows_for(
        Subject(_seeded, _goes_on),
        (RESEEDS, ValueError, "cannot be used with episode_seeds"),
        (lambda c: c.load_state_dict(c.state_dict()), RuntimeError, "episode 0 is in progress"),
    ),
    *rows_for(
        Subject(_seeded),
        (lambda c: (c.env.step(np.zeros(3, np.int64)), c.next()), RuntimeError, "episode 0 is in progress: make a new"),
    ),
]


# Evaluation.


def _evaluated(source: Any, *given: None) -> None:
    with DummyVectorEnv(FNS) as eval_env, SyncDataCollector(source, frames_per_batch=4) as collector:
        collector.next()
        collector.evaluate(1, eval_env=None if given else eval_env)


def _wrapped() -> Any:
    return VectorEnvWrapper(DummyVectorEnv(FNS))


def _norm(venv: Any) -> Any:
    return TransformedVectorEnv(venv, VecNorm(["observation"]))


def _frames() -> Any:
    return TransformedVectorEnv(DummyVectorEnv(FNS), CatFrames(2, -1))


EVALUATIONS = rows_for(
    NOTHING,
    (lambda: _evaluated(DummyVectorEnv(FNS), None), ValueError, "you passed a vector env or env, not functions"),
    (lambda: _evaluated(_norm(DummyVectorEnv(FNS))), ValueError, "by VecNorm, and eval_env does not: pass"),
    (lambda: _evaluated(VectorEnvNormObs(DummyVectorEnv(FNS))), ValueError, "by VectorEnvNormObs, and eval_env does"),
    (lambda: _evaluated(_frames), ValueError, "observations with obs of shape (4,)", "trained on obs of shape (8,)"),
    (lambda: _evaluated(_wrapped, None), ValueError, "would lack the statistics of the VectorEnvWrapper around this"),
)


# Forms of a batch.


def _batch() -> Any:
    return batch_of(countdowns(3, 5), zeros, 10)


def _entries(name: str) -> Any:
    batch = batch_of([lambda: DictObs(Countdown(3))], zeros, 5)
    all_obs, final_obs = ({**obs, name: obs["a"]} for obs in (batch.all_obs, batch.final_obs))
    return replace(batch, all_obs=all_obs, final_obs=final_obs).to_tensordict()


def _objects(place: str) -> Any:
    """Return a batch with an entry that torch has no dtype for."""
    batch = _batch()
    none = np.full(batch.action.shape, None)
    if place == "action":
        return replace(batch, action=none)
    if place == "extras['who']":
        return replace(batch, extras={"who": none})
    all_obs, final_obs = (np.full(rows.shape, None) for rows in (batch.all_obs, batch.final_obs))
    form: Callable[[Any], Any] = {
        "obs": lambda rows: rows,
        "obs['who']": lambda rows: {"who": rows},
        "obs['all'][1]": lambda rows: {"all": (np.zeros(rows.shape), rows)},
    }[place]
    return replace(batch, all_obs=form(all_obs), final_obs=form(final_obs))


def _padded(value: Any) -> object:
    return _batch().split_trajectories(value)


def _sent(place: str) -> None:
    _objects(place).flatten().to("cpu")


def _joined() -> None:
    _objects("extras['who']").to_tensordict()


def _without_trajectories() -> None:
    used(sync(postproc=MultiStep(3, 0.9)), lambda c: c.next().split_trajectories())


PLACES = "obs", "obs['who']", "obs['all'][1]", "action", "extras['who']"
BATCHES = rows_for(
    NOTHING,
    (each(("3", 1.5j, None, [1, 2]), _padded), TypeError, "pad_value must be a number, got "),
    (each(("action", "next"), _entries), ValueError, "the observation has an entry 'VALUE', and so has the tensordict"),
    ([*each(PLACES, _sent), ("extras['who']", _joined)], TypeError, "no dtype for VALUE, an array of object: drop it"),
    (lambda: _objects("obs").to("cpu"), TypeError, "or keep numpy batches"),
    (_without_trajectories, ValueError, "split_trajs=True"),
)
ROWS = [*CONSTRUCTORS, *CALLS, *EVALUATIONS, *BATCHES]
