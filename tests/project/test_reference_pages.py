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
