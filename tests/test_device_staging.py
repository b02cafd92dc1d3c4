"""The way of a batch to a device and back, on a device that is as late as it may be."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from collector_envs import countdowns  # noqa: E402
from device_double import LateCopier, outputs_of  # noqa: E402

from collector import AsyncDataCollector, SyncDataCollector  # noqa: E402
from collector.device.copier import CudaCopier  # noqa: E402
from collector.device.transfer import PinnedTransfer, memory_of  # noqa: E402
from collector.policy.exploration import ExplorationType  # noqa: E402
from collector.policy.torch_policy import TorchPolicy  # noqa: E402
from vecenv import DummyVectorEnv, ShmemVectorEnv  # noqa: E402

CPU = torch.device("cpu")


def rows(k: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).random((k, 3, 2)) * 9 - 3).astype(dtype)


def late(n: int = 8, **options: Any) -> tuple[PinnedTransfer, LateCopier]:
    copier = LateCopier(registers=options.pop("registers", True))
    return PinnedTransfer(CPU, n, copier=copier, **options), copier


@pytest.fixture
def nothing_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test in which something waits for the device other than for an event."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("this waits for the device")

    monkeypatch.setattr(torch.cuda, "synchronize", refuse)
    for name in ("item", "cpu", "tolist", "to"):
        monkeypatch.setattr(torch.Tensor, name, refuse)


@pytest.mark.usefixtures("nothing_blocks")
class TestRound:
    def test_a_call_of_a_policy_is_one_round(self) -> None:
        staging, copier = late()

        def policy(obs: Any) -> Any:
            copier.kernel()
            return {"action": obs["a"].sum((1, 2)), "value": obs["b"].sum((1, 2))}

        asked = TorchPolicy(policy, "cpu", 8, ExplorationType.RANDOM)
        asked._transfer = staging
        for seed in range(50):
            copier.log.clear()
            k = 8 - seed % 3
            obs = {"a": rows(k, seed=seed), "b": rows(k, np.int64, seed)}
            outputs = outputs_of(asked, obs)
            np.testing.assert_allclose(outputs["action"], obs["a"].sum((1, 2)), rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(outputs["value"], obs["b"].sum((1, 2)))
        assert copier.log == ["copy"] * 4 + ["wait"]

    def test_buffers_are_allocated_in_the_first_round_only(self) -> None:
        staging, copier = late()
        for seed in range(5):
            tensor = staging.to_device(rows(8 - seed, seed=seed))
            copier.kernel()
            staging.to_numpy({"action": tensor})
        assert copier.log.count("pinned") == 2
        assert copier.log.count("empty") == 1

    def test_observations_may_change_their_form_and_number(self) -> None:
        staging, copier = late(2)
        assert staging.to_device(np.zeros((2, 0), np.float32)).shape == (2, 0)
        assert "copy" not in copier.log
        for array in (rows(2), rows(5), rows(2, np.int64), rows(2)[:, :1], rows(1)[:, :, :1]):
            tensor = staging.to_device(array)
            copier.kernel()
            np.testing.assert_array_equal(tensor.numpy(), array)


class TestRowsOfAPolicy:
    """The envs of the rows and the state of a recurrent policy, on a device that nothing may wait for."""

    @pytest.fixture
    def copier(self, monkeypatch: pytest.MonkeyPatch, nothing_blocks: None) -> LateCopier:
        """That of the policy's device. An index from this process would have to go there, and be waited for."""
        copier = LateCopier()
        pinned = partial(PinnedTransfer, copier=copier)
        monkeypatch.setattr("collector.policy.torch_policy.make_transfer", pinned)

        def on_device(index: Callable[..., Any]) -> Callable[..., Any]:
            def kernel(tensor: torch.Tensor, where: Any, *value: Any) -> Any:
                assert not isinstance(where, np.ndarray), "this waits for the device"
                if isinstance(where, torch.Tensor):
                    copier.kernel()
                return index(tensor, where, *value)

            return kernel

        for name in ("__getitem__", "__setitem__"):
            monkeypatch.setattr(torch.Tensor, name, on_device(getattr(torch.Tensor, name)))
        return copier

    @pytest.mark.parametrize("kind", [SyncDataCollector, AsyncDataCollector])
    @pytest.mark.parametrize("first", [None, 5])
    def test_they_go_the_way_of_the_observations(self, kind: Any, first: int | None, copier: LateCopier) -> None:
        class Counts:
            def __call__(self, obs: Any, state: Any, env_id: Any) -> dict[str, Any]:
                copier.kernel()
                state = torch.zeros(len(obs), 1) if state is None else state
                seen = {"seen": state[:, 0], "id": env_id}
                return {"action": torch.zeros(len(obs), dtype=torch.long), **seen, "state": state + 1}

        if first is not None:
            Counts.initial_state = lambda self, k: torch.full((k, 1), float(first))  # type: ignore[attr-defined]
        with kind(DummyVectorEnv(countdowns(2, 3, 7)), Counts(), frames_per_batch=12, policy_device="cpu") as collector:
            batches = [collector.rollout().flatten() for _ in range(4)]
            collector.reset([1])
            batches.append(collector.rollout().flatten())
            batches.append(collector.collect(n_episode=4).batch.flatten())
        for batch in batches:
            np.testing.assert_array_equal(batch.extras["seen"], batch.step_count + (first or 0))
            np.testing.assert_array_equal(batch.extras["id"], batch.env_ids)

    def test_a_state_stays_there_and_needs_nothing_in_mid_episode(self, copier: LateCopier) -> None:
        def count(obs: Any, state: Any) -> Any:
            copier.kernel()
            return torch.zeros(len(obs), dtype=torch.long), torch.ones(len(obs), 4) if state is None else state + 1

        venv = DummyVectorEnv(countdowns(100, 100, 100))
        with SyncDataCollector(venv, count, frames_per_batch=15, policy_device="cpu") as collector:
            collector.rollout()
            copier.log.clear()
            collector.rollout()
        assert copier.log == ["copy", "copy", "wait"] * 5


