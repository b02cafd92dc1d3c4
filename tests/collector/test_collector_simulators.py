"""Collectors over simulators that step n envs in one call, and return columns."""

from __future__ import annotations

import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.vector import SyncVectorEnv

from collector import Dataset, MultiStep, RecordEpisodes, SyncDataCollector
from tests.support.simulators import Alone, Simulator, count_calls
from vecenv import DummyVectorEnv, from_gymnasium, nest
from vecenv.transforms import CatFrames, RewardSum

N = 4
FIELDS = ("obs", "action", "reward", "terminated", "truncated", "traj_ids", "step_count", "mask")


def simulator(library: str = "numpy", n: int = N, final: str = "masked", more: bool = False, **options: Any) -> Any:
    simulated = Simulator(pytest.importorskip(library), n, final=final, more=more)
    return from_gymnasium(simulated, has_final_obs=final != "lost", **options)


def alone(more: bool = False) -> DummyVectorEnv:
    return DummyVectorEnv([partial(Alone, i, more) for i in range(N)])


def policy(obs: np.ndarray) -> np.ndarray:
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


@pytest.mark.guarantee("G10.4")
def test_a_lost_last_observation_is_marked_and_never_from_the_next_episode() -> None:
    for ours, theirs in zip(batches(simulator(final="lost")), batches(alone()), strict=True):
        assert_same_steps(ours, theirs)
        ended = theirs.terminated | theirs.truncated
        assert ended.any()
        np.testing.assert_array_equal(ours.extras["no_final_obs"], ended)
        np.testing.assert_array_equal(ours.next.obs[~ended], theirs.next.obs[~ended])
        np.testing.assert_array_equal(ours.next.obs[ended], theirs.obs[ended])
        assert "no_final_obs" not in theirs.extras
        two, whole = MultiStep(2, 0.5)(ours), MultiStep(2, 0.5)(theirs)
        np.testing.assert_array_equal(two.extras["no_final_obs"], whole.terminated | whole.truncated)


@pytest.mark.parametrize("final", ["masked", "whole", "lost"])
@pytest.mark.parametrize("reads", ["info_keys", "policy", "hook"])
def test_infos_of_columns_are_those_of_the_same_envs_one_by_one(reads: str, final: str) -> None:
    """`lap` is missing in half of the infos, `size` is one value for all envs, and `name` is a list."""
    keys = ("speed", "goal", "episode.l", "lap", "size", "name", "nowhere")

    def by_speed(obs: np.ndarray, speed: Any, lap: Any) -> Any:
        return {"action": policy(obs), "speed_before": speed, "lap_before": lap}

    def by_info(obs: np.ndarray, info: Any) -> np.ndarray:
        known = [[each["speed"], "final_obs" in each or "final_info" in each] for each in info]
        return np.array(known, np.float32) / 100

    def infos_of(step: Any) -> dict[str, Any]:
        return {"old": [each["goal"] for each in step.info], "id": [each["env_id"] for each in step.info]}

    def collected(venv: Any) -> Any:
        options = {"policy": by_info if reads == "hook" else by_speed if reads == "policy" else policy}
        with venv, SyncDataCollector(venv, frames_per_batch=8, info_keys=keys, **options) as collector:
            hook = {"on_step": infos_of} if reads == "hook" else {}
            return collector.collect(n_step=20 * N, **hook).batch

    with pytest.warns(RuntimeWarning, match="no info has had 'nowhere'"):
        ours = collected(simulator(final=final, more=True))
    with pytest.warns(RuntimeWarning, match="no info has had 'nowhere'"):
        theirs = collected(alone(more=True))
    assert_same_steps(ours, theirs)
    ended = theirs.terminated | theirs.truncated
    lost = {"no_final_obs": ended} if final == "lost" else {}
    assert ours.extras.keys() == theirs.extras.keys() | lost.keys()
    for name, column in (theirs.extras | lost).items():
        found = ours.extras[name]
        assert found.dtype == column.dtype, name
        np.testing.assert_array_equal(found[~ended], column[~ended], err_msg=name)
        if final != "lost":
            np.testing.assert_array_equal(found, column, err_msg=name)


@pytest.mark.usefixtures("no_fsync")
@pytest.mark.parametrize("final", ["masked", "lost", "recorded"])
def test_a_round_of_a_simulator_does_nothing_per_env(final: str, tmp_path: Path) -> None:
    def by_speed(obs: np.ndarray, speed: Any) -> np.ndarray:
        return np.zeros((len(obs), 2), np.float32)

    counts = []
    for n in (4, 8, 64):  # the first one also imports modules
        venv = from_gymnasium(EndTogether(n, "lost" if final == "lost" else "masked"), has_final_obs=final != "lost")
        if final == "recorded":
            venv = RecordEpisodes(venv, tmp_path / str(n), info_keys=("speed", "goal"))
        collector = SyncDataCollector(venv, by_speed, frames_per_batch=2 * n, info_keys=("speed", "goal"))
        collector.next(), collector.next()
        counts.append((count_calls(collector.next), count_calls(collector.shutdown)))
    assert counts[1] == counts[2]


class EndTogether(Simulator):
    """Simulator in which all episodes end in each step."""

    def __init__(self, n: int, final: str) -> None:
        super().__init__(np, n, final="whole" if final == "masked" else final)
        self.ends = 0

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, infos = super().step(actions)
        self.ends += 1
        if self.final == "whole":
            infos |= {"final_obs": self._obs("last"), "final_info": self._infos("last")}
        return obs, reward, np.ones_like(terminated), np.zeros_like(truncated), infos


