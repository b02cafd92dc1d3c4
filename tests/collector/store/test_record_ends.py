"""RecordEpisodes: the state of the data set after each way to end, and how the next recorder continues."""

from __future__ import annotations

import errno
import gc
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import ClipReward

from collector import AsyncDataCollector, Dataset, DatasetError, EpisodeSeeds, RecordEpisodes
from collector import SyncDataCollector as Collector
from collector.store import safe_folder as disk
from tests.support.ctrl_c import interrupted
from tests.support.numbered import N, Numbered, assert_whole, env_fns, play
from tests.support.paths import ROOT
from vecenv import DummyVectorEnv, TransformedVectorEnv
from vecenv.transforms import RewardSum

ROUNDS = 20


def left(error: BaseException | None = None, kind: Any = None, wrap: Any = lambda envs: envs) -> Callable[[Any], None]:
    """Play in a `with` block, that of the vector env or of a collector, which `error` leaves."""

    def run(envs: Any) -> None:
        outer = wrap(envs) if kind is None else kind(wrap(envs), None, frames_per_batch=ROUNDS * N)
        with suppress(type(error)), outer:
            play(outer) if kind is None else outer.rollout()
            if error is not None:
                raise error

    return run


def fail_in_policy(envs: Any, error: BaseException, **options: Any) -> None:
    policy = Mock(side_effect=[*[np.zeros(N, np.int64)] * ROUNDS, error])
    with suppress(type(error)), Collector(envs, lambda obs: policy(), frames_per_batch=N, **options) as collector:
        for _ in collector:
            pass


def refused_by_a_collector(envs: Any) -> None:
    """A vector env that a callable made is closed with the collector that is refused."""
    play(envs)
    with pytest.raises(TypeError, match="transform"):
        Collector(lambda: envs, None, frames_per_batch=N, transforms="none")


def close_after_a_failure(envs: Any) -> None:
    play(envs)
    with suppress(ValueError):  # the user handles it
        envs.step([1])
    play(envs)
    envs.close()
    envs.close()


def dropped(envs: Any) -> None:
    play(envs)
    (envs.env if isinstance(envs, VectorEnv) else envs.venv).close()  # which would warn


def after_the_last_batch(envs: Any) -> None:
    """With which the collector closes the envs."""
    with suppress(ZeroDivisionError), Collector(envs, None, frames_per_batch=N, total_frames=ROUNDS * N) as collector:
        for _ in collector:
            pass
        raise ZeroDivisionError


clipped = partial(ClipReward, min_reward=0, max_reward=99)
summed = lambda envs: TransformedVectorEnv(envs, RewardSum())  # noqa: E731
EITHER, ENGINE, VECTOR_ENV = ("engine", "vector env"), ("engine",), ("vector env",)
ENDS: dict[str, tuple[Callable[[Any], None], bool, tuple[str, ...]]] = {
    "with": (left(), True, EITHER),
    "with, exception": (left(ZeroDivisionError()), False, EITHER),
    "with, Ctrl-C": (left(KeyboardInterrupt()), False, EITHER),
    "close": (close_after_a_failure, True, EITHER),
    "dropped": (dropped, False, EITHER),
    "collector": (left(None, Collector), True, EITHER),
    "collector, exception": (left(ZeroDivisionError(), Collector), False, EITHER),
    "collector, Ctrl-C in the policy": (partial(fail_in_policy, error=KeyboardInterrupt()), False, EITHER),
    "collector, exception after the last batch": (after_the_last_batch, True, EITHER),
    "wrapper, exception": (left(ZeroDivisionError(), wrap=summed), False, ENGINE),
    "collector that is refused": (refused_by_a_collector, False, ENGINE),
    "collector of a wrapper": (left(None, Collector, summed), True, ENGINE),
    "asynchronous collector, exception": (left(ZeroDivisionError(), AsyncDataCollector), False, ENGINE),
    "collector with episode_seeds, failure": (
        partial(fail_in_policy, error=ZeroDivisionError(), episode_seeds=EpisodeSeeds(0)),
        False,
        ENGINE,
    ),
    "collector of a vector wrapper, exception": (left(ZeroDivisionError(), Collector, clipped), False, VECTOR_ENV),
}
MAKERS: dict[str, Callable[..., Any]] = {
    "engine": DummyVectorEnv,
    "vector env": partial(SyncVectorEnv, autoreset_mode=AutoresetMode.SAME_STEP),
}


