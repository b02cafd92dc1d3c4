"""The benchmark of the device runs from end to end, and reports where there is no GPU."""

import json

import pytest

torch = pytest.importorskip("torch")

from benchmarks import gpu  # noqa: E402

pytestmark = pytest.mark.full


def test_every_part_runs_on_the_cpu(tmp_path, capsys):
    target = tmp_path / "gpu.json"
    assert gpu.main(["--device", "cpu", "--fast", "--envs", "2", "--json", str(target)]) == 0
    figures = json.loads(target.read_text())["figures"]
    assert {each["part"] for each in figures} == {"frames", "path", "idle"}
    assert all(min(each["rounds"]) > 0 for each in figures if each["part"] != "idle")
    assert all(0 <= share < 1 for each in figures if each["part"] == "idle" for share in each["rounds"])
    assert all(ratio > 0 for each in figures for ratio in each["ratios"])
    assert "frames/s" in capsys.readouterr().out


def test_without_cuda_it_reports_that_there_is_none(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    target = tmp_path / "gpu.json"
    assert gpu.main(["--json", str(target)]) == 2
    assert "There is no CUDA device" in capsys.readouterr().out
    assert not target.exists()
