"""Each promise of the page "Guarantees" has a number, and a test that carries the number.

A promise begins at an anchor such as `<a id="g3-2"></a>` and ends at the next. A test that shows the promise is marked
with `@pytest.mark.guarantee("G3.2")`.
"""

import re
from itertools import pairwise

from tests.support.paths import ROOT

OWN = ROOT / "tests/project/test_guarantees.py"
PAGE = (ROOT / "docs/guarantees.md").read_text("utf-8")
PROMISES = [f"G{section}.{number}" for section, number in re.findall(r'<a id="g(\d+)-(\d+)"></a>', PAGE)]


def test_each_promise_has_a_test_and_each_marker_names_a_promise() -> None:
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py") if path != OWN)
    marks = re.findall(r"^[^#\n]*\bmark\.guarantee\(([^)]*)\)", sources, re.MULTILINE)
    shown = set(re.findall(r'"(.*?)"', "".join(marks)))
    assert set(PROMISES) - shown == set(), "promises without a test"
    assert shown - set(PROMISES) == set(), "markers without a promise"


def test_each_item_of_the_page_begins_with_a_promise_of_its_own_number() -> None:
    """Except items of a list that belongs to the text before the list."""
    lists = [block for before, block in pairwise(PAGE.split("\n\n")) if not before.endswith(":")]
    items = [item for block in lists for item in re.findall(r'^- (?!<a id="g\d+-\d+"></a>).*', block, re.MULTILINE)]
    assert items == []
    assert len(PROMISES) == len(set(PROMISES)) > 140
