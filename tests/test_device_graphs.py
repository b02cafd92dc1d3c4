"""Policies that are compiled, or replayed as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

torch = pytest.importorskip("torch")

from device_double import FakeGraphs, outputs_of  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributions import (  # noqa: E402
    Categorical,
    Independent,
    LogNormal,
    Normal,
    TanhTransform,
    TransformedDistribution,
)

from collector.policy.cuda_graphs import GraphedPolicy  # noqa: E402
from collector.policy.exploration import ExplorationType, choose  # noqa: E402
from collector.policy.mlp import MLPPolicy  # noqa: E402
from collector.policy.padding import PaddedPolicy, batch_sizes  # noqa: E402
from collector.policy.prepare import prepare_policy  # noqa: E402
from collector.policy.torch_policy import TorchPolicy  # noqa: E402
from tests.backends import FULL  # noqa: E402

CUDA = torch.cuda.is_available()
needs_cuda = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
RANDOM, MODE, MEAN = ExplorationType.RANDOM, ExplorationType.MODE, ExplorationType.MEAN

Make = Callable[..., Any]


def graphed(policy: Any, rows: int = 8, exploration: ExplorationType = RANDOM, **options: Any) -> Any:
    return GraphedPolicy(policy, rows, exploration, capture=FakeGraphs(), **options)


def padded(policy: Any, rows: int = 8, exploration: ExplorationType = RANDOM, **options: Any) -> Any:
    return PaddedPolicy(policy, rows, exploration, **options)


both = pytest.mark.parametrize("make", [padded, graphed])


def obs(k: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random((k, 4), np.float32))


class TestSizes:
    def test_a_full_batch_and_its_half_quarter_and_eighth(self) -> None:
        assert batch_sizes(128) == (16, 32, 64, 128)
        assert batch_sizes(6) == (1, 2, 3, 6)
        assert batch_sizes(1) == (1,)
        assert batch_sizes(8, [3, 10]) == (3, 10)
        for sizes in ([], [0, 8], [4]):
            with pytest.raises(ValueError, match="at least the 8 rows of a full batch"):
                batch_sizes(8, sizes)


@both
class TestSameAnswers:
    def test_for_any_number_of_rows(self, make: Make) -> None:
        module, seen = nn.Linear(4, 2), set()
        policy = make(lambda rows: (seen.add(len(rows)), module(rows))[1])
        for seed, k in enumerate([8, 1, 2, 3, 4, 5, 6, 7, 8, 3]):
            torch.testing.assert_close(policy(obs(k, seed)), module(obs(k, seed)))
        assert seen == {1, 2, 4, 8}

    def test_dicts_tuples_and_keyword_arguments_keep_their_form(self, make: Make) -> None:
        def policy(obs: Any, env_id: Any, state: Any = None) -> Any:
            return {"action": obs["a"] + obs["b"][0], "ids": env_id * 2, "state": {"h": obs["a"] * 3}}

        outputs = make(policy)({"a": obs(3), "b": (obs(3, 1),)}, env_id=torch.tensor([5, 6, 7]), state=None)
        torch.testing.assert_close(outputs["action"], obs(3) + obs(3, 1))
        assert outputs["ids"].tolist() == [10, 12, 14]
        torch.testing.assert_close(outputs["state"]["h"], obs(3) * 3)


@FULL
@both
class TestBadInput:
    @pytest.mark.parametrize(
        ("given", "error", "message"),
        [
            ((np.zeros((3, 4)),), TypeError, "takes tensors with a row for each observation"),
            ((torch.tensor(1.0),), TypeError, "takes tensors with a row for each observation"),
            ((obs(9),), ValueError, "at most 8 rows, got 9"),
            ((obs(3), obs(2)), ValueError, "same number of rows; got 3 and 2"),
        ],
    )
    def test_what_is_no_batch_of_rows_is_refused(self, make: Make, given: Any, error: type, message: str) -> None:
        with pytest.raises(error, match=message):
            make(lambda obs, state=None: obs)(*given)

    @pytest.mark.parametrize("output", [lambda x: x.mean(), lambda x: {"action": x, "n": 3}, lambda x: x[:1]])
    def test_outputs_without_a_row_for_each_observation_are_refused(self, make: Make, output: Any) -> None:
        with pytest.raises(ValueError, match="returns tensors with a row for each observation"):
            make(output)(obs(3))


class TestGraphs:
    def test_there_is_one_capture_for_a_size_and_a_form_of_input(self) -> None:
        policy = graphed(lambda x, state=None: x * 2)
        for k in (8, 7, 8, 5, 3, 4, 1, 8):
            policy(obs(k))
        assert (policy._capture.captures, policy._capture.replays) == (3, 8)
        policy(obs(8).double())
        policy(obs(8), state=obs(8))
        policy(obs(8), state=obs(8))
        assert policy._capture.captures == 5

    @pytest.mark.parametrize("bound", [False, True])
    def test_weights_that_moved_are_captured_anew(self, bound: bool) -> None:
        module = nn.Linear(4, 2)
        policy = graphed(module.forward if bound else module)
        policy(obs(8))
        module.weight.data = torch.zeros(2, 4)
        policy(obs(8))
        policy(obs(8))
        assert policy._capture.captures == 2


@FULL
class TestDraws:
    @pytest.mark.parametrize(
        "make",
        [
            LogNormal,
            lambda loc, scale: TransformedDistribution(Independent(Normal(loc, scale), 1), [TanhTransform()]),
            lambda loc, scale: Categorical(logits=loc),
        ],
    )
    def test_what_is_drawn_is_what_sample_would_have_drawn(self, make: Make) -> None:
        distribution = make(obs(8).requires_grad_(), torch.full((8, 4), 0.5))
        torch.manual_seed(3)
        drawn = choose(distribution, RANDOM)
        torch.manual_seed(3)
        assert torch.equal(drawn, distribution.sample())
        assert not drawn.requires_grad

    @pytest.mark.parametrize("make", [LogNormal, lambda loc, scale: Independent(Normal(loc, scale), 1)])
    def test_drawing_from_a_normal_looks_at_no_value(self, make: Make) -> None:
        """On a device, that would be a wait for it, and the end of a recording."""
        distribution = make(obs(8), torch.ones(8, 4))
        with torch.profiler.profile() as profile:
            choose(distribution, RANDOM)
        names = {event.name for event in profile.events()}
        assert "aten::normal_" in names
        assert names.isdisjoint({"aten::item", "aten::_local_scalar_dense"})


class TestPrepare:
    @pytest.mark.parametrize("option", [True, {"warmup": 1}, {}])
    def test_cuda_graphs_need_cuda(self, option: Any) -> None:
        with pytest.raises(ValueError, match="needs the policy on a CUDA device, and it is on cpu: pass policy_device"):
            prepare_policy(nn.Linear(4, 2), "cpu", cudagraph=option, rows=8)

    @FULL
    def test_it_is_compiled_once_for_each_size(self) -> None:
        shapes = []

        def backend(graph: Any, inputs: Any) -> Any:
            shapes.extend(tuple(each.shape) for each in inputs if each.dim() == 2 and each.shape[1] == 4)
            return graph.forward

        policy = prepare_policy(lambda x: x * 2, "cpu", compile={"backend": backend}, rows=8)
        for k in (8, 3, 5, 1, 2, 4, 6, 7):
            policy(obs(k))
        assert sorted(shapes) == [(1, 4), (2, 4), (4, 4), (8, 4)]

    def test_policies_on_tensordicts_are_refused(self) -> None:
        tensordict_nn = pytest.importorskip("tensordict.nn")
        policy = tensordict_nn.TensorDictModule(nn.Linear(4, 2), in_keys=["observation"], out_keys=["action"])
        with pytest.raises(TypeError, match="works on a TensorDict"):
            prepare_policy(policy, "cpu", compile=True, rows=8)


@needs_cuda
class TestCudaGraphs:
    def test_what_cannot_be_recorded_is_an_error_and_leaves_the_stream_alone(self) -> None:
        policy, stream = GraphedPolicy(lambda x: x * x.sum().item(), 8), torch.cuda.current_stream()
        with pytest.raises(RuntimeError, match="cannot be recorded as a CUDA graph"):
            policy(obs(8).cuda())
        assert torch.cuda.current_stream() == stream
        torch.testing.assert_close(obs(8).cuda() * 2, (obs(8) * 2).cuda())
        assert torch.rand(100, device="cuda").std() > 0.1
        asked = GraphedPolicy(lambda x: torch.empty_like(x).normal_(), 8)
        assert not torch.equal(asked(obs(8).cuda()).clone(), asked(obs(8).cuda())), "random streams go on"

    @pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
    @pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
    @pytest.mark.parametrize("options", [{"cudagraph": True}, {"cudagraph": True, "compile": True}])
    def test_the_mlp_acts(self, options: Any) -> None:

        module = MLPPolicy(spaces.Box(-1, 1, (4,)), spaces.Discrete(4))
        asked = TorchPolicy(module, "cuda", 8, RANDOM, **options)
        drawn = {
            action
            for seed in range(30)
            for action in outputs_of(asked, obs(8 - seed % 4, seed).numpy())["action"].tolist()
        }
        assert drawn == {0, 1, 2, 3}
