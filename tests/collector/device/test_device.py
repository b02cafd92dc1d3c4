"""Transfers between numpy and torch: no copy on the CPU. On CUDA, copies are staged, and awaited once per round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")


from collector.device.tensors import Transfer, as_tensor, moved, resolve_device, to_device  # noqa: E402
from tests.support.device_double import LateTransfer  # noqa: E402

CUDA = torch.cuda.is_available()
needs_cuda = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
staged = pytest.mark.parametrize(
    "transfer", [LateTransfer, pytest.param(lambda: Transfer(resolve_device("cuda"), 8), marks=needs_cuda)]
)

DTYPES = [np.uint8, np.int8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64, np.bool_]


def rows(k: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).random((k, 3, 2)) * 9 - 3).astype(dtype)


def test_arrays_and_tensors_share_memory_on_the_cpu() -> None:
    transfer, array = Transfer(torch.device("cpu"), 4), rows(4)
    tensors = transfer.to_device({"a": array, "b": (array,)})
    array[0, 0, 0] = 42
    assert tensors["a"][0, 0, 0] == tensors["b"][0][0, 0, 0] == 42
    tensor = torch.arange(4)
    assert np.shares_memory(transfer.to_numpy({"action": tensor})["action"], tensor.numpy())


class TestStagedRounds:
    """On a device that copies as late as it may, and on CUDA."""

    @staged
    def test_every_dtype_form_and_number_of_rows_comes_back_as_it_went(self, transfer: Any) -> None:
        """In buffers that are made in any mode, and used in any other."""
        ours, kept = transfer(), []
        arrays = [rows(8, dtype) for dtype in DTYPES] + [rows(3), rows(20), rows(2)[:, :1], rows(2)[::2, :, :1]]
        arrays += [rows(8 - seed % 5, seed=seed) for seed in range(20)] + [np.zeros((2, 0), np.float32)]
        for i, array in enumerate(arrays):
            with torch.inference_mode(i % 3 == 0):
                tensors = ours.to_device({"a": array, "b": (array, array[:, :1])})
                LateTransfer.kernel()
                back = ours.to_numpy({"x": tensors["a"], "y": tensors["b"][1]})
            for found, expected in ((back["x"], array), (back["y"], array[:, :1])):
                assert found.dtype == expected.dtype
                np.testing.assert_array_equal(found, expected)
            kept.append(tensors["a"])
        for tensor, array in zip(kept, arrays, strict=True):  # they belong to the caller, and never change later
            np.testing.assert_array_equal(tensor.cpu().numpy(), array)

    @staged
    def test_bfloat16_comes_back_as_float32(self, transfer: Any) -> None:
        ours = transfer()
        given = torch.full((8,), 1 / 3, dtype=torch.bfloat16, device=ours.device)
        back = ours.to_numpy({"x": given})["x"]
        assert back.dtype == np.float32
        np.testing.assert_array_equal(back, given.float().cpu().numpy())

    def test_a_round_is_a_copy_each_way_and_one_wait_and_nothing_else_blocks(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*args: Any, **kwargs: Any) -> None:
            raise AssertionError("this waits for the device")

        monkeypatch.setattr(torch.cuda, "synchronize", refuse)
        for name in ("item", "cpu", "tolist"):
            monkeypatch.setattr(torch.Tensor, name, refuse)
        transfer = LateTransfer()
        for seed in range(50):
            transfer.log.clear()
            obs = {"a": rows(8 - seed % 3, seed=seed), "b": rows(8 - seed % 3, np.int64, seed)}
            tensors = transfer.to_device(obs)
            assert "wait" not in transfer.log
            transfer.kernel()
            outputs = transfer.to_numpy({"action": tensors["a"] + 1, "value": tensors["b"]})
            np.testing.assert_array_equal(outputs["action"], obs["a"] + 1)
            np.testing.assert_array_equal(outputs["value"], obs["b"])
            if seed == 0:
                assert transfer.log.count("pinned") == 4
        assert transfer.log == ["copy", "copy", "record", "copy", "copy", "record", "wait"]

    @pytest.mark.parametrize("error", [False, True])
    def test_after_a_round_that_failed_its_input_is_waited_for(self, error: bool) -> None:
        transfer = LateTransfer()
        transfer.log.clear()
        if error:
            with pytest.raises(TypeError, match="object"):
                transfer.to_device({"a": rows(8), "b": np.array([None, 1])})
        else:
            transfer.to_device(rows(8))  # and then the policy raises
        assert "wait" not in transfer.log
        transfer.to_device(rows(8, seed=1))
        assert transfer.log.count("wait") == 1

    def test_copies_on_two_streams_are_both_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With CUDA's objects replaced."""
        current, log = ["first"], list[str]()

        class Event:
            def record(self, stream: str) -> None:
                log.append(f"recorded on {stream}")

            def synchronize(self) -> None:
                log.append("waited")

        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: current[0])
        monkeypatch.setattr(torch.cuda, "Event", Event)
        transfer = Transfer(torch.device("cpu"), 4)
        transfer.is_staged = True
        monkeypatch.setattr(transfer, "pinned", lambda shape, dtype: torch.empty(shape, dtype=dtype))
        transfer.to_device(rows(4))
        transfer.to_numpy({"x": torch.zeros(4)})
        assert log == ["recorded on first", "recorded on first", "waited"]
        log.clear()
        transfer.to_device(rows(4))
        current[0] = "second"
        transfer.to_numpy({"x": torch.zeros(4)})
        assert log == ["recorded on first", "waited", "recorded on second", "waited"]


