"""Checks of steps and resets, for `check_vector_env`."""

from __future__ import annotations

import copy
import functools
import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv import nest
from vecenv.errors import ObservationError
from vecenv.testing.envs import CountingEnv, Gates
from vecenv.testing.model import Factory, N, ReferenceEnvs, assert_raises, assert_same

GATE_PATIENCE = 10.0


def check_rows(factory: Factory) -> None:
    for form in ("array", "dict", "object"):
        reference = ReferenceEnvs(form=form)
        with factory(reference.env_fns) as venv:
            reference.compare(range(N), venv.reset(seed=7), [reference.reset(i, seed=7 + i) for i in range(N)])
            for ids in (None, [3, 0], [4], None, np.array([1, 2, 0]), None):
                asked = list(range(N)) if ids is None else list(ids)
                actions = [10 * i + 1 for i in asked]
                want = [reference.step(i, a) for i, a in zip(asked, actions, strict=True)]
                reference.compare(asked, venv.step(actions, ids), want)
                over = [i for i, row in zip(asked, want, strict=True) if row[2] or row[3]]
                if over:
                    reference.compare(over, venv.reset(over), [reference.reset(i) for i in over])


def check_options_of_reset(factory: Factory) -> None:
    reference = ReferenceEnvs()
    with factory(reference.env_fns) as venv:
        options = {"t": 3}
        result = venv.reset([4, 1], seed=[11, 12], options=options)
        reference.compare(
            [4, 1], result, [reference.reset(4, seed=11, options=options), reference.reset(1, seed=12, options=options)]
        )
        reference.compare(
            [2, 3], venv.reset([2, 3], seed=20), [reference.reset(2, seed=22), reference.reset(3, seed=23)]
        )


def check_mixed_rounds(factory: Factory) -> None:
    reference = ReferenceEnvs()
    with factory(reference.env_fns) as venv:
        reference.compare(range(N), venv.reset(), [reference.reset(i) for i in range(N)])
        mask = np.array([False, True, False, False, True])
        result = venv.step([5] * N, reset=mask)
        reference.compare(range(N), result, [reference.reset(i) if mask[i] else reference.step(i, 5) for i in range(N)])
        venv.send([7, 8], [3, 1], reset=[1], seed=50)
        assert venv.waiting_id == [1, 3], f"waiting_id is {venv.waiting_id} after send to 3 and 1"
        reference.compare([2], venv.reset([2]), [reference.reset(2)])
        got = venv.get_env_attr("episode", [4, 2])
        assert got == [1, 1], f"with 3 and 1 in flight, the episodes of 4 and 2 are {got}, expected [1, 1]"
        venv.send(None, reset=[0])
        result = venv.recv()
        reference.compare([3, 1, 0], result, [reference.step(3, 7), reference.reset(1, seed=51), reference.reset(0)])
        assert venv.ready_id == list(range(N)), f"ready_id is {venv.ready_id} after recv"


def check_autoreset(factory: Factory) -> None:
    """Check that `autoreset` resets an env in the round of its last step, or raises TypeError before any step."""
    for form in ("array", "dict", "object"):
        reference = ReferenceEnvs(form=form, length=2, infos=form != "array")
        with factory(reference.env_fns) as venv:
            reference.compare(range(N), venv.reset(), [reference.reset(i) for i in range(N)])
            options = {"t": 1}
            reference.compare(
                [1, 3], venv.reset([1, 3], options=options), [reference.reset(i, options=options) for i in (1, 3)]
            )
            kept: list[tuple[Any, Any]] = []
            for ids in (None, [3, 0], None, [1, 4, 2], None):
                asked = list(range(N)) if ids is None else ids
                actions = [10 * i + 1 for i in asked]
                steps = zip(asked, actions, strict=True)
                try:
                    result = venv.step(actions, ids, autoreset=True)
                except TypeError:
                    reference.compare(asked, venv.step(actions, ids), [reference.step(i, a) for i, a in steps])
                    return
                kept += [(row["final_obs"], copy.deepcopy(row["final_obs"])) for row in result[4] if "final_obs" in row]
                _compare_ends(reference, asked, result, [reference.step(i, a) for i, a in steps])
            for final_obs, then in kept:
                assert_same(final_obs, then, "a final_obs that was returned in an earlier round")


