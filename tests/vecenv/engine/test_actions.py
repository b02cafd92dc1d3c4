"""Actions of any array library are converted once per call, checked before the round, and copied for each env."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.support.cases import NEAR_ON_RAY, WITH_TWO_WORKERS, Records, Writes, equal_bits
from vecenv import BaseVectorEnv, DummyVectorEnv, nest
from vecenv.actions import batch_actions
from vecenv.layout import Leaf, common_layout
from vecenv.testing import FakeBackend

N = 3
FLOAT32 = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
DISCRETE, BOX = spaces.Discrete(9), spaces.Box(-9, 9, (2,), np.float32)
NESTED = spaces.Dict({"a": DISCRETE, "b": spaces.Dict({"c": BOX})})
INTS = np.arange(N)
TREE = {"a": np.array([1, 2, 3]), "b": {"c": FLOAT32}}


class Tensor:
    """Tensor of a different library, with torch's methods to reach the host, but no `is_cpu`."""

    def __init__(self, values):
        self.values = values

    def __repr__(self):
        return f"Tensor({self.values!r})"

    def detach(self):
        return self

    def cpu(self):
        return self

    def numpy(self):
        return np.array(self.values)


def floats(shape, value, dtype):
    return np.full((N, *shape), value, dtype)


CONVERTED = [
    # the action space, what the caller passes, what is sent: an array, a tree of them, or one object for each env
    *((DISCRETE, batch, np.array([4, 5, 6])) for batch in (
        [4, 5, 6], (4, 5, 6), range(4, 7), np.array([4, 5, 6]), np.array([4, 5, 6], np.uint8),
        np.array([4.0, 5.0, 6.0]), np.array([[4], [5], [6]]), [np.int32(4), 5, torch.tensor(6)],
        torch.tensor([4, 5, 6]), torch.tensor([4, 5, 6], dtype=torch.int32),
        torch.tensor([4.0, 5.0, 6.0], requires_grad=True), [torch.tensor(4), torch.tensor(5), torch.tensor(6)],
        Tensor([4, 5, 6]), [Tensor(4), Tensor(5), Tensor(6)],
    )),
    *((BOX, batch, FLOAT32) for batch in (
        FLOAT32.astype(int), FLOAT32.astype(np.float16), FLOAT32.tolist(), torch.tensor(FLOAT32, requires_grad=True),
        torch.tensor([[1.0, 3, 5], [2, 4, 6]]).T, torch.tensor(FLOAT32).to(torch.bfloat16),
        [torch.tensor([1.0, 2]), torch.tensor([3.0, 4]), torch.tensor([5.0, 6])],
        [torch.tensor([1.0, 2], requires_grad=True), np.array([3, 4], np.float32), np.array([5, 6], np.int8)],
        [[torch.tensor(float(x), requires_grad=True) for x in row] for row in FLOAT32],
    )),
    *((spaces.Box(-9, 9, shape, own), batch, floats(shape, 0.1, own))
      for shape in ((2,), (1,), ()) for own in (np.float32, np.float16)
      for batch in (floats(shape, 0.1, float), floats(shape, 0.1, float).tolist(), floats(shape, 0.1, own))),
    # These values overflow or are not numbers. The env decides, as without a vector env.
    (BOX, floats((2,), 1e300, float), [np.full(2, 1e300)] * 3),
    (BOX, ["up", "down", None], ["up", "down", None]),
    (spaces.Text(5), ["a", "bc", "d"], ["a", "bc", "d"]),
    (spaces.Text(5), np.array(["x", "y", "z"]), [*np.array(["x", "y", "z"])]),
    # Values outside the space are passed on.
    (BOX, [[np.nan, 77], [np.inf, 0], [0, 0]], np.array([[np.nan, 77], [np.inf, 0], [0, 0]], np.float32)),
    (spaces.Discrete(2), [5, -7, 1], np.array([5, -7, 1])),
    (NESTED, {"a": torch.tensor([1, 2, 3]), "b": {"c": FLOAT32.astype(float)}}, TREE),
    (NESTED, [{"a": i + 1, "b": {"c": FLOAT32[i]}} for i in range(N)], TREE),
    (spaces.Tuple([DISCRETE, BOX]), [(i, FLOAT32[i]) for i in range(N)], (np.arange(3), FLOAT32)),
    (spaces.Tuple([DISCRETE, BOX]), (torch.arange(N), FLOAT32.astype(float)), (np.arange(3), FLOAT32)),
    # The tuple has a part per env: a tuple of tuples has one action per env, any other tuple has batches.
    (spaces.Tuple([DISCRETE] * N), ([1, 2, 3], np.array([4, 5, 6]), [7, 8, 9]), tuple(np.arange(1, 10).reshape(N, N))),
    (spaces.Tuple([DISCRETE] * N), ((1, 4, 7), (2, 5, 8), (3, 6, 9)), tuple(np.arange(1, 10).reshape(N, N))),
    (spaces.Tuple([DISCRETE] * N), [[1, 4, 7], [2, 5, 8], [3, 6, 9]], tuple(np.arange(1, 10).reshape(N, N))),
    (spaces.Tuple([spaces.Tuple([DISCRETE, DISCRETE])] * 2), ((INTS, INTS + 1), (INTS, INTS)),
     ((INTS, INTS + 1), (INTS, INTS))),
    (spaces.Tuple([NESTED, DISCRETE]), ({"a": [1, 2, 3], "b": {"c": FLOAT32}}, INTS), (TREE, INTS)),
    (spaces.Dict({"b": spaces.Sequence(BOX)}), [{"b": (torch.ones(2, requires_grad=True),)}] * N,
     [{"b": (np.ones(2, np.float32),)}] * N),
]  # fmt: skip
REFUSED = [
    (spaces.MultiDiscrete([3, 4]), [1] * N, r"envs \[0, 1, 2\] has the shape \(3,\), expected \(3, 2\)"),
    (spaces.MultiBinary(4), np.ones(N, np.int8), r"shape \(3,\), expected \(3, 4\)"),
    (BOX, np.zeros((N, 4)), r"shape \(3, 4\), expected \(3, 2\): one row per env"),
    (BOX, np.zeros((N, 2, 1), np.float32), r"shape \(3, 2, 1\), expected \(3, 2\)"),
    (BOX, [[1, 1], [1], [1, 1]], r"for env 1 has the shape \(1,\), expected \(2,\)"),
    (spaces.Dict({"a": DISCRETE, "b": BOX}), {"a": [0] * N, "b": np.zeros((N, 3))},
     r"action\['b'\] for envs .* shape \(3, 3\), expected \(3, 2\)"),
    (spaces.Tuple([DISCRETE, BOX]), [(0, [0.0])] * N, r"action\[1\] for envs .* shape \(3, 1\), expected \(3, 2\)"),
    (spaces.Dict({"a": DISCRETE, "b": DISCRETE}), {"a": [0] * N, "b": [0] * 2}, "got 2 actions for 3 envs"),
    (spaces.Tuple([DISCRETE, DISCRETE]), ([0] * N, [0] * 2), "got 2 actions for 3 envs"),
]  # fmt: skip


