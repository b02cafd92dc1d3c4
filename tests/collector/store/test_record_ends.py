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

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import ClipReward

from collector import AsyncDataCollector, Dataset, DatasetError, EpisodeSeeds, RecordEpisodes, StoreWriter
from collector import SyncDataCollector as Collector
from collector.store import safe_folder
from tests.support.ctrl_c import interrupted
from tests.support.numbered import N, Numbered, actions, assert_whole, env_fns
from tests.support.paths import ROOT
from vecenv import DummyVectorEnv, TransformedVectorEnv
from vecenv.transforms import RewardSum

ROUNDS = 20


def play(envs: Any, rounds: int = ROUNDS) -> None:
    """A loop of the user's."""
    of_engine = not isinstance(envs, gymnasium.vector.VectorEnv)
    envs.reset()
    for step in range(rounds):
        envs.step(actions(step), **({"autoreset": True} if of_engine else {}))


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
    with suppress(ValueError):  # the user's to handle
        envs.step([1])
    play(envs)
    envs.close()
    envs.close()


def closed_by_collector(envs: Any) -> None:
    collector = Collector(envs, None, frames_per_batch=ROUNDS * N)
    collector.rollout()
    collector.shutdown()


def dropped(envs: Any) -> None:
    play(envs)
    if isinstance(envs, gymnasium.vector.VectorEnv):
        envs.env.close()
    else:
        envs.venv.close()  # which would warn


def left_open_by_a_collector(envs: Any) -> None:
    with Collector(envs, None, frames_per_batch=ROUNDS * N) as collector:
        collector.rollout()
        collector.shutdown(close_env=False)
    dropped(envs)


def after_the_last_batch(envs: Any) -> None:
    """With which the collector closes the envs."""
    with suppress(ZeroDivisionError), Collector(envs, None, frames_per_batch=N, total_frames=ROUNDS * N) as collector:
        for _ in collector:
            pass
        raise ZeroDivisionError


Ends = dict[str, tuple[Callable[[Any], None], bool]]
ENDS: Ends = {
    "with": (left(), True),
    "with, exception": (left(ZeroDivisionError()), False),
    "with, Ctrl-C": (left(KeyboardInterrupt()), False),
    "with, sys.exit": (left(SystemExit(0)), False),
    "close": (close_after_a_failure, True),
    "dropped": (dropped, False),
    "collector": (left(None, Collector), True),
    "collector, exception": (left(ZeroDivisionError(), Collector), False),
    "collector, Ctrl-C in the policy": (lambda envs: fail_in_policy(envs, KeyboardInterrupt()), False),
    "collector, exception after the last batch": (after_the_last_batch, True),
    "collector.shutdown": (closed_by_collector, True),
    "collector.shutdown(close_env=False), dropped": (left_open_by_a_collector, False),
}
clipped = partial(ClipReward, min_reward=0, max_reward=99)


def summed(envs: Any) -> Any:
    return TransformedVectorEnv(envs, RewardSum())


OF_ENGINES: Ends = {
    "wrapper": (left(wrap=summed), True),
    "wrapper, exception": (left(ZeroDivisionError(), wrap=summed), False),
    "collector that is refused": (refused_by_a_collector, False),
    "collector of a wrapper, exception": (left(ZeroDivisionError(), Collector, summed), False),
    "asynchronous collector": (left(None, AsyncDataCollector), True),
    "asynchronous collector, exception": (left(ZeroDivisionError(), AsyncDataCollector), False),
    "collector with episode_seeds, failure": (
        lambda envs: fail_in_policy(envs, ZeroDivisionError(), episode_seeds=EpisodeSeeds(0)),
        False,
    ),
}
OF_VECTOR_ENVS: Ends = {
    "collector of a wrapper": (left(None, Collector, clipped), True),
    "collector of a wrapper, exception": (left(ZeroDivisionError(), Collector, clipped), False),
}
MAKERS: dict[str, Callable[[], Any]] = {
    "engine": lambda: DummyVectorEnv(env_fns()),
    "vector env": lambda: SyncVectorEnv(env_fns(), autoreset_mode=AutoresetMode.SAME_STEP),
}


@pytest.mark.guarantee("G12.5")
@pytest.mark.usefixtures("no_fsync")
@pytest.mark.parametrize(
    ("make", "end"),
    [
        *[(make, end) for make in MAKERS for end in ENDS],
        *[("engine", end) for end in OF_ENGINES],
        *[("vector env", end) for end in OF_VECTOR_ENVS],
    ],
)
def test_ends(make: str, end: str, tmp_path: Path) -> None:
    run, complete = (ENDS | (OF_ENGINES if make == "engine" else OF_VECTOR_ENVS))[end]
    run(RecordEpisodes(MAKERS[make](), tmp_path))
    gc.collect()
    found = assert_whole(Dataset(tmp_path), complete)
    assert sum(map(len, found.values())) > ROUNDS * N / 2, "what has ended is committed"
    with RecordEpisodes(MAKERS[make](), tmp_path, resume=True) as envs:  # nothing holds the folder
        assert not Dataset(tmp_path).complete
        play(envs)
    data = Dataset(tmp_path)
    assert data.complete
    assert data.verify() == []
    assert len(data) > len(found) + 10
    assert data.numbers.tolist() == list(range(len(data)))


