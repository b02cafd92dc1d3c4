"""Each export equals the episodes bit for bit. `tests/readers` reads exports with other libraries."""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from collector import Dataset, DatasetError, Job, export, run_job
from tests.support.backends import FULL
from tests.support.command_line import command
from tests.support.stored import (
    ACTION,
    OBS,
    SPACES,
    episode,
    info_episode,
    text_episode,
    tree_episode,
    write,
    write_one,
)
from vecenv import nest

pytestmark = pytest.mark.usefixtures("no_fsync")
FORMATS = {"parquet": "pyarrow", "lerobot": "pyarrow", "minari": "minari"}
FORMATS |= dict.fromkeys(("d3rlpy", "robomimic", "ogbench"), "h5py")
"""Each with the library that it needs."""
SUFFIXES = {"d3rlpy": ".h5", "robomimic": ".hdf5", "ogbench": ".npz"}
each = pytest.mark.parametrize("to", ["parquet", *(pytest.param(to, marks=FULL) for to in [*FORMATS][1:])])


def spoken_episode(number: int, /) -> Any:
    """Return a `text_episode` without null characters, which Minari's files cannot hold."""
    made = text_episode(number)
    said = nest.object_array([text.replace("\0", "") for text in made.obs["say"]])
    return text_episode(number, obs={**made.obs, "say": said}, action=said[1:])


def dict_episode(number: int, /) -> Any:
    return episode(number, obs=tree_episode(number).obs)


PICTURES = (3, 64, 64), (84, 84), (84, 84, 1), (84, 84, 3), (84, 84, 4)


def pictured_episode(number: int, /, **changes: Any) -> Any:
    """Return an episode that observes pictures of several shapes."""
    rng, rows = np.random.default_rng(number), len(episode(number)) + 1
    pictures = {str(shape): rng.integers(0, 256, (rows, *shape), np.uint8) for shape in PICTURES}
    return episode(number, **{"obs": pictures, **changes})


SPACES[pictured_episode] = spaces.Dict({str(shape): spaces.Box(0, 255, shape, np.uint8) for shape in PICTURES}), ACTION
SPACES |= {spoken_episode: SPACES[text_episode], dict_episode: (SPACES[tree_episode][0], ACTION)}
WITHOUT_NAMES = {"number": "not stored", "seed": "not stored", "env_id": "not stored"}
CUT = "equal, without the last row"
HALF = f"equal (3 episodes); {CUT} (3 episodes)"
HELD: list[tuple[str, Any, dict[str, str]]] = [
    *(("parquet", make, {}) for make in (episode, tree_episode, text_episode, info_episode)),
    *(("minari", make, {}) for make in (episode, tree_episode, spoken_episode, info_episode, pictured_episode)),
    ("lerobot", episode, {"obs": CUT} | WITHOUT_NAMES),
    ("lerobot", tree_episode, dict.fromkeys(("obs.pixels", "obs.pose.0", "obs.pose.1"), CUT) | WITHOUT_NAMES),
    ("lerobot", info_episode, {"obs": CUT, "info.said": "not stored"} | WITHOUT_NAMES),
    ("d3rlpy", episode, {"obs": HALF, "truncated": "not stored"} | WITHOUT_NAMES),
    ("d3rlpy", dict_episode, {"obs.pixels": HALF, "obs.pose.0": HALF, "obs.pose.1": HALF, "truncated": "not stored"}),
    ("robomimic", episode, dict.fromkeys(("terminated", "truncated"), "not stored") | WITHOUT_NAMES),
    ("ogbench", episode, dict.fromkeys(("reward", "terminated", "truncated"), "not stored") | WITHOUT_NAMES),
]
"""Format, data set, and the columns that the format does not hold."""