def sent(space, batch):
    return batch_actions(batch, range(N), common_layout([None] * N, [space] * N).action)


class TestConversion:
    @pytest.mark.guarantee("G5.3")
    @pytest.mark.parametrize(("space", "batch", "want"), CONVERTED)
    def test_a_batch_has_the_dtype_and_shape_of_the_space(self, space, batch, want):
        got = sent(space, batch)
        assert type(got) is type(want)
        if isinstance(want, list):
            assert repr(got) == repr(want)
        else:
            assert all(map(equal_bits, nest.leaves(got), nest.leaves(want)))

    @pytest.mark.guarantee("G5.4")
    @pytest.mark.parametrize(("space", "batch", "message"), REFUSED)
    def test_numbers_of_another_shape_are_refused(self, space, batch, message):
        """An env would often accept these numbers with a different meaning."""
        with pytest.raises(ValueError, match=message):
            sent(space, batch)

    @pytest.mark.guarantee("G5.1")
    def test_they_arrive_as_numbers_and_rows_of_the_space(self):
        for space, batch, kind in (
            (DISCRETE, [4, 5, 6], ("int64", "int64", ())),
            (BOX, FLOAT32.tolist(), ("ndarray", "float32", (2,))),
            (spaces.Tuple([DISCRETE, BOX]), [(0, [0.0, 0.0])] * N, ("tuple", "None", None)),
        ):
            with DummyVectorEnv([lambda space=space: Records(space)] * N) as venv:
                venv.reset()
                venv.step(batch)
                venv.step(batch[1:], [2, 0], reset=[2])
                assert venv.call("kinds") == [[kind] * 2, [kind], [kind]]

    @pytest.mark.guarantee("G5.1")
    @pytest.mark.parametrize("make", [DummyVectorEnv, NEAR_ON_RAY, *WITH_TWO_WORKERS], ids=lambda make: make.__name__)
    def test_a_tuple_of_batches_is_an_action_of_a_tuple_space(self, make):
        batch, one = (INTS[:2], INTS[1:]), [(0, 1), (1, 2)]
        with make([lambda: Records(spaces.Tuple([DISCRETE, DISCRETE]))] * 2) as venv:
            venv.reset()
            venv.step(batch)
            venv.step(nest.map(lambda part: part[1:], batch), [1])
            assert venv.get_env_attr("actions") == [[one[0]], [one[1]] * 2]

    @pytest.mark.guarantee("G5.2")
    def test_actions_of_a_tuple_space_with_a_text_are_a_list(self):
        with DummyVectorEnv([lambda: Records(spaces.Tuple([DISCRETE, spaces.Text(5)]))] * 2) as venv:
            venv.reset()
            with pytest.raises(TypeError, match="pass a list with one action per env"):
                venv.step((INTS[:2], ["a", "bc"]))
            venv.step([(0, "a"), (1, "bc")])
            assert venv.get_env_attr("actions") == [[(0, "a")], [(1, "bc")]]

    @pytest.mark.parametrize(
        ("env_spaces", "batch", "wrong"),
        [
            (
                [spaces.Dict({"x": BOX, "go": DISCRETE, "say": spaces.Text(5)})] * 2,
                {"x": np.zeros((2, 2)), "go": [1.0, 2], "say": ["a", "b"]},
                [{"x": np.zeros((2, 3))}, {"go": [0.5, 1]}],
            ),
            ([DISCRETE, spaces.Tuple([BOX])], [1.0, ([0, 0],)], [[1, ([0],)], [0.5, ([0, 0],)]]),
        ],
    )
    def test_numbers_beside_texts_and_of_envs_that_differ_are_cast_and_checked_too(self, env_spaces, batch, wrong):
        with DummyVectorEnv([lambda space=space: Records(space) for space in env_spaces]) as venv:
            venv.reset()
            venv.step(batch)
            for change, error, text in zip(
                wrong, (ValueError, TypeError), ("has the shape", "whole numbers"), strict=True
            ):
                with pytest.raises(error, match=text):
                    venv.step({**batch, **change} if isinstance(batch, dict) else change)
            for (action,), space in zip(venv.get_env_attr("actions"), env_spaces, strict=True):
                assert space.contains(action)
                kinds = {part.dtype.name for part in nest.leaves(action) if not isinstance(part, str)}
                assert kinds <= {"float32", "int64"}

    @pytest.mark.guarantee("G5.5")
    def test_check_actions_looks_at_the_value_not_at_the_type(self):
        with DummyVectorEnv([lambda: Records(BOX)] * N, check_actions=True) as venv:
            venv.reset()
            venv.step(floats((2,), 0.1, float))
            with pytest.raises(ValueError, match=r"action for env 1 is .*99.*, which is not in its action space Box\("):
                venv.step([[0, 0], [0, 99], [0, 0]])
            assert [len(actions) for actions in venv.get_env_attr("actions")] == [1] * N

    def test_the_batch_is_converted_once(self):
        class Counts:
            """Array of a different library."""

            calls = 0

            def __array__(self, dtype=None, copy=None):
                Counts.calls += 1
                return np.array([1, 2, 3])

            def __len__(self):
                return 3

            def __getitem__(self, i):
                raise AssertionError("taken row by row")

        assert sent(DISCRETE, Counts()).tolist() == [1, 2, 3]
        assert Counts.calls == 1

    def test_an_array_that_fits_is_not_copied_on_the_way(self):
        batch = np.zeros((2, 3), np.float32)
        assert batch_actions(batch, [0, 1], Leaf("action", (3,), np.dtype(np.float32))) is batch