@pytest.mark.usefixtures("no_fsync", "ctrl_c")
@pytest.mark.parametrize("moment", ["write", "rename"])
def test_ctrl_c_within_a_commit_waits_for_its_end(moment: str, tmp_path: Path) -> None:
    def play_on() -> None:
        envs = RecordEpisodes(DummyVectorEnv(env_fns()), tmp_path, shard_seconds=0.0)
        with envs, pytest.MonkeyPatch.context() as patch:
            patch.setattr(safe_folder, moment, interrupted(getattr(safe_folder, moment)))
            play(envs)

    with pytest.raises(KeyboardInterrupt) as error:
        play_on()
    assert not hasattr(error.value, "__notes__")
    assert len(assert_whole(Dataset(tmp_path), complete=False)) > 0


@pytest.mark.usefixtures("no_fsync")
def test_what_cannot_be_committed_at_the_end_is_a_note_at_the_exception(tmp_path: Path) -> None:
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    venv = DummyVectorEnv(env_fns())

    def play_on() -> None:
        with pytest.MonkeyPatch.context() as patch, RecordEpisodes(venv, tmp_path) as envs:
            play(envs)
            patch.setattr(safe_folder, "write", full)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as error:
        play_on()
    assert "had not committed yet are lost: cannot write to" in error.value.__notes__[0]
    assert venv.is_closed
    RecordEpisodes(DummyVectorEnv(env_fns()), tmp_path, resume=True).close()


@pytest.mark.usefixtures("no_fsync")
def test_a_data_set_that_is_reopened_stays_as_it_is_until_the_next_commit(tmp_path: Path) -> None:
    def stored(complete: bool) -> list[bytes]:
        assert Dataset(tmp_path).complete is complete
        return [episode.obs.tobytes() for episode in Dataset(tmp_path)]

    with RecordEpisodes(DummyVectorEnv(env_fns()), tmp_path) as envs:
        play(envs)
    before = stored(complete=True)
    StoreWriter(tmp_path, None, resume=True, reopen=True).close()  # as if it were killed here
    assert stored(complete=False) == before
    RecordEpisodes(DummyVectorEnv(env_fns()), tmp_path, resume=True).close()
    assert stored(complete=True) == before
    with StoreWriter(tmp_path, None, resume=True) as writer, pytest.raises(DatasetError, match="is complete"):
        writer.add(list(Dataset(tmp_path)))
    with StoreWriter(tmp_path, None, resume=True, reopen=True) as writer:
        writer.end(episodes=5)  # those beyond are not taken up
    for _ in range(2):
        with DummyVectorEnv(env_fns()) as venv, pytest.raises(DatasetError, match=r"readers ignore \d+ episodes from"):
            RecordEpisodes(venv, tmp_path, resume=True)
    assert len(Dataset(tmp_path)) == 5


@pytest.mark.usefixtures("no_fsync")
@pytest.mark.parametrize("kind", [DummyVectorEnv, partial(SyncVectorEnv, autoreset_mode=AutoresetMode.SAME_STEP)])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1.7e308], ids=str)
def test_one_episode_that_cannot_be_stored_loses_no_other(kind: Any, number: float, tmp_path: Path) -> None:
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
            play_on(RecordEpisodes(kind([partial(Broken, 0), *env_fns()[1:]]), tmp_path / name), left)
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
from pathlib import Path
import numpy as np
from gymnasium.vector import SyncVectorEnv
from collector import RecordEpisodes, SyncDataCollector
from vecenv import DummyVectorEnv
from tests.support.numbered import env_fns, actions

folder, how = sys.argv[1:]
envs = RecordEpisodes((SyncVectorEnv if how == "collector" else DummyVectorEnv)(env_fns()), folder)
if how == "collector":
    collector = SyncDataCollector(envs, None, frames_per_batch=120)
    collector.rollout()
    sys.exit()
envs.reset()
for step in range(40):
    envs.step(actions(step), autoreset=True)
if how == "fork":
    if os.fork() == 0:
        with envs:
            sys.exit(3)
    os.wait()
    envs.close()
elif how == "exception":
    raise ZeroDivisionError
"""


@pytest.mark.parametrize("how", ["end", "exception", "fork", "collector"])
def test_the_end_of_the_program(how: str, tmp_path: Path) -> None:
    root = ROOT
    subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM, tmp_path, how], cwd=root, check=how != "exception")
    found = assert_whole(Dataset(tmp_path), complete=how == "fork")
    assert sum(map(len, found.values())) > 40 * N - 5 * N
