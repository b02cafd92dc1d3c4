"""The examples in docstrings: each of them runs, and gives what it says."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = [
    path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    for package in ("vecenv", "collector")
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


def test_there_are_examples_to_run():
    assert {"vecenv.venvs", "vecenv.nest", "vecenv.facades.to_gymnasium", "collector.sync_collector"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_are_true(name):
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert failed == 0
    assert tried > 0


def test_no_docstring_begins_with_a_question():
    """Its first word is the verb or the thing."""
    files = [path for package in ("vecenv", "collector") for path in (ROOT / package).rglob("*.py")]
    docstring = re.compile(r'(?:\A|:\n *)r?"""(\w+ ?\w*)')
    begins = [(path, begin) for path in files for begin in docstring.findall(path.read_text("utf-8"))]
    assert len(begins) > 1000
    assert [one for one in begins if re.match(r"(What|How|Where|That of|Those|Whether|When|Why)\b", one[1])] == []
