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
from tests.support.cases import Records, Writes, counting  # noqa: E402
from tests.support.collector_envs import cartpoles  # noqa: E402
from tests.support.devices import devices  # noqa: E402
from vecenv import DummyVectorEnv, ShmemVectorEnv, SyncVectorEnv, nest  # noqa: E402
from vecenv.testing import RaisesOnStep  # noqa: E402
from vecenv.transforms import RewardSum, VecNorm  # noqa: E402


def same(tensors: Any, arrays: Any) -> None:
    """Check that the trees have the same dtypes and values."""
    pairs = list(zip(nest.leaves(tensors), nest.leaves(arrays), strict=True))
    assert pairs
    for tensor, array in pairs:
        assert isinstance(tensor, torch.Tensor)
        back = tensor.cpu().numpy()
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)


@devices
class TestSameAsArrays:
    def test_calls_of_all_envs_and_of_some(self, device: str) -> None:
        """Also if a second object steps the same envs. Tensors on another device than the CPU never change later."""
        later: list[Any] = []

        def check(got: Any, want: Any) -> None:
            same(tuple(got[:-1]), tuple(want[:-1]))
            assert got[-1].tolist() == want[-1].tolist()
            assert {leaf.device.type for leaf in nest.leaves(tuple(got[:-1]))} == {torch.device(device).type}

        def compare(got: Any, want: Any) -> None:
            if device == "cpu":  # in memory that workers overwrite
                check(got, want)
            else:
                later.append((got, want))

        fns = counting(3, form="dict")
        with ShmemVectorEnv(fns, copy=False, num_workers=1) as inner, DummyVectorEnv(fns) as plain:
            venv = TorchVectorEnv(inner, device, reward_dtype=torch.float64)
            other = venv.to(device)
            compare(venv.reset(seed=5), plain.reset(seed=5))
            for i in range(20):
                one = other if i % 7 == 6 else venv
                ids = [None, [2, 0], [1], None][i % 4]
                action = torch.arange(len(ids or range(3)), device=device) + i
                where = ids if ids is None or i % 8 < 4 else torch.tensor(ids, device=device)
                if i % 5 == 3:
                    one.send(action, where)
                    got = one.recv()
                else:
                    got = one.step(action, where)
                compare(got, plain.step(action.cpu().numpy(), ids))
                done = got[2] | got[3]
                if done.any():
                    over = (torch.arange(3, device=device) if ids is None else torch.tensor(ids, device=device))[done]
                    compare(one.reset(over), plain.reset(over.cpu().numpy()))
            mask = torch.tensor([True, False, True], device=device)
            actions = torch.ones(3, dtype=torch.int64, device=device)
            compare(venv.step(actions, reset=mask), plain.step([1, 1, 1], reset=mask.cpu().numpy()))
            compare(venv.reset(env_id=mask), plain.reset(env_id=mask.cpu().numpy()))
            for pair in later:
                check(*pair)

    def test_async_steps_come_as_they_finish(self, device: str) -> None:
        with TorchVectorEnv(DummyVectorEnv(counting(4), wait_num=2), device) as venv:
            venv.reset()
            for begin in (list, lambda: [venv.step(torch.arange(4, device=device))]):
                steps = begin()
                if not steps:
                    venv.send(torch.arange(4, device=device))
                while venv.waiting_id:
                    steps.append(venv.step(None))
                for obs, *_, info in steps:  # columns 0 and 4 are the env and the action
                    assert obs[:, 0].tolist() == obs[:, 4].tolist() == [row["env_id"] for row in info]
                assert sorted(i for step in steps for i in step[0][:, 0].tolist()) == [0, 1, 2, 3]

    def test_rewards_have_the_dtype_that_was_chosen(self, device: str) -> None:
        with TorchVectorEnv(DummyVectorEnv(counting(2)), device, reward_dtype=torch.float16) as venv:
            assert TorchVectorEnv(venv.venv, device).reward_dtype == torch.float32
            assert TorchVectorEnv(venv.venv, "cpu", reward_dtype=torch.float64).to(device).reward_dtype == torch.float64
            venv.reset()
            rew = venv.step(torch.zeros(2, dtype=torch.int64))[1]
            assert rew.dtype == torch.float16
            assert rew.tolist() == torch.tensor([1 / 1024, 1 + 1 / 1024], dtype=torch.float16).tolist()

    def test_actions_may_come_from_any_device_and_have_a_gradient(self, device: str) -> None:
        space = spaces.Box(-9, 9, (2,), np.float32)
        with TorchVectorEnv(DummyVectorEnv([lambda: Writes(space)] * 2), device) as venv:
            venv.reset()
            action = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device, requires_grad=True)
            given = action.detach().clone()
            same(venv.step(action)[0], given.cpu().numpy())
            assert torch.equal(action.detach(), given), "the env wrote over its own copy"
            for form in (list(given), given, given.cpu(), given.cpu().numpy()):
                same(venv.step(form)[0], np.array([[1, 2], [3, 4]], np.float32))

    def test_actions_may_be_trees(self, device: str) -> None:
        space = spaces.Dict(x=spaces.MultiDiscrete([9, 9]), n=spaces.Tuple([spaces.Discrete(3)]))
        action = {"x": torch.tensor([[1, 2], [3, 4]], device=device), "n": (torch.tensor([0, 2], device=device),)}
        with TorchVectorEnv(DummyVectorEnv([lambda: Records(space)] * 2), device) as venv:
            venv.reset()
            venv.step(action)
            taken = [actions[0] for actions in venv.get_env_attr("actions")]
        assert [(row["x"].tolist(), row["n"]) for row in taken] == [([1, 2], (0,)), ([3, 4], (2,))]


