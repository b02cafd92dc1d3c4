"""Commands of `python -m collector`, in this process or in a new one."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from collector.__main__ import main
from collector.__main__ import script as script
from collector.jobs.player import JobFailedError as JobFailedError
from tests.support.paths import ROOT


class Done(NamedTuple):
    code: int
    out: str
    error: str

    def json(self) -> Any:
        return json.loads(self.out)


def command(*words: object) -> Done:
    """Run a command in this process."""
    out, error = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(error):
        try:
            code = main([str(word) for word in words])
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Done(code, out.getvalue(), error.getvalue())


def new_process(*words: object, cwd: Path = ROOT, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that has imported nothing yet."""
    arguments = [sys.executable, "-m", "collector", *map(str, words)]
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", **environ}
    return subprocess.run(arguments, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)
