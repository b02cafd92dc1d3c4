"""from_gymnasium around simulators that return columns: arrays or tensors (n, ...), with infos in the same form."""

from __future__ import annotations

import tracemalloc
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.support.gymnasium_cases import assert_same
from tests.support.simulators import Alone, Simulator, count_calls
from vecenv import (
    DummyVectorEnv,
    EnvContractError,
    GymnasiumVectorEnv,
    ObservationError,
    VectorEnvNormObs,
    from_gymnasium,
    nest,
)

N = 4
ROUNDS = 12
LIBRARIES = ["numpy", "torch", pytest.param("jax.numpy", marks=pytest.mark.full)]
libraries = pytest.mark.parametrize("library", LIBRARIES)
finals = pytest.mark.parametrize("final", ["masked", "whole", "old"])


def simulator(library: str, n: int = N, **options: Any) -> Simulator:
    return Simulator(pytest.importorskip(library), n, **options)


def alone() -> DummyVectorEnv:
    return DummyVectorEnv([partial(Alone, i) for i in range(N)])


def actions(t: int) -> np.ndarray:
    return np.linspace(-1, 1, 2 * N, dtype=np.float32).reshape(N, 2) / (1 + t)


def played(venv: Any, autoreset: bool) -> list[Any]:
    log: list[Any] = [venv.reset()]
    for t in range(ROUNDS):
        log.append(venv.step(actions(t), autoreset=autoreset))
        done = log[-1][2] | log[-1][3]
        if done.any() and not autoreset:
            log.append(venv.reset(np.flatnonzero(nest.as_array(done))))
    return log


def as_arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_arrays(each) for key, each in value.items()}
    return nest.as_array(value).copy() if hasattr(value, "__dlpack__") else value


def on_host(log: list[Any]) -> list[Any]:
    """Return results with arrays, and with the dicts of all infos."""
    return [(*map(as_arrays, each[:-1]), [as_arrays(info) for info in each[-1]]) for each in log]


def without(infos: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in info.items() if key not in names} for info in infos]


@pytest.mark.parametrize("autoreset", [False, True])
@finals
@libraries
def test_rows_are_those_of_the_same_envs_one_by_one(library: str, final: str, autoreset: bool) -> None:
    with from_gymnasium(simulator(library, final=final)) as venv, alone() as plain:
        ours, theirs = on_host(played(venv, autoreset)), on_host(played(plain, autoreset))
    for one, other in zip(ours, theirs, strict=True):
        assert_same(one[:-1], other[:-1])
        if library == "jax.numpy":  # has no int64
            continue
        if final == "old":  # without a final_info, the last info is the first info of the next episode
            names = ["final_info"] if autoreset else ["speed", "goal"]
            assert_same(without(one[-1], *names), without(other[-1], *names))
        else:
            assert_same(one[-1], other[-1])


@libraries
def test_tensors_stay_tensors(library: str) -> None:
    simulated = simulator(library)
    with from_gymnasium(simulated, tensors=True) as venv, from_gymnasium(simulator(library)) as arrays:
        if library == "numpy":
            with pytest.raises(ObservationError, match=r"obs is a ndarray, but tensors=True needs tensors"):
                venv.reset()
            return
        for autoreset in (True, False):
            for ours, theirs in zip(played(venv, autoreset), played(arrays, autoreset), strict=True):
                kinds = {type(part) for part in ours[:-1]}
                assert len(kinds) == 1
                assert not isinstance(ours[0], np.ndarray)
                for one, other in zip(ours[:-1], theirs[:-1], strict=True):
                    np.testing.assert_array_equal(nest.as_array(one), other)
                assert ours[-1].columns.keys() == theirs[-1].columns.keys()
                assert {type(ours[-1].columns["speed"])} == kinds
                assert type(theirs[-1].columns["speed"]) is np.ndarray
        assert type(simulated.actions) is type(ours[0])
        with pytest.raises(ValueError, match="without tensors=True"):
            GymnasiumVectorEnv(venv)


