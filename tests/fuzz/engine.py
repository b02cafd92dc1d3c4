"""The engine against a plain loop over the same envs: all operations of a vector env, in random order."""

from __future__ import annotations

import time
import warnings
from functools import partial
from typing import Any, ClassVar

import numpy as np
import psutil
import torch
from gymnasium import spaces
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tests.fuzz.driver import SMALL, Hang, Program, outcome
from tests.fuzz.envs import ACTIONS, INFOS, SPACES, Died, Results, Scripted, assert_same, draw, objects, stacked
from tests.support.coroutine_envs import CoroutineVectorEnv
from tests.support.leaky import always, await_new_worker
from vecenv import (
    DummyVectorEnv,
    EnvContractError,
    EnvStepError,
    ObservationError,
    ShmemVectorEnv,
    SubprocVectorEnv,
    ThreadVectorEnv,
    VectorEnvError,
    WorkerDiedError,
    nest,
)

BACKENDS = [DummyVectorEnv, ThreadVectorEnv, CoroutineVectorEnv, ShmemVectorEnv, SubprocVectorEnv]
ERRORS: dict[str, Any] = {
    "raise": KeyError,
    "short": EnvContractError,
    "misfit": ObservationError,
    "unpicklable": EnvStepError,
    "die": WorkerDiedError,
    "odd reward": EnvContractError,
}
FAULTY = ["raise", "short", "misfit", "unpicklable", "die"]
NO_REWARD = 0.0
"""The reward of a row of a reset, which has no shape that counts."""
N = 4
"""Most envs of a program. Draws depend on no answer of the vector env: the order in which envs return is random."""
KEPT = 8
"""Number of results that must not change. An env has most probably ended another episode by then."""
IDS = st.lists(st.integers(0, N - 1), unique=True)
SEEDS = st.lists(st.none() | SMALL, min_size=N, max_size=N)
FORM = st.sampled_from(["list", "array", "small ints", "tuple", "mask", "bools", "none", "int"])
OPTIONS = st.none() | SMALL | st.lists(st.none() | SMALL, min_size=N, max_size=N)
AUTORESET = st.sampled_from([False, False, True]) | st.lists(st.integers(-1, 50), min_size=N, max_size=N)
ROUND = {
    "action": SMALL,
    "reset": st.none() | IDS,
    "autoreset": AUTORESET,
    "form": FORM,
    "at": OPTIONS,
}
FAULTS = st.dictionaries(
    st.tuples(st.sampled_from(["step", "reset"]), st.integers(1, 11)), st.sampled_from(FAULTY), max_size=3
).filter(lambda faults: resets_end(faults))


def resets_end(faults: dict[tuple[str, int], str]) -> bool:
    """Return whether a reset that is tried again succeeds at some time. A worker that dies begins to count anew, so one
    of its resets has to succeed before the first one that kills it.
    """
    first = next(number for number in range(1, 12) if faults.get(("reset", number), "die") == "die")
    return ("reset", first) not in faults


def rows_of(batch: Any, k: int) -> list[Any]:
    """The rows of a batch of actions, as envs receive them."""
    return [nest.map(lambda part, j=j: part[j], batch) for j in range(k)]


class Failed:
    """The failure of an env in the oracle.

    `row`: of the step that ended the episode, if the reset after it failed. `perhaps`: such a row, which arrives only
    if the env moved to a new worker for the reset.
    """

    def __init__(self, error: Any, row: Any = None, perhaps: Any = None) -> None:
        self.error, self.row, self.perhaps = error, row, perhaps


def answer(result: Any) -> Any:
    """Return the result of a call, or raise the error that it raised."""
    if isinstance(result, Exception):
        raise result
    return result


