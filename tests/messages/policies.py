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
from tests.messages.rows import NOTHING, Subject, rows_for
from tests.support.cases import counting, playing
from tests.support.collector_envs import batch_of, cartpoles, countdowns, lean, pendulums, zeros
from tests.support.countdown import Countdown, DictObs, Drives
from tests.support.seeded_envs import Told
from tests.support.texts import Acts, Echo
from vecenv import DummyVectorEnv

D = torch.distributions


def collects(policy: Any, fns: Any = None, kind: Any = SyncDataCollector, **options: Any) -> Callable[[Any], object]:
    """Return a call that collects a batch with two envs, or with the envs of `fns`."""
    fns = countdowns(3, 5) if fns is None else fns
    return lambda _: batch_of(DummyVectorEnv(fns), policy, 8 * len(fns), kind, **options)


def later(first: Any, other: Any, calls: int = 3) -> Callable[[Any], object]:
    """Return a policy that is `other` from the third call on."""
    seen: list[int] = []

    def policy(obs: Any) -> Any:
        seen.append(1)
        return (first if len(seen) < calls else other)(obs)

    return policy


def recurrent(output: Callable[[Any], Any], initial_state: Any = None) -> Callable[[Any], object]:
    """Return a call that collects with a recurrent policy and three envs."""

    def policy(obs: Any, state: Any) -> Any:
        return output(obs)

    if initial_state is not None:
        policy.initial_state = initial_state  # type: ignore[attr-defined]
    return collects(policy, countdowns(2, 3, 7))


def changes(first: Any, then: Any) -> Callable[[Any], object]:
    """Return a call that collects with a policy whose state is `first` and then `then`."""
    return recurrent(lambda obs: (zeros(obs), then), lambda k: first)


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


def drives(action: Any) -> Callable[[Any], object]:
    return collects(lambda obs: action, [Drives] * 2)


class Pairs(Echo):
    action_space = spaces.Tuple((spaces.Text(9), spaces.Discrete(2)))


class Counts(Echo):
    action_space = spaces.Discrete(3)


class AsksForInfos(torch.nn.Module):
    def forward(self, obs: Any, info: Any) -> Any:
        return obs


def repeats_an_info(obs: Any, code: Any, action_mask: Any) -> Any:
    return {"action": action_mask.argmax(1) + 2, "code": code}