class TestHazards:
    def test_after_a_policy_that_raised_its_input_is_waited_for(self) -> None:
        staging, copier = late()
        staging.to_device(rows(8))  # and then the policy raises
        assert "wait" not in copier.log
        staging.to_device(rows(8, seed=1))
        assert copier.log.count("wait") == 1

    def test_bfloat16_comes_back_as_float32(self) -> None:
        given = torch.full((8,), 1 / 3, dtype=torch.bfloat16)
        back = late()[0].to_numpy({"x": given})["x"]
        assert back.dtype == np.float32
        np.testing.assert_array_equal(back, given.float().numpy())

    def test_a_kept_array_may_be_written_to_after_the_round(self) -> None:
        memory = rows(8)
        staging, copier = late(memory=[memory])
        for seed in range(5):
            memory[...] = rows(8, seed=seed)
            tensor = staging.to_device(memory)
            copier.kernel()
            np.testing.assert_array_equal(staging.to_numpy({"x": tensor})["x"], rows(8, seed=seed))

    def test_fresh_tensors_never_change_later(self) -> None:
        memory = rows(8)
        staging, copier = late(memory=[memory], fresh=True)
        kept = []
        for seed in range(5):
            staging.settle()
            memory[...] = rows(8, seed=seed)
            kept.append((staging.to_device(memory), staging.to_numpy({})))
        copier.kernel()
        for seed, (tensor, _) in enumerate(kept):
            np.testing.assert_array_equal(tensor.numpy(), rows(8, seed=seed))

    def test_buffers_made_in_inference_mode_can_be_used_outside_of_it(self) -> None:
        memory = rows(8, seed=1)
        staging, copier = late(memory=[memory])
        for array in (rows(8), memory):
            for mode in (True, False, True):
                with torch.inference_mode(mode):
                    tensor = staging.to_device(array)
                    copier.kernel()
                    np.testing.assert_array_equal(staging.to_numpy({"x": tensor})["x"], array)


