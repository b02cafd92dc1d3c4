"""The benchmarks run from end to end; what they measure here means nothing."""

import json

import pytest

pytest.importorskip("rich")

from benchmarks import run

ROWS = [
    pytest.param("cartpole-8"),
    *(pytest.param(row, marks=pytest.mark.slow) for row in run.ROWS if row != "cartpole-8"),
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


def test_the_table_of_the_collector_names_both_sides(capsys):
    collector = pytest.importorskip("benchmarks.collector", exc_type=ImportError)
    assert collector.main(["--quick", "--only", "overhead"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "overhead-" in line]
    assert len(lines) == 2
    assert all("vecenv Dummy" in line and "by hand" in line for line in lines)
