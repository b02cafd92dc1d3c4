"""Vector envs give the same results under launchers, notebooks and profilers."""

import pytest

from tests.launchers import LAUNCHERS, hashes, is_installed
from tests.support.paths import ROOT

PAGE = (ROOT / "docs/guides/launchers.md").read_text("utf-8")
HERE = ["pdb", "cProfile", "multiprocessing.Pool", "ProcessPoolExecutor", "pytest"]
SLOW = ["python -", "python -X dev", "ThreadPoolExecutor", "pytest-xdist", "torchrun"]


@pytest.mark.parametrize(
    "name",
    [*(pytest.param(each, marks=pytest.mark.full) for each in HERE)]
    + [pytest.param(each, marks=pytest.mark.slow) for each in SLOW],
)
def test_results_are_those_of_the_plain_program(name, tmp_path):
    launcher = LAUNCHERS[name]
    if not is_installed(launcher):
        pytest.skip(f"needs {launcher.needs}")
    (want,) = hashes(LAUNCHERS["plain"], tmp_path)
    assert hashes(launcher, tmp_path) == [want] * launcher.hashes


def test_the_page_names_each_launcher_of_the_command():
    for name in LAUNCHERS:
        assert name == "plain" or name.partition(" ")[0] in PAGE, name
