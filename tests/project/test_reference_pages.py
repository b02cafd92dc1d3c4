"""The argument tables of the reference pages match the signatures."""

import inspect
import re
import sys

from tests.support.paths import ROOT

sys.path.append(str(ROOT / "docs"))

import api_pages


def test_a_table_lists_every_argument_and_each_row_describes_one():
    from vecenv import ShmemVectorEnv

    lines = "\n".join(api_pages.table("ShmemVectorEnv", ShmemVectorEnv, None, inspect.signature(ShmemVectorEnv)))
    names = re.findall(r"^\* - \*\*`(\w+)`", lines, re.M)
    assert names[:3] == ["env_fns", "wait_num", "timeout"]
    assert {"num_workers", "step_timeout", "on_error", "context", "check_actions"} < set(names)
    assert "backend" not in names
    assert "worker_fn" not in names


def test_a_meaning_is_no_error_and_no_other_argument_has_it():
    """A sentence that names two arguments says of neither what it is."""
    row = re.compile(r"^\* - \*\*`\**(\w+)`\*\*\n(?:\n.*\n)?  - (.*)$", re.M)
    wrong = []
    for name, (_, module) in api_pages.blocks().items():
        page = "\n".join(api_pages.document(module, name))
        for table in re.findall(r"^\* - Parameter\n.*?^```$", page, re.M | re.S):
            named = {}
            for argument, meaning in row.findall(table):
                named.setdefault(meaning, []).append(argument)
            wrong += [
                (name, arguments, meaning)
                for meaning, arguments in named.items()
                if api_pages.OF_ERRORS.match(meaning)
                or (len(arguments) > 1 and all(f"`{each}`" in meaning for each in arguments))
            ]
    assert wrong == []


def test_no_page_shows_the_markup_of_another_project():
    """Docstrings of gymnasium are reStructuredText, but the pages are Markdown."""
    for name, (_, module) in api_pages.blocks().items():
        raw = re.findall(r"(?<!\{py):(?:attr|class|func|meth|obj):`.*", "\n".join(api_pages.document(module, name)))
        assert raw == [], name


def test_links_to_other_projects_are_in_their_inventories():
    inventories = "".join(path.read_text("utf-8") for path in (ROOT / "docs/inventories").iterdir())
    assert {target for target in api_pages.LINKS.values() if f"\n{target} " not in inventories} == set()


def test_no_page_has_the_marks_of_a_merge():
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")):
        assert not re.search(r"^(<{7}|>{7}) ", path.read_text("utf-8"), re.M), path
