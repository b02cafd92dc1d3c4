"""The way of a batch to a device and back, on a device that is as late as it may be."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from collector_envs import countdowns  # noqa: E402
from device_double import FakeCudart, LateLink, outputs_of  # noqa: E402

from collector import AsyncDataCollector, SyncDataCollector  # noqa: E402
from collector.device import pinned_memory  # noqa: E402
from collector.device.link import CudaLink  # noqa: E402
from collector.device.pinned_memory import lock_pages  # noqa: E402
from collector.device.transfer import Staged, memory_of  # noqa: E402
from collector.policy.exploration import ExplorationType  # noqa: E402
from collector.policy.torch_policy import TorchPolicy  # noqa: E402
from vecenv import DummyVectorEnv, ShmemVectorEnv  # noqa: E402

CPU = torch.device("cpu")


def rows(k: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).random((k, 3, 2)) * 9 - 3).astype(dtype)


def late(n: int = 8, **options: Any) -> tuple[Staged, LateLink]:
    link = LateLink(registers=options.pop("registers", True))
    return Staged(CPU, n, link=link, **options), link


@pytest.fixture
def nothing_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test in which something waits for the device other than by a mark."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("this waits for the device")

    monkeypatch.setattr(torch.cuda, "synchronize", refuse)
    for name in ("item", "cpu", "tolist", "to"):
        monkeypatch.setattr(torch.Tensor, name, refuse)


@pytest.mark.usefixtures("nothing_blocks")
class TestRound:
    def test_it_is_one_copy_a_leaf_each_way_one_mark_and_one_wait(self) -> None:
        staging, link = late()
        for seed in range(3):
            link.log.clear()
            tensors = staging.to_device({"a": rows(8, seed=seed), "b": (rows(8, np.uint8),)})
            link.kernel()
            staging.to_numpy({"action": tensors["a"] + 1, "value": tensors["b"][0] * 2})
        assert link.log == ["copy"] * 4 + ["record", "wait"]

    def test_a_policy_is_asked_in_one_round(self) -> None:
        staging, link = late()

        def policy(obs: Any) -> Any:
            link.kernel()
            return {"action": obs["a"].sum((1, 2)), "value": obs["b"].sum((1, 2))}

        asked = TorchPolicy(policy, "cpu", 8, ExplorationType.RANDOM)
        asked._transfer = staging
        for seed in range(50):
            link.log.clear()
            k = 8 - seed % 3
            obs = {"a": rows(k, seed=seed), "b": rows(k, np.int64, seed)}
            outputs = outputs_of(asked, obs)
            np.testing.assert_allclose(outputs["action"], obs["a"].sum((1, 2)), rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(outputs["value"], obs["b"].sum((1, 2)))
        assert link.log == ["copy"] * 4 + ["record", "wait"]

    def test_buffers_are_allocated_in_the_first_round_only(self) -> None:
        staging, link = late()
        for seed in range(5):
            tensor = staging.to_device(rows(8 - seed, seed=seed))
            link.kernel()
            staging.to_numpy({"action": tensor})
        assert link.log.count("host") == 2
        assert link.log.count("empty") == 1

    def test_frames_go_over_as_bytes(self) -> None:
        staging, _ = late()
        tensor = staging.to_device(rows(8, np.uint8))
        assert tensor.dtype == torch.uint8
        assert staging._inputs[0]._host.dtype == torch.uint8

    def test_rows_without_values_are_not_copied(self) -> None:
        staging, link = late()
        assert staging.to_device(np.zeros((8, 0), np.float32)).shape == (8, 0)
        assert "copy" not in link.log

    def test_observations_may_change_their_form_and_number(self) -> None:
        staging, link = late(2)
        for array in (rows(2), rows(5), rows(2, np.int64), rows(2)[:, :1], rows(1)[:, :, :1]):
            tensor = staging.to_device(array)
            link.kernel()
            np.testing.assert_array_equal(tensor.numpy(), array)


class TestRowsOfAPolicy:
    """Whose rows they are and what a recurrent policy remembers, on a device that nothing may wait for."""

    @pytest.fixture
    def link(self, monkeypatch: pytest.MonkeyPatch, nothing_blocks: None) -> LateLink:
        """That of the policy's device. An index from this process would have to go there, and be waited for."""
        link = LateLink()
        monkeypatch.setattr("collector.policy.torch_policy.Direct", lambda device: Staged(device, 3, link=link))

        def on_device(index: Callable[..., Any]) -> Callable[..., Any]:
            def kernel(tensor: torch.Tensor, where: Any, *value: Any) -> Any:
                assert not isinstance(where, np.ndarray), "this waits for the device"
                if isinstance(where, torch.Tensor):
                    link.kernel()
                return index(tensor, where, *value)

            return kernel

        for name in ("__getitem__", "__setitem__"):
            monkeypatch.setattr(torch.Tensor, name, on_device(getattr(torch.Tensor, name)))
        return link

    @pytest.mark.parametrize("kind", [SyncDataCollector, AsyncDataCollector])
    @pytest.mark.parametrize("first", [None, 5])
    def test_they_go_the_way_of_the_observations(self, kind: Any, first: int | None, link: LateLink) -> None:
        class Counts:
            def __call__(self, obs: Any, state: Any, env_id: Any) -> dict[str, Any]:
                link.kernel()
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

    def test_a_state_stays_there_and_needs_nothing_in_mid_episode(self, link: LateLink) -> None:
        def count(obs: Any, state: Any) -> Any:
            link.kernel()
            return torch.zeros(len(obs), dtype=torch.long), torch.ones(len(obs), 4) if state is None else state + 1

        venv = DummyVectorEnv(countdowns(100, 100, 100))
        with SyncDataCollector(venv, count, frames_per_batch=15, policy_device="cpu") as collector:
            collector.rollout()
            link.log.clear()
            collector.rollout()
        assert link.log == ["copy", "copy", "record", "wait"] * 5


