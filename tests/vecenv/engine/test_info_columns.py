"""Infos with numbers and small arrays are sent as bytes, and equal the infos of envs in this process."""

import enum
import os
import signal
import time
from collections import namedtuple
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from benchmarks.counting import CallCounter
from tests.support.backends import ON_RAY, on_this_node
from tests.support.cases import described
from vecenv import (
    AsyncVectorEnv,
    DummyVectorEnv,
    EnvContractError,
    ShmemVectorEnv,
    SubprocVectorEnv,
    SyncVectorEnv,
    WorkerDiedError,
)
from vecenv.backends.host.row_writer import copy_containers
from vecenv.backends.memory.infos import INFO_BYTES, MOST_KNOWN, MOST_SCHEMAS, InfoReader, InfoWriter

N, WORKERS, STEPS = 5, 2, 13
Pair = namedtuple("Pair", "a b")
Color = enum.IntEnum("Color", "RED")


class Text(str):
    __slots__ = ()


INFOS = {
    "python numbers": lambda i, t: {"float": t + i / 7, "int": -t, "bool": t % 2 == 0, "x y": 0.5, "": 1},
    "numpy numbers": lambda i, t: {
        np.dtype(kind).name: np.dtype(kind).type((t + i) % 100) for kind in ("?", *"bhilBHIL", *"efd")},
    "cheetah": lambda i, t: {"x": np.float64(t), "speed": np.float64(t / 3), "cost": np.float32(-0.1 * i)},
    "arrays": lambda i, t: {
        "matrix": np.full((2, 3), t, np.float32), "vector": np.arange(3) + i, "0-d": np.array(t),
        "none": np.zeros((0, 2)), "flags": np.array([t % 2 == 0, True]), "other end first": np.array([t, i], ">i4"),
        "columns first": np.asfortranarray([[t, 1.0], [2.0, i]]), "every other": np.arange(8)[::2] + t,
        "complex": np.array([t + 1j])},
    "odd floats": lambda i, t: {
        "python": [float("nan"), float("inf"), -0.0, 5e-324][t % 4], "array": np.array([np.nan, -0.0, np.inf]),
        "numpy": [np.float64("nan"), np.float64("-inf"), np.float64(-0.0)][t % 3],
        "single": [np.float32("nan"), np.float32(-0.0), np.float32(1e-45)][t % 3]},
    "large ints": lambda i, t: {"n": [2**63 - 1, -(2**63), 2**63, 2**70, -(2**63) - 1][(t + i) % 5], "t": t},
    "keys that change": lambda i, t: {"abc"[t % 3]: t, "always": 1.5, "xyz"[i % 3]: i},
    "an order that changes": lambda i, t: {"a": 1, "b": 2.0} if (t + i) % 2 else {"b": 2.0, "a": 1},
    "types that change": lambda i, t: {"x": [t, t + 0.5, True, np.float64(t), np.int8(t % 100), None][(t + i) % 6]},
    "shapes that change": lambda i, t: {"x": np.arange(t % 4), "y": np.zeros((1, i + 1))},
    "dtypes that change": lambda i, t: {"x": np.array([0, 1, 1], dtype=["i4", "i8", ">i8", "f4", "?"][t % 5])},
    "empty in between": lambda i, t: {} if (t + i) % 3 == 0 else {"x": t},
    "some without": lambda i, t: {"x": t} if i % 2 else {},
    "objects": lambda i, t: {
        "x": [None, "text", b"bytes", [1, t], {"deep": {"er": np.arange(t)}}, Pair(1, 2.0), Color.RED][t % 7], "t": t},
    "other numpy values": lambda i, t: {"x": [
        np.datetime64("2020-01-01"), np.str_("a"), np.complex128(1j), np.longdouble(1.5), np.array(["a", "bc"]),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]), np.array([None, 1], dtype=object)][t % 7]},
    "keys of other types": lambda i, t: [{1: t}, {("a",): t}, {np.str_("x"): t}, {Text("x"): t}, {"x": t}][t % 5],
    "keys of ours": lambda i, t: {"env_id": 100 + i, "final_obs": t, "x": t, "final_info": 0.5},
    "surrogates": lambda i, t: {"\ud800": t, "ä": 1.0},
    "large arrays": lambda i, t: {"x": np.arange(1000.0) + t, "t": t},
    "many keys": lambda i, t: {f"key {k}": float(k) for k in range(INFO_BYTES // 8 - 2 + t % 4)},
    "many schemas": lambda i, t: {f"key {t}": t, "x": float(i)},
    "envs that differ": lambda i, t: [{"x": 1}, {"x": 1.0}, {"x": np.float32(1)}, {"y": "text"}, {}][i],
}  # fmt: skip


class Speaks(gym.Env):
    """Env with the infos of a function of INFOS, which observes its number of steps."""

    observation_space = spaces.Box(0, 1000, (2,), np.float32)
    action_space = spaces.Discrete(5)

    def __init__(self, name, env_id, length=0):
        self.name, self.env_id, self.length = name, env_id, length
        self.t = 0

    def info(self):
        return INFOS[self.name](self.env_id, self.t)

    def reset(self, *, seed=None, options=None):
        self.t = self.t // 100 * 100 + 100
        return np.full(2, self.t, np.float32), self.info()

    def step(self, action):
        self.t += 1
        over = self.length > 0 and self.t % 100 % self.length == 0
        return np.full(2, self.t, np.float32), 1.0, over, False, self.info()


def speakers(names, cls=Speaks, **options):
    """Return N envs with these names, repeated if needed."""
    names = [names] if isinstance(names, str) else names
    return [partial(cls, names[i % len(names)], i, **options) for i in range(N)]


def scribble(value):
    """Overwrite all arrays of an info."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        value[...] = 77
    for part in value.values() if isinstance(value, dict) else ():
        scribble(part)


def log_of(venv):
    """Return the infos of some resets and steps, read again at the end, to see later changes. Then overwrite them."""
    kept = []

    def take(infos):
        kept.append((infos, [described(info) for info in infos]))

    take(venv.reset()[1])
    for t in range(STEPS):
        take(venv.step(np.zeros(N, int), autoreset=t % 3 > 0)[-1])
        if t % 4 == 1:
            take(venv.step([0, 0], [3, 1])[-1])
            take(venv.reset([2])[1])
        if t % 4 == 2:
            take(venv.step(np.zeros(N, int), reset=[0, 4])[-1])
    log = []
    for infos, at_first in kept:
        for info, first in zip(infos, at_first, strict=True):
            assert described(info) == first
            log.append(first)
            scribble(info)
            info["new"] = 1
    return log


on_each_transport = pytest.mark.parametrize(
    "make", [ShmemVectorEnv, SubprocVectorEnv, ON_RAY], ids=lambda make: make.__name__
)
GROUPS = [[*INFOS][k::N] for k in range(N)]
"""Names of INFOS, so that each batch has all kinds."""


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
@on_each_transport
def test_infos_are_those_that_envs_of_this_process_give(make, names):
    fns = speakers(names, length=3)
    with DummyVectorEnv(fns) as dummy, make(fns, num_workers=WORKERS) as venv:
        assert log_of(venv) == log_of(dummy)


@pytest.mark.parametrize("num_workers", [2, None])
@on_each_transport
def test_infos_of_envs_that_answer_one_by_one_are_their_own(make, num_workers):
    names = ["cheetah", "arrays", "types that change", "empty in between", "envs that differ"]
    with make(speakers(names), wait_num=1, num_workers=num_workers) as venv:
        venv.reset()
        steps = np.zeros(N, int)
        venv.send(np.zeros(N, int))
        for _ in range(60):
            *_, infos = venv.recv()
            ids = [info["env_id"] for info in infos]
            steps[ids] += 1
            for i, info in zip(ids, infos, strict=True):
                want = copy_containers({**INFOS[names[i]](i, 100 + steps[i].item()), "env_id": i})
                assert described(info) == described(want)
            venv.send(np.zeros(len(ids), int), ids)
        assert steps.sum() >= 60


class CountsPickles(Speaks):
    """Env that reports in each info the pickles and unpickles of its process."""

    def __init__(self, name, env_id):
        super().__init__(name, env_id)
        self.counter = CallCounter()
        self.counter.__enter__()

    def info(self):
        return {**super().info(), "pickles": self.counter.totals["pickle"]}


@pytest.mark.parametrize("in_rows", [True, False])
def test_a_step_with_infos_of_numbers_pickles_nothing_on_either_side(in_rows):
    """The counter sees the pickles of other infos."""
    names = ["python numbers", "numpy numbers", "cheetah", "arrays", "odd floats"] if in_rows else "large arrays"
    with ShmemVectorEnv(speakers(names, CountsPickles), num_workers=WORKERS) as venv:
        venv.reset()
        venv.step(np.zeros(N, int))
        *_, before = venv.step(np.zeros(N, int))
        with CallCounter() as counter:
            for _ in range(20):
                *_, after = venv.step(np.zeros(N, int))
        assert any(info["pickles"] > then["pickles"] for info, then in zip(after, before, strict=True)) is not in_rows
        assert (counter.totals["pickle"] == counter.totals["socket"] == 0) is in_rows


# Restarts: the next worker of a block numbers its schemas anew.


class SecondLife(Speaks):
    """Env that kills its worker at action 4. In the next worker, its infos have other keys and types under the same
    numbers.
    """

    def __init__(self, env_id, path):
        super().__init__("cheetah", env_id)
        self.path, self.second = path, path.exists()

    def info(self):
        if self.second:
            return {"speed": self.t, "x": bool(self.env_id), "at": np.arange(3) + self.t}
        return super().info()

    def step(self, action):
        if action == 4:
            self.path.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def first_life(i, t):
    return described({**INFOS["cheetah"](i, t), "env_id": i})


def second_life(i, t):
    return described({"speed": t, "x": bool(i), "at": np.arange(3) + t, "env_id": i})


@on_each_transport
def test_the_infos_of_a_restarted_worker_are_read_by_its_own_forms(make, tmp_path):
    fns = [partial(SecondLife, i, tmp_path / "died") for i in range(4)]
    with make(fns, num_workers=2) as venv:
        venv.reset()
        for t in (101, 102):
            *_, infos = venv.step(np.zeros(4, int))
            assert [*map(described, infos)] == [first_life(i, t) for i in range(4)]
        with pytest.raises(WorkerDiedError) as caught:
            venv.step([0, 4, 0, 0])
        others = {info["env_id"]: described(info) for info in caught.value.partial.info}
        assert [others[i] for i in (2, 3)] == [first_life(i, 103) for i in (2, 3)]
        _, infos = venv.reset([0, 1])
        assert [*map(described, infos)] == [second_life(i, 100) for i in (0, 1)]
        *_, infos = venv.step(np.zeros(4, int))
        assert [*map(described, infos)] == [
            *(second_life(i, 101) for i in (0, 1)),
            *(first_life(i, 104) for i in (2, 3)),
        ]


@on_each_transport
def test_an_answer_that_is_taken_after_the_restart_is_read_by_the_form_of_its_time(make, tmp_path):
    fns = [partial(SecondLife, i, tmp_path / "died") for i in range(2)]
    with make(fns, num_workers=1, wait_num=1, **on_this_node(make)) as venv:
        venv.reset()
        venv.send([0], [0])
        assert venv.engine.wait_for_all(None)  # the env has answered, and the answer is not read
        (tmp_path / "died").touch()
        os.kill(venv.engine.backend.workers[0].pid, signal.SIGKILL)
        venv.engine.backend.wait(lambda: bool(venv.engine.backend.lost), time.monotonic() + 30)
        _, infos = venv.reset([1])
        assert described(infos[0]) == second_life(1, 100)
        venv.send([0], [1])
        assert venv.engine.wait_for_all(None)
        *_, infos = venv.recv()
        assert [*map(described, infos)] == [first_life(0, 101), second_life(1, 101)]


# Failures.


class FailsInOddResets(Speaks):
    """Env that raises in its second, fourth, ... reset."""

    resets = 0

    def reset(self, **kwargs):
        self.resets += 1
        if self.resets % 2 == 0:
            raise ValueError("boom")
        return super().reset(**kwargs)


def test_the_info_of_a_reset_that_was_repeated_is_that_of_the_last_one():
    fns = [partial(FailsInOddResets if i == 1 else Speaks, "cheetah", i) for i in range(N)]
    with ShmemVectorEnv(fns, num_workers=WORKERS, on_error="restart") as venv:
        venv.reset()
        _, infos = venv.reset()
        assert [*map(described, infos)] == [first_life(i, 200) for i in range(N)]


class PaysVectors(Speaks):
    """Env with vector rewards."""

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, np.ones(2), *rest


def test_an_env_that_fails_after_its_info_was_written_is_not_among_the_others():
    """Only the parent sees that rewards of two workers differ in shape."""
    fns = [partial(PaysVectors if i < 3 else Speaks, "cheetah", i) for i in range(N)]
    with ShmemVectorEnv(fns, num_workers=WORKERS) as venv:
        venv.reset()
        with pytest.raises(EnvContractError) as caught:
            venv.step(np.zeros(N, int))
        assert [*map(described, caught.value.partial.info)] == [first_life(i, 101) for i in range(3)]


# Facades.


def batches_of(envs):
    """Return the infos of a reset and some steps."""
    infos = [envs.reset(seed=3)[1]]
    infos += [envs.step(np.zeros(N, int))[-1] for _ in range(STEPS)]
    return infos


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_vector_infos_are_those_of_envs_in_this_process(names):
    """test_gymnasium_infos.py compares their types with gymnasium's."""
    fns = speakers([name for name in names if name != "surrogates"], length=4)
    mode = {"autoreset_mode": ["NextStep", "SameStep"][GROUPS.index(names) % 2]}
    far, near = AsyncVectorEnv(fns, num_workers=WORKERS, **mode), SyncVectorEnv(fns, **mode)
    for got, want in zip(batches_of(far), batches_of(near), strict=True):
        assert described(got) == described(want)
    far.close()
    near.close()


def test_a_vector_info_shares_no_memory_with_others():
    envs = AsyncVectorEnv(speakers("cheetah"), num_workers=WORKERS)
    envs.reset()
    first, second = (envs.step(np.zeros(N, int))[-1] for _ in range(2))
    before = described(second)
    for column in first.values():
        column[...] = 0
    assert described(second) == before
    envs.close()


# The writer and the reader alone.


def test_a_writer_learns_a_bounded_number_of_forms():
    writer = InfoWriter(np.zeros((1, INFO_BYTES), np.uint8))
    assert [writer.write(0, {f"key {k}": k}) for k in range(3 * MOST_KNOWN)].count(True) == MOST_SCHEMAS
    assert writer.write(0, {"key 0": 5})
    assert not writer.write(0, {"key 0": 2**64})
    assert len(writer.schemas) == MOST_SCHEMAS


def test_an_info_of_exactly_the_size_of_a_row_fits():
    writer = InfoWriter(np.zeros((2, INFO_BYTES), np.uint8))
    assert writer.write(1, {"x": np.zeros(INFO_BYTES - 1, np.uint8)})
    assert not writer.write(1, {"x": np.zeros(INFO_BYTES, np.uint8)})
    assert writer.size == INFO_BYTES


def test_what_was_read_stays_when_the_rows_are_written_again():
    rows = np.zeros((2, INFO_BYTES), np.uint8)
    writer, reader = InfoWriter(rows), InfoReader(rows, np.array([0, 0]))
    writer.write(0, {"x": 1, "at": np.arange(3)})
    assert reader.read([0]) is None  # its schema has not arrived
    reader.learn(0, 0, writer.schemas[0].keys, writer.schemas[0].kinds)
    (infos,) = reader.read([0])
    writer.write(0, {"x": 2, "at": np.zeros(3, int)})
    assert described(infos[0]) == described({"x": 1, "at": np.arange(3)})
    reader.forget(0)
    assert reader.read([0]) is None
