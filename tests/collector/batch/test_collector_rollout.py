"""Operations on a batch: flatten, split, move to a device, and convert to torchrl's form."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from collector import FlatRollout, Interruptor, MultiStep, Rollout, SyncDataCollector
from tests.support.backends import FULL
from tests.support.cases import skip_unless_torch_indexes
from tests.support.collector_envs import countdowns, zeros
from tests.support.countdown import Countdown, DictObs
from vecenv import DummyVectorEnv, nest

OTHER_DTYPES = ["uint32", "int8", "int32", "int64", "float32", "float64", "bool"]
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


def interrupted(lengths: list[int], steps: int, rounds: int) -> Rollout:
    """A batch that was ended after so many rounds, in which envs have different numbers of steps."""
    left, interruptor = [rounds], Interruptor()

    def stop(obs: np.ndarray) -> dict[str, np.ndarray]:
        left[0] -= 1
        if left[0] == 0:
            interruptor.stop_collection()
        return act(obs)

    venv = DummyVectorEnv(countdowns(*lengths))
    with SyncDataCollector(venv, stop, frames_per_batch=steps * len(lengths), interruptor=interruptor) as collector:
        return collector.rollout()


def random_batches() -> list[Rollout]:
    """Batches with all mixtures of episode ends, borders and missing steps."""
    rng = np.random.default_rng(0)
    batches = []
    for _ in range(25):
        lengths = rng.integers(1, 9, rng.integers(1, 6)).tolist()
        steps = int(rng.integers(1, 13))
        batches.append(collect(*lengths, steps=steps, skip=int(rng.integers(3))))
        batches.append(interrupted(lengths, steps, int(rng.integers(1, steps + 1))))
    return batches


def without_dtype(rows: np.ndarray) -> np.ndarray:
    """As many rows of objects."""
    return np.full(rows.shape, None)


FORMS = {"rows": lambda batch: batch, "flat": Rollout.flatten, "split": Rollout.split_trajectories}


@pytest.fixture(scope="module")
def batches() -> list[Rollout]:
    return random_batches()


def test_flat_batches_hold_the_marked_steps_by_env_and_time(batches: list[Rollout]) -> None:
    for batch in batches:
        flat = batch.flatten()
        mask = batch.mask
        assert flat.shape == (batch.frames,) == (flat.frames,)
        for name in COLUMNS:
            np.testing.assert_array_equal(getattr(flat, name), getattr(batch, name)[mask])
        np.testing.assert_array_equal(flat.obs, batch.obs[mask])
        np.testing.assert_array_equal(flat.next.obs, batch.next.obs[mask])
        np.testing.assert_array_equal(flat.extras["value"], batch.extras["value"][mask])
        np.testing.assert_array_equal(flat.env_ids, np.nonzero(mask)[0])
        assert flat.mask.all()
        assert flat.flatten() is flat


def test_split_trajectories_are_whole_runs_padded_at_the_end(batches: list[Rollout]) -> None:
    for batch in batches:
        split, flat = batch.split_trajectories(), batch.flatten()
        assert split.frames == batch.frames
        assert (np.diff(split.mask.astype(int), axis=1) <= 0).all()
        for name in COLUMNS:
            np.testing.assert_array_equal(getattr(split, name)[split.mask], getattr(flat, name))
        np.testing.assert_array_equal(split.obs[split.mask], flat.obs)
        np.testing.assert_array_equal(split.next.obs[split.mask], flat.next.obs)
        for row, (ids, mask) in enumerate(zip(split.traj_ids, split.mask, strict=True)):
            assert len(set(ids[mask])) == 1
            assert (ids[~mask] == -1).all()
            assert split.env_ids[row] == ids[0] % batch.shape[0]
        assert not split.reward[~split.mask].any()
        np.testing.assert_array_equal(split.next.step_count, np.where(split.mask, split.step_count + 1, 0))
        ends = np.zeros_like(split.mask)
        ends[split.final_env, split.final_time] = True
        np.testing.assert_array_equal(ends, split.terminated | split.truncated)
        is_last = split.mask & ~np.pad(split.mask[:, 1:], ((0, 0), (0, 1)), constant_values=True)
        np.testing.assert_array_equal(split.done, ends | is_last)
        assert (np.lexsort((split.final_env, split.final_time)) == np.arange(len(split.final_env))).all()
        np.testing.assert_array_equal(split.final_obs, split.next.obs[split.final_env, split.final_time])


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


@pytest.mark.parametrize("value", ["3", 1.5j, None, [1, 2]])
def test_a_padding_that_is_not_a_number_is_refused(value: Any) -> None:
    batch = collect(3, 5, steps=5)
    for each in (batch, batch.flatten()):
        with pytest.raises(TypeError, match="pad_value must be a number"):
            each.split_trajectories(value)


def test_steps_are_counted_from_the_start_of_an_episode() -> None:
    batch = collect(3, 5, steps=7, skip=1)
    np.testing.assert_array_equal(batch.step_count, batch.obs[..., 1])
    np.testing.assert_array_equal(batch.next.step_count, batch.next.obs[..., 1])


def test_observations_are_stored_once() -> None:
    batch = collect(3, 5, steps=7)
    assert np.shares_memory(batch.obs, batch.all_obs)
    assert batch.all_obs.shape == (2, 8, 2)
    assert len(batch.final_obs) == 3
    assert batch.names[-1] == "time"


def test_trees_of_observations_keep_their_form() -> None:
    batch = collect(3, 5, steps=7, wrap=DictObs)
    for flat in (batch.flatten(), batch.split_trajectories().flatten()):
        np.testing.assert_array_equal(flat.obs["a"], batch.obs["a"].reshape(-1, 2))
        np.testing.assert_array_equal(flat.next.obs["b"][0], batch.next.obs["b"][0].reshape(-1, 2))


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

    def assert_same(self, tensors: Rollout | FlatRollout, batch: Rollout | FlatRollout) -> None:
        for name in COLUMNS:
            assert isinstance(getattr(tensors, name), self.torch.Tensor)
            np.testing.assert_array_equal(getattr(tensors, name), getattr(batch, name))
        for one, other in zip(nest.leaves(tensors.next.obs), nest.leaves(batch.next.obs), strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(tensors.extras["value"], batch.extras["value"])
        np.testing.assert_array_equal(tensors.done, batch.done)
        np.testing.assert_array_equal(tensors.mask, batch.mask)

    def test_a_batch_of_tensors_can_do_what_one_of_arrays_can(self, batches: list[Rollout]) -> None:
        for batch in batches[:6]:
            tensors = batch.to("cpu")
            self.assert_same(tensors, batch)
            self.assert_same(tensors.flatten(), batch.flatten())
            self.assert_same(tensors.split_trajectories(), batch.split_trajectories())
            self.assert_same(batch.flatten().to("cpu"), batch.flatten())
            assert tensors.frames == batch.frames
            assert repr(tensors) == repr(batch)
            assert repr(tensors.flatten()) == repr(batch.flatten())

    @pytest.mark.parametrize("wrap", [lambda env: env, DictObs], ids=["array", "tree"])
    @pytest.mark.parametrize("form", FORMS)
    def test_every_form_of_a_batch_can_be_moved_again(self, form: str, wrap: Any) -> None:
        batch = collect(3, 5, steps=5, wrap=wrap)
        one = FORMS[form](batch)
        two = one.to("cpu")
        for tensors in (two.to("cpu"), FORMS[form](batch.to("cpu")).to("cpu")):
            self.assert_same(tensors, one)
        away = two.to("meta").to("meta")
        assert away.shape == one.shape
        moved = (away.reward, away.traj_ids, *nest.leaves((away.next.obs, away.extras)))
        assert {leaf.device.type for leaf in moved} == {"meta"}

    @pytest.mark.parametrize(
        "dtype",
        ["uint8", "uint16", "uint64", "int16", "float16", *(pytest.param(name, marks=FULL) for name in OTHER_DTYPES)],
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

    @pytest.mark.parametrize("entry", ["obs", "obs['who']", "obs['all'][1]", "action", "extras['who']"])
    def test_an_entry_that_can_be_no_tensor_is_named_with_what_to_do(self, entry: str) -> None:
        places = {
            "obs": lambda rows: without_dtype(rows),
            "obs['who']": lambda rows: {"state": rows, "who": without_dtype(rows)},
            "obs['all'][1]": lambda rows: {"all": (rows, without_dtype(rows))},
        }
        batch = collect(3, 5, steps=5)
        if place := places.get(entry):
            batch = replace(batch, all_obs=place(batch.all_obs), final_obs=place(batch.final_obs))
        elif entry == "action":
            batch = replace(batch, action=without_dtype(batch.action))
        else:
            batch = replace(batch, extras={"who": without_dtype(batch.action)})
        message = rf"no dtype for {re.escape(entry)}, an array of .*: drop it in a wrapper .* or keep numpy batches"
        for form in FORMS.values():
            with pytest.raises(TypeError, match=message):
                form(batch).to("cpu")
        if entry != "action":
            with pytest.raises(TypeError, match=rf"no dtype for {re.escape(entry)}, .*to_tensordict"):
                batch.to_tensordict()

    def test_so_it_is_where_a_collector_stores_tensors(self) -> None:
        def policy(obs: Any) -> Any:
            return {"action": zeros(obs), "who": without_dtype(obs)}

        collector = SyncDataCollector(DummyVectorEnv(countdowns(3)), policy, frames_per_batch=8, storing_device="cpu")
        with collector, pytest.raises(TypeError, match=r"no dtype for extras\['who'\], an array of object"):
            collector.next()

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

    @pytest.mark.parametrize("name", ["action", "collector", "next", "value"])
    def test_an_entry_of_the_observation_with_a_name_of_its_own_is_refused(self, name: str) -> None:
        batch = collect(3, 5, steps=7, wrap=DictObs)
        batch = replace(
            batch,
            all_obs={**batch.all_obs, name: batch.all_obs["a"]},
            final_obs={**batch.final_obs, name: batch.final_obs["a"]},
        )
        with pytest.raises(ValueError, match=f"the observation has an entry '{name}', and so has the tensordict"):
            batch.to_tensordict()

    def test_flat_batches_and_dict_observations(self) -> None:
        batch = collect(3, 5, steps=7, wrap=DictObs)
        found = batch.flatten().to_tensordict()
        assert found.batch_size == (14,)
        assert found.names == ["time"]
        np.testing.assert_array_equal(found["a"], batch.obs["a"].reshape(-1, 2))
        np.testing.assert_array_equal(found["next", "b", "0"], batch.next.obs["b"][0].reshape(-1, 2))

    @pytest.mark.parametrize(("form", "tensors"), [("flat", False), ("flat", True), ("split", False)])
    def test_no_row_of_a_flat_one_goes_on_in_another_episode(
        self, batches: list[Rollout], form: str, tensors: bool
    ) -> None:
        for batch in batches:
            flat = FORMS[form](batch).flatten()
            before = {name: getattr(flat, name).copy() for name in COLUMNS}
            found = (flat.to("cpu") if tensors else flat).to_tensordict()["next"]
            last = np.diff(flat.env_ids, append=-1) != 0
            np.testing.assert_array_equal(found["done"][:, 0], last | flat.done)
            np.testing.assert_array_equal(found["terminated"][:, 0], flat.terminated)
            np.testing.assert_array_equal(found["truncated"][:, 0], flat.truncated | (last & ~flat.terminated))
            np.testing.assert_array_equal(found["observation"], flat.next.obs)
            for name in COLUMNS:
                np.testing.assert_array_equal(getattr(flat, name), before[name])

    def test_an_empty_flat_batch(self) -> None:
        empty = replace(collect(3, steps=5), mask=np.zeros((1, 5), np.bool_))
        assert empty.flatten().to_tensordict().batch_size == (0,)

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

    def test_padding_of_trajectories_is_zero(self) -> None:
        batch = collect(3, 5, steps=7).split_trajectories()
        found, padding = batch.to_tensordict(), ~batch.mask
        assert padding.any()
        for key in ("reward", "done", "terminated", "truncated", "step_count"):
            assert not found["next", key][padding].any()
        assert not found["step_count"][padding].any()