class TestMemory:
    @pytest.mark.parametrize("view", [lambda m: m[::2], lambda m: m[:, :, :1]])
    def test_what_is_not_in_one_piece_of_it_goes_through_pinned_memory(self, view: Any) -> None:
        memory = rows(8)
        staging, copier = late(memory=[memory])
        tensor = staging.to_device(view(memory))
        assert "register" not in copier.log
        copier.kernel()
        np.testing.assert_array_equal(tensor.numpy(), view(memory))

    @pytest.mark.parametrize("registers", [True, False])
    def test_memory_is_registered_once_or_copied_to_pinned_memory(self, registers: bool) -> None:
        memory = rows(8)
        staging, copier = late(memory=[memory], registers=registers)
        for k in (8, 8, 3):
            tensor = staging.to_device(memory[:k])
            copier.kernel()
        np.testing.assert_array_equal(tensor.numpy(), memory[:3])
        assert copier.log.count("register") == 1
        assert copier.log.count("pinned") == (not registers)
        assert staging.registered == [registers]

    @pytest.mark.parametrize("failed", [False, True])
    def test_closing_frees_the_memory_also_where_the_device_has_failed(
        self, failed: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def wait() -> None:
            copier._queue.clear()
            waited.append(1)
            if failed:
                raise RuntimeError("CUDA error: device-side assert triggered")

        memory, waited = rows(8), []
        gone = weakref.ref(memory)
        staging, copier = late(memory=[memory])
        staging.to_device(memory)
        monkeypatch.setattr(copier, "wait", wait)
        staging.close()
        staging.close()
        del memory
        assert gone() is None
        assert (waited, staging.registered) == ([1], [])

    def test_the_memory_of_a_vector_env_is_where_its_views_lie(self) -> None:
        from cases import counting

        with ShmemVectorEnv(counting(3, form="dict"), copy=False) as venv:
            obs, _ = venv.reset()
            staging, copier = late(3, memory=memory_of(venv))
            staging.to_device(obs)
            assert staging.registered == [True] * len(memory_of(venv))
            assert "pinned" not in copier.log
            staging.settle()
            staging.to_device(venv.reset([0, 2])[0])  # rows of some envs are copies
            assert "pinned" in copier.log


class FakeEvent:
    log: list[str] = []

    def __init__(self) -> None:
        self.log.append("made")
        self._stream: Any = None

    def record(self, stream: Any) -> None:
        self._stream = stream
        self.log.append(f"recorded on {stream}")

    def synchronize(self) -> None:
        self.log.append(f"waited for {self._stream}")


class TestCudaCopier:
    """The calls of the copier for CUDA, with CUDA's objects replaced."""

    @pytest.fixture
    def stream(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        """The current stream is what the list holds."""
        current = ["first"]
        FakeEvent.log = []
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: current[0])
        monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
        return current

    def test_copies_on_two_streams_are_both_waited_for(
        self, stream: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def copy(target: Any, source: Any, non_blocking: bool = False) -> None:
            assert non_blocking

        monkeypatch.setattr(torch.Tensor, "copy_", copy)
        copier = CudaCopier(torch.device("cuda", 0))
        copier.copy(torch.empty(3), torch.zeros(3))
        stream[0] = "second"
        copier.copy(torch.empty(3), torch.zeros(3))
        copier.wait()
        assert sorted(FakeEvent.log[-2:]) == ["waited for first", "waited for second"]
        assert sorted(FakeEvent.log[:-2]) == ["made", "made", "recorded on first", "recorded on second"]
        copier.wait()
        assert len(FakeEvent.log) == 6
        for _ in range(2):
            copier.copy(torch.empty(3), torch.zeros(3))
        copier.wait()
        assert FakeEvent.log[6:] == ["recorded on second", "waited for second"], "one event for all copies, used again"
