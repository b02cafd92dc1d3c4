"""The examples in docstrings run, and print the expected results."""

import ast
import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

from tests.support.backends import NEEDS_DM_CONTROL
from tests.support.paths import ROOT

MODULES = [
    path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    for package in ("vecenv", "collector")
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


def test_there_are_examples_to_run():
    assert {"vecenv.venvs", "vecenv.nest", "vecenv.facades.to_gymnasium", "collector.collectors.sync_collector"} <= set(
        MODULES
    )


MARKS = {"vecenv.envs.dm_control_env": NEEDS_DM_CONTROL}


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in MODULES])
def test_the_examples_in_docstrings_are_true(name):
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert failed == 0
    assert tried > 0


@pytest.mark.parametrize(
    ("folder", "least"),
    [("vecenv", 950), ("collector", 750), ("tests", 1080), ("benchmarks", 200), ("docs", 30), ("examples", 10)],
)
def test_no_docstring_begins_with_a_question(folder: str, least: int) -> None:
    """A docstring begins with a verb or a noun. This includes docstrings of attributes: a string below an
    assignment.
    """
    found = [(path.name, *each) for path in (ROOT / folder).rglob("*.py") for each in docstrings_of(path)]
    assert len(found) > least
    asks = re.compile(r"(What|How|Which|Where|That of|Those|Whether|When|Why)\b")
    assert [each for each in found if asks.match(each[2])] == []


def docstrings_of(path: Path) -> list[tuple[int, str]]:
    return [
        (child.lineno, child.value.value)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        for child in (node.body if isinstance(getattr(node, "body", None), list) else ())
        if isinstance(child, ast.Expr) and isinstance(getattr(child.value, "value", None), str)
    ]


@pytest.mark.parametrize(
    "name", ["vecenv", "vecenv.transforms", "vecenv.sb3", "vecenv.testing", "collector", "collector.testing"]
)
def test_every_public_class_method_and_function_has_a_docstring(name: str) -> None:
    module = importlib.import_module(name)
    members = [(each, getattr(module, each)) for each in module.__all__]
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
