"""Programs that tests start and kill: `python -m tests.support.drivers <name> <folder>`.

They have no main guard. A driver reports its progress through files in the folder.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.faulty import Counter, HangsOnStep, SpawnsChild, SpawnsChildAndHangs
from tests.support.ledger import appears
from vecenv import ShmemVectorEnv, SubprocVectorEnv

FOLDER = Path(sys.argv[2])
BACKENDS = {"Subproc": SubprocVectorEnv, "Shmem": ShmemVectorEnv}


def tell(name: str, what: Any = None) -> None:
    """Write a file that appears only when it is complete."""
    draft = FOLDER / f"{name}.draft"
    draft.write_text(json.dumps(what))
    draft.rename(FOLDER / name)


def every_state(context: str, names: list[str]) -> None:
    """Run vector envs in all states: idle, one env busy, with child processes, interpreter lock held."""
    kept = []
    processes: dict[str, list[int]] = {}
    for name in names:
        states: dict[str, list[Any]] = {
            "idle": [Counter, Counter],
            "one busy": [Counter, partial(HangsOnStep, at=1)],
            "with children": [SpawnsChild, partial(SpawnsChildAndHangs, at=1)],
            "with children of envs in envs": [Counter, Nested],
            "with children, lock held": [Counter, partial(SpawnsChildAndHangs, at=1, gil=True)],
        }
        for state, classes in states.items():
            label = f"{name}, {state}"
            seen = [str(FOLDER / f"{label} {i}") for i in range(2)]
            env_fns = [partial(c, i, seen=seen[i]) if is_hanging(c) else partial(c, i) for i, c in enumerate(classes)]
            venv = BACKENDS[name](env_fns, num_workers=2, context=context)
            venv.reset()
            processes[label] = list(venv.get_env_attr("pid"))
            if "children" in state:
                processes[label] += venv.get_env_attr("child", [i for i, c in enumerate(classes) if c is not Counter])
            if state not in ("idle",):
                venv.send([0, 0])
            for i, c in enumerate(classes):
                if is_hanging(c):
                    appears(seen[i])
            kept.append(venv)
    tell("ready", processes)
    signal.pause()


def forked_after_a_thread_started_workers(context: str) -> None:
    """A copy of the program keeps running after the program has ended."""
    kept: list[Any] = []
    make = partial(ShmemVectorEnv, [partial(Counter, i) for i in range(2)], num_workers=2, context=context)
    thread = threading.Thread(target=lambda: kept.append(make()))
    thread.start()
    thread.join()
    copy = os.fork()
    if copy:
        tell("ready", {"copy": copy, "workers": kept[0].get_env_attr("pid")})
    signal.pause()


class Nested(Counter):
    """Env with a vector env, whose envs start programs."""

    def __init__(self, id: int) -> None:
        super().__init__(id)
        self.inner = SubprocVectorEnv([partial(SpawnsChild, i) for i in range(2)], num_workers=2)
        self.child = self.inner.get_env_attr("child")[0]


def is_hanging(env_class: Any) -> bool:
    return isinstance(env_class, partial)


name, which = sys.argv[1], sys.argv[3]
if name == "every_state":
    every_state(which, sys.argv[4:])
else:
    forked_after_a_thread_started_workers(which)
