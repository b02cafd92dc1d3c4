"""`recycle_after` replaces workers between episodes. The rows are those of envs in one process."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import psutil
import pytest
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, TimeLimit

from tests.support.backends import FULL, ON_RAY, RAY, full
from tests.support.leaky import Leaky, always, await_new_worker
from tests.support.ledger import appears, gone, kill
from tests.support.rounds import N, by_autoreset, by_mask, by_reset, rows, undisturbed
from tests.support.shared_envs import counted
from vecenv import (
    EnvCreator,
    RayVectorEnv,
    ShmemVectorEnv,
    SubprocVectorEnv,
    TransformedEnv,
    VecNorm,
    WorkerDiedError,
)

WITHIN = 60.0
CLASSES = [ShmemVectorEnv, *full([SubprocVectorEnv]), ON_RAY]


def until(venv: Any, produced: Iterator[Any], recycled: int, rule: Any = None) -> list[Any]:
    """Return the rows of all rounds until so many workers were replaced. If they are `always` due, wait for them,
    because rounds would take the CPU from workers that start.
    """
    found, limit = [], time.monotonic() + WITHIN
    while venv.stats()["recycled"] < recycled:
        assert time.monotonic() < limit, f"{venv.stats()} after {len(found)} rounds"
        if rule is always:
            await_new_worker(venv)
        found.append(next(produced))
    return found + [next(produced) for _ in range(30)]


def with_transform() -> Any:
    return TransformedEnv(Leaky(), VecNorm(["observation"], decay=1.0))


def with_wrappers() -> Any:
    return NormalizeReward(NormalizeObservation(TimeLimit(Leaky(), 5)))


def pong() -> Any:
    return gymnasium.make("ale_py:ALE/Pong-v5", obs_type="ram", max_episode_steps=4, full_action_space=True)


@pytest.mark.guarantee("G8.13")
@pytest.mark.parametrize(
    ("kind", "make_env", "advance", "rule"),
    [
        (ShmemVectorEnv, Leaky, by_autoreset, 1),
        (ShmemVectorEnv, with_wrappers, by_reset, always),
        pytest.param(ShmemVectorEnv, with_transform, by_autoreset, always, marks=FULL),
        pytest.param(ShmemVectorEnv, pong, by_autoreset, always, marks=FULL),
        pytest.param(SubprocVectorEnv, Leaky, by_mask, 1, marks=FULL),
        pytest.param(RayVectorEnv, Leaky, by_autoreset, 1, marks=RAY),
    ],
)
def test_episodes_statistics_and_generators_are_those_of_envs_that_are_never_replaced(
    kind: Any, make_env: Any, advance: Any, rule: Any
) -> None:
    with kind([make_env] * N, num_workers=2, recycle_after=rule) as venv:
        venv.set_env_attr("level", 5, [1])
        got = until(venv, rows(venv, advance), 2, rule)
        assert venv.alive() == [True] * N
        stats = venv.stats()
        assert stats["recycled_because"] == {"function" if rule is always else "episodes": stats["recycled"]}
        assert stats["restarts"] == 0
    assert got == undisturbed(advance, len(got), [make_env] * N, level=5)


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
    """The envs of two workers leak 1 MB per episode. Workers may grow further while new workers start."""
    limit, got, leaked, largest, begin = 300, list[Any](), 0, 0, time.monotonic()
    with ShmemVectorEnv([partial(Leaky, 10**6)] * 8, num_workers=2, recycle_after=f"{limit} MB") as venv:
        produced = rows(venv, by_autoreset)
        while venv.stats()["recycled"] < 4 or leaked < 3 * largest / 2:
            assert time.monotonic() < begin + 3 * WITHIN, venv.stats()
            got.append(next(produced))
            leaked += sum(map(any, zip(*got[-1][2:4], strict=True))) if len(got) > 1 else 0
            largest = max(largest, sum(worker.memory for worker in venv.engine.backend.workers) // 10**6)
            time.sleep(0.02)  # a busy machine needs time to start workers
    assert largest <= 3 * limit + 1000
    assert got == undisturbed(by_autoreset, len(got), [Leaky] * 8)


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


def by_reset_of_all(venv: Any, actions: Any, done: Any) -> Any:
    """Step all envs, and reset all envs."""
    return *venv.step(actions), *venv.reset()


@pytest.mark.parametrize(
    ("answers", "num_workers", "advance"),
    [([], N, by_autoreset), ([], 2, by_reset_of_all), ([0], 2, by_autoreset)],
    ids=["the old one ends first", "in a reset of all its envs", "as soon as there is memory again"],
)
def test_without_memory_for_another_worker(answers: Any, num_workers: int, advance: Any, monkeypatch: Any) -> None:
    """`answers` is the available memory in the first calls. Without answers, there is never any memory."""
    first = iter(answers)
    monkeypatch.setattr("vecenv.backends.recycling.RETRY", 0.0)
    monkeypatch.setattr("vecenv.backends.recycling.available_memory", lambda: next(first, None if answers else 0))
    with ShmemVectorEnv([Leaky] * N, num_workers=num_workers, recycle_after=1) as venv:
        before = set(venv.get_env_attr("pid"))
        got = until(venv, rows(venv, advance), 2)
        assert before - set(venv.get_env_attr("pid"))
    assert got == undisturbed(advance, len(got))
    assert next(first, None) is None, "memory was not asked for"


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


class ClosesLate(Leaky):
    """Env whose `close` waits until the file exists."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def close(self) -> None:
        appears(self.file, WITHIN)


