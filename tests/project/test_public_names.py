"""Public names are complete and documented, their examples run, and the generated reference matches the signatures."""

import doctest
import importlib
import inspect
import re
import sys
from typing import Any

import pytest

from tests.support.backends import FULL, NEEDS_DM_CONTROL
from tests.support.paths import ROOT

sys.path.append(str(ROOT / "docs"))

import api_pages

PACKAGES = ["vecenv", "collector"]
MODULES = [*PACKAGES, "vecenv.transforms", "vecenv.sb3", "vecenv.testing", "collector.testing"]
LOADED_LATE = {"AtariVectorEnv", "SB3VecEnv"}
"""Names that need optional libraries."""
LATE = {"vecenv.envs.dm_control_env": [FULL, NEEDS_DM_CONTROL], "vecenv.envs.atari_env": [FULL]}
"""Modules whose libraries take seconds to import."""
ROW = re.compile(r"^\* - \*\*`\**(\w+)`\*\*\n(?:\n.*\n)?  - (.*)$", re.M)


def with_examples() -> list[str]:
    """Return the names of modules with examples."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    found = [path.relative_to(ROOT).with_suffix("") for path in paths if ">>> " in path.read_text("utf-8")]
    return [".".join(path.parts) for path in found if ".".join(path.parts) not in LATE]


@pytest.mark.parametrize(
    "names", [with_examples(), *(pytest.param([name], marks=marks) for name, marks in LATE.items())], ids=["all", *LATE]
)
def test_the_examples_in_docstrings_are_true(names: list[str]) -> None:
    results = {name: doctest.testmod(importlib.import_module(name)) for name in names}
    assert {name: result for name, result in results.items() if result.failed or not result.attempted} == {}
    assert len(names) == 1 or len(names) > 30


def test_all_is_sorted_and_complete() -> None:
    for package in PACKAGES:
        module = importlib.import_module(package)
        names = module.__all__
        public = {name for name, value in vars(module).items() if name[0] != "_" and is_ours(value, package)}
        assert names == sorted(set(names))
        assert len(public) > 10
        assert public - LOADED_LATE <= set(names)
        assert [name for name in names if not hasattr(module, name)] == []


def test_every_public_class_method_and_function_has_a_docstring() -> None:
    modules = [importlib.import_module(name) for name in MODULES]
    members = [(f"{module.__name__}.{each}", getattr(module, each)) for module in modules for each in module.__all__]
    for each, value in list(members):
        if inspect.isclass(value):
            names = [other for other in dir(value) if not other.startswith("_")]
            members += [(f"{each}.{other}", inspect.getattr_static(value, other)) for other in names]
    ours = [(each, value) for each, value in members if is_ours(value, *PACKAGES)]
    assert [each for each, value in ours if not inspect.getdoc(value)] == []


def is_ours(value: object, *packages: str) -> bool:
    """Return True for a class, function, method or property that is defined in one of the packages."""
    if isinstance(value, property):
        value = value.fget
    function: Any = getattr(value, "__func__", value)
    value = inspect.unwrap(function)
    defines = inspect.isclass(value) or inspect.isfunction(value)
    return defines and value.__module__.partition(".")[0] in packages


def test_a_table_lists_every_argument() -> None:
    from vecenv import ShmemVectorEnv

    lines = "\n".join(api_pages.table("ShmemVectorEnv", ShmemVectorEnv, None, inspect.signature(ShmemVectorEnv)))
    names = re.findall(r"^\* - \*\*`(\w+)`", lines, re.M)
    assert names[:3] == ["env_fns", "wait_num", "timeout"]
    assert {"num_workers", "step_timeout", "on_error", "context", "check_actions"} < set(names)
    assert {"backend", "worker_fn"}.isdisjoint(names)


@pytest.mark.full
def test_pages_describe_each_argument_and_have_no_markup_of_other_projects() -> None:
    """A meaning is not an error, and no other argument has the same. Docstrings of gymnasium are reStructuredText."""
    wrong = []
    for name, (_, module) in api_pages.blocks().items():
        page = "\n".join(api_pages.document(module, name))
        wrong += re.findall(r"(?<!\{py):(?:attr|class|func|meth|obj):`.*", page)
        for table in re.findall(r"^\* - Parameter\n.*?^```$", page, re.M | re.S):
            named: dict[str, list[str]] = {}
            for argument, meaning in ROW.findall(table):
                named.setdefault(meaning, []).append(argument)
            for meaning, arguments in named.items():
                same = len(arguments) > 1 and all(f"`{each}`" in meaning for each in arguments)
                if same or api_pages.OF_ERRORS.match(meaning):
                    wrong.append((name, arguments, meaning))
    assert wrong == []


def test_links_to_other_projects_are_in_their_inventories() -> None:
    inventories = "".join(path.read_text("utf-8") for path in (ROOT / "docs/inventories").iterdir())
    assert {target for target in api_pages.LINKS.values() if f"\n{target} " not in inventories} == set()
