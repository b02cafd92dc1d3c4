"""Policies that are compiled, or replayed as CUDA graphs."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

torch = pytest.importorskip("torch")

from device_double import FakeGraph, FakeGraphs, FakeStreams, outputs_of  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributions import (  # noqa: E402
    Categorical,
    Distribution,
    Independent,
    LogNormal,
    MultivariateNormal,
    Normal,
    TanhTransform,
    TransformedDistribution,
)

from collector.policy.cuda_graphs import CudaCapture, GraphedPolicy, no_collection, unchecked_distributions  # noqa: E402
from collector.policy.exploration import ExplorationType, choose  # noqa: E402
from collector.policy.mlp import MLPPolicy  # noqa: E402
from collector.policy.padding import PaddedPolicy, batch_sizes  # noqa: E402
from collector.policy.prepare import prepare_policy  # noqa: E402
from collector.policy.torch_policy import TorchPolicy  # noqa: E402

CUDA = torch.cuda.is_available()
needs_cuda = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
RANDOM, MODE, MEAN = ExplorationType.RANDOM, ExplorationType.MODE, ExplorationType.MEAN

Make = Callable[..., Any]


def loud_compiler(test: Any) -> Any:
    """PyTorch's own compiler loads modules of PyTorch that call what is deprecated, and has advice on precision."""
    deprecated = "ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"
    return pytest.mark.filterwarnings(deprecated, "ignore:TensorFloat32 tensor cores")(test)


def graphed(policy: Any, rows: int = 8, exploration: ExplorationType = RANDOM, **options: Any) -> Any:
    return GraphedPolicy(policy, rows, exploration, capture=FakeGraphs(), **options)


def padded(policy: Any, rows: int = 8, exploration: ExplorationType = RANDOM, **options: Any) -> Any:
    return PaddedPolicy(policy, rows, exploration, **options)


both = pytest.mark.parametrize("make", [padded, graphed])


def obs(k: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random((k, 4), np.float32))


