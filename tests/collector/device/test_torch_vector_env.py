"""A vector env with tensors returns the same values as with arrays, on any device."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gymnasium import spaces  # noqa: E402

from collector import MLPPolicy, SyncDataCollector, TorchVectorEnv  # noqa: E402
from collector.device.math_libraries import rows_are_exact  # noqa: E402
from collector.device.tensors import resolve_device  # noqa: E402
from tests.support.backends import FULL  # noqa: E402
from tests.support.cases import Records, Writes, counting, playing  # noqa: E402
from tests.support.devices import ACCELERATOR, SIM, devices, needs_accelerator, needs_sim  # noqa: E402
from vecenv import BaseVectorEnv, ClosedError, DummyVectorEnv, ShmemVectorEnv, SyncVectorEnv, nest  # noqa: E402
from vecenv.transforms import RewardSum, VecNorm  # noqa: E402

rows = pytest.mark.parametrize(
    ("backend", "copy", "form"),
    [
        (DummyVectorEnv, True, "dict"),
        (ShmemVectorEnv, False, "dict"),
        pytest.param(DummyVectorEnv, False, "array", marks=FULL),
        pytest.param(ShmemVectorEnv, True, "array", marks=FULL),
    ],
)


def same(tensors: Any, arrays: Any) -> None:
    """The same trees, with the same dtypes and values."""
    pairs = list(zip(nest.leaves(tensors), nest.leaves(arrays), strict=True))
    assert pairs
    for tensor, array in pairs:
        assert isinstance(tensor, torch.Tensor)
        back = tensor.cpu().numpy()
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)


@devices
class TestSameAsArrays:
    @rows
    def test_reset_and_step_of_all_and_of_some(self, backend: Any, device: str, form: str, copy: bool) -> None:
        with (
            backend(counting(3, form=form), copy=copy) as inner,
            DummyVectorEnv(counting(3, form=form)) as plain,
        ):
            venv = TorchVectorEnv(inner, device, reward_dtype=torch.float64)
            (obs, info), (expected, expected_info) = venv.reset(seed=5), plain.reset(seed=5)
            same(obs, expected)
            assert info.tolist() == expected_info.tolist()
            for i in range(12):
                ids = [None, [2, 0], [1], None][i % 4]
                action = torch.arange(len(ids or range(3)), device=device) + i
                where = ids if ids is None or i % 8 < 4 else torch.tensor(ids, device=device)
                got, want = venv.step(action, where), plain.step(action.cpu().numpy(), ids)
                same(got[:4], want[:4])
                assert got[4].tolist() == want[4].tolist()
                assert {leaf.device for leaf in nest.leaves(got[:4])} == {resolve_device(device)}
                done = got[2] | got[3]
                if done.any():
                    over = (torch.arange(3, device=device) if ids is None else torch.tensor(ids, device=device))[done]
                    same(venv.reset(over)[0], plain.reset(over.cpu().numpy())[0])

    def test_masks_of_resets_may_be_tensors(self, device: str) -> None:
        with DummyVectorEnv(counting(3)) as inner, DummyVectorEnv(counting(3)) as plain:
            venv = TorchVectorEnv(inner, device)
            venv.reset(), plain.reset()
            mask = torch.tensor([True, False, True], device=device)
            got = venv.step(torch.ones(3, dtype=torch.int64, device=device), reset=mask)
            same(got[0], plain.step([1, 1, 1], reset=mask.cpu().numpy())[0])
            same(venv.reset(env_id=mask)[0], plain.reset(env_id=mask.cpu().numpy())[0])

    def test_async_steps_come_as_they_finish(self, device: str) -> None:
        with TorchVectorEnv(DummyVectorEnv(counting(4), wait_num=2), device) as venv:
            venv.reset()
            venv.send(torch.arange(4, device=device))
            seen = []
            while venv.waiting_id:
                obs, _, _, _, info = venv.recv()
                ids = [row["env_id"] for row in info]
                assert obs[:, 0].tolist() == ids
                assert obs[:, 4].tolist() == ids  # the action
                seen += ids
            assert sorted(seen) == [0, 1, 2, 3]
            steps = [venv.step(torch.arange(4, device=device))]
            while venv.waiting_id:
                steps.append(venv.step(None))
            assert sorted(i for step in steps for i in step[0][:, 0].tolist()) == [0, 1, 2, 3]

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
    def test_rewards_have_the_dtype_that_was_chosen(self, device: str, dtype: torch.dtype) -> None:
        with TorchVectorEnv(DummyVectorEnv(counting(2)), device, reward_dtype=dtype) as venv:
            assert TorchVectorEnv(venv.venv, device).reward_dtype == torch.float32
            assert TorchVectorEnv(venv.venv, "cpu", reward_dtype=dtype).to(device).reward_dtype == dtype
            venv.reset()
            rew = venv.step(torch.zeros(2, dtype=torch.int64))[1]
            assert rew.dtype == dtype
            assert rew.tolist() == torch.tensor([1 / 1024, 1 + 1 / 1024], dtype=dtype).tolist()

    def test_every_dtype_of_a_space_has_a_tensor(self, device: str) -> None:
        for dtype in (np.uint8, np.int8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64, np.bool_):
            space = spaces.Box(0, 1, (2,), dtype)
            with TorchVectorEnv(DummyVectorEnv(playing(space, [np.ones(2, dtype)])), device) as venv:
                same(venv.reset()[0], np.ones((1, 2), dtype))

    def test_what_is_returned_never_changes_later(self, device: str) -> None:
        with TorchVectorEnv(ShmemVectorEnv(counting(3)), device) as venv:
            kept = [venv.reset()[0]]
            before = [kept[0].clone()]
            for i in range(6):
                obs = venv.step(torch.full((3,), i, device=device))[0]
                kept.append(obs)
                before.append(obs.clone())
            assert all(torch.equal(now, then) for now, then in zip(kept, before, strict=True))
            assert len({obs.data_ptr() for obs in kept}) == len(kept)


class TestActions:
    @devices
    @pytest.mark.parametrize("grad", [False, True])
    def test_boxes_from_any_device_with_or_without_a_gradient(self, device: str, grad: bool) -> None:
        with TorchVectorEnv(DummyVectorEnv([lambda: Writes(spaces.Box(-9, 9, (2,), np.float32))] * 2), device) as venv:
            venv.reset()
            action = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device, requires_grad=grad)
            given = action.detach().clone()
            same(venv.step(action)[0], given.cpu().numpy())
            assert torch.equal(action.detach(), given)  # the env wrote over its own copy
            same(venv.step(list(given))[0], given.cpu().numpy())
            same(venv.step(given.cpu())[0], given.cpu().numpy())
            same(venv.step(given.cpu().numpy())[0], given.cpu().numpy())

    @devices
    def test_dicts_of_tensors(self, device: str) -> None:
        space = spaces.Dict({"x": spaces.Box(-9, 9, (2,), np.float32), "n": spaces.Discrete(3)})
        with TorchVectorEnv(DummyVectorEnv([lambda: Writes(space)] * 2), device) as venv:
            venv.reset()
            x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
            same(venv.step({"x": x, "n": torch.tensor([0, 2], device=device)})[0], x.cpu().numpy())

    @devices
    def test_a_tuple_of_batches_for_a_tuple_space(self, device: str) -> None:
        space = spaces.Tuple([spaces.Discrete(9), spaces.Discrete(9)])
        with TorchVectorEnv(DummyVectorEnv([lambda: Records(space)] * 2), device) as venv:
            venv.reset()
            venv.step((torch.tensor([1, 2], device=device), torch.tensor([3, 4], device=device)))
            assert venv.get_env_attr("actions") == [[(1, 3)], [(2, 4)]]

    def test_a_wrong_number_is_refused_before_anything_is_sent(self) -> None:
        with TorchVectorEnv(DummyVectorEnv(counting(2)), "cpu") as venv:
            venv.reset()
            with pytest.raises(ValueError, match="got 3 actions for 2 envs"):
                venv.step(torch.zeros(3, dtype=torch.int64))
            assert venv.step(torch.zeros(2, dtype=torch.int64))[0][:, 2].tolist() == [1, 1]


class TestOnTheCpu:
    @pytest.mark.guarantee("G4.7")
    def test_nothing_is_copied(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with DummyVectorEnv(counting(2)) as inner:
            venv, results = TorchVectorEnv(inner, "cpu"), []
            step = inner.step
            monkeypatch.setattr(inner, "step", lambda *args: results.append(step(*args)) or results[-1])
            venv.reset()
            obs, _, terminated, truncated, _ = venv.step(torch.zeros(2, dtype=torch.int64))
            for tensor, array in zip((obs, terminated, truncated), (results[0][i] for i in (0, 2, 3)), strict=True):
                assert tensor.data_ptr() == array.ctypes.data


class TestRounds:
    @needs_sim
    def test_a_step_is_one_copy_a_leaf_and_one_wait(self) -> None:
        with TorchVectorEnv(DummyVectorEnv(counting(3, form="dict")), ACCELERATOR) as venv:
            venv.reset()
            actions = [torch.full((3,), i, device=ACCELERATOR) for i in range(4)]
            for action in actions:
                SIM.counts.clear()
                obs = venv.step(action)[0]
            counts = SIM.counts
            assert (counts["downloads"], counts["waits"]) == (1, 1)
            assert counts["uploads"] == len(list(nest.leaves(obs))) + 3

    @needs_accelerator
    @pytest.mark.parametrize("copy", [False, pytest.param(True, marks=FULL)])
    def test_envs_write_nothing_that_is_still_being_copied(self, copy: bool) -> None:
        """Nor does a second object around the same envs."""
        with (
            TorchVectorEnv(ShmemVectorEnv(counting(3, form="dict"), copy=copy), ACCELERATOR) as venv,
            DummyVectorEnv(counting(3, form="dict")) as plain,
        ):
            other = venv.to(ACCELERATOR)
            assert other is not venv
            assert other.venv is venv.venv
            got, want = [venv.reset()[0]], [plain.reset()[0]]
            for i in range(20):
                actions, one = torch.full((3,), i), (venv, other)[i % 7 == 6]
                if i % 5 == 4:
                    got.append(one.reset()[0]), want.append(plain.reset()[0])
                elif i % 5 == 3:
                    one.send(actions)
                    got.append(one.recv()[0]), want.append(plain.step(actions.numpy())[0])
                else:
                    got.append(one.step(actions)[0]), want.append(plain.step(actions.numpy())[0])
            for tensors, arrays in zip(got, want, strict=True):
                same(tensors, arrays)


class TestAround:
    def test_everything_else_is_that_of_the_vector_env(self) -> None:
        with DummyVectorEnv(counting(3)) as inner:
            venv = TorchVectorEnv(inner, "cpu")
            assert isinstance(venv, BaseVectorEnv)
            assert len(venv) == venv.env_num == 3
            assert venv.observation_space == inner.observation_space
            assert venv.action_space == inner.action_space
            assert venv.get_env_attr("env_id") == [0, 1, 2]
            assert venv.seed(3) == [3, 4, 5]
            assert venv.set_seed(0) == inner.set_seed(0)
            assert len(venv.render()) == 3
            assert venv.ready_id == [0, 1, 2]
            assert venv.device == torch.device("cpu")
            venv.close()
            assert venv.is_closed
            assert inner.is_closed
            with pytest.raises(ClosedError):
                venv.step(torch.zeros(3, dtype=torch.int64))

    def test_the_errors_of_envs_come_through_and_the_others_results_are_kept(self) -> None:
        from vecenv.testing import RaisesOnStep

        with TorchVectorEnv(DummyVectorEnv([*counting(2), RaisesOnStep]), "cpu") as venv:
            venv.reset()
            with pytest.raises(ValueError, match="boom in step") as caught:
                venv.step(torch.tensor([7, 8, 9]))
            assert caught.value.partial.obs[:, 4].tolist() == [7, 8]
            assert all(isinstance(each, torch.Tensor) for each in caught.value.partial[1:5])

    def test_a_gymnasium_vector_env_too(self) -> None:
        envs = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3)
        with TorchVectorEnv(envs, "cpu") as venv:
            obs, _ = venv.reset(seed=3)
            obs, rew, terminated, _, info = venv.step(torch.tensor([0, 1, 0]))
            assert obs.shape == (3, 4)
            assert (rew.dtype, rew.tolist()) == (torch.float32, [1, 1, 1])
            assert terminated.dtype == torch.bool
            assert isinstance(info, dict)


class TestDefaultDevice:
    """`torch.set_default_device` changes where torch makes tensors, but not the device of a vector env or policy.

    The device "meta" stands for a GPU, because its tensors cannot become arrays.
    """

    @pytest.mark.parametrize("transforms", [None, [VecNorm(), RewardSum()]])
    def test_a_vector_env_of_tensors(self, transforms: Any) -> None:
        with torch.device("meta"), TorchVectorEnv(DummyVectorEnv(counting(2)), "cpu", transforms=transforms) as venv:
            venv.reset(seed=0)
            obs, rew, *_ = venv.step(np.zeros(2, np.int64))
            assert {leaf.device.type for leaf in nest.leaves((obs, rew))} == {"cpu"}

    def test_the_test_of_exact_rows(self) -> None:
        with torch.device("meta"):
            assert rows_are_exact.__wrapped__(1, torch.device("cpu"))

    def test_a_policy_that_takes_a_tensordict(self) -> None:
        tensordict_nn = pytest.importorskip("tensordict.nn")
        net = torch.nn.Linear(4, 2)
        policy = tensordict_nn.TensorDictModule(
            lambda obs: net(obs).argmax(-1), in_keys=["observation"], out_keys=["action"]
        )
        with torch.device("meta"):
            env_fns = [lambda: gymnasium.make("CartPole-v1")] * 2
            with SyncDataCollector(env_fns, policy, frames_per_batch=4) as collector:
                assert collector.next().frames == 4

    def test_the_buffers_of_the_mlp_policy(self) -> None:
        space = spaces.Box(-1, 1, (2,))
        with torch.device("meta"):
            policy = MLPPolicy(space, space)
        assert {each.device.type for each in policy.state_dict().values()} == {"meta"}


class TestBadInput:
    def test_a_single_env_is_refused(self) -> None:
        with pytest.raises(
            TypeError, match=r"got CountingEnv; for a single env, pass DummyVectorEnv\(\[lambda: env\]\)"
        ):
            TorchVectorEnv(counting(1)[0](), "cpu")

    def test_two_around_each_other_are_refused(self) -> None:
        with DummyVectorEnv(counting(1)) as inner, pytest.raises(TypeError, match=r"use its to\(device\)"):
            TorchVectorEnv(TorchVectorEnv(inner, "cpu"), "cpu")

    def test_observations_that_cannot_be_tensors_are_refused_at_once(self) -> None:
        with DummyVectorEnv(counting(2, form="object")) as inner, pytest.raises(TypeError, match="no fixed shape"):
            TorchVectorEnv(inner, "cpu")
        ragged = [*playing(spaces.Box(0, 1, (2,)), [np.zeros(2)]), *playing(spaces.Box(0, 1, (3,)), [np.zeros(3)])]
        with DummyVectorEnv(ragged) as inner, pytest.raises(TypeError, match=r"obs of .* all envs share"):
            TorchVectorEnv(inner, "cpu")

    def test_observations_that_are_not_stacked_are_an_error_that_names_stack_obs(self) -> None:
        venv = TorchVectorEnv(DummyVectorEnv(counting(2, form="dict"), stack_obs=False), "cpu")
        with venv, pytest.raises(TypeError, match="stack_obs=True"):
            venv.reset()

    @pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, np.float32])
    def test_a_reward_dtype_that_numpy_cannot_make_is_refused(self, dtype: Any) -> None:
        with DummyVectorEnv(counting(1)) as inner, pytest.raises(TypeError, match="reward_dtype must be"):
            TorchVectorEnv(inner, "cpu", reward_dtype=dtype)

    def test_a_device_that_is_not_there_is_refused(self) -> None:
        with DummyVectorEnv(counting(1)) as inner:
            with pytest.raises(ValueError, match="no device cuda:99"):
                TorchVectorEnv(inner, "cuda:99")
            with pytest.raises(ValueError, match="no device cuda:99"):
                TorchVectorEnv(inner, "cpu").to("cuda:99")
