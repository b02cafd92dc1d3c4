"""Each export is read back by the library of its format, and equals the episodes bit for bit."""

from __future__ import annotations

import io
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

from collector import Dataset, DatasetError, Job, StoreWriter, export, make_head, run_job
from collector.__main__ import main
from collector.jobs.replay import difference, repeat_actions
from collector.store.export import SUFFIXES, check_export
from collector.store.shard_layout import arrays_of, is_of_obs
from tests.support.backends import FULL
from tests.support.stored import ACTION, OBS, episode, tree_episode, write
from vecenv import nest

pytestmark = pytest.mark.usefixtures("no_fsync")
FORMATS = {"parquet": "pyarrow", "lerobot": "pyarrow", "minari": "minari"}
FORMATS |= dict.fromkeys(("d3rlpy", "robomimic", "ogbench"), "h5py")
"""Each with the library that it needs."""
each = pytest.mark.parametrize("to", ["parquet", *(pytest.param(to, marks=FULL) for to in [*FORMATS][1:])])
made = pytest.mark.parametrize("make", [episode, tree_episode])


@pytest.fixture
def minari() -> Any:
    return pytest.importorskip("minari")


def expected_arrays(data: Dataset) -> dict[str, np.ndarray]:
    """All episodes as the arrays of one shard."""
    (block,) = data.blocks(2**40)
    return arrays_of(block)


def array_of(column: Any, about: Any) -> np.ndarray:
    """A column of Parquet as the array that schema.json describes."""
    if str(column.type).startswith("fixed_size_binary"):
        return np.frombuffer(b"".join(column.to_pylist()), about["dtype"]).reshape(-1, *about["shape"])
    return np.array(column.to_pylist(), about["dtype"])