OUTPUTS = rows_for(
    NOTHING,
    (lambda _: SyncDataCollector(countdowns(3), 7, frames_per_batch=8), TypeError, "a policy is a function", "got 7"),
    (collects(lambda obs: {"action": zeros(obs), 7: zeros(obs)}), TypeError, "the key 7; all keys must be strings"),
    (collects(lambda obs: np.zeros((2, 1, 1), np.int64)), ValueError, "(2, 1, 1); ", "must be (2,)"),
    (collects(lambda obs: np.zeros(2, np.float32)), TypeError, "dtype float32; ", "must be int64"),
    (collects(lambda obs: np.zeros(7, np.int64)), ValueError, "'action' of shape (7,) for 2 observations"),
    (collects(lambda obs: np.int64(0)), ValueError, "'action' of shape () for 2 observations"),
    (collects(np.copy, countdowns(3)), ValueError, "'action' of shape (1, 2); for the action space it must be (1,)"),
    (collects(lambda obs: {"value": obs}), TypeError, "without 'action'"),
    (collects(lambda obs: {"action": zeros(obs), "v": np.zeros(3)}), ValueError, "'v' of shape (3,)"),
    (
        collects(lambda obs: zeros(obs).astype(np.int64 if obs[0, 1] < 2 else np.float32)),
        TypeError,
        "float32",
        " after ",
        "int64",
    ),
    (collects(lambda obs: np.zeros((2, 3), np.float32), pendulums(2)), ValueError, "(2, 3); ", "must be (2, 1)"),
    (collects(lambda obs: np.array([["a"], ["b"]]), pendulums(2)), TypeError, "must be float32"),
    *(
        (
            collects(later(value, partial(value, rows=rows), 4), countdowns(*[9] * envs), kind),
            ValueError,
            f"'value' of shape ({rows},) for 2 observations; it must be (2, ...)",
        )
        for kind, envs in ((SyncDataCollector, 2), (AsyncDataCollector, 4))
        for rows in (1, 3)
    ),
    (
        collects(
            later(
                lambda obs: {"action": torch.zeros(len(obs)).long(), "v": obs},
                lambda obs: {"action": torch.zeros(len(obs)).long(), "v": obs.to("meta")},
            ),
            policy_device="cpu",
        ),
        ValueError,
        "returned 'v' on meta; it must be on cpu",
    ),
    (
        collects(lambda obs: torch.zeros(len(obs), dtype=torch.bfloat16)),
        TypeError,
        "returned 'action' of dtype float32; ",
        "it must be int64",
    ),
    *(
        (
            collects(tanh_normal, pendulums(2), policy_device="cpu", exploration_type=kind),
            ValueError,
            f"TransformedDistribution has no {kind.value}",
        )
        for kind in (ExplorationType.MODE, ExplorationType.MEAN)
    ),
    (
        collects(lambda a, c: zeros(a), [partial(dicts, 3)] * 2),
        TypeError,
        "parameters of the policy are incompatible ",
        "['a', 'c']",
        "['a', 'b']",
    ),
    (
        collects(lambda obs, mask: zeros(obs), info_keys=("speed",)),
        TypeError,
        "if info_keys names them, and info_keys is ('speed',)",
    ),
    (
        collects(repeats_an_info, [partial(Told, 5)] * 2, info_keys=("code", "action_mask")),
        ValueError,
        "info_keys has 'code', which a batch has already",
    ),
)
STATES = rows_for(
    NOTHING,
    (collects(unpacks), TypeError, "cannot unpack", "initial_state(k) that returns the state of k rows"),
    (recurrent(zeros), TypeError, "a dict with 'action' and 'state', ", "got ndarray"),
    (recurrent(lambda obs: {"action": zeros(obs)}), TypeError, "'action' and 'state'"),
    (
        recurrent(lambda obs: (zeros(obs), np.zeros((7, 2)))),
        ValueError,
        "the policy returned 'state' of shape (7, 2) for 3 observations",
    ),
    (
        recurrent(lambda obs: (zeros(obs), np.zeros((4, 3, 8)))),
        ValueError,
        "its first dimension must be 3: torch's recurrent layers have the rows second, so transpose(0, 1)",
    ),
    (recurrent(lambda obs: (zeros(obs), 3)), TypeError, "the policy returned 'state' as int; it must be an"),
    (
        recurrent(lambda obs: (zeros(obs), zeros(obs)), lambda k: [0] * k),
        TypeError,
        "initial_state returned 'state' as list",
    ),
    (
        recurrent(lambda obs: (zeros(obs), zeros(obs)), lambda k: np.zeros((1, 2))),
        ValueError,
        "initial_state returned 'state' of shape (1, 2) for 3 observ",
    ),
    (
        changes(np.zeros(3, np.int64), np.full(3, 0.5)),
        TypeError,
        "the policy returned 'state' as ",
        "dtype('float64')) ",
        " after ((), dtype('int64')) before",
    ),
    (
        changes(torch.zeros(3, dtype=torch.int64), torch.full((3,), 0.5)),
        TypeError,
        "torch.float32) ",
        " after ((), torch.int64) before",
    ),
    (changes(np.zeros((3, 3)), np.arange(3.0)), TypeError, "((), ", " after ((3,)"),
    (
        changes({"a": np.zeros(3)}, {"a": np.ones(3), "b": np.ones(3)}),
        TypeError,
        "'state' as {'a': ((), ",
        ", 'b': ",
        "} (shape of a row, dtype) after {'a': ",
    ),
)
TREES_AND_TEXTS = rows_for(
    NOTHING,
    (drives({"action": {"gear": np.zeros(2, int)}}), ValueError, "a dict with the keys ['gear']", "'gear', 'wheel']"),
    (drives(tree(wheel=np.zeros((2, 2)))), ValueError, "\"action['wheel']\" as ", " must be a tuple of 2"),
    (drives(tree(gear=np.zeros(3, int))), ValueError, "\"action['gear']\" of shape (3,) ", " must be (2,)"),
    (drives(tree(gear=np.zeros((2, 2), int))), ValueError, "(2, 2); for the action space it must be (2,)"),
    (drives(tree(gear=np.zeros(2))), TypeError, "\"action['gear']\" of dtype float64; ", " must be int64"),
    (drives(tree()["action"]), TypeError, "The actions of a Dict space are a dict under that key"),
    (
        collects(lambda obs: tree(), [partial(Drives, True)] * 2),
        ValueError,
        "reward of NaN in step 0 ",
        " for the action {'gear': np.int64(0)",
    ),
    (
        collects(lambda obs: {"action": (["a", "b"], [1, 1])}, [Pairs] * 2),
        TypeError,
        "return one action per env, as a list or an object array",
    ),
    (
        collects(lambda obs: {"action": {"say": ["a"], "gear": [1, 1]}}, [Acts] * 2),
        ValueError,
        "got 2 actions for 1 envs",
    ),
    (
        collects(lambda obs: ["x", "yy"], [Counts] * 2),
        TypeError,
        "'action' of dtype <U2; for the action space it must be int64",
    ),
)


