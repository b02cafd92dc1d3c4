"""`from_gymnasium` around vector envs of every kind, against the same envs one by one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.fuzz.driver import SMALL, Pair
from tests.fuzz.envs import ACTIONS, SPACES, Results, Scripted, assert_same, draw, stacked
from tests.support.gymnasium_cases import Foreign
from tests.support.simulators import ACTION, Alone, Simulator
from vecenv import DummyVectorEnv, GymnasiumVectorEnv, from_gymnasium, nest

N = 4
SIMULATORS = {"masked": "SameStep", "whole": "SameStep", "old": "SameStep", "lost": "SameStep", "next": "NextStep"}
"""Forms of the last observation of a simulator, and the mode of the simulator."""
MODES = ("NextStep", "SameStep", "Disabled")
FIXED = sorted(SPACES.keys() - {"text", "sequence", "dict"})


class InAnotherLibrary(gymnasium.vector.VectorWrapper):
    """Wrapper that returns arrays of which numpy can only read the content."""

    def reset(self, **kwargs: Any) -> Any:
        obs, infos = self.env.reset(**kwargs)
        return Foreign(obs), infos

    def step(self, actions: Any) -> Any:
        *arrays, infos = self.env.step(actions)
        return *map(Foreign, arrays), infos


MAKERS: dict[str, Any] = {
    "gymnasium": lambda fns, mode: SyncVectorEnv(fns, autoreset_mode=mode),
    "own": lambda fns, mode: GymnasiumVectorEnv(DummyVectorEnv(fns), autoreset_mode=mode),
    "own list": lambda fns, mode: GymnasiumVectorEnv(
        DummyVectorEnv(fns), autoreset_mode=mode, final_info_format="list" if mode == "SameStep" else "dict"
    ),
    "foreign": lambda fns, mode: InAnotherLibrary(SyncVectorEnv(fns, autoreset_mode=mode)),
}


def plain(value: Any, loose: bool = False) -> Any:
    """Return a value with tensors as arrays, and 0-d arrays as numbers. loose: numbers of Python."""
    if isinstance(value, dict):
        return {key: plain(each, loose) for key, each in value.items()}
    value = nest.as_array(value).copy()[()] if hasattr(value, "__dlpack__") else value
    return value.item() if loose and isinstance(value, np.generic) else value


class Fuzz(Pair):
    """`both` are the envs one by one, and the vector env."""

    kinds: ClassVar[Sequence[str]] = (*SIMULATORS, *MODES)
    forms: ClassVar[Any] = None
    """Whether the vector env has `wide` rewards and flags, which is also whether it has tensors. None: any form."""

    @initialize(
        n=st.integers(1, N),
        kind=SMALL,
        library=st.sampled_from([np, torch]),
        tensors=st.booleans(),
        wide=st.booleans(),
        more=st.booleans(),
        maker=st.sampled_from(list(MAKERS)),
        space=st.sampled_from(FIXED),
        by_id=st.booleans(),
    )
    def make(self, n: int, kind: Any, maker: str, by_id: bool, tensors: bool, **given: Any) -> None:
        kind = self.kinds[kind % len(self.kinds)]
        if self.forms is not None:
            tensors, given = self.forms, given | {"wide": self.forms, "library": torch if self.forms else np}
        self.n, self.kind, self.over, self.results = n, kind, np.zeros(n, bool), Results(1, self.result)
        self.mode, self.by_id = SIMULATORS.get(kind, kind), by_id and kind in MODES
        self.tensors = tensors and given["library"] is torch and kind in SIMULATORS
        fns: list[Any]
        if kind in SIMULATORS:
            self.action_space: Any = ACTION
            fns = [partial(Alone, i, given["more"]) for i in range(n)]
            envs: Any = Simulator(given["library"], n, kind, wide=given["wide"], more=given["more"])
        else:
            self.action_space = ACTIONS["discrete"]
            space = "floats" if maker == "foreign" and not hasattr(SPACES[given["space"]], "low") else given["space"]
            fns = [partial(Scripted, i, space) for i in range(n)]
            envs = MAKERS[maker](fns, kind)
        options: Any = {"resets_by_id": self.by_id} if kind in MODES else {}
        self.both = [
            DummyVectorEnv(fns),
            from_gymnasium(envs, tensors=self.tensors, has_final_obs=kind != "lost", **options),
        ]
        self.reset(None, list(range(n)))

    def result(self, result: Any) -> list[Any]:
        *columns, infos = result
        return [*map(plain, columns), [plain(info, self.kind in MODES) for info in infos]]

    def compare_rows(self, theirs: Any, mine: Any, lost: Any = None) -> None:
        """Compare two results. lost: rows of ended envs, which may have no last observation and info."""
        self.results.add(mine)
        expected, got = self.result(theirs), self.result(mine)
        has_last_info = self.kind not in ("old", "lost")  # else the first info is also the last
        for row, (one, other) in enumerate(zip(expected.pop(), got.pop(), strict=True)):
            if lost is not None and lost[row] and not has_last_info:
                continue
            if self.kind == "lost":
                assert other.pop("no_final_obs", False) == ("final_obs" in one)
                one.pop("final_obs", None)
            if not has_last_info:
                one.pop("final_info", None), other.pop("final_info", None)
            assert_same(other, one, "info")
        if lost is not None and self.kind == "lost":
            expected[0][lost], got[0][lost] = 0, 0
        if self.tensors and len(got) > 1:
            got[1] = got[1].astype(np.float64)  # tensors of rewards keep their dtype
        assert_same(got, expected, "columns")

    @rule(seed=st.none() | SMALL, ids=st.lists(st.integers(0, N - 1), min_size=1, unique=True))
    def reset(self, seed: int | None, ids: Sequence[int]) -> None:
        """Reset some envs if the vector env can, else all."""
        ids, seed = [i for i in ids if i < self.n], seed if self.kind in MODES else None
        begun = self.mode == "SameStep" and seed is None and self.over[ids].all()
        some = ids if ids and self.results.kept and (self.by_id or begun) else None
        chosen = self.over[slice(None) if some is None else some]
        if self.mode == "SameStep" and chosen.any() and (seed is not None or not chosen.all()):
            return  # the next episodes of these envs have begun, and would be skipped
        self.over[slice(None) if some is None else some] = False
        self.compare_rows(*(venv.reset(some, seed=seed) for venv in self.both))

    @rule(number=SMALL, order=st.permutations(range(N)), autoreset=st.booleans())
    def step(self, number: int, order: Sequence[int], autoreset: bool) -> None:
        ids, over = [i for i in order if i < self.n], np.flatnonzero(self.over)
        if len(over) and self.mode != "NextStep":
            return self.reset(None, over.tolist())
        autoreset &= self.by_id or self.mode == "SameStep"
        rng = np.random.default_rng(number)
        actions = stacked(self.action_space, [draw(self.action_space, rng) for _ in ids])
        results = [venv.step(actions, ids, reset=over, autoreset=autoreset) for venv in self.both]
        ended = results[0][2] | results[0][3]
        self.over[:] = False
        self.over[ids] = ended & (not autoreset)
        self.compare_rows(*results, None if autoreset else ended)
        return None

    @rule(numbers=st.lists(SMALL, min_size=4, max_size=8))
    def step_on(self, numbers: list[int]) -> None:
        """Steps of all envs, so that episodes end."""
        for number in numbers:
            self.step(number, range(N), number % 2 == 0)
