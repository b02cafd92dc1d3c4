"""Files of `torch.save` with a `state_dict`, which `torch.load` reads with its defaults."""

from __future__ import annotations

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


def learning() -> list[Any]:
    return [VecNorm(["observation"]), NormalizeReward()]


def creator() -> Any:
    return EnvCreator(lambda: TransformedEnv(CARTPOLE(), learning()))


def vector_env() -> Any:
    below = TransformedVectorEnv(DummyVectorEnv([CARTPOLE] * 2), learning()[:1])
    return TransformedVectorEnv(below, learning()[::-1])


def collector(kind: type) -> Any:
    env = CARTPOLE()
    policy = MLPPolicy(env.observation_space, env.action_space)
    return kind([CARTPOLE] * 2, policy, frames_per_batch=20, transforms=learning(), backend="dummy")


def collector_of_creators() -> Any:
    first = creator()
    return SyncDataCollector([first, first.make_variant()], frames_per_batch=20)


OWNERS: dict[str, Callable[[], Any]] = {
    "EnvCreator": creator,
    "TransformedVectorEnv": vector_env,
    "SyncDataCollector": partial(collector, SyncDataCollector),
    "AsyncDataCollector": partial(collector, AsyncDataCollector),
    "SyncDataCollector of creators": collector_of_creators,
}


def play(owner: Any) -> None:
    if hasattr(owner, "next"):
        owner.next()
        return
    envs = owner() if isinstance(owner, EnvCreator) else owner
    envs.reset()
    envs.step(0 if isinstance(owner, EnvCreator) else [0, 1])


def close(owner: Any) -> None:
    if not isinstance(owner, EnvCreator):
        owner.shutdown() if hasattr(owner, "shutdown") else owner.close()


def arrays(state: Any) -> dict[Any, Any]:
    """Return copies of the arrays of a state by path."""
    return {path: np.asarray(leaf).copy() for path, leaf in nest.items(dict(state)) if path != ("traj_pool",)}


@pytest.mark.parametrize("name", OWNERS)
def test_torch_load_reads_a_state_with_its_defaults_and_the_state_is_a_copy(name: str, tmp_path: Any) -> None:
    """Statistics that are arrays, as in files of earlier versions, load too."""
    owner, other, older = (OWNERS[name]() for _ in range(3))
    play(owner)
    state = owner.state_dict()
    saved = arrays(state)
    torch.save(state, tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt"))
    weights = {key: state[key] for key in ("policy_state_dict",) if key in state}
    as_arrays = nest.map(lambda leaf: leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf, state)
    older.load_state_dict({**as_arrays, **weights})
    for loaded in (other, older):
        found = arrays(loaded.state_dict())
        assert found.keys() == saved.keys()
        for path, array in found.items():
            np.testing.assert_array_equal(array, saved[path], err_msg=str(path))
    for each in (owner, other, older):
        play(each)
        close(each)
    statistics = [path for path in saved if "policy_state_dict" not in path]
    assert statistics
    assert all(np.array_equal(arrays(state)[path], saved[path]) for path in statistics), "a copy"


@pytest.mark.parametrize("learns", [False, True])
def test_a_collector_refuses_a_state_with_other_statistics_and_changes_nothing(learns: bool) -> None:
    made = [{}, {"transforms": VecNorm(["observation"])}]
    one, other = (SyncDataCollector([CARTPOLE] * 2, frames_per_batch=20, **options) for options in made)
    source, target = (other, one) if learns else (one, other)
    with source, target:
        source.next()
        state = source.state_dict()
        with pytest.raises(ValueError, match=r"the state has the statistics \[.*\], and this collector has \["):
            target.load_state_dict(state)
        assert target.frames == 0
        target.load_state_dict(state, strict=False)
        assert target.frames == 20


def test_without_torch_a_state_has_arrays_and_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    with vector_env() as venv:
        state = venv.state_dict()
    assert {type(leaf) for leaf in nest.leaves(state)} == {np.ndarray, float, int}
    assert "torch" not in sys.modules
