"""Actions of any array library: converted once a call, checked before anything is sent, and each env's own."""

import numpy as np
import pytest
import torch
from cases import Records, Writes
from gymnasium import spaces

from tests.backends import BACKENDS, and_ray
from vecenv import DummyVectorEnv
from vecenv.backends.memory.layout import Leaf
from vecenv.engine.arguments.actions import batch_actions

backend = and_ray(BACKENDS)

N = 3


def arrived(backend, action_space, *batches):
    """What the envs got: for each env the actions, and their kinds as (type, dtype, shape)."""
    with backend([lambda: Records(action_space)] * N, num_workers=2) as venv:
        venv.reset()
        for batch in batches:
            venv.step(batch)
        return venv.get_env_attr("actions"), venv.call("kinds")


class TestConversion:
    @pytest.mark.parametrize(
        "batch",
        [
            [4, 5, 6],
            (4, 5, 6),
            np.array([4, 5, 6]),
            np.array([4, 5, 6], np.uint8),
            np.array([4.0, 5.0, 6.0]),
            np.array([[4], [5], [6]]),
            torch.tensor([4, 5, 6]),
            torch.tensor([4, 5, 6], dtype=torch.int32),
            torch.tensor([4.0, 5.0, 6.0], requires_grad=True),
            [torch.tensor(4), torch.tensor(5), torch.tensor(6)],
            [np.int32(4), 5, torch.tensor(6)],
            range(4, 7),
        ],
        ids=repr,
    )
    def test_discrete_actions_arrive_as_integers_of_the_space(self, backend, batch):
        actions, kinds = arrived(backend, spaces.Discrete(9), batch)
        assert actions == [[4], [5], [6]]
        assert kinds == [[("int64", "int64", ())]] * N

    @pytest.mark.parametrize(
        "batch",
        [
            np.array([[1, 2], [3, 4], [5, 6]]),
            np.array([[1, 2], [3, 4], [5, 6]], np.float16),
            [[1, 2], [3, 4], [5, 6]],
            torch.tensor([[1.0, 2], [3, 4], [5, 6]], requires_grad=True),
            torch.tensor([[1.0, 3, 5], [2, 4, 6]]).T,
            [torch.tensor([1.0, 2]), torch.tensor([3.0, 4]), torch.tensor([5.0, 6])],
            [torch.tensor([1.0, 2], requires_grad=True), np.array([3, 4], np.float32), np.array([5, 6], np.int8)],
        ],
        ids=lambda batch: repr(batch)[:50],
    )
    def test_continuous_actions_arrive_as_arrays_of_the_space(self, backend, batch):
        actions, kinds = arrived(backend, spaces.Box(-9, 9, (2,), np.float32), batch)
        assert [[row.tolist() for row in rows] for rows in actions] == [[[1, 2]], [[3, 4]], [[5, 6]]]
        assert kinds == [[("ndarray", "float32", (2,))]] * N

    @pytest.mark.parametrize("shape", [(2,), (1,), ()])
    @pytest.mark.parametrize("own", [np.float32, np.float16])
    def test_float64_actions_are_rounded_to_the_float_type_of_the_space(self, backend, own, shape):
        batch, narrow = np.full((N, *shape), 0.1), np.full((N, *shape), 0.1, own)
        actions, kinds = arrived(backend, spaces.Box(-9, 9, shape, own), batch, batch.tolist(), narrow)
        for i in range(N):
            assert [np.array(action).tolist() for action in actions[i]] == [narrow[i].tolist()] * 3
            assert [dtype for _, dtype, _ in kinds[i]] == [np.dtype(own).name] * 3
            assert [found for _, _, found in kinds[i]] == [shape] * 3

    def test_actions_too_large_for_the_float_type_of_the_space_arrive_as_they_are(self, backend):
        """They would become infinite: the env decides."""
        actions, _ = arrived(backend, spaces.Box(-9, 9, (1,), np.float32), np.full((N, 1), 1e300))
        assert [[row.tolist() for row in rows] for rows in actions] == [[[1e300]]] * N

    def test_float64_actions_in_a_round_of_some_or_with_resets(self, backend):
        with backend([lambda: Records(spaces.Box(-9, 9, (1,), np.float32))] * N, num_workers=2) as venv:
            venv.reset()
            venv.step(np.full((2, 1), 0.1), [2, 0], reset=[2])
            venv.step(np.full((2, 1), 0.1, np.float32), [2, 0])
            assert [[row.tolist() for row in rows] for rows in venv.get_env_attr("actions")] == [
                [[np.float32(0.1)], [np.float32(0.1)]],
                [],
                [[np.float32(0.1)]],
            ]

    def test_check_actions_looks_at_the_value_not_at_the_type(self, backend):
        space = spaces.Box(-9, 9, (1,), np.float32)
        with backend([lambda: Records(space)] * N, check_actions=True) as venv:
            venv.reset()
            venv.step(np.full((N, 1), 0.1))
            with pytest.raises(ValueError, match=r"action for env 0 is .*, which is not in its action space"):
                venv.step(np.full((N, 1), 1e300))

    @pytest.mark.parametrize("rows", [2, 4])
    def test_a_dict_of_batches_has_a_row_for_each_env_in_every_entry(self, backend, rows):
        space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Discrete(3)})
        with backend([lambda: Records(space)] * N) as venv:
            venv.reset()
            with pytest.raises(ValueError, match=f"got {rows} actions for 3 envs"):
                venv.step({"a": np.zeros(3, int), "b": np.zeros(rows, int)})
            assert venv.get_env_attr("actions") == [[]] * 3

    def test_dict_actions_as_a_dict_of_batches_or_one_dict_an_env(self, backend):
        space = spaces.Dict({"a": spaces.Discrete(9), "b": spaces.Dict({"c": spaces.Box(-9, 9, (2,))})})
        batched = {"a": torch.tensor([1, 2, 3]), "b": {"c": np.ones((3, 2), np.float32)}}
        single = [{"a": i + 1, "b": {"c": np.ones(2, np.float32)}} for i in range(N)]
        actions, _ = arrived(backend, space, batched, single)
        for i in range(N):
            for action in actions[i]:
                assert action["a"] == i + 1
                assert action["b"]["c"].tolist() == [1, 1]
                assert action["b"]["c"].dtype == np.float32

    def test_tensors_within_the_action_of_an_env_arrive_as_arrays(self, backend):
        space = spaces.Dict({"a": spaces.Discrete(9), "b": spaces.Sequence(spaces.Box(-9, 9, (2,)))})
        one = {"a": torch.tensor(1), "b": (torch.ones(2, requires_grad=True),)}
        actions, _ = arrived(backend, space, [one] * N)
        assert [type(rows[0]["b"][0]) for rows in actions] == [np.ndarray] * N
        assert [rows[0]["a"].tolist() for rows in actions] == [1] * N

    @pytest.mark.parametrize(
        "batch", [torch.ones(N, 2, dtype=torch.bfloat16), [[torch.ones((), requires_grad=True)] * 2] * N]
    )
    def test_tensors_that_numpy_cannot_read_at_once(self, backend, batch):
        actions, _ = arrived(backend, spaces.Box(-9, 9, (2,), np.float32), batch)
        assert [rows[0].tolist() for rows in actions] == [[1, 1]] * N

    def test_tuple_actions_as_one_tuple_an_env(self, backend):
        space = spaces.Tuple([spaces.Discrete(9), spaces.Box(-9, 9, (2,))])
        actions, kinds = arrived(backend, space, [(i, np.full(2, i, np.float32)) for i in range(N)])
        assert [(rows[0][0], rows[0][1].tolist()) for rows in actions] == [(i, [i, i]) for i in range(N)]
        assert [rows[0][0] for rows in kinds] == ["tuple"] * N

    def test_any_object_is_an_action_where_the_space_has_no_array(self, backend):
        actions, _ = arrived(backend, spaces.Text(5), ["a", "bc", "d"], np.array(["x", "y", "z"]))
        assert actions == [["a", "x"], ["bc", "y"], ["d", "z"]]

    def test_actions_outside_of_the_space_are_passed_on(self, backend):
        actions, _ = arrived(backend, spaces.Box(-1, 1, (1,), np.float32), np.array([[np.nan], [77], [np.inf]]))
        assert np.isnan(actions[0][0]).all()
        assert [actions[i][0].tolist() for i in (1, 2)] == [[77], [np.inf]]
        assert arrived(backend, spaces.Discrete(2), [5, -7, 1])[0] == [[5], [-7], [1]]

    @pytest.mark.parametrize(
        ("space", "batch", "message"),
        [
            (spaces.MultiDiscrete([3, 4]), [1] * N, r"envs \[0, 1, 2\] has the shape \(3,\), expected \(3, 2\)"),
            (spaces.MultiDiscrete([3, 4]), np.zeros((N, 3), int), r"shape \(3, 3\), expected \(3, 2\)"),
            (spaces.Discrete(4), np.zeros((N, 2), int), r"shape \(3, 2\), expected \(3,\)"),
            (spaces.MultiBinary(4), np.ones(N, np.int8), r"shape \(3,\), expected \(3, 4\)"),
            (spaces.Box(-1, 1, (2,)), np.zeros((N, 4)), r"shape \(3, 4\), expected \(3, 2\): for each env one of"),
            (spaces.Box(-1, 1, (2,)), np.zeros((N, 2, 1), np.float32), r"shape \(3, 2, 1\), expected \(3, 2\)"),
            (spaces.Box(-1, 1, (3,)), torch.zeros(N), r"shape \(3,\), expected \(3, 3\)"),
            (spaces.Box(-1, 1, (2,)), [[1, 1], [1], [1, 1]], r"for env 1 has the shape \(1,\), expected \(2,\)"),
            (spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1, 1, (2,))}),
             {"a": [0] * N, "b": np.zeros((N, 3))}, r"action\['b'\] for envs .* shape \(3, 3\), expected \(3, 2\)"),
            (spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,))]),
             [(0, [0.0])] * N, r"action\[1\] for envs .* shape \(3, 1\), expected \(3, 2\)"),
        ],
    )  # fmt: skip
    def test_numbers_of_another_shape_are_refused_before_anything_is_sent(self, backend, space, batch, message):
        """An env would often accept them, and mean something else."""
        with backend([lambda: Records(space)] * N, num_workers=2) as venv:
            venv.reset()
            for id in (None, [0, 1, 2]):
                with pytest.raises(ValueError, match=message):
                    venv.step(batch, id)
            assert venv.get_env_attr("actions") == [[]] * N
            assert venv.ready_id == [0, 1, 2]

    def test_what_is_no_number_is_passed_on(self, backend):
        """The env decides, as it does without a vector env."""
        actions, _ = arrived(backend, spaces.Box(-1, 1, (2,), np.float32), ["up", "down", None], [None] * 3)
        assert actions == [["up", None], ["down", None], [None, None]]

    def test_the_batch_is_converted_once(self):
        class Counts:
            """An array of another library."""

            calls = 0

            def __array__(self, dtype=None, copy=None):
                Counts.calls += 1
                return np.array([1, 2, 3])

            def __len__(self):
                return 3

            def __getitem__(self, i):
                raise AssertionError("taken row by row")

        with DummyVectorEnv([lambda: Records(spaces.Discrete(9))] * N) as venv:
            venv.reset()
            venv.step(Counts())
            assert venv.get_env_attr("actions") == [[1], [2], [3]]
        assert Counts.calls == 1

    def test_tensors_of_other_libraries(self, backend):
        """They have torch's way to the host, and not its questions where they are."""

        class Tensor:
            def __init__(self, values):
                self.values = values

            def detach(self):
                return self

            def cpu(self):
                return self

            def numpy(self):
                return np.array(self.values)

        for batch in (Tensor([4, 5, 6]), [Tensor(4), Tensor(5), Tensor(6)]):
            actions, kinds = arrived(backend, spaces.Discrete(9), batch)
            assert actions == [[4], [5], [6]]
            assert kinds == [[("int64", "int64", ())]] * N

    def test_an_array_that_fits_is_not_copied_on_the_way(self):
        batch = np.zeros((2, 3), np.float32)
        assert batch_actions(batch, [0, 1], Leaf("action", (3,), np.dtype(np.float32))) is batch


