"""from_gymnasium: envs that a VectorEnv steps together give the same results as single envs.

Random programs compare the results (tests/fuzz/columns.py). tests/messages/envs.py has the errors.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from collector import AsyncDataCollector, SyncDataCollector
from tests.fuzz import columns
from tests.fuzz.driver import run
from tests.support.backends import FULL
from tests.support.collector_envs import arrays, assert_equal
from tests.support.gymnasium_cases import Reports, assert_same
from tests.support.simulators import N, Odd, Simulator, actions, cartpoles, counting, native, played
from vecenv import (
    ClosedError,
    DummyVectorEnv,
    EnvContractError,
    GymnasiumVectorEnv,
    VectorEnvNormObs,
    from_gymnasium,
    nest,
)
from vecenv.testing import CountingEnv, RaisesOnStep, check_vector_env

MODES = ["NextStep", "SameStep", "Disabled"]
modes = pytest.mark.parametrize("mode", MODES)


@pytest.mark.guarantee("G3.10")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", columns.Fuzz.kinds)
def test_rows_are_those_of_the_same_envs_one_by_one(kind: str) -> None:
    """Also tensors of the shape (n, 1). No later call changes a result."""
    for wide in (False, True) if kind in columns.SIMULATORS else (None,):
        run(type("Fuzz", (columns.Fuzz,), {"kinds": [kind], "forms": wide}), [0], count=2)


@modes
def test_the_contract_of_envs_that_step_together(mode: str) -> None:
    """Other checks step some envs, or need attributes of single envs, which gymnasium's classes do not return."""
    checks = ["actions_are_the_envs_own", "seeds", "rejected_calls", "errors_of_constructors"]
    checks += ["env_fns_are_called_once", "close"]
    check_vector_env(lambda fns, **options: from_gymnasium(SyncVectorEnv(fns, autoreset_mode=mode), **options), checks)


@FULL
def test_processes_of_gymnasium_that_reset_twice_are_refused() -> None:
    envs = AsyncVectorEnv([CountingEnv] * 2, shared_memory=False)
    with pytest.raises(ValueError, match="resets an env again in the step after its reset: make it with shared_memory"):
        from_gymnasium(envs)
    envs.close()


# Tensors.


def test_tensors_stay_tensors() -> None:
    torch = pytest.importorskip("torch")
    simulated = Simulator(torch)
    with from_gymnasium(simulated, tensors=True) as venv:
        for autoreset in (True, False):
            for *parts, infos in played(venv, autoreset):
                assert {type(part) for part in [*parts, infos.columns["speed"]]} == {torch.Tensor}
        assert type(simulated.actions) is torch.Tensor
    with from_gymnasium(Simulator(torch)) as venv:
        *parts, infos = played(venv, True)[-1]
        assert {type(part) for part in [*parts, infos.columns["speed"]]} == {np.ndarray}


@pytest.mark.guarantee("G4.2")
@pytest.mark.parametrize("tensors", [False, True])
def test_without_copies_the_next_call_overwrites_results(tensors: bool) -> None:
    library = pytest.importorskip("torch") if tensors else np
    with from_gymnasium(Simulator(library), tensors=tensors, copy=False) as venv:
        first = venv.reset()[0]
        before = nest.as_array(first).copy()
        venv.step(actions(0))
        assert not np.array_equal(nest.as_array(first), before)


class Isaac(gym.Env):
    """Env of many envs, as isaaclab's ManagerBasedRLEnv: a gymnasium.Env that takes and returns batches of tensors.

    It has no autoreset mode in its metadata, resets in the step, and loses last observations.
    """

    is_vector_env = True

    def __init__(self) -> None:
        self._inside = Simulator(pytest.importorskip("torch"), final="lost")
        self.num_envs, self.single_action_space = N, self._inside.single_action_space
        self.single_observation_space = gym.spaces.Dict(policy=self._inside.single_observation_space)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, N)
        self.action_space = self._inside.action_space

    def reset(self, **kwargs: Any) -> Any:
        obs, infos = self._inside.reset(**kwargs)
        return {"policy": obs}, infos

    def step(self, action: Any) -> Any:
        obs, *results, _ = self._inside.step(action.to("cpu"))
        return {"policy": obs}, *results, {"log": {"loss": 0.5}}


@pytest.mark.parametrize("tensors", [False, True])
def test_envs_that_step_together_without_being_a_vector_env(tensors: bool) -> None:
    options: Any = {"autoreset_mode": "SameStep", "has_final_obs": False, "tensors": tensors}
    wrapped = gym.wrappers.OrderEnforcing(Isaac())
    with from_gymnasium(wrapped, **options) as venv, from_gymnasium(Simulator(np)) as plain:
        for ours, theirs in zip(played(venv, True), played(plain, True), strict=True):
            np.testing.assert_array_equal(nest.as_array(ours[0]["policy"]), theirs[0])
        assert ours[-1][0]["log"] == {"loss": 0.5}


