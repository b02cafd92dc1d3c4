"""RecordEpisodes: random loops store the episodes that the envs have played, with their actions, seeds and infos."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

from collector import (
    Dataset,
    DatasetError,
    EpisodeCutter,
    RecordEpisodes,
    SyncDataCollector,
)
from tests.support.backends import FULL
from tests.support.ctrl_c import interrupt_at_random
from tests.support.numbered import (
    KEYS,
    STEPS,
    Mapped,
    N,
    Numbered,
    actions,
    assert_logged,
    assert_whole,
    env_fns,
    float_obs,
    play,
    whole_obs,
    without_mode,
)
from vecenv import (
    AsyncVectorEnv,
    DummyVectorEnv,
    GymnasiumVectorEnv,
    ShmemVectorEnv,
    SyncVectorEnv,
    from_gymnasium,
)
from vecenv.transforms import RewardSum, TransformedEnv

pytestmark = pytest.mark.usefixtures("no_fsync", "few_rounds")
MODES = list(AutoresetMode)


def recorded(make: Any) -> Any:
    return lambda fns, mode, folder, **options: RecordEpisodes(make(fns, autoreset_mode=mode), folder, **options)


def old_names(fns: Any, autoreset_mode: Any) -> Any:
    form = "list" if autoreset_mode is AutoresetMode.SAME_STEP else "dict"
    return GymnasiumVectorEnv(DummyVectorEnv(fns), autoreset_mode=autoreset_mode, final_info_format=form)


def around(make: Any) -> Any:
    """Return a maker of a facade around a recorded vector env."""
    return lambda fns, mode, folder, **options: GymnasiumVectorEnv(
        RecordEpisodes(make(fns, mode), folder, **options), autoreset_mode=mode
    )


def transformed(fns: Any, autoreset_mode: Any) -> Any:
    return SyncVectorEnv([lambda fn=fn: TransformedEnv(fn(), RewardSum()) for fn in fns], autoreset_mode=autoreset_mode)


def other_dtypes(fns: Any, **mode: Any) -> Any:
    """Return a VectorEnv whose observations have other dtypes than their space."""
    return Mapped(gymnasium.vector.SyncVectorEnv(fns, **mode), whole_obs, float_obs, float_obs)


ANY = ("box", "tree", "lists", "text")
MAKERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "gymnasium": (recorded(gymnasium.vector.SyncVectorEnv), ANY),
    "old names": (recorded(old_names), ANY),
    "facade": (around(lambda fns, mode: DummyVectorEnv(fns)), ANY),
    "ours": (recorded(SyncVectorEnv), ANY),
    "other dtypes": (recorded(other_dtypes), ("box",)),
    "transformed": (recorded(transformed), ("lists",)),
    "from_gymnasium": (
        around(lambda fns, mode: from_gymnasium(gymnasium.vector.SyncVectorEnv(fns, autoreset_mode=mode))),
        ("box", "lists"),
    ),
    "gymnasium async": (recorded(partial(gymnasium.vector.AsyncVectorEnv, shared_memory=False)), ANY),
    "ours async": (recorded(AsyncVectorEnv), ANY),
    "shmem": (recorded(lambda fns, **mode: GymnasiumVectorEnv(ShmemVectorEnv(fns, num_workers=1), **mode)), ANY),
}
"""Each with the forms of spaces that it takes."""


def drawn_action(rng: np.random.Generator, form: str) -> Any:
    """Return an action for one env. Floats have more digits than the space's dtype."""
    x, y, say = int(rng.integers(50)), np.round(rng.uniform(-9, 9, 2), 3), "abc"[: rng.integers(4)]
    return {"box": x, "tree": {"y": y, "x": x, "say": say}, "lists": (x, y), "text": say}[form]


def batched(rows: list[Any], rng: np.random.Generator) -> Any:
    """Return the actions as a batch for a gymnasium VectorEnv: texts as a tuple, list or array."""
    first = rows[0]
    if isinstance(first, dict):
        return {key: batched([row[key] for row in rows], rng) for key in first}
    if isinstance(first, tuple):
        return tuple(batched([row[i] for row in rows], rng) for i in range(len(first)))
    return [tuple, list, np.array][rng.integers(3)](rows) if isinstance(first, str) else np.array(rows)


