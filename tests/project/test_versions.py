"""setup.cfg, constraints.txt and constraints-oldest.txt agree on the versions for every supported Python."""

import configparser
import re
import subprocess
import sys

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.support.paths import ROOT

CONFIG = configparser.ConfigParser()
CONFIG.read(ROOT / "setup.cfg")
SUPPORTED = re.findall(r"Python :: (3\.\d+)", CONFIG["metadata"]["classifiers"])
EXTRAS = {"": CONFIG["options"]["install_requires"], **CONFIG["options.extras_require"]}


def requirements(extra: str, python: str) -> list[Requirement]:
    """Return the requirements of an extra on this Python, without the names of other extras of this project."""
    lines = [line for line in EXTRAS[extra].splitlines() if line and not line.startswith("#")]
    return [each for each in map(Requirement, lines) if each.name != "vecenv" and applies(each, python)]


def applies(requirement: Requirement, python: str) -> bool:
    environment = {"python_version": python, "python_full_version": f"{python}.9", "sys_platform": "linux"}
    return requirement.marker is None or requirement.marker.evaluate(environment)


def constraints(name: str, python: str) -> dict[str, list[Version]]:
    """Return the version of each package that the file names for this Python."""
    found: dict[str, list[Version]] = {}
    for line in (ROOT / name).read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            each = Requirement(line.partition("#")[0])
            if applies(each, python):
                found.setdefault(each.name, []).append(Version(str(each.specifier).removeprefix("==")))
    return found


@pytest.mark.parametrize("python", SUPPORTED)
def test_constraints_name_one_version_that_setup_cfg_allows_of_each_requirement(python: str) -> None:
    pinned = constraints("constraints.txt", python)
    assert {name: versions for name, versions in pinned.items() if len(versions) > 1} == {}
    for extra in EXTRAS:
        for each in requirements(extra, python):
            assert each.name.lower() in pinned, f"{each} of {extra!r} is missing: make constraints"
            assert each.specifier.contains(pinned[each.name.lower()][0]), f"{each} of {extra!r}: make constraints"


def test_the_oldest_versions_are_the_lower_bounds_of_setup_cfg() -> None:
    """A lower bound is untested if another package needs a newer version."""
    pinned, tested = constraints("constraints-oldest.txt", SUPPORTED[0]), ["", "dev"]
    for extra in tested:
        tested += re.findall(r"\w+", "".join(re.findall(r"vecenv\[(.*)\]", EXTRAS[extra])))
        for each in requirements(extra, SUPPORTED[0]):
            [lowest] = [Version(bound.version) for bound in each.specifier if bound.operator == ">="]
            assert pinned[each.name.lower()] == [lowest], f"{each} of {extra!r}"
    assert {"torch", "job", "data"} <= set(tested)


@pytest.mark.slow
@pytest.mark.parametrize("python", SUPPORTED)
def test_constraints_can_be_installed_from_wheels(python: str) -> None:
    """Asks PyPI. `make test-slow` installs uv for this test."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "setup.cfg", "--extra", "dev"]
    command += ["--python-version", python, "--only-binary", ":all:", "--constraint", "constraints.txt"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    if "Failed to fetch" in done.stderr:
        pytest.skip("PyPI cannot be reached")
    assert done.returncode == 0, done.stderr
