"""from_gymnasium: a gymnasium VectorEnv gives the same results as single envs."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from collector import AsyncDataCollector, EpisodeSeeds, SyncDataCollector, rollout
from tests.support.backends import FULL
from tests.support.gymnasium_cases import Foreign, Reports, assert_same
from vecenv import (
    BaseVectorEnv,
    ClosedError,
    DummyVectorEnv,
    EnvContractError,
    GymnasiumVectorEnv,
    ObservationError,
    VectorEnvWrapper,
    from_gymnasium,
    nest,
)
from vecenv.testing import CHECKS, CountingEnv, RaisesOnStep, check_vector_env
from vecenv.transforms import StepCounter

N = 4
MODES = ["NextStep", "SameStep", "Disabled"]
modes = pytest.mark.parametrize("mode", MODES)

CAN_DO = {"actions_are_the_envs_own", "seeds", "rejected_calls", "errors_of_constructors", "env_fns_are_called_once"}
CAN_DO |= {"close"}
"""Checks that step all envs together. Other checks step or wait for some envs, or need attributes and infos of single
envs, which gymnasium's classes do not return.
"""


def counting(form: str = "array", infos: bool = True) -> list[Any]:
    return [partial(CountingEnv, i, length=3 + i, form=form, infos=infos) for i in range(N)]


def native(mode: str, form: str = "array", infos: bool = True, **options: Any) -> Any:
    return from_gymnasium(SyncVectorEnv(counting(form, infos), autoreset_mode=mode), **options)


def cartpoles(n: int = 3) -> VectorEnv:
    return gym.make_vec("CartPole-v1", n, vectorization_mode="vector_entry_point")


def drive(venv: Any, how: str, steps: int = 12) -> list[Any]:
    """Return the rows of every round, with infos. `how` says how finished envs are reset."""
    log: list[Any] = [venv.reset(seed=3)]
    done = np.zeros(N, np.bool_)
    for t in range(steps):
        actions = [(7 * i + t) % 100 for i in range(N)]
        if how == "reset":
            if done.any():
                log.append(venv.reset(done))
            log.append(venv.step(actions))
        elif how == "step":
            log.append(venv.step(actions, reset=done))
        else:
            log.append(venv.step(actions, autoreset=True))
        done = log[-1][2] | log[-1][3]
    assert sum(np.any(step[2]) for step in log if len(step) == 5) > 1
    return log


WAYS = {
    "NextStep": [("reset", True), ("autoreset", True), ("step", True), ("step", False)],
    "SameStep": [("reset", True), ("autoreset", True), ("reset", False), ("autoreset", False)],
    "Disabled": [("reset", True), ("autoreset", True)],
}
"""Ways to drive the envs of a mode, with `resets_by_id` or without."""


@pytest.mark.parametrize("form", ["array", "dict"])
@modes
def test_rows_are_those_of_the_same_envs_one_by_one(mode: str, form: str) -> None:
    for how, by_id in WAYS[mode]:
        with native(mode, form, resets_by_id=by_id) as venv, DummyVectorEnv(counting(form)) as plain:
            assert isinstance(venv, BaseVectorEnv)
            assert_same(drive(venv, how), drive(plain, how))
        for final in ["dict", "list"] if mode == "SameStep" else ["dict"]:
            ours = GymnasiumVectorEnv(DummyVectorEnv(counting(form)), autoreset_mode=mode, final_info_format=final)
            with from_gymnasium(ours, resets_by_id=by_id) as venv, DummyVectorEnv(counting(form)) as plain:
                assert_same(drive(venv, how), drive(plain, how))


@FULL
def test_processes_of_gymnasium_and_those_that_reset_twice_which_are_refused() -> None:
    """Without shared memory, workers forget a reset, and reset again in the next step."""
    envs = AsyncVectorEnv(counting(), shared_memory=False, context="spawn", autoreset_mode="Disabled")
    with from_gymnasium(envs) as venv, DummyVectorEnv(counting()) as plain:
        assert_same(drive(venv, "reset"), drive(plain, "reset"))
    envs = AsyncVectorEnv(counting(), shared_memory=False, context="spawn")
    with pytest.raises(ValueError, match="resets an env again in the step after its reset: make it with shared_memory"):
        from_gymnasium(envs)
    envs.reset(seed=0)
    for _ in range(3):
        envs.step(np.zeros(N, np.int64))
    assert envs.reset()[0][0].tolist()[1:3] == [1, 0]
    assert envs.step(np.zeros(N, np.int64))[0][0].tolist()[1:3] == [2, 0]  # the next episode was reset, not stepped
    envs.close()


@modes
def test_the_contract_of_envs_that_step_together(mode: str) -> None:
    assert set(CHECKS) >= CAN_DO

    def factory(env_fns: Any, **options: Any) -> Any:
        return from_gymnasium(SyncVectorEnv(env_fns, autoreset_mode=mode), **options)

    check_vector_env(factory, sorted(CAN_DO))


def test_what_it_returns_never_changes() -> None:
    with native("SameStep", "dict") as venv:
        log = drive(venv, "reset", 4)
        kept = [nest.map(np.copy, each[:-1]) for each in log]
        drive(venv, "reset", 6)
        for now, then in zip(log, kept, strict=True):
            np.testing.assert_equal(now[:-1], then)


# Native vector envs.


def test_cartpoles_in_numpy_are_reset_in_the_next_step_of_the_others() -> None:
    bare, ends = cartpoles(), 0
    with from_gymnasium(cartpoles()) as venv:
        np.testing.assert_array_equal(venv.reset(seed=5)[0], bare.reset(seed=5)[0])
        done = np.zeros(3, np.bool_)
        for t in range(120):
            action = np.array([0, 1, t % 2])
            obs, rew, terminated, truncated, info = venv.step(action, reset=done)
            expected = bare.step(np.where(done, 0, action))
            np.testing.assert_array_equal(obs, expected[0])
            np.testing.assert_array_equal(rew, expected[1])
            assert rew.tolist() == (~done).astype(float).tolist()
            np.testing.assert_array_equal(terminated, expected[2])
            assert [row["env_id"] for row in info] == [0, 1, 2]
            done = terminated | truncated
            ends += int(done.sum())
        assert ends > 10
        assert repr(venv) == "NativeVectorEnv(CartPoleVectorEnv, 3 envs)"
    bare.close()


def test_what_envs_that_step_together_cannot_do_is_an_error_that_says_what_to_do() -> None:
    with from_gymnasium(cartpoles()) as venv:
        venv.reset(seed=0)
        before = venv.get_env_attr("state", 0)[0].copy()
        with pytest.raises(ValueError, match=r"steps its 3 envs together: .* got actions for \[0, 2\] only"):
            venv.step([0, 1], [0, 2])
        advice = "pass no ids, or let the next step reset the envs whose episode is over"
        with pytest.raises(ValueError, match=rf"is not known to reset only some envs .* got reset\(\[1\]\): {advice}"):
            venv.reset(1)
        with pytest.raises(ValueError, match=r"whose episode ended in the previous step: \[\], got reset=\[1\]"):
            venv.step([0, 1, 0], reset=[1])
        with pytest.raises(TypeError, match="cannot reset an env in the round of its last step"):
            venv.step([0, 1, 0], autoreset=True)
        with pytest.raises(ValueError, match=r"the action for env 0 is 'left', which does not fit Discrete\(2\)"):
            venv.step(["left", 1, 0])
        with pytest.raises(TypeError, match=r"takes only seed and options, got \['speed'\]"):
            venv.reset(speed=1)
        np.testing.assert_array_equal(venv.get_env_attr("state", 0)[0], before)
        assert venv.failed_id == []
        venv.step([0, 1, 0])
    with native("Disabled") as venv:
        with pytest.raises(RuntimeError, match="first reset of SyncVectorEnv must be of all envs"):
            venv.reset([1])
        venv.reset()
        with pytest.raises(ValueError, match=r"cannot reset some of them instead: call reset\(\[1\]\), then step"):
            venv.step([0] * N, reset=[1])
    with native("Disabled", resets_by_id=False) as venv:
        venv.reset()
        with pytest.raises(ValueError, match=r"got reset\(\[0\]\): pass no ids; if it does, pass resets_by_id"):
            venv.reset([0])


def test_infos_may_have_other_keys_than_text() -> None:
    fns = [partial(Reports, {0: 1, (2,): {"x": 1}, "y": 2})] * 2
    with from_gymnasium(SyncVectorEnv(fns)) as venv, DummyVectorEnv(fns) as plain:
        assert_same(venv.reset(), plain.reset())
        assert_same(venv.step([0, 0]), plain.step([0, 0]))


def test_infos_without_an_entry_per_env_belong_to_each_env() -> None:
    shared = {"time": 1.5, "log": {"loss": 0.5, "name": "ab"}, "three": np.arange(3), "zero": np.array(7), "none": None}
    with from_gymnasium(Odd(np.ones((2, 2)), {"x": np.array([4, 5]), "_x": [False, True], **shared})) as venv:
        venv.reset()
        for info, own in zip(venv.step([0, 1])[4], ({}, {"x": 5}), strict=True):
            assert_same({key: value for key, value in info.items() if key != "env_id"}, own | shared)


@pytest.mark.parametrize("outer", MODES)
@modes
def test_facades_of_them_reset_as_these_do_or_are_refused(mode: str, outer: str) -> None:
    if outer == "NextStep" and mode != "NextStep":
        for venv in (native(mode), VectorEnvWrapper(native(mode))):
            with venv, pytest.raises(ValueError, match=f"cannot reset them as autoreset_mode .*{outer}"):
                GymnasiumVectorEnv(venv, autoreset_mode=outer)
        return
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


def test_native_envs_that_reset_in_the_next_step_only_are_refused_by_facades_at_once() -> None:
    """TorchRL's GymWrapper, which takes SAME_STEP and DISABLED, would fail at the first end of an episode."""
    for outer in ("Disabled", "SameStep"):
        with (
            from_gymnasium(cartpoles()) as venv,
            pytest.raises(ValueError, match=f"autoreset_mode {outer} needs: make"),
        ):
            GymnasiumVectorEnv(venv, autoreset_mode=outer)


