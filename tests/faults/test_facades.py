"""The table of faults through the vector envs of gymnasium and SB3."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.support.fault_rows import Row, cases, tier_of_some
from tests.support.faults import Faulty
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
QUICK = ("next-step", "SIGKILL"), ("sb3", "SIGKILL"), ("gymnasium-dummy", "raise"), ("sb3-dummy", "raise")


def set_trap(envs: Any, trap: str) -> None:
    if isinstance(envs, SB3VecEnv):
        envs.set_attr("trap", trap, indices=[1])
    else:
        envs.set_attr("trap", ["", trap, ""])


@cases("Vector envs of gymnasium and SB3", tier_of_some(*QUICK))
def test_faults(rows: list[Row], kind: str) -> None:
    for row in rows:
        print(row)  # for the report of a failure
        check_fault(row, kind)


def check_fault(row: Row, kind: str) -> None:
    if row.place == "construct":
        with pytest.raises(ValueError, match="boom") as caught:
            KINDS[kind]([partial(Faulty, i, trap="construct: raise" if i == 1 else "") for i in range(N)])
        row.check(caught.value)
        return
    envs = KINDS[kind]([partial(Faulty, i) for i in range(N)])
    envs.reset()
    envs.step(np.zeros(N, int))
    set_trap(envs, f"{row.place}: {row.fault}")
    if row.place == "close":
        with pytest.warns(RuntimeWarning) as warned:
            envs.close()
        assert row.texts()[0] in str(warned[0].message)
        return
    call = {
        "step": lambda: envs.step(np.full(N, 7)),
        "reset": envs.reset,
        "call": lambda: envs.env_method("method") if isinstance(envs, SB3VecEnv) else envs.call("method"),
    }[row.place]
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the row checks the class
        call()
    row.check(caught.value)
    if row.others == "rows":
        check_reset(row, envs, caught.value)
    before = 1 if row.others == "rows" else 2
    assert envs.step(np.full(N, 5))[0][:, 2:].tolist() == [[before, 5]] * N
    envs.close()


def check_reset(row: Row, envs: Any, error: Any) -> None:
    """Check that the error has the other rows, no env steps while an env has failed, and a reset is enough."""
    assert error.partial.env_id.tolist() == [0, 2]
    assert error.partial.obs[:, 2:].tolist() == [[0, -1] if row.place == "reset" else [2, 7]] * 2
    with pytest.raises(type(error)):
        envs.step(np.full(N, 7))
    result = envs.reset()
    obs = result[0] if isinstance(result, tuple) else result  # SB3 returns no infos
    episode = 3 if row.place == "reset" else 2
    assert obs[:, 1].tolist() == [episode, 1 if row.mend == "restart" else episode, episode]
    assert obs[:, 2].tolist() == [0] * N