@pytest.fixture
def checked_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Distributions check their arguments, as they do by default."""
    monkeypatch.setattr(Distribution, "_validate_args", True)


class TestSizes:
    def test_a_full_batch_and_its_half_quarter_and_eighth(self) -> None:
        assert batch_sizes(128) == (16, 32, 64, 128)
        assert batch_sizes(6) == (1, 2, 3, 6)
        assert batch_sizes(1) == (1,)
        assert batch_sizes(8, [3, 10]) == (3, 10)

    @pytest.mark.parametrize("sizes", [[], [0, 8], [4]])
    def test_sizes_that_do_not_hold_a_full_batch_are_refused(self, sizes: list[int]) -> None:
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

    def test_a_tuple_of_action_and_state(self, make: Make) -> None:
        action, state = make(lambda x, state: (Normal(x, 1), state + 1), exploration=MEAN)(obs(3), state=obs(3, 1))
        torch.testing.assert_close(action, obs(3))
        torch.testing.assert_close(state, obs(3, 1) + 1)

    @pytest.mark.parametrize("exploration", [MODE, MEAN])
    def test_what_a_distribution_stands_for_is_chosen_inside(self, make: Make, exploration: Any) -> None:
        action = make(lambda x: {"action": Normal(x, 1)}, exploration=exploration)(obs(5))["action"]
        torch.testing.assert_close(action, obs(5))

    def test_rows_that_fill_up_are_rows_that_the_policy_knows(self, make: Make) -> None:
        def allowed(x: torch.Tensor, mask: torch.Tensor) -> Any:
            logits = x.masked_fill(~mask, -torch.inf)
            return Categorical(logits=logits, validate_args=False)

        mask = torch.tensor([[False, True, False, False]] * 3)
        assert make(allowed)(obs(3), mask).tolist() == [1, 1, 1]
        numbers = MLPPolicy(spaces.Discrete(4, start=5), spaces.Discrete(2))
        assert make(numbers)(torch.tensor([5, 8, 6])).shape == (3,)

    def test_samples_differ_from_call_to_call(self, make: Make) -> None:
        policy = make(lambda x: Categorical(logits=torch.zeros(len(x), 1000)))
        drawn = torch.stack([policy(obs(8)).clone() for _ in range(5)])
        assert len(set(drawn.flatten().tolist())) > 30

    def test_the_collectors_see_the_policy(self, make: Make) -> None:
        class Recurrent(nn.Module):
            def initial_state(self, k: int) -> torch.Tensor:
                return torch.ones(k, 2)

            def forward(self, obs: Any, state: Any) -> Any:
                return obs, state

        policy = make(Recurrent())
        assert list(inspect.signature(policy).parameters) == ["obs", "state"]
        assert policy.initial_state(3).shape == (3, 2)
        with pytest.raises(AttributeError, match="nope"):
            policy.nope  # noqa: B018
        assert make(torch.sin)(obs(2)).shape == (2, 4)  # which has no signature


@both
class TestBadInput:
    @pytest.mark.parametrize("given", [np.zeros((3, 4)), [1.0], torch.tensor(1.0), 3])
    def test_what_is_no_row_tensor_is_refused(self, make: Make, given: Any) -> None:
        with pytest.raises(TypeError, match="takes tensors with a row for each observation"):
            make(lambda obs: obs)(given)

    def test_no_tensor_at_all_is_refused(self, make: Make) -> None:
        with pytest.raises(TypeError, match="at least one tensor"):
            make(lambda obs=None: obs)(None)

    def test_more_rows_than_prepared_for_are_refused(self, make: Make) -> None:
        with pytest.raises(ValueError, match="at most 8 rows, got 9"):
            make(lambda obs: obs)(obs(9))

    def test_unequal_numbers_of_rows_are_refused(self, make: Make) -> None:
        with pytest.raises(ValueError, match="same number of rows; got 3 and 2"):
            make(lambda obs, state: obs)(obs(3), state=obs(2))

    @pytest.mark.parametrize("output", [lambda x: x.mean(), lambda x: {"action": x, "n": 3}, lambda x: x[:1]])
    def test_outputs_without_a_row_for_each_observation_are_refused(self, make: Make, output: Any) -> None:
        with pytest.raises(ValueError, match="returns tensors with a row for each observation"):
            make(output)(obs(3))


class TestGraphs:
    def test_there_is_one_capture_for_a_size(self) -> None:
        policy = graphed(nn.Linear(4, 2))
        for k in (8, 7, 8, 5, 3, 4, 1, 8):
            policy(obs(k))
        assert policy._capture.captures == 3
        assert policy._capture.replays == 8

    def test_another_form_of_input_is_captured_anew(self) -> None:
        policy = graphed(lambda x, state=None: x * 2)
        policy(obs(8))
        policy(obs(8).double())
        policy(obs(8), state=None)
        policy(obs(8), state=obs(8))
        policy(obs(8), state=obs(8))
        assert policy._capture.captures == 4

    def test_outputs_are_in_the_same_memory_until_the_next_call(self) -> None:
        policy = graphed(nn.Linear(4, 2))
        first = policy(obs(8))
        before = first.clone()
        second = policy(obs(8, 1))
        assert first.data_ptr() == second.data_ptr()
        assert not torch.equal(first, before)

    def test_weights_changed_in_place_take_effect_without_a_capture(self) -> None:
        module = nn.Linear(4, 2)
        policy = graphed(module)
        policy(obs(8))
        module.load_state_dict({"weight": torch.zeros(2, 4), "bias": torch.full((2,), 5.0)})
        torch.testing.assert_close(policy(obs(8)), torch.full((8, 2), 5.0))
        assert policy._capture.captures == 1

    @pytest.mark.parametrize("bound", [False, True])
    def test_weights_that_moved_are_captured_anew(self, bound: bool) -> None:
        module = nn.Linear(4, 2)
        policy = graphed(module.forward if bound else module)
        policy(obs(8))
        module.weight.data = torch.zeros(2, 4)
        policy(obs(8))
        policy(obs(8))
        assert policy._capture.captures == 2

    def test_training_mode_is_captured_apart(self) -> None:
        policy = graphed(nn.Dropout(1.0).eval())
        torch.testing.assert_close(policy(obs(8)), obs(8))
        policy.policy.train()
        assert (policy(obs(8)) == 0).all()
        policy.policy.eval()
        torch.testing.assert_close(policy(obs(8)), obs(8))
        assert policy._capture.captures == 2

    def test_outputs_carry_no_gradient(self) -> None:
        assert not graphed(nn.Linear(4, 2))(obs(8)).requires_grad

    @pytest.mark.usefixtures("checked_distributions")
    def test_distributions_do_not_check_their_arguments_while_they_are_recorded(self) -> None:
        with unchecked_distributions():
            Normal(torch.zeros(2), torch.tensor([1.0, -1.0]))
        with pytest.raises(ValueError, match="scale"):
            Normal(torch.zeros(2), torch.tensor([1.0, -1.0]))

    @pytest.mark.usefixtures("checked_distributions")
    def test_they_check_again_once_the_last_of_two_threads_has_recorded(self) -> None:
        first, second = unchecked_distributions(), unchecked_distributions()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        Normal(torch.zeros(2), torch.tensor([1.0, -1.0]))
        second.__exit__(None, None, None)
        with pytest.raises(ValueError, match="scale"):
            Normal(torch.zeros(2), torch.tensor([1.0, -1.0]))

    def test_garbage_is_collected_again_once_the_last_of_two_threads_has_recorded(self) -> None:
        first, second = no_collection(), no_collection()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert not gc.isenabled()
        second.__exit__(None, None, None)
        assert gc.isenabled()

    def test_a_lazy_module_can_be_trained_afterwards(self) -> None:
        module = nn.LazyLinear(2)
        actions = graphed(module)(obs(3))
        torch.testing.assert_close(actions, module(obs(3)).detach())
        module(obs(3)).sum().backward()
        assert module.weight.grad is not None


class TestCapture:
    """The calls of the real capture, with CUDA's objects replaced."""

    @pytest.fixture
    def streams(self, monkeypatch: pytest.MonkeyPatch) -> FakeStreams:
        FakeGraph.made = 0
        return FakeStreams(monkeypatch)

    def test_it_warms_up_on_a_side_stream_and_then_records(self, streams: FakeStreams) -> None:
        def run() -> torch.Tensor:
            streams.log.append(f"run on {streams.current.name}")
            return torch.ones(3)

        generator = torch.Generator().manual_seed(3)
        replay = CudaCapture([generator], warmup=2)(run)
        assert streams.log == [
            "side 1 waits for caller's",
            "fork",
            "run on side 1",
            "run on side 1",
            "join",
            "caller's waits for side 1",
            "register generator",
            "capture on side 2, pool new, thread_local",
            "run on side 2",
            "captured",
        ]
        assert streams.current.name == "caller's"
        assert replay() is replay()
        assert streams.log[-2:] == ["replay", "replay"]

    def test_generators_are_where_they_were(self, streams: FakeStreams) -> None:
        drawn, untouched = (torch.Generator().manual_seed(3) for _ in range(2))

        def draws() -> torch.Tensor:
            return torch.rand(2, generator=drawn) if not streams.log[-1].startswith("capture on") else torch.ones(2)

        CudaCapture([drawn], warmup=2)(draws)
        assert torch.equal(torch.rand(2, generator=drawn), torch.rand(2, generator=untouched))

    def test_memory_is_shared_with_graphs_that_are_still_there(self, streams: FakeStreams) -> None:
        capture = CudaCapture()
        one = capture(lambda: torch.ones(3))
        two = capture(lambda: torch.ones(3))
        del one
        three = capture(lambda: torch.ones(3))
        assert [entry for entry in streams.log if "pool" in entry][1:] == [
            "capture on side 2, pool of graph 1, thread_local"
        ] * 2
        del two, three
        capture(lambda: torch.ones(3))
        assert streams.log[-2] == "capture on side 2, pool new, thread_local"

    def test_what_cannot_be_recorded_is_an_error_and_the_stream_is_the_callers_again(
        self, streams: FakeStreams
    ) -> None:
        def run() -> Any:
            if streams.log[-1].startswith("capture on"):
                streams.fails = True
                raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
            return torch.ones(3)

        generator = torch.Generator()
        with pytest.raises(RuntimeError, match="cannot be recorded as a CUDA graph") as caught:
            CudaCapture([generator], warmup=0)(run)
        assert "not permitted" in str(caught.value.__cause__)
        # What it began is ended, and a recording of nothing lets the generators go.
        begun = ["register generator", "capture on side 2, pool new, thread_local", "captured"]
        assert streams.log[-7:] == [*begun, "reset", *begun]
        assert streams.current.name == "caller's"

    def test_no_garbage_is_collected_while_it_records(self, streams: FakeStreams) -> None:
        collects = []
        CudaCapture(warmup=1)(lambda: collects.append(gc.isenabled()))
        assert (collects, gc.isenabled()) == ([True, False], True)
        gc.disable()
        try:
            CudaCapture()(lambda: torch.ones(3))
            assert not gc.isenabled()
        finally:
            gc.enable()

    def test_no_memory_for_it_is_an_error_of_its_own(self, streams: FakeStreams) -> None:
        def run() -> Any:
            if streams.log[-1].startswith("capture on"):
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            return torch.ones(3)

        with pytest.raises(torch.cuda.OutOfMemoryError, match=r"^CUDA out of memory$"):
            CudaCapture()(run)

    def test_what_the_policy_raises_before_is_raised_as_it_is(self, streams: FakeStreams) -> None:
        def run() -> Any:
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            CudaCapture()(run)