@FULL
@made
def test_parquet(make: Any, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    data = Dataset(write(tmp_path / "a", make=make))
    out = export(data, "parquet", tmp_path / "out")
    steps, episodes = parquet.read_table(out / "steps"), parquet.read_table(out / "episodes")
    columns, last = json.loads((out / "schema.json").read_text())["columns"], np.array(steps["is_last"])
    assert [*columns] == steps.column_names
    assert not any("." in name for name in columns)
    found = {tuple(about["path"]): array_of(steps[name], about) for name, about in columns.items()}
    assert data.layout is not None
    for path, name in nest.items(data.layout.names):
        expected, rows = expected_arrays(data)[name], found[path]
        assert (rows.dtype, rows.shape[1:]) == (expected.dtype, expected.shape[1:])
        np.testing.assert_array_equal(rows if is_of_obs(name) else rows[~last], expected)
    assert np.array(steps["step"])[last].tolist() == data.lengths.tolist()
    assert np.flatnonzero(steps["is_first"]).tolist() == (np.cumsum(data.lengths + 1) - data.lengths - 1).tolist()
    assert np.array(steps["is_terminal"])[last].tolist() == [bool(each.terminated[-1]) for each in data]
    assert not np.array(steps["is_terminal"])[~last].any()
    assert episodes["seed"].to_pylist() == [1000 + n for n in range(6)]
    assert episodes["return"].to_pylist() == data.returns.tolist()


def test_tables_of_parquet_do_not_mix(tmp_path: Path) -> None:
    """A reader of the whole folder fails at schema.json, instead of mixing rows of steps and episodes."""
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    out = export(write(tmp_path / "a"), "parquet", tmp_path / "out")
    with pytest.raises(arrow.ArrowInvalid, match=r"schema\.json"):
        parquet.read_table(out)


@pytest.mark.parametrize(
    ("keys", "columns"),
    [(("arm.pos", "image"), ["obs_arm_pos", "obs_image"]), (("arm.pos", "arm_pos"), ["obs_0", "obs_1"])],
)
def test_columns_of_dicts_have_names_of_their_own(keys: Any, columns: list[str], tmp_path: Path) -> None:
    """Lance refuses names with a dot."""
    pytest.importorskip("pyarrow")
    space, steps = spaces.Dict({key: spaces.Box(-1, 1, (2, 3)) for key in keys}), len(episode(0)) + 1
    with StoreWriter(tmp_path / "a", make_head(space, ACTION)) as writer:
        writer.add(episode(0, obs={key: np.zeros((steps, 2, 3), np.float32) for key in space}))
        writer.end()
    out = export(tmp_path / "a", "parquet", tmp_path / "out")
    described = json.loads((out / "schema.json").read_text())["columns"]
    found = {name: about["path"] for name, about in described.items() if name.startswith("obs")}
    assert found == dict(zip(columns, [["obs", key] for key in space], strict=True))


@FULL
@made
def test_minari(make: Any, minari: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Dataset(write(tmp_path / "a", make=make))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    with pytest.raises(TypeError, match=r"Minari takes texts as metadata.*'algorithm_name': 5"):
        export(data, "minari", tmp_path / "minari/vecenv/numbers-v0", algorithm_name=5)
    export(data, "minari", tmp_path / "minari/vecenv/numbers-v0", description="numbers", author="Ada")
    found = minari.load_dataset("vecenv/numbers-v0")
    assert (found.total_episodes, found.total_steps) == (6, data.steps)
    assert found.observation_space == data.observation_space
    assert (found.storage.metadata["description"], found.storage.metadata["author"]) == ("numbers", {"Ada"})
    assert [note["seed"] for note in found.storage.get_episode_metadata(range(6))] == [1000 + n for n in range(6)]
    for ours, theirs in zip(data, found.iterate_episodes(), strict=True):
        nest.merge(lambda pair: np.testing.assert_array_equal(*pair), [ours.obs, theirs.observations])
        nest.merge(lambda pair: np.testing.assert_array_equal(*pair), [ours.action, theirs.actions])
        np.testing.assert_array_equal(ours.reward, theirs.rewards)
        np.testing.assert_array_equal(ours.terminated, theirs.terminations)


@FULL
def test_pictures_are_lossless_in_minari(minari: Any, tmp_path: Path) -> None:
    for shape in ((84, 84), (84, 84, 1), (84, 84, 3), (84, 84, 4), (3, 64, 64)):
        pixels, folder = np.random.default_rng(0).integers(0, 256, (6, *shape), np.uint8), tmp_path / str(shape)
        with StoreWriter(folder / "a", make_head(spaces.Box(0, 255, shape, np.uint8), spaces.Discrete(5))) as writer:
            writer.add(episode(0, obs=pixels))
            writer.end()
        export(folder / "a", "minari", os.path.relpath(folder / "out"))
        (found,) = minari.MinariDataset(folder / "out/data").iterate_episodes()
        np.testing.assert_array_equal(found.observations, pixels)


@pytest.mark.parametrize(
    "settings",
    [
        {"env": "Pendulum-v1", "env_kwargs": {"g": 1.0}},
        pytest.param({"env": "gymnasium.envs.classic_control:PendulumEnv", "env_kwargs": {"g": 2.0}}, marks=FULL),
        pytest.param(
            {
                "env": "CartPole-v1",
                "wrappers": ["TimeAwareObservation", {"call": "ClipReward", "kwargs": {"max_reward": 0.5}}],
            },
            marks=FULL,
        ),
        pytest.param({"env": "ALE/Pong-v5", "wrappers": ["GrayscaleObservation"]}, marks=FULL),
    ],
    ids=str,
)
def test_minari_recovers_the_env_of_a_job(settings: Any, minari: Any, tmp_path: Path) -> None:
    """Steps of the env that Minari makes have the same bits."""
    if settings["env"].startswith("ALE"):
        pytest.importorskip("ale_py")
    job = Job(**settings, episodes=2, max_episode_steps=15, backend="dummy", num_envs=2)
    run_job(job, tmp_path / "a")
    export(tmp_path / "a", "minari", tmp_path / "out")
    with closing(minari.MinariDataset(tmp_path / "out/data").recover_environment()) as env:
        for stored in Dataset(tmp_path / "a"):
            assert difference(stored, repeat_actions(env, stored)) == ""


@FULL
def test_minari_does_not_combine_data_of_different_envs(
    minari: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minari 0.5.4 compares specs only. It combines data sets without specs."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    for name, gravity in (("moon", 1.6), ("earth", 9.8)):
        job = Job(env="Pendulum-v1", env_kwargs={"g": gravity}, episodes=1, max_episode_steps=5, backend="dummy")
        run_job(job, tmp_path / f"jobs/{name}")
        export(tmp_path / f"jobs/{name}", "minari", tmp_path / f"pendulum/{name}-v0")
    both = [minari.load_dataset(f"pendulum/{name}-v0") for name in ("moon", "earth")]
    with pytest.raises(ValueError, match="different values for `env_spec`"):
        minari.combine_datasets(both, "pendulum/both-v0")


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
    with StoreWriter(tmp_path / "a", make_head(OBS, ACTION, job)) as writer:
        writer.add(episode(0))
        writer.end()
    export(tmp_path / "a", "minari", tmp_path / "out")
    assert minari.MinariDataset(tmp_path / "out/data").env_spec is None
    (record,) = caplog.records
    assert "the Minari data set cannot recover its env: " in record.message
    assert reason in record.message
    assert "antigravity" not in sys.modules
    gymnasium.registry.pop("Objects-v0")


@FULL
@made
def test_lerobot(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pictures = pytest.importorskip("PIL.Image")
    data = Dataset(write(tmp_path / "a", make=make))
    assert data.layout is not None
    monkeypatch.setattr("collector.store.export.arrow_lerobot.FILE_BYTES", data.layout.nbytes(data.steps, 0) // 4)
    with pytest.raises(ValueError, match="fps must be an integer of at least 1, got 0"):
        export(data, "lerobot", tmp_path / "out", fps=0)
    out = export(data, "lerobot", tmp_path / "out", fps=10, task="count")
    info = json.loads((out / "meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0"
    assert (info["total_episodes"], info["total_frames"], info["fps"]) == (6, data.steps, 10)
    table = parquet.read_table(out / "data")
    assert set(table.column_names) == info["features"].keys()
    every = data.transitions()
    if make is episode:
        np.testing.assert_array_equal(np.stack(table["observation.state"].to_pylist()), every.obs)
        np.testing.assert_array_equal(table["action"].to_pylist(), every.action)
    else:
        decoded = [
            np.array(pictures.open(io.BytesIO(cell["bytes"]))) for cell in table["observation.pixels"].to_pylist()
        ]
        np.testing.assert_array_equal(decoded, every.obs["pixels"])
        np.testing.assert_array_equal(table["observation.pose.1"].to_pylist(), every.obs["pose"][1])
        np.testing.assert_array_equal(np.stack(table["action.move"].to_pylist()), every.action["move"])
    np.testing.assert_array_equal(table["next.reward"].to_pylist(), every.reward)
    np.testing.assert_array_equal(table["next.done"].to_pylist(), every.terminated | every.truncated)
    assert table["frame_index"].to_pylist() == every.step.tolist()
    assert table["episode_index"].to_pylist() == every.episode.tolist()
    np.testing.assert_allclose(table["timestamp"].to_pylist(), every.step / 10, atol=1e-6)
    episodes = parquet.read_table(out / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [each["dataset_to_index"] for each in episodes] == np.cumsum(data.lengths).tolist()
    assert episodes[-1]["data/file_index"] > 1
    for each in episodes:
        file = info["data_path"].format(chunk_index=each["data/chunk_index"], file_index=each["data/file_index"])
        assert (
            parquet.read_table(out / file)["episode_index"].to_pylist().count(each["episode_index"]) == each["length"]
        )
    first = data[0]
    assert episodes[0]["stats/next.reward/mean"] == [first.reward.mean()]
    assert episodes[0]["stats/next.reward/q50"] == [np.quantile(first.reward, 0.5)]
    assert episodes[0]["stats/next.reward/count"] == [len(first)]
    if make is tree_episode:  # a statistic per channel
        pixels = first.obs["pixels"][:-1] / 255
        np.testing.assert_allclose(np.ravel(episodes[0]["stats/observation.pixels/std"]), pixels.std((0, 1, 2)))
    stats = json.loads((out / "meta/stats.json").read_text())
    np.testing.assert_allclose(stats["next.reward"]["mean"], [every.reward.mean()], atol=1e-6)
    np.testing.assert_allclose(stats["next.reward"]["std"], [every.reward.std()], atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "feature"),
    [((3, 6, 7), [6, 7, 3]), ((6, 7), [6, 7, 1]), ((6, 7, 4), None), ((4, 6, 7), None), ((2, 6, 7, 3), None)],
)
def test_lerobot_has_pictures_of_one_or_three_channels(shape: Any, feature: Any, tmp_path: Path) -> None:
    """LeRobot 0.6.1 reads other uint8 arrays as int64, and its tools refuse these if the name has "image" in it."""
    pytest.importorskip("PIL")
    pixels = np.random.default_rng(0).integers(0, 256, (6, *shape), np.uint8)
    with StoreWriter(tmp_path / "a", make_head(spaces.Box(0, 255, shape, np.uint8), ACTION)) as writer:
        writer.add(episode(0, obs=pixels))
        writer.end()
    if feature is None:
        with pytest.raises(DatasetError, match="have 1 or 3 channels: record without a frame stack"):
            export(tmp_path / "a", "lerobot", tmp_path / "out")
        return
    out = export(tmp_path / "a", "lerobot", tmp_path / "out")
    found = json.loads((out / "meta/info.json").read_text())["features"]["observation.image"]
    assert (found["dtype"], found["shape"]) == ("image", feature)
    assert check_export(tmp_path / "a", out)["obs"] == "equal, without the last row"


WITHOUT_NAMES = {"number": "not stored", "seed": "not stored", "env_id": "not stored"}
NOT_HELD: dict[str, dict[str, str]] = {
    "parquet": {},
    "minari": {},
    "lerobot": {**dict.fromkeys(("obs.pixels", "obs.pose.0", "obs.pose.1"), "equal, without the last row")},
    "d3rlpy": {"obs": "equal (3 episodes); equal, without the last row (3 episodes)", "truncated": "not stored"},
    "robomimic": dict.fromkeys(("terminated", "truncated"), "not stored"),
    "ogbench": dict.fromkeys(("reward", "terminated", "truncated"), "not stored"),
}


@each
def test_an_export_is_compared_with_its_data_set(to: str, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip(FORMATS[to])
    make = tree_episode if to in ("parquet", "minari", "lerobot") else episode
    data, suffix = Dataset(write(tmp_path / "a", make=make)), SUFFIXES.get(to, "")
    out = export(data, to, tmp_path / f"out{suffix}")
    found = check_export(data, out)
    del found["spaces, job, versions"]
    names = {} if to in ("parquet", "minari") else WITHOUT_NAMES
    assert found == dict.fromkeys(found, "equal") | NOT_HELD[to] | names

    def changed(number: int) -> Any:
        each = make(number)
        leaf = next(nest.leaves(each.action))
        leaf[0] = (leaf[0] + 1) % 5 if number == 2 else leaf[0]
        return each

    with StoreWriter(tmp_path / "b", data.head) as writer:
        writer.add([changed(number) for number in range(6)])
        writer.end()
    assert main(["check", str(tmp_path / "b"), str(out)]) == 1
    assert "DIFFERENT in 1 of 6 episodes" in capsys.readouterr().out
    assert check_export(data[:4], out)["episodes"] == "DIFFERENT: the data set has 4, and 4 are compared"
    with pytest.raises(DatasetError, match="a is not an export"):
        check_export(data, tmp_path / "a")


@FULL
@pytest.mark.parametrize(
    ("to", "columns", "message"),
    [
        ("d3rlpy", {"action": np.arange(5) - 2}, "integer actions that d3rlpy cannot count from 0"),
        ("d3rlpy", {"action": np.zeros((5, 2), np.int64)}, "integer actions that d3rlpy cannot count from 0"),
        ("robomimic", {"reward": np.zeros((5, 2))}, "rewards or actions with several parts, which robomimic"),
        ("ogbench", {"obs": {"a": np.zeros(6), "b": np.zeros(6)}}, "observations of several arrays, which OGBench"),
    ],
)
def test_what_trainers_cannot_hold_is_refused(to: str, columns: Any, message: str, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    with StoreWriter(tmp_path / "a", make_head()) as writer:
        writer.add(episode(0, **columns))
        writer.end()
    with pytest.raises(DatasetError, match=message):
        export(tmp_path / "a", to, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"a"}


@FULL
def test_d3rlpy_has_the_last_observation_of_truncated_episodes_and_pictures_with_channels_first(tmp_path: Path) -> None:
    """d3rlpy 2.8.1 takes the next observation of a step from the next row, and zeros after a terminated episode."""
    h5py = pytest.importorskip("h5py")
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 9, 4), np.uint8)
    with StoreWriter(tmp_path / "a", make_head()) as writer:
        for number in (1, 0):  # odd numbers terminate, even numbers are truncated
            writer.add(episode(number, 5, obs=pixels))
        writer.end()
    with h5py.File(export(tmp_path / "a", "d3rlpy", tmp_path / "out.h5")) as file:
        assert [bool(file[f"terminated_{i}"][()]) for i in (0, 1)] == [False, True]
        np.testing.assert_array_equal(file["observations_0"], np.moveaxis(pixels, 3, 1))
        np.testing.assert_array_equal(file["observations_1"], np.moveaxis(pixels, 3, 1)[:5])
        assert (file["actions_0"].shape, file["rewards_1"].shape) == ((6, 1), (5, 1))


@each
def test_the_command(to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """`export DIR --to FORMAT`, with and without `--out`."""
    pytest.importorskip(FORMATS[to])
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    data = Dataset(write(tmp_path / "a"))
    chosen = {"minari": "mine/numbers-v0"}.get(to, str(tmp_path / f"chosen{SUFFIXES.get(to, '')}"))
    for out in ([], ["--out", chosen]):
        assert main(["export", str(data.folder), "--to", to, *out]) == 0
        where = Path(capsys.readouterr().out.strip())
        assert where.exists()
        if to == "minari":
            assert sys.modules["minari"].load_dataset("/".join(where.parts[-2:])).total_steps == data.steps
        assert main(["export", str(data.folder), "--to", to, *out]) == 1
        assert f"{where} exists; choose another place" in capsys.readouterr().err
        assert main(["check", str(data.folder), str(where)]) == 0
        assert "DIFFERENT" not in capsys.readouterr().out
    expected = tmp_path / "minari/mine/numbers-v0" if to == "minari" else Path(chosen)
    assert where == expected


@FULL
def test_a_user_without_a_home_folder_exports_to_a_path(
    minari: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """As in a container with an unknown user."""
    for name in ("HOME", "MINARI_DATASETS_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", Mock(side_effect=KeyError))
    command = ["export", str(write(tmp_path / "a")), "--to", "minari"]
    assert main(command) == 2
    assert "set MINARI_DATASETS_PATH, or pass --out" in capsys.readouterr().err
    assert main([*command, "--out", str(tmp_path / "b")]) == 0


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
    with pytest.raises(DatasetError, match=r"out exists; choose another place"):
        export(data, to, tmp_path / "out")
    with pytest.raises(DatasetError, match="data set or slice has no episodes"):
        export(data[:0], to, tmp_path / "other")


@each
def test_an_export_into_a_data_set_is_refused(to: str, tmp_path: Path) -> None:
    """Writers refuse a folder with files of other programs, so the job could not be resumed."""
    pytest.importorskip(FORMATS[to])
    data, other = Dataset(write(tmp_path / "a")), write(tmp_path / "b")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    names = {path.name for path in other.iterdir()}
    for out in (tmp_path / "a/out", tmp_path / "b/deep/out", tmp_path / "link/out"):
        with pytest.raises(DatasetError, match=r"out is inside of the data set .*[ab]; choose another place"):
            export(data, to, out)
    assert [{path.name for path in (tmp_path / each).iterdir()} for each in "ab"] == [names] * 2


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


@pytest.mark.parametrize("to", ["parquet", "lerobot"])
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"a": spaces.Box(0, 1, (0,)), "b": spaces.Discrete(2)}, r"^obs\.a has .* which {to} cannot store"),
        ({"arm/pos": spaces.Discrete(2), "arm_pos": spaces.Discrete(2)}, "become the feature 'observation.arm_pos'"),
    ],
)
def test_what_has_no_columns_of_its_own_is_refused(to: str, parts: Any, message: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    space, steps = spaces.Dict(parts), len(episode(0)) + 1
    obs = {key: np.zeros((steps, *part.shape), part.dtype) for key, part in space.items()}
    with StoreWriter(tmp_path / "a", make_head(space, ACTION)) as writer:
        writer.add(episode(0, obs=obs))
        writer.end()
    if to == "parquet" and "arm/pos" in parts:  # which has a column for each array
        assert export(tmp_path / "a", to, tmp_path / "out").exists()
        return
    with pytest.raises(DatasetError, match=message.format(to={"parquet": "Parquet", "lerobot": "LeRobot"}[to])):
        export(tmp_path / "a", to, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@FULL
def test_what_minari_cannot_know_is_an_error(minari: Any, tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "a", make_head(OBS, None)) as writer:
        writer.add(episode(0))
        writer.end()
    with pytest.raises(DatasetError, match="no spaces in its head"):
        export(tmp_path / "a", "minari", tmp_path / "out")
    with pytest.raises(
        ValueError, match="to must be one of parquet, lerobot, minari, d3rlpy, robomimic, ogbench, got 'zarr'"
    ):
        export(tmp_path / "a", "zarr", tmp_path / "out")


@FULL
@pytest.mark.parametrize("key", ["c/d", "", ".", "a\0"])
def test_keys_that_no_minari_file_can_hold_are_refused(key: str, minari: Any, tmp_path: Path) -> None:
    space = spaces.Dict({"a": spaces.Tuple([spaces.Dict({key: spaces.Discrete(2)})])})
    obs = {"a": ({key: np.zeros(len(episode(0)) + 1, np.int64)},)}
    with StoreWriter(tmp_path / "a", make_head(space, ACTION)) as writer:
        writer.add(episode(0, obs=obs))
        writer.end()
    with pytest.raises(DatasetError, match=r"observation\['a'\]\[0\] has the key .*: export as Parquet"):
        export(tmp_path / "a", "minari", tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"a"}