@pytest.mark.parametrize("limit", [WITHIN, 0.0], ids=["waits", "kills"])
def test_a_replaced_worker_that_closes_late_is_killed_only_after_its_time(
    limit: float, tmp_path: Path, monkeypatch: Any
) -> None:
    """The next replacement waits for its end."""
    monkeypatch.setattr("vecenv.backends.recycling.END_TIMEOUT", limit)
    file = tmp_path / "may close"
    with ShmemVectorEnv([partial(ClosesLate, file)] * N, num_workers=1, recycle_after=always) as venv:
        first = venv.get_env_attr("pid")[0]
        produced = rows(venv, by_autoreset)
        got = until(venv, produced, 1, always)
        if limit:
            assert (psutil.pid_exists(first), venv.stats()["recycled"]) == (True, 1)
            file.touch()
        got += until(venv, produced, 2, always)
        assert gone(first)
        file.touch()
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


def test_shared_state_outlives_the_workers() -> None:
    with ShmemVectorEnv([EnvCreator(counted)] * N, num_workers=1, recycle_after=always) as venv:
        for _ in range(2):
            venv.reset()
            venv.step([0] * N)
            await_new_worker(venv)
        venv.reset()
        assert venv.stats()["recycled"] == 2
        assert venv.call("calls") == [5 * N] * N


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
def test_a_failed_reset_in_the_new_worker_keeps_the_row_of_the_last_step(kind: Any, tmp_path: Path) -> None:
    """Random programs draw it without on_error="restart"."""
    files = [tmp_path / "a", tmp_path / "b"]
    options = {"num_workers": 1, "recycle_after": always, "on_error": "restart"}
    with kind([partial(RaisesOnce, file) for file in files], **options) as venv:
        venv.reset(seed=0)
        venv.step([0, 0], autoreset=True)
        await_new_worker(venv)
        old = venv.get_env_attr("pid")
        files[1].touch()
        obs, _, terminated, _, info = venv.step([0, 0], autoreset=True)
        assert obs[:, 0].tolist() == [0.0, 0.0]
        assert terminated.all()
        assert [one["final_obs"][0] for one in info] == [2.0, 2.0]
        assert venv.stats()["absorbed"] == 1
        assert not set(old).intersection(venv.get_env_attr("pid"))
        assert venv.step([0, 0])[0][:, 0].tolist() == [1.0, 1.0]