def test_an_episode_that_is_over_is_not_stepped() -> None:
    for mode in MODES:
        with native(mode) as venv:
            venv.reset()
            for _ in range(3):
                venv.step([0] * N)
            if mode == "NextStep":
                with pytest.raises(ValueError, match=r"cannot reset with seed or options, got them for envs \[0\]"):
                    venv.send([0] * N, reset=[0], seed=7)
            with pytest.raises(RuntimeError, match="env 0 has not been reset, or its episode is over"):
                venv.step([0] * N)
            venv.reset([0])
            assert venv.step([0] * N)[0][0].tolist()[1:3] == [1, 1]


def test_a_step_may_reset_some_envs_and_those_that_end() -> None:
    logs: list[Any] = [[], []]
    for venv, log in zip((native("NextStep"), DummyVectorEnv(counting())), logs, strict=True):
        with venv:
            log.append(venv.reset(seed=3))
            over = np.zeros(N, np.bool_)
            for t in range(9):
                ends = t % 2 == 1
                log.append(venv.step([t] * N, reset=over, autoreset=ends))
                over = np.zeros(N, np.bool_) if ends else log[-1][2] | log[-1][3]
    assert_same(*logs)


def test_seeds_and_options_of_resets() -> None:
    with native("NextStep") as venv, DummyVectorEnv(counting()) as plain:
        assert venv.seed([3, 9, 1, 7]) == plain.seed([3, 9, 1, 7])
        np.testing.assert_array_equal(venv.step([0] * N)[0], plain.step([0] * N)[0])
        assert venv.set_seed(4) == plain.set_seed(4)
        np.testing.assert_array_equal(venv.step([0] * N)[0], plain.step([0] * N)[0])
        np.testing.assert_array_equal(venv.reset([2, 1], seed=[8, 6])[0], plain.reset([2, 1], seed=[8, 6])[0])
    with from_gymnasium(cartpoles()) as left, from_gymnasium(cartpoles()) as right:
        left.set_seed(4), right.set_seed(4)  # all envs share a random stream
        np.testing.assert_array_equal(left.step([0, 1, 0])[0], right.step([0, 1, 0])[0])
        with pytest.raises(ValueError, match="is not known to reset only some envs"):
            left.seed([1, None, 2])
    with native("SameStep") as venv:
        venv.reset()
        with pytest.raises(TypeError, match=r"cannot seed an env in the round of its last step \(autoreset=\[5, -1, 6"):
            venv.step([0] * N, autoreset=[5, -1, 6, 7])
        assert venv.step([0] * N, autoreset=[-1] * N)[0][:, 2].tolist() == [1] * N
    with native("NextStep") as venv:
        venv.reset(options={"t": 2})
        assert venv.step([0] * N)[0][:, 2].tolist() == [3] * N
        assert venv.reset([0, 1], options={"t": 1})[0][:, 2].tolist() == [1, 1]


