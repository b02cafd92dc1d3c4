"""Check rows of the table of packages again: `python -m tests.works_with NAME...` (or `--field FIELD`).

Each package is installed into a virtual environment of its own. There, 3 envs step 60 times alone, in one process, and
in two worker processes, with the same seeds and actions. The row must say what was seen. `--keep FOLDER` keeps the
environments, and `--list` prints the names. Not a part of the tests, because it installs packages of others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FIELDS = tomllib.loads((ROOT / "docs/tables/packages.toml").read_text("utf-8"))["field"]
ROWS = {row["package"]: row for field in FIELDS for row in field["rows"]}
STATUSES = {"equal", "first", "random", "global", "one", "adapter", "fails"}
TIMEOUT = 900.0


def install(row: dict[str, Any], folder: Path) -> Path:
    """Install a package, and return the Python that has it."""
    python = folder / row["package"] / "bin" / "python"
    if not python.exists():
        venv.create(python.parent.parent, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        base = ["gymnasium>=1.2,<2", "numpy>=2.1,<3", "cloudpickle>=2.2,<4", *row.get("needs", [])]
        package = f"{row['package']}=={row['version']}"
        if row.get("kind") == "parallel":
            base.append("pettingzoo>=1.27,<2")
        if row.get("deps", True):
            _run([*pip, *base, package])
        else:
            _run([*pip, *base])
            _run([*pip, "--no-deps", package])
    return python


def _run(command: list[str], **options: Any) -> str:
    options = {"capture_output": True, "text": True, "timeout": TIMEOUT, **options}
    done = subprocess.run(command, **options)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[-3:])}: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


def check(row: dict[str, Any], folder: Path) -> tuple[str, str]:
    """Return what the package does, as in the column `status`, and the env that was played."""
    python = install(row, folder)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SDL_VIDEODRIVER": "dummy"}
    command = [str(python), "-W", "ignore", "-m", "tests.support.play_package", json.dumps(row)]
    out = _run(command, env=env, cwd=python.parent.parent)
    found = json.loads(out.rpartition("RESULT ")[2])
    return found["status"], found["env"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="packages of the table")
    parser.add_argument("--field", action="append", default=[], help="all packages of a field")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the virtual environments there")
    parser.add_argument("--list", action="store_true", help="print the names of the packages")
    options = parser.parse_args(arguments)
    names = options.names + [row["package"] for each in FIELDS if each["name"] in options.field for row in each["rows"]]
    if options.list or not names:
        print(*ROWS, sep="\n")
        return 0
    failures = 0
    for name in names:
        row = ROWS[name]
        if not row.get("check", True) or row["status"] in ("adapter", "fails"):
            print(f"{name:28} {row['status']:8} is not checked by this command", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                status, env = check(row, options.keep or Path(folder))
            except Exception as error:
                status, env = f"{type(error).__name__}: {error}", ""
        failures += status != row["status"]
        print(f"{name:28} {row['status']:8} {'ok' if status == row['status'] else f'NOW {status}':8} {env}", flush=True)
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
