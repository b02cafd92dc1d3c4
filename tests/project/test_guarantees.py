"""Each promise of the page "Guarantees" has a number, and a test that carries the number.

A promise begins at an anchor such as `<a id="g3-2"></a>` and ends at the next. A test that shows the promise is marked
with `@pytest.mark.guarantee("G3.2")`.
"""

import ast
import re
from itertools import pairwise

import pytest

from tests.support.paths import ROOT

PAGE = (ROOT / "docs/guarantees.md").read_text("utf-8")
SOURCES = [path.read_text("utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py"))]


def promises(page: str) -> list[str]:
    return [f"G{section}.{number}" for section, number in re.findall(r'<a id="g(\d+)-(\d+)"></a>', page)]


def items_without_a_promise(page: str) -> list[str]:
    """Return the items of lists that do not begin with an anchor, unless the list belongs to the text before it."""
    lists = [block for before, block in pairwise(page.split("\n\n")) if not before.endswith(":")]
    return [item for block in lists for item in re.findall(r'^- (?!<a id="g\d+-\d+"></a>).*', block, re.MULTILINE)]


def numbers_in(source: str) -> set[str]:
    """Return the numbers that the decorators of functions and classes, and `pytestmark`, carry."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    marks = [call for call in calls if ast.unparse(call.func) == "pytest.mark.guarantee"]
    return {ast.literal_eval(argument) for mark in marks for argument in mark.args}


def test_each_promise_has_a_test_and_each_marker_names_a_promise() -> None:
    shown = set[str]().union(*(numbers_in(source) for source in SOURCES if "mark.guarantee" in source))
    assert set(promises(PAGE)) - shown == set(), "promises without a test"
    assert shown - set(promises(PAGE)) == set(), "markers without a promise"


def test_each_item_of_the_page_begins_with_a_promise_of_its_own_number() -> None:
    assert items_without_a_promise(PAGE) == []
    assert len(promises(PAGE)) == len(set(promises(PAGE))) > 140


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (promises('- <a id="g3-2"></a>Rows stay. <a id="g3-11"></a>So do ids.'), ["G3.2", "G3.11"]),
        (items_without_a_promise('#\n\n- <a id="g3-2"></a>Rows:\n  - of envs,\n- Ids stay.\n'), ["- Ids stay."]),
        (items_without_a_promise('<a id="g3-2"></a>Rows:\n\n- of envs.\n'), []),
        (numbers_in('@pytest.mark.guarantee("G1.1", "G1.2")\nclass TestA: ...'), {"G1.1", "G1.2"}),
        (numbers_in('pytestmark = [pytest.mark.guarantee("G1.3")]\nother("G1.4")'), {"G1.3"}),
    ],
)
def test_promises_and_markers_are_found(found: object, expected: object) -> None:
    assert found == expected
