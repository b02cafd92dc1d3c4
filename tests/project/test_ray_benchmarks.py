"""The soak test on Ray runs, and finds what goes wrong. Its results here have no meaning."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.paths import ROOT

pytest.importorskip("rich")

from benchmarks.ray_soak import Found, Receipts

pytestmark = pytest.mark.full


def signed(pid: int, number: int, *steps: int) -> np.ndarray:
    """Return the observations of one env in a batch."""
    return np.array([[[pid, number, step] for step in steps]])


def test_receipts_see_frames_that_come_twice_are_missing_or_were_never_stepped(tmp_path: Path) -> None:
    receipts = Receipts()
    receipts.add(np.concatenate([signed(7, 0, 0, 1, 2), signed(7, 1, 0, 1, 2)]))
    receipts.add(signed(7, 0, 3, 4))
    assert (receipts.frames, receipts.wrong) == ({(7, 0): 5, (7, 1): 3}, [])
    for batch in (signed(7, 1, 2, 3), signed(7, 0, 6, 7), signed(8, 0, 1, 2)):
        receipts.add(batch)
    assert len(receipts.wrong) == 3
    receipts = Receipts()
    receipts.add(signed(7, 0, 0, 1, 2))
    (tmp_path / "7-0").write_bytes(struct.pack("q", 5))
    assert (receipts.unseen(tmp_path), receipts.wrong) == (2, [])
    (tmp_path / "7-0").write_bytes(struct.pack("q", 2))
    receipts.unseen(tmp_path)
    assert receipts.wrong == ["env 0 of process 7: 3 frames of 2 steps"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_short_soak_holds_all_but_its_speed(tmp_path: Path) -> None:
    """The speed of restarts is not checked, because it depends on the load of the machine."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.ray_soak", "--minutes", "0.4", "--every", "8"]
    command += ["--json", str(tmp_path / "soak.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode in (0, 1), done.stderr
    measured = json.loads((tmp_path / "soak.json").read_text())
    del measured["share"], measured["growth"]
    found = Found(**measured)
    assert found.kills >= 2
    assert all(holds for text, _, holds in found.checks() if "speed" not in text), done.stdout
