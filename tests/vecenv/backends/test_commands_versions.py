"""Workers in other interpreters: Python 3.10 with gymnasium 0.29 and numpy 1.26, and Python 3.8 without vecenv.

Asks PyPI. Skipped if an interpreter is missing.
"""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.support.paths import ROOT
from vecenv import DummyVectorEnv, SubprocVectorEnv

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def interpreter(folder, version, packages, first=()):
    """Return an interpreter of this version in a new virtual environment with these packages."""
    found = subprocess.run([ROOT / ".ci/find-python", version], capture_output=True, text=True)
    if found.returncode:
        pytest.skip(f"Python {version} is not installed")
    subprocess.run([found.stdout.strip(), "-m", "venv", folder], check=True)
    for names in filter(None, (first, packages)):
        options = ["--no-build-isolation"] if first and names is packages else []
        done = subprocess.run([folder / "bin/pip", "install", "-q", *options, *names], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"pip cannot install {', '.join(names)}: {done.stderr.strip()[-300:]}")
    return str(folder / "bin/python")


@pytest.fixture(scope="module")
def old_python(tmp_path_factory):
    """Return Python 3.10 with the oldest numpy and gymnasium, and vecenv as `pip install` installs it."""
    folder = tmp_path_factory.mktemp("old")
    for name in ("vecenv", "collector"):  # pip builds in the folder that it installs
        shutil.copytree(ROOT / name, folder / "source" / name)
    for name in ("setup.py", "setup.cfg", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source" / name)
    return interpreter(folder / "venv", "3.10", ["numpy==1.26.4", "gymnasium==0.29.1", str(folder / "source")])


def steps(venv, rounds=300):
    """Return observations, rewards and flags of a seeded run with autoresets."""
    rng = np.random.default_rng(0)
    obs, _ = venv.reset(seed=7)
    found = [obs]
    for k in range(rounds):
        seeds = [1000 * k + i for i in range(venv.env_num)]
        found += venv.step(rng.integers(0, 2, venv.env_num), autoreset=seeds)[:4]
    return found


@pytest.mark.parametrize("worker", [["-m", "vecenv.worker"], [str(ROOT / "vecenv/worker_numpy.py")]], ids=str)
def test_python_3_10_gives_the_same_bits(old_python, worker, monkeypatch, capfd):
    monkeypatch.chdir(os.path.dirname(old_python))  # so that the worker imports the installed package
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with DummyVectorEnv(["CartPole-v1"] * 3) as venv:
        expected = steps(venv)
    with SubprocVectorEnv(["CartPole-v1"] * 3, num_workers=2, worker_command=[old_python, *worker]) as venv:
        found = steps(venv)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        assert np.array_equal(a, b)
    assert capfd.readouterr().err == ""


@pytest.mark.timeout(1800)
def test_python_3_10_keeps_the_promises_of_commands(old_python):
    """The tests of commands run in a pytest of their own, in which the workers run on Python 3.10."""
    names = [ROOT / f"tests/vecenv/backends/{name}.py" for name in ("test_commands", "test_commands_places")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-m", "not slow", *names]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "VECENV_WORKER": old_python}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:]


GYM_21 = ["gym==0.21.0", "numpy==1.23.5"]
PINNED = ("pip==23.0.1", "setuptools==65.5.0", "wheel==0.38.4")
OLD_PACKAGES = {
    "gym-minigrid": ("3.10", [*GYM_21, "gym-minigrid==1.0.3"], "gym_minigrid:MiniGrid-Empty-5x5-v0", {}),
    "procgen": ("3.10", [*GYM_21, "procgen==0.10.7"], "procgen:procgen-coinrun-v0", {"rand_seed": 5}),
    "gym-super-mario-bros": (
        "3.10",
        ["gym==0.26.2", "numpy==1.26.4", "gym-super-mario-bros==7.4.0"],
        "gym_super_mario_bros:SuperMarioBros-v3",
        {"apply_api_compatibility": True},
    ),
    "lbforaging": ("3.9", [*GYM_21, "lbforaging==1.1.1"], "lbforaging:Foraging-8x8-2p-1f-v2", {}),
    "gym-sokoban": ("3.8", ["gym==0.17.3", "numpy==1.22.4", "gym-sokoban==0.0.6"], "gym_sokoban:Sokoban-small-v0", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", OLD_PACKAGES)
def test_old_packages_step_in_the_worker_of_one_file(name, tmp_path):
    version, packages, env_id, kwargs = OLD_PACKAGES[name]
    command = [interpreter(tmp_path / "venv", version, packages, PINNED), str(ROOT / "vecenv/worker_numpy.py")]
    entry = ("gym:make", {"id": env_id, **kwargs})
    with SubprocVectorEnv([entry] * 2, num_workers=2, worker_command=command) as venv:
        venv.reset(seed=1)
        for _ in range(20):
            obs, rew, *_ = venv.step([space.sample() for space in venv.action_space], autoreset=True)
        first = next(iter(obs.values())) if isinstance(obs, dict) else obs[0] if isinstance(obs, tuple) else obs
        assert len(first) == len(rew) == 2
