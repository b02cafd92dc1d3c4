"""The page "Works with" lists the tested versions.

tests/vecenv/envs/test_published_envs.py runs suites of envs, and the slow tests of facades and examples other trainers
(sb3-contrib, tianshou, TorchRL, RLlib).
"""

from __future__ import annotations

import re

from tests.support.paths import ROOT
from tests.works_with import ROWS, STATUSES
from vecenv.backends.host.own_process import ONE_PER_PROCESS

PAGE = (ROOT / "docs/guides/works-with.md").read_text("utf-8")
VERSIONS = dict(re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE))
PACKAGES = {
    "Stable-Baselines3": "stable-baselines3",
    "sb3-contrib": "sb3-contrib",
    "TorchRL": "torchrl",
    "RLlib": "ray",
    "gymnasium (with MuJoCo 3.17.0)": "gymnasium",
    "ALE": "ale-py",
    "PettingZoo": "pettingzoo",
    "dm_control": "dm-control",
    "EnvPool (1.2.5 on Python 3.11)": "envpool",
}


def test_the_versions_on_the_page_are_those_that_the_tests_run_with() -> None:
    rows = dict(re.findall(r"^\| ([^|]+) \| ([\d.]+) \|", PAGE, re.MULTILINE))
    assert rows.keys() >= PACKAGES.keys()
    assert {row: rows[row] for row in PACKAGES} == {row: VERSIONS[package] for row, package in PACKAGES.items()}
    assert f"MuJoCo {VERSIONS['mujoco']}" in PAGE


def test_the_page_names_the_packages_that_get_a_process_per_env() -> None:
    table = PAGE.partition("## Envs that share state in their process")[2].partition("## ")[0]
    rows = re.findall(r"^\| ([\w-]+) \| [\d.]+ \| ([^|]+) \|", table, re.MULTILINE)
    named = {module: package for package, modules in rows for module in re.findall(r"`(\w+)`", modules)}
    assert named == ONE_PER_PROCESS


def test_the_table_of_packages_has_rows_that_the_command_understands() -> None:
    assert {row["status"] for row in ROWS.values()} == STATUSES
    assert {name for name, row in ROWS.items() if row["status"] == "one"} == set(ONE_PER_PROCESS.values())
    known = ROWS.keys() & VERSIONS.keys()
    assert known >= {"ale-py", "pettingzoo"}
    assert {name: ROWS[name]["version"] for name in known} == {name: VERSIONS[name] for name in known}
