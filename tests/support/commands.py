"""`CommandVectorEnv`: workers that are commands, for tests with any env function. Workers import this module too."""

from __future__ import annotations

import os
import sys
from typing import Any

from tests.support.paths import ROOT
from vecenv import SubprocVectorEnv
from vecenv.backends.ipc.serialization import dumps_by_value, loads_by_value

COMMAND = ["env", f"PYTHONPATH={ROOT}", os.environ.get("VECENV_WORKER", sys.executable), "-m", "vecenv.worker"]
"""Worker of this checkout. VECENV_WORKER: another interpreter, with numpy, gymnasium and cloudpickle."""


def unpickled(blob: bytes) -> Any:
    return loads_by_value(blob)()


def named(env_fn: Any) -> Any:
    """Return the name of a function that makes the env of `env_fn`, because a command takes no functions."""
    return (f"{__name__}:unpickled", {"blob": dumps_by_value(env_fn)}) if callable(env_fn) else env_fn


class CommandVectorEnv(SubprocVectorEnv):
    """SubprocVectorEnv whose workers are `python -m vecenv.worker`."""

    def __init__(self, env_fns: Any, *args: Any, **options: Any) -> None:
        names = [named(env_fn) for env_fn in env_fns] if isinstance(env_fns, (list, tuple)) else env_fns
        super().__init__(names, *args, **{"worker_command": COMMAND, **options})
