"""`recycle_after` replaces workers between episodes. The rows are those of envs in one process."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import psutil
import pytest
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, RecordEpisodeStatistics, TimeLimit

from tests.fuzz.engine import always, await_new_worker
from tests.fuzz.leak_soak import soak
from tests.support.backends import ON_RAY, full
from tests.support.leaky import Leaky
from tests.support.ledger import kill
from tests.support.rounds import N, by_autoreset, by_mask, by_reset, by_seeded_autoreset, plain, rows, undisturbed
from vecenv import (
    DummyVectorEnv,
    EnvCreator,
    ShmemVectorEnv,
    SubprocVectorEnv,
    TransformedEnv,
    VecNorm,
    WorkerDiedError,
)

WITHIN = 60.0
CLASSES = [ShmemVectorEnv, *full([SubprocVectorEnv]), ON_RAY]


def until(venv: Any, produced: Iterator[Any], recycled: int) -> list[Any]:
    """Return the rows of all rounds until so many workers were replaced."""
    found, limit = [], time.monotonic() + WITHIN
    while venv.stats()["recycled"] < recycled:
        assert time.monotonic() < limit, f"{venv.stats()} after {len(found)} rounds"
        found.append(next(produced))
    return found + [next(produced) for _ in range(30)]


@pytest.mark.guarantee("G8.13")
@pytest.mark.parametrize("advance", [by_autoreset, by_reset, *full([by_seeded_autoreset, by_mask])])
@pytest.mark.parametrize("kind", CLASSES)
def test_episodes_are_those_of_envs_that_are_never_replaced(kind: Any, advance: Any) -> None:
    with kind([Leaky] * N, num_workers=2, recycle_after=1) as venv:
        first = set(venv.get_env_attr("pid"))
        venv.set_env_attr("level", 5, [1])
        got = until(venv, rows(venv, advance), 2)
        assert not first.intersection(venv.get_env_attr("pid"))
        assert venv.alive() == [True] * N
        stats = venv.stats()
        assert stats["recycled_because"] == {"episodes": stats["recycled"]}
        assert stats["restarts"] == 0
    assert got == undisturbed(advance, len(got), level=5)


@pytest.mark.full
def test_a_worker_that_is_too_large_is_replaced_and_its_memory_is_free() -> None:
    with ShmemVectorEnv([partial(Leaky, 2**20)] * 2, num_workers=1, recycle_after="150 MiB") as venv:
        largest, produced, limit = 0, rows(venv, by_autoreset), time.monotonic() + WITHIN
        while venv.stats()["recycled"] < 2:
            assert time.monotonic() < limit
            next(produced)
            largest = max(largest, venv.engine.backend.workers[0].memory)
        stats = venv.stats()
    assert stats["recycled_because"] == {"memory": stats["recycled"]}
    assert 150 * 2**20 < largest < 3 * 2**30  # a new worker may start slowly


@pytest.mark.slow
def test_memory_stays_within_the_bound_and_all_rows_are_those_without_a_leak() -> None:
    found = soak(60.0)
    assert found["recycled"] >= 4
    assert found["leaked_mb"] > 3 * found["largest_mb"] / 2


def test_a_function_of_the_worker_decides_and_its_exception_changes_nothing() -> None:
    seen, problems = [], [ArithmeticError("no idea")]

    def is_due(worker: Any) -> bool:
        seen.append(worker)
        if worker.episodes >= 2 and problems:
            raise problems.pop()
        return worker.episodes >= 2

    with ShmemVectorEnv([Leaky] * 2, num_workers=1, recycle_after=is_due) as venv:
        produced = rows(venv, by_autoreset)
        with pytest.raises(ArithmeticError, match="no idea"):
            until(venv, produced, 1)
        done = venv.stats()["rounds"]
        venv.step([0, 0], autoreset=True)
        assert venv.stats()["rounds"] == done + 1
        until(venv, rows(venv, by_autoreset), 1)
        assert venv.stats()["recycled_because"] == {"function": venv.stats()["recycled"]}
    assert list(seen[0].ids) == [0, 1]
    assert seen[0].pid is not None


@pytest.mark.parametrize("advance", [by_autoreset, *full([by_reset])])
def test_without_memory_for_another_worker_the_old_one_ends_first(advance: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("vecenv.backends.recycling.available_memory", lambda: 0)
    with ShmemVectorEnv([Leaky] * N, num_workers=N, recycle_after=1) as venv:
        first = set(venv.get_env_attr("pid"))
        got = until(venv, rows(venv, advance), 2)
        assert len(first.intersection(venv.get_env_attr("pid"))) <= N - 2
    assert got == undisturbed(advance, len(got))


def test_without_memory_a_worker_of_several_envs_is_replaced_when_all_are_reset(monkeypatch: Any) -> None:
    monkeypatch.setattr("vecenv.backends.recycling.available_memory", lambda: 0)
    with ShmemVectorEnv([Leaky] * N, num_workers=2, recycle_after=1) as venv, DummyVectorEnv([Leaky] * N) as other:
        assert plain(venv.reset(seed=3)) == plain(other.reset(seed=3))
        limit = time.monotonic() + WITHIN
        while venv.stats()["recycled"] < 2:
            assert time.monotonic() < limit
            assert plain(venv.reset()) == plain(other.reset())
            assert plain(venv.step([0] * N)) == plain(other.step([0] * N))


def test_a_worker_that_waits_for_a_reset_of_all_its_envs_is_replaced_earlier_if_memory_is_free_again(
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr("vecenv.backends.recycling.RETRY", 0.0)
    answers = iter([0])
    monkeypatch.setattr("vecenv.backends.recycling.available_memory", lambda: next(answers, None))
    with ShmemVectorEnv([Leaky] * N, num_workers=2, recycle_after=1) as venv:
        got = until(venv, rows(venv, by_autoreset), 1)
    assert next(answers, None) is None, "memory was not asked for"
    assert got == undisturbed(by_autoreset, len(got))


def test_a_new_worker_that_cannot_start_is_no_loss(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("vecenv.backends.recycling.RETRY", 0.0)
    stop = tmp_path / "stop"
    env_fns = [partial(Leaky, 0, str(stop))] * N
    with ShmemVectorEnv(env_fns, num_workers=2, recycle_after=1) as venv:
        stop.touch()
        produced = rows(venv, by_autoreset)
        got, limit = [], time.monotonic() + WITHIN
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            while not shown:
                assert time.monotonic() < limit
                got.append(next(produced))
        text = str(shown[0].message)
        assert "a new worker for envs [0, 1] could not start, so the old worker continues" in text
        assert "no second env" in text
        assert venv.stats()["recycled"] == 0
        stop.unlink()
        got += until(venv, produced, 1)
    assert got == undisturbed(by_autoreset, len(got))


@pytest.mark.guarantee("G8.5", "G8.11")
@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(("victim", "on_error"), [(0, "raise"), (1, "restart")])
def test_the_death_of_either_worker_loses_only_its_own_envs(kind: Any, victim: int, on_error: str) -> None:
    with kind([Leaky] * N, num_workers=1, recycle_after=1, on_error=on_error) as venv:
        limit = time.monotonic() + WITHIN
        while len(set(pids := venv.get_env_attr("pid"))) == 1:  # env 0 moves alone
            assert time.monotonic() < limit, venv.stats()
            venv.reset([0] if venv.stats()["resets"] > 2 * N else None)
        assert pids[1:] == pids[1:2] * (N - 1)
        kill(pids[victim])
        lost = [0] if victim == 0 else [1, 2, 3, 4]
        if on_error == "raise":
            with pytest.raises(WorkerDiedError) as caught:
                venv.step([0] * N)
            assert list(caught.value.env_ids) == lost
            assert venv.failed_id == lost
            venv.reset(lost)
        else:
            info = venv.step([0] * N, autoreset=True)[4]
            assert [i for i in range(N) if info[i].get("final_info", {}).get("restarted")] == lost
        assert venv.get_env_attr("pid", [0] if victim else [1]) != [pids[victim]]
        for _ in range(30):
            venv.step([0] * N, autoreset=True)
        assert venv.alive() == [True] * N


def with_transform() -> Any:
    return TransformedEnv(Leaky(), VecNorm(["observation"]))


def with_wrappers() -> Any:
    return NormalizeReward(NormalizeObservation(RecordEpisodeStatistics(TimeLimit(Leaky(), 5))))


def pong() -> Any:
    return gymnasium.make("ale_py:ALE/Pong-v5", obs_type="ram", max_episode_steps=4)


@pytest.mark.parametrize("make_env", [with_transform, *full([with_wrappers, pong])])
def test_statistics_and_generators_move_with_the_env(make_env: Any) -> None:
    def rounds(venv: Any, enough: Callable[[int], bool]) -> list[Any]:
        found, limit = [plain(venv.reset(seed=3))], time.monotonic() + WITHIN
        while not enough(len(found)):
            assert time.monotonic() < limit, venv.stats()
            batch = venv.step([len(found) % 6] * N, autoreset=True)
            for info in batch[4]:
                info.get("final_info", {}).get("episode", {}).pop("t", None)  # seconds
            found.append(plain(batch))
        return found

    with ShmemVectorEnv([make_env] * N, num_workers=2, recycle_after=1) as venv:
        got = rounds(venv, lambda count: venv.stats()["recycled"] >= 2)
    with DummyVectorEnv([make_env] * N) as venv:
        assert got == rounds(venv, lambda count: count == len(got))


class ClosesLater(Leaky):
    """Env whose `close` waits until the file exists."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def close(self) -> None:
        while not self.file.exists():
            time.sleep(0.01)