def _compare_ends(
    reference: ReferenceEnvs, asked: Sequence[int], result: tuple[Any, ...], want: list[tuple[Any, ...]]
) -> None:
    for j, (i, (obs, reward, terminated, truncated, info)) in enumerate(zip(asked, want, strict=True)):
        row = result[4][j]
        final_obs, final_info = row.pop("final_obs", None), row.pop("final_info", None)
        if not terminated and not truncated:
            assert final_obs is None, f"info of env {i} has a final_obs, but its episode goes on"
            continue
        assert final_info is not None, f"info of env {i} has no final_obs and final_info, but its episode is over"
        assert_same(final_obs, obs, f"final_obs of env {i}")
        assert final_info == info, f"final_info of env {i} is {final_info}, expected {info}"
        first, *_, info = reference.reset(i)
        want[j] = first, reward, terminated, truncated, info
    reference.compare(asked, result, want)


def check_async(factory: Factory) -> None:
    """Check that with `wait_num` or `timeout`, each action's result comes exactly once."""
    for wait_num, timeout in ((1, None), (3, None), (None, 0.01), (2, 0.01)):
        reference = ReferenceEnvs(length=1000)
        with factory(reference.env_fns, wait_num=wait_num, timeout=timeout) as venv:
            assert venv.is_async, f"is_async is False with wait_num={wait_num}, timeout={timeout}"
            venv.reset()
            for i in range(N):
                reference.reset(i)
            free, waiting = list(range(N)), dict[int, Any]()
            for turn in range(12):
                actions = [(i + turn) % 100 for i in free]
                waiting |= {i: reference.step(i, a) for i, a in zip(free, actions, strict=True)}
                result = venv.step(actions, free)
                free = [row["env_id"] for row in result[4]]
                least = wait_num if wait_num and not timeout else 1
                assert len(free) >= least, f"{len(free)} rows came back, expected at least {least}"
                assert set(free) <= waiting.keys(), f"rows are of envs {free}, but {sorted(waiting)} were in flight"
                assert len(set(free)) == len(free), f"rows are of envs {free}: one came twice"
                reference.compare(free, result, [waiting.pop(i) for i in free])
                assert venv.waiting_id == sorted(waiting), f"{venv.waiting_id} are waiting, expected {waiting.keys()}"
            while waiting:
                result = venv.step(None)
                free = [row["env_id"] for row in result[4]]
                reference.compare(free, result, [waiting.pop(i) for i in free])
            assert_raises(RuntimeError, "step(None) with nothing in flight", lambda: venv.step(None))


def check_waiting(factory: Factory) -> None:
    for wait_num, timeout, quick in ((1, None, [0]), (2, None, [0, 1]), (None, 0.01, [0])):
        slow = [i for i in range(N) if i not in quick]
        reference = ReferenceEnvs()
        with Gates(N, ops=["step"]) as gates, factory(gates.env_fns, wait_num=wait_num, timeout=timeout) as venv:
            venv.reset()
            if venv.get_env_attr("ran_in", [0]) == [(os.getpid(), threading.get_ident())]:
                return  # the envs run in the caller's thread, so each call steps all envs
            for i in range(N):
                reference.reset(i)
            want = [reference.step(i, i) for i in range(N)]
            gates.open(*quick)
            # The other gates open late. So a vector env that waits for all envs fails, and does not hang.
            late = threading.Timer(GATE_PATIENCE, gates.open, slow)
            late.start()
            try:
                result = venv.step(list(range(N)))
                got = [row["env_id"] for row in result[4]]
                assert sorted(got) == quick, (
                    f"a step with wait_num={wait_num}, timeout={timeout} returned envs {got}, "
                    f"expected {quick}: the others were still stepping"
                )
                reference.compare(got, result, [want[i] for i in got])
                assert venv.waiting_id == slow, f"waiting_id is {venv.waiting_id}, expected {slow}"
            finally:
                late.cancel()
                late.join()
                # The gates open after `timeout`. A step without ready envs must wait for the first.
                late = threading.Timer(5 * (timeout or 0), gates.open, slow)
                late.start()
            while venv.waiting_id:
                result = venv.step(None)
                got = [row["env_id"] for row in result[4]]
                assert got, "a step returned no rows"
                reference.compare(got, result, [want[i] for i in got])
            late.join()