def unstacked(space: Any, batch: Any) -> Any:
    """The batch of an object array with an observation per env."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return batch
    assert batch.dtype == object
    assert all(type(row) is (dict if isinstance(space, spaces.Dict) else tuple) for row in batch)
    return stacked(space, list(batch))


class Fuzz(Program):
    """`envs` are the oracle. `flying` has the rows of the envs in flight, in the order in which they were sent."""

    backend: ClassVar[Any] = None
    """The class of all vector envs. None: one of BACKENDS per program."""

    @initialize(
        backend=st.sampled_from(BACKENDS),
        n=st.integers(1, N),
        workers=st.integers(1, N),
        every=st.sampled_from([1, 2]),
        space=st.sampled_from(list(SPACES)),
        actions=st.sampled_from(list(ACTIONS)),
        rewards=st.sampled_from(["float", "int", "float32", "vector", "float", "int", "vector", "mixed"]),
        restarts=st.sampled_from([False, False, True]),
        strict=st.booleans(),
        copy=st.sampled_from([True, True, False]),
        faults=st.lists(FAULTS, min_size=N, max_size=N),
        wait_num=st.sampled_from([None, None, None, *range(1, N + 1)]),
        timeout=st.sampled_from([None, None, 1e-3]),
        recycles=st.sampled_from([False, False, True]),
        infos=st.lists(st.sampled_from(list(INFOS)), min_size=1, max_size=3),
        stack_obs=st.sampled_from([True, True, False]),
        check_actions=st.booleans(),
    )
    def make(
        self, backend: Any, n: int, workers: int, every: int, faults: Any, wait_num: Any, timeout: Any, **options: Any
    ) -> None:
        backend = self.backend or backend
        if backend is CoroutineVectorEnv:  # every second env may be an ordinary env, in a thread of its own
            options["every"], workers = every, n if every == 2 else workers
        self.n, self.space, self.actions = n, options.pop("space"), options.pop("actions")
        self.rewards, self.restarts = options.pop("rewards"), options.pop("restarts")
        self.restarts = self.restarts and self.rewards != "mixed"
        self.shape: tuple[int, ...] | None = None
        """The shape of the rewards, which the first step decides."""
        self.strict, self.copy, self.stack_obs = options["strict"], options["copy"], options["stack_obs"]
        self.infos = options.pop("infos")
        self.remote, workers = backend in (ShmemVectorEnv, SubprocVectorEnv), min(workers, n)
        impossible = {"misfit"} if self.space in ("text", "sequence") else set()
        if not self.remote or workers < n:
            impossible.add("die")  # would take the other envs of the worker with it
        self.settings = [
            {
                "space": self.space,
                "actions": self.actions,
                "rewards": self.rewards,
                "infos": self.infos,
                "faults": {place: kind for place, kind in each.items() if kind not in impossible},
            }
            for each in faults
        ]
        options |= {"on_error": "restart" if self.restarts else "raise", "max_restarts": 10**6}
        options |= {} if backend is DummyVectorEnv else {"num_workers": workers}
        self.recycles = options.pop("recycles") and self.remote
        options |= {"recycle_after": always} if self.recycles else {}
        options |= {"wait_num": min(wait_num or n, n), "timeout": timeout}
        self.wait_num = options["wait_num"]
        self.is_async = self.wait_num < n or timeout is not None
        self.envs = [self.oracle(i) for i in range(n)]
        self.flying: dict[int, Any] = {}
        self.errors: dict[int, Any] = {}
        self.needs_reset = set(range(n))
        self.last: dict[int, Any] = {}
        self.results = Results(KEPT)
        self.venv = backend([partial(Scripted, i, **self.settings[i]) for i in range(n)], **options)
        self.reset_all(list(range(n)), 0)
        self.start_new_worker()

    def close(self) -> None:
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # workers that have died
            if hasattr(self, "venv"):
                self.venv.close()
                self.results.check()

    def oracle(self, i: int) -> Scripted:
        return Scripted(i, **self.settings[i], is_oracle=True)

    # The oracle.

    def call_oracle(self, i: int, op: str, *args: Any, **kwargs: Any) -> Any:
        """(obs, reward, terminated, truncated, info) of an operation, or Failed."""
        env = self.envs[i]
        try:
            result = getattr(env, op)(*args, **kwargs)
        except Died:
            self.envs[i] = self.oracle(i)
            return Failed("die")
        except Hang:
            raise
        except Exception as error:
            return Failed("unpicklable" if self.remote and type(error) is not KeyError else error)
        if len(result) == 3:
            return Failed("short")
        obs, *middle, info = result
        if any(type(leaf) is object for leaf in nest.leaves(obs)):
            return Failed("misfit")
        row = (obs, *(middle or (NO_REWARD, False, False)), info)
        if middle and self.rewards == "vector":
            row = (obs, np.asarray(middle[0], np.float64), *middle[1:], info)
        return row

    def one_reset(self, i: int, **kwargs: Any) -> Any:
        while isinstance(row := self.call_oracle(i, "reset", **kwargs), Failed) and self.restarts:
            pass
        return row

    def one_step(self, i: int, action: Any, seed: int | None) -> Any:
        """`seed`: of a reset in the round of the last step, -1: without one, None: no reset."""
        if i in self.errors:
            return self.cut_off(i, self.errors[i])
        row = self.call_oracle(i, "step", action)
        if isinstance(row, Failed):
            return self.cut_off(i, row) if self.restarts else row
        if seed is None or not (row[2] or row[3]):
            return row
        first = self.call_oracle(i, "reset", **({} if seed < 0 else {"seed": seed}))
        if isinstance(first, Failed):  # a worker that dies takes the rows of its steps with it
            if first.error == "die":
                return Failed("die", perhaps=row if self.recycles else None)
            return Failed(first.error, row)
        return (first[0], *row[1:4], {**first[4], "final_obs": row[0], "final_info": row[4]})

    def cut_off(self, i: int, failed: Failed) -> Any:
        self.errors[i] = failed
        return self.last[i], 0.0, False, True, {"restarted": True, "error": ...}

    def settle(self, rows: dict[int, Any]) -> tuple[dict[int, Any], list[int]]:
        """Note what these rows mean for the next calls; returns the rows that arrive, and the envs that failed."""
        if self.rewards == "mixed":
            rows = self.with_odd_rewards(rows)
        arrived, failed = {}, []
        for i, row in rows.items():
            if isinstance(row, Failed):
                failed.append(i)
                self.errors[i], row = row, row.row
                if row is None:
                    continue
            arrived[i] = row
            self.last[i] = row[0]
            if (row[2] or row[3]) and "final_obs" not in row[4]:
                self.needs_reset.add(i)
            else:
                self.needs_reset.discard(i)
        return arrived, failed

    def with_odd_rewards(self, rows: dict[int, Any]) -> dict[int, Any]:
        """The rows, with a failure for each reward whose shape is not that of the first step."""
        shapes = {
            i: np.shape(row[1]) for i, row in rows.items() if not isinstance(row, Failed) and row[1] is not NO_REWARD
        }
        if self.shape is None and shapes:
            self.shape = shapes[min(shapes)]
        return {i: row if shapes.get(i, self.shape) == self.shape else Failed("odd reward") for i, row in rows.items()}

    def compare(self, batch: Any, rows: dict[int, Any], kept: bool = True) -> None:
        """The batch (of a reset: obs and info) has these rows."""
        infos = [{**row[4], "env_id": i} for i, row in rows.items()]
        obs, *middle, info = batch
        for got, want in zip(info, infos, strict=True):
            if "final_obs" in want:  # scalars may come as arrays
                ends = [stacked(SPACES[self.space], [each["final_obs"]]) for each in (got, want)]
                assert_same(*ends, "final_obs")
                want["final_obs"] = got["final_obs"]
        texts = [each.get("error") for each in info]
        infos = [{**want, "error": text} if "error" in want else want for want, text in zip(infos, texts, strict=True)]
        vector = self.rewards == "vector" or self.shape == (2,)
        values = list(rows.values())
        assert_same(info, objects(infos), "info")
        got = obs if self.stack_obs else unstacked(SPACES[self.space], obs)
        assert_same(got, stacked(SPACES[self.space], [row[0] for row in values]), "obs")
        if middle:
            rewards = np.array([np.broadcast_to(row[1], (2,)) if vector else row[1] for row in values], np.float64)
            if vector and middle[0].ndim == 1:
                assert not rewards.any(), "rewards are no vectors"  # nobody has returned one yet
                rewards = rewards[:, 0]
            assert_same(middle[0], rewards, "reward")
            assert_same(middle[1], np.array([row[2] for row in values], bool), "terminated")
            assert_same(middle[2], np.array([row[3] for row in values], bool), "truncated")
        if kept and (self.copy or len(rows) < self.n):
            self.results.add(tuple(batch), write=True)

    def arrive(self, rows: dict[int, Any], call: Any) -> None:
        """The call returns these rows, or raises the failure of the first env with the rows of the others."""
        rows, failed = self.settle(rows)
        if failed:
            self.raises(min(failed), call, rows)
        else:
            self.compare(call(), rows)

    def raises(self, i: int, call: Any, rows: dict[int, Any] | None = None) -> None:
        expected = self.errors[i].error
        kind = ERRORS[expected] if isinstance(expected, str) else type(expected)
        error = self.refused(kind, call)
        assert isinstance(expected, str) or str(error) == str(expected), f"{error!r}, expected {expected!r}"
        if isinstance(error, VectorEnvError):
            assert error.env_id == i, f"the error is of env {error.env_id}, expected {i}"
        arrived = [] if error.partial is None else error.partial.env_id.tolist()
        extra = {i: self.errors[i].perhaps for i in arrived if i in self.errors and self.errors[i].perhaps}
        if rows or extra:
            rows = rows or {}
            others = [i for i in arrived if i not in extra]
            assert others == list(rows), f"{error.partial} has not the rows {list(rows)}"
            rows = {i: extra[i] if i in extra else rows[i] for i in arrived}
            self.compare(error.partial[1:], rows, kept=False)
        else:
            assert error.partial is None, f"{error.partial!r}, expected no rows"

    def refused(self, kind: Any, call: Any) -> Any:
        """The error of this kind that the call raises."""
        try:
            result = call()
        except kind as error:
            return error
        raise AssertionError(f"expected {kind}, and the call returned {result!r}")

    # The operations.

    @property
    def idle(self) -> list[int]:
        return [i for i in range(self.n) if i not in self.flying]

    def steppable(self) -> list[int]:
        stuck = set() if self.restarts else set(self.errors)
        return [i for i in self.idle if i not in stuck and not (self.strict and i in self.needs_reset)]

    def as_argument(self, ids: list[int], form: str) -> Any:
        """These ids as an argument; a mask and None have an order of their own."""
        mask = np.isin(np.arange(self.n), ids)
        if form == "none" and ids == list(range(self.n)):
            return None
        if form == "int" and len(ids) == 1:
            return ids[0]
        if form in ("mask", "bools") and ids == sorted(ids):
            return mask if form == "mask" else mask.tolist()
        return {"array": np.array(ids), "small ints": np.array(ids, np.uint8), "tuple": tuple(ids)}.get(form, ids)

    def batch(self, ids: list[int], seed: int) -> tuple[list[Any], Any]:
        """Actions of these envs as rows, in the types of the space, and as a batch in one of several forms."""
        space, rng = ACTIONS[self.actions], np.random.default_rng(seed)
        rows = [draw(space, rng) for _ in ids]
        batch: Any = stacked(space, rows)
        forms: list[Any] = [np.asarray, np.asfortranarray, lambda part: part.astype(np.float64), np.ndarray.tolist]
        forms.append(torch.from_numpy)
        return rows_of(batch, len(ids)), rows if seed % 6 == 5 else nest.map(forms[seed % 6], batch)

    def round(
        self, ids: list[int], action: int, reset: Any, autoreset: Any, form: str, at: Any, seed: Any = None
    ) -> tuple[dict[int, Any], Any]:
        """The rows of a round of these envs, and the arguments of `send` for it. `seed` and `at` are for those in
        `reset`.
        """
        rows, batch = self.batch(ids, action)
        resets = None if reset is None else [i for i in reset if i in ids]
        if self.restarts or self.rewards == "mixed":
            autoreset = False  # an env that failed stays failed until it is reset
        seeds: Any = [autoreset] * len(ids)
        if isinstance(autoreset, list):
            seeds = autoreset[: len(ids)]
            autoreset = [None if seed < 0 else seed for seed in seeds] if form == "list" else np.array(seeds, np.int32)
        elif form == "array":
            autoreset = np.bool_(autoreset)
        for i in resets or ():
            self.errors.pop(i, None)
        given, own = self.reset_arguments(resets or [], seed, at)
        results = {
            i: self.one_reset(i, **own[i])
            if i in own
            else self.one_step(i, action, None if flag is False else -1 if flag is True else int(flag))
            for i, action, flag in zip(ids, rows, seeds, strict=True)
        }
        if resets and form != "none":
            resets = self.as_argument(resets, form)
        name = "id" if action % 2 else "env_id"
        given |= {"action": batch, name: self.as_argument(ids, form), "autoreset": autoreset, "reset": resets}
        return results, given

    def reset_arguments(self, ids: list[int], seed: Any, at: Any) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
        """The arguments of a reset of these envs, and those that each env gets. Lists are cut to the number of envs."""
        given: dict[str, Any] = {}
        own: dict[int, dict[str, Any]] = {i: {} for i in ids}
        if seed is not None and ids:
            given["seed"] = seed[: len(ids)] if isinstance(seed, list) else seed
            for i, one in zip(ids, given["seed"] if isinstance(seed, list) else [seed + i for i in ids], strict=True):
                own[i]["seed"] = one
        if at is not None and ids:
            each = [None if one is None else {"at": one} for one in (at if isinstance(at, list) else [at] * len(ids))]
            given["options"] = each[: len(ids)] if isinstance(at, list) else each[0]
            for i, options in zip(ids, each, strict=False):
                own[i]["options"] = options
        return given, own

    def reset_all(self, ids: list[int], seed: Any, at: Any = None, form: str = "list") -> None:
        given, own = self.reset_arguments(ids, seed, at)
        rows = {}
        for i in ids:
            self.errors.pop(i, None)
            rows[i] = self.one_reset(i, **own[i])
        name = "env_id" if form == "array" else "id"
        self.arrive(rows, lambda: self.venv.reset(**{name: self.as_argument(ids, form)}, **given))

    @rule(ids=IDS | st.just(list(range(N))), **ROUND)
    def step(self, ids: list[int], **round: Any) -> None:
        self.step_some(ids, round)

    @rule(rounds=st.lists(AUTORESET, min_size=4, max_size=8), action=SMALL, form=FORM)
    def step_on(self, rounds: list[Any], action: int, form: str) -> None:
        """Steps of all envs, so that episodes end."""
        for autoreset in rounds:
            while self.flying:
                self.receive(self.venv.recv)
            if stuck := [i for i in range(self.n) if i not in self.steppable()]:
                self.reset_all(stuck, None)
            round = {"action": action, "reset": None, "autoreset": autoreset, "form": form, "at": None}
            self.step_some(list(range(self.n)), round)

    def step_some(self, ids: list[int], round: dict[str, Any]) -> None:
        ids = [i for i in ids if i in self.steppable()]
        if not ids or self.flying:
            return
        rows, arguments = self.round(ids, **round)
        if self.is_async:
            self.flying |= rows
            self.receive(lambda: self.venv.step(**arguments))
        else:
            self.arrive(rows, lambda: self.venv.step(**arguments))

    @rule(ids=IDS, seed=st.none() | SMALL | SEEDS, **ROUND)
    def send(self, ids: list[int], **round: Any) -> None:
        if ids := [i for i in ids if i in self.steppable()]:
            rows, arguments = self.round(ids, **round)
            self.flying |= rows
            self.venv.send(**arguments)

    @rule(ids=IDS, seed=st.none() | SMALL, at=OPTIONS, form=FORM)
    def send_resets(self, ids: list[int], seed: int | None, at: Any, form: str) -> None:
        if ids := [i for i in ids if i in self.idle]:
            given, own = self.reset_arguments(ids, seed, at)
            for i in ids:
                self.errors.pop(i, None)
                self.flying[i] = self.one_reset(i, **own[i])
            self.venv.send(None, reset=ids if form == "none" else self.as_argument(ids, form), **given)

    @rule()
    def recv(self) -> None:
        if self.flying:
            self.receive(self.venv.recv)

    def receive(self, call: Any) -> None:
        """Receive all rows in flight, or the rows that an asynchronous vector env chooses."""
        if not self.is_async:
            rows, self.flying = self.flying, {}
            self.arrive(rows, call)
            return
        need = 1 if self.venv.timeout is not None else min(self.wait_num, len(self.flying))
        if type(self.venv) is DummyVectorEnv:
            need = len(self.flying)  # one process has run all
        result = outcome(call)
        if isinstance(result, Exception):
            partial_rows = getattr(result, "partial", None)
            here = [] if partial_rows is None else partial_rows.env_id.tolist()
            failed = [i for i in self.venv.failed_id if i in self.flying and i not in self.venv.waiting_id]
            returned = sorted({*here, *failed})
        else:
            returned = [info["env_id"] for info in result[-1]]
        assert len(returned) >= need, f"{len(returned)} envs returned, {need} are wanted"
        assert returned == sorted(set(returned)), f"the rows of {returned} are not in ascending order"
        self.arrive({i: self.flying.pop(i) for i in returned}, lambda: answer(result))

    @rule(ids=IDS, seed=st.none() | SMALL | SEEDS, at=OPTIONS, form=FORM)
    def reset(self, ids: list[int], seed: Any, at: Any, form: str) -> None:
        if ids := [i for i in ids if i in self.idle]:
            self.reset_all(ids, seed, at, form)

    @rule(workers=st.lists(st.integers(0, N - 1), min_size=1, unique=True), seed=SMALL)
    def kill(self, workers: list[int], seed: int) -> None:
        """Several workers die at once, each with all its envs, and a reset starts them again."""
        if self.flying or not self.remote:
            return
        chosen = [worker for k, worker in enumerate(self.venv.engine.backend.workers) if k in workers]
        lost = sorted(i for worker in chosen for i in worker.ids)
        for worker in chosen:
            if self.venv.alive()[worker.ids[0]]:
                psutil.Process(worker.pid).kill()
        deadline = time.monotonic() + 10
        while any(self.venv.alive()[i] for i in lost):
            assert time.monotonic() < deadline, "alive() does not see the end of workers"
            time.sleep(1e-3)
        for i in lost:
            self.envs[i] = self.oracle(i)
        if lost:
            self.reset_all(lost, seed)

    @precondition(lambda self: self.recycles)
    @rule()
    def start_new_worker(self) -> None:
        """Start a worker that replaces another one. The envs move to it in later resets."""
        if self.recycles and not self.flying and not self.errors:
            await_new_worker(self.venv)

    @rule(seed=SMALL)
    def seed(self, seed: int) -> None:
        if self.flying or self.errors:
            return
        rows, failed = self.settle({i: self.one_reset(i, seed=seed + i) for i in range(self.n)})
        if failed:
            self.raises(min(failed), lambda: self.venv.seed(seed), rows)
        else:
            assert self.venv.seed(seed) == [seed + i for i in range(self.n)]

    @rule(ids=IDS, value=SMALL)
    def call(self, ids: list[int], value: int) -> None:
        if not (ids := [i for i in ids if i in self.alive()]):
            return
        got = self.venv.call("echo", value, x=[value], id=ids)
        assert_same(got, [self.envs[i].echo(value, x=[value]) for i in ids], "echo")
        self.venv.set_env_attr("mark", value, ids)
        for i in ids:
            self.envs[i].mark = value
        if not self.flying:
            assert_same(self.venv.render(id=ids), [self.envs[i].render() for i in ids], "frames")
        for name in ("mark", "t", "calls", "episode", "received"):
            assert_same(self.venv.get_env_attr(name, ids), [getattr(self.envs[i], name) for i in ids], name)

    @rule(ids=IDS)
    def swap_states(self, ids: list[int]) -> None:
        if not (ids := [i for i in ids if i in self.alive()]):
            return
        own, targets = [self.envs[i].get_state() for i in ids], ids[1:] + ids[:1]
        self.venv.set_state(self.venv.get_state(ids), targets)
        for i, state in zip(targets, own, strict=True):
            self.envs[i].set_state(state)
            self.errors.pop(i, None)
            self.needs_reset.discard(i)

    def alive(self) -> list[int]:
        dead = {i for i, failed in self.errors.items() if failed.error == "die"}
        return [i for i in self.idle if i not in dead]

    @rule()
    def step_failed(self) -> None:
        """An env that failed is refused with its old error, and no other env is stepped."""
        wrong = [i for i in self.idle if i not in self.steppable()]
        if not wrong:
            return
        _, batch = self.batch(self.idle, 1)
        if wrong[0] in self.errors and not self.restarts:
            self.raises(wrong[0], lambda: self.venv.send(batch, self.idle))
        else:
            self.refused(RuntimeError, lambda: self.venv.send(batch, self.idle))

    @invariant()
    def states(self) -> None:
        if not hasattr(self, "venv"):
            return
        idle_failed = sorted(i for i in self.errors if i not in self.flying)
        assert self.venv.waiting_id == sorted(self.flying), "waiting_id"
        assert self.venv.failed_id == idle_failed, f"failed_id is {self.venv.failed_id}, expected {idle_failed}"