class TestHazards:
    def test_the_double_notices_a_source_that_is_overwritten_too_early(self) -> None:
        link, source = LateLink(), torch.zeros(3)
        link.copy(torch.empty(3), source)
        source += 1
        with pytest.raises(AssertionError, match="before the copy had run"):
            link.wait(link.record())

    def test_what_was_not_waited_for_is_not_there(self) -> None:
        staging, link = late()
        tensor = staging.to_device(rows(8))
        assert (tensor == 77).all()
        link.kernel()
        np.testing.assert_array_equal(tensor.numpy(), rows(8))

    def test_after_a_policy_that_raised_its_input_is_waited_for(self) -> None:
        staging, link = late()
        staging.to_device(rows(8))  # and then the policy raises
        assert "wait" not in link.log
        staging.to_device(rows(8, seed=1))
        assert link.log.count("wait") == 1

    def test_a_kept_array_may_be_written_to_after_the_round(self) -> None:
        memory = rows(8)
        staging, link = late(memory=[memory])
        for seed in range(5):
            memory[...] = rows(8, seed=seed)
            tensor = staging.to_device(memory)
            link.kernel()
            np.testing.assert_array_equal(staging.to_numpy({"x": tensor})["x"], rows(8, seed=seed))

    def test_fresh_tensors_never_change_later(self) -> None:
        memory = rows(8)
        staging, link = late(memory=[memory], fresh=True)
        kept = []
        for seed in range(5):
            staging.settle()
            memory[...] = rows(8, seed=seed)
            kept.append((staging.to_device(memory), staging.to_numpy({})))
        link.kernel()
        for seed, (tensor, _) in enumerate(kept):
            np.testing.assert_array_equal(tensor.numpy(), rows(8, seed=seed))

    def test_buffers_made_in_inference_mode_can_be_used_outside_of_it(self) -> None:
        memory = rows(8, seed=1)
        staging, link = late(memory=[memory])
        for array in (rows(8), memory):
            for mode in (True, False, True):
                with torch.inference_mode(mode):
                    tensor = staging.to_device(array)
                    link.kernel()
                    np.testing.assert_array_equal(staging.to_numpy({"x": tensor})["x"], array)

    def test_outputs_may_need_a_gradient(self) -> None:
        staging, _ = late()
        weight = torch.ones(8, requires_grad=True)
        np.testing.assert_array_equal(staging.to_numpy({"x": weight * 2})["x"], np.full(8, 2, np.float32))

    def test_bfloat16_comes_back_as_float32(self) -> None:
        staging, _ = late()
        given = torch.full((8,), 1 / 3, dtype=torch.bfloat16)
        back = staging.to_numpy({"x": given})["x"]
        assert back.dtype == np.float32
        np.testing.assert_array_equal(back, given.float().numpy())


