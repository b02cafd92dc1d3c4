"""What importing the packages costs and brings: nothing beyond numpy and gymnasium, and every public name."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "ray", "tensordict", "pettingzoo", "envpool", "dm_control", "mujoco", "ale_py", "stable_baselines3")
HEAVY += ("pandas", "scipy", "matplotlib", "rich", "psutil", "hypothesis", "pytest")
PUBLIC = {
    "vecenv": {"BaseVectorEnv", "DummyVectorEnv", "SubprocVectorEnv", "ShmemVectorEnv"},
    "collector": {"Rollout", "SyncDataCollector"},
}

# An attempt counts, so that a library need not be installed for its import to be noticed.
NOTE_ATTEMPTS = """
import json, sys
class Notes:
    names = set()
    def find_spec(self, name, path=None, target=None):
        self.names.add(name.partition(".")[0])
sys.meta_path.insert(0, Notes())
import {modules}
print(json.dumps(sorted(Notes.names - sys.stdlib_module_names)))
"""
TIME_IMPORT = """
import time
import numpy, gymnasium
start = time.perf_counter()
import {modules}
print(time.perf_counter() - start)
"""


def fresh(program: str, modules: str, **env: str) -> str:
    """What the program prints in an interpreter of its own."""
    command = [sys.executable, "-c", program.format(modules=modules)]
    env = {**os.environ, **env}
    return subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, text=True, timeout=60).stdout


def libraries(modules: str) -> set[str]:
    return set(json.loads(fresh(NOTE_ATTEMPTS, modules)))


def test_importing_vecenv_brings_nothing_but_its_core_libraries():
    assert libraries("vecenv") - libraries("numpy, gymnasium, cloudpickle") == {"vecenv"}


@pytest.mark.parametrize("package", ["vecenv", "collector"])
def test_importing_a_package_brings_no_heavy_library(package):
    assert libraries(package).isdisjoint(HEAVY)


def test_the_note_of_imports_sees_those_that_fail_and_those_in_packages():
    program = "numpy.linalg\ntry: import envpool\nexcept ImportError: pass"
    assert libraries(program) >= {"numpy", "envpool"}


def test_importing_vecenv_takes_at_most_50_ms_more_than_numpy_and_gymnasium(tmp_path):
    """Noise only ever adds time, so the best run counts. The first one fills a cache of bytecode that all share."""
    cache = {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    fresh(TIME_IMPORT, "vecenv", **cache)
    seconds = []
    while len(seconds) < 5 or (min(seconds) > 0.05 and len(seconds) < 20):
        seconds.append(float(fresh(TIME_IMPORT, "vecenv", **cache)))
    assert min(seconds) <= 0.05


def defined_in(package: str, value: object) -> bool:
    return (getattr(value, "__module__", None) or "").partition(".")[0] == package


@pytest.mark.parametrize("package", ["vecenv", "collector"])
def test_all_is_sorted_and_complete(package):
    module = importlib.import_module(package)
    names = module.__all__
    public = {name for name, value in vars(module).items() if not name.startswith("_") and defined_in(package, value)}
    assert names == sorted(set(names))
    assert public | PUBLIC[package] <= set(names)
    assert [name for name in names if not hasattr(module, name)] == []


@pytest.mark.parametrize("package", ["vecenv", "collector"])
def test_public_names_are_documented(package):
    module = importlib.import_module(package)
    undocumented = [
        name for name in module.__all__ if callable(getattr(module, name)) and not getattr(module, name).__doc__
    ]
    assert undocumented == []
