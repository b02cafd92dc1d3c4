"""`check_env` and `python -m vecenv check` report each peculiarity of an env, and nothing else."""

import json
import re
import subprocess
import sys
import threading

import pytest

from tests.support import checked_envs as envs
from tests.support.backends import FULL
from tests.support.paths import ROOT
from vecenv.__main__ import main
from vecenv.testing import CheckResult, CheckRow, check_env

FINDINGS = {
    envs.Calm: {},
    envs.CountsInModule: {
        "reset(seed) repeats": (
            False,
            r"numbered episodes depend.*: the reset of episode 0 differs: obs\[0\]: 1.0 and \d.0$",
        ),
        "later episodes repeat": (None, "not compared"),
        "envs do not affect each other": (False, r"num_workers = number.*step 1 of .* differs: obs\[0\]: 2.0 and 3.0$"),
    },
    envs.RepeatsOneEpisode: {
        "later episodes repeat": (False, r"without a seed .* random episode: the reset of episode 1 differs: obs\[0\]"),
    },
    envs.KeepsInLaterEpisodes: {
        "later episodes repeat": (False, r"numbered episodes depend on .*: the reset of episode 1 differs: obs\[0\]"),
    },
    envs.ShowsProcess: {
        "a new process plays the same": (
            False,
            r"the reset of episode 0 differs: obs: \('uint8', \(40, 40\), '\w+'\) and",
        ),
        "envs do not affect each other": (None, "not compared, because an env alone does not repeat"),
    },
    envs.OnePerProcess: {
        "envs do not affect each other": (
            False,
            "num_workers = number of envs.*the constructor raised RuntimeError: Cannot create",
        ),
        "works after a fork": (None, "the constructor raised RuntimeError: Cannot create"),
    },
    envs.SeedsProcess: {
        "envs do not affect each other": (False, r"step 1 of episode 0 differs: obs\[0\]"),
        "process state unchanged": (
            None,
            r"np.random \(reset\), torch's generator \(reset\), np.random \(step\), torch",
        ),
    },
    envs.Leaks: {"memory is stable": (None, r"grows by (0\.9|1\.[0-4])\d MiB per episode \(20 episodes\)")},
    envs.Odd: {
        "process state unchanged": (
            None,
            r"working directory \(the constructor\), signal handlers \(reset\), "
            r"os.environ\['VECENV_TEST_OF_CHECK'\] \(reset\), random \(step\)",
        ),
        "observations fit the space": (None, "with the dtype float32, which vecenv casts: Dict"),
        "rewards are numbers": (None, r"returned array\(.*of type ndarray"),
        "infos repeat, with equal keys": (None, r"infos of step\(\) have the keys \[\] or \[\"info\['last'\]\"\]"),
    },
    envs.Noisy: {
        "observations fit the space": (None, r"reset\(\) returned an observation outside of Box.*nan"),
        "infos repeat, with equal keys": (None, r"step 1 of episode 0 differs: info\['noise'\]: \d+ and"),
    },
    envs.Unusual: {},
    envs.BreaksInFork: {"works after a fork": (None, 'do not pass context="fork": .* OSError: the server')},
}
QUICK = (envs.Calm, envs.CountsInModule)


@pytest.mark.timeout(900)  # each env starts three processes, and SeedsProcess imports torch in each
@pytest.mark.parametrize("env", [pytest.param(env, marks=() if env in QUICK else FULL) for env in FINDINGS])
def test_each_finding_has_its_row_with_the_first_difference(env):
    result = check_env(env, steps=40)
    found = {row.name: row for row in result.rows}
    assert {name: row.holds for name, row in found.items() if not row.holds} == {
        name: holds for name, (holds, _) in FINDINGS[env].items()
    }
    for name, (_, text) in FINDINGS[env].items():
        assert re.search(text, found[name].text), found[name]
    assert result.ok == all(holds is None for holds, _ in FINDINGS[env].values())
    assert re.search(r"a step takes [\d,]+ us, a reset [\d,]+ us", found["cost"].text)


@FULL
@pytest.mark.parametrize(
    ("env", "text"),
    [
        (envs.RaisesInStep, "step 4 of episode 0 raised ValueError: boom"),
        (envs.RaisesInLateReset, "a measured episode raised ValueError: no ninth reset"),
    ],
)
def test_an_env_that_fails_alone_has_one_row_with_the_place(env, text):
    result = check_env(env)
    assert [row[:2] for row in result.rows] == [("env_fn can be pickled", True), ("plays in vecenv", False)]
    assert re.search(text, result.rows[1].text)
    assert not result.ok


def test_a_function_that_cannot_be_pickled_is_the_only_row():
    lock = threading.Lock()
    result = check_env(lambda: envs.Calm() if lock else None)
    assert [row.holds for row in result.rows] == [False]
    assert "env_fns[0] cannot be sent to a worker" in result.rows[0].text


def test_the_table_has_a_line_per_row_and_indents_long_texts():
    rows = [CheckRow("short", True, ""), CheckRow("a long name", False, "first\n  second"), CheckRow("x", None, "n")]
    lines = str(CheckResult(rows)).split("\n")
    assert lines == ["ok    short", "FAIL  a long name  first", " " * 21 + "second", "note  x            n"]


def test_the_command_prints_the_table_and_the_exit_code_tells_of_failures(capsys):
    """An env that hangs has one row, with the place."""
    assert main(["check", "tests.support.checked_envs:HangsInStep", "--timeout", "2"]) == 1
    printed = capsys.readouterr().out
    assert re.search(
        r"^ok    env_fn can be pickled\nFAIL  plays in vecenv +env 0 has been busy for more than step_timeout=2.0 s\n"
        r"(.*\n)*.*checked_envs.py.* in step$",
        printed,
    )


@FULL
def test_the_json_of_the_command_is_apart_from_what_the_env_prints():
    command = [sys.executable, "-m", "vecenv", "check", "tests.support.checked_envs:Prints", "--json", "--steps", "9"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    result = json.loads(done.stdout)
    assert (done.returncode, result["ok"]) == (0, True)
    assert result["rows"][0] == {"name": "env_fn can be pickled", "holds": True, "text": ""}
    assert "step" in done.stderr
