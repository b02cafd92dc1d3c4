"""Collectors over simulators that step n envs in one call, and return columns."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector import Dataset, MultiStep, RecordEpisodes, SyncDataCollector
from tests.support.backends import FULL
from tests.support.simulators import Alone, Simulator
from vecenv import DummyVectorEnv, from_gymnasium, nest
from vecenv.transforms import CatFrames, RewardSum

N = 4
FIELDS = ("obs", "action", "reward", "terminated", "truncated", "traj_ids", "step_count", "mask")
INFO_KEYS = ("speed", "goal", "episode.l", "lap", "size", "name")
"""`lap` is missing in half of the infos, `size` is one value for all envs, and `name` is a list."""
JAX = pytest.param("jax.numpy", marks=FULL)


def simulator(library: str = "numpy", final: str = "masked", more: bool = False, **options: Any) -> Any:
    simulated = Simulator(pytest.importorskip(library), N, final=final, more=more)
    return from_gymnasium(simulated, has_final_obs=final != "lost", **options)


def alone(more: bool = False) -> DummyVectorEnv:
    return DummyVectorEnv([partial(Alone, i, more) for i in range(N)])


def policy(obs: Any) -> np.ndarray:
    obs = np.asarray(obs)
    return np.stack([obs[:, 1], obs[:, 2]], 1) / 100


def batches(venv: Any, policy: Any = policy, **options: Any) -> list[Any]:
    with venv, SyncDataCollector(venv, policy, frames_per_batch=5 * N, total_frames=20 * N, **options) as collector:
        return list(collector)


def assert_same_steps(ours: Any, theirs: Any) -> None:
    for name in FIELDS:
        one, other = nest.as_array(getattr(ours, name)), nest.as_array(getattr(theirs, name))
        np.testing.assert_array_equal(one, other, err_msg=name)
        assert one.dtype == other.dtype, name
    np.testing.assert_array_equal(ours.episode_returns, theirs.episode_returns)


def by_speed(obs: Any, speed: Any, lap: Any) -> Any:
    return {"action": policy(obs), "speed_before": speed, "lap_before": lap}


def by_info(obs: Any, info: np.ndarray) -> np.ndarray:
    known = [[each["speed"], "final_obs" in each or "final_info" in each] for each in info]
    return np.array(known, np.float32) / 100


def steps_of(step: Any) -> dict[str, Any]:
    return {"old": [each["goal"] for each in step.info], "before": step.obs, "after": step.next_obs}


READS: dict[str, tuple[Any, dict[str, Any]]] = {
    "info_keys": (policy, {}),
    "policy": (by_speed, {}),
    "hook": (by_info, {"on_step": steps_of}),
}


@pytest.mark.guarantee("G10.4")
@pytest.mark.filterwarnings("ignore:info_keys. no info has had 'nowhere':RuntimeWarning")
@pytest.mark.parametrize("final", ["masked", "whole", "old", "lost"])
@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("library", ["numpy", "torch", JAX])
def test_steps_and_infos_of_columns_are_those_of_the_same_envs_one_by_one(library: str, reads: str, final: str) -> None:
    """Also with tensors, which the collector turns into arrays."""
    chosen, hook = READS[reads]

    def collected(venv: Any) -> Any:
        options: Any = {"frames_per_batch": 8, "info_keys": (*INFO_KEYS, "nowhere")}
        with venv, SyncDataCollector(venv, chosen, **options) as collector:
            return [collector.collect(n_step=n * N, **hook).batch for n in (8, 20)]

    columns = simulator(library, final, more=True, tensors=library != "numpy")
    for ours, theirs in zip(collected(columns), collected(alone(more=True)), strict=True):
        assert_same_steps(ours, theirs)
        ended = theirs.terminated | theirs.truncated
        lost = {"no_final_obs": ended} if final == "lost" else {}
        assert ours.extras.keys() == theirs.extras.keys() | lost.keys()
        kept = ~ended if final in ("old", "lost") else theirs.mask  # without the last infos
        for name, column in (theirs.extras | lost).items():
            found = ours.extras[name]
            assert found.dtype == column.dtype, name
            np.testing.assert_array_equal(found[kept], column[kept], err_msg=name)
        np.testing.assert_array_equal(ours.next.obs[kept], theirs.next.obs[kept])
        if final == "lost":
            assert ended.any()
            np.testing.assert_array_equal(ours.extras["no_final_obs"], ended)
            np.testing.assert_array_equal(ours.next.obs[ended], theirs.obs[ended], "never the next episode's")
            two, whole = MultiStep(2, 0.5)(ours), MultiStep(2, 0.5)(theirs)
            np.testing.assert_array_equal(two.extras["no_final_obs"], whole.terminated | whole.truncated)


@pytest.mark.parametrize("final", ["masked", "lost"])
def test_transforms_begin_with_the_next_episode(final: str) -> None:
    transforms = [RewardSum(), CatFrames(2, -1)]
    ours, theirs = (
        batches(venv, lambda obs: policy(obs["observation"][:, :3]), transforms=transforms)
        for venv in (simulator(final=final), alone())
    )
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one.reward, other.reward)
        kept = ~(other.terminated | other.truncated) if final == "lost" else other.mask
        for key, rows in other.obs.items():
            np.testing.assert_array_equal(one.obs[key], rows, err_msg=key)
            np.testing.assert_array_equal(one.next.obs[key][kept], other.next.obs[key][kept], err_msg=key)


# Recordings.


def assert_same_episodes(one: Dataset, other: Dataset) -> None:
    assert len(one) == len(other) > 0
    assert one.verify() == []
    for mine, known in zip(one, other, strict=True):
        assert (mine.env_id, [*mine.info]) == (known.env_id, [*known.info])
        for name in ("obs", "action", "reward", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(known, name), err_msg=name)
        for key, rows in known.info.items():
            assert mine.info[key].dtype == rows.dtype, key
            np.testing.assert_array_equal(mine.info[key], rows, err_msg=key)


@pytest.mark.usefixtures("no_fsync")
@pytest.mark.parametrize("final", ["masked", "old"])
@pytest.mark.parametrize("library", ["numpy", "torch", "tensors", JAX])
def test_recorded_episodes_are_those_of_the_same_envs_one_by_one(library: str, final: str, tmp_path: Path) -> None:
    """The log is full after a few steps, so that most episodes span several logs."""
    tensors = library in ("tensors", "jax.numpy")
    simulated = simulator("torch" if library == "tensors" else library, final, more=True, tensors=tensors)
    keys = INFO_KEYS if final == "masked" else INFO_KEYS[-1:]  # "old" has no last infos
    for name, venv in (("ours", simulated), ("theirs", alone(more=True))):
        recorded = RecordEpisodes(venv, tmp_path / name, info_keys=keys, shard_bytes=2**17)
        assert isinstance(batches(recorded)[0].obs, np.ndarray)
    assert_same_episodes(Dataset(tmp_path / "ours"), Dataset(tmp_path / "theirs"))


@pytest.mark.usefixtures("no_fsync")
def test_a_recorded_simulator_gets_the_tensors_of_the_caller(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    simulated, actions = Simulator(torch), torch.full((N, 2), 0.5)
    with RecordEpisodes(from_gymnasium(simulated, tensors=True), tmp_path) as venv:
        venv.reset()
        obs, rewards, *_ = venv.step(actions, autoreset=True)
        assert simulated.actions.data_ptr() == actions.data_ptr()
        assert type(obs) is type(rewards) is torch.Tensor
        for _ in range(8):
            venv.step(np.full((N, 2), 0.5), autoreset=True)
        assert type(simulated.actions) is torch.Tensor
    np.testing.assert_array_equal(Dataset(tmp_path)[0].action, np.full((2, 2), 0.5, np.float32))
