"""RecordEpisodes stores the same episodes for every kind of vector env and every way to reset."""

from __future__ import annotations

from enum import IntEnum
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from collector import Dataset, DatasetError, RecordEpisodes
from tests.support.backends import FULL
from tests.support.numbered import STEPS, N, Numbered, actions, assert_whole, env_fns, play
from vecenv import AsyncVectorEnv, DummyVectorEnv, GymnasiumVectorEnv, ShmemVectorEnv, SyncVectorEnv, from_gymnasium
from vecenv.transforms import RewardSum, TransformedEnv

pytestmark = pytest.mark.usefixtures("no_fsync", "few_rounds")
MODES = list(AutoresetMode)


MAKERS: dict[str, Any] = {
    "gymnasium_sync": lambda fns, mode: gymnasium.vector.SyncVectorEnv(fns, autoreset_mode=mode),
    "ours_sync": lambda fns, mode: SyncVectorEnv(fns, autoreset_mode=mode),
    "ours_async": lambda fns, mode: AsyncVectorEnv(fns, autoreset_mode=mode),
    "shmem": lambda fns, mode: GymnasiumVectorEnv(ShmemVectorEnv(fns, num_workers=1), autoreset_mode=mode),
    "old_names": lambda fns, mode: GymnasiumVectorEnv(
        DummyVectorEnv(fns), autoreset_mode=mode, final_info_format="list" if mode.name == "SAME_STEP" else "dict"
    ),
}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize(
    ("maker", "tree"),
    [
        ("gymnasium_sync", False),
        ("old_names", True),
        pytest.param("gymnasium_sync", True, marks=FULL),
        pytest.param("shmem", False, marks=FULL),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in [("shmem", True), ("ours_sync", False)]),
        *(pytest.param("ours_async", tree, marks=pytest.mark.slow) for tree in (False, True)),
    ],
)
def test_every_whole_episode_is_stored(maker: str, mode: AutoresetMode, tree: bool, tmp_path: Path) -> None:
    with RecordEpisodes(MAKERS[maker](env_fns(tree), mode), tmp_path) as envs:
        play(envs, mode, tree=tree)
    found = assert_whole(Dataset(tmp_path))
    for env in range(N):
        numbers = sorted(number for each, number in found if each == env)
        assert numbers == list(range(len(numbers))), "none is missing"
        spent = sum(1 + (env + number) % 4 + (mode is AutoresetMode.NEXT_STEP) for number in numbers)
        assert STEPS - 5 <= spent <= STEPS + 1, "all but the one in progress are there"
        assert found[env, 0].seed == 5 + env
        assert found[env, 1].seed is None


class Lists(Numbered):
    """Env that returns a list for a Tuple space, as vmas 1.5.2 does. It has no text, as `from_gymnasium` needs."""

    def __init__(self, number: int) -> None:
        super().__init__(number, tree=True)
        del self.observation_space.spaces["c"]

    def observe(self) -> Any:
        obs = super().observe()
        return {"a": obs["a"], "b": [*obs["b"]]}


@pytest.mark.parametrize(
    "recorded",
    [
        lambda fns, mode, folder: RecordEpisodes(gymnasium.vector.SyncVectorEnv(fns, autoreset_mode=mode), folder),
        lambda fns, mode, folder: RecordEpisodes(SyncVectorEnv(fns, autoreset_mode=mode), folder),
        lambda fns, mode, folder: GymnasiumVectorEnv(RecordEpisodes(DummyVectorEnv(fns), folder), autoreset_mode=mode),
        lambda fns, mode, folder: GymnasiumVectorEnv(
            RecordEpisodes(from_gymnasium(gymnasium.vector.SyncVectorEnv(fns, autoreset_mode=mode)), folder),
            autoreset_mode=mode,
        ),
        lambda fns, mode, folder: RecordEpisodes(
            SyncVectorEnv([lambda fn=fn: TransformedEnv(fn(), RewardSum()) for fn in fns], autoreset_mode=mode), folder
        ),
    ],
    ids=["gymnasium's", "ours", "engine", "from_gymnasium", "transformed"],
)
def test_lists_are_stored_as_tuples(recorded: Any, tmp_path: Path) -> None:
    mode = AutoresetMode.SAME_STEP
    envs = recorded([partial(Lists, number) for number in range(N)], mode, tmp_path)
    play(envs, mode, tree=True)
    envs.close()
    for episode in assert_whole(Dataset(tmp_path)).values():
        assert episode.obs["b"][0].tolist() == list(range(len(episode) + 1))


