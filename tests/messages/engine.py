"""Messages of vector envs: constructors, ids, actions, options."""

from __future__ import annotations

from tests.messages.rows import NOTHING, Subject, rows_for
from tests.support.cases import counting
from vecenv import DummyVectorEnv, ShmemVectorEnv
from vecenv.testing import CountingEnv


def _works(venv: DummyVectorEnv) -> None:
    assert venv.step([0] * 3)[0].shape[0] == 3


def _ready() -> DummyVectorEnv:
    venv = DummyVectorEnv(counting(3))
    venv.reset(seed=0)
    return venv


READY = Subject(_ready, _works)
ROWS = [
    *rows_for(
        NOTHING,
        (lambda _: DummyVectorEnv([]), ValueError, "env_fns is empty", "pass at least one callable"),
        (
            lambda _: DummyVectorEnv([CountingEnv, lambda: None]),
            TypeError,
            "env_fns[1]() returned None",
            "expected an env",
        ),
        (
            lambda _: ShmemVectorEnv(counting(3), spare_envs=-1),
            ValueError,
            "spare_envs must be an integer of at least 0",
            "-1",
        ),
    ),
    *rows_for(
        READY,
        (lambda venv: venv.reset([7]), IndexError, "env id 7"),
    ),
]