def masked(space: spaces.Space[Any], mask: Any) -> tuple[Any, ...]:
    fits = "MultiDiscrete: one flat array"
    return lambda _: RandomPolicy([space])(None, masks=[mask]), ValueError, "an action mask does not fit ", fits


BOX, TEXT = spaces.Box(-1, 1, (3,)), spaces.Text(5)
SPACES = rows_for(
    NOTHING,
    *(
        (lambda _, pair=pair: MLPPolicy(*pair), TypeError, "the MLP policy")
        for pair in ((TEXT, BOX), (BOX, TEXT), (BOX, spaces.Box(-np.inf, np.inf, (2,))))
    ),
    *(
        (lambda _, given=given: RandomPolicy(given), TypeError, "need spaces of one shape and dtype; env 1 has")
        for given in (
            [BOX, spaces.Box(-1, 1, (1,))],
            [spaces.Box(-1, 1, ()), spaces.Discrete(2)],
            [spaces.MultiDiscrete([2]), spaces.MultiDiscrete([2], dtype=np.int32)],
            [Drives.action_space, spaces.Dict(gear=spaces.Discrete(3))],
        )
    ),
    (lambda _: RandomPolicy([BOX, TEXT]), TypeError, "random actions need", "env 1"),
    masked(spaces.Discrete(3), np.ones(4, np.int8)),
    masked(spaces.Discrete(3), np.array(["a"] * 3)),
    masked(spaces.MultiDiscrete([2, 3]), np.ones(6, np.int8)),
    masked(spaces.MultiDiscrete([2, 3]), (np.ones(2, np.int8),)),
    masked(spaces.MultiBinary(3), np.ones(2, np.int8)),
    masked(BOX, np.ones(2, np.int8)),
    masked(spaces.Dict({"b": spaces.Discrete(3)}), np.ones(2, np.int8)),
    masked(spaces.Tuple((spaces.Discrete(3), spaces.Discrete(3))), (np.ones(3, np.int8),)),
)


def refused(policy: Any = lean, **options: Any) -> Callable[[Any], object]:
    return lambda _: SyncDataCollector(cartpoles(1), policy, frames_per_batch=8, **options)


@contextmanager
def open_envs() -> Iterator[DummyVectorEnv]:
    with DummyVectorEnv(cartpoles(2)) as venv:
        yield venv


OPTIONS = [
    *rows_for(
        NOTHING,
        (refused(compile_policy=True), ValueError, "are for policies on tensors"),
        (refused(cudagraph_policy=True), ValueError, "are for policies on tensors"),
        *(
            (
                refused(torch.nn.Identity(), cudagraph_policy=option),
                ValueError,
                "cudagraph_policy needs the policy on a CUDA device, and it is on cpu: pass policy_device",
            )
            for option in (True, {"warmup": 1}, {})
        ),
        (
            refused(AsksForInfos(), compile_policy=True),
            ValueError,
            "name the entries that the policy needs in info_keys",
        ),
    ),
    *rows_for(
        Subject(open_envs, lambda venv: venv.reset()),
        *(
            (
                lambda venv, kind=kind, n=number: kind(venv, lean, frames_per_batch=8, policy_threads=n),
                ValueError if number == 0 else TypeError,
                f"policy_threads must be an integer of at least 1, got {number!r}",
            )
            for kind, number in (
                *((SyncDataCollector, number) for number in (0, True, 1.5, "2")),
                (AsyncDataCollector, 0),
            )
        ),
    ),
]


def around(fns: Any, *args: Any, form: Any = None, **options: Any) -> Callable[[Any], object]:
    return lambda _: TorchVectorEnv(DummyVectorEnv(fns), *(args or ["cpu"]), **options)


