"""The benchmark of users' loops runs from end to end. Its results here have no meaning."""

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
ROWS = [
    pytest.param(row, marks=[pytest.mark.slow, pytest.mark.timeout(600)] if row != "pauses-cartpole-8" else [])
    for row in rows.DEFAULT
]


@pytest.mark.parametrize("row", ROWS)
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
    assert {result["row"].partition(":")[0] for result in found["results"]} <= {row}
    assert len(found["results"]) == sum(target.row == row for target in rows.targets())


def test_targets_are_measured_in_the_lanes_that_they_name_alone(tmp_path):
    target = tmp_path / "row.json"
    assert loops.main([*TINY, "--targets", "--only", "pauses-cartpole-8", "--json", str(target)]) == 0
    found = json.loads(target.read_text())
    assert list(found["experiments"][0]["samples"]) == [rows.after(rows.SHMEM, ms) for ms in (0, 0.2, 1)]
    assert [result["target"] for result in found["results"]] == ["<= 1.8"] * 2


# Ratios of invented numbers


def measured(**lanes):
    """Build one round per number: steps per second of collecting, with a second of learning in addition."""
    samples = {
        name: [Sample(steps, 1, 2.0, 0.0, 1 / steps, outside=1.0) for steps in found] for name, found in lanes.items()
    }
    return Measured(rows.experiment("pauses-cartpole-8", 1), samples)


def target(over, limit, **options):
    return rows.Target("a title", "a-row", "ours", over, limit, **options)


def test_a_ratio_is_the_median_within_rounds_and_its_quartiles():
    found = tables.judge(target(("peer",), 2.0), measured(ours=[20, 90, 120], peer=[10, 30, 60]))
    assert (found.value, found.yardstick, found.reached) == ("90/s", "peer 30/s", True)
    assert found.ratio == "2.00 (2.00-2.50), with learning 2.00"
    assert found.target == ">= 2"


def test_what_counts_as_reached_and_where_there_is_no_verdict():
    one = measured(ours=[98], peer=[100])
    for limit, options, reached in (
        (1.0, {}, False),
        (1.0, {"counts": 0.97}, True),
        (1.02, {"of": "p50", "at_most": True}, False),
        (1.03, {"of": "p50", "at_most": True}, True),
        (1.0, {"of": "learning_rate", "counts": 0.97}, True),
    ):
        assert tables.judge(target(("peer",), limit, **options), one).reached is reached
    for lanes, names in ((measured(ours=[1]), "peer"), (None, "ours, peer")):
        found = tables.judge(target(("peer",), 1.0), lanes)
        assert (found.ratio, found.reached) == (f"not measured: {names}", None)
    one = measured(ours=[10, 10, 10], peer=[10, 10, 10])
    one.disturbed = 2  # other programs disturbed most rounds
    assert tables.judge(target(("peer",), 1.0), one).reached is None


def test_pure_stepping_is_held_against_another_checkout_and_a_variable_that_sets_threads_named(
    monkeypatch, capsys, tmp_path
):
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setattr(loops.paired, "timed_in", lambda checkout, *_: 2e-6 if checkout == tmp_path else 1e-6)
    monkeypatch.setattr(loops, "DEFAULT", [])
    target = tmp_path / "none.json"
    assert loops.main([*TINY, "--other", str(tmp_path), "--json", str(target)]) == 0
    assert "OMP_WAIT_POLICY=passive is set" in capsys.readouterr().out
    found = json.loads(target.read_text())["results"]
    assert [each["row"] for each in found] == [f"pure stepping: {row}" for row in loops.paired.ROWS]
    assert {(each["value"], each["yardstick"]) for each in found} == {("1.0 us", "before 2.0 us")}
    assert {(each["ratio"], each["reached"]) for each in found} == {("2.00 (2.00-2.00)", True)}


def test_the_table_takes_the_place_between_the_marks_which_the_page_has(tmp_path):
    page, results = tmp_path / "page.md", tmp_path / "loops.json"
    sample = {"steps": 24_680, "calls": 1, "wall": 2.0, "cpu_main": 0.0, "outside": 1.0, "rate": 12_340.0}
    plain = {**sample, "outside": 0.0}
    samples = {rows.SHMEM: [sample], rows.SYNC: [plain], rows.ONE_THREAD: [plain]}
    document = {
        "date": "2026-11-22T10:00:00+00:00",
        "machine": {"cpus_usable": 2, "cpu": "a CPU", "kernel": "6.18.1-x", "python": "3.11.7"},
        "versions": {"gymnasium": "1.4.0", "envpool": "1"},
        "options": {"rounds": 5},
        "experiments": [{"name": "cleanrl-ppo-busy-32", "samples": samples}],
    }
    results.write_text(json.dumps(document))
    page.write_text(f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n")
    for _ in range(2):  # the second call replaces the first table
        tables.write_table(page, results)
        text = page.read_text()
        assert text.startswith(f"before\n{tables.BEGIN}\n")
        assert text.endswith(f"{tables.END}\nafter\n")
        assert "old" not in text
        assert "medians of 5 interleaved runs, default settings of everything (gymnasium 1.4.0)" in text
        assert "| CleanRL-style PPO, 32 envs of 100 us | - | 24,700 (12,300) | - | gymnasium Sync 12,300 |\n" in text
    page.write_text("nothing")
    with pytest.raises(ValueError, match="has no place for the table"):
        tables.write_table(page, page)


def test_the_site_has_the_table_and_the_picture_of_the_last_results():
    """The landing page also has the chart's alternative text."""
    document = json.loads(sorted((loops.ROOT / "benchmarks/results").glob("*-loops.json"))[-1].read_text())
    page = loops.PAGE.read_text("utf-8")
    assert page[page.index(tables.BEGIN) : page.index(tables.END)].strip().endswith(tables.page_table(document))
    assert loops.PICTURE.read_text("utf-8") == picture.picture(document)
    assert f"![{picture.alternative_text(document)}](" in (loops.ROOT / "docs/index.md").read_text("utf-8")


def test_the_table_of_the_readme_repeats_figures_of_the_page():
    rows = {line.split("|")[1].strip(): line for line in loops.PAGE.read_text("utf-8").splitlines() if line[:1] == "|"}
    table = (loops.ROOT / "README.md").read_text("utf-8").partition("| loop |")[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        name = (
            line.split("|")[1]
            .strip()
            .replace("stepping, 64 HalfCheetah envs", "stepping with infos, 64 HalfCheetah-v5")
        )
        figures = re.findall(r"\d[\d,]+(?: \([\d,]+\))?", line.partition("|")[2].partition("|")[2])
        assert len(figures) == 3
        assert [each for each in figures if each not in rows[name]] == [], name