class Clipped(Normal):
    def sample(self, sample_shape: Any = ()) -> torch.Tensor:
        return super().sample(torch.Size(sample_shape)).clamp(-0.1, 0.1)


class TestDraws:
    @pytest.mark.parametrize(
        "make",
        [
            Normal,
            LogNormal,
            lambda loc, scale: Independent(Normal(loc, scale), 1),
            lambda loc, scale: TransformedDistribution(Independent(Normal(loc, scale), 1), [TanhTransform()]),
            lambda loc, scale: MultivariateNormal(loc, torch.diag(scale[0])),
            lambda loc, scale: Categorical(logits=loc),
            Clipped,
            lambda loc, scale: Independent(Clipped(loc, scale), 1),
        ],
    )
    def test_what_is_drawn_is_what_sample_would_have_drawn(self, make: Make) -> None:
        distribution = make(obs(8).requires_grad_(), torch.full((8, 4), 0.5))
        torch.manual_seed(3)
        drawn = choose(distribution, RANDOM)
        torch.manual_seed(3)
        assert torch.equal(drawn, distribution.sample())
        assert not drawn.requires_grad

    @pytest.mark.parametrize("make", [Normal, LogNormal, lambda loc, scale: Independent(Normal(loc, scale), 1)])
    def test_drawing_from_a_normal_looks_at_no_value(self, make: Make) -> None:
        """On a device, that would be a wait for it, and the end of a recording."""
        distribution = make(obs(8), torch.ones(8, 4))
        with torch.profiler.profile() as profile:
            choose(distribution, RANDOM)
        names = {event.name for event in profile.events()}
        assert "aten::normal_" in names
        assert names.isdisjoint({"aten::item", "aten::_local_scalar_dense"})