@pytest.mark.guarantee("G12.5")
@pytest.mark.usefixtures("no_fsync")
@pytest.mark.parametrize(("make", "end"), [(make, end) for end, (*_, makers) in ENDS.items() for make in makers])
def test_ends(make: str, end: str, tmp_path: Path) -> None:
    run, complete, _ = ENDS[end]
    run(RecordEpisodes(MAKERS[make](env_fns()), tmp_path))
    gc.collect()
    found = assert_whole(Dataset(tmp_path), complete)
    assert sum(map(len, found.values())) > ROUNDS * N / 2, "what has ended is committed"
    with RecordEpisodes(MAKERS[make](env_fns()), tmp_path, resume=True) as envs:  # nothing holds the folder
        assert not Dataset(tmp_path).complete
        play(envs)
    data = Dataset(tmp_path)
    assert (data.complete, data.verify()) == (True, [])
    assert data.numbers.tolist() == list(range(len(data)))
    assert len(data) > len(found) + 10


@pytest.mark.usefixtures("no_fsync", "ctrl_c")
@pytest.mark.parametrize("moment", ["write", "rename"])
def test_ctrl_c_within_a_commit_waits_for_its_end(moment: str, tmp_path: Path) -> None:
    def play_on() -> None:
        envs = RecordEpisodes(DummyVectorEnv(env_fns()), tmp_path, shard_seconds=0.0)
        with envs, pytest.MonkeyPatch.context() as patch:
            patch.setattr(disk, moment, interrupted(getattr(disk, moment)))
            play(envs)

    with pytest.raises(KeyboardInterrupt) as error:
        play_on()
    assert not hasattr(error.value, "__notes__")
    assert len(assert_whole(Dataset(tmp_path), complete=False)) > 0


@pytest.mark.usefixtures("no_fsync")
def test_what_cannot_be_committed_at_the_end_is_a_note_at_the_exception(tmp_path: Path) -> None:
    venv, full = DummyVectorEnv(env_fns()), OSError(errno.ENOSPC, "No space left on device")

    def play_on() -> None:
        with pytest.MonkeyPatch.context() as patch, RecordEpisodes(venv, tmp_path) as envs:
            play(envs)
            patch.setattr(disk, "write", Mock(side_effect=full))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as error:
        play_on()
    assert "had not committed yet are lost: cannot write to" in error.value.__notes__[0]
    assert venv.is_closed
    RecordEpisodes(DummyVectorEnv(env_fns()), tmp_path, resume=True).close()


@pytest.mark.usefixtures("no_fsync")
@pytest.mark.parametrize(("make", "number"), [("engine", np.nan), ("vector env", 1.7e308)])
def test_one_episode_that_cannot_be_stored_loses_no_other(make: str, number: float, tmp_path: Path) -> None:
    class Broken(Numbered):
        def step(self, action: Any) -> Any:
            obs, reward, *rest = super().step(action)
            return obs, number if self.episode == 5 else reward, *rest

    def play_on(envs: Any, left: BaseException | None) -> None:
        with envs:
            play(envs, 30)
            if left is not None:
                raise left

    for name, left in (("a", None), ("b", ZeroDivisionError())):
        with pytest.raises(DatasetError if left is None else ZeroDivisionError) as error:
            play_on(RecordEpisodes(MAKERS[make]([partial(Broken, 0), *env_fns()[1:]]), tmp_path / name), left)
        text = str(error.value) if left is None else error.value.__notes__[0]
        cause = "are finite, but their sum is not" if np.isfinite(number) else f"has the reward {number} in step 0"
        assert f"of env 0 {cause}; NaN and infinity are not stored" in text
        found = assert_whole(Dataset(tmp_path / name), complete=False)
        assert [each in found for each in ((0, 4), (0, 5), (0, 6))] == [True, False, True]


@pytest.mark.usefixtures("no_fsync")
def test_a_vector_env_that_starts_again_is_not_recorded_in_silence(tmp_path: Path) -> None:
    lazy = DummyVectorEnv(env_fns(), lazy=True)
    lazy.start()
    envs = RecordEpisodes(lazy, tmp_path)
    play(envs)
    envs.close()
    with pytest.raises(DatasetError, match=r"no longer recorded, because the vector env was closed.*resume=True"):
        envs.reset()
    envs.close()
    assert_whole(Dataset(tmp_path))


PROGRAM = """
import os, sys
from gymnasium.vector import SyncVectorEnv
from collector import RecordEpisodes, SyncDataCollector
from vecenv import DummyVectorEnv
from tests.support.numbered import env_fns, play

forked, left_open = [RecordEpisodes(DummyVectorEnv(env_fns()), sys.argv[1] + name) for name in ("/forked", "/open")]
play(forked)
play(left_open)
if os.fork() == 0:
    with forked:
        sys.exit(3)
os.wait()
forked.close()
envs = RecordEpisodes(SyncVectorEnv(env_fns()), sys.argv[1] + "/collector")
collector = SyncDataCollector(envs, None, frames_per_batch=120)
collector.rollout()
raise ZeroDivisionError
"""


def test_the_end_of_the_program(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM, tmp_path], cwd=ROOT, check=False)
    assert done.returncode == 1
    for name in ("forked", "open", "collector"):
        found = assert_whole(Dataset(tmp_path / name), complete=name == "forked")
        assert sum(map(len, found.values())) > 40 * N - 5 * N, name
