"""Actions in forms that random programs do not draw: mixed lists, text, tuples that have two readings.

`tests/messages/engine.py` has the actions that are refused. `check_vector_env` checks that each env gets a copy.
"""

import threading

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.support.cases import Records, Writes, described
from vecenv import BaseVectorEnv, DummyVectorEnv, ShmemVectorEnv, nest
from vecenv.testing import FakeBackend

N = 3
FLOAT32 = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
DISCRETE, BOX, NUMBER = spaces.Discrete(9), spaces.Box(-9, 9, (2,), np.float32), spaces.Box(-9, 9, (), np.float16)
NESTED = spaces.Dict({"a": DISCRETE, "b": spaces.Dict({"c": BOX})})
INTS = np.arange(N)
DISCRETES = [np.int64(4), np.int64(5), np.int64(6)]
DIGITS = tuple(np.arange(1, 10).reshape(N, N))

CONVERTED = [
    # the action space, what the caller passes, what each env receives
    *((DISCRETE, batch, DISCRETES) for batch in (
        range(4, 7), np.array([[4], [5], [6]]), [np.int32(4), 5, torch.tensor(6)],
        torch.tensor([4.0, 5.0, 6.0], requires_grad=True),
    )),
    *((BOX, batch, FLOAT32) for batch in (
        torch.tensor(FLOAT32).to(torch.bfloat16),
        [torch.tensor([1.0, 2], requires_grad=True), np.array([3, 4], np.float32), np.array([5, 6], np.int8)],
        [[torch.tensor(float(x), requires_grad=True) for x in row] for row in FLOAT32],
    )),
    (NUMBER, [0.1] * N, np.full(N, 0.1, np.float16)),
    (NUMBER, np.full((N, 1), 0.1), np.full(N, 0.1, np.float16)),
    # These values overflow, are outside of the space or are not numbers. The env decides, as without a vector env.
    (BOX, np.full((N, 2), 1e300), np.full((N, 2), 1e300)),
    (BOX, ["up", "down", None], ["up", "down", None]),
    (BOX, [[np.nan, 77], [np.inf, 0], [0, 0]], np.array([[np.nan, 77], [np.inf, 0], [0, 0]], np.float32)),
    (spaces.Discrete(2), [5, -7, 1], [np.int64(5), np.int64(-7), np.int64(1)]),
    (spaces.Text(5), ["a", "bc", "d"], ["a", "bc", "d"]),
    (NESTED, {"a": torch.tensor([0, 1, 2]), "b": {"c": FLOAT32.astype(float)}},
     [{"a": np.int64(i), "b": {"c": FLOAT32[i]}} for i in range(N)]),
    # A tuple of tuples has one action per env. Any other tuple has batches.
    (spaces.Tuple([DISCRETE] * N), ([1, 2, 3], np.array([4, 5, 6]), [7, 8, 9]), [*zip(*DIGITS, strict=True)]),
    (spaces.Tuple([DISCRETE] * N), ((1, 4, 7), (2, 5, 8), (3, 6, 9)), [*zip(*DIGITS, strict=True)]),
    (spaces.Tuple([spaces.Tuple([DISCRETE, DISCRETE])] * 2), ((INTS, INTS + 1), (INTS, INTS)),
     [((i, i + 1), (i, i)) for i in INTS]),
    (spaces.Tuple([DISCRETE, spaces.Text(5)]), [(0, "a"), (1, "bc"), (2, "")],
     [(np.int64(i), text) for i, text in enumerate(("a", "bc", ""))]),
    (spaces.Dict({"b": spaces.Sequence(BOX)}), [{"b": (torch.ones(2, requires_grad=True),)}] * N,
     [{"b": (np.ones(2, np.float32),)}] * N),
]  # fmt: skip