@pytest.mark.slow
def test_sb3_on_a_recorded_vector_env(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    from vecenv import SB3VecEnv

    envs = SB3VecEnv(RecordEpisodes(DummyVectorEnv(env_fns()), tmp_path))
    envs.reset()
    for step in range(STEPS):
        envs.step(actions(step))
    envs.close()
    assert sum(map(len, assert_whole(Dataset(tmp_path)).values())) > N * STEPS - 4 * N


def test_it_has_the_methods_of_what_it_wraps(tmp_path: Path) -> None:
    with RecordEpisodes(gymnasium.vector.SyncVectorEnv(env_fns()), tmp_path) as envs:
        envs.set_attr("taken", 3)
        assert envs.get_attr("taken") == (3,) * N
        assert len(envs.envs) == N
    with RecordEpisodes(AsyncVectorEnv(env_fns()), tmp_path, overwrite=True) as envs:
        for name in ("reset_async", "step_wait"):
            with pytest.raises(AttributeError, match=f"has no {name}: it records `reset` and `step`"):
                getattr(envs, name)


def test_episodes_that_are_reset_before_their_end_are_not_stored(tmp_path: Path) -> None:
    with RecordEpisodes(SyncVectorEnv(env_fns()), tmp_path) as envs:
        for _ in range(4):
            envs.reset()
            for step in range(2):
                envs.step(actions(step))
    found = assert_whole(Dataset(tmp_path))
    assert {len(episode) for episode in found.values()} == {1, 2}


def test_an_env_that_fails_loses_its_episode_only(tmp_path: Path) -> None:
    fns = [partial(Numbered, 0), partial(Numbered, 1, breaks_at=3), partial(Numbered, 2)]
    venv = DummyVectorEnv(fns, on_error="restart")
    with RecordEpisodes(GymnasiumVectorEnv(venv), tmp_path / "a") as envs:
        play(envs, AutoresetMode.NEXT_STEP)
    numbers = {env: [int(e.obs[0, 1]) for e in Dataset(tmp_path / "a") if e.env_id == env] for env in range(3)}
    assert numbers[1][:3] == [0, 1, 2]
    assert 3 not in numbers[1]
    assert numbers[0] == list(range(len(numbers[0])))
    mask = {"options": {"reset_mask": np.array([False, True, False])}}  # others are being reset when it fails
    for name, kind, steps, again in (("b", DummyVectorEnv, {"autoreset": True}, {"id": 1}), ("c", facade, {}, mask)):
        with RecordEpisodes(kind(fns), tmp_path / name) as envs:
            envs.reset()
            for step in range(STEPS):
                try:
                    envs.step(actions(step), **steps)
                except RuntimeError:
                    envs.reset(**again)
        assert len(assert_whole(Dataset(tmp_path / name))) > 20


def facade(fns: Any) -> Any:
    return GymnasiumVectorEnv(DummyVectorEnv(fns))


def test_shards_are_committed_by_size_and_by_age_while_the_loop_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=1.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("collector.store.recorder.time", clock)
    with RecordEpisodes(SyncVectorEnv(env_fns()), tmp_path / "a", shard_bytes=1) as envs:
        play(envs, AutoresetMode.NEXT_STEP)
        assert len(Dataset(tmp_path / "a")) > 10
    with RecordEpisodes(SyncVectorEnv(env_fns()), tmp_path / "b", shard_seconds=30.0) as envs:
        play(envs, AutoresetMode.NEXT_STEP)
        assert len(Dataset(tmp_path / "b")) == 0
        clock.now = 32.0
        envs.step(actions(0))
        assert len(Dataset(tmp_path / "b")) > 10


class Tile(IntEnum):
    """Keys of a Dict space, as in pgtg 0.6.1."""

    WALL = 1


def test_what_cannot_be_recorded_is_refused_at_once(tmp_path: Path) -> None:
    class Words(Numbered):
        def __init__(self) -> None:
            super().__init__(0)
            self.observation_space = spaces.Sequence(spaces.Text(5))

    class Wider(Numbered):
        def __init__(self) -> None:
            super().__init__(0)
            self.observation_space = spaces.Box(-1, 9, (4,), np.float32)

    class Keyed(Numbered):
        def __init__(self) -> None:
            super().__init__(0)
            tiles = spaces.Dict({Tile.WALL: spaces.Discrete(2)})
            self.observation_space = spaces.Dict(map=spaces.Tuple([tiles]))

    class Long(Numbered):
        def __init__(self) -> None:
            super().__init__(0)
            self.action_space = spaces.Box(0, 1, (1,), np.longdouble)

    for fns, options, kind, message in (
        (
            [Keyed],
            {},
            DatasetError,
            r"obs\['map'\]\[0\] has the keys \[<Tile.WALL: 1>\]; only text.*TransformObservation",
        ),
        ([Long], {}, DatasetError, "action is (float128|longdouble)"),
        ([Words], {}, DatasetError, "only texts and arrays of numbers can be stored: obs is not"),
        ([Wider, partial(Numbered, 1)], {}, DatasetError, "obs is not an array with"),
        (env_fns(tree=True), {"stack_obs": False}, ValueError, "stack_obs=True"),
    ):
        with DummyVectorEnv(fns, **options) as venv, pytest.raises(kind, match=message):
            RecordEpisodes(venv, tmp_path / "a")
    with pytest.raises(TypeError, match="wraps vector envs"):
        RecordEpisodes(Numbered(0), tmp_path / "a")
    envs = SyncVectorEnv(env_fns())
    envs.metadata = {}
    with pytest.raises(ValueError, match="pass autoreset_mode="):
        RecordEpisodes(envs, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    RecordEpisodes(envs, tmp_path / "a", autoreset_mode="NextStep").close()


class Pays(Numbered):
    """The reward is the sum of the numbers that it gets, with all their digits."""

    def __init__(self, form: Any) -> None:
        super().__init__(0)
        parts: dict[str, Any] = {"x": spaces.Discrete(50), "y": spaces.Box(-9, 9, (2,), np.float32)}
        forms = {list: parts["y"], dict: spaces.Dict(parts), tuple: spaces.Tuple(parts.values())}
        self.form, self.action_space = form, forms[form]

    def step(self, action: Any) -> Any:
        x, (y, z) = (0, action) if self.form is list else (action["x"], action["y"]) if self.form is dict else action
        obs, _, *rest = super().step(0)
        return obs, float(x) + float(y) + float(z), *rest


@pytest.mark.parametrize("form", [list, dict, tuple])
@pytest.mark.parametrize(
    "recorded",
    [
        lambda fns, folder: RecordEpisodes(DummyVectorEnv(fns), folder),
        lambda fns, folder: GymnasiumVectorEnv(RecordEpisodes(DummyVectorEnv(fns), folder)),
        lambda fns, folder: RecordEpisodes(SyncVectorEnv(fns), folder),
        lambda fns, folder: RecordEpisodes(gymnasium.vector.SyncVectorEnv(fns), folder),
    ],
    ids=["engine", "facade", "ours", "gymnasium's"],
)
def test_envs_get_the_actions_that_are_stored(recorded: Any, form: Any, tmp_path: Path) -> None:
    """Also where the caller's numbers have more digits than the action space: else nothing could be played again.
    Actions of a Tuple space are batches for a vector env, and rows for an engine.
    """
    x, y = np.array([1, 2]), np.array([[0.1, 3], [0.2, 3]])
    given: Any = {list: y, dict: {"y": y, "x": x}, tuple: (x, y)}[form]  # not in the order of the space
    envs = recorded([partial(Pays, form)] * 2, tmp_path / "set")
    if form is tuple and not isinstance(envs, gymnasium.vector.VectorEnv):
        given = list(zip(*given, strict=True))
    envs.reset(seed=0)
    for _ in range(STEPS):
        _, _, terminated, truncated, _ = envs.step(given)
        if not isinstance(envs, gymnasium.vector.VectorEnv) and (over := np.flatnonzero(terminated | truncated)).size:
            envs.reset(over)
    envs.close()
    assert {episode.env_id for episode in Dataset(tmp_path / "set")} == {0, 1}
    for episode in Dataset(tmp_path / "set"):
        columns = episode.action
        x, y = (0, columns) if form is list else columns.values() if form is dict else columns
        assert form is list or set(x) == {episode.env_id + 1}
        np.testing.assert_array_equal(episode.reward, x + y[:, 0].astype(np.float64) + y[:, 1])


class Mapped(gymnasium.vector.VectorWrapper):
    """Passes the observations of `reset`, of `step` and of the ends of episodes through three functions."""

    def __init__(self, envs: Any, first: Any, later: Any, last: Any) -> None:
        super().__init__(envs)
        self.first, self.later, self.last = first, later, last

    def reset(self, **kwargs: Any) -> Any:
        obs, infos = self.env.reset(**kwargs)
        return self.first(obs), infos

    def step(self, actions: Any) -> Any:
        obs, *rest, infos = self.env.step(actions)
        for row in np.flatnonzero(infos.get("_final_obs", ())):
            infos["final_obs"][row] = self.last(infos["final_obs"][row])
        return self.later(obs), *rest, infos


def whole(obs: Any) -> Any:
    return obs.astype(np.int64)


def halved(obs: Any) -> Any:
    return obs.astype(np.float64) + 0.5


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_observations_are_stored_in_the_dtype_of_their_space(mode: AutoresetMode, tmp_path: Path) -> None:
    """Whatever dtype the VectorEnv returns first."""
    inner = MAKERS["gymnasium_sync"](env_fns(), mode)
    with RecordEpisodes(Mapped(inner, whole, halved, halved), tmp_path) as envs:
        play(envs, mode)
    data = Dataset(tmp_path)
    assert len(data) > 20
    for episode in data:
        assert episode.obs.dtype == np.float32
        assert episode.obs[1:, 2].tolist() == [step + 0.5 for step in range(1, len(episode) + 1)]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ((lambda obs: halved(obs) + 1e300, whole, whole), "float64 .*, and casting would change the values: correct"),
        (
            (whole, lambda obs: obs[:, :2], halved),
            r"obs as float32 in the shape \(2,\) .* says float32 in .* \(3,\): cor",
        ),
        (
            (whole, lambda obs: {"a": obs}, halved),
            r"as a dict with the keys \['a'\]; .* says float32 in .* \(3,\): cor",
        ),
        ((whole, halved, lambda obs: obs.astype(str)), "<U"),
    ],
    ids=["too large", "narrow", "tree", "text"],
)
def test_observations_that_would_change_are_refused(broken: Any, message: str, tmp_path: Path) -> None:
    """The episodes before are kept, and others can follow."""
    inner = MAKERS["gymnasium_sync"](env_fns(), AutoresetMode.SAME_STEP)
    mapped = Mapped(inner, whole, whole, whole)
    with RecordEpisodes(mapped, tmp_path) as envs:
        play(envs, AutoresetMode.SAME_STEP, steps=9)
        mapped.first, mapped.later, mapped.last = broken
        with pytest.raises(DatasetError, match=message):
            play(envs, AutoresetMode.SAME_STEP, steps=4)
        mapped.first = mapped.later = mapped.last = whole
        play(envs, AutoresetMode.SAME_STEP, steps=9)
    assert len(assert_whole(Dataset(tmp_path))) > 10


