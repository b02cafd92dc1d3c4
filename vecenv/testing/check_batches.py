"""Checks of batches: returned arrays and actions keep their values and their owner."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv import nest
from vecenv.errors import ObservationError
from vecenv.testing.envs import CountingEnv
from vecenv.testing.model import Factory, N, Twins, assert_raises, assert_same

DTYPES = ("bool", "uint8", "int64", "float16", "float32", "float64")


def check_returned_arrays_stay(factory: Factory) -> None:
    """Returned arrays do not change later, also where the caller or the env writes into its own."""
    for form in ("array", "dict", "object"):
        twins = Twins(form=form)
        with factory(twins.env_fns) as venv:
            kept: list[tuple[np.ndarray, np.ndarray]] = []
            for turn in range(4):
                result = venv.step(np.arange(N)) if turn % 2 else venv.reset()
                partial = venv.step([1, 2], [2, 0])
                arrays = [leaf for batch in (result, partial) for part in batch for leaf in nest.leaves(part)]
                kept += [(array, array.copy()) for array in arrays]
                for array, copy in kept:
                    assert bool(np.all(array == copy)), (
                        f"an array of {array.dtype} {array.shape} changed after it was returned"
                    )
                for part in partial[:4]:
                    for leaf in nest.leaves(part):
                        leaf[...] = 0  # the caller's own: must not reach the next results
                kept = [(array, array.copy()) for array, _ in kept]
    with factory([functools.partial(_WritesOver, i) for i in range(N)]) as venv:
        venv.reset()
        obs, *_, info = venv.step([0] * N)
        venv.step([0] * N)
        values = [obs["array"][0, 0], obs["objects"][0][0][0], info[0]["own"][0]]
        assert values == [1, 1, 1], f"the env's own array came with 1s, which are {values} after it wrote over it"


def check_infos(factory: Factory) -> None:
    """Each info is a fresh dict with its env_id, which never changes later; the env's own is not written to."""
    twins = Twins()
    with factory(twins.env_fns) as venv:
        kept: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for call in (lambda: venv.reset()[1], lambda: venv.step([0] * N)[4], lambda: venv.step([0], [2])[4]):
            for row in call():
                assert row.__class__ is dict, f"an info is a {type(row).__name__}, expected a dict"
                assert type(row.get("env_id")) is int, f"an info is {row!r}, expected one with an int as env_id"
                assert "mine" not in row, f"an info is {row!r}: a dict that an earlier call returned"
                row["mine"] = True
                kept.append((row, dict(row)))
            for row, then in kept:
                assert row == then, f"an info became {row} after it was returned as {then}"
        own = venv.get_env_attr("own_info")
        assert own == [{"t": 1}, {"t": 1}, {}, {"t": 1}, {"t": 1}], f"the envs' own infos became {own}"


def check_vector_rewards(factory: Factory) -> None:
    """Rewards that are vectors come as an array (k, m); the row of a reset is 0."""
    with factory([functools.partial(_VectorRewards, i) for i in range(N)]) as venv:
        venv.reset()
        venv.step([0] * N)
        for t, ids, resets in ((2, [3, 1], []), (3, [1, 4, 3], [4]), (4, [2, 0], [0, 2])):
            rew = venv.step([0] * len(ids), ids, reset=resets or None)[1]
            want = np.array([[0, 0] if i in resets else [i, t] for i in ids], np.float64)
            assert_same(rew, want, f"rew of envs {ids}, whose rewards are vectors")


def check_observations_fit_their_space(factory: Factory) -> None:
    """Values keep the dtype and shape of the space; one that would change is an ObservationError."""
    with factory([_Emits] * 2) as venv:
        obs, _ = venv.reset()
        assert_same(obs, {name: np.ones((2, 2), name) for name in DTYPES}, "an observation of each dtype")
    for name, value in (("uint8", np.array([300, 1])), ("float32", np.ones(1))):
        with factory([functools.partial(_Emits, {name: value})] * 2) as venv:
            assert_raises(ObservationError, f"{value!r} for {name} and the shape (2,)", venv.reset)


def check_actions_are_the_envs_own(factory: Factory) -> None:
    """An env may write to its action and keep it: neither the caller nor another env sees that."""
    with factory([_WritesToAction] * 2) as venv:
        venv.reset()
        actions = np.ones((2, 3), np.float32)
        obs = [venv.step(actions)[0] for _ in range(2)][-1]
        assert bool(np.all(actions == 1)), "an env wrote into the caller's actions"
        assert_same(obs, np.ones((2, 3), np.float32), "the action that came to the envs")


class _WritesOver(CountingEnv):
    """Has one array for all that it returns."""

    def __init__(self, env_id: int) -> None:
        super().__init__(env_id)
        box = spaces.Box(0, 99, (1,), np.int64)
        self.observation_space = spaces.Dict({"array": box, "objects": spaces.Sequence(box)})
        self.own = np.zeros(1, np.int64)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return *super().step(action)[:4], {"own": self.own}

    def _observation(self) -> Any:
        self.own[...] = self.t
        return {"array": self.own, "objects": (self.own,)}


class _VectorRewards(CountingEnv):
    """The reward is (env_id, t)."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, np.array([self.env_id, self.t], np.float64), terminated, truncated, info


class _Emits(CountingEnv):
    """Observes an array of ones of each dtype, or what `instead` has in its place."""

    def __init__(self, instead: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.observation_space = spaces.Dict({name: spaces.Box(0, 1, (2,), np.dtype(name).type) for name in DTYPES})
        self.values = {name: np.ones(2, name) for name in DTYPES} | (instead or {})

    def _observation(self) -> Any:
        return self.values


class _WritesToAction(CountingEnv):
    """Observes the action that came, or -1s if the one before is not as this env has left it; then writes over it."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-9, 9, (3,), np.float32)
        self.observation_space = spaces.Box(-9, 9, (3,), np.float32)
        self.kept = np.full(3, 7, np.float32)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen = action.copy() if bool(np.all(self.kept == 7)) else np.full(3, -1, np.float32)
        self.kept = action
        action[...] = 7
        return seen, 0.0, False, False, {}
