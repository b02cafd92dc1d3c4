"""Simulators that return columns, in every form, against the same envs one by one."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.fuzz.driver import Program
from tests.fuzz.envs import assert_same
from tests.support.simulators import Alone, Simulator
from vecenv import DummyVectorEnv, from_gymnasium, nest

N = 4


def plain(value: Any) -> Any:
    """Return a value with tensors as arrays, and 0-d arrays as numbers."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return nest.as_array(value).copy()[()] if hasattr(value, "__dlpack__") else value


def plain_result(result: Any) -> list[Any]:
    *columns, infos = result
    return [*map(plain, columns), [plain(info) for info in infos]]


class Fuzz(Program):
    """`both` are the envs one by one, and the simulator. `kept` is the simulator's latest result, and a copy."""

    @initialize(
        n=st.integers(1, N),
        library=st.sampled_from([np, torch]),
        tensors=st.booleans(),
        final=st.sampled_from(["masked", "whole", "old", "lost"]),
        wide=st.booleans(),
        more=st.booleans(),
    )
    def make(self, n: int, library: Any, tensors: bool, final: str, **options: bool) -> None:
        self.n, self.final, self.kept, self.over = n, final, None, np.zeros(n, bool)
        self.tensors = tensors and library is torch
        simulator = Simulator(library, n, final, **options)
        self.both = [
            DummyVectorEnv([partial(Alone, i, options["more"]) for i in range(n)]),
            from_gymnasium(simulator, tensors=self.tensors, has_final_obs=final != "lost"),
        ]
        self.reset()

    def close(self) -> None:
        for venv in getattr(self, "both", ()):
            venv.close()

    def compare(self, call: Any, lost: Any = None) -> Any:
        """Compare the results of a call. lost: rows of ended envs, which may have no last observation and info."""
        theirs, mine = (call(venv) for venv in self.both)
        if self.kept is not None:
            assert_same(plain_result(self.kept[0]), self.kept[1], "earlier result")
        self.kept = mine, plain_result(mine)
        expected, got = plain_result(theirs), plain_result(mine)
        has_last_info = self.final in ("masked", "whole")  # else the first info is also the last
        for row, (one, other) in enumerate(zip(expected.pop(), got.pop(), strict=True)):
            if lost is not None and lost[row] and not has_last_info:
                continue
            if self.final == "lost":
                assert other.pop("no_final_obs", False) == ("final_obs" in one)
                one.pop("final_obs", None)
            if not has_last_info:
                one.pop("final_info", None), other.pop("final_info", None)
            assert_same(other, one, "info")
        if lost is not None and self.final == "lost":
            expected[0][lost], got[0][lost] = 0, 0
        if self.tensors and len(got) > 1:
            got[1] = got[1].astype(np.float64)  # tensors of rewards keep their dtype
        assert_same(got, expected, "columns")
        return theirs

    def _actions(self, number: int) -> np.ndarray:
        return np.random.default_rng(number).random((self.n, 2), np.float32)

    @precondition(lambda self: not self.over.any())
    @rule()
    def reset(self) -> None:
        self.compare(lambda venv: venv.reset())

    @precondition(lambda self: not self.over.any())
    @rule(number=st.integers(0, 99))
    def step_and_reset(self, number: int) -> None:
        self.compare(lambda venv: venv.step(self._actions(number), autoreset=True))

    @precondition(lambda self: not self.over.any())
    @rule(number=st.integers(0, 99))
    def step(self, number: int) -> None:
        results = [venv.step(self._actions(number)) for venv in self.both]
        self.over = results[0][2] | results[0][3]
        answers = iter(results)
        self.compare(lambda venv: next(answers), lost=self.over)

    @precondition(lambda self: self.over.any())
    @rule(all_at_once=st.booleans())
    def reset_ended(self, all_at_once: bool) -> None:
        ids = np.flatnonzero(self.over)[: None if all_at_once else 1]
        self.over[ids] = False
        self.compare(lambda venv: venv.reset(ids))