# Infos.


@pytest.mark.guarantee("G3.9")
def test_infos_are_columns_and_dicts_are_made_when_they_are_read() -> None:
    with from_gymnasium(Simulator(np)) as venv:
        assert venv.reset()[1].columns.keys() == {"speed", "goal"}
        *_, infos = venv.step(actions(0))
        np.testing.assert_array_equal(infos.columns["speed"], np.full(N, 0.5, np.float32))
        infos[2]["mine"] = 1
        for row in (infos[-2], infos.tolist()[2], [*infos][2], np.asarray(infos)[2]):
            assert row["mine"] == 1
        assert [info["env_id"] for info in infos[np.array([True, False, False, True])]] == [0, 3]
        assert (len(infos), infos.shape, infos.dtype) == (N, (N,), np.dtype(object))
        infos[1:3] = [{"a": 1}, {"b": 2}]
        assert (infos[1], infos[2]) == ({"a": 1}, {"b": 2})


def test_columns_of_some_rows() -> None:
    with from_gymnasium(Simulator(np)) as venv:
        venv.reset()
        venv.step(actions(0))
        *_, infos = venv.step(actions(1))
        done = np.array([True, False, False, False])
        assert infos[0]["goal"].tolist() == [0, 0]
        _, infos[done] = venv.reset(done)
        assert infos[0]["goal"].tolist() == [0, 1]
        venv.reset()
        ids = [3, 1, 0, 2]
        *_, infos = venv.step(actions(0), ids)
        assert infos.columns["goal"][:, 0].tolist() == [info["env_id"] for info in infos] == ids
        chosen = infos.select(np.array([2, 0]))
        assert chosen.columns["goal"][:, 0].tolist() == chosen.ids.tolist() == [0, 3]


def test_columns_of_ended_episodes() -> None:
    with from_gymnasium(Simulator(np)) as venv:
        venv.reset()
        venv.step(actions(0), autoreset=True)
        obs, *_, infos = venv.step(actions(1), autoreset=True)  # env 0 ends
        columns = infos.columns
        assert columns["_final_obs"].tolist() == columns["_final_info"].tolist() == [True, False, False, False]
        assert (obs[0].tolist(), columns["final_obs"][0].tolist()) == ([0, 0, 1], [0, 2, 0])
        assert (columns["speed"][0], columns["final_info"]["speed"][0]) == (0, 1)
    with VectorEnvNormObs(from_gymnasium(Simulator(np))) as venv:
        *_, (*_, infos) = played(venv, True)[:3]
        with pytest.raises(AttributeError, match=r"read info\[i\]"):  # the wrapper has changed the dicts
            _ = infos.columns


def test_infos_may_have_other_keys_than_text() -> None:
    """As of flycraft 0.2.0 and pgtg 0.6.1."""
    fns = [partial(Reports, {0: 1, (2,): {"x": 1}, "y": 2})] * 2
    with from_gymnasium(SyncVectorEnv(fns)) as venv, DummyVectorEnv(fns) as plain:
        for call in (lambda envs: envs.reset(), lambda envs: envs.step([0, 0])):
            (*got, infos), (*want, own_infos) = call(venv), call(plain)
            assert_same(got, want)
            assert list(infos) == list(own_infos)  # SyncVectorEnv returns numbers of numpy


# Resets, seeds and failures.


@pytest.mark.parametrize(("mode", "outer"), [("NextStep", "SameStep"), ("SameStep", "Disabled")])
def test_a_facade_may_reset_in_another_mode(mode: str, outer: str) -> None:
    logs: list[Any] = [[], []]
    for venv, log in zip((native(mode), DummyVectorEnv(counting())), logs, strict=True):
        envs = GymnasiumVectorEnv(venv, autoreset_mode=outer)
        log.append(envs.reset(seed=3))
        for _ in range(9):
            log.append(envs.step(np.zeros(N, np.int64)))
            if outer == "Disabled" and (over := log[-1][2] | log[-1][3]).any():
                log.append(envs.reset(options={"reset_mask": over}))
        envs.close()
    assert_same(*logs)


