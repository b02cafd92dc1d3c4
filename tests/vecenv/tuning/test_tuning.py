"""tune: the table, the choice, failures, leftovers, and `python -m vecenv tune`."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import vecenv
from tests.support.backends import FULL
from tests.support.paths import ROOT
from tests.support.tuned_envs import Draws, HangsOnStep, Logged, RaisesOnStep, SlowlyReset, lock_holder
from vecenv import ShmemVectorEnv, TuneResult, TuneRow
from vecenv.__main__ import main
from vecenv.errors import VectorEnvError, WorkerTimeoutError
from vecenv.random_actions import sample_actions, seed_spaces
from vecenv.tuning import tune as tuning
from vecenv.tuning.tune import compute, tune

CHEAP = partial(Draws)
QUICK: dict[str, Any] = {"pause": 1e-4, "seconds": 0.3}


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the candidates assume two CPUs."""
    monkeypatch.setattr(tuning, "usable_cpus", lambda: 2)


def by_name(result: TuneResult) -> dict[str, TuneRow]:
    return {row.name: row for row in result.rows}


@FULL
class TestTheTable:
    def test_every_candidate_is_a_row_with_its_rate_and_the_fastest_is_first(self) -> None:
        result = tune([CHEAP] * 4, **QUICK)
        assert set(by_name(result)) == {
            "DummyVectorEnv",
            "ShmemVectorEnv, 1 worker",
            "ShmemVectorEnv, 2 workers",
            "ShmemVectorEnv, 4 workers",
            "ThreadVectorEnv, 2 threads",
        }
        rates = [row.steps_per_second for row in result.rows]
        assert all(rates)
        assert rates == sorted(rates, key=lambda rate: -(rate or 0))
        assert [row.note for row in result.rows if row.backend == "thread"] == ["envs must be thread-safe"]
        assert [row for row in result.rows if row is result.best]
        assert [line for line in str(result).splitlines() if re.search(r"# +best", line)]

    def test_envs_that_wait_get_a_worker_each(self) -> None:
        result = tune([partial(Draws, sleep=0.01)] * 8, **QUICK)
        assert result.best.num_workers == 8
        assert {"ShmemVectorEnv, 8 workers", "ThreadVectorEnv, 8 threads"} <= set(by_name(result))

    def test_resets_count_that_are_rare_and_slow(self) -> None:
        """One of 20 rounds of 4 envs takes the time of four resets, or of one reset with a worker per env."""
        result = tune([partial(SlowlyReset, 0.2, 20)] * 4, pause=1e-4, seconds=2.0)
        assert result.best.num_workers == 4
        rates = {name: row.steps_per_second or 0 for name, row in by_name(result).items()}
        assert rates["ShmemVectorEnv, 4 workers"] < 2 * 4 * 20 / 0.2  # a few resets show how rare resets are
        assert rates["DummyVectorEnv"] < 2 * 4 * 20 / (4 * 0.2)

    def test_first_steps_that_are_slow_do_not_count(self) -> None:
        result = tune([partial(Draws, slow_steps=20)] * 2, pause=0.0, seconds=0.3)
        fastest = result.rows[0].steps_per_second
        assert fastest is not None
        assert fastest > 2 / 0.005  # the rate if they were slow for ever, with a CPU for each env


