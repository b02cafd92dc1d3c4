"""Between numpy and torch: nothing copied on the CPU; staged, and waited for once a round, on CUDA."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")


from collector.device.tensors import as_tensor, resolve_device, to_device  # noqa: E402
from collector.device.transfer import DirectTransfer, PinnedTransfer  # noqa: E402
from collector.policy.exploration import ExplorationType  # noqa: E402
from collector.policy.torch_policy import TorchPolicy  # noqa: E402

CUDA = torch.cuda.is_available()
needs_cuda = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])

DTYPES = [np.uint8, np.int8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64, np.bool_]


def rows(k: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).random((k, 3, 2)) * 9 - 3).astype(dtype)


def staged(device: str, rows: int = 8) -> PinnedTransfer:
    return PinnedTransfer(resolve_device(device), rows)


class TestDirectTransfer:
    def test_arrays_and_tensors_share_memory_on_the_cpu(self) -> None:
        direct, array = DirectTransfer(torch.device("cpu")), rows(4)
        tensors = direct.to_device({"a": array, "b": (array,)})
        array[0, 0, 0] = 42
        assert tensors["a"][0, 0, 0] == tensors["b"][0][0, 0, 0] == 42
        tensor = torch.arange(4)
        assert np.shares_memory(direct.to_numpy({"action": tensor})["action"], tensor.numpy())


@devices
class TestPinnedTransfer:
    def test_every_dtype_comes_back_as_it_went(self, device: str) -> None:
        for dtype in DTYPES:
            staging, array = staged(device), rows(8, dtype)
            tensors = staging.to_device({"a": array, "b": (array, array[:, 0])})
            assert tensors["b"][1].device.type == device
            back = staging.to_numpy({"x": tensors["a"], "y": tensors["b"][1]})
            for found, expected in ((back["x"], array), (back["y"], array[:, 0])):
                assert found.dtype == expected.dtype
                np.testing.assert_array_equal(found, expected)

    def test_rounds_of_fewer_rows_use_the_same_buffers(self, device: str) -> None:
        staging = staged(device)
        first = staging.to_device(rows(8))
        staging.to_numpy({"x": first})
        few = staging.to_device(rows(3, seed=1))
        assert few.shape == (3, 3, 2)
        assert few.data_ptr() == first.data_ptr()
        np.testing.assert_array_equal(staging.to_numpy({"x": few})["x"], rows(3, seed=1))

    def test_many_rounds_are_never_mixed_up(self, device: str) -> None:
        staging = staged(device, 64)
        for seed in range(200):
            array = rows(64 - seed % 5, seed=seed)
            back = staging.to_numpy({"action": staging.to_device(array) * 2, "twice": staging.to_device(array) * 4})
            assert (back["action"] == array * 2).all()
            assert (back["twice"] == array * 4).all()


@needs_cuda
class TestCuda:
    def test_buffers_are_in_pinned_memory(self) -> None:
        staging = staged("cuda")
        back = staging.to_numpy({"x": staging.to_device(rows(8))})
        assert staging._pinned[0].is_pinned()
        assert torch.from_numpy(back["x"]).is_pinned()

    def test_kept_memory_is_registered_and_released(self) -> None:
        memory = rows(4096)
        staging = PinnedTransfer(resolve_device("cuda"), len(memory), memory=[memory])
        for seed in range(50):
            memory[...] = rows(len(memory), seed=seed)
            back = staging.to_numpy({"x": staging.to_device(memory) + 1})["x"]
            np.testing.assert_array_equal(back, rows(len(memory), seed=seed) + 1)
        assert staging.registered == [True]
        assert torch.from_numpy(memory).is_pinned()
        staging.close()
        assert not torch.from_numpy(memory).is_pinned()

    def test_memory_that_cuda_refuses_is_staged_and_leaves_no_error_behind(self) -> None:
        memory, cudart = rows(4096), torch.cuda.cudart()
        assert int(cudart.cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)) == 0
        try:
            staging = PinnedTransfer(resolve_device("cuda"), len(memory), memory=[memory])
            np.testing.assert_array_equal(staging.to_numpy({"x": staging.to_device(memory) + 1})["x"], memory + 1)
            assert staging.registered == [False]
        finally:
            assert int(cudart.cudaHostUnregister(memory.ctypes.data)) == 0

    def test_copies_follow_the_current_stream(self) -> None:
        staging = staged("cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            for seed in range(200):
                tensor = staging.to_device(rows(8, seed=seed))
                torch.cuda._sleep(20_000)
                assert (staging.to_numpy({"x": tensor + 1})["x"] == rows(8, seed=seed) + 1).all()


class TestPolicy:
    def test_a_module_that_lives_elsewhere_is_copied_and_the_original_left_alone(self) -> None:
        module = torch.nn.Linear(2, 1, dtype=torch.float32)
        here = TorchPolicy(module, "cpu", 4, ExplorationType.RANDOM)
        assert here.policy is module
        elsewhere = TorchPolicy(module, "meta", 4, ExplorationType.RANDOM)
        assert elsewhere.policy is not module
        assert module.weight.device.type == "cpu"

    def test_a_copied_module_draws_from_the_generators_that_the_user_seeds(self) -> None:
        class Noisy(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.generator = torch.Generator()
                self.net = torch.nn.Linear(4, 2)

        module = torch.nn.Sequential(Noisy())
        copied = TorchPolicy(module, "meta", 8, ExplorationType.RANDOM).module
        assert copied is not module
        assert copied[0].generator is module[0].generator


class TestConversions:
    def test_read_only_arrays_are_copied(self) -> None:
        array = rows(4)
        array.flags.writeable = False
        tensor = as_tensor(array)
        tensor += 1
        np.testing.assert_array_equal(array, rows(4))

    def test_what_torch_has_no_dtype_for_is_an_error(self) -> None:
        with pytest.raises(TypeError, match="object"):
            as_tensor(np.array([None, 1]))

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
