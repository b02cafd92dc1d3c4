"""Operations on a batch: split, move to a device, join steps, and convert to torchrl's form.

tests/fuzz compares all forms of a batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from collector import MultiStep, Rollout, SyncDataCollector
from tests.support.backends import FULL
from tests.support.cases import counting, skip_unless_torch_indexes
from tests.support.collector_envs import batch_of, countdowns, pendulums
from tests.support.countdown import Countdown, DictObs
from vecenv import DummyVectorEnv

torch = pytest.importorskip("torch")
FORMS: dict[str, Any] = {"rows": lambda batch: batch, "flat": Rollout.flatten, "split": Rollout.split_trajectories}


def act(obs: Any) -> dict[str, np.ndarray]:
    rows = obs["a"] if isinstance(obs, dict) else obs
    return {"action": rows[:, 1] % 3, "value": rows.sum(1) * 0.5}


def collect(steps: int = 7) -> Rollout:
    return batch_of(DummyVectorEnv(countdowns(3, 5)), act, 2 * steps)


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
    batch = collect(5)
    batch = replace(batch, all_obs=batch.all_obs.astype(np.uint8), final_obs=batch.final_obs.astype(np.uint8))
    batch.extras.update({"byte": np.ones(batch.shape, np.uint8), "flag": np.ones(batch.shape, np.bool_)})
    split = (batch.to("cpu") if tensors else batch).split_trajectories(pad_value)
    rows, padding = (split.extras["byte"], split.action, split.reward, split.extras["flag"]), ~split.mask
    for found, expected in zip(rows, (uint8, int64, float64, flag), strict=True):
        np.testing.assert_array_equal(found[padding], [expected] * 5)
    np.testing.assert_array_equal(split.next.step_count[padding], [int64] * 5)
    assert not split.done[padding].any() or flag
    shortest = int(split.mask.sum(1).argmin())
    assert split.all_obs[shortest, -1].tolist() == [uint8, uint8]
    np.testing.assert_array_equal(split.next.obs[split.mask], batch.next.obs.reshape(-1, 2))


def test_tensors_on_the_cpu_share_memory() -> None:
    batch = collect()
    batch.to("cpu").to("cpu").reward[:] = 42
    assert (batch.reward == 42).all()


@pytest.mark.parametrize(
    "dtype",
    ["uint8", "uint16", "uint64", "float16", *(pytest.param(name, marks=FULL) for name in ("int8", "bool"))],
)
def test_tensors_of_every_dtype_that_torch_has(dtype: str) -> None:
    """For example uint16, in which depth images come: torch cannot write rows of its wide unsigned tensors."""
    skip_unless_torch_indexes(dtype)
    pytest.importorskip("tensordict")
    batch = collect()
    limit = np.dtype(dtype).type(np.iinfo(dtype).max if np.dtype(dtype).kind in "iu" else 1)
    arrays = {name: getattr(batch, name).astype(dtype) * limit for name in ("all_obs", "final_obs", "action")}
    batch = replace(batch, **arrays)
    for form in (*FORMS.values(), MultiStep(2, 0.9), lambda batch: batch.split_trajectories(100)):
        one, two = form(batch), form(batch.to("cpu"))
        for left, right in ((one.obs, two.obs), (one.action, two.action), (one.next.obs, two.next.obs)):
            assert right.numpy().dtype == left.dtype
            np.testing.assert_array_equal(left, right)
        np.testing.assert_array_equal(two.to_tensordict()["next", "observation"], one.next.obs)


class TestTensordicts:
    @pytest.fixture(autouse=True)
    def _tensordict(self) -> None:
        pytest.importorskip("tensordict")

    def test_keys_and_shapes_are_those_of_torchrl(self) -> None:
        batch = collect()
        found = batch.to_tensordict()
        assert (found.batch_size, found.names) == ((2, 7), [None, "time"])
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
        batch = batch_of([lambda length=length: DictObs(Countdown(length)) for length in (3, 5)], act, 14)
        found = batch.flatten().to_tensordict()
        assert (found.batch_size, found.names) == ((14,), ["time"])
        np.testing.assert_array_equal(found["a"], batch.obs["a"].reshape(-1, 2))
        np.testing.assert_array_equal(found["next", "b", "0"], batch.next.obs["b"][0].reshape(-1, 2))

    @pytest.mark.parametrize("shape", [(2, 7), (2, 7, 3)], ids=["number", "vector"])
    def test_rewards_are_float32_as_in_torchrl(self, shape: tuple[int, ...]) -> None:
        whole = replace(collect(), reward=np.random.default_rng(0).normal(size=shape))
        for form in FORMS.values():
            batch = form(whole)
            found = batch.to_tensordict()["next", "reward"]
            expected = batch.reward if len(shape) == 3 else batch.reward[..., None]
            assert (str(found.dtype), batch.reward.dtype) == ("torch.float32", np.float64)
            np.testing.assert_array_equal(found, expected.astype(np.float32))


@pytest.mark.parametrize("case", ["no episode ends", "episodes end", "split"])
def test_rows_of_a_tensordict_are_done_where_their_steps_end_an_episode_or_the_batch_ends(case: str) -> None:
    fns = pendulums(2) if case == "no episode ends" else counting(2, length=4)
    with SyncDataCollector(
        fns, frames_per_batch=20, postproc=MultiStep(3, 0.9), split_trajs=case == "split"
    ) as collector:
        batch = collector.next()
    last = np.diff(batch.env_ids, append=-1) != 0
    found = batch.to_tensordict()
    ends = batch.terminated | batch.truncated
    assert ends.any() == (case != "no episode ends")
    np.testing.assert_array_equal(batch.done, ends | last)
    np.testing.assert_array_equal(found["next", "terminated"][:, 0], batch.terminated)
    np.testing.assert_array_equal(found["next", "truncated"][:, 0], batch.truncated | (last & ~batch.terminated))
    np.testing.assert_array_equal(found["next", "done"][:, 0], batch.done)
    np.testing.assert_array_equal(found["steps_to_next_obs"], batch.extras["steps"])
