"""Programs that tests run in a new interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT


def run_python(
    *arguments: object, stdin: str | None = None, cwd: Path = ROOT, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS`, with the path of this checkout."""
    command, env = [sys.executable, *map(str, arguments)], {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    return subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, text=True, timeout=110, env=env)


def output_of(*arguments: object, stdin: str | None = None, cwd: Path = ROOT, **environ: str) -> str:
    """Return the output of `python ARGUMENTS`, which must succeed and print nothing on stderr."""
    done = run_python(*arguments, stdin=stdin, cwd=cwd, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