@pytest.mark.parametrize("maker", [*list(MAKERS)[:5], *(pytest.param(each, marks=FULL) for each in list(MAKERS)[5:])])
def test_random_loops_around_a_gymnasium_vector_env_store_what_its_envs_played(maker: str, tmp_path: Path) -> None:
    make, forms = MAKERS[maker]
    for seed in range(12 if maker == "gymnasium" else 4):
        # Three seeds play each mode, and twelve play each mode with each of four forms.
        rng, mode, form = np.random.default_rng(seed), MODES[seed % 3], forms[(seed % 3 + seed // 3) % len(forms)]
        has_resets, is_calm = seed % 2 == 0, True
        keys = KEYS if seed % 4 else ()
        fns = env_fns(form, informs=bool(keys))
        with contextlib.closing(make(fns, mode, tmp_path / str(seed), info_keys=keys)) as envs:
            envs.reset(seed=int(rng.integers(99)))
            for _ in range(STEPS):
                rows = [drawn_action(rng, form) for _ in range(N)]
                *_, terminated, truncated, _ = envs.step(batched(rows, rng))
                over = terminated | truncated
                if has_resets and rng.random() < 0.1:
                    envs.reset(seed=[[3, None, 4], None][rng.integers(2)])
                elif mode is AutoresetMode.DISABLED and over.any():
                    mask = over | (rng.random(N) < 0.2)
                    seeds = {"seed": rng.integers(0, 99, N).tolist()} if rng.random() < 0.5 else {}
                    envs.reset(options={"reset_mask": mask}, **seeds)
                elif has_resets and rng.random() < 0.1 and maker == "gymnasium":
                    envs.call("reset", options={"unseen": True})  # ends what is recorded
                    is_calm = False
            logs = envs.unwrapped.get_attr("log") if maker != "from_gymnasium" else None
        data = Dataset(tmp_path / str(seed))
        assert (assert_logged(data, logs, is_calm) if logs else len(assert_whole(data))) > 10
        assert [*data[0].info] == [*keys]


@pytest.mark.parametrize(
    ("kind", "options"), [(DummyVectorEnv, {}), (ShmemVectorEnv, {"wait_num": 1, "num_workers": 2})]
)
def test_random_rounds_of_an_engine_store_what_its_envs_played(kind: Any, options: Any, tmp_path: Path) -> None:
    count = 0
    for seed in range(4):
        rng, form = np.random.default_rng(seed), ANY[seed]
        draw = lambda count: [drawn_action(rng, form) for _ in range(count)]  # noqa: B023, E731
        with RecordEpisodes(kind(env_fns(form, informs=True), **options), tmp_path / str(seed), info_keys=KEYS) as venv:
            venv.reset(seed=[7, 8, 9])
            for _ in range(120):
                ids: Any = rng.permutation(N)[: rng.integers(1, N + 1)].tolist()  # often of envs that are in flight
                seeds = rng.integers(0, 99, len(ids)).tolist() if rng.random() < 0.5 else int(rng.integers(99))
                resets = ids[: rng.integers(len(ids) + 1)]
                what = rng.choice(["recv", "steps", "step", "reset", "send resets", "mixed", "wait", "call"])
                with contextlib.suppress(RuntimeError, ValueError):  # refused rounds
                    if what in ("recv", "wait"):
                        venv.recv() if what == "recv" else venv.step(None)
                    elif what == "reset":
                        venv.reset(ids, seed=seeds)
                    elif what == "send resets":
                        venv.send(None, reset=ids, seed=seeds)
                    elif what == "mixed" and resets:
                        order = [i for i in ids if i in resets]
                        venv.send(draw(len(ids)), ids, reset=resets, seed=rng.integers(0, 99, len(order)))
                    elif what == "call" and kind is DummyVectorEnv and not venv.waiting_id:
                        venv.call("reset", options={"unseen": True}, id=ids)  # ends what is recorded
                    elif what == "step":
                        venv.step(draw(N), autoreset=True if rng.random() < 0.5 else rng.integers(0, 99, N))
                    else:
                        autoreset = [False, True, rng.integers(0, 99, len(ids))][rng.integers(3)]
                        venv.send(draw(len(ids)), ids, autoreset=autoreset)
            while venv.waiting_id:
                venv.recv()
            logs = venv.get_env_attr("log")
        count += assert_logged(Dataset(tmp_path / str(seed)), logs)
    assert count > 30


def facade(fns: Any) -> Any:
    return GymnasiumVectorEnv(DummyVectorEnv(fns))


def test_an_env_that_fails_loses_its_episode_only(tmp_path: Path) -> None:
    fns = [partial(Numbered, 0), partial(Numbered, 1, breaks_at=3), partial(Numbered, 2)]
    with RecordEpisodes(GymnasiumVectorEnv(DummyVectorEnv(fns, on_error="restart")), tmp_path / "a") as envs:
        play(envs)
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


@pytest.mark.parametrize("kind", [DummyVectorEnv, gymnasium.vector.SyncVectorEnv])
@pytest.mark.parametrize("form", ["box", "text"])
def test_an_episode_without_an_end_is_an_error_before_it_fills_the_memory(kind: Any, form: str, tmp_path: Path) -> None:
    class Endless(Numbered):
        def length(self, episode: int) -> int:
            return 10**9

    action: Any = ["a", "b"] if form == "text" else [1, 2]

    def play_on(rounds: int) -> None:
        envs.reset()
        for _ in range(rounds):
            envs.step(action, **({"autoreset": True} if kind is DummyVectorEnv else {}))

    memory, fns = {"box": 900, "text": 3000}[form], [partial(Numbered, 0, form), partial(Endless, 1, form)]
    with RecordEpisodes(kind(fns), tmp_path, memory=memory) as envs:
        with pytest.raises(DatasetError, match=r"env 1 has \d+ steps and no end.*wrappers.TimeLimit.*memory="):
            play_on(60)
        play_on(14)  # what was kept is given up
    assert {episode.env_id for episode in Dataset(tmp_path)} == {0}
    assert len(assert_whole(Dataset(tmp_path))) > 8


def test_shards_are_committed_by_size_and_by_age_while_the_loop_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=1.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("collector.store.recorder.time", clock)
    with RecordEpisodes(SyncVectorEnv(env_fns()), tmp_path / "a", shard_bytes=1) as envs:
        play(envs)
        assert len(Dataset(tmp_path / "a")) > 10
    with RecordEpisodes(SyncVectorEnv(env_fns()), tmp_path / "b", shard_seconds=30.0) as envs:
        play(envs)
        assert len(Dataset(tmp_path / "b")) == 0
        clock.now = 32.0
        envs.step(actions(0))
        assert len(Dataset(tmp_path / "b")) > 10


def test_ctrl_c_at_any_moment_joins_no_episodes(tmp_path: Path) -> None:
    with RecordEpisodes(DummyVectorEnv(env_fns()), tmp_path, shard_bytes=2**12) as venv:
        venv.reset()

        def begin_again() -> None:
            if venv.failed_id:
                venv.reset(venv.failed_id)

        def step() -> None:
            venv.step(actions(0), autoreset=True)

        assert interrupt_at_random(step, begin_again, 60, 0.004)
    assert_whole(Dataset(tmp_path))


# What the wrapper passes on. `tests/messages/recorder.py` has what it refuses.


def test_a_vector_env_without_a_mode_gets_one_and_is_recorded_by_reset_and_step(tmp_path: Path) -> None:
    with RecordEpisodes(without_mode(), tmp_path / "a", autoreset_mode="NextStep") as envs:
        envs.set_attr("taken", 3)
        assert (envs.get_attr("taken"), len(envs.envs)) == ((3,) * N, N)


def test_whole_numbers_may_have_any_shape_and_type(tmp_path: Path) -> None:
    with RecordEpisodes(DummyVectorEnv(env_fns()), tmp_path) as venv:
        venv.reset()
        venv.step(np.ones((N, 1)))
    assert len(assert_whole(Dataset(tmp_path))) == 1


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


class Unknown(VectorEnv):
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
        play(envs)
    found = assert_whole(Dataset(tmp_path / "b"))
    assert len(found) > 30
    assert [found[env, 0].seed for env in range(N)] == [5, 6, 7]


def herds() -> Any:
    pytest.importorskip("pettingzoo")
    from tests.support.agent_envs import Herd
    from vecenv import ParallelVectorEnv, flatten_agents

    return flatten_agents(ParallelVectorEnv([Herd] * 2, "dummy"))


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
        (herds, None),  # the agents of one game share its seed
    ],
    ids=["shared", "native", "facade", "unknown", "unknown native", "known to the caller", "known", "agents"],
)
def test_a_seed_is_stored_only_if_it_repeats_the_episode(make: Any, seeds: list[int] | None, tmp_path: Path) -> None:
    with RecordEpisodes(make(), tmp_path) as envs:
        envs.reset(seed=5)
        n = envs.num_envs if isinstance(envs, VectorEnv) else len(envs)
        over = np.zeros(n, np.bool_)
        for _ in range(60):
            ours = {} if isinstance(envs, VectorEnv) or make is herds else {"reset": over}
            _, _, terminated, truncated, _ = envs.step(np.zeros(n, np.int64), **ours)
            over = terminated | truncated
    first = {episode.env_id: episode.seed for episode in reversed(list(Dataset(tmp_path)))}
    assert [first[env] for env in sorted(first)] == (seeds or [None] * len(first))