class TestTheChoice:
    @pytest.mark.parametrize(
        ("rates", "best"),
        [
            ({"dummy": 100, "shmem": 104}, "dummy"),
            ({"dummy": 100, "shmem": 110}, "shmem"),
            ({"shmem": 200, "dummy": 100, "thread": 210}, "shmem"),
            ({"dummy": 100, "thread": 110}, "dummy"),
            ({"dummy": 100, "thread": 120}, "thread"),
            ({"dummy": None, "thread": 50}, "thread"),
        ],
    )
    def test_the_simplest_that_is_as_fast_as_the_fastest(self, rates: dict[str, float | None], best: str) -> None:
        rows = [TuneRow(name, None if name == "dummy" else 2, rate, "") for name, rate in rates.items()]
        assert tuning.choose(rows).backend == best

    @pytest.mark.parametrize(
        ("plain", "resets", "first_reset", "share", "seconds"),
        [
            ([1, 1, 9], [3, 5, 99], 0, 0.1, 0.9 * 1 + 0.1 * 5),
            ([1, 1, 9], [], 4, 0.1, 0.9 * 1 + 0.1 * 5),
            ([], [2, 2, 7], 4, 1.0, 2),
        ],
        ids=["median of resets", "first reset", "only resets"],
    )
    def test_resets_count_by_their_share(
        self, plain: Any, resets: Any, first_reset: float, share: float, seconds: float
    ) -> None:
        candidate = tuning._Candidate("dummy", None, 0.0)
        candidate.plain, candidate.with_resets, candidate.first_reset = plain, resets, first_reset
        assert candidate.round_seconds(share) == pytest.approx(seconds)

    @pytest.mark.parametrize(
        ("rounds", "waits", "rate"),
        [([3e-3] * 4 + [33e-3], False, 100), ([3e-3] * 5, False, 300), ([3e-3] * 4 + [33e-3], True, 1000 / 3)],
        ids=["interrupted", "parallel", "waiting"],
    )
    def test_threads_gain_at_most_in_processor_time(self, rounds: list[float], waits: bool, rate: float) -> None:
        """On a busy machine, Dummy's rounds take longer than their processor time. Threads get more of the CPUs."""
        dummy, thread = (tuning._Candidate(name, None, 0.0) for name in ("dummy", "thread"))
        dummy.plain, dummy.cpu_seconds = [10e-3] * 5, [9e-3] * 5
        thread.plain = rounds
        tuning._rate([dummy, thread], 1, waits)
        assert (dummy.rate, thread.rate) == (pytest.approx(100), pytest.approx(rate))

    def test_a_bar_a_row_and_the_line_to_write_are_printed(self) -> None:
        rows = [
            TuneRow("thread", 2, 4000.0, "envs must be thread-safe"),
            TuneRow("dummy", None, 1000.0, ""),
            TuneRow("shmem", 2, None, "OverflowError: the env broke"),
        ]
        text = str(TuneResult([CHEAP] * 4, 3e-4, rows, rows[0]))
        header, first, second, third, line, other = text.split("\n")
        assert header.startswith("4 envs, 0.3 ms of the caller's work in each round, ")
        assert first.split()[:5] == ["ThreadVectorEnv,", "2", "threads", "4,000", "#" * 40]
        assert first.endswith("#  best, envs must be thread-safe")
        assert second.split() == ["DummyVectorEnv", "1,000", "#" * 10]
        assert third.split() == ["ShmemVectorEnv,", "2", "workers", "-", "OverflowError:", "the", "env", "broke"]
        assert line == "write: venv = vecenv.ThreadVectorEnv(env_fns, num_workers=2)  # envs must be thread-safe"
        assert other == "   or: venv = vecenv.DummyVectorEnv(env_fns)"

    def test_the_best_arguments_make_a_vector_env(self) -> None:
        row = TuneRow("shmem", 1, 1.0, "")
        result = TuneResult([CHEAP] * 3, 0.0, [row], row)
        written = eval(row.line, {"vecenv": vecenv, "env_fns": result.env_fns})
        for venv in (result.make(strict=True), written):
            with venv:
                assert (type(venv), venv.num_workers, venv.env_num) == (ShmemVectorEnv, 1, 3)
                assert venv.reset(seed=0)[0].shape == (3, 3)
        assert TuneRow("dummy", None, 1.0, "").line == "vecenv.DummyVectorEnv(env_fns)"


