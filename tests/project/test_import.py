"""Importing the packages is cheap, loads no heavy library, and provides every public name."""

import importlib
import json
import os
import subprocess
import sys

import pytest

from tests.support.backends import FULL
from tests.support.paths import ROOT

HEAVY = ["torch", "ray", "tensordict", "pettingzoo", "envpool", "dm_control", "mujoco", "ale_py", "stable_baselines3"]
HEAVY += ["msgspec", "tyro", "imageio", "yaml"]
HEAVY += ["pandas", "scipy", "matplotlib", "rich", "psutil", "hypothesis", "pytest"]
NEED_TORCH = [
    "device.math_libraries",
    "device.tensors",
    "device.torch_vector_env",
    "policy.mlp",
]
PUBLIC = {
    "vecenv": {"BaseVectorEnv", "DummyVectorEnv", "SubprocVectorEnv", "ShmemVectorEnv"},
    "collector": {"Rollout", "SyncDataCollector"},
}

# The program notes attempts to import, so it notices libraries that are not installed.
# At the end, heavy libraries cannot be imported.
PROGRAM = """
import contextlib, importlib, json, sys
class Notes:
    names = set()
    def find_spec(self, name, path=None, target=None):
        self.names.add(name.partition(".")[0])
sys.meta_path.insert(0, Notes())

def brought(*modules):
    Notes.names.clear()
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    return sorted(Notes.names - sys.stdlib_module_names)

found = [brought("numpy", "gymnasium", "cloudpickle"), brought("vecenv"), brought("collector")]
found += [brought("numpy.linalg.no_such_module", "gymnasium.no_such_module", "no_such_library.module")]
sys.modules |= dict.fromkeys({heavy!r})
from vecenv import *
found += [[ShmemVectorEnv.__name__, AsyncVectorEnv.__name__, PettingZooEnv.__name__]]

def error_of(function, *arguments):
    try:
        function(*arguments)
    except ImportError as error:
        return str(error)

found += [[error_of(importlib.import_module, "collector." + module) for module in {need_torch!r}]]
from collector.collectors.collector_config import resolve_devices
found += [[error_of(resolve_devices, "cpu", None, None, None)]]
print(json.dumps(found))
"""


def fresh(program: str, **env: str) -> str:
    """Return the output of a program in a new interpreter."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_packages_need_and_bring_nothing_but_their_core_libraries():
    printed = fresh(PROGRAM.format(heavy=HEAVY, need_torch=NEED_TORCH))
    core, vecenv, collector, attempts, public, need_torch, (devices,) = json.loads(printed)
    assert {"numpy", "gymnasium", "cloudpickle"} <= set(core)
    assert set(vecenv) - set(core) == {"vecenv"}
    assert {*core, *vecenv, *collector}.isdisjoint(HEAVY)
    assert attempts == ["gymnasium", "no_such_library", "numpy"]  # notes failed imports and submodules too
    assert public == ["ShmemVectorEnv", "AsyncVectorEnv", "PettingZooEnv"]
    assert all("PyTorch: pip install" in error for error in need_torch), need_torch
    assert "PyTorch: pip install 'vecenv[torch]'" in devices


def test_vecenv_testing_is_imported_when_it_is_used():
    names = fresh("import sys, vecenv; print('vecenv.testing' in sys.modules, vecenv.testing.FakeBackend.__name__)")
    assert names.split() == ["False", "FakeBackend"]


@FULL
def test_importing_vecenv_takes_at_most_50_ms_more_than_numpy_and_gymnasium(tmp_path):
    """Measured in CPU time. On a slow machine, the limit is a third of the time of numpy and gymnasium.

    The best run counts, because noise only adds time. The first run fills the shared bytecode cache.
    """
    program = "from time import process_time as now; start = now(); import numpy, gymnasium\n"
    program += "middle = now(); import vecenv; print(middle - start, now() - middle)"
    times: list[list[float]] = []
    own, allowed = 1.0, 0.0
    while len(times) < 3 or (own > allowed and len(times) < 20):
        printed = fresh(program, PYTHONPYCACHEPREFIX=str(tmp_path), PYTHONDONTWRITEBYTECODE="")
        times.append([float(seconds) for seconds in printed.split()])
        core, own = map(min, zip(*times, strict=True))
        allowed = max(0.05, core / 3)
    assert own <= allowed


def defined_in(package: str, value: object) -> bool:
    return (getattr(value, "__module__", None) or "").partition(".")[0] == package


@pytest.mark.parametrize("package", ["vecenv", "collector"])
def test_all_is_sorted_complete_and_documented(package):
    module = importlib.import_module(package)
    names = module.__all__
    loaded_late = {"AtariVectorEnv", "SB3VecEnv"}  # need optional libraries
    public = {name for name, value in vars(module).items() if not name.startswith("_") and defined_in(package, value)}
    assert names == sorted(set(names))
    assert (public - loaded_late) | PUBLIC[package] <= set(names)
    assert [name for name in names if not hasattr(module, name)] == []
    assert [name for name in names if callable(getattr(module, name)) and not getattr(module, name).__doc__] == []