@pytest.mark.parametrize(
    ("to", "make", "lost"), [pytest.param(*row, marks=[] if row[0] == "parquet" else FULL) for row in HELD]
)
def test_an_export_is_compared_with_its_data_set(
    to: str, make: Any, lost: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(FORMATS[to])
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setattr("collector.store.export.arrow_lerobot.FILE_BYTES", 300)  # several files
    data, suffix = Dataset(write(tmp_path / "a", make=make)), SUFFIXES.get(to, "")
    chosen = "mine/numbers-v0" if to == "minari" else str(tmp_path / f"chosen{suffix}")
    beside = tmp_path / ("minari/exported/a-v0" if to == "minari" else f"a-{to}{suffix}")
    for out, where in ([], beside), (["--out", chosen], tmp_path / "minari" / chosen):
        done = command("export", data.folder, "--to", to, *out)
        assert (done.code, Path(done.out.strip())) == (0, where)
        again = command("export", data.folder, "--to", to, *out)
        assert again.code == 1
        assert f"{where} exists; choose another place" in again.error
    found = command("check", data.folder, where, "--json").json()
    del found["spaces, job, versions"]
    assert found == dict.fromkeys(found, "equal") | lost | (WITHOUT_NAMES if to == "d3rlpy" else {})

    def changed(number: int, /) -> Any:
        made = make(number)
        leaf = next(nest.leaves(made.action))
        leaf[0] = leaf[0] if number != 2 else "go" if leaf.dtype == object else (leaf[0] + 1) % 5
        return made

    SPACES[changed] = SPACES[make]
    done = command("check", write(tmp_path / "b", make=changed), where)
    assert done.code == 1
    assert "DIFFERENT in 1 of 6 episodes" in done.out
    fewer = command("check", write(tmp_path / "c", [range(4)], make=make), where, "--json").json()
    assert fewer["episodes"] == "DIFFERENT: the data set has 4, and 4 are compared"


# Exports as other libraries read them.


def test_parquet_has_a_row_per_observation(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    data = Dataset(write(tmp_path / "a", make=text_episode))
    out = export(data, "parquet", tmp_path / "out")
    steps, episodes = parquet.read_table(out / "steps"), parquet.read_table(out / "episodes")
    columns, last = json.loads((out / "schema.json").read_text())["columns"], np.array(steps["is_last"])
    assert [*columns] == steps.column_names
    assert steps["obs_say"].to_pylist() == [text for each in data for text in each.obs["say"]]
    assert np.array(steps["step"])[last].tolist() == data.lengths.tolist()
    assert np.flatnonzero(steps["is_first"]).tolist() == (np.cumsum(data.lengths + 1) - data.lengths - 1).tolist()
    assert np.array(steps["is_terminal"])[last].tolist() == [bool(each.terminated[-1]) for each in data]
    assert not np.array(steps["is_terminal"])[~last].any()
    assert episodes["seed"].to_pylist() == [1000 + n for n in range(6)]
    assert episodes["return"].to_pylist() == data.returns.tolist()
    # A reader of the whole folder fails at schema.json, instead of mixing rows of steps and episodes.
    with pytest.raises(pytest.importorskip("pyarrow").ArrowInvalid):
        parquet.read_table(out)


def test_columns_of_dicts_have_names_of_their_own(tmp_path: Path) -> None:
    """Lance refuses names with a dot."""
    pytest.importorskip("pyarrow")
    for keys, columns in (
        (("arm.pos", "image"), ["obs_arm_pos", "obs_image"]),
        (("arm.pos", "arm_pos"), ["obs_0", "obs_1"]),
    ):
        space = spaces.Dict({key: spaces.Box(-1, 1, (2, 3)) for key in keys})
        folder, obs = tmp_path / columns[0], {key: np.zeros((6, 2, 3), np.float32) for key in space}
        out = export(write_one(folder, (space, ACTION), obs=obs), "parquet", tmp_path / f"out-{columns[0]}")
        described = json.loads((out / "schema.json").read_text())["columns"]
        found = {name: about["path"] for name, about in described.items() if name.startswith("obs")}
        assert found == dict(zip(columns, [["obs", key] for key in space], strict=True))


@pytest.fixture
def minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return pytest.importorskip("minari")


@FULL
def test_minari_has_the_spaces_seeds_and_metadata(minari: Any, tmp_path: Path) -> None:
    data = Dataset(write(tmp_path / "a", make=tree_episode))
    export(data, "minari", tmp_path / "minari/vecenv/numbers-v0", description="numbers", author="Ada")
    found = minari.load_dataset("vecenv/numbers-v0")
    assert (found.total_episodes, found.total_steps) == (6, data.steps)
    assert (found.observation_space, found.action_space) == (data.observation_space, data.action_space)
    assert (found.storage.metadata["description"], found.storage.metadata["author"]) == ("numbers", {"Ada"})
    assert [note["seed"] for note in found.storage.get_episode_metadata(range(6))] == [1000 + n for n in range(6)]


CLIPPED = {"call": "ClipReward", "kwargs": {"max_reward": 0.5}}


@pytest.mark.parametrize(
    "settings",
    [
        {"env": "Pendulum-v1", "env_kwargs": {"g": 1.0}},
        pytest.param({"env": "gymnasium.envs.classic_control:PendulumEnv", "env_kwargs": {"g": 2.0}}, marks=FULL),
        pytest.param({"env": "CartPole-v1", "wrappers": ["TimeAwareObservation", CLIPPED]}, marks=FULL),
        pytest.param({"env": "ALE/Pong-v5", "wrappers": ["GrayscaleObservation"]}, marks=FULL),
    ],
    ids=str,
)
def test_minari_recovers_the_env_of_a_job(settings: Any, minari: Any, tmp_path: Path) -> None:
    """Steps of the env that Minari makes have the same bits."""
    if settings["env"].startswith("ALE"):
        pytest.importorskip("ale_py")
    run_job(Job(**settings, episodes=2, max_episode_steps=15, backend="dummy", num_envs=2), tmp_path / "a")
    export(tmp_path / "a", "minari", tmp_path / "out")
    with closing(minari.MinariDataset(tmp_path / "out/data").recover_environment()) as env:
        for stored in Dataset(tmp_path / "a"):
            steps = [env.reset(seed=stored.seed), *map(env.step, stored.action)]
            np.testing.assert_array_equal(np.array([step[0] for step in steps], stored.obs.dtype), stored.obs)
            assert [step[1] for step in steps[1:]] == stored.reward.tolist()


@FULL
@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (None, "no job wrote it"),
        ({"env": "antigravity:Fly-v0"}, "antigravity:Fly-v0 is not registered"),
        ({"env": "CartPole-v1", "transforms": ["RewardSum"]}, "gymnasium.make cannot make its transforms"),
        ({"env": "Objects-v0"}, "Callable found"),
    ],
)
def test_without_the_whole_spec_minari_has_none(
    job: Any, reason: str, minari: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gymnasium.register("Objects-v0", entry_point=lambda: gymnasium.make("CartPole-v1"))
    export(write_one(tmp_path / "a", (OBS, ACTION), job), "minari", tmp_path / "out")
    assert minari.MinariDataset(tmp_path / "out/data").env_spec is None
    (record,) = caplog.records
    assert "the Minari data set cannot recover its env: " in record.message
    assert reason in record.message
    assert "antigravity" not in sys.modules
    gymnasium.registry.pop("Objects-v0")


def test_lerobot_has_pictures_of_one_or_three_channels(tmp_path: Path) -> None:
    """LeRobot 0.6.1 reads other uint8 arrays as int64, and its tools refuse these if the name has "image" in it."""
    pytest.importorskip("PIL")

    def exported(*shape: int) -> tuple[Path, Path]:
        pixels = np.random.default_rng(0).integers(0, 256, (6, *shape), np.uint8)
        name = "x".join(map(str, shape))
        folder = write_one(tmp_path / name, (spaces.Box(0, 255, shape, np.uint8), ACTION), obs=pixels)
        return folder, export(folder, "lerobot", tmp_path / f"out-{name}")

    for shape, expected in (((3, 6, 7), [6, 7, 3]), ((6, 7), [6, 7, 1])):
        folder, out = exported(*shape)
        found = json.loads((out / "meta/info.json").read_text())["features"]["observation.image"]
        assert (found["dtype"], found["shape"]) == ("image", expected)
        assert command("check", folder, out, "--json").json()["obs"] == CUT
    for shape in ((6, 7, 4), (4, 6, 7), (2, 6, 7, 3)):
        with pytest.raises(DatasetError, match="have 1 or 3 channels: record without a frame stack"):
            exported(*shape)


@FULL
def test_lerobot_has_the_times_places_and_statistics_of_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`check` does not read these columns."""
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("collector.store.export.arrow_lerobot.FILE_BYTES", 300)  # several files
    data = Dataset(write(tmp_path / "a"))
    out, every = export(data, "lerobot", tmp_path / "out", fps=10), data.transitions()
    table, info = parquet.read_table(out / "data"), json.loads((out / "meta/info.json").read_text())
    assert (info["fps"], info["total_episodes"], info["total_frames"]) == (10, 6, data.steps)
    done = every.terminated | every.truncated
    columns = {"episode_index": every.episode, "frame_index": every.step, "next.done": done}
    for name, expected in (columns | {"timestamp": (every.step / 10).astype(np.float32)}).items():
        np.testing.assert_array_equal(np.array(table[name]), expected, name)
    episodes = parquet.read_table(out / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    ends = np.cumsum(data.lengths).tolist()
    assert [each["dataset_to_index"] for each in episodes] == ends
    assert [each["dataset_from_index"] for each in episodes] == [0, *ends[:-1]]
    assert episodes[-1]["data/file_index"] > 1
    for each, episode_of in zip(episodes, data, strict=True):
        file = info["data_path"].format(chunk_index=each["data/chunk_index"], file_index=each["data/file_index"])
        assert parquet.read_table(out / file)["episode_index"].to_pylist().count(each["episode_index"]) == len(
            episode_of
        )
        found = [each[f"stats/next.reward/{name}"][0] for name in ("mean", "q50", "count")]
        assert found == [episode_of.reward.mean(), np.median(episode_of.reward), len(episode_of)]
    stats = json.loads((out / "meta/stats.json").read_text())["next.reward"]
    np.testing.assert_allclose([stats["mean"][0], stats["std"][0]], [every.reward.mean(), every.reward.std()], 1e-6)


@FULL
@pytest.mark.parametrize("terminates", [False, True])
def test_d3rlpy_has_pictures_with_channels_first_and_no_last_one_after_a_termination(
    terminates: bool, tmp_path: Path
) -> None:
    """d3rlpy takes the next observation of a step from the next row, and zeros after a terminated episode."""
    h5py = pytest.importorskip("h5py")
    pixels, last = np.random.default_rng(0).integers(0, 256, (6, 8, 9, 4), np.uint8), np.arange(5) == 4
    folder = write_one(tmp_path / "a", obs=pixels, terminated=last & terminates, truncated=last & (not terminates))
    with h5py.File(export(folder, "d3rlpy", tmp_path / "out.h5")) as file:
        assert file["terminated_0"][()] == terminates
        np.testing.assert_array_equal(file["observations_0"], np.moveaxis(pixels, 3, 1)[: 6 - terminates])
        assert file["actions_0"].shape == file["rewards_0"].shape == (6 - terminates, 1)


# What an export leaves behind.


@FULL
def test_a_user_without_a_home_folder_exports_to_a_path(
    minari: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container with an unknown user."""
    for name in ("HOME", "MINARI_DATASETS_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", Mock(side_effect=KeyError))
    words = ["export", write(tmp_path / "a"), "--to", "minari"]
    done = command(*words)
    assert (done.code, "set MINARI_DATASETS_PATH, or pass --out" in done.error) == (2, True)
    assert command(*words, "--out", tmp_path / "b").code == 0


@each
def test_an_export_is_whole_or_not_there(to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(FORMATS[to])
    data = Dataset(write(tmp_path / "a"))
    first, full = next(data.blocks()), OSError(28, "No space left on device")

    def fails(self: Dataset, nbytes: int = 0) -> Any:
        yield first
        raise full

    with monkeypatch.context() as patch:
        patch.setattr(Dataset, "blocks", fails)
        patch.setattr(Dataset, "__iter__", lambda self: (each for block in fails(self) for each in block))
        if to == "lerobot":
            patch.setattr("pyarrow.parquet.write_table", Mock(side_effect=[None, full]))
        with pytest.raises(DatasetError, match="No space left on device"):
            export(data, to, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"a"}
    export(data[1:3], to, tmp_path / "out")


@each
def test_an_export_leaves_other_folders_alone(to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two exports to one place at once have a folder each."""
    pytest.importorskip(FORMATS[to])
    data = Dataset(write(tmp_path / "a"))
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial/thesis.tex").write_text("ten years")
    rename = "link" if to in SUFFIXES else "rename"
    move, others = getattr(os, rename), [lambda: export(data, to, tmp_path / "out")]

    def late(*arguments: Any) -> None:
        """Another export has ended meanwhile."""
        if others:
            others.pop()()
        move(*arguments)

    monkeypatch.setattr(os, rename, late)
    with pytest.raises(DatasetError, match=r"cannot write .*out: "):
        export(data, to, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "out", "out.partial"}
    assert (tmp_path / "out.partial/thesis.tex").exists()