RAGGED = [*playing(spaces.Box(0, 1, (2,)), [np.zeros(2)]), *playing(spaces.Box(0, 1, (3,)), [np.zeros(3)])]


@contextmanager
def on_tensors() -> Iterator[TorchVectorEnv]:
    with TorchVectorEnv(DummyVectorEnv(counting(2)), "cpu") as venv:
        venv.reset()
        yield venv


DEVICES = [
    *rows_for(
        NOTHING,
        *(
            (refused(policy_device=name), ValueError, f"no device {name}: PyTorch sees ", "use 'cpu' or 'auto'")
            for name in ("cuda:99", "tpu")
        ),
        (
            lambda _: TorchVectorEnv(counting(1)[0](), "cpu"),
            TypeError,
            "got CountingEnv; for a single env, pass DummyVectorEnv([lambda: env])",
        ),
        (around(counting(2, form="object")), TypeError, "no fixed shape"),
        (around(RAGGED), TypeError, "obs of ", " all envs share"),
        (
            lambda _: TorchVectorEnv(DummyVectorEnv(counting(2, form="dict"), stack_obs=False), "cpu").reset(),
            TypeError,
            "stack_obs=True",
        ),
        *(
            (around(counting(1), "cpu", reward_dtype=dtype), TypeError, "reward_dtype must be")
            for dtype in (torch.int64, torch.bfloat16, np.float32)
        ),
        (around(counting(1), "cuda:99"), ValueError, "no device cuda:99"),
    ),
    *rows_for(
        Subject(on_tensors, lambda venv: venv.step(torch.zeros(2, dtype=torch.int64))),
        (lambda venv: TorchVectorEnv(venv, "cpu"), TypeError, "use its to(device)"),
        (lambda venv: venv.to("cuda:99"), ValueError, "no device cuda:99"),
        (lambda venv: venv.step(torch.zeros(3, dtype=torch.int64)), ValueError, "got 3 actions for 2 envs"),
    ),
]


@contextmanager
def without_ray() -> Iterator[None]:
    with mock.patch.dict(sys.modules, {"ray": None}):
        yield


def on_cluster(policy: Any = None, make_venv: Any = None, **options: Any) -> Callable[[Any], object]:
    envs = cartpoles(1) if make_venv is None else make_venv
    return lambda _: RayCollector(envs, policy, **{"num_actors": 2, "frames_per_batch": 20} | options)


CLUSTERS = rows_for(
    Subject(without_ray),
    (on_cluster(num_actors=0), ValueError, "num_actors must be an integer of at least 1"),
    (on_cluster(straggler_timeout=1.0, sync=False), ValueError, "straggler_timeout needs sync=True"),
    (on_cluster(max_in_flight=2), ValueError, "max_in_flight above 1 needs sync=False"),
    (on_cluster(max_bytes_in_flight=0), ValueError, "max_bytes_in_flight must be an integer of at least 1"),
    (on_cluster(policy_device="cuda"), ValueError, "num_gpus is 0: pass actors=ActorConfig(num_gpus=1)"),
    (on_cluster(create_env_kwargs=[{}, {}, {}]), ValueError, "3 entries for 2 actors"),
    (on_cluster(info_keys="x"), TypeError, "info_keys are the names of entries"),
    (on_cluster(interruptor=None), TypeError, "no arguments ['interruptor']"),
    (on_cluster(num_cpus=2, resources={}), TypeError, "pass actors=ActorConfig(num_cpus=..., resources=...)"),
    (on_cluster(make_venv="CartPole-v1"), TypeError, "make_venv must be a callable"),
    (on_cluster(SimpleNamespace(env_num=1)), TypeError, "make_venv comes"),
    (on_cluster(make_venv=SimpleNamespace(step=None)), TypeError, "must be a callable that makes a vector"),
    (on_cluster(), ImportError, 'pip install "vecenv[ray]"'),
    *(
        (lambda _, given=given: ActorConfig(**given), ValueError, text)
        for given, text in (
            ({"on_worker_failure": "ignore"}, 'must be "restart", "drop" or "raise"'),
            ({"rollout_timeout": 0}, "rollout_timeout must be a positive number of seconds or None"),
            ({"max_restarts": 0}, "max_restarts must be an integer of at least 1"),
        )
    ),
)
ROWS = [*OUTPUTS, *STATES, *TREES_AND_TEXTS, *SPACES, *OPTIONS, *DEVICES, *CLUSTERS]