@pytest.mark.parametrize("final", ["masked", "old", "lost"])
@pytest.mark.parametrize("reads", ["nothing", "policy", "info_keys", "hook"])
@pytest.mark.parametrize("library", ["torch", pytest.param("jax.numpy", marks=pytest.mark.full)])
def test_a_collector_takes_tensors(library: str, reads: str, final: str) -> None:
    def by_speed(obs: Any, speed: Any) -> Any:
        return policy(np.asarray(obs)) + np.asarray(speed)[:, None] / 1000

    def next_obs(step: Any) -> dict[str, Any]:
        return {"after": step.next_obs, "before": step.obs, "steps": [float(info["speed"]) for info in step.info]}

    def collected(tensors: bool) -> Any:
        keys = () if reads == "nothing" else ("speed",)
        venv = simulator(library, final=final, tensors=tensors)
        chosen = by_speed if reads == "policy" else policy
        with venv, SyncDataCollector(venv, chosen, frames_per_batch=8, info_keys=keys) as collector:
            hook = {"on_step": next_obs} if reads == "hook" else {}
            return [collector.next(), collector.collect(n_step=20 * N, **hook).batch]

    for ours, theirs in zip(collected(True), collected(False), strict=True):
        assert_same_steps(ours, theirs)
        np.testing.assert_array_equal(ours.next.obs, theirs.next.obs)
        assert ours.extras.keys() == theirs.extras.keys()
        for name, column in theirs.extras.items():
            np.testing.assert_array_equal(ours.extras[name], column, err_msg=name)


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


INFO_KEYS = ("speed", "goal", "episode.l", "lap", "size", "name")


def assert_same_episodes(ours: Path, theirs: Path) -> None:
    one, other = Dataset(ours), Dataset(theirs)
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
@pytest.mark.parametrize("library", ["numpy", "torch", "tensors", pytest.param("jax.numpy", marks=pytest.mark.full)])
def test_recorded_episodes_are_those_of_the_same_envs_one_by_one(library: str, final: str, tmp_path: Path) -> None:
    """The log is full after a few steps, so that most episodes span several logs."""
    tensors = library in ("tensors", "jax.numpy")
    simulated = simulator("torch" if library == "tensors" else library, final=final, more=True, tensors=tensors)
    keys = INFO_KEYS if final == "masked" else INFO_KEYS[-1:]  # "old" has no last infos
    for name, venv in (("ours", simulated), ("theirs", alone(more=True))):
        recorded = RecordEpisodes(venv, tmp_path / name, info_keys=keys, shard_bytes=2**17)
        collected = batches(recorded)
        assert isinstance(collected[0].obs, np.ndarray)
    assert_same_episodes(tmp_path / "ours", tmp_path / "theirs")


@pytest.mark.usefixtures("no_fsync")
@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
def test_recorded_episodes_of_a_simulator_that_does_not_reset_in_the_step(mode: str, tmp_path: Path) -> None:
    def play(name: str, venv: Any) -> None:
        over = np.zeros(N, np.bool_)
        with RecordEpisodes(venv, tmp_path / name, info_keys=("speed", "lap"), shard_bytes=2**16) as recorded:
            recorded.reset()
            for t in range(40):
                actions = np.full((N, 2), t / 100, np.float32)
                if mode == "NextStep":
                    _, _, terminated, truncated, info = recorded.step(actions, reset=over)
                else:
                    if over.any():
                        recorded.reset(over.nonzero()[0])
                    _, _, terminated, truncated, info = recorded.step(actions)
                over = terminated | truncated
                if t % 7 == 0:
                    assert [row["env_id"] for row in info] == [*range(N)]

    envs = SyncVectorEnv([partial(Alone, i, True) for i in range(N)], autoreset_mode=mode)
    play("ours", from_gymnasium(envs))
    play("theirs", alone(more=True))
    assert_same_episodes(tmp_path / "ours", tmp_path / "theirs")


@pytest.mark.usefixtures("no_fsync")
def test_a_recorded_simulator_gets_the_tensors_of_the_caller(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    simulated = Simulator(torch)
    with RecordEpisodes(from_gymnasium(simulated, tensors=True), tmp_path) as venv:
        obs, _ = venv.reset()
        actions = torch.full((N, 2), 0.5)
        obs, rewards, *_ = venv.step(actions, autoreset=True)
        assert simulated.actions.data_ptr() == actions.data_ptr()
        assert [type(each) for each in (obs, rewards)] == [torch.Tensor, torch.Tensor]
        for _ in range(8):
            venv.step(np.full((N, 2), 0.5), autoreset=True)
        assert type(simulated.actions) is torch.Tensor
    np.testing.assert_array_equal(Dataset(tmp_path)[0].action, np.full((2, 2), 0.5, np.float32))


class Wide(Simulator):
    """Simulator with 300 numbers per env."""

    def __init__(self, n: int) -> None:
        super().__init__(np, n)
        self.single_observation_space = Box(-100, 100, (300,), np.float32)

    def _obs(self, name: str) -> Any:
        return np.repeat(super()._obs(name), 100, 1)


@pytest.mark.usefixtures("no_fsync")
def test_recording_keeps_a_bounded_part_of_the_steps(tmp_path: Path) -> None:
    """Episodes of 2 to 65 steps, so that each log has unfinished ones."""
    n, actions = 64, np.zeros((64, 2), np.float32)
    with RecordEpisodes(from_gymnasium(Wide(n)), tmp_path, shard_bytes=2**20) as venv:
        venv.reset()
        tracemalloc.start()
        try:
            for _ in range(600):
                venv.step(actions, autoreset=True)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    stored = sum(each.nbytes for each in Dataset(tmp_path))
    assert stored > 40 * 2**20
    assert peak < 10 * 2**20
