"""tune: the table, its choice, failures, leftovers, and `python -m vecenv tune`."""

from __future__ import annotations

import re
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import vecenv
from tests.support.backends import FULL
from tests.support.tuned_envs import Draws, Fails, Logged, lock_holder
from vecenv import ShmemVectorEnv, TuneResult, TuneRow, VectorEnvError, WorkerTimeoutError, tune
from vecenv.__main__ import main
from vecenv.tuning.tune import choose

CHEAP = partial(Draws)
QUICK: dict[str, Any] = {"pause": 1e-4, "seconds": 0.3}
MODULE = "vecenv.tuning.tune"


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the candidates assume two CPUs."""
    monkeypatch.setattr(f"{MODULE}.usable_cpus", lambda: 2)


@FULL
def test_every_candidate_is_a_row_with_its_rate_and_the_fastest_is_first(tmp_path: Path) -> None:
    """All envs are closed."""
    result = tune([partial(Logged, tmp_path / "log")] * 4, **QUICK)
    shmem = [f"ShmemVectorEnv, {k} worker{'s' * (k > 1)}" for k in (1, 2, 4)]
    assert {row.name for row in result.rows} == {"DummyVectorEnv", *shmem, "ThreadVectorEnv, 2 threads"}
    rates = [row.steps_per_second for row in result.rows]
    assert all(rates)
    assert rates == sorted(rates, key=lambda rate: -(rate or 0))
    assert [row.note for row in result.rows if row.backend == "thread"] == ["envs must be thread-safe"]
    assert [line for line in str(result).splitlines() if re.search(r"# +best", line)]
    words = [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()]
    assert words.count("made") == words.count("closed") == 1 + 5 * 4


@FULL
def test_envs_that_wait_get_a_worker_each() -> None:
    result = tune([partial(Draws, sleep=0.01)] * 8, **QUICK)
    assert result.best.num_workers == 8
    assert {"ShmemVectorEnv, 8 workers", "ThreadVectorEnv, 8 threads"} <= {row.name for row in result.rows}


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
def test_tune_chooses_the_simplest_that_is_as_fast_as_the_fastest(rates: dict[str, float | None], best: str) -> None:
    rows = [TuneRow(name, None if name == "dummy" else 2, rate, "") for name, rate in rates.items()]
    assert choose(rows).backend == best


def test_a_bar_a_row_and_the_line_to_write_are_printed() -> None:
    rows = [
        TuneRow("thread", 2, 4000.0, "envs must be thread-safe"),
        TuneRow("dummy", None, 1000.0, ""),
        TuneRow("shmem", 2, None, "OverflowError: the env broke"),
    ]
    header, first, second, third, line, other = str(TuneResult([CHEAP] * 4, 3e-4, rows, rows[0])).split("\n")
    assert header.startswith("4 envs, 0.3 ms of the caller's work in each round, ")
    assert first.split()[:5] == ["ThreadVectorEnv,", "2", "threads", "4,000", "#" * 40]
    assert first.endswith("#  best, envs must be thread-safe")
    assert second.split() == ["DummyVectorEnv", "1,000", "#" * 10]
    assert third.split() == ["ShmemVectorEnv,", "2", "workers", "-", "OverflowError:", "the", "env", "broke"]
    assert line == "write: venv = vecenv.ThreadVectorEnv(env_fns, num_workers=2)  # envs must be thread-safe"
    assert other == "   or: venv = vecenv.DummyVectorEnv(env_fns)"


def test_the_best_arguments_make_a_vector_env() -> None:
    row = TuneRow("shmem", 1, 1.0, "")
    result = TuneResult([CHEAP] * 3, 0.0, [row], row)
    written = eval(row.line, {"vecenv": vecenv, "env_fns": result.env_fns})
    for venv in (result.make(strict=True), written):
        with venv:
            assert (type(venv), venv.num_workers, venv.env_num) == (ShmemVectorEnv, 1, 3)


@FULL
def test_env_fns_that_cannot_be_sent_leave_what_runs_in_this_process() -> None:
    result = tune([partial(lock_holder, threading.Lock())] * 2, **QUICK)
    assert result.best.backend in ("dummy", "thread")
    for row in result.rows:
        if row.backend == "shmem":
            assert row.steps_per_second is None
            assert row.note.startswith("TypeError: env_fns[0] cannot be sent to a worker")


NAMES = ("DummyVectorEnv", "ShmemVectorEnv, 2 workers", "ThreadVectorEnv, 2 threads")
HANGS = partial(Fails, "hangs")
STUCK = "one env, alone in a worker, was not made in 0.5 s, or not stepped and closed"
UNMEASURED = (
    "ShmemVectorEnv, 2 workers: WorkerTimeoutError",
    "DummyVectorEnv: not measured: an env hung or crashed in",
)


@FULL
@pytest.mark.parametrize(
    ("env_fns", "patch", "error", "says"),
    [
        ([partial(Fails, "raises")] * 2, None, VectorEnvError, [f"{name}: OverflowError" for name in NAMES]),
        ([HANGS] * 2, "START_TIMEOUT", WorkerTimeoutError, [STUCK]),
        ([CHEAP, HANGS], "STEP_TIMEOUT", VectorEnvError, UNMEASURED),
    ],
    ids=["all raise", "the first hangs", "another hangs"],
)
def test_if_all_candidates_fail_the_error_has_each_reason(
    env_fns: Any, patch: str | None, error: Any, says: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if patch:
        monkeypatch.setattr(f"{MODULE}.{patch}", 0.5)
    with pytest.raises(error) as caught:
        tune(env_fns, **QUICK)
    assert [part for part in says if part not in str(caught.value)] == []


# The command line.


def run(*arguments: str) -> int:
    """Run `python -m vecenv` in this process, and return the exit code."""
    try:
        return main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)


@FULL
def test_the_command_line_prints_the_table_and_lines_that_work(capsys: pytest.CaptureFixture[str]) -> None:
    kwargs = ["--env-kwargs", '{"render_mode": "rgb_array"}']
    words = ["tune", "CartPole-v1", "--num-envs", "3", "--policy-ms", "0.2", "--seconds", "0.1"]
    assert run(*words, *kwargs) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("3 envs, 0.2 ms of the caller's work in each round, ")
    assert len(re.findall(r"(?m)^  \w+VectorEnv", out)) >= 3
    assert "#" * 40 in out
    written = re.search(r"envs = (vecenv\.make_vec\(.*\))", out)
    assert written
    assert "render_mode='rgb_array'" in written[1]
    envs = eval(written[1], {"vecenv": vecenv})
    assert envs.reset(seed=0)[0].shape == (3, 4)
    envs.close()


@FULL
def test_a_function_gets_the_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tune", "gymnasium.envs.classic_control.cartpole:CartPoleEnv", "--num-envs", "2", "--seconds", "0.1"]
    assert run(*words, "--env-kwargs", '{"render_mode": "rgb_array"}') == 0
    assert run(*words, "--env-kwargs", '{"no_such": 1}') != 0


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
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err
