"""A KeyboardInterrupt at each bytecode of a call: later calls do not hang, rows are not stale, and a reset makes all
envs usable.

Real signals arrive only at some bytecodes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.store.safe_folder import SafeFolder
from tests.support.backends import BACKENDS
from tests.support.coroutine_envs import CoroutineVectorEnv
from tests.support.faulty import Chatty
from tests.support.interrupts import interrupted, interrupted_at
from tests.support.local_ray import FAR, NEAR
from vecenv import RayVectorEnv, arguments


def check_rows(rows: Any, t: int) -> None:
    """Check that each value of the rows belongs to step t."""
    obs, *_, info = rows
    assert obs["row"][:, 2].tolist() == [t] * len(info)
    assert obs["text"].tolist() == [f"{t}"] * len(info)
    assert [(each["env_id"], each["at"]) for each in info] == [(i, t) for i in range(len(info))]


def check_usable(venv: Any) -> None:
    """Check that a reset makes each env usable, without stale rows."""
    if venv.waiting_id:  # the interrupt came after the last instant of a `send`
        venv.recv()
    check_rows(venv.reset(), 0)
    assert venv.get_env_attr("t") == [0] * len(venv)
    for t in (1, 2):
        check_rows(venv.step(np.zeros(len(venv), np.int64)), t)
    assert (venv.waiting_id, venv.failed_id) == ([], [])


ACTIONS = np.zeros(3, np.int64)
CALLS: dict[str, Callable[[Any], Any]] = {
    "step": lambda venv: venv.step(ACTIONS),
    "partial": lambda venv: venv.step(ACTIONS[:2], [2, 0], reset=[0]),
    "send_recv": lambda venv: (venv.send(ACTIONS), venv.recv()),
    "reset": lambda venv: venv.reset(seed=1),
    "call": lambda venv: venv.get_env_attr("t"),
    "set_state": lambda venv: venv.call("set_wrapper_attr", "x", 1),
    "stats": lambda venv: venv.stats(),
}


def instants(tier: str, call: str) -> Iterator[int]:
    """Yield instants of a call: all, or a random selection."""
    n, rng = 1, np.random.default_rng(sorted(CALLS).index(call))
    while True:
        yield n
        n += 1 if tier == "all" else int(rng.integers(1, 120))


@pytest.mark.guarantee("G8.17")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("backend", [*BACKENDS, CoroutineVectorEnv], ids=lambda backend: backend.__name__)
@pytest.mark.parametrize("tier", ["some", pytest.param("all", marks=[pytest.mark.full, pytest.mark.timeout(600)])])
def test_after_an_interrupt_at_any_bytecode_a_reset_makes_all_usable(tier: str, backend: Any, call: str) -> None:
    with backend([partial(Chatty, i) for i in range(3)], num_workers=2) as venv:
        check_usable(venv)
        for n in instants(tier, call):
            try:
                if not interrupted_at(n, lambda: CALLS[call](venv)):
                    break
                check_usable(venv)
            except BaseException:
                print(f"interrupted before bytecode {n}")
                raise
        print(f"{backend.__name__}, {call}, {tier}: no interrupt from bytecode {n} on")
        assert n > 100


@pytest.mark.local_ray
@pytest.mark.ray
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("place", [NEAR, FAR], ids=["near", "far"])
def test_after_an_interrupt_at_any_bytecode_a_reset_makes_the_envs_of_actors_usable(
    place: dict[str, Any], call: str
) -> None:
    with RayVectorEnv([partial(Chatty, i) for i in range(3)], num_workers=2, **place) as venv:
        check_usable(venv)
        for n in instants("some", call):
            print(f"interrupted before bytecode {n}")
            if not interrupted_at(n, lambda: CALLS[call](venv)):
                break
            check_usable(venv)
        assert n > 100


@pytest.mark.parametrize("backend", [*BACKENDS, CoroutineVectorEnv], ids=lambda backend: backend.__name__)
def test_an_interrupt_of_the_recovery_is_recovered_from(backend: Any) -> None:
    with backend([partial(Chatty, i) for i in range(3)], num_workers=2) as venv:
        check_usable(venv)
        for n in instants("some", "step"):
            assert interrupted_at(n % 150 + 100, lambda: venv.step(ACTIONS))
            if not interrupted_at(n, lambda: venv.reset()):
                break
            check_usable(venv)
        assert n > 100


def test_a_finalizer_of_garbage_is_not_interrupted(tmp_path: Path) -> None:
    garbage: list[Any] = [SafeFolder(tmp_path)]
    garbage.append(garbage)
    del garbage
    raised, _ = interrupted(lambda: [[] for _ in range(10_000)], 1)  # enough lists to start a garbage collection
    assert raised == 0
    gc.collect()


def test_the_end_of_a_generator_that_is_left_early_is_not_interrupted() -> None:
    """No signal handler runs there. Python would only warn of the exception, which fails this test."""

    def refuse() -> None:
        with suppress(IndexError):
            arguments.as_ids([9, 2], 3)

    n = 1
    while interrupted_at(n, refuse):
        n += 1
    assert n > 5