class TestMemory:
    def test_kept_arrays_are_registered_when_the_first_observation_lies_in_them(self) -> None:
        memory, other = rows(8), rows(8)
        staging, link = late(memory=[memory, other])
        staging.to_device(rows(8))
        assert "register" not in link.log
        for k in (8, 8, 3):
            staging.to_device(memory[:k])
        assert link.log.count("register") == 1
        assert staging.registered == [True, False]

    def test_observations_in_registered_memory_are_not_staged(self) -> None:
        memory = rows(8)
        staging, link = late(memory=[memory])
        staging.to_device(memory)
        assert "host" not in link.log

    @pytest.mark.parametrize("view", [lambda m: m[::2], lambda m: m[:, :, :1], lambda m: m[[0, 1]]])
    def test_what_is_not_in_one_piece_of_it_is_staged(self, view: Any) -> None:
        memory = rows(8)
        staging, link = late(memory=[memory])
        tensor = staging.to_device(view(memory))
        assert "register" not in link.log
        link.kernel()
        np.testing.assert_array_equal(tensor.numpy(), view(memory))

    def test_memory_that_cannot_be_registered_is_staged_and_asked_for_once(self) -> None:
        memory = rows(8)
        staging, link = late(memory=[memory], registers=False)
        for _ in range(3):
            tensor = staging.to_device(memory)
            link.kernel()
        np.testing.assert_array_equal(tensor.numpy(), memory)
        assert link.log.count("register") == 1
        assert link.log.count("host") == 1
        assert staging.registered == [False]

    def test_closing_waits_and_lets_go(self) -> None:
        memory = rows(8)
        gone = weakref.ref(memory)
        staging, link = late(memory=[memory])
        staging.to_device(memory)
        staging.close()
        del memory
        assert link.log[-2:] == ["record", "wait"]
        assert gone() is None
        staging.close()
        assert staging.registered == []

    def test_a_device_that_has_failed_does_not_keep_it_from_letting_go(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def wait(mark: int) -> None:
            raise RuntimeError("CUDA error: device-side assert triggered")

        memory = rows(8)
        gone = weakref.ref(memory)
        staging, link = late(memory=[memory])
        staging.to_device(memory)
        monkeypatch.setattr(link, "wait", wait)
        link._queue.clear()
        staging.close()
        del memory
        assert gone() is None
        assert staging.registered == []

    def test_the_memory_of_a_vector_env_is_where_its_views_lie(self) -> None:
        from cases import counting

        with ShmemVectorEnv(counting(3, form="dict"), copy=False) as venv:
            obs, _ = venv.reset()
            staging, link = late(3, memory=memory_of(venv))
            staging.to_device(obs)
            assert staging.registered == [True] * len(memory_of(venv))
            assert "host" not in link.log
            staging.settle()
            staging.to_device(venv.reset([0, 2])[0])  # rows of some envs are copies
            assert "host" in link.log

    def test_object_leaves_and_strangers_have_no_memory(self) -> None:
        from cases import counting

        with DummyVectorEnv(counting(2, form="object")) as venv:
            assert memory_of(venv) == []
        assert memory_of(object()) == []


def lock(array: np.ndarray, cudart: FakeCudart) -> Any:
    return lock_pages(array, cudart, cudart.clear_error)


class TestPageLocks:
    def test_memory_is_unregistered_once_when_the_lock_goes_and_before_the_memory_does(self) -> None:
        cudart, array, alive = FakeCudart(), rows(8), []
        gone = weakref.ref(array)
        held = lock(array, cudart)
        cudart.at_unregister = lambda: alive.append(gone() is not None)
        del array
        assert cudart.log == ["register"]
        del held
        assert cudart.log == ["register", "unregister"]
        assert alive == [True]
        assert gone() is None

    def test_copies_have_run_before_it_is_unregistered(self) -> None:
        cudart, array = FakeCudart(), rows(8)
        held = lock(array, cudart)
        held.readers.append(lambda: cudart.log.append("waited"))
        del held
        assert cudart.log == ["register", "waited", "unregister"]

    def test_a_device_that_failed_does_not_keep_the_lock(self) -> None:
        def wait() -> None:
            raise RuntimeError("CUDA error: device-side assert triggered")

        cudart, array = FakeCudart(), rows(8)
        held = lock(array, cudart)
        held.readers.append(wait)
        del held
        assert cudart.locked == {}

    def test_there_is_one_lock_for_one_memory(self) -> None:
        cudart, array = FakeCudart(), rows(8)
        one, two = lock(array, cudart), lock(array, cudart)
        assert one is two
        del one
        assert cudart.locked
        del two
        assert cudart.log == ["register", "unregister"]
        again = lock(array, cudart)
        assert again is not None

    def test_memory_without_bytes_is_left_alone(self) -> None:
        cudart = FakeCudart()
        assert lock(np.zeros((8, 0)), cudart) is None
        assert lock(rows(8)[:, :1], cudart) is None
        assert cudart.log == []

    def test_a_refusal_leaves_no_error_behind(self) -> None:
        cudart, array = FakeCudart(), rows(8)
        cudart.cudaHostRegister(pinned_memory.address_of(array), array.nbytes, 1)  # by somebody else
        assert lock(array, cudart) is None
        assert cudart.log[-1] == "clear"
        assert cudart.pending_error == 0

    def test_an_error_of_unregistering_is_taken_back(self) -> None:
        cudart, array = FakeCudart(), rows(8)
        held = lock(array, cudart)
        cudart.locked.clear()  # somebody else did it
        del held
        assert cudart.log[-2:] == ["unregister", "clear"]

    def test_a_forked_copy_of_the_process_does_not_touch_cuda(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cudart = FakeCudart()
        held = lock(rows(8), cudart)
        monkeypatch.setattr(os, "getpid", lambda: -1)
        del held
        assert cudart.log == ["register"]


class FakeEvent:
    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.log: list[Any] = []

    def record(self, stream: Any) -> None:
        self.log.append(stream)

    def synchronize(self) -> None:
        self.log.append("waited")


class TestCudaLink:
    """The calls of the real link, with CUDA's objects replaced."""

    @pytest.fixture
    def stream(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        """The current stream is what the list holds."""
        current = ["first"]
        FakeEvent.made = 0
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: current[0])
        monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
        return current

    def test_a_mark_is_one_event_which_is_used_again(self, stream: list[Any]) -> None:
        link = CudaLink(torch.device("cuda", 0))
        for _ in range(3):
            link.copy(torch.empty(3), torch.zeros(3))
            link.copy(torch.empty(3), torch.zeros(3))
            (event,) = link.record()
            link.wait([event])
        assert FakeEvent.made == 1
        assert event.log == ["first", "waited"] * 3

    def test_copies_on_two_streams_are_both_waited_for(self, stream: list[Any]) -> None:
        link = CudaLink(torch.device("cuda", 0))
        link.copy(torch.empty(3), torch.zeros(3))
        stream[0] = "second"
        link.copy(torch.empty(3), torch.zeros(3))
        marks = link.record()
        link.wait(marks)
        assert sorted(event.log[0] for event in marks) == ["first", "second"]
        assert [event.log[1] for event in marks] == ["waited", "waited"]
        assert link.record() == []

    def test_copies_do_not_block(self, stream: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []
        monkeypatch.setattr(torch.Tensor, "copy_", lambda self, source, non_blocking=False: asked.append(non_blocking))
        CudaLink(torch.device("cuda", 0)).copy(torch.empty(3), torch.zeros(3))
        assert asked == [True]