@needs_cuda
class TestCuda:
    def test_buffers_are_in_pinned_memory_and_copies_follow_the_current_stream(self) -> None:
        transfer = Transfer(resolve_device("cuda"), 8)
        with torch.cuda.stream(torch.cuda.Stream()):
            for seed in range(200):
                tensor = transfer.to_device(rows(8, seed=seed))
                torch.cuda._sleep(20_000)
                back = transfer.to_numpy({"x": tensor + 1})["x"]
                assert torch.from_numpy(back).is_pinned()
                assert (back == rows(8, seed=seed) + 1).all()


class TestModules:
    def test_one_that_lives_elsewhere_is_copied_and_the_original_left_alone(self) -> None:
        """The copy draws from the generators that the user seeds."""

        class Noisy(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.generator = torch.Generator()
                self.net = torch.nn.Linear(4, 2)

        module = torch.nn.Sequential(Noisy())
        assert moved(module, torch.device("cpu")) is module
        copied = moved(module, torch.device("meta"))
        assert copied is not module
        assert copied[0].generator is module[0].generator
        assert (module[0].net.weight.device.type, copied[0].net.weight.device.type) == ("cpu", "meta")


class TestConversions:
    def test_read_only_arrays_are_copied(self) -> None:
        array = rows(4)
        array.flags.writeable = False
        tensor = as_tensor(array)
        tensor += 1
        np.testing.assert_array_equal(array, rows(4))

    @devices
    def test_trees_move_as_a_whole(self, device: str) -> None:
        tensors = to_device({"a": rows(2), "b": (rows(3),)}, device)
        assert tensors["b"][0].device.type == device
        np.testing.assert_array_equal(tensors["a"].cpu(), rows(2))


class TestDevices:
    def test_auto_is_cuda_where_there_is_one(self) -> None:
        assert resolve_device("auto").type == ("cuda" if CUDA else "cpu")
        assert resolve_device("cpu") == torch.device("cpu")

    def test_a_cuda_device_that_is_not_there_is_an_error(self) -> None:
        with pytest.raises(ValueError, match=r"no device cuda:99: PyTorch sees \d+ CUDA devices"):
            resolve_device("cuda:99")

    @needs_cuda
    def test_cuda_gets_its_index(self) -> None:
        assert resolve_device("cuda") == torch.device("cuda", torch.cuda.current_device())