TESTED_DTYPES = ("bool", "uint8", "int64", "float16", "float32", "float64")


def check_returned_arrays_stay(factory: Factory) -> None:
    """Check that returned arrays are writable, and that later calls and writes of an env do not change them."""
    for form in ("array", "dict", "object"):
        reference = ReferenceEnvs(form=form)
        with factory(reference.env_fns) as venv:
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
                        leaf[...] = 0
                kept = [(array, array.copy()) for array, _ in kept]
    with factory([functools.partial(_WritesOver, i) for i in range(N)]) as venv:
        venv.reset()
        obs, *_, info = venv.step([0] * N)
        venv.step([0] * N)
        values = [obs["array"][0, 0], obs["objects"][0][0][0], info[0]["own"][0]]
        assert values == [1, 1, 1], f"returned arrays of 1s became {values} when the env wrote into its own array"


def check_infos(factory: Factory) -> None:
    reference = ReferenceEnvs()
    with factory(reference.env_fns) as venv:
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
    with factory([functools.partial(_VectorRewards, i) for i in range(N)]) as venv:
        venv.reset()
        venv.step([0] * N)
        for t, ids, resets in ((2, [3, 1], []), (3, [1, 4, 3], [4]), (4, [2, 0], [0, 2])):
            rew = venv.step([0] * len(ids), ids, reset=resets or None)[1]
            want = np.array([[0, 0] if i in resets else [i, t] for i in ids], np.float64)
            assert_same(rew, want, f"rew of envs {ids}, whose rewards are vectors")


def check_observations_fit_their_space(factory: Factory) -> None:
    with factory([_EmitsValues] * 2) as venv:
        obs, _ = venv.reset()
        assert_same(obs, {name: np.ones((2, 2), name) for name in TESTED_DTYPES}, "an observation of each dtype")
    for name, value in (("uint8", np.array([300, 1])), ("float32", np.ones(1))):
        with factory([functools.partial(_EmitsValues, {name: value})] * 2) as venv:
            assert_raises(ObservationError, f"{value!r} for {name} and the shape (2,)", venv.reset)


def check_actions_are_the_envs_own(factory: Factory) -> None:

    with factory([_WritesToAction] * 2) as venv:
        venv.reset()
        actions = np.ones((2, 3), np.float32)
        obs = [venv.step(actions)[0] for _ in range(2)][-1]
        assert bool(np.all(actions == 1)), "an env wrote into the caller's actions"
        assert_same(obs, np.ones((2, 3), np.float32), "the actions that the envs got")


class _WritesOver(CountingEnv):
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
    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, np.array([self.env_id, self.t], np.float64), terminated, truncated, info


class _EmitsValues(CountingEnv):
    def __init__(self, instead: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.observation_space = spaces.Dict(
            {name: spaces.Box(0, 1, (2,), np.dtype(name).type) for name in TESTED_DTYPES}
        )
        self.values = {name: np.ones(2, name) for name in TESTED_DTYPES} | (instead or {})

    def _observation(self) -> Any:
        return self.values


class _WritesToAction(CountingEnv):
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
