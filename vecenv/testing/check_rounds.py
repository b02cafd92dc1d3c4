"""Checks of rounds: steps and resets alone, mixed, and while others are in flight."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from vecenv.testing.gates import Gates
from vecenv.testing.model import Factory, N, Twins, assert_raises, assert_same

GATE_PATIENCE = 10.0
"""Seconds after which a step has failed that waits for envs which are held."""


def check_rows(factory: Factory) -> None:
    """Every row is that of its env at that time, for all ids, some, and in any order; in every form."""
    for form in ("array", "dict", "object"):
        twins = Twins(form=form)
        with factory(twins.env_fns) as venv:
            twins.compare(range(N), venv.reset(seed=7), [twins.reset(i, seed=7 + i) for i in range(N)])
            for ids in (None, [3, 0], [4], None, np.array([1, 2, 0]), None):
                asked = list(range(N)) if ids is None else list(ids)
                actions = [10 * i + 1 for i in asked]
                want = [twins.step(i, a) for i, a in zip(asked, actions, strict=True)]
                twins.compare(asked, venv.step(actions, ids), want)
                over = [i for i, row in zip(asked, want, strict=True) if row[2] or row[3]]
                if over:
                    twins.compare(over, venv.reset(over), [twins.reset(i) for i in over])


def check_options_of_reset(factory: Factory) -> None:
    """`seed` is spread over the ids, other arguments go to each."""
    twins = Twins()
    with factory(twins.env_fns) as venv:
        options = {"t": 3}
        result = venv.reset([4, 1], seed=[11, 12], options=options)
        twins.compare(
            [4, 1], result, [twins.reset(4, seed=11, options=options), twins.reset(1, seed=12, options=options)]
        )
        twins.compare([2, 3], venv.reset([2, 3], seed=20), [twins.reset(2, seed=22), twins.reset(3, seed=23)])


def check_mixed_rounds(factory: Factory) -> None:
    """A round may step some envs and reset others; between send and recv, the halves of step, other envs answer."""
    twins = Twins()
    with factory(twins.env_fns) as venv:
        twins.compare(range(N), venv.reset(), [twins.reset(i) for i in range(N)])
        mask = np.array([False, True, False, False, True])
        result = venv.step([5] * N, reset=mask)
        twins.compare(range(N), result, [twins.reset(i) if mask[i] else twins.step(i, 5) for i in range(N)])
        venv.send([7, 8], [3, 1], reset=[1], seed=50)
        assert venv.waiting_id == [1, 3], f"waiting_id is {venv.waiting_id} after send to 3 and 1"
        twins.compare([2], venv.reset([2]), [twins.reset(2)])
        got = venv.get_env_attr("episode", [4, 2])
        assert got == [1, 1], f"with 3 and 1 in flight, the episodes of 4 and 2 are {got}, expected [1, 1]"
        venv.send(None, reset=[0])
        result = venv.recv()
        twins.compare([3, 1, 0], result, [twins.step(3, 7), twins.reset(1, seed=51), twins.reset(0)])
        assert venv.ready_id == list(range(N)), f"ready_id is {venv.ready_id} after recv"


def check_autoreset(factory: Factory) -> None:
    """With `autoreset` an env whose episode ends is reset in the same round; or it is refused, the envs untouched."""
    for form in ("array", "dict", "object"):
        twins = Twins(form=form, length=2, infos=form != "array")
        with factory(twins.env_fns) as venv:
            twins.compare(range(N), venv.reset(), [twins.reset(i) for i in range(N)])
            options = {"t": 1}
            twins.compare(
                [1, 3], venv.reset([1, 3], options=options), [twins.reset(i, options=options) for i in (1, 3)]
            )
            kept: list[tuple[Any, Any]] = []
            for ids in (None, [3, 0], None, [1, 4, 2], None):
                asked = list(range(N)) if ids is None else ids
                actions = [10 * i + 1 for i in asked]
                steps = zip(asked, actions, strict=True)
                try:
                    result = venv.step(actions, ids, autoreset=True)
                except TypeError:
                    twins.compare(asked, venv.step(actions, ids), [twins.step(i, a) for i, a in steps])
                    return
                kept += [(row["final_obs"], copy.deepcopy(row["final_obs"])) for row in result[4] if "final_obs" in row]
                _compare_ends(twins, asked, result, [twins.step(i, a) for i, a in steps])
            for final_obs, then in kept:
                assert_same(final_obs, then, "a final_obs that was returned in an earlier round")


def _compare_ends(twins: Twins, asked: Sequence[int], result: tuple[Any, ...], want: list[tuple[Any, ...]]) -> None:
    """The rows are those of the steps in `want`, and where an episode ended, of the reset that follows."""
    for j, (i, (obs, reward, terminated, truncated, info)) in enumerate(zip(asked, want, strict=True)):
        row = result[4][j]
        final_obs, final_info = row.pop("final_obs", None), row.pop("final_info", None)
        if not terminated and not truncated:
            assert final_obs is None, f"info of env {i} has a final_obs, but its episode goes on"
            continue
        assert final_info is not None, f"info of env {i} has no final_obs and final_info, but its episode is over"
        assert_same(final_obs, obs, f"final_obs of env {i}")
        assert final_info == info, f"final_info of env {i} is {final_info}, expected {info}"
        first, *_, info = twins.reset(i)
        want[j] = first, reward, terminated, truncated, info
    twins.compare(asked, result, want)


def check_async(factory: Factory) -> None:
    """With `wait_num` and `timeout` each accepted action is answered exactly once, whatever the batches are."""
    for wait_num, timeout in ((1, None), (3, None), (None, 0.01), (2, 0.01)):
        twins = Twins(length=1000)
        with factory(twins.env_fns, wait_num=wait_num, timeout=timeout) as venv:
            assert venv.is_async, f"is_async is False with wait_num={wait_num}, timeout={timeout}"
            venv.reset()
            for i in range(N):
                twins.reset(i)
            free, waiting = list(range(N)), dict[int, Any]()
            for turn in range(12):
                actions = [(i + turn) % 100 for i in free]
                waiting |= {i: twins.step(i, a) for i, a in zip(free, actions, strict=True)}
                result = venv.step(actions, free)
                free = [row["env_id"] for row in result[4]]
                least = wait_num if wait_num and not timeout else 1
                assert len(free) >= least, f"{len(free)} rows came back, expected at least {least}"
                assert set(free) <= waiting.keys(), f"rows are of envs {free}, in flight were {sorted(waiting)}"
                assert len(set(free)) == len(free), f"rows are of envs {free}: one came twice"
                twins.compare(free, result, [waiting.pop(i) for i in free])
                assert venv.waiting_id == sorted(waiting), f"{venv.waiting_id} are waiting, expected {waiting.keys()}"
            while waiting:
                result = venv.step(None)
                free = [row["env_id"] for row in result[4]]
                twins.compare(free, result, [waiting.pop(i) for i in free])
            assert_raises(RuntimeError, "step(None) with nothing in flight", lambda: venv.step(None))


def check_waiting(factory: Factory) -> None:
    """With `wait_num` and `timeout` a step returns without the envs that take longer."""
    for wait_num, timeout, quick in ((1, None, [0]), (2, None, [0, 1]), (None, 0.01, [0])):
        slow = [i for i in range(N) if i not in quick]
        twins = Twins()
        with (
            Gates(N, ops=["step"]) as gates,
            factory(gates.env_fns, wait_num=wait_num, timeout=timeout) as venv,
        ):
            venv.reset()
            if venv.get_env_attr("ran_in", [0]) == [(os.getpid(), threading.get_ident())]:
                return  # the caller itself runs the envs, one after the other: none takes longer than the call
            for i in range(N):
                twins.reset(i)
            want = [twins.step(i, i) for i in range(N)]
            gates.open(*quick)
            # One that waits for all is given what it waits for, so that it can be told.
            late = threading.Timer(GATE_PATIENCE, gates.open, slow)
            late.start()
            try:
                result = venv.step(list(range(N)))
                got = [row["env_id"] for row in result[4]]
                assert sorted(got) == quick, (
                    f"a step with wait_num={wait_num}, timeout={timeout} returned envs {got}, "
                    f"expected {quick}: the others were still stepping"
                )
                twins.compare(got, result, [want[i] for i in got])
                assert venv.waiting_id == slow, f"waiting_id is {venv.waiting_id}, expected {slow}"
            finally:
                late.cancel()
                late.join()
                # Later than `timeout`: with nothing ready by then, the first env ends the wait.
                late = threading.Timer(5 * (timeout or 0), gates.open, slow)
                late.start()
            while venv.waiting_id:
                result = venv.step(None)
                got = [row["env_id"] for row in result[4]]
                assert got, "a step returned no rows"
                twins.compare(got, result, [want[i] for i in got])
            late.join()
