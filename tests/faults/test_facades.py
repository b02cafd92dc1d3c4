"""The table of faults through the vector envs of gymnasium and SB3."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.support.backends import FULL
from tests.support.fault_rows import Row, rows_of
from tests.support.faults import Faulty
from tests.support.ledger import said
from vecenv import AsyncVectorEnv, DummyVectorEnv, GymnasiumVectorEnv, SB3VecEnv, ShmemVectorEnv, SubprocVectorEnv
from vecenv import VectorEnvWrapper as Wrapper

N = 3
SAME = {"autoreset_mode": "SameStep"}
KINDS: dict[str, Any] = {
    "next-step": lambda fns: AsyncVectorEnv(fns, num_workers=N),
    "same-step": lambda fns: GymnasiumVectorEnv(SubprocVectorEnv(fns, num_workers=N), **SAME),
    "disabled": lambda fns: AsyncVectorEnv(fns, num_workers=N, autoreset_mode="Disabled"),
    "wrapped": lambda fns: GymnasiumVectorEnv(Wrapper(ShmemVectorEnv(fns, num_workers=N)), **SAME),
    "sb3": lambda fns: SB3VecEnv(ShmemVectorEnv(fns, num_workers=N)),
    "sb3-wrapped": lambda fns: SB3VecEnv(Wrapper(SubprocVectorEnv(fns, num_workers=N))),
    "gymnasium-dummy": lambda fns: GymnasiumVectorEnv(DummyVectorEnv(fns), **SAME),
    "sb3-dummy": lambda fns: SB3VecEnv(DummyVectorEnv(fns)),
}
QUICK = [("next-step", "SIGKILL"), ("sb3", "SIGKILL"), ("gymnasium-dummy", "raise"), ("sb3-dummy", "raise")]


def marks_of(row: Row, kind: str) -> Any:
    if (kind, row.fault) in QUICK:
        return []
    return FULL if row.fault in ("raise", "SIGKILL", "wrong dtype") else pytest.mark.slow


CASES = [
    pytest.param(row, kind, id=f"{kind}-{row.place}-{row.fault}", marks=marks_of(row, kind))
    for row in rows_of("Vector envs of gymnasium and SB3")
    for kind in row.on
]


def observed(result: Any) -> Any:
    """Return the observations of a reset. SB3 returns no infos."""
    return result[0] if isinstance(result, tuple) else result


def set_trap(envs: Any, trap: str) -> None:
    if isinstance(envs, SB3VecEnv):
        envs.set_attr("trap", trap, indices=[1])
    else:
        envs.set_attr("trap", ["", trap, ""])


@pytest.mark.parametrize(("row", "kind"), CASES)
def test_a_fault(row: Row, kind: str) -> None:
    texts = [text.format(place="__init__" if row.place == "construct" else row.place) for text in row.says]
    if row.place == "construct":
        with pytest.raises(ValueError, match="boom") as caught:
            KINDS[kind]([partial(Faulty, i, trap="construct: raise" if i == 1 else "") for i in range(N)])
        assert all(text in said(caught.value) for text in texts)
        return
    envs = KINDS[kind]([partial(Faulty, i) for i in range(N)])
    envs.reset()
    envs.step(np.zeros(N, int))
    set_trap(envs, f"{row.place}: {row.fault}")
    if row.place == "close":
        with pytest.warns(RuntimeWarning) as warned:
            envs.close()
        assert texts[0] in str(warned[0].message)
        return
    call = {
        "step": lambda: envs.step(np.full(N, 7)),
        "reset": envs.reset,
        "call": lambda: envs.env_method("method") if isinstance(envs, SB3VecEnv) else envs.call("method"),
    }[row.place]
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the class is checked below
        call()
    assert type(caught.value).__name__ == row.error
    assert all(text in said(caught.value) for text in texts)
    if row.others == "rows":
        partial_ = caught.value.partial  # type: ignore[attr-defined]
        assert partial_.env_id.tolist() == [0, 2]
        assert partial_.obs[:, 2:].tolist() == [[0, -1] if row.place == "reset" else [2, 7]] * 2
        with pytest.raises(type(caught.value)):  # no env steps while an env has failed
            envs.step(np.full(N, 7))
        obs = observed(envs.reset())
        assert obs[:, 1].tolist() == [3 if row.place == "reset" else 2, obs[1, 1], 3 if row.place == "reset" else 2]
        assert obs[1, 1] == (1 if row.mend == "restart" else obs[0, 1])
        assert obs[:, 2].tolist() == [0] * N
    before = 1 if row.others == "rows" else 2
    assert envs.step(np.full(N, 5))[0][:, 2:].tolist() == [[before, 5]] * N
    envs.close()