@pytest.mark.guarantee("G4.7")
def test_on_the_cpu_nothing_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    with DummyVectorEnv(counting(2)) as inner:
        venv, results = TorchVectorEnv(inner, "cpu"), []
        step = inner.step
        monkeypatch.setattr(inner, "step", lambda *args: results.append(step(*args)) or results[-1])
        venv.reset()
        obs, _, terminated, truncated, _ = venv.step(torch.zeros(2, dtype=torch.int64))
        for tensor, array in zip((obs, terminated, truncated), (results[0][i] for i in (0, 2, 3)), strict=True):
            assert tensor.data_ptr() == array.ctypes.data


def test_the_errors_of_envs_come_through_and_the_others_results_are_kept() -> None:
    with TorchVectorEnv(DummyVectorEnv([*counting(2), RaisesOnStep]), "cpu") as venv:
        venv.reset()
        with pytest.raises(ValueError, match="boom in step") as caught:
            venv.step(torch.tensor([7, 8, 9]))
        assert caught.value.partial.obs[:, 4].tolist() == [7, 8]
        assert all(isinstance(each, torch.Tensor) for each in caught.value.partial[1:5])


def test_a_gymnasium_vector_env_too() -> None:
    envs = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3)
    with TorchVectorEnv(envs, "cpu") as venv:
        venv.reset(seed=3)
        obs, rew, terminated, _, info = venv.step(torch.tensor([0, 1, 0]))
        assert obs.shape == (3, 4)
        assert (rew.dtype, rew.tolist()) == (torch.float32, [1, 1, 1])
        assert terminated.dtype == torch.bool
        assert isinstance(info, dict)


def test_the_default_device_of_torch_is_not_that_of_a_vector_env_or_a_policy() -> None:
    """`torch.set_default_device` changes where torch makes tensors.

    The device "meta" stands for a GPU, because its tensors cannot become arrays.
    """
    tensordict_nn = pytest.importorskip("tensordict.nn")
    net, space = torch.nn.Linear(4, 2), spaces.Box(-1, 1, (2,))
    policy = tensordict_nn.TensorDictModule(lambda x: net(x).argmax(-1), in_keys=["observation"], out_keys=["action"])
    with torch.device("meta"):
        for transforms in (None, [VecNorm(), RewardSum()]):
            with TorchVectorEnv(DummyVectorEnv(counting(2)), "cpu", transforms=transforms) as venv:
                venv.reset(seed=0)
                obs, rew, *_ = venv.step(np.zeros(2, np.int64))
                assert {leaf.device.type for leaf in nest.leaves((obs, rew))} == {"cpu"}
        for options in ({}, {"episode_seeds": [(i, i) for i in range(5)]}):
            with SyncDataCollector(DummyVectorEnv(cartpoles(2)), policy, frames_per_batch=4, **options) as collector:
                assert collector.next().frames == 4
        assert rows_are_exact.__wrapped__(1, torch.device("cpu"))
        assert {each.device.type for each in MLPPolicy(space, space).state_dict().values()} == {"meta"}
