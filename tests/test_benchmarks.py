"""The benchmarks run from end to end; what they measure here means nothing."""

import io
import json
import os
import pickle
import socket
from multiprocessing.reduction import ForkingPickler

import cloudpickle
import pytest

pytest.importorskip("rich")

from benchmarks import busy, run
from benchmarks.counting import CallCounter, CountedSpec, counted
from vecenv import ShmemVectorEnv

pytestmark = pytest.mark.full
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
    # The call is read, its arguments are read for each of two envs, each value is written, and so is the reply.
    assert after["pickle"] - before["pickle"] >= 6


def test_the_table_of_the_collector_names_both_sides(capsys):
    collector = pytest.importorskip("benchmarks.collector", exc_type=ImportError)
    assert collector.main(["--quick", "--only", "overhead"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "overhead-" in line]
    assert len(lines) == 2
    assert all("vecenv Dummy" in line and "by hand" in line for line in lines)
