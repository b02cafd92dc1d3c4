"""The accelerator of the tests: one that PyTorch sees, or `sim` (see sim_device.py), or none."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

FOUND = torch.accelerator.current_accelerator(check_available=True)
ACCELERATOR = "cuda" if FOUND is None else FOUND.type
"""Name of the accelerator."""
SIM = sys.modules.get("tests.support.sim_device")
"""The module of the simulated accelerator, or `None` if this process has not registered `sim`."""

_ACCELERATOR_MARKS = [
    pytest.mark.accelerator,
    pytest.mark.skipif(FOUND is None, reason="needs an accelerator; test_simulated_device.py runs it on `sim`"),
]
_SIM_MARKS = [pytest.mark.accelerator, pytest.mark.skipif(SIM is None, reason="test_simulated_device.py runs it")]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
ON_ACCELERATOR = pytest.param(ACCELERATOR, marks=_ACCELERATOR_MARKS, id="accelerator")


def needs_accelerator(test: Any) -> Any:
    """Mark a test that needs an accelerator. It runs on `sim` if the machine has none."""
    for mark in _ACCELERATOR_MARKS:
        test = mark(test)
    return test


def needs_sim(test: Any) -> Any:
    """Mark a test that counts copies, or compares bits."""
    for mark in _SIM_MARKS:
        test = mark(test)
    return test


devices = pytest.mark.parametrize("device", ["cpu", ON_ACCELERATOR])
