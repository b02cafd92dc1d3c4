"""Run the tests that are marked `accelerator` on `sim`, each part in a process of its own (see sim_device.py)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch.utils import backend_registration  # noqa: E402

from tests.support.backends import FULL  # noqa: E402
from tests.support.paths import ROOT  # noqa: E402

DEVICE = "tests/collector/device"
PARTS = {
    "the data of collectors": [f"{DEVICE}/test_accelerator.py"],
    "tests that also run on a GPU": [
        f"{DEVICE}/test_collector_devices.py",
        f"{DEVICE}/test_device.py",
        f"{DEVICE}/test_sim_device.py",
        f"{DEVICE}/test_torch_vector_env.py",
        "tests/collector/test_collector_copies.py",
        "tests/collector/test_collector_transforms.py",
    ],
}


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this version of torch cannot register a device from Python",
)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("part", "tier"),
    [
        *((part, "not full and not ray") for part in PARTS),
        *(pytest.param(part, "full", marks=FULL) for part in PARTS),
        pytest.param("the data of collectors", "ray", marks=pytest.mark.ray),
    ],
)
def test_on_the_simulated_device(part: str, tier: str) -> None:
    arguments = [
        "-q",
        "-p",
        "tests.support.sim_device",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-m",
        f"accelerator and {tier}",
    ]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", *arguments, *PARTS[part]]
    ran = subprocess.run(command, cwd=ROOT, env=environ | {"MKL_CBWR": "AUTO"}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout
    assert " skipped" not in ran.stdout
