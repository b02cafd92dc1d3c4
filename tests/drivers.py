"""Programs that the tests start, interrupt and kill: `python -m tests.drivers <name> <folder>`. There is no main guard.

A driver reports where it is by files in its folder: `<name>.ready` before it waits to be disturbed, `<name>.json` for
what it found.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import vecenv.engine.lifetime
from tests.faulty import (
    Counter,
    HangsInInit,
    HangsOnStep,
    SlowClose,
    SpawnsChild,
    SpawnsChildAndHangs,
    WaitsForFile,
)
from tests.ledger import appears
from vecenv import DummyVectorEnv, RayVectorEnv, ShmemVectorEnv, SubprocVectorEnv

FOLDER = Path(sys.argv[2])
LOCAL = {"Dummy": DummyVectorEnv, "Subproc": SubprocVectorEnv, "Shmem": ShmemVectorEnv}
BACKENDS = {**LOCAL, "Ray": RayVectorEnv}


def tell(name: str, what: Any = None) -> None:
    """Write a file that is complete as soon as it is there."""
    draft = FOLDER / f"{name}.draft"
    draft.write_text(json.dumps(what))
    draft.rename(FOLDER / name)


# Killed.


def every_state(context: str, names: list[str]) -> None:
    """Vector envs in all states at once: idle, one env busy, all busy, lock held, with children."""
    kept = []
    processes: dict[str, list[int]] = {}
    for name in names:
        states: dict[str, list[Any]] = {
            "idle": [Counter, Counter],
            "one busy": [Counter, partial(HangsOnStep, at=1)],
            "all busy": [partial(HangsOnStep, at=1)] * 2,
            "lock held": [Counter, partial(HangsOnStep, at=1, gil=True)],
            "with children": [SpawnsChild, partial(SpawnsChildAndHangs, at=1)],
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


def is_hanging(env_class: Any) -> bool:
    return isinstance(env_class, partial)


# Interrupted: each with all backends in turn.


def interrupted_in_step(venv_class: Any, name: str) -> dict[str, Any]:
    """The results of the interrupted step are discarded; a reset makes every env usable."""
    go = FOLDER / f"{name}.go"
    venv = venv_class([partial(Counter, 0), partial(WaitsForFile, 1, at=1, go=str(go))])
    venv.reset()
    found = interruptions(name, venv.step, [5, 6])
    go.touch()
    found["obs"] = venv.reset()[0].tolist()
    found["again"] = venv.step([7, 7])[0].tolist()
    return found | {"close": timed(venv.close)}


def interrupted_in_constructor(venv_class: Any, name: str) -> dict[str, Any]:
    begin = time.monotonic()
    found = interruptions(
        name, venv_class, [partial(Counter, 0), partial(HangsInInit, 1, seen=str(FOLDER / f"{name}.seen"))]
    )
    return found | {"close": time.monotonic() - begin}


def interrupted_in_close(venv_class: Any, name: str) -> dict[str, Any]:
    venv = venv_class([partial(Counter, 0), partial(SlowClose, 1)])
    venv.reset()
    found = interruptions(name, close_quietly, venv)
    return found | {"close": timed(venv.close)}


def interruptions(name: str, call: Any, *args: Any) -> dict[str, Any]:
    """Call, to be interrupted, and count the interrupts: also of those that come late."""
    count = 0
    try:
        tell(f"{name}.ready")
        try:
            call(*args)
        except KeyboardInterrupt:
            count += 1
        appears(FOLDER / f"{name}.sent")
        time.sleep(0.05)
    except KeyboardInterrupt:
        count += 1
    return {"interrupts": count}


def close_quietly(venv: Any) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a worker had to be killed
        venv.close()


def timed(call: Any, *args: Any) -> float:
    begin = time.monotonic()
    call(*args)
    return time.monotonic() - begin


def interrupted_at_random(venv_class: Any, name: str) -> None:
    """Steps and resets for ever; each interrupt may fall anywhere, and after a reset every row is right."""
    from tests.ledger import Ledger

    venv = venv_class([partial(Counter, i) for i in range(4)], num_workers=2)
    ledger = Ledger(venv)
    ledger.begin()
    tell("pid", os.getpid())
    count = 0
    while count < int(sys.argv[3]):
        try:
            tell(f"armed {count}")
            while True:
                ledger.round()
                ledger.round(reset=[1])
        except KeyboardInterrupt:
            count += 1
        while venv.waiting_id:  # the interrupt fell between a send and its recv
            venv.recv()
        venv.reset()
        ledger.catch_up()
        for _ in range(2):
            assert ledger.round() == []
    venv.close()


# Left alone.


def raises_with_an_open_venv(venv_class: Any, name: str) -> None:
    venv = venv_class([partial(Counter, i) for i in range(2)])
    venv.reset()
    venv.step([0, 0])
    tell("ready")
    raise LookupError("the user's own mistake")


def ends_during_a_step(venv_class: Any, name: str) -> None:
    seen = FOLDER / "seen"
    global kept
    kept = venv_class([partial(Counter, 0), partial(HangsOnStep, 1, at=1, seen=str(seen))], num_workers=2)
    kept.reset()
    kept.send([0, 0])
    appears(seen)
    tell("ready")


def in_haste() -> None:
    """Closing by force comes soon: how soon is not what these drivers are about."""
    vecenv.engine.lifetime.CLOSE_TIMEOUT = 0.5


def _main() -> None:
    in_haste()
    name, which = sys.argv[1], sys.argv[3:] and sys.argv[3]
    if name == "every_state":
        every_state(str(which), sys.argv[4:])
    elif name == "interrupted_at_random":
        interrupted_at_random(BACKENDS[sys.argv[4]], sys.argv[4])
    elif name.startswith("interrupted"):
        for backend in LOCAL:
            if not (backend == "Dummy" and name == "interrupted_in_constructor"):
                tell(f"{backend}.json", globals()[name](BACKENDS[backend], backend))
    else:
        globals()[name](BACKENDS[str(which)], which)


np.seterr(all="raise")
_main()
