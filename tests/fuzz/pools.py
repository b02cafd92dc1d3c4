"""`EnvPoolVectorEnv` around a double of EnvPool, against the same envs one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.fuzz.driver import SMALL, Program
from tests.fuzz.envs import Results
from tests.support.pool_double import RESET, CountedEnv, PoolDouble
from vecenv import EnvPoolVectorEnv

N = 5
IDS = st.lists(st.integers(0, N - 1), min_size=1, unique=True)


class Fuzz(Program):
    """`envs` are the envs one by one."""

    @initialize(n=st.integers(1, N), batch_size=st.integers(0, N), lives=st.booleans(), seed=SMALL)
    def make(self, n: int, batch_size: int, lives: bool, seed: int) -> None:
        self.n, self.lives, self.seed = n, lives, seed
        pool = PoolDouble.make(n, batch_size=batch_size if batch_size < n else 0, episodic_life=lives, seed=seed)
        self.venv = EnvPoolVectorEnv(pool)
        self.is_async, self.results = self.venv.is_async, Results(1)
        self.envs = [CountedEnv(i, seed + i) for i in range(n)]
        self.reset(list(range(N)), None)

    def close(self) -> None:
        if hasattr(self, "venv"):
            self.venv.close()
        PoolDouble.made.clear()

    def compare(self, row: int, i: int, want: Any, obs: Any, outcome: Any, infos: Any) -> None:
        expected, *paid, _, elapsed, lives = want
        assert obs[row].tobytes() == expected.tobytes(), f"observation of env {i}: {obs[row]}, expected {expected}"
        info = {"env_id": i, "elapsed_step": elapsed} | ({"lives": lives} if self.lives else {})
        assert dict(infos[row]) == info, f"info of env {i}: {infos[row]}, expected {info}"
        if outcome is not None:
            reward, done, truncated = paid
            got = [column[row] for column in outcome]
            assert got == [np.float64(np.float32(reward)), done and not truncated, truncated], f"env {i}: {got}"

    def begin(self, i: int) -> Any:
        """Reset env i. Only a reset within an episode begins a new game after a lost life."""
        return self.envs[i].run(0 if self.envs[i].done else RESET)

    @rule(ids=IDS, seed=st.none() | SMALL | st.lists(SMALL, min_size=N, max_size=N), all_together=st.booleans())
    def reset(self, ids: list[int], seed: Any, all_together: bool = False) -> None:
        ids = [i for i in ids if i < self.n] or [0]
        if seed is not None:
            seed = seed[: self.n] if isinstance(seed, list) else seed
            seeds = seed if isinstance(seed, list) else [seed + i for i in range(self.n)]
            self.envs, ids = [CountedEnv(i, each) for i, each in enumerate(seeds)], list(range(self.n))
            if all_together:
                assert self.venv.seed(seed) == seeds
                seed = None
        obs, infos = self.venv.reset(ids, **({} if seed is None else {"seed": seed}))
        for row, i in enumerate(ids):
            self.compare(row, i, self.begin(i), obs, None, infos)
        self.results.add([obs])

    @rule(ids=IDS | st.just(list(range(N))), action=SMALL, more=IDS, parts=st.booleans())
    def step(self, ids: list[int], action: int, more: list[int], parts: bool) -> None:
        """Step some envs, in one call or in two. Reset ended envs, and `more`, in the same round."""
        ids = [i for i in ids if i < self.n] or [0]
        resets = [i for i in ids if self.envs[i].done or i in more[1:]]
        actions = {i: (action + i) % 3 for i in ids}
        wanted = {i: self.begin(i) if i in resets else self.envs[i].run(actions[i]) for i in ids}
        cut = len(ids) // 2 if parts else 0
        for some in (ids[:cut], ids[cut:]):
            if some:
                self.venv.send([actions[i] for i in some], some, reset=[i for i in some if i in resets])
        assert self.venv.waiting_id == sorted(ids)
        found = list[int]()
        while self.venv.waiting_id:
            obs, *outcome, infos = self.venv.recv()
            rows = [info["env_id"] for info in infos]
            found += rows
            for row, i in enumerate(rows):
                self.compare(row, i, wanted[i], obs, outcome, infos)
            self.results.add([obs, *outcome])
        assert (found if not self.is_async else sorted(found)) == (ids if not self.is_async else sorted(ids))
