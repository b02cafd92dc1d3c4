"""The benchmark of users' loops runs from end to end, and the pages have its figures."""

import importlib.util
import json
import re

import pytest

pytest.importorskip("rich")

from benchmarks.loops import __main__ as loops
from benchmarks.loops import picture, rows, tables
from benchmarks.measure import Measured
from benchmarks.sample import Sample

pytestmark = pytest.mark.full
TINY = ["--rounds", "1", "--seconds", "0.01", "--patience", "0"]
SLOW = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=[] if row == "pauses-cartpole-8" else SLOW) for row in rows.DEFAULT]
)
def test_every_lane_of_a_row_is_measured_or_left_out_with_a_reason(row, tmp_path, capsys):
    target = tmp_path / "row.json"
    assert loops.main([*TINY, "--only", row, "--json", str(target)]) == 0
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


def measured(**lanes):
    """Build one round per number: steps per second of collecting, with a second of learning in addition."""
    samples = {
        name: [Sample(steps, 1, 2.0, 0.0, 1 / steps, outside=1.0) for steps in found] for name, found in lanes.items()
    }
    return Measured(rows.experiment("pauses-cartpole-8", 1), samples)


def target(limit, **options):
    return rows.Target("a title", "a-row", "ours", ("peer",), limit, **options)


def test_a_ratio_is_the_median_within_rounds_and_its_quartiles():
    found = tables.judge(target(2.0), measured(ours=[20, 90, 120], peer=[10, 30, 60]))
    assert (found.value, found.yardstick, found.reached) == ("90/s", "peer 30/s", True)
    assert found.ratio == "2.00 (2.00-2.50), with learning 2.00"


def test_the_site_has_the_table_and_the_picture_of_the_last_results():
    """The landing page also has the chart's alternative text."""
    document = json.loads(sorted((loops.ROOT / "benchmarks/results").glob("*-loops.json"))[-1].read_text())
    page = loops.PAGE.read_text("utf-8")
    assert page[page.index(tables.BEGIN) : page.index(tables.END)].strip().endswith(tables.page_table(document))
    assert loops.PICTURE.read_text("utf-8") == picture.picture(document)
    assert f"![{picture.alternative_text(document)}](" in (loops.ROOT / "docs/index.md").read_text("utf-8")


def test_the_table_of_the_readme_repeats_figures_of_the_page():
    lines = {line.split("|")[1].strip(): line for line in loops.PAGE.read_text("utf-8").splitlines() if line[:1] == "|"}
    table = (loops.ROOT / "README.md").read_text("utf-8").partition("| loop |")[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        name = line.split("|")[1].strip()
        name = name.replace("stepping, 64 HalfCheetah envs", "stepping with infos, 64 HalfCheetah-v5")
        figures = re.findall(r"\d[\d,]+(?: \([\d,]+\))?", line.partition("|")[2].partition("|")[2])
        assert len(figures) == 3
        assert [each for each in figures if each not in lines[name]] == [], name