@pytest.mark.parametrize("kind", full([ShmemVectorEnv, SubprocVectorEnv]))
def test_a_worker_that_has_closed_its_envs_before_close_is_no_problem(kind: Any, tmp_path: Path) -> None:
    file = tmp_path / "close"
    with kind([partial(ClosesLater, file)] * N, num_workers=2, recycle_after=1) as venv:
        produced, limit = rows(venv, by_autoreset), time.monotonic() + WITHIN
        workers = [psutil.Process(pid) for pid in set(venv.get_env_attr("pid"))]
        while venv.stats()["recycled"] == 0:
            assert time.monotonic() < limit, venv.stats()
            next(produced)
        file.touch()
        while not psutil.wait_procs(workers, timeout=0.05)[0]:
            assert time.monotonic() < limit


def counted() -> Any:
    return TransformedEnv(Leaky(), VecNorm(["observation"], decay=1.0))


def test_shared_state_outlives_the_workers() -> None:
    creator = EnvCreator(counted)
    with ShmemVectorEnv([creator] * N, num_workers=2, recycle_after=1) as venv:
        got = until(venv, rows(venv, by_autoreset), 2)
        firsts = sum("final_obs" in info for batch in got[1:] for info in batch[4])
        (count,) = [float(value) for key, value in creator.state_dict().items() if key.endswith("_count")]
    assert count == N * len(got) + firsts