@pytest.mark.guarantee("G4.2")
@libraries
def test_results_belong_to_the_caller(library: str) -> None:
    for tensors in {False, library != "numpy"}:
        with from_gymnasium(simulator(library), tensors=tensors) as venv:
            log = played(venv, True)
            later = on_host(log)
        with from_gymnasium(simulator(library), tensors=tensors) as venv:
            at_once = [on_host([each])[0] for each in rounds(venv)]
        for one, other in zip(later, at_once, strict=True):
            assert_same(one, other)
        with from_gymnasium(simulator(library), tensors=tensors, copy=False) as venv:
            first = venv.reset()
            before = nest.as_array(first[0]).copy()
            venv.step(actions(0))
            assert (nest.as_array(first[0]) == before).all() == (library == "jax.numpy")  # JAX has no buffers


def rounds(venv: Any) -> Any:
    yield venv.reset()
    for t in range(ROUNDS):
        yield venv.step(actions(t), autoreset=True)


@pytest.mark.parametrize(("final", "reads"), [("old", 0), ("lost", 0), ("masked", 1)])
def test_a_round_of_tensors_waits_for_no_device(final: str, reads: int) -> None:
    """Only a simulator that returns `final_obs` in some steps makes vecenv look whether an episode has ended."""
    torch = pytest.importorskip("torch")
    names = ("item", "__bool__", "__float__", "__int__", "cpu", "numpy", "tolist", "__array__", "nonzero", "to")
    found: list[str] = []

    class OnDevice(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function.__name__ in names:
                found.append(function.__name__)
            return super().__torch_function__(function, types, args, kwargs or {})

    class Far(Simulator):
        def _returned(self, name: str, values: np.ndarray) -> Any:
            return super()._returned(name, values).as_subclass(OnDevice)

    with from_gymnasium(Far(torch, final=final), tensors=True, has_final_obs=final != "lost") as venv:
        venv.reset()
        for t in range(ROUNDS):
            found.clear()
            obs, *_, infos = venv.step(torch.as_tensor(actions(t)), autoreset=True)
            assert isinstance(obs, OnDevice)
            assert isinstance(infos.columns["speed"], OnDevice)
            ended = "_final_obs" in infos.columns
            assert found == ([] if ended else ["__bool__"] * reads)
        assert infos[0]["env_id"] == 0


@pytest.mark.guarantee("G3.9")
def test_infos_are_columns_and_dicts_are_made_when_they_are_read() -> None:
    with from_gymnasium(simulator("numpy")) as venv:
        _, infos = venv.reset()
        assert infos.columns.keys() == {"speed", "goal"}
        *_, infos = venv.step(actions(0))
        np.testing.assert_array_equal(infos.columns["speed"], np.full(N, 0.5, np.float32))
        assert infos[2] is infos[2]
        infos[2]["mine"] = 1
        assert (
            infos[-2]["mine"] == infos.tolist()[2]["mine"] == [*infos][2]["mine"] == np.asarray(infos)[2]["mine"] == 1
        )
        assert [info["env_id"] for info in infos[np.array([True, False, False, True])]] == [0, 3]
        assert (len(infos), infos.shape, infos.dtype) == (N, (N,), np.dtype(object))
        infos[1:3] = [{"a": 1}, {"b": 2}]
        assert (infos[1], infos[2]) == ({"a": 1}, {"b": 2})
        *_, infos = venv.step(actions(1))
        done = np.array([True, False, False, False])
        assert infos[0]["goal"].tolist() == [0, 0]
        _, infos[done] = venv.reset(done)
        assert infos[0]["goal"].tolist() == [0, 1]
        assert venv.reset()[1].columns["goal"].shape == (N, 2)


def test_columns_of_ended_episodes() -> None:
    with from_gymnasium(simulator("numpy")) as venv:
        venv.reset()
        venv.step(actions(0), autoreset=True)
        obs, *_, infos = venv.step(actions(1), autoreset=True)  # env 0 ends
        columns = infos.columns
        assert columns["_final_obs"].tolist() == columns["_final_info"].tolist() == [True, False, False, False]
        assert (obs[0].tolist(), columns["final_obs"][0].tolist()) == ([0, 0, 1], [0, 2, 0])
        assert (columns["speed"][0], columns["final_info"]["speed"][0]) == (0, 1)
        assert "final_obs" not in infos[1]


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_simulator_that_loses_the_last_observation_says_so(library: str) -> None:
    with from_gymnasium(simulator(library, final="lost")) as venv:
        venv.reset()
        venv.step(actions(0), autoreset=True)
        with pytest.raises(EnvContractError, match=r"env 0: .* have no final_obs; .* pass has_final_obs=False"):
            venv.step(actions(1), autoreset=True)
    for tensors in {False, library != "numpy"}:
        with (
            from_gymnasium(simulator(library, final="lost"), has_final_obs=False, tensors=tensors) as venv,
            from_gymnasium(simulator("numpy")) as whole,
        ):
            for autoreset in (True, False):
                for ours, theirs in zip(played(venv, autoreset), played(whole, autoreset), strict=True):
                    if len(theirs) == 2:
                        continue
                    over = theirs[2] | theirs[3]
                    for one, other in zip(ours[1:-1], theirs[1:-1], strict=True):
                        np.testing.assert_array_equal(nest.as_array(one), other)
                    lost = ["no_final_obs" in info for info in ours[-1]]
                    assert lost == over.tolist()
                    assert not any("final_obs" in info for info in ours[-1])
                    if over.any():
                        np.testing.assert_array_equal(nest.as_array(ours[-1].columns["_no_final_obs"]), over)


@pytest.mark.guarantee("G3.10")
@libraries
def test_columns_of_shape_n_1_become_n(library: str) -> None:
    for tensors in {False, library != "numpy"}:
        with (
            from_gymnasium(simulator(library, wide=True), tensors=tensors) as wide,
            from_gymnasium(simulator(library), tensors=tensors) as narrow,
        ):
            for one, other in zip(on_host(played(wide, True)), on_host(played(narrow, True)), strict=True):
                assert_same(one, other)


class Wrong(gym.vector.VectorWrapper):
    """Simulator with another result in step 2. `value` replaces a result, or updates the infos."""

    def __init__(self, name: str, value: Any) -> None:
        super().__init__(Simulator(np))
        self.name, self.value, self.t = name, value, 0

    def step(self, actions: Any) -> Any:
        self.t += 1
        result = dict(zip(("obs", "reward", "terminated", "truncated", "infos"), self.env.step(actions), strict=True))
        result["infos"]["lap"], result["infos"]["_lap"] = np.zeros(N, np.int64), np.ones(N, np.bool_)
        if self.t == 2:
            result[self.name] = {**result["infos"], **self.value} if isinstance(self.value, dict) else self.value
        return tuple(result.values())


WRONG = {
    "reward of other envs": (
        "reward",
        np.zeros(5),
        r"reward=array\(\[0.*shape \(5,\).* step 2, expected the shape \(4,\)",
    ),
    "one reward": ("reward", 0.0, r"reward=0\.0 with the shape \(\) .* step 2, expected the shape \(4,\)"),
    "text": ("reward", np.array(list("abcd")), r"reward=.*dtype <U1 in step 2, expected numbers"),
    "flags of agents": (
        "terminated",
        np.zeros((N, 2), bool),
        r"terminated=.* shape \(4, 2\) .*, expected the shape \(4,\)",
    ),
    "numbers as flags": ("truncated", np.arange(N), r"truncated=array\(\[0, 1, 2, 3\]\).*, expected bools"),
    "axis of infos": (
        "infos",
        {"speed": np.zeros(3, np.float32)},
        r"infos\['speed'\] has the shape \(3,\) .*expected 4 rows",
    ),
    "axis with mask": ("infos", {"lap": np.zeros(3, np.int64)}, r"infos\['lap'\] has the shape \(3,\) and a mask"),
    "dtype of infos": (
        "infos",
        {"speed": np.zeros(N)},
        r"infos\['speed'\] has .*float64, expected 4 rows of float32, as in step 1",
    ),
    "mask of infos": (
        "infos",
        {"_lap": np.ones(3, bool)},
        r"infos\['lap'\] has a mask of shape \(3,\), expected \(4,\)",
    ),
    "infos": ("infos", [{}], "infos of type list in step 2, expected a dict of columns"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_columns_are_errors_with_the_class_the_key_and_the_step(case: str) -> None:
    name, value, message = WRONG[case]
    with from_gymnasium(Wrong(name, value)) as venv:
        venv.reset()
        venv.step(actions(0), autoreset=True)
        with pytest.raises(EnvContractError, match=rf"(?s)Wrong.*{message}"):
            venv.step(actions(1), autoreset=True)
        assert venv.failed_id == list(range(N))
        venv.reset()
        venv.step(actions(1), autoreset=True)


def test_last_observations_without_a_row_for_each_env_are_refused() -> None:
    last = {"final_obs": np.zeros((1, 3), np.float32)}
    with from_gymnasium(Wrong("infos", last)) as venv:
        venv.reset()
        venv.step(actions(0), autoreset=True)
        with pytest.raises(
            ObservationError, match=r"Wrong returned a final_obs .* row for each env: obs is .*\(1, 3\)"
        ):
            venv.step(actions(1), autoreset=True)


@pytest.mark.parametrize("tensors", [False, True])
def test_nothing_in_a_round_is_done_per_env(tensors: bool) -> None:
    library = "torch" if tensors else "numpy"
    counts = []
    for n in (8, 64):
        with from_gymnasium(simulator(library, n), tensors=tensors) as venv:
            venv.reset()
            action = np.zeros((n, 2), np.float32)
            for _ in range(3):
                venv.step(action, autoreset=True)
            counts.append(count_calls(lambda venv=venv, action=action: venv.step(action, autoreset=True)))
    assert counts[0] == counts[1]


def test_a_step_that_ends_all_episodes_takes_memory_for_columns_only() -> None:
    n, k = 2048, 3
    with from_gymnasium(TogetherEnd(n)) as venv:
        venv.reset()
        venv.step(np.zeros((n, 2), np.float32), autoreset=True)
        tracemalloc.start()
        try:
            *_, infos = venv.step(np.zeros((n, 2), np.float32), autoreset=True)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert infos.columns["_final_obs"].all()
    assert most < 12 * n * k * 4 + 2**20


class TogetherEnd(Simulator):
    def __init__(self, n: int) -> None:
        super().__init__(np, n)

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, infos = super().step(actions)
        return (
            obs,
            reward,
            np.ones_like(terminated),
            truncated,
            infos | {"final_obs": obs, "_final_obs": np.ones(self.num_envs, bool)},
        )


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_the_facade_of_gymnasium_returns_what_the_vector_env_returns(mode: str) -> None:
    def envs() -> SyncVectorEnv:
        return SyncVectorEnv([partial(Alone, i) for i in range(N)], autoreset_mode=mode)

    ours, theirs = GymnasiumVectorEnv(from_gymnasium(envs()), autoreset_mode=mode), envs()
    assert_same(ours.reset(seed=0), theirs.reset(seed=0))
    for t in range(ROUNDS):
        one, other = ours.step(actions(t)), theirs.step(actions(t))
        assert_same(one, other)
        if mode == "Disabled" and (over := other[2] | other[3]).any():
            one[0][:] = 77  # the caller owns results
            options = {"reset_mask": over}
            assert_same(ours.reset(options=dict(options)), theirs.reset(options=dict(options)))
    ours.close(), theirs.close()


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_the_render_mode_is_known_without_get_attr(mode: AutoresetMode) -> None:
    """As of mani-skill 3.0.1's ManiSkillVectorEnv, whose `get_attr` always raises RuntimeError."""

    class NoAttributes(SyncVectorEnv):
        def get_attr(self, name: str) -> Any:
            raise RuntimeError("no attributes")

    with from_gymnasium(NoAttributes([partial(Alone, 0)], autoreset_mode=mode)) as venv:
        assert venv.get_env_attr("render_mode") == [None]


class Isaac(gym.Env):
    """Env of many envs, as isaaclab's ManagerBasedRLEnv: a gymnasium.Env that takes and returns batches of tensors.

    It has no autoreset mode in its metadata, resets in the step, and loses last observations.
    """

    is_vector_env = True

    def __init__(self) -> None:
        self._inside = simulator("torch", final="lost")
        self.num_envs = N
        self.single_observation_space = gym.spaces.Dict(policy=self._inside.single_observation_space)
        self.single_action_space = self._inside.single_action_space
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, N)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, N)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        obs, infos = self._inside.reset()
        return {"policy": obs}, infos

    def step(self, action: Any) -> Any:
        obs, reward, terminated, time_outs, _ = self._inside.step(action.to("cpu"))
        return {"policy": obs}, reward, terminated, time_outs, {"log": {"loss": 0.5}}


@pytest.mark.parametrize("tensors", [False, True])
def test_envs_that_step_together_without_being_a_vector_env(tensors: bool) -> None:
    options: Any = {"autoreset_mode": "SameStep", "has_final_obs": False, "tensors": tensors}
    wrapped = gym.wrappers.OrderEnforcing(Isaac())
    with from_gymnasium(wrapped, **options) as venv, from_gymnasium(simulator("numpy")) as plain:
        for ours, theirs in zip(played(venv, True), played(plain, True), strict=True):
            np.testing.assert_array_equal(nest.as_array(ours[0]["policy"]), theirs[0])
        assert ours[-1][0]["log"] == {"loss": 0.5}
    with pytest.raises(TypeError, match=r"takes a gymnasium\.vector\.VectorEnv"):
        from_gymnasium(Alone(0))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_permuted_ids_order_actions_rows_and_columns(library: str) -> None:
    ids = [3, 1, 0, 2]
    with from_gymnasium(simulator(library)) as venv, alone() as plain:
        for each in (venv, plain):
            each.reset(seed=0)
        ours, theirs = (each.step(actions(0)[ids], ids) for each in (venv, plain))
        for mine, other in zip(ours[:-1], theirs[:-1], strict=True):
            np.testing.assert_array_equal(mine, other)
        infos = ours[-1]
        assert [info["env_id"] for info in infos] == ids
        for key in ("speed", "goal"):
            np.testing.assert_array_equal([info[key] for info in infos], infos.columns[key])


def test_permuted_ids_order_resets() -> None:
    ids = [3, 1, 0, 2]
    with from_gymnasium(simulator("numpy", final="next")) as venv, alone() as plain:
        for each in (venv, plain):
            each.reset()
            for t in range(2):  # env 0 ends
                each.step(actions(t))
        with pytest.raises(RuntimeError, match="env 0 has not been reset"):
            venv.step(actions(2)[ids], ids, reset=[3])
        ours, theirs = (each.step(actions(2)[ids], ids, reset=[0]) for each in (venv, plain))
        for mine, other in zip(ours[:-1], theirs[:-1], strict=True):
            np.testing.assert_array_equal(mine, other)


def test_selected_infos_are_in_the_order_of_the_rows() -> None:
    rows = [3, 1, 0, 2]
    with from_gymnasium(simulator("numpy")) as venv:
        venv.reset()
        for infos in (
            venv.step(actions(0), autoreset=True)[-1],
            venv.step(actions(1), [1, 0, 3, 2], autoreset=True)[-1],
        ):
            chosen = infos.select(np.array(rows))
            assert chosen.ids.tolist() == infos.ids[rows].tolist()
            assert [info["env_id"] for info in chosen] == infos.ids[rows].tolist()
            np.testing.assert_array_equal(chosen.columns["speed"], infos.columns["speed"][rows])
            assert infos.select(np.array([], np.int64)).columns["speed"].shape == (0,)


def test_infos_that_a_wrapper_changes_have_no_columns() -> None:
    with VectorEnvNormObs(from_gymnasium(simulator("numpy"))) as venv:
        infos = [step[-1] for step in played(venv, True)[1:]]
        plain = [each for each in infos if not any("final_obs" in info for info in each)]
        assert all(each.columns for each in plain)
        (changed, *_) = [each for each in infos if any("final_obs" in info for info in each)]
        with pytest.raises(AttributeError, match=r"read info\[i\]"):
            _ = changed.columns
