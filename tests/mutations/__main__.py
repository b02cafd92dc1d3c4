"""Break the code in one place at a time, and report whether the tests notice: `python -m tests.mutations [NAME ...]`.

NAME: a part of names in mutations.toml (default: all). The results are written into results.toml, beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.toml"
TIERS = "not slow and not ray"


def read(name: str) -> dict[str, Any]:
    return tomllib.loads((HERE / f"{name}.toml").read_text("utf-8"))


def problem(mutation: dict[str, Any]) -> str:
    """Return why a mutation cannot be applied to this tree, or an empty text."""
    path = ROOT / mutation["file"]
    count = path.read_text("utf-8").count(mutation["text"]) if path.exists() else 0
    missing = [each for each in mutation["tests"] if not (ROOT / each.partition("::")[0]).exists()]
    return (f"its text occurs {count} times in {mutation['file']}" if count != 1 else "") or (
        f"there is no {missing[0]}" if missing else ""
    )


def copy_of_tree(folder: Path) -> Path:
    """Copy the files that git tracks or would track."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def found_by(mutation: dict[str, Any], tree: Path, tiers: str, limit: float) -> str:
    """Return the first test that fails with this mutation, or an empty text."""
    path = tree / mutation["file"]
    before = path.read_text("utf-8")
    path.write_text(before.replace(mutation["text"], mutation["replacement"]), "utf-8")
    try:
        return first_failure(mutation["tests"], tree, tiers, limit)
    finally:
        path.write_text(before, "utf-8")


def first_failure(tests: list[str], tree: Path, tiers: str, limit: float) -> str:
    options = ["-x", "-q", "-n", "1", "-m", tiers, "--timeout", "60", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=tree,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise RuntimeError(f"the tests did not end within {limit:g} s") from None
        output.seek(0)
        text = output.read()
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    if failed is None and code:
        raise RuntimeError(f"pytest ended with {code}:\n{text[-2000:]}")
    return failed[1] if failed else ""


def outcomes(
    mutations: Iterable[dict[str, Any]], tiers: str, limit: float
) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Apply each mutation to a copy of the tree, and run its tests. Print and yield the verdict, and the failed test.

    The verdict is "found", "NOT FOUND", "gone" if the text has changed, or "ERROR" if the tests do not run or hang.
    """
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        tree = copy_of_tree(Path(folder))
        for each in mutations:
            begin = time.monotonic()
            if by := problem(each):
                verdict = "gone"
            else:
                try:
                    by = found_by(each, tree, tiers, limit)
                    verdict = "found" if by else "NOT FOUND"
                except RuntimeError as error:
                    verdict, by = "ERROR", str(error)[:2000]
            print(f"{verdict:10} {each['name']} ({time.monotonic() - begin:.0f} s) {by}", flush=True)
            yield each, verdict, by


def write_results(results: dict[str, str]) -> None:
    lines = [f"{json.dumps(name)} = {json.dumps(by)}\n" for name, by in results.items()]
    head = "# Written by `python -m tests.mutations`: the first test that failed with each mutation; empty: none.\n\n"
    RESULTS.write_text(head + "".join(lines), "utf-8")


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return the parser of the arguments of both commands."""
    made = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    made.add_argument("--tiers", default=TIERS, help=f"mark expression (default: {TIERS})")
    made.add_argument(
        "--limit", type=float, default=600.0, help="seconds per mutation; a hang of a test ends after 60 s"
    )
    return made


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("names", nargs="*")
    options = arguments.parse_args()
    mutations = read("mutations")
    chosen = [
        each | {"name": name}
        for name, each in mutations.items()
        if not options.names or any(part.lower() in name.lower() for part in options.names)
    ]
    found = 0
    for each, verdict, by in outcomes(chosen, options.tiers, options.limit):
        found += verdict == "found"
        if verdict in ("found", "NOT FOUND"):
            results = (read("results") if RESULTS.exists() else {}) | {each["name"]: by}
            write_results({name: results[name] for name in mutations if name in results})
    print(f"{found} of {len(chosen)} found")
    return found < len(chosen)


if __name__ == "__main__":
    sys.exit(main())