class RaisesOnce(Leaky):
    """Env with episodes of two steps, whose reset raises if the file exists."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.file.exists():
            self.file.unlink()
            raise LookupError("boom")
        obs, info = super().reset(seed=seed)
        self.length = 2
        return obs, info


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("on_error", ["raise", "restart"])
def test_a_failed_reset_in_the_new_worker_keeps_the_row_of_the_last_step(
    kind: Any, on_error: str, tmp_path: Path
) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    with kind(
        [partial(RaisesOnce, file) for file in files], num_workers=1, recycle_after=always, on_error=on_error
    ) as venv:
        venv.reset(seed=0)
        venv.step([0, 0], autoreset=True)
        await_new_worker(venv)
        old = venv.get_env_attr("pid")
        files[1].touch()
        if on_error == "raise":
            with pytest.raises(LookupError, match="boom") as caught:
                venv.step([0, 0], autoreset=True)
            partial_rows = caught.value.partial
            assert partial_rows.env_id.tolist() == [0, 1]
            assert partial_rows.terminated.tolist() == [True, True]
            assert partial_rows.obs[:, 0].tolist() == [0.0, 2.0]
            assert "final_obs" in partial_rows.info[0]
            venv.reset([1])
        else:
            obs, _, terminated, _, info = venv.step([0, 0], autoreset=True)
            assert obs[:, 0].tolist() == [0.0, 0.0]
            assert terminated.all()
            assert [one["final_obs"][0] for one in info] == [2.0, 2.0]
            assert venv.stats()["absorbed"] == 1
        assert not set(old).intersection(venv.get_env_attr("pid"))
        assert venv.step([0, 0])[0][:, 0].tolist() == [1.0, 1.0]
