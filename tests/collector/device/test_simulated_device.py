"""Run the tests that are marked `accelerator` on `sim`, in a process of its own (see sim_device.py)."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.utils import backend_registration  # noqa: E402

from tests.support.backends import FULL  # noqa: E402
from tests.support.paths import ROOT  # noqa: E402

TESTS = sorted(
    str(path) for path in (ROOT / "tests/collector").rglob("test_*.py") if "tests.support.devices" in path.read_text()
)


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this version of torch cannot register a device from Python",
)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "tier",
    ["not full and not ray", pytest.param("full", marks=FULL), pytest.param("ray", marks=pytest.mark.ray)],
)
def test_on_the_simulated_device(tier: str) -> None:
    options = ["-q", "-p", "tests.support.sim_device", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environ["TMPDIR"] = str(Path(tempfile.gettempdir()).parent)  # Ray's sockets need a short path
    command = [sys.executable, "-m", "pytest", *options, "-m", f"accelerator and {tier}", *TESTS]
    ran = subprocess.run(command, cwd=ROOT, env=environ | {"MKL_CBWR": "AUTO"}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout
    assert " skipped" not in ran.stdout
