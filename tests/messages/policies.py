"""Messages of policies, devices and clusters: outputs and states that do not fit, spaces, masks and arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from gymnasium import spaces

from collector import (
    ActorConfig,
    AsyncDataCollector,
    ExplorationType,
    MLPPolicy,
    RandomPolicy,
    RayCollector,
    SyncDataCollector,
    TorchVectorEnv,
)
from tests.messages.rows import NOTHING, Subject, arguments_of, each, rows_for
from tests.support.cases import counting, playing
from tests.support.collector_envs import batch_of, cartpoles, countdowns, lean, pendulums, zeros
from tests.support.countdown import Countdown, DictObs, Drives
from tests.support.seeded_envs import Told
from tests.support.texts import Acts, Echo
from vecenv import DummyVectorEnv

D = torch.distributions


def collects(policy: Any, fns: Any = None, kind: Any = SyncDataCollector, **options: Any) -> Callable[[], object]:
    """Return a call that collects a batch with two envs, or with the envs of `fns`."""
    fns = countdowns(3, 5) if fns is None else fns
    return lambda: batch_of(DummyVectorEnv(fns), policy, 8 * len(fns), kind, **options)


def later(first: Any, other: Any, calls: int = 3) -> Callable[[Any], object]:
    """Return a policy that is `other` from the third call on."""
    seen: list[int] = []

    def policy(obs: Any) -> Any:
        seen.append(1)
        return (first if len(seen) < calls else other)(obs)

    return policy


def recurrent(output: Callable[[Any], Any], initial_state: Any = None) -> Callable[[], object]:
    """Return a call that collects with a recurrent policy and three envs."""

    def policy(obs: Any, state: Any) -> Any:
        return output(obs)

    if initial_state is not None:
        policy.initial_state = initial_state  # type: ignore[attr-defined]
    return collects(policy, countdowns(2, 3, 7))


def unpacks(obs: np.ndarray, state: Any) -> Any:
    h, c = state
    return zeros(obs), (h, c)


def value(obs: Any, rows: int | None = None) -> Any:
    return {"action": zeros(obs), "value": np.zeros(len(obs) if rows is None else rows)}


def tanh_normal(obs: Any) -> Any:
    return D.TransformedDistribution(D.Normal(torch.zeros(len(obs), 1), 1.0), D.TanhTransform())


def dicts(length: int) -> Any:
    return DictObs(Countdown(length))


def tree(**changed: Any) -> Any:
    gear, wheel = np.arange(2), (np.zeros((2, 2)), np.ones((2, 2), np.int8))
    return {"action": {"gear": gear, "wheel": wheel} | changed}


class Pairs(Echo):
    action_space = spaces.Tuple((spaces.Text(9), spaces.Discrete(2)))


class AsksForInfos(torch.nn.Module):
    def forward(self, obs: Any, info: Any) -> Any:
        return obs


def repeats_an_info(obs: Any, code: Any, action_mask: Any) -> Any:
    return {"action": action_mask.argmax(1) + 2, "code": code}


def becomes_float(obs: Any) -> Any:
    return zeros(obs).astype(np.int64 if obs[0, 1] < 2 else np.float32)


def on(device: str) -> Callable[[Any], object]:
    return lambda obs: {"action": torch.zeros(len(obs)).long(), "v": obs.to(device)}


def of_floats(obs: Any) -> Any:
    return np.zeros(len(obs), np.float32)


def needs_c(a: Any, c: Any) -> Any:
    return zeros(a)


def needs_mask(obs: Any, mask: Any) -> Any:
    return zeros(obs)


def bfloat(obs: Any) -> Any:
    return torch.zeros(len(obs), dtype=torch.bfloat16)


def explores(kind: Any) -> None:
    collects(tanh_normal, pendulums(2), policy_device="cpu", exploration_type=kind)()


def changes_rows(kind: Any, envs: int) -> list[Callable[[], object]]:
    """Return calls in which `value` has one row or three rows for two observations, in the third or fourth call."""
    policies = (later(value, partial(value, rows=rows), 4) for rows in (1, 3))
    return [collects(policy, countdowns(*[9] * envs), kind) for policy in policies]


INFO_KEYS = "code", "action_mask"
OUTPUTS = rows_for(
    NOTHING,
    (collects(7), TypeError, "a policy is a function", "got 7"),
    (collects(lambda obs: {"action": zeros(obs), 7: zeros(obs)}), TypeError, "the key 7; all keys must be strings"),
    (collects(lambda obs: {"value": obs}), TypeError, "the policy returned", "without 'action'"),
    (collects(lambda obs: np.zeros((2, 1, 1), np.int64)), ValueError, "(2, 1, 1); ", "must be (2,)"),
    (collects(np.copy, countdowns(3)), ValueError, "'action' of shape (1, 2); for the action space it must be (1,)"),
    (collects(lambda obs: np.zeros(7, np.int64)), ValueError, "'action' of shape (7,) for 2 observations"),
    (changes_rows(SyncDataCollector, 2), ValueError, "'value' of shape (", ",) for 2 observations; it must be (2, ..."),
    (changes_rows(AsyncDataCollector, 4), ValueError, "'value' of shape (", " for 2 observations; it must be (2, ...)"),
    ([collects(of_floats), collects(bfloat)], TypeError, "of dtype float32; for the action space it must be int64"),
    (collects(lambda obs: np.array([["a"], ["b"]]), pendulums(2)), TypeError, "of dtype <U1; ", "must be float32"),
    (collects(becomes_float), TypeError, "the policy returned {'action'", "float32", " after ", "int64"),
    (collects(later(on("cpu"), on("meta")), policy_device="cpu"), ValueError, "'v' on meta; it must be on cpu"),
    (each((ExplorationType.MODE, ExplorationType.MEAN), explores), ValueError, "TransformedDistribution has no"),
    (collects(needs_c, [partial(dicts, 3)] * 2), TypeError, "the parameters of the policy", "['a', 'c']", "['a', 'b']"),
    (collects(needs_mask, info_keys=("speed",)), TypeError, "if info_keys names them, and info_keys is ('speed',)"),
    (collects(repeats_an_info, [partial(Told, 5)] * 2, info_keys=INFO_KEYS), ValueError, "info_keys has 'code'"),
)


def returns(state: Any, *says: str, error: type[Exception] = ValueError) -> tuple[Any, ...]:
    """Return a row: a recurrent policy returns the state for three observations."""
    return recurrent(lambda obs: (zeros(obs), state)), error, "the policy returned 'state'", *says


def begins(state: Any, *says: str, error: type[Exception] = ValueError) -> tuple[Any, ...]:
    """Return a row: `initial_state` returns the state for three envs."""
    policy = recurrent(lambda obs: (zeros(obs), zeros(obs)), lambda k: state)
    return policy, error, "initial_state returned 'state'", *says


def changes(first: Any, then: Any, *says: str) -> tuple[Any, ...]:
    """Return a row: the state of a policy is `first` and then `then`."""
    policy = recurrent(lambda obs: (zeros(obs), then), lambda k: first)
    return policy, TypeError, "the policy returned 'state' as", *says


NO_STATE = "a dict with 'action' and 'state', "
INT, FLOAT = "dtype('int64')", "dtype('float64')"
STATES = rows_for(
    NOTHING,
    (collects(unpacks), TypeError, "cannot unpack", "initial_state(k) that returns the state of k rows"),
    (recurrent(zeros), TypeError, NO_STATE, "got ndarray"),
    (recurrent(lambda obs: {"action": zeros(obs)}), TypeError, NO_STATE, "got dict"),
    returns(np.zeros((7, 2)), "of shape (7, 2) for 3 observations"),
    returns(np.zeros((4, 3, 8)), "must be 3: torch's recurrent layers have the rows second, so transpose(0, 1)"),
    returns(3, "as int; it must be an", error=TypeError),
    begins([0] * 3, "as list", error=TypeError),
    begins(np.zeros((1, 2)), "of shape (1, 2) for 3 observ"),
    changes(np.zeros(3, np.int64), np.full(3, 0.5), FLOAT, f" after ((), {INT}) before"),
    changes(torch.zeros(3).long(), torch.full((3,), 0.5), "torch.float32) ", " after ((), torch.int64) before"),
    changes(np.zeros((3, 3)), np.arange(3.0), "((), ", " after ((3,)"),
    changes({"a": np.zeros(3)}, {"a": np.ones(3), "b": np.ones(3)}, ", 'b': ", "} (shape of a row, dtype) after {'a'"),
)


def drives(action: Any, error: type[Exception], *says: str, fns: Any = None) -> tuple[Any, ...]:
    """Return a row: the policy returns an action that does not fit."""
    return collects(lambda obs: action, fns or [Drives] * 2), error, *says


TREES_AND_TEXTS = rows_for(
    NOTHING,
    drives({"action": {"gear": np.zeros(2, int)}}, ValueError, "a dict with the keys ['gear']", "'gear', 'wheel']"),
    drives(tree(wheel=np.zeros((2, 2))), ValueError, "\"action['wheel']\" as ", " must be a tuple of 2"),
    drives(tree(gear=np.zeros(3, int)), ValueError, "\"action['gear']\" of shape (3,) ", " must be (2,)"),
    drives(tree()["action"], TypeError, "The actions of a Dict space are a dict under that key"),
    drives(tree(), ValueError, "NaN in step 0 ", " for the action {'gear': np.int64", fns=[partial(Drives, True)] * 2),
    drives({"action": (["a", "b"], [1, 1])}, TypeError, "as a list or an object array", fns=[Pairs] * 2),
    drives({"action": {"say": ["a"], "gear": [1, 1]}}, ValueError, "got 2 actions for 1 envs", fns=[Acts] * 2),
)


def masked(pair: tuple[spaces.Space[Any], Any]) -> object:
    space, mask = pair
    return RandomPolicy([space])(None, masks=[mask])


BOX, TEXT, THREE = spaces.Box(-1, 1, (3,)), spaces.Text(5), spaces.Discrete(3)
PAIR = spaces.MultiDiscrete([2, 3])
ENDLESS = spaces.Box(-np.inf, np.inf, (2,))
UNLIKE = (
    [BOX, spaces.Box(-1, 1, (1,))],
    [spaces.Box(-1, 1, ()), spaces.Discrete(2)],
    [spaces.MultiDiscrete([2]), spaces.MultiDiscrete([2], dtype=np.int32)],
    [Drives.action_space, spaces.Dict(gear=THREE)],
)
MASKS: tuple[tuple[spaces.Space[Any], Any], ...] = (
    (THREE, np.ones(4, np.int8)),
    (THREE, np.array(["a"] * 3)),
    (PAIR, np.ones(6, np.int8)),
    (PAIR, (np.ones(2, np.int8),)),
    (spaces.MultiBinary(3), np.ones(2, np.int8)),
    (BOX, np.ones(2, np.int8)),
    (spaces.Dict({"b": THREE}), np.ones(2, np.int8)),
    (spaces.Tuple((THREE, THREE)), (np.ones(3, np.int8),)),
)
SPACES = rows_for(
    NOTHING,
    (lambda: MLPPolicy(TEXT, BOX), TypeError, "the MLP policy takes Box and Discrete observations, not Text"),
    (each((TEXT, ENDLESS), partial(MLPPolicy, BOX)), TypeError, "Discrete and bounded float Box actions, not VALUE"),
    (each(UNLIKE, RandomPolicy), TypeError, "random actions need spaces of one shape and dtype; env 1 has"),
    (lambda: RandomPolicy([BOX, TEXT]), TypeError, "random actions need", "env 1"),
    (each(MASKS, masked), ValueError, "an action mask does not fit ", "MultiDiscrete: one flat array"),
)


def refused(policy: Any = lean, **options: Any) -> Callable[[], object]:
    return lambda: SyncDataCollector(cartpoles(1), policy, frames_per_batch=8, **options)


def graph(option: Any) -> object:
    return refused(torch.nn.Identity(), cudagraph_policy=option)()


@contextmanager
def open_envs() -> Iterator[DummyVectorEnv]:
    with DummyVectorEnv(cartpoles(2)) as venv:
        yield venv


def with_threads(venv: Any, number: Any) -> object:
    return SyncDataCollector(venv, lean, frames_per_batch=8, policy_threads=number)


OPTIONS = [
    *rows_for(
        NOTHING,
        ([refused(compile_policy=True), refused(cudagraph_policy=True)], ValueError, "are for policies on tensors"),
        (each((True, {"warmup": 1}, {}), graph), ValueError, "the policy on a CUDA device, and it is on cpu: pass"),
        (refused(AsksForInfos(), compile_policy=True), ValueError, "the entries that the policy needs in info_keys"),
    ),
    *rows_for(
        Subject(open_envs, lambda venv: venv.reset()),
        (partial(with_threads, number=0), ValueError, "policy_threads must be an integer of at least 1, got 0"),
        (each((True, 1.5, "2"), with_threads), TypeError, "policy_threads must be an integer of at least 1, got "),
    ),
]


def around(fns: Any, **options: Any) -> object:
    return TorchVectorEnv(DummyVectorEnv(fns), **{"device": "cpu", **options})


def unstacked() -> object:
    return TorchVectorEnv(DummyVectorEnv(counting(2, form="dict"), stack_obs=False), "cpu").reset()


@contextmanager
def on_tensors() -> Iterator[TorchVectorEnv]:
    with TorchVectorEnv(DummyVectorEnv(counting(2)), "cpu") as venv:
        venv.reset()
        yield venv


RAGGED = [*playing(spaces.Box(0, 1, (2,)), [np.zeros(2)]), *playing(spaces.Box(0, 1, (3,)), [np.zeros(3)])]
DTYPES = torch.int64, torch.bfloat16, np.float32
DEVICES = [
    *rows_for(
        NOTHING,
        (each(("cuda:99", "tpu"), lambda name: refused(policy_device=name)()), ValueError, "no device VALUE: PyTorch"),
        (lambda: TorchVectorEnv(counting(1)[0](), "cpu"), TypeError, "got CountingEnv; for a single env, pass"),
        (lambda: around(counting(2, form="object")), TypeError, "has no fixed shape and dtype"),
        (lambda: around(RAGGED), TypeError, "obs of ", " all envs share"),
        (unstacked, TypeError, "make the vector env with stack_obs=True"),
        (each(DTYPES, lambda dtype: around(counting(1), reward_dtype=dtype)), TypeError, "reward_dtype must be"),
    ),
    *rows_for(
        Subject(on_tensors, lambda venv: venv.step(torch.zeros(2, dtype=torch.int64))),
        (lambda venv: TorchVectorEnv(venv, "cpu"), TypeError, "use its to(device)"),
        (lambda venv: venv.to("cuda:99"), ValueError, "there is no device cuda:99"),
    ),
]


def on_cluster(**options: Any) -> object:
    given: dict[str, Any] = {"make_venv": cartpoles(1), "num_actors": 2, "frames_per_batch": 20} | options
    with mock.patch.dict(sys.modules, {"ray": None}):
        return RayCollector(**given)


CLUSTERS = [
    *arguments_of(
        on_cluster,
        ({"straggler_timeout": 1.0, "sync": False}, ValueError, "straggler_timeout needs sync=True"),
        ({"max_in_flight": 2}, ValueError, "max_in_flight above 1 needs sync=False"),
        ({"policy_device": "cuda"}, ValueError, "num_gpus is 0: pass actors=ActorConfig(num_gpus=1)"),
        ({"create_env_kwargs": [{}, {}, {}]}, ValueError, "3 entries for 2 actors"),
        ({"info_keys": "x"}, TypeError, "info_keys are the names of entries"),
        ({"interruptor": None}, TypeError, "no arguments ['interruptor']"),
        ({"num_cpus": 2, "resources": {}}, TypeError, "pass actors=ActorConfig(num_cpus=..., resources=...)"),
        ({"make_venv": "CartPole-v1"}, TypeError, "make_venv must be a callable"),
        ({"policy": SimpleNamespace(env_num=1)}, TypeError, "make_venv comes first"),
        ({"make_venv": SimpleNamespace(step=None)}, TypeError, "must be a callable that makes a vector"),
        ({}, ImportError, 'pip install "vecenv[ray]"'),
    ),
    *arguments_of(ActorConfig, ({"on_worker_failure": "ignore"}, ValueError, 'must be "restart", "drop" or "raise"')),
]
ROWS = [*OUTPUTS, *STATES, *TREES_AND_TEXTS, *SPACES, *OPTIONS, *DEVICES, *CLUSTERS]