def test_seeds_and_options_of_resets() -> None:
    with native("NextStep") as venv, DummyVectorEnv(counting()) as plain:
        for seed in (lambda each: each.seed([3, 9, 1, 7]), lambda each: each.set_seed(4)):
            assert seed(venv) == seed(plain)
            np.testing.assert_array_equal(venv.step([0] * N)[0], plain.step([0] * N)[0])
        np.testing.assert_array_equal(venv.reset([2, 1], seed=[8, 6])[0], plain.reset([2, 1], seed=[8, 6])[0])
        venv.reset(options={"t": 2})
        assert venv.step([0] * N)[0][:, 2].tolist() == [3] * N
        assert venv.reset([0, 1], options={"t": 1})[0][:, 2].tolist() == [1, 1]
    with from_gymnasium(cartpoles()) as left, from_gymnasium(cartpoles()) as right:
        left.set_seed(4), right.set_seed(4)  # all envs share a random stream
        np.testing.assert_array_equal(left.step([0, 1, 0])[0], right.step([0, 1, 0])[0])


def test_after_an_exception_all_envs_have_to_be_reset() -> None:
    envs = SyncVectorEnv([partial(RaisesOnStep, 0, at=2), *counting()[1:]], autoreset_mode="Disabled")
    with from_gymnasium(envs) as venv:
        venv.reset()
        venv.step([0] * N)
        with pytest.raises(ValueError, match="boom in step"):
            venv.step([0] * N)
        assert venv.failed_id == list(range(N))
        venv.reset()
        assert venv.step([5] * N)[0][:, 4].tolist() == [5] * N


def test_an_env_that_ends_an_episode_in_same_step_mode_without_a_final_obs_breaks_the_contract() -> None:
    with from_gymnasium(Simulator(np, final="lost")) as venv:
        venv.reset()
        venv.step(actions(0), autoreset=True)
        with pytest.raises(EnvContractError, match=r"env 0: .* have no final_obs; .* pass has_final_obs=False"):
            venv.step(actions(1), autoreset=True)
        assert venv.failed_id == list(range(N))
        venv.reset()
        venv.step(actions(1), autoreset=True)


def test_odd_vector_envs() -> None:
    """As of gymnax 1.0.1, whose metadata have no autoreset mode."""
    odd = Odd(np.ones((2, 2)), mode=None)
    with from_gymnasium(odd, autoreset_mode="next_step") as venv:
        venv.reset()
        obs, rew, *_ = venv.step([0, 1])
        assert (obs.dtype, rew.shape) == (np.float32, (2, 3))
    assert odd.closed_with == {}


def test_attributes_methods_and_frames() -> None:
    with native("NextStep") as venv:
        venv.reset()
        assert venv.get_env_attr("env_id", [2, 1]) == [2, 1]
        venv.set_env_attr("length", 9)
        venv.set_env_attr("length", 8, 2)  # envs in this process
        assert venv.get_env_attr("length") == [9, 9, 8, 9]
        for frames in (venv.call("render"), venv.render()):
            assert [frame.mean() for frame in frames] == [0, 1, 2, 3]
        assert venv.metadata[0].items() <= {**CountingEnv.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}.items()
    with pytest.raises(ClosedError):
        venv.get_env_attr("length")


# Collectors.


@modes
def test_the_sync_collector_gets_the_batches_of_the_same_envs_one_by_one(mode: str) -> None:
    env_fns = [partial(gym.make, "CartPole-v1")] * 3
    with (
        SyncDataCollector(SyncVectorEnv(env_fns, autoreset_mode=mode), frames_per_batch=90) as ours,
        SyncDataCollector(DummyVectorEnv(env_fns), frames_per_batch=90) as others,
    ):
        ours.set_seed(1), others.set_seed(1)
        for _ in range(2):
            assert_equal(arrays(ours.next()), arrays(others.next()))
        assert ours.collect(n_step=6).n_collected_steps == 6


def test_a_vector_env_that_a_collector_refuses_is_still_the_callers() -> None:
    envs, made = Odd(None, mode=AutoresetMode.NEXT_STEP), Odd(None, mode=None)
    with pytest.raises(ValueError, match="use AsyncDataCollector"):
        SyncDataCollector(envs, frames_per_batch=9)
    with pytest.raises(ValueError, match="have no autoreset_mode"):
        SyncDataCollector(lambda: made, frames_per_batch=9)
    assert (envs.closed_with, made.closed_with) == (None, {})
    AsyncDataCollector(envs, frames_per_batch=9).shutdown()
    assert envs.closed_with == {}


@modes
def test_episodes_are_cut_where_envs_can_be_reset_in_them(mode: str) -> None:
    with SyncDataCollector(native(mode), frames_per_batch=4 * N, max_frames_per_traj=2) as collector:
        batch = collector.next()
        assert batch.obs[:, :, 2].tolist() == [[0, 1, 0, 1]] * N
        assert batch.truncated.tolist() == [[False, True, False, True]] * N