def test_attributes_methods_and_frames() -> None:
    with native("NextStep") as venv:
        venv.reset()
        assert venv.get_env_attr("env_id", [2, 1]) == [2, 1]
        venv.set_env_attr("length", 9)
        assert venv.get_env_attr("length") == [9] * N
        venv.set_env_attr("length", 8, 2)  # envs in this process
        assert venv.get_env_attr("length") == [9, 9, 8, 9]
        assert (
            [frame.mean() for frame in venv.call("render")] == [frame.mean() for frame in venv.render()] == [0, 1, 2, 3]
        )
        with pytest.raises(NotImplementedError, match="SyncVectorEnv has no get_state of single envs"):
            venv.get_state()
        assert venv.metadata[0].items() <= {**CountingEnv.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}.items()
    with pytest.raises(ClosedError):
        venv.get_env_attr("length")
    with from_gymnasium(SyncVectorEnv([partial(gym.make, "CartPole-v1")] * 2)) as venv:
        assert [spec.id for spec in venv.get_env_attr("spec")] == ["CartPole-v1"] * 2
    with from_gymnasium(cartpoles()) as venv, pytest.raises(AttributeError, match="it has no set_attr"):
        venv.set_env_attr("gravity", 3)


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


class Odd(VectorEnv):
    """VectorEnv that returns values from its arguments."""

    def __init__(
        self, obs: Any, infos: dict[str, Any], over: bool = False, mode: Any = AutoresetMode.SAME_STEP
    ) -> None:
        self.num_envs, self.obs, self.infos, self.over = 2, obs, infos, over
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        self.single_observation_space = spaces.Box(0, 9, (2,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.closed_with: Any = None

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((2, 2), np.float32), {}

    def step(self, actions: Any) -> Any:
        return self.obs, np.ones((2, 3)), np.array([self.over, False]), np.zeros(2, np.bool_), self.infos

    def close(self, **kwargs: Any) -> None:
        self.closed_with = kwargs


class InAnotherLibrary(gym.vector.VectorWrapper):
    """Wrapper of a gymnasium VectorEnv that returns foreign arrays."""

    def reset(self, **kwargs: Any) -> Any:
        obs, infos = self.env.reset(**kwargs)
        return Foreign(obs), infos

    def step(self, actions: Any) -> Any:
        *arrays, infos = self.env.step(actions)
        return *map(Foreign, arrays), infos


def test_arrays_of_other_libraries() -> None:
    for how in ("step", "reset", "autoreset"):
        envs = InAnotherLibrary(SyncVectorEnv(counting(infos=False)))
        with from_gymnasium(envs) as venv, DummyVectorEnv(counting(infos=False)) as plain:
            assert_same(drive(venv, how), drive(plain, how))


def test_odd_vector_envs() -> None:
    with pytest.raises(TypeError, match=r"takes a gymnasium\.vector\.VectorEnv"):
        from_gymnasium(gym.make("CartPole-v1"))
    with pytest.raises(ValueError, match="have no autoreset_mode: pass autoreset_mode="):
        from_gymnasium(Odd(None, {}, mode=None))
    odd = Odd(np.ones((2, 2)), {}, mode=None)
    with from_gymnasium(odd, autoreset_mode="next_step") as venv:
        venv.reset()
        obs, rew, *_ = venv.step([0, 1])
        assert (obs.dtype, rew.shape) == (np.float32, (2, 3))
    assert odd.closed_with == {}
    text = Odd(None, {})
    text.single_observation_space = spaces.Text(3)  # type: ignore[assignment]
    with pytest.raises(TypeError, match="must be arrays of a fixed shape"):
        from_gymnasium(text)
    assert text.closed_with is None
    for obs, infos, over, error, message in (
        (np.ones((2, 3)), {}, False, ObservationError, r"obs is float64 \(2, 3\).*the space has float32 \(2,\)"),
        (np.ones((2, 2)), {}, True, Exception, "env 0: Odd ended an episode in SAME_STEP mode, but its infos have no"),
    ):
        with from_gymnasium(Odd(obs, infos, over)) as venv:
            venv.reset()
            with pytest.raises(error, match=message):
                venv.step([0, 1])


# Collectors.


@modes
def test_the_sync_collector_gets_the_batches_of_the_same_envs_one_by_one(mode: str) -> None:
    env_fns = [partial(gym.make, "CartPole-v1")] * 3
    with (
        SyncDataCollector(SyncVectorEnv(env_fns, autoreset_mode=mode), frames_per_batch=90) as ours,
        SyncDataCollector(DummyVectorEnv(env_fns), frames_per_batch=90) as others,
    ):
        ours.set_seed(1), others.set_seed(1)
        for _ in range(3):
            left, right = ours.next(), others.next()
            for name in ("obs", "action", "reward", "terminated", "truncated", "traj_ids"):
                np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
            np.testing.assert_array_equal(left.next.obs, right.next.obs)
        assert ours.collect(n_step=6).n_collected_steps == 6
        with pytest.raises(ValueError, match=r"n_episode .* steps all envs together: pass n_step"):
            ours.collect(n_episode=3)
        assert ours.next().frames == 90


@FULL
def test_the_async_collector_takes_native_vector_envs() -> None:
    with AsyncDataCollector(cartpoles(), frames_per_batch=200) as collector:
        collector.set_seed(0)
        for _ in range(3):
            batch = collector.next()
            assert batch.frames == 200
            ends = batch.terminated | batch.truncated
            # Within an episode, each step starts from the last step's observation, and no step is a reset.
            inner = ~ends[:-1] & (batch.traj_ids[:-1] == batch.traj_ids[1:])
            np.testing.assert_array_equal(batch.next.obs[:-1][inner], batch.obs[1:][inner])
            assert (batch.reward == 1).all()
            assert (np.abs(batch.next.obs[ends & batch.terminated]).max(1) > 0.2).all()


def test_each_collector_says_which_vector_envs_it_takes() -> None:
    with pytest.raises(ValueError, match="use AsyncDataCollector"):
        SyncDataCollector(cartpoles(), frames_per_batch=9)
    message = "make it with autoreset_mode SAME_STEP; or pass from_gymnasium\\(envs, resets_by_id=True\\) if its reset"
    with native("Disabled", resets_by_id=False) as venv, pytest.raises(ValueError, match=message):
        SyncDataCollector(venv, frames_per_batch=8)
    seeds = EpisodeSeeds(0, numbers=range(3))
    for mode in MODES:
        with (
            native(mode) as venv,
            pytest.raises(ValueError, match="steps or seeds all envs together, but episode_seeds"),
        ):
            SyncDataCollector(venv, frames_per_batch=8, episode_seeds=seeds)
    with pytest.raises(ValueError, match="use SyncDataCollector, or autoreset_mode NEXT_STEP"):
        AsyncDataCollector(SyncVectorEnv(counting(), autoreset_mode="SameStep"), frames_per_batch=9)


@FULL
def test_a_vector_env_that_a_collector_refuses_is_still_the_callers() -> None:
    envs, made = Odd(None, {}, mode=AutoresetMode.NEXT_STEP), Odd(None, {}, mode=None)
    with pytest.raises(ValueError, match="use AsyncDataCollector"):
        SyncDataCollector(envs, frames_per_batch=9, transforms=StepCounter())
    with pytest.raises(ValueError, match="have no autoreset_mode"):
        SyncDataCollector(lambda: made, frames_per_batch=9)
    gc.collect()
    assert envs.closed_with is None
    assert made.closed_with == {}
    with AsyncDataCollector(envs, frames_per_batch=9):
        assert envs.closed_with is None
    assert envs.closed_with == {}


def test_episodes_are_cut_where_envs_can_be_reset_in_them() -> None:
    for source in (cartpoles(), SyncVectorEnv(counting())):
        with pytest.raises(ValueError, match="in the middle of an episode, as max_frames_per_traj demands"):
            AsyncDataCollector(source, frames_per_batch=9, max_frames_per_traj=2)
    with native("SameStep", resets_by_id=False) as venv, pytest.raises(ValueError, match="in the middle of an episode"):
        SyncDataCollector(venv, frames_per_batch=8, max_frames_per_traj=2)
    for mode in MODES:
        with SyncDataCollector(native(mode), frames_per_batch=4 * N, max_frames_per_traj=2) as collector:
            batch = collector.next()
            assert batch.obs[:, :, 2].tolist() == [[0, 1, 0, 1]] * N
            assert batch.truncated.tolist() == [[False, True, False, True]] * N


@modes
def test_random_policies_play_legal_moves_of_multi_agent_games(mode: str) -> None:
    pytest.importorskip("pettingzoo")
    from tests.support.agent_envs import Masked
    from vecenv import ParallelVectorEnv, flatten_agents

    games = ParallelVectorEnv([Masked] * 2, backend="dummy", autoreset_mode=mode, check_legal=True)
    with SyncDataCollector(flatten_agents(games, mask_in_obs=True), frames_per_batch=120) as collector:
        batch = collector.next()
    games = ParallelVectorEnv([Masked] * 2, backend="dummy", autoreset_mode=mode, check_legal=True)
    with from_gymnasium(flatten_agents(games, mask_in_obs=True)) as venv:  # an illegal move would raise
        assert rollout(venv, 9, break_when_any_done=False).frames == 9 * 6
    masks = batch.obs["action_mask"]
    alive = batch.obs["observation"].any(-1)  # the row of a dead agent has zeros
    assert 0 < alive.mean() < 1
    assert (masks[alive].sum(-1) == 2).all()
    assert np.take_along_axis(masks, batch.action[..., None], -1)[alive].all()


class WithoutFinalObs(SyncVectorEnv):
    def step(self, actions: Any) -> Any:
        *rows, infos = super().step(actions)
        infos.pop("final_obs", None)
        return *rows, infos


class LastOfAll(SyncVectorEnv):
    """Return the last observations of all envs: in each step, as gymnax 1.0.1, or if one ends, as ALE 0.12.1."""

    def __init__(self, key: str, always: bool, **options: Any) -> None:
        super().__init__(counting(infos=False), autoreset_mode="SameStep", **options)
        self.key, self.always = key, always

    def step(self, actions: Any) -> Any:
        obs, *rest, infos = super().step(actions)
        last = infos.pop("final_obs", obs)
        infos = {key: value for key, value in infos.items() if "final" not in key}
        if self.always or last is not obs:
            infos[self.key] = np.array([now if row is None else row for now, row in zip(obs, last, strict=True)])
        return obs, *rest, infos


@pytest.mark.parametrize(("key", "always"), [("final_observation", True), ("final_obs", False)])
def test_infos_have_a_last_observation_only_of_envs_whose_episode_ended(key: str, always: bool) -> None:
    with from_gymnasium(LastOfAll(key, always)) as venv, DummyVectorEnv(counting(infos=False)) as plain:
        assert_same(drive(venv, "reset"), drive(plain, "reset"))
    with from_gymnasium(LastOfAll(key, always)) as venv, DummyVectorEnv(counting(infos=False)) as plain:
        assert_same(drive(venv, "autoreset"), drive(plain, "autoreset"))


def test_an_env_that_ends_an_episode_in_same_step_mode_without_a_final_obs_breaks_the_contract() -> None:
    with from_gymnasium(WithoutFinalObs(counting(), autoreset_mode="SameStep")) as venv:
        venv.reset()
        for _ in range(2):
            venv.step([0] * N)
        with pytest.raises(EnvContractError, match=r"env 0: .* have no final_obs"):
            venv.step([0] * N)
