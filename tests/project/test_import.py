"""Importing the packages loads no heavy library."""

import json
import subprocess
import sys

from tests.support.paths import ROOT

HEAVY = ["torch", "ray", "tensordict", "pettingzoo", "envpool", "dm_control", "mujoco", "ale_py", "stable_baselines3"]
HEAVY += ["msgspec", "tyro", "imageio", "yaml"]
HEAVY += ["pandas", "scipy", "matplotlib", "rich", "psutil", "hypothesis", "pytest"]
NEED_TORCH = ["device.math_libraries", "device.tensors", "device.torch_vector_env", "policy.mlp"]

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
found += [["vecenv.testing" in sys.modules]]
sys.modules |= dict.fromkeys({heavy!r})
from vecenv import *
import vecenv
public = ShmemVectorEnv, AsyncVectorEnv, PettingZooEnv, vecenv.testing.FakeBackend
found += [[each.__name__ for each in public]]

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


def test_the_packages_need_and_bring_nothing_but_their_core_libraries():
    command = [sys.executable, "-c", PROGRAM.format(heavy=HEAVY, need_torch=NEED_TORCH)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    core, vecenv, collector, attempts, (testing,), public, need_torch, (devices,) = json.loads(done.stdout)
    assert {"numpy", "gymnasium", "cloudpickle"} <= set(core)
    assert set(vecenv) - set(core) == {"vecenv"}
    assert {*core, *vecenv, *collector}.isdisjoint(HEAVY)
    assert attempts == ["gymnasium", "no_such_library", "numpy"]  # notes failed imports and submodules too
    assert not testing, "vecenv.testing is imported when it is used"
    assert public == ["ShmemVectorEnv", "AsyncVectorEnv", "PettingZooEnv", "FakeBackend"]
    assert all("PyTorch: pip install" in error for error in need_torch), need_torch
    assert "PyTorch: pip install 'vecenv[torch]'" in devices
