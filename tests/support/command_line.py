"""Commands of `python -m collector` in this process."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NamedTuple

from collector.__main__ import main
from collector.__main__ import script as script
from collector.jobs.player import JobFailedError as JobFailedError


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
