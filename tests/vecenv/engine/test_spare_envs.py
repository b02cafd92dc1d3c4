"""`spare_envs`: threads of a worker reset second instances of envs while the first instances step."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.backends import ON_RAY, full
from tests.support.leaky import Leaky, always, await_new_worker
from tests.support.rounds import N, by_autoreset, by_seeded_autoreset, rows, undisturbed
from vecenv import (
    AsyncVectorEnv,
    EnvCreator,
    ShmemVectorEnv,
    SubprocVectorEnv,
    TransformedEnv,
    VecNorm,
    WorkerTimeoutError,
)

CLASSES = [ShmemVectorEnv, *full([SubprocVectorEnv]), ON_RAY]
ROUNDS = 60


class Gated(Leaky):
    """Env with episodes of two steps. A reset outside of the main thread waits for a file, if one is given."""

    def __init__(self, file: Path | None = None) -> None:
        super().__init__()
        self.file, self.resets, self.fault = file, 0, ""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.resets += 1
        self.thread = threading.current_thread().name
        while self.file is not None and self.thread != "MainThread" and not self.file.exists():
            time.sleep(0.001)
        obs, info = super().reset(seed=seed)
        if self.fault and self.thread != "MainThread":
            raise LookupError(self.fault)
        self.length = 2
        return obs, {**info, "level": self.level, "thread": self.thread}


@pytest.mark.guarantee("G7.6")
@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("spare_envs", [1, *full([9])])
def test_with_seeds_the_rows_are_those_without_spares(kind: Any, spare_envs: int) -> None:
    with kind([Leaky] * N, num_workers=2, spare_envs=spare_envs) as venv:
        produced = rows(venv, by_seeded_autoreset)
        got = [next(produced) for _ in range(ROUNDS)]
    assert got == undisturbed(by_seeded_autoreset, ROUNDS)


@pytest.mark.guarantee("G7.6")
def test_without_seeds_two_runs_are_equal() -> None:
    def run() -> list[Any]:
        with ShmemVectorEnv([Leaky] * 2, num_workers=1, spare_envs=2) as venv:
            produced = rows(venv, by_autoreset)
            return [next(produced) for _ in range(ROUNDS)]

    assert run() == run() != undisturbed(by_autoreset, ROUNDS, [Leaky] * 2)


def test_steps_go_on_while_a_spare_is_reset(tmp_path: Path) -> None:
    file = tmp_path / "go"
    with ShmemVectorEnv([partial(Gated, file)] * 2, num_workers=1, spare_envs=2, step_timeout=20) as venv:
        venv.reset(seed=0)
        venv.step([0, 0], autoreset=True)  # the spares are being reset from now on
        assert venv.get_env_attr("thread") == ["MainThread"] * 2
        file.touch()
        *_, info = venv.step([0, 0], autoreset=True)
        assert all(one["thread"].startswith("vecenv-spare") for one in info)
        assert all("final_obs" in one for one in info)
        assert venv.get_env_attr("resets") == [1, 1]


def test_a_failed_reset_of_a_spare_is_a_failed_reset_of_the_env() -> None:
    with ShmemVectorEnv([Gated] * 2, num_workers=1, spare_envs=2) as venv:
        venv.reset(seed=0)
        venv.set_env_attr("fault", "boom", [1])
        venv.step([0, 0], autoreset=True)
        with pytest.raises(LookupError, match="boom") as caught:
            venv.step([0, 0], autoreset=True)
        assert "env 1, reset()" in "".join(caught.value.__notes__)
        assert caught.value.partial.env_id.tolist() == [0, 1]
        venv.set_env_attr("fault", "", [1])
        venv.reset([1])
        venv.step([0, 0], autoreset=True)


def test_a_spare_gets_attributes_and_an_env_whose_methods_were_called_has_none() -> None:
    with ShmemVectorEnv([Gated] * 2, num_workers=1, spare_envs=2) as venv:
        venv.reset(seed=0)
        venv.step([0, 0], autoreset=True)
        venv.set_env_attr("level", 7)
        venv.call("get_wrapper_attr", "level", id=[1])
        venv.step([0, 0], autoreset=True)  # a call has dropped the prepared spares
        for _ in range(2):
            venv.step([0, 0], autoreset=True)
            info = venv.step([0, 0], autoreset=True)[4]
            assert [one["level"] for one in info] == [7, 7]
            assert [one["thread"].split("_")[0] for one in info] == ["vecenv-spare", "MainThread"]


def test_a_reset_of_a_spare_that_hangs_is_the_hang_of_its_env_and_close_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vecenv.engine.lifetime.CLOSE_TIMEOUT", 0.3)
    venv = ShmemVectorEnv([partial(Gated, tmp_path / "never")] * 2, num_workers=2, spare_envs=1, step_timeout=0.5)
    venv.reset(seed=0)
    venv.step([0, 0], autoreset=True)
    with pytest.raises(WorkerTimeoutError, match="env 0 has been busy"):
        venv.step([0], [0], autoreset=True)
    with pytest.warns(RuntimeWarning, match="did not close in time and was killed"):
        venv.close()


def test_gymnasiums_next_step_mode_uses_spares() -> None:
    envs = AsyncVectorEnv([Gated] * 2, spare_envs=1)
    envs.reset()
    threads = []
    for _ in range(9):
        *_, infos = envs.step(np.zeros(2, int))
        threads += [str(name) for name in infos.get("thread", ())]
    envs.close()
    assert len(threads) == 6
    assert all(name.startswith("vecenv-spare") for name in threads)


def learns() -> Any:
    return TransformedEnv(Leaky(), VecNorm(["observation"]))


def test_statistics_that_two_instances_would_learn_alone_are_refused() -> None:
    with pytest.raises(ValueError, match=r"spare_envs: env_fns\[0\]\(\) has VecNorm, .* leave spare_envs out"):
        ShmemVectorEnv([learns], spare_envs=1)
    ShmemVectorEnv([EnvCreator(learns)], spare_envs=1).close()


def test_spares_of_a_new_worker_have_the_attributes_too() -> None:
    with ShmemVectorEnv([Gated] * 2, num_workers=1, spare_envs=2, recycle_after=always) as venv:
        venv.reset(seed=0)
        venv.set_env_attr("level", 7)
        await_new_worker(venv)
        venv.reset(seed=0)
        for k in range(8):
            info = venv.step([0, 0], autoreset=True)[4]
            assert [one["level"] for one in info if "final_obs" in one] == [7, 7] * (k % 2)
