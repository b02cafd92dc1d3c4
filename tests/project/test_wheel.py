"""The wheel, installed without the checkout, runs the programs of the pages Home and Ten minutes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(560)]
PAGES = "".join((ROOT / "docs" / name).read_text("utf-8") for name in ("index.md", "start/ten-minutes.md"))
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGES, re.M | re.S)
Python = Callable[..., str]


def run(*command: object, cwd: Path, program: str | None = None) -> str:
    """Return the output of a command in an environment without PYTHONPATH."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, input=program, capture_output=True, text=True, timeout=500, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the source distribution of a copy, so that no file is written beside the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("vecenv", "collector"):
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "setup.cfg", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source" / name)
    run(sys.executable, "-m", "build", "--outdir", folder, folder / "source", cwd=folder)
    assert len(list(folder.glob("*.tar.gz"))) == 1
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Python:
    """Return a function that runs Python in an environment with the wheel and the tests' libraries."""
    folder = tmp_path_factory.mktemp("env")
    venv.create(folder, with_pip=False)
    interpreter = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", interpreter, "install", "--quiet"]
    run(*pip, "--no-deps", "--no-index", wheel, cwd=folder)
    packages = next(folder.glob("lib/python*/site-packages"))
    # Python does not read .pth files in these folders, so an editable install is not found.
    (packages / "libraries.pth").write_text("".join(f"{path}\n" for path in sys.path if "site-packages" in path))

    def call(*arguments: str, program: str | None = None) -> str:
        return run(interpreter, "-W", "error", *arguments, cwd=folder, program=program)

    return call


def test_the_wheel_holds_both_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = [path for package in ("vecenv", "collector") for path in (ROOT / package).rglob("*")]
    assert names == {f.relative_to(ROOT).as_posix() for f in files if f.suffix == ".py" or f.name == "py.typed"}


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_programs_of_home_and_ten_minutes_run(python: Python, number: int) -> None:
    assert bool(python("-", program=BLOCKS[number])) == ("print(" in BLOCKS[number])


def test_the_command_lines_run_from_the_wheel(python: Python) -> None:
    program = "import vecenv, collector, sys; print(vecenv.__file__, collector.__file__, sys.prefix)"
    *places, prefix = python("-c", program).split()
    assert all(place.startswith(prefix) for place in places)
    assert "resume" in python("-m", "collector", "--help")
    assert "tune" in python("-m", "vecenv", "--help")