class TestPrepare:
    @pytest.mark.parametrize("off", [False, None])
    def test_without_options_it_is_the_policy_itself(self, off: Any) -> None:
        module = nn.Linear(4, 2)
        assert prepare_policy(module, "cpu", off, off, rows=8) is module

    @pytest.mark.parametrize("option", [True, {"warmup": 1}, {}])
    def test_cuda_graphs_need_cuda(self, option: Any) -> None:
        with pytest.raises(ValueError, match="needs the policy on a CUDA device, and it is on cpu: pass policy_device"):
            prepare_policy(nn.Linear(4, 2), "cpu", cudagraph=option, rows=8)

    def test_a_compiled_policy_gives_the_same(self) -> None:
        module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        policy = prepare_policy(module, "cpu", compile={"backend": "eager"}, rows=8)
        for k in (8, 3, 5, 1):
            torch.testing.assert_close(policy(obs(k)), module(obs(k)))

    @pytest.mark.usefixtures("checked_distributions")
    def test_its_distributions_are_compiled_and_those_of_others_checked_as_before(self) -> None:
        graphs = []

        def backend(graph: Any, inputs: Any) -> Any:
            graphs.append(graph)
            return graph.forward

        policy = prepare_policy(lambda x: Categorical(logits=x), "cpu", compile={"backend": backend}, rows=8)
        assert policy(obs(8)).shape == (8,)
        assert len(graphs) == 1
        with pytest.raises(ValueError, match="scale"):
            Normal(torch.zeros(2), torch.tensor([1.0, -1.0]))

    def test_it_is_compiled_once_for_each_size(self) -> None:
        shapes = []

        def backend(graph: Any, inputs: Any) -> Any:
            shapes.extend(tuple(each.shape) for each in inputs if each.dim() == 2 and each.shape[1] == 4)
            return graph.forward

        policy = prepare_policy(lambda x: x * 2, "cpu", compile={"backend": backend}, rows=8)
        for k in (8, 3, 5, 1, 2, 4, 6, 7):
            policy(obs(k))
        assert sorted(shapes) == [(1, 4), (2, 4), (4, 4), (8, 4)]

    def test_the_module_keeps_the_names_of_its_weights(self) -> None:
        module = nn.Linear(4, 2)
        asked = TorchPolicy(module, "cpu", 8, RANDOM, compile={"backend": "eager"})
        assert asked.module is module
        with torch.no_grad():
            module.weight.zero_()
            module.bias.fill_(5)
        np.testing.assert_array_equal(outputs_of(asked, obs(3).numpy())["action"], np.full((3, 2), 5, np.float32))

    @loud_compiler
    @pytest.mark.slow
    def test_it_is_compiled_by_the_default_compiler(self) -> None:
        module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        asked = TorchPolicy(module, "cpu", 8, RANDOM, compile=True)
        for k in (8, 3):
            with torch.no_grad():
                expected = module(obs(k)).numpy()
            np.testing.assert_allclose(outputs_of(asked, obs(k).numpy())["action"], expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("options", [{"mode": "reduce-overhead"}, {"options": {"triton.cudagraphs": True}}])
    def test_two_kinds_of_graphs_are_one_too_many(self, monkeypatch: pytest.MonkeyPatch, options: Any) -> None:
        monkeypatch.setattr("collector.policy.prepare.resolve_device", lambda device: torch.device("cuda", 0))
        with pytest.raises(ValueError, match="makes CUDA graphs by itself"):
            prepare_policy(nn.Linear(4, 2), "cuda", True, options, rows=8)

    def test_both_together_record_the_compiled_policy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("collector.policy.prepare.resolve_device", lambda device: torch.device("cuda", 0))
        graphs, compiled = FakeGraphs(), []

        def backend(graph: Any, inputs: Any) -> Any:
            compiled.append(1)
            return graph.forward

        module = nn.Linear(4, 2)
        policy = prepare_policy(module, "cuda", {"capture": graphs}, {"backend": backend}, rows=8)
        torch.testing.assert_close(policy(obs(8)), module(obs(8)))
        assert (graphs.captures, compiled) == (1, [1])

    def test_policies_on_tensordicts_are_refused(self) -> None:
        tensordict_nn = pytest.importorskip("tensordict.nn")
        policy = tensordict_nn.TensorDictModule(nn.Linear(4, 2), in_keys=["observation"], out_keys=["action"])
        with pytest.raises(TypeError, match="works on a TensorDict"):
            prepare_policy(policy, "cpu", compile=True, rows=8)


class Draws(nn.Module):
    """Normal noise around a linear map, from a generator of its own or the default one."""

    def __init__(self, generator: Any = None) -> None:
        super().__init__()
        self.net, self.generator = nn.Linear(4, 2), generator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = self.net(x)
        return mean + torch.empty_like(mean).normal_(generator=self.generator)


@needs_cuda
class TestCudaGraphs:
    def test_the_same_answers_as_without(self) -> None:
        module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).cuda()
        policy = prepare_policy(module, "cuda", cudagraph=True, rows=8)
        with torch.inference_mode():
            for seed, k in enumerate([8, 1, 3, 5, 8, 7]):
                given = obs(k, seed).cuda()
                torch.testing.assert_close(policy(given), module(given))

    @pytest.mark.parametrize("own", [False, True])
    def test_random_streams_go_on_and_are_the_same_as_without(self, own: bool) -> None:
        generator = torch.Generator("cuda") if own else None
        module, given = Draws(generator).cuda(), obs(8).cuda()
        options = {"generators": [generator]} if own else True
        policy = prepare_policy(module, "cuda", cudagraph=options, rows=8)

        def seeded() -> None:
            torch.cuda.manual_seed(7)
            if generator is not None:
                generator.manual_seed(7)

        seeded()
        with torch.inference_mode():
            plain = torch.stack([module(given) for _ in range(20)])
        seeded()
        replayed = torch.stack([policy(given).clone() for _ in range(20)])
        assert (replayed.std(0) > 0.3).all()
        torch.testing.assert_close(replayed, plain)

    def test_weights_that_moved_are_recorded_again_while_outputs_are_still_held(self) -> None:
        module, given = nn.Linear(4, 2).cuda(), obs(8).cuda()
        policy = GraphedPolicy(module, 8)
        held = [policy(given), policy(given[:3])]
        module.weight.data = torch.zeros(2, 4, device="cuda")
        torch.testing.assert_close(policy(given), module.bias.detach().expand(8, 2))
        assert len(held) == 2

    @pytest.mark.parametrize("squash", [False, True])
    def test_a_normal_is_sampled_inside(self, squash: bool) -> None:
        def act(x: Any) -> Any:
            normal = Independent(Normal(x, torch.ones_like(x)), 1)
            return TransformedDistribution(normal, [TanhTransform()]) if squash else normal

        policy = GraphedPolicy(act, 8)
        drawn = torch.stack([policy(torch.zeros(8, 4, device="cuda")).clone() for _ in range(50)])
        assert (drawn.std(0) > 0.3).all()

    def test_a_recording_under_autocast_is_not_used_without(self) -> None:
        module, given = nn.Linear(4, 2).cuda(), obs(8).cuda()
        policy = GraphedPolicy(module, 8)
        with torch.autocast("cuda", torch.bfloat16):
            assert policy(given).dtype is torch.bfloat16
        torch.testing.assert_close(policy(given), module(given).detach())

    def test_a_categorical_is_sampled_inside(self) -> None:
        policy = GraphedPolicy(lambda x: Categorical(logits=x), 8)
        drawn = torch.stack([policy(torch.zeros(8, 100, device="cuda")).clone() for _ in range(50)])
        assert len(drawn.unique()) > 50

    def test_weights_changed_in_place_take_effect(self) -> None:
        module, given = nn.Linear(4, 2).cuda(), obs(8).cuda()
        policy = GraphedPolicy(module, 8)
        policy(given)
        with torch.no_grad():
            module.weight.zero_()
            module.bias.fill_(5)
        torch.testing.assert_close(policy(given), torch.full((8, 2), 5.0, device="cuda"))

    def test_what_cannot_be_recorded_is_an_error_and_leaves_the_stream_alone(self) -> None:
        policy, stream = GraphedPolicy(lambda x: x * x.sum().item(), 8), torch.cuda.current_stream()
        with pytest.raises(RuntimeError, match="cannot be recorded as a CUDA graph"):
            policy(obs(8).cuda())
        assert torch.cuda.current_stream() == stream
        torch.testing.assert_close(obs(8).cuda() * 2, (obs(8) * 2).cuda())
        assert torch.rand(100, device="cuda").std() > 0.1
        asked = GraphedPolicy(Draws().cuda(), 8)
        assert not torch.equal(asked(obs(8).cuda()).clone(), asked(obs(8).cuda()))

    @loud_compiler
    @pytest.mark.parametrize("options", [{"cudagraph": True}, {"cudagraph": True, "compile": True}])
    def test_the_mlp_acts(self, options: Any) -> None:
        from gymnasium import spaces

        module = MLPPolicy(spaces.Box(-1, 1, (4,)), spaces.Discrete(4))
        asked = TorchPolicy(module, "cuda", 8, RANDOM, **options)
        drawn = {
            action
            for seed in range(30)
            for action in outputs_of(asked, obs(8 - seed % 4, seed).numpy())["action"].tolist()
        }
        assert drawn == {0, 1, 2, 3}
