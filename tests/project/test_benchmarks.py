"""The benchmarks run from end to end, with results that have no meaning, and the pages have the last figures."""

import importlib.util
import json
import os
import pickle
import re
import socket
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

pytest.importorskip("rich")

from benchmarks import paired, run
from benchmarks.counting import CallCounter, CountedSpec, counted
from benchmarks.loops import __main__ as loops
from benchmarks.loops import picture, rows, tables
from vecenv import ShmemVectorEnv

pytestmark = pytest.mark.full
SLOW = [pytest.mark.slow, pytest.mark.timeout(600)]
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


@pytest.mark.parametrize("row", [pytest.param(row, marks=[] if row == "busy-8" else SLOW) for row in run.ROWS])
def test_a_row_is_measured_beside_its_yardsticks_and_written_down(row, tmp_path, capsys):
    target = tmp_path / "row.json"
    assert run.main(["--quick", "--lean", "--only", row, "--json", str(target)]) == 0
    results = json.loads(target.read_text())["results"]
    ours = [each for each in results if each["value"] != "-" and each["target"]]
    assert ours, results
    assert all(each["value"][0].isdigit() or each["value"].startswith("PSS") for each in ours)


def test_the_counter_sees_pickles_sockets_and_pipes_in_the_workers_too(tmp_path):
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    with ours, theirs, CallCounter() as counter:
        pickle.loads(pickle.dumps(1))
        ours.sendall(b"2")
        theirs.recv(9)
        os.write(write, b"3")
        os.read(read, 1)
    os.close(read)
    os.close(write)
    assert (counter.totals["socket"], counter.totals["pipe"], counter.totals["pickle"]) == (2, 2, 2)
    with ShmemVectorEnv(CountedSpec("cartpole", folder=str(tmp_path)).env_fns(4), num_workers=2) as venv:
        venv.reset()
        before = counted(str(tmp_path))
        venv.get_env_attr("spec")
        after = counted(str(tmp_path))
    assert after["socket"] > before["socket"]
    # Reads: the call and its arguments for two envs. Writes: each value and the reply.
    assert after["pickle"] - before["pickle"] >= 6


SCRIPTS = [
    ("busy", "--fast", "--envs", "2", "--rows", "quiet"),
    ("memory", "vecenv", "gymnasium", "--megabytes", "4", "--envs", "2"),
    ("batched", "--quick", "--only", "cartpole", "recorder-16"),
    ("coroutines", "--envs", "5", "--rounds", "1", "--repeats", "1", "gather", "coroutines", "threads"),
    ("commands", "--rounds", "1", "--seconds", "0.01", "frames"),
    ("threads", "CartPole x 8", "--seconds", "0.1"),
    ("job_cost", "--steps", "2000", "--rounds", "1"),
    ("tuning", "--envs", "2", "--seconds", "0.5", "--only", "10 us"),
    ("micro",),
    ("gpu", "--device", "cpu", "--fast", "--envs", "2", "--json", os.devnull),
    ("datasets", "--only", "open"),
    ("datasets", "--only", "batches", "--gigabytes", "0.01"),
    ("datasets", "--only", "record", "--rounds", "1"),
    ("collector", "--quick", "--only", "overhead"),
    *(
        pytest.param(arguments, marks=pytest.mark.slow)
        for arguments in [
            ("batched", "--quick"),
            ("commands", "--rounds", "1", "--seconds", "0.01", "proxies"),
            ("sync_steps", "CartPole x 8", "--seconds", "0.1"),
            ("job_cost", "--pixels", "--steps", "200", "--rounds", "1"),
            ("facade", "--rounds", "1", "--seconds", "0.01"),
            ("sb3", "--rounds", "1", "--seconds", "0.01"),
            ("scale", "--part", "workers"),
        ]
    ),
    pytest.param(("scale", "--actors", "2", "--seconds", "0.2"), marks=pytest.mark.ray),
    pytest.param(
        ("ray", "--only", "ray-cartpole-64", "--rounds", "1", "--seconds", "0.1", "--patience", "0"),
        marks=pytest.mark.ray,
    ),
]


@needs_torch
@pytest.mark.timeout(600)
@pytest.mark.parametrize("arguments", SCRIPTS, ids=" ".join)
def test_a_script_runs_and_prints_figures(arguments):
    command = [sys.executable, "-W", "ignore", "-m", f"benchmarks.{arguments[0]}", *arguments[1:]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d", done.stdout)


@pytest.mark.parametrize(
    "names", [["dummy-8"], pytest.param(list(paired.ROWS), marks=SLOW)], ids=["one row", "all rows"]
)
def test_two_checkouts_are_compared_in_a_line_per_row(names, capsys):
    assert paired.main([str(ROOT), "--pairs", "1", "--seconds", "0.01", "--rows", *names]) == 0
    for name, line in zip(names, capsys.readouterr().out.splitlines()[-len(names) :], strict=True):
        form = rf"{name} +([\d.]+) us +([\d.]+) us  ([\d.]+) \([\d.]+-[\d.]+\)"
        this, other, ratio = map(float, re.fullmatch(form, line).groups())
        assert this / other == pytest.approx(ratio, rel=0.01)


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=[] if row == "pauses-cartpole-8" else SLOW) for row in rows.DEFAULT]
)
def test_every_lane_of_a_loop_is_measured_or_left_out_with_a_reason(row, tmp_path, capsys):
    target = tmp_path / "row.json"
    tiny = ["--rounds", "1", "--seconds", "0.01", "--patience", "0"]
    assert loops.main([*tiny, "--only", row, "--json", str(target)]) == 0
    found = json.loads(target.read_text())
    (one,) = found["experiments"]
    wanted = {lane.title for lane in rows.experiment(row, 1).lanes}
    assert one["samples"].keys() | one["skipped"].keys() == wanted
    installed = importlib.util.find_spec("mujoco") is not None or not row.startswith("half-cheetah")
    assert not installed or any(title in one["samples"] for title in (rows.SHMEM, rows.after(rows.SHMEM, 1)))
    for title, (sample,) in one["samples"].items():
        assert sample["steps"] > 0, title
        assert 0 <= sample["outside"] < sample["wall"], title
    out = capsys.readouterr().out
    assert all(f"{title}: skipped" in out for title in one["skipped"])
    assert len(found["results"]) == sum(target.row == row for target in rows.targets())


def test_the_site_has_the_table_and_the_picture_of_the_last_results():
    """The landing page also has the chart's alternative text, and the README some figures."""
    document = json.loads(sorted((ROOT / "benchmarks/results").glob("*-loops.json"))[-1].read_text())
    page, readme, home = ((ROOT / name).read_text("utf-8") for name in (loops.PAGE, "README.md", "docs/index.md"))
    assert page[page.index(tables.BEGIN) : page.index(tables.END)].strip().endswith(tables.page_table(document))
    assert loops.PICTURE.read_text("utf-8") == picture.picture(document)
    assert f"![{picture.alternative_text(document)}](" in home
    lines = {line.split("|")[1].strip(): line for line in page.splitlines() if line[:1] == "|"}
    for line in readme.partition("| loop |")[2].partition("\n\n")[0].splitlines()[2:]:
        name, _, figures = line.strip("|").partition("|")
        name = name.strip().replace("stepping, 64 HalfCheetah envs", "stepping with infos, 64 HalfCheetah-v5")
        found = re.findall(r"\d[\d,]+(?: \([\d,]+\))?", figures)
        assert len(found) == 3
        assert [each for each in found if each not in lines[name]] == [], name
