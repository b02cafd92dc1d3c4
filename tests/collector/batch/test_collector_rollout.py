"""Operations on a batch: flatten, split, move to a device, and convert to torchrl's form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from collector import MultiStep, Rollout, SyncDataCollector
from tests.support.backends import FULL
from tests.support.cases import skip_unless_torch_indexes
from tests.support.collector_envs import zeros
from tests.support.countdown import Countdown, DictObs
from vecenv import DummyVectorEnv, nest

COLUMNS = ("action", "reward", "terminated", "truncated", "traj_ids", "step_count", "policy_version")


def act(obs: Any) -> dict[str, np.ndarray]:
    rows = obs["a"] if isinstance(obs, dict) else obs
    return {"action": zeros(rows) + rows[:, 1] % 3, "value": rows.sum(1) * 0.5}


def collect(*lengths: int, steps: int, skip: int = 0, wrap: Any = lambda env: env, **options: Any) -> Rollout:
    fns = [lambda length=length: wrap(Countdown(length)) for length in lengths]
    with SyncDataCollector(DummyVectorEnv(fns), act, frames_per_batch=steps * len(lengths), **options) as collector:
        for _ in range(skip):
            collector.rollout()
        return collector.rollout()


FORMS = {"rows": lambda batch: batch, "flat": Rollout.flatten, "split": Rollout.split_trajectories}


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize(
    ("pad_value", "uint8", "int64", "float64", "flag"),
    [
        (1, 1, 1, 1, True),
        (-1, 0, -1, -1, False),
        (300, 0, 300, 300, False),
        (0.5, 0, 0, 0.5, False),
        (float("nan"), 0, 0, float("nan"), False),
    ],
)
def test_a_dtype_without_the_value_is_padded_with_zeros(
    pad_value: float, uint8: int, int64: int, float64: float, flag: bool, tensors: bool
) -> None:
    batch = collect(3, 5, steps=5)
    batch = replace(batch, all_obs=batch.all_obs.astype(np.uint8), final_obs=batch.final_obs.astype(np.uint8))
    batch.extras.update({"byte": np.ones(batch.shape, np.uint8), "flag": np.ones(batch.shape, np.bool_)})
    if tensors:
        pytest.importorskip("torch")
        batch = batch.to("cpu")
    split = batch.split_trajectories(pad_value)
    rows, padding = (split.extras["byte"], split.action, split.reward, split.extras["flag"]), ~split.mask
    for found, expected in zip(rows, (uint8, int64, float64, flag), strict=True):
        np.testing.assert_array_equal(found[padding], [expected] * 5)
    np.testing.assert_array_equal(split.next.step_count[padding], [int64] * 5)
    assert not split.done[padding].any() or flag
    shortest = int(split.mask.sum(1).argmin())
    assert split.all_obs[shortest, -1].tolist() == [uint8, uint8]
    np.testing.assert_array_equal(split.next.obs[split.mask], batch.next.obs.reshape(-1, 2))


def test_observations_are_stored_once() -> None:
    batch = collect(3, 5, steps=7)
    assert np.shares_memory(batch.obs, batch.all_obs)
    assert batch.all_obs.shape == (2, 8, 2)
    assert len(batch.final_obs) == 3
    assert batch.names[-1] == "time"


def test_next_copies_only_what_is_read() -> None:
    batch = collect(3, 5, steps=7)
    for form in FORMS.values():
        each = form(batch)
        assert each.next.reward is each.reward
        assert each.next.terminated is each.terminated
        assert not np.shares_memory(each.next.obs, each.obs)


class TestTensors:
    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        self.torch = pytest.importorskip("torch")

    @pytest.mark.parametrize(
        "dtype",
        ["uint8", "uint16", "uint64", "float16", *(pytest.param(name, marks=FULL) for name in ("int8", "bool"))],
    )
    def test_batches_of_every_dtype_that_torch_has(self, dtype: str) -> None:
        """For example uint16, in which depth images come: torch cannot write rows of its wide unsigned tensors."""
        skip_unless_torch_indexes(dtype)
        batch = collect(3, 5, steps=7)
        limit = np.dtype(dtype).type(np.iinfo(dtype).max if np.dtype(dtype).kind in "iu" else 1)
        arrays = {name: getattr(batch, name).astype(dtype) * limit for name in ("all_obs", "final_obs", "action")}
        batch = replace(batch, **arrays)
        for form in (*FORMS.values(), MultiStep(2, 0.9), lambda batch: batch.split_trajectories(100)):
            one, two = form(batch), form(batch.to("cpu"))
            for read in (lambda batch: batch.obs, lambda batch: batch.action, lambda batch: batch.next.obs):
                for left, right in zip(nest.leaves(read(one)), nest.leaves(read(two)), strict=True):
                    assert right.numpy().dtype == left.dtype
                    np.testing.assert_array_equal(left, right)
            pytest.importorskip("tensordict")
            np.testing.assert_array_equal(two.to_tensordict()["next", "observation"], one.next.obs)

    def test_the_cpu_shares_memory(self) -> None:
        batch = collect(3, 5, steps=5)
        batch.to("cpu").to("cpu").reward[:] = 42
        assert (batch.reward == 42).all()


class TestTensordicts:
    @pytest.fixture(autouse=True)
    def _tensordict(self) -> None:
        pytest.importorskip("tensordict")

    def test_keys_and_shapes_are_those_of_torchrl(self) -> None:
        batch = collect(3, 5, steps=7)
        found = batch.to_tensordict()
        assert found.batch_size == (2, 7)
        assert found.names == [None, "time"]
        for key in ("reward", "done", "terminated", "truncated", "step_count"):
            assert found["next", key].shape == (2, 7, 1)
            np.testing.assert_array_equal(found["next", key][..., 0], getattr(batch.next, key))
        np.testing.assert_array_equal(found["observation"], batch.obs)
        np.testing.assert_array_equal(found["next", "observation"], batch.next.obs)
        np.testing.assert_array_equal(found["action"], batch.action)
        np.testing.assert_array_equal(found["value"], batch.extras["value"])
        assert found["collector", "traj_ids"].shape == (2, 7)
        assert not found["done"].any(), "a finished env has been reset before its next step"
        assert found["done"].shape == (2, 7, 1)

    def test_flat_batches_and_dict_observations(self) -> None:
        batch = collect(3, 5, steps=7, wrap=DictObs)
        found = batch.flatten().to_tensordict()
        assert found.batch_size == (14,)
        assert found.names == ["time"]
        np.testing.assert_array_equal(found["a"], batch.obs["a"].reshape(-1, 2))
        np.testing.assert_array_equal(found["next", "b", "0"], batch.next.obs["b"][0].reshape(-1, 2))

    @pytest.mark.parametrize("vector", [False, True], ids=["number", "vector"])
    def test_rewards_are_float32_as_in_torchrl(self, vector: bool) -> None:
        whole = collect(3, 5, steps=7)
        reward = np.random.default_rng(0).normal(size=(2, 7, 3) if vector else (2, 7))
        for form in FORMS.values():
            batch = form(replace(whole, reward=reward))
            found, expected = (
                batch.to_tensordict()["next", "reward"],
                batch.reward if vector else batch.reward[..., None],
            )
            assert str(found.dtype) == "torch.float32"
            np.testing.assert_array_equal(found, expected.astype(np.float32))
            assert batch.reward.dtype == np.float64