@pytest.mark.guarantee("G5.1", "G5.2", "G5.3")
@pytest.mark.parametrize(("space", "batch", "want"), CONVERTED)
def test_an_env_receives_a_row_in_the_dtype_and_shape_of_its_space(space, batch, want):
    with DummyVectorEnv([lambda: Records(space)] * N) as venv:
        venv.reset()
        venv.step(batch)
        got = [actions[0] for actions in venv.get_env_attr("actions")]
    assert described(got) == described(list(want))


def test_envs_with_other_action_spaces_get_actions_of_their_own_space():
    with DummyVectorEnv([lambda: Records(DISCRETE), lambda: Records(spaces.Tuple([BOX]))]) as venv:
        venv.reset()
        venv.step([1.0, ([0, 0],)])
        (number,), ((row,),) = venv.get_env_attr("actions")
    assert described((number, row)) == described((np.int64(1), np.zeros(2, np.float32)))


@pytest.mark.guarantee("G5.4")
def test_numbers_of_another_shape_are_refused():
    """An env would often accept these numbers with a different meaning."""
    with DummyVectorEnv([lambda: Records(BOX)] * N) as venv:
        venv.reset()
        for batch in (np.zeros((N, 4)), np.zeros((N, 2, 1), np.float32), [[1, 1], [1], [1, 1]], [1] * N):
            with pytest.raises(ValueError, match=r"expected \(3, 2\)|for env 1 has the shape \(1,\), expected \(2,\)"):
                venv.step(batch)
        assert venv.get_env_attr("actions") == [[]] * N


@pytest.mark.guarantee("G5.5", "G7.2")
def test_check_actions_ignores_the_actions_of_envs_that_are_reset():
    with DummyVectorEnv([lambda: Records(BOX)] * N, check_actions=True) as venv:
        venv.reset()
        venv.step([[0, 0], [0, 99], [0, 0]], reset=[1])
        with pytest.raises(ValueError, match=r"action for env 1 is .*99"):
            venv.step([[0, 0], [0, 99], [0, 0]])
        assert [len(actions) for actions in venv.get_env_attr("actions")] == [1, 0, 1]


def test_actions_of_envs_that_are_reset_need_not_travel():
    with ShmemVectorEnv([lambda: Records(spaces.Text(3))] * 2) as venv:
        venv.reset()
        venv.step([threading.Lock(), "a"], reset=[0])
        assert venv.get_env_attr("actions") == [[], ["a"]]


@pytest.mark.parametrize("batch", [np.ones((N, 2)), torch.ones(N, 2), [{"x": np.ones(2, np.float32)}] * N], ids=type)
def test_what_an_env_writes_into_its_action_reaches_no_other(batch):
    space = spaces.Dict({"x": BOX}) if isinstance(batch, list) else BOX
    with DummyVectorEnv([lambda: Writes(space)] * N) as venv:
        venv.reset()
        for _ in range(2):
            assert np.array_equal(venv.step(batch)[0], np.ones((N, 2)))
    assert all(bool((leaf == 1).all()) for row in batch for leaf in nest.leaves(row))


@pytest.mark.guarantee("G4.3")
def test_what_an_env_writes_into_its_options_reaches_no_other():
    options = {}
    with DummyVectorEnv([lambda: Writes(spaces.Discrete(2))] * N) as venv:
        venv.reset(options=options)
        assert venv.get_env_attr("actions") == [[1], [1], [1]]
    assert options == {}


@pytest.mark.parametrize("space", [BOX, spaces.Sequence(DISCRETE)])
def test_the_caller_may_overwrite_its_actions_after_send(space):
    with BaseVectorEnv([lambda: Records(space)] * N, backend=FakeBackend()) as venv:
        venv.reset()
        for k in range(2):
            batch = np.full((3, 2), k, np.float32)
            venv.send(batch if space is BOX else list(batch))
            batch[...] = 5  # before an env has got its action
            venv.recv()
        assert [[row.tolist() for row in rows] for rows in venv.get_env_attr("actions")] == [[[0, 0], [1, 1]]] * N