def test_tensors_are_stored_as_arrays(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from gymnasium.wrappers.vector import NumpyToTorch

    from collector import TorchVectorEnv

    with RecordEpisodes(NumpyToTorch(gymnasium.vector.SyncVectorEnv(env_fns())), tmp_path / "a") as envs:
        envs.reset(seed=5)
        for step in range(STEPS):
            obs, *_ = envs.step(torch.from_numpy(actions(step)))
            assert isinstance(obs, torch.Tensor)
    assert len(assert_whole(Dataset(tmp_path / "a"))) > 20
    with RecordEpisodes(TorchVectorEnv(DummyVectorEnv(env_fns()), "cpu"), tmp_path / "b") as venv:
        venv.reset()
        for step in range(STEPS):
            _, _, terminated, truncated, _ = venv.step(torch.from_numpy(actions(step)), autoreset=step % 2 == 0)
            if step % 2 and (done := terminated | truncated).any():
                venv.reset(done)
    assert len(assert_whole(Dataset(tmp_path / "b"))) > 20


class Unknown(gymnasium.vector.VectorEnv):
    """VectorEnv of a class that vecenv does not know. Its reset takes a mask and a seed per env."""

    def __init__(self, mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> None:
        self.inner = gymnasium.vector.SyncVectorEnv(env_fns(), autoreset_mode=mode)
        self.num_envs, self.metadata = N, self.inner.metadata
        self.single_observation_space = self.inner.single_observation_space
        self.observation_space, self.action_space = self.inner.observation_space, self.inner.action_space
        self.single_action_space = self.inner.single_action_space

    def reset(self, **kwargs: Any) -> Any:
        return self.inner.reset(**kwargs)

    def step(self, actions: Any) -> Any:
        return self.inner.step(actions)


def cartpoles() -> Any:
    """Return envs that share a generator, and whose reset ignores the mask."""
    return gymnasium.make_vec("CartPole-v1", N, vectorization_mode="vector_entry_point")


def test_a_mask_that_a_vector_env_may_ignore_is_refused_unless_the_caller_knows_better(tmp_path: Path) -> None:
    with RecordEpisodes(cartpoles(), tmp_path / "a") as envs:
        envs.reset(seed=0)
        state = envs.unwrapped.state.copy()
        with pytest.raises(ValueError, match=r"CartPoleVectorEnv is not known to reset only .* pass resets_by_id=True"):
            envs.reset(options={"reset_mask": np.arange(N) == 1})
        np.testing.assert_array_equal(envs.unwrapped.state, state)
    with RecordEpisodes(Unknown(AutoresetMode.DISABLED), tmp_path / "b", resets_by_id=True) as envs:
        play(envs, AutoresetMode.DISABLED)
    found = assert_whole(Dataset(tmp_path / "b"))
    assert len(found) > 30
    assert [found[env, 0].seed for env in range(N)] == [5, 6, 7]


@pytest.mark.parametrize(
    ("make", "seeds"),
    [
        (cartpoles, None),
        (lambda: from_gymnasium(cartpoles()), None),
        (lambda: GymnasiumVectorEnv(from_gymnasium(cartpoles())), None),
        (Unknown, None),
        (lambda: from_gymnasium(Unknown()), None),
        (lambda: from_gymnasium(Unknown(), resets_by_id=True), [5, 6, 7]),
        (lambda: GymnasiumVectorEnv(from_gymnasium(gymnasium.vector.SyncVectorEnv(env_fns()))), [5, 6, 7]),
    ],
    ids=["shared", "native", "facade", "unknown", "unknown native", "known to the caller", "known"],
)
def test_a_seed_is_stored_only_if_it_repeats_the_episode(make: Any, seeds: list[int] | None, tmp_path: Path) -> None:
    with RecordEpisodes(make(), tmp_path) as envs:
        envs.reset(seed=5)
        over = np.zeros(N, np.bool_)
        for _ in range(60):
            ours = {} if isinstance(envs, gymnasium.vector.VectorEnv) else {"reset": over}
            _, _, terminated, truncated, _ = envs.step(np.zeros(N, np.int64), **ours)
            over = terminated | truncated
    first = {episode.env_id: episode.seed for episode in reversed(list(Dataset(tmp_path)))}
    assert [first[env] for env in range(N)] == (seeds or [None] * N)


def test_agents_of_one_game_have_no_seed_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("pettingzoo")
    from tests.support.agent_envs import Herd
    from vecenv import ParallelVectorEnv, flatten_agents

    with RecordEpisodes(flatten_agents(ParallelVectorEnv([Herd] * 2, "dummy")), tmp_path) as envs:
        envs.reset(seed=5)
        for _ in range(20):
            envs.step(np.zeros(envs.num_envs, np.int64))
    assert {episode.seed for episode in Dataset(tmp_path)} == {None}
