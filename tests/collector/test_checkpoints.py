"""Files of `torch.save` with a `state_dict`, which `torch.load` reads with its defaults."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from collector import AsyncDataCollector, MLPPolicy, SyncDataCollector
from vecenv import DummyVectorEnv, EnvCreator, TransformedEnv, nest
from vecenv.transforms import NormalizeReward, TransformedVectorEnv, VecNorm

CARTPOLE = partial(gymnasium.make, "CartPole-v1")


def normalised() -> gymnasium.Env:
    return TransformedEnv(CARTPOLE(), [VecNorm(["observation"]), NormalizeReward()])


def collector(kind: type) -> Any:
    env = CARTPOLE()
    policy = MLPPolicy(env.observation_space, env.action_space)
    return kind([CARTPOLE] * 2, policy, frames_per_batch=20, transforms=[VecNorm(["observation"]), NormalizeReward()])


def vector_env() -> TransformedVectorEnv:
    below = TransformedVectorEnv(DummyVectorEnv([CARTPOLE] * 2), VecNorm(["observation"]))
    return TransformedVectorEnv(below, [NormalizeReward(), VecNorm(["observation"])])


def play(owner: Any) -> Any:
    if isinstance(owner, EnvCreator):
        env = owner()
        env.reset(seed=0)
        env.step(0)
    elif hasattr(owner, "next"):
        owner.next()
    else:
        owner.reset()
        owner.step(owner.action_space[0].sample() if isinstance(owner, gymnasium.Env) else [0, 1])
    return owner


def collector_of_creators() -> Any:
    creator = EnvCreator(normalised)
    return SyncDataCollector([creator, creator.make_variant()], frames_per_batch=20)


OWNERS: dict[str, Callable[[], Any]] = {
    "EnvCreator": lambda: EnvCreator(normalised),
    "VecNorm": lambda: VecNorm(["observation"]),
    "TransformedVectorEnv": vector_env,
    "SyncDataCollector": partial(collector, SyncDataCollector),
    "AsyncDataCollector": partial(collector, AsyncDataCollector),
    "SyncDataCollector of creators": collector_of_creators,
}


def arrays(state: Any) -> dict[Any, Any]:
    return {path: np.asarray(leaf) for path, leaf in nest.items(dict(state)) if path != ("traj_pool",)}


@pytest.mark.parametrize("name", OWNERS)
def test_torch_load_reads_a_state_with_its_defaults_and_the_state_is_a_copy(name: str, tmp_path: Any) -> None:
    owner, other = OWNERS[name](), OWNERS[name]()
    if name == "VecNorm":
        venv = play(TransformedVectorEnv(DummyVectorEnv([CARTPOLE] * 2), owner))
        venv.close()
        owner = venv.transform[0]
    else:
        play(owner)
    state = owner.state_dict()
    saved = {path: array.copy() for path, array in arrays(state).items()}
    torch.save(state, tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert arrays(other.state_dict()).keys() == saved.keys()
    for path, array in arrays(other.state_dict()).items():
        np.testing.assert_array_equal(array, saved[path], err_msg=str(path))
    for each in (owner, other) if name not in ("EnvCreator", "VecNorm") else ():
        play(each)
        each.shutdown() if hasattr(each, "shutdown") else each.close()
    statistics = [path for path in saved if "policy_state_dict" not in path]
    assert statistics
    assert all(np.array_equal(arrays(state)[path], saved[path]) for path in statistics), "a copy"


@pytest.mark.parametrize("name", ["EnvCreator", "TransformedVectorEnv"])
def test_a_state_of_arrays_from_an_older_file_loads(name: str) -> None:
    owner = play(OWNERS[name]())
    state = owner.state_dict()
    old = nest.map(lambda leaf: leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf, state)
    other = OWNERS[name]()
    other.load_state_dict(old)
    for path, array in arrays(other.state_dict()).items():
        np.testing.assert_array_equal(array, arrays(state)[path])
    for each in (owner, other) if name == "TransformedVectorEnv" else ():
        each.close()


@pytest.mark.parametrize("learns", [False, True])
def test_a_collector_refuses_a_state_with_other_statistics_and_changes_nothing(learns: bool) -> None:
    plain = {"create_env_fn": [CARTPOLE] * 2}
    kinds = [plain, {**plain, "transforms": VecNorm(["observation"])}]
    made, other = reversed(kinds) if learns else kinds
    with SyncDataCollector(frames_per_batch=20, **made) as one, SyncDataCollector(frames_per_batch=20, **other) as two:
        one.next()
        state = one.state_dict()
        with pytest.raises(ValueError, match=r"the state has the statistics \[.*\], and this collector has \["):
            two.load_state_dict(state)
        assert two.frames == 0
        two.load_state_dict(state, strict=False)
        assert two.frames == 20


def test_without_torch_a_state_has_arrays_and_imports_nothing() -> None:
    program = """
import sys, numpy
from vecenv import DummyVectorEnv
from vecenv.transforms import NormalizeReward, TransformedVectorEnv, VecNorm

with TransformedVectorEnv(DummyVectorEnv(["CartPole-v1"]), [VecNorm(["observation"]), NormalizeReward()]) as venv:
    state = venv.state_dict()
assert type(state["0.VecNorm"]["observation_mean"]) is type(state["1.NormalizeReward"]["mean"]) is numpy.ndarray
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