class TestRowsBelongToTheEnvs:
    @pytest.mark.parametrize("ids", [None, [2, 0]])
    def test_what_an_env_writes_into_its_action_reaches_no_other(self, backend, ids):
        space = spaces.Box(-9, 9, (2,), np.float32)
        for batch in (np.ones((3, 2), np.float32), np.ones((3, 2)), torch.ones(3, 2)):
            batch = batch if ids is None else batch[:2]
            with backend([lambda: Writes(space)] * N, num_workers=2) as venv:
                venv.reset()
                for _ in range(2):
                    assert np.array_equal(venv.step(batch, ids)[0], np.ones((len(batch), 2)))
                assert bool((batch == 1).all())

    def test_nor_where_one_object_is_the_action_of_all(self, backend):
        space = spaces.Dict({"x": spaces.Box(-9, 9, (2,))})
        action = {"x": np.ones(2, np.float32)}
        with backend([lambda: Writes(space)] * N, num_workers=1) as venv:
            venv.reset()
            for _ in range(2):
                assert np.array_equal(venv.step([action] * N)[0], np.ones((N, 2)))
            assert action["x"].tolist() == [1, 1]

    def test_nor_the_arguments_of_reset(self, backend):
        options = {}
        with backend([lambda: Writes(spaces.Discrete(2))] * N, num_workers=1) as venv:
            venv.reset(options=options)
            assert venv.get_env_attr("actions") == [[1], [1], [1]]
        assert options == {}

    def test_rows_may_be_kept(self, backend):
        """Later actions do not write over earlier ones."""
        space = spaces.Box(-9, 9, (2,), np.float32)
        batches = [np.full((3, 2), k, np.float32) for k in range(4)]
        actions, _ = arrived(backend, space, *batches)
        assert [[row.tolist() for row in rows] for rows in actions] == [[[k, k] for k in range(4)]] * N

    def test_the_caller_may_go_on_with_its_array(self, backend):
        space = spaces.Box(-9, 9, (2,), np.float32)
        with backend([lambda: Records(space)] * N, num_workers=2) as venv:
            venv.reset()
            batch = np.ones((3, 2), np.float32)
            venv.send(batch)
            batch[...] = 5
            venv.recv()
            assert [rows[0].tolist() for rows in venv.get_env_attr("actions")] == [[1, 1]] * N