# Collectors.


def test_a_resumed_recorder_needs_the_same_infos(tmp_path: Path) -> None:
    for resume in (False, True):
        envs = RecordEpisodes(
            DummyVectorEnv(env_fns(informs=True)), tmp_path, info_keys=KEYS, resume=resume, compress=True
        )
        with SyncDataCollector(envs, frames_per_batch=10 * N) as collector:
            collector.collect(n_step=20 * N)
    message = r"has the info_keys \('count', .*, and not \('half', .*: resume it with these keys"
    with DummyVectorEnv(env_fns(informs=True)) as venv, pytest.raises(DatasetError, match=message):
        RecordEpisodes(venv, tmp_path, info_keys=KEYS[1:], resume=True)
    assert len(Dataset(tmp_path)) > 10


def test_a_cutter_gives_entries_that_only_later_batches_have() -> None:
    keys = ("count", "verdict")
    cutter = EpisodeCutter(keys)
    with SyncDataCollector([partial(Numbered, 3, informs=True)] * 2, frames_per_batch=4, info_keys=keys) as collector:
        batches = [collector.rollout() for _ in range(2)]
        first, second = (cutter.cut(batch) for batch in batches)
    assert len(first) == 0
    assert [each.info["count"].tolist() for each in second] == [[1, 2, 3, 4]] * 2
    assert [each.info["verdict"].tolist() for each in second] == [[None, None, "", "good"]] * 2
    assert batches[1].extras["verdict"][0].tolist() == ["", "good"]
