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
    count = (ROOT / mutation["file"]).read_text("utf-8").count(mutation["text"])
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


def write_results(results: dict[str, str]) -> None:
    lines = [f"{json.dumps(name)} = {json.dumps(by)}\n" for name, by in results.items()]
    head = "# Written by `python -m tests.mutations`: the first test that failed with each mutation; empty: none.\n\n"
    RESULTS.write_text(head + "".join(lines), "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tiers", default=TIERS, help=f"mark expression (default: {TIERS})")
    parser.add_argument(
        "--limit", type=float, default=600.0, help="seconds per mutation; a hang of a test ends after 60 s"
    )
    arguments = parser.parse_args()
    mutations = read("mutations")
    chosen = [
        name
        for name in mutations
        if not arguments.names or any(part.lower() in name.lower() for part in arguments.names)
    ]
    missed = []
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        tree = copy_of_tree(Path(folder))
        for name in chosen:
            if reason := problem(mutations[name]):
                print(f"ERROR      {name}: {reason}", flush=True)
                missed.append(name)
                continue
            begin = time.monotonic()
            try:
                by = found_by(mutations[name], tree, arguments.tiers, arguments.limit)
            except RuntimeError as error:
                print(f"ERROR      {name}: {error}", flush=True)
                missed.append(name)
                continue
            print(f"{'found' if by else 'NOT FOUND':10} {name} ({time.monotonic() - begin:.0f} s) {by}", flush=True)
            missed += [] if by else [name]
            results = (read("results") if RESULTS.exists() else {}) | {name: by}
            write_results({each: results[each] for each in mutations if each in results})
    print(f"{len(chosen) - len(missed)} of {len(chosen)} found")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
