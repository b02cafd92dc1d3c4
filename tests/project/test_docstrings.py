"""The examples in docstrings run, and print the expected results."""

import doctest
import importlib
import inspect

import pytest

from tests.support.backends import FULL, NEEDS_DM_CONTROL
from tests.support.paths import ROOT

PUBLIC = ["vecenv", "vecenv.transforms", "vecenv.sb3", "vecenv.testing", "collector", "collector.testing"]


def modules_with_examples() -> list[str]:
    found = []
    for package in ("vecenv", "collector"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if ">>> " in path.read_text(encoding="utf-8"):
                found.append(path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."))
    return found


LATE = {"vecenv.envs.dm_control_env": [FULL, NEEDS_DM_CONTROL], "vecenv.envs.atari_env": [FULL]}
"""Modules whose libraries take seconds to import."""


@pytest.mark.parametrize(
    "names",
    [
        [name for name in modules_with_examples() if name not in LATE],
        *(pytest.param([name], marks=marks) for name, marks in LATE.items()),
    ],
    ids=["all", *LATE],
)
def test_the_examples_in_docstrings_are_true(names: list[str]) -> None:
    results = {name: doctest.testmod(importlib.import_module(name)) for name in names}
    assert {name: result for name, result in results.items() if result.failed or not result.attempted} == {}
    assert len(names) == 1 or len(names) > 30


def test_every_public_class_method_and_function_has_a_docstring() -> None:
    modules = [importlib.import_module(name) for name in PUBLIC]
    members = [(f"{module.__name__}.{each}", getattr(module, each)) for module in modules for each in module.__all__]
    for each, value in list(members):
        if inspect.isclass(value):
            names = [other for other in dir(value) if not other.startswith("_")]
            members += [(f"{each}.{other}", inspect.getattr_static(value, other)) for other in names]
    undocumented = [each for each, value in members if is_ours(value) and not inspect.getdoc(value)]
    assert undocumented == []


def is_ours(value: object) -> bool:
    """Return True for a class, function, method or property that is defined in this project."""
    if isinstance(value, property):
        value = value.fget
    value = inspect.unwrap(getattr(value, "__func__", value))
    defines = inspect.isclass(value) or inspect.isfunction(value)
    return defines and value.__module__.partition(".")[0] in ("vecenv", "collector")
