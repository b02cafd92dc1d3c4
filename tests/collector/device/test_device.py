"""Transfers between numpy and torch: no copy on the CPU. On CUDA, copies are staged, and awaited once per round."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

torch = pytest.importorskip("torch")

from collector import ExplorationType, SyncDataCollector  # noqa: E402
from collector.device.tensors import (  # noqa: E402
    Transfer,
    moved,
    resolve_device,
    to_device,
)
from collector.policy.policy_call import PolicyCall, signature_of  # noqa: E402
from tests.support.backends import FULL  # noqa: E402
from tests.support.collector_envs import arrays, assert_equal, cartpoles  # noqa: E402
from tests.support.devices import (  # noqa: E402
    ACCELERATOR,
    FOUND,
    SIM,
    devices,
    needs_accelerator,
    needs_cuda,
    needs_sim,
)
from tests.support.faulty import Counter  # noqa: E402
from vecenv import DummyVectorEnv, ShmemVectorEnv  # noqa: E402

DTYPES = [np.uint8, np.int8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64, np.bool_]


def rows(k: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).random((k, 3, 2)) * 9 - 3).astype(dtype)


def transfer(rows: int = 8) -> Transfer:
    return Transfer(resolve_device(ACCELERATOR), rows)


class TestStagedRounds:
    @needs_accelerator
    def test_every_dtype_form_and_number_of_rows_comes_back_as_it_went(self) -> None:
        """In buffers that are made in any mode, and used in any other."""
        ours, kept = transfer(), []
        arrays = [rows(8, dtype) for dtype in DTYPES] + [rows(3), rows(20), rows(2)[:, :1], rows(2)[::2, :, :1]]
        arrays += [rows(8 - seed % 5, seed=seed) for seed in range(20)] + [np.zeros((2, 0), np.float32)]
        for i, array in enumerate(arrays):
            with torch.inference_mode(i % 3 == 0):
                tensors = ours.to_device({"a": array, "b": (array, array[:, :1])})
                back = ours.to_numpy({"x": tensors["a"], "y": tensors["b"][1]})
            for found, expected in ((back["x"], array), (back["y"], array[:, :1])):
                assert found.dtype == expected.dtype
                np.testing.assert_array_equal(found, expected)
            kept.append(tensors["a"])
        for tensor, array in zip(kept, arrays, strict=True):  # they belong to the caller, and never change later
            np.testing.assert_array_equal(tensor.cpu().numpy(), array)
        given = torch.full((8,), 1 / 3, dtype=torch.bfloat16, device=ACCELERATOR)
        back = ours.to_numpy({"x": given})["x"]
        assert back.dtype == np.float32
        np.testing.assert_array_equal(back, given.float().cpu().numpy())

    @needs_sim
    def test_a_round_is_a_copy_each_way_and_one_wait(self) -> None:
        ours = transfer()
        for seed in range(20):
            SIM.counts.clear()
            obs = {"a": rows(8 - seed % 3, seed=seed), "b": rows(8 - seed % 3, np.int64, seed)}
            tensors = ours.to_device(obs)
            assert not SIM.counts["waits"]
            outputs = ours.to_numpy({"action": tensors["a"] + 1, "value": tensors["b"]})
            np.testing.assert_array_equal(outputs["action"], obs["a"] + 1)
            np.testing.assert_array_equal(outputs["value"], obs["b"])
            sent = sum(array.nbytes for array in obs.values())
            assert SIM.counts == {
                "uploads": 2,
                "downloads": 2,
                "upload_bytes": sent,
                "download_bytes": sent,
                "waits": 1,
            }

    @needs_sim
    def test_after_a_round_that_failed_its_input_is_waited_for(self) -> None:
        ours, first = transfer(), rows(8)
        SIM.counts.clear()
        tensor = ours.to_device(first)  # and then the policy raises
        assert not SIM.counts["waits"]
        with pytest.raises(TypeError, match="object"):
            ours.to_device({"a": rows(8, seed=1), "b": np.array([None, 1])})
        assert SIM.counts["waits"] == 1
        ours.to_device(rows(8, seed=2))
        assert SIM.counts["waits"] == 2
        np.testing.assert_array_equal(tensor.cpu().numpy(), first)

    @needs_sim
    def test_copies_on_two_streams_are_both_waited_for(self) -> None:
        ours, first, second = transfer(), rows(8), rows(8, seed=1)
        with SIM.use_stream(SIM.Stream()):
            tensor = ours.to_device(first)
        back = ours.to_numpy({"x": torch.ones(4, device=ACCELERATOR)})["x"]
        np.testing.assert_array_equal(back, np.ones(4))
        other = ours.to_device(second)
        np.testing.assert_array_equal(tensor.cpu().numpy(), first)
        np.testing.assert_array_equal(other.cpu().numpy(), second)


@needs_cuda
def test_buffers_are_in_pinned_memory_and_copies_follow_the_current_stream() -> None:
    ours = Transfer(resolve_device("cuda"), 8)
    with torch.cuda.stream(torch.cuda.Stream()):
        for seed in range(200):
            tensor = ours.to_device(rows(8, seed=seed))
            torch.cuda._sleep(20_000)
            back = ours.to_numpy({"x": tensor + 1})["x"]
            assert torch.from_numpy(back).is_pinned()
            assert (back == rows(8, seed=seed) + 1).all()


def test_a_module_that_lives_elsewhere_is_copied_and_the_original_left_alone() -> None:
    """The copy draws from the generators that the user seeds."""

    class Noisy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = torch.Generator()
            self.net = torch.nn.Linear(4, 2)

    module = torch.nn.Sequential(Noisy())
    assert moved(module, torch.device("cpu")) is module
    copied = moved(module, torch.device("meta"))
    assert copied[0].generator is module[0].generator
    assert (module[0].net.weight.device.type, copied[0].net.weight.device.type) == ("cpu", "meta")


@devices
def test_trees_move_as_a_whole_and_read_only_arrays_are_copied(device: str) -> None:
    array = rows(2)
    array.flags.writeable = False
    tensors = to_device({"a": array, "b": (rows(3),)}, device)
    assert tensors["b"][0].device.type == device
    tensors["a"] += 1
    np.testing.assert_array_equal(tensors["a"].cpu(), array + 1)
    np.testing.assert_array_equal(array, rows(2))


def test_auto_is_an_accelerator_where_there_is_one() -> None:
    assert resolve_device("auto").type == (ACCELERATOR if FOUND else "cpu")
    assert resolve_device("cpu") == torch.device("cpu")


@needs_accelerator
def test_an_accelerator_gets_its_index_and_others_are_refused() -> None:
    assert resolve_device(ACCELERATOR) == torch.device(ACCELERATOR, torch.accelerator.current_device_index())
    with pytest.raises(
        ValueError, match=rf"no device {ACCELERATOR}:99: PyTorch sees \d+ {ACCELERATOR.upper()} devices"
    ):
        resolve_device(f"{ACCELERATOR}:99")


@needs_cuda
@pytest.mark.guarantee("G9.14")
@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_workers_start_and_restart_beside_a_parent_that_uses_cuda(context: str) -> None:
    """The workers have no part in its CUDA context, and both continue."""
    ours, fns = torch.ones(1000, 1000, device="cuda"), [partial(Counter, i) for i in range(2)]
    with ShmemVectorEnv(fns, num_workers=2, context=context, on_error="restart") as venv:
        venv.reset()
        venv.step([0, 0])
        os.kill(venv.get_env_attr("pid", id=0)[0], signal.SIGKILL)
        assert venv.step([0, 0])[3].tolist() == [True, False]
        venv.reset([0])
        assert venv.step([0, 0])[0].shape == venv.reset()[0].shape
        assert float((ours @ ours).sum()) == 1e9


@FULL
@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method. is deprecated:DeprecationWarning", "ignore:TensorFloat32 tensor cores"
)
@pytest.mark.parametrize(
    ("device", "faster"),
    [
        ("cpu", {"compile_policy": {"backend": "eager"}}),
        pytest.param("cuda", {"compile_policy": True}, marks=needs_cuda),
        pytest.param("cuda", {"cudagraph_policy": True}, marks=needs_cuda),
    ],
)
def test_a_faster_policy_gives_the_same_data(device: str, faster: dict[str, Any]) -> None:
    class Lean(torch.nn.Module):
        def forward(self, obs: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"action": (obs[:, 2] > 0).long(), "seen": obs}

    found = []
    for options in ({}, faster):
        options |= {"frames_per_batch": 60, "policy_device": device}
        with SyncDataCollector(DummyVectorEnv(cartpoles(3)), Lean(), **options) as collector:
            collector.set_seed(3)
            found.append([collector.rollout(), collector.rollout(), collector.collect(n_episode=5).batch])
    for batch, want in zip(*found, strict=True):
        assert_equal(arrays(batch), arrays(want))
        np.testing.assert_array_equal(batch.extras["seen"], batch.obs)


# CUDA graphs, of which a machine without CUDA can only show the calls.


@pytest.mark.parametrize("form", ["distribution", "tensordict"])
def test_graphs_are_those_of_tensordict_in_rounds_of_all_rows(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each exploration type has a graph, which returns only tensors. Rounds with fewer rows use no graph."""
    made: list[Any] = []
    nn = pytest.importorskip("tensordict.nn")

    class Graph:
        def __init__(self, policy: Any, **options: Any) -> None:
            self.policy, self.options, self.sizes = policy, options, []
            made.append(self)

        def __call__(self, *args: Any, **named: Any) -> Any:
            self.sizes.append(len(args[0]))
            output = self.policy(*args, **named)
            assert form == "tensordict" or {type(each) for each in output.values()} == {torch.Tensor}
            return output

    monkeypatch.setattr(nn, "CudaGraphModule", Graph)
    policies: dict[str, Any] = {
        "distribution": lambda obs: torch.distributions.Categorical(logits=torch.stack([obs[:, 2], -obs[:, 2]], 1)),
        "tensordict": nn.TensorDictModule(lambda x: (x[:, 2] < 0).long(), ["observation"], ["action"]),
    }
    policy = policies[form]
    signature = signature_of(policy, spaces.Box(-9, 9, (4,)))
    call = PolicyCall(policy, signature, 4, ExplorationType.MODE, cudagraph={"warmup": 1})
    obs = torch.randn(4, 4)
    for k, wanted in ((4, "mode"), (3, "mode"), (4, "mode"), (4, "random"), (4, "mode")):
        call.exploration = ExplorationType(wanted)
        action = call(obs[:k])["action"]
        assert action.shape == (k,)
        assert wanted == "random" or torch.equal(action, (obs[:k, 2] < 0).long())
    assert [graph.sizes for graph in made] == [[4, 4, 4], [4]]
    assert [graph.options for graph in made] == [{"warmup": 1}] * 2
    monkeypatch.setitem(sys.modules, "tensordict.nn", None)
    with pytest.raises(ImportError, match="cudagraph_policy needs tensordict: pip install"):
        PolicyCall(policy, signature, 4, ExplorationType.MODE, cudagraph={})
