"""The benchmark that holds two checkouts against each other runs; what it measures here means nothing."""

import re
from pathlib import Path

import pytest

from benchmarks import paired

pytestmark = pytest.mark.full
ROOT = Path(__file__).resolve().parent.parent
TINY = ["--pairs", "1", "--seconds", "0.01"]


@pytest.mark.parametrize(
    "rows", [["dummy-8"], pytest.param(list(paired.ROWS), marks=pytest.mark.slow)], ids=["one row", "all rows"]
)
def test_a_line_for_each_row_has_both_times_and_their_ratio(rows, capsys):
    assert paired.main([str(ROOT), *TINY, "--rows", *rows]) == 0
    lines = capsys.readouterr().out.splitlines()[-len(rows) :]
    for row, line in zip(rows, lines, strict=True):
        this, other, ratio = re.fullmatch(
            rf"{row} +([\d.]+) us +([\d.]+) us  ([\d.]+) \([\d.]+-[\d.]+\)", line
        ).groups()
        assert float(this) / float(other) == pytest.approx(float(ratio), rel=0.01)


def test_a_folder_without_the_project_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        paired.main([str(tmp_path)])
    assert f"{tmp_path} is no checkout" in capsys.readouterr().err


def test_a_process_that_imports_another_checkout_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with pytest.raises(RuntimeError, match=f"the process for {tmp_path} imported"):
        paired.timed_in(tmp_path, "dummy-8", 1, 0.0)