class TestRowsBelongToTheEnvs:
    @pytest.mark.parametrize("ids", [None, [2, 0]])
    def test_what_an_env_writes_into_its_action_reaches_no_other(self, ids):
        for batch in (np.ones((3, 2), np.float32), np.ones((3, 2)), torch.ones(3, 2)):
            batch = batch if ids is None else batch[:2]
            with DummyVectorEnv([lambda: Writes(BOX)] * N) as venv:
                venv.reset()
                for _ in range(2):
                    assert np.array_equal(venv.step(batch, ids)[0], np.ones((len(batch), 2)))
                assert bool((batch == 1).all())

    def test_nor_where_one_object_is_the_action_of_all(self):
        action = {"x": np.ones(2, np.float32)}
        with DummyVectorEnv([lambda: Writes(spaces.Dict({"x": BOX}))] * N) as venv:
            venv.reset()
            for _ in range(2):
                assert np.array_equal(venv.step([action] * N)[0], np.ones((N, 2)))
            assert action["x"].tolist() == [1, 1]

    def test_nor_the_arguments_of_reset(self):
        options = {}
        with DummyVectorEnv([lambda: Writes(spaces.Discrete(2))] * N) as venv:
            venv.reset(options=options)
            assert venv.get_env_attr("actions") == [[1], [1], [1]]
        assert options == {}

    @pytest.mark.parametrize("space", [BOX, spaces.Sequence(DISCRETE)])
    def test_the_caller_may_go_on_with_its_actions(self, space):
        with BaseVectorEnv([lambda: Records(space)] * N, backend=FakeBackend()) as venv:
            venv.reset()
            for k in range(2):
                batch = np.full((3, 2), k, np.float32)
                venv.send(batch if space is BOX else list(batch))
                batch[...] = 5  # before an env has got its action
                venv.recv()
            assert [[row.tolist() for row in rows] for rows in venv.get_env_attr("actions")] == [[[0, 0], [1, 1]]] * N
