"""The generated pages of the reference match the signatures."""

import inspect
import re
import sys

import pytest

from tests.support.paths import ROOT

sys.path.append(str(ROOT / "docs"))

import api_pages

ROW = re.compile(r"^\* - \*\*`\**(\w+)`\*\*\n(?:\n.*\n)?  - (.*)$", re.M)


def test_a_table_lists_every_argument():
    from vecenv import ShmemVectorEnv

    lines = "\n".join(api_pages.table("ShmemVectorEnv", ShmemVectorEnv, None, inspect.signature(ShmemVectorEnv)))
    names = re.findall(r"^\* - \*\*`(\w+)`", lines, re.M)
    assert names[:3] == ["env_fns", "wait_num", "timeout"]
    assert {"num_workers", "step_timeout", "on_error", "context", "check_actions"} < set(names)
    assert {"backend", "worker_fn"}.isdisjoint(names)


@pytest.mark.full
def test_pages_describe_each_argument_and_have_no_markup_of_other_projects():
    """A meaning is not an error, and no other argument has the same. Docstrings of gymnasium are reStructuredText."""
    wrong = []
    for name, (_, module) in api_pages.blocks().items():
        page = "\n".join(api_pages.document(module, name))
        wrong += re.findall(r"(?<!\{py):(?:attr|class|func|meth|obj):`.*", page)
        for table in re.findall(r"^\* - Parameter\n.*?^```$", page, re.M | re.S):
            named = {}
            for argument, meaning in ROW.findall(table):
                named.setdefault(meaning, []).append(argument)
            wrong += [
                (name, arguments, meaning)
                for meaning, arguments in named.items()
                if api_pages.OF_ERRORS.match(meaning)
                or (len(arguments) > 1 and all(f"`{each}`" in meaning for each in arguments))
            ]
    assert wrong == []


def test_links_to_other_projects_are_in_their_inventories():
    inventories = "".join(path.read_text("utf-8") for path in (ROOT / "docs/inventories").iterdir())
    assert {target for target in api_pages.LINKS.values() if f"\n{target} " not in inventories} == set()