@FULL
class TestWhatFails:
    def test_all_envs_are_closed(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        tune([partial(Logged, log)] * 2, **QUICK)
        words = [line.split()[0] for line in log.read_text().splitlines()]
        assert words.count("made") == words.count("closed") == 1 + 4 * 2

    def test_env_fns_that_cannot_be_sent_leave_what_runs_in_this_process(self) -> None:
        result = tune([partial(lock_holder, threading.Lock())] * 2, **QUICK)
        assert result.best.backend in ("dummy", "thread")
        for row in result.rows:
            if row.backend == "shmem":
                assert row.steps_per_second is None
                assert row.note.startswith("TypeError: env_fns[0] cannot be sent to a worker")

    def test_if_all_fail_the_error_has_each_reason(self) -> None:
        with pytest.raises(VectorEnvError) as caught:
            tune([partial(RaisesOnStep)] * 2, **QUICK)
        for name in ("DummyVectorEnv", "ShmemVectorEnv, 2 workers", "ThreadVectorEnv, 2 threads"):
            assert f"{name}: OverflowError: the env broke" in str(caught.value)

    def test_an_env_that_hangs_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tuning, "START_TIMEOUT", 0.5)
        with pytest.raises(
            WorkerTimeoutError, match=r"one env, alone in a worker, was not made in 0.5 s, or not stepped and closed"
        ):
            tune([partial(HangsOnStep)] * 2, **QUICK)

    def test_an_env_that_hung_elsewhere_is_not_stepped_in_this_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tuning, "STEP_TIMEOUT", 0.5)
        with pytest.raises(VectorEnvError) as caught:
            tune([CHEAP, partial(HangsOnStep)], **QUICK)
        assert "ShmemVectorEnv, 2 workers: WorkerTimeoutError" in str(caught.value)
        assert "DummyVectorEnv: not measured: an env hung or crashed in ShmemVectorEnv, " in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"env_fns": []}, ValueError, "env_fns is empty"),
        ({"env_fns": "CartPole-v1"}, TypeError, "env_fns must be a sequence of callables"),
        ({"pause": -1e-3}, ValueError, "pause must be a number of seconds, at least 0 and below 60, got -0.001"),
        ({"pause": float("nan")}, ValueError, "pause must be a number of seconds, at least 0 and below 60, got nan"),
        ({"pause": "1"}, ValueError, "pause must be a number of seconds, at least 0 and below 60, got '1'"),
        ({"seconds": 0}, ValueError, "seconds must be a positive number of seconds"),
        ({"seconds": None}, ValueError, "seconds must be a positive number of seconds"),
    ],
)
def test_wrong_arguments_are_named(arguments: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        tune(**{"env_fns": [CHEAP], **arguments})


def test_the_callers_work_uses_the_cpu() -> None:
    begin = time.thread_time()
    compute(0.01)
    assert 0.01 <= time.thread_time() - begin < 0.02


def test_the_same_random_actions_are_drawn_each_time() -> None:
    def draw(spaces: list[Any]) -> Any:
        seed_spaces(spaces)
        return sample_actions(spaces, np.zeros(2), [{}, {}])

    for space, shape in (
        (gymnasium.spaces.Discrete(3), (2,)),
        (gymnasium.spaces.Box(-1, 1, (4,)), (2, 4)),
        (gymnasium.spaces.Dict({"a": gymnasium.spaces.Discrete(3)}), None),
    ):
        first, second = draw([space] * 2), draw([space] * 2)
        assert str(first) == str(second)
        assert getattr(first, "shape", None) == shape
    for width in (1, 2):  # with different dtypes or shapes
        mixed = draw([gymnasium.spaces.MultiBinary(1), gymnasium.spaces.Box(-1, 1, (width,))])
        assert [(len(action), action.dtype.kind) for action in mixed] == [(1, "i"), (width, "f")]
    with pytest.raises(ValueError, match="env 1 has no action_space"):
        draw([gymnasium.spaces.Discrete(2), None])


@FULL
def test_the_command_line_prints_the_table_and_lines_that_work() -> None:
    command = [sys.executable, "-W", "error", "-m", "vecenv", "tune", "CartPole-v1"]
    command += ["--num-envs", "3", "--policy-ms", "0.2", "--seconds", "0.3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("3 envs, 0.2 ms of the caller's work in each round, ")
    rows = [line for line in done.stdout.splitlines() if re.match(r"  \w+VectorEnv", line)]
    assert len(rows) >= 3
    assert any("#" * 40 in row for row in rows)
    written = re.search(r"envs = (vecenv\.make_vec\(.*\))", done.stdout)
    assert written
    envs = eval(written[1], {"vecenv": vecenv})
    assert envs.reset(seed=0)[0].shape == (3, 4)
    envs.close()


@pytest.mark.parametrize("env", ["CartPole-v1", "gymnasium.envs.classic_control.cartpole:CartPoleEnv"])
def test_envs_get_their_arguments(env: str, capsys: pytest.CaptureFixture[str]) -> None:
    kwargs = '{"render_mode": "rgb_array"}'
    assert main(["tune", env, "--num-envs", "2", "--seconds", "0.1", "--env-kwargs", kwargs]) == 0
    assert ("render_mode='rgb_array'" in capsys.readouterr().out) == (env == "CartPole-v1")
    with pytest.raises(SystemExit):
        main(["tune", env, "--num-envs", "2", "--env-kwargs", '{"no_such": 1}'])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: COMMAND"),
        (["tune"], "required: ENV_ID"),
        (["tune", "CartPoll-v1"], "Environment `CartPoll` doesn't exist"),
        (["tune", "CartPoll-v1"], "If a package registers this env, pass package:CartPoll-v1"),
        (["tune", "tests.support.tuned_envs:nothing"], "there is no function tests.support.tuned_envs:nothing"),
        (["tune", "math:pi"], "math:pi is not a function but 3.14"),
        (["tune", "CartPole-v1", "--env-kwargs", "[1]"], "it must be a JSON object"),
        (["tune", "CartPole-v1", "--num-envs", "0"], "--num-envs must be at least 1, got 0"),
        (["tune", "CartPole-v1", "--policy-ms", "-1"], "pause must be a number of seconds"),
        (["check"], "required: ENV_ID"),
        (["check", "CartPoll-v1"], "Environment `CartPoll` doesn't exist"),
        (["check", "CartPole-v1", "--steps", "0"], "steps must be an integer of at least 1, got 0"),
        (["check", "CartPole-v1", "--timeout", "nan"], "timeout must be a positive number of seconds"),
    ],
)
def test_wrong_arguments_end_the_command_with_a_message(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
