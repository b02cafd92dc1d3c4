"""The benchmarks run from end to end. Their results here have no meaning."""

import importlib
import importlib.util
import io
import json
import os
import pickle
import re
import socket
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler

import cloudpickle
import pytest

from tests.support.paths import ROOT

pytest.importorskip("rich")

from benchmarks import batched, busy, memory, paired, run
from benchmarks.counting import CallCounter, CountedSpec, counted
from vecenv import ShmemVectorEnv

pytestmark = pytest.mark.full
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
ROWS = [
    pytest.param("busy-8"),
    *(pytest.param(row, marks=pytest.mark.slow) for row in run.ROWS if row != "busy-8"),
]


@pytest.mark.parametrize("row", ROWS)
def test_a_row_is_measured_beside_its_yardsticks_and_written_down(row, tmp_path, capsys):
    target = tmp_path / "row.json"
    assert run.main(["--quick", "--lean", "--only", row, "--json", str(target)]) == 0
    results = json.loads(target.read_text())["results"]
    ours = [each for each in results if each["value"] != "-" and each["target"]]
    assert ours, results
    assert all(each["value"][0].isdigit() or each["value"].startswith("PSS") for each in ours)
    assert str(target) in capsys.readouterr().out.replace("\n", "")


def test_vector_envs_are_measured_beside_other_programs(capsys):
    busy.main(["--fast", "--envs", "2", "--rows", "2 at once"])
    _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[3] for row in rows] == ["CartPole", "100"]
    assert all(float(rate.replace(",", "")) > 0 for row in rows for rate in row.split()[-len(busy.CONTENDERS) :])


def test_the_memory_of_a_shared_array_is_measured(capsys):
    memory.main(["vecenv", "gymnasium", "--megabytes", "4", "--envs", "2"])
    rows = [row.split() for row in capsys.readouterr().out.splitlines()]
    assert [row[:2] for row in rows] == [["vecenv", "forkserver"], ["gymnasium", "fork"]]
    assert all(float(row[3]) >= float(row[6]) > 4 for row in rows)


@needs_torch
def test_batched_simulators_are_measured_alone_and_through_vecenv(capsys):
    batched.main(["--quick"])
    _, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = {row[0] if row[0] != "memory" else row[1]: row[1:] for row in rows}
    assert rows.keys() == {*batched.ROWS, "alone", "from_gymnasium", "SB3VecEnv"}
    assert all(float(values[2]) > 0 for name, values in rows.items() if name in batched.ROWS and values[1] != "out:")


def test_the_counter_sees_pickles_in_any_library_and_what_travels_through_sockets_and_pipes():
    with CallCounter() as counter:
        for library in (pickle, cloudpickle, ForkingPickler):
            library.loads(library.dumps(1))
        pickle.Unpickler(io.BytesIO(pickle.dumps(1))).load()
    assert counter.totals == {**dict.fromkeys(counter.totals, 0), "pickle": 8}
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    with ours, theirs, CallCounter() as counter:
        ours.send(b"1")
        ours.sendall(b"2")
        theirs.recv(9)
        os.write(write, b"3")
        os.read(read, 1)
    os.close(read)
    os.close(write)
    assert (counter.totals["socket"], counter.totals["pipe"], counter.totals["pickle"]) == (3, 2, 0)


def test_calls_are_counted_in_the_workers_too(tmp_path):
    with ShmemVectorEnv(CountedSpec("cartpole", folder=str(tmp_path)).env_fns(4), num_workers=2) as venv:
        venv.reset()
        before = counted(str(tmp_path))
        venv.get_env_attr("spec")
        after = counted(str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2
    assert after["socket"] > before["socket"]
    # Reads: the call and its arguments for two envs. Writes: each value and the reply.
    assert after["pickle"] - before["pickle"] >= 6


SCRIPTS = [
    ("coroutines", "--envs", "5", "--rounds", "1", "--repeats", "1", "gather", "coroutines", "threads"),
    ("commands", "--rounds", "1", "--seconds", "0.01", "frames", "proxies"),
    ("threads", "CartPole x 8", "--seconds", "0.1"),
    ("sync_steps", "CartPole x 8", "--seconds", "0.1"),
    ("job_cost", "--steps", "2000", "--rounds", "1"),
    ("job_cost", "--pixels", "--steps", "200", "--rounds", "1"),
    ("tuning", "--envs", "2", "--seconds", "0.5", "--only", "10 us"),
    ("micro",),
    ("datasets", "--only", "open"),
    ("datasets", "--only", "batches", "--gigabytes", "0.01"),
    ("datasets", "--only", "record", "--rounds", "1"),
    pytest.param(("facade", "--rounds", "1", "--seconds", "0.01"), marks=pytest.mark.slow),
    pytest.param(("sb3", "--rounds", "1", "--seconds", "0.01"), marks=pytest.mark.slow),
    pytest.param(("scale", "--part", "workers"), marks=pytest.mark.slow),
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


def test_the_table_of_the_collector_names_both_sides(capsys):
    collector = pytest.importorskip("benchmarks.collector", exc_type=ImportError)
    assert collector.main(["--quick", "--only", "overhead"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "overhead-" in line]
    assert len(lines) == 2
    assert all("vecenv Dummy" in line and "by hand" in line for line in lines)


# Comparison of two checkouts


@pytest.mark.parametrize(
    "rows", [["dummy-8"], pytest.param(list(paired.ROWS), marks=pytest.mark.slow)], ids=["one row", "all rows"]
)
def test_a_line_for_each_row_has_both_times_and_their_ratio(rows, capsys):
    assert paired.main([str(ROOT), "--pairs", "1", "--seconds", "0.01", "--rows", *rows]) == 0
    lines = capsys.readouterr().out.splitlines()[-len(rows) :]
    for row, line in zip(rows, lines, strict=True):
        this, other, ratio = re.fullmatch(
            rf"{row} +([\d.]+) us +([\d.]+) us  ([\d.]+) \([\d.]+-[\d.]+\)", line
        ).groups()
        assert float(this) / float(other) == pytest.approx(float(ratio), rel=0.01)


def test_a_folder_without_the_project_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        paired.main([str(tmp_path)])
    assert f"{tmp_path} is not a checkout" in capsys.readouterr().err


def test_a_process_that_imports_another_checkout_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with pytest.raises(RuntimeError, match=f"the process for {tmp_path} imported"):
        paired.timed_in(tmp_path, "dummy-8", 1, 0.0)


# The device, also without a GPU


@needs_torch
def test_every_part_of_the_device_benchmark_runs_on_the_cpu(tmp_path, capsys):
    gpu = importlib.import_module("benchmarks.gpu")
    target = tmp_path / "gpu.json"
    assert gpu.main(["--device", "cpu", "--fast", "--envs", "2", "--json", str(target)]) == 0
    figures = json.loads(target.read_text())["figures"]
    assert {each["part"] for each in figures} == {"frames", "path", "idle"}
    assert all(min(each["rounds"]) > 0 for each in figures if each["part"] != "idle")
    assert all(0 <= share < 1 for each in figures if each["part"] == "idle" for share in each["rounds"])
    assert all(ratio > 0 for each in figures for ratio in each["ratios"])
    assert "frames/s" in capsys.readouterr().out


@needs_torch
def test_without_cuda_it_reports_that_there_is_none(tmp_path, capsys, monkeypatch):
    gpu = importlib.import_module("benchmarks.gpu")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    target = tmp_path / "gpu.json"
    assert gpu.main(["--json", str(target)]) == 2
    assert "There is no CUDA device" in capsys.readouterr().out
    assert not target.exists()
