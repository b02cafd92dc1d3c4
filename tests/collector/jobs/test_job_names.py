"""Names in a stored job: listed and trusted names run; all other names neither run nor import code."""

from __future__ import annotations

import inspect
import itertools
import json
import pickle
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from collector import Dataset, JobError, export, load_job, resume_job, run_job
from tests.support.backends import FULL
from tests.support.command_line import command, script
from tests.support.commands import COMMAND
from tests.support.hostile import Canary
from tests.support.job_envs import assert_same, job
from vecenv import transforms

pytest.importorskip("imageio_ffmpeg")
pytest.importorskip("imageio.v2")

MODULE = "imports_leave_a_file"
"""Module that a stored job may name. Its import creates the file CANARY."""
OTHER = f"{MODULE}:X-v0"


def named(kind: str, name: str, /, **kwargs: Any) -> dict[str, Any]:
    """Return a change of a stored job that names code. CANARY is a path."""
    if kind in ("wrapper", "transform"):
        return {f"{kind}s": [{"call": name, "kwargs": kwargs}]}
    return {kind: name, f"{kind}_kwargs": kwargs}


QUICK: tuple[tuple[str, str, dict[str, Any]], ...] = (
    # Attributes of attributes, and names with two underscores
    ("transform", "vecenv.engine.engine:os.mkdir", {"path": "CANARY"}),
    ("env", "gymnasium:envs.registration.make", {"id": OTHER}),
    ("policy", "gymnasium.wrappers.rendering:os.mkdir", {}),
    ("transform", "__loader__", {}),
    ("transform", "vecenv.transforms:VecNorm.__init__.__globals__", {"path": "CANARY"}),
    # Functions that a module has imported, and builtins
    ("env", "gymnasium:make", {"id": OTHER}),
    ("transform", "subprocess:run", {"args": ["touch", "CANARY"]}),
    # Modules that come with the folder
    ("env", OTHER, {}),
    ("policy", f"{MODULE}:policy", {}),
    # Classes that are not in the list
    ("wrapper", "gymnasium.wrappers:RecordVideo", {"video_folder": "CANARY"}),
    ("transform", "Compose", {"transforms": [{"call": "os:mkdir", "kwargs": {"path": "CANARY"}}]}),
    ("env", "CartPole-v1\nthis:X-v0", {}),
)
MORE: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("env", f"ale_py:{MODULE}:X-v0", {}),
    ("env", f"ALE/{MODULE}:X-v0", {}),
    ("env", f"ale_py:ALE/{MODULE}:X-v0", {}),
    ("wrapper", f"gymnasium.wrappers.{MODULE}:Wrapper", {}),
    ("wrapper", f".{MODULE}:Wrapper", {}),
    ("wrapper", ":Wrapper", {}),
    ("wrapper", f"{MODULE}:", {}),
    ("wrapper", "TransformObservation", {"func": "print", "observation_space": None}),
    ("wrapper", "gymnasium.wrappers:ArrayConversion", {"env_xp": MODULE, "target_xp": MODULE}),
    ("transform", "TransformedEnv", {"env": None}),
    ("transform", "images", {}),
)
CALL = {"call": "os:mkdir", "kwargs": {"path": "CANARY"}}
DATA: tuple[dict[str, Any], ...] = (
    named("transform", "CatFrames", N=CALL, dim=-1),
    named("wrapper", "FrameStackObservation", stack_size=CALL),
    named("env", "CartPole-v1", render_mode=CALL),
    named("env", "CartPole-v1", id=OTHER),
    named("policy", "mlp", hidden=CALL),
    named("transform", "DTypeCast", dtype_in="float32", dtype_out=f"{MODULE}.x"),
    {"transforms": [{"call": "VecNorm", "frozen": "CANARY.pickle"}]},
    {"policy": "mlp", "device": "cpu", "checkpoint": "CANARY.pickle"},
    {"policy": "mlp", "device": "cpu", "checkpoint": "FOLDER/shards/../../canary.pickle"},
)
"""Listed names with hostile values. Values are data, and are never called."""
USES = (["resume", "--no-plot"], ["verify", "--replay", "1"], ["video"])


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An incomplete data set."""
    folder = tmp_path_factory.mktemp("good") / "data"
    run_job(job(episodes=3, num_envs=1), folder)
    lines = (folder / "manifest.jsonl").read_text().splitlines(keepends=True)
    assert lines.pop().startswith('{"line": "end"')
    (folder / "manifest.jsonl").write_text("".join(lines))
    change(folder, {"episodes": 5})
    return folder


def change(folder: Path, changes: dict[str, Any], canary: Path | None = None) -> None:
    """Change a stored job; CANARY and FOLDER stand for paths."""
    head = json.loads((folder / "dataset.json").read_text())
    head["job"] |= changes
    text = json.dumps(head).replace("CANARY", str(canary)).replace("FOLDER", str(folder))
    (folder / "dataset.json").write_text(text)


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "data"))


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """File that must not be created."""
    path = tmp_path / "canary"
    code = f"from pathlib import Path\nPath({str(path)!r}).touch()\nmake = Wrapper = policy = x = print\n"
    (tmp_path / f"{MODULE}.py").write_text(code)
    (tmp_path / "canary.pickle").write_bytes(pickle.dumps(Canary(path)))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield path
    assert not path.exists()
    assert MODULE not in sys.modules


@pytest.mark.parametrize("names", [QUICK, pytest.param(MORE, marks=FULL)], ids=["", "more"])
def test_a_name_that_is_not_in_the_list_is_refused(names: Any, folder: Path, canary: Path) -> None:
    head = (folder / "dataset.json").read_bytes()
    for words in USES:  # imports what the commands need
        command(*words, folder)
    before, files = {*sys.modules}, {*folder.rglob("*")}
    for kind, name, kwargs in names:
        (folder / "dataset.json").write_bytes(head)
        change(folder, named(kind, name, **kwargs), canary)
        for words in USES:
            done = command(*words, folder)
            assert (done.code, f"the job that is stored in {folder} names " in done.error) == (2, True), name
        assert not canary.exists(), name
        assert {*sys.modules} == before, name
        assert {*folder.rglob("*")} == files, name


@pytest.mark.parametrize("hostile", [DATA[:1], pytest.param(DATA[1:], marks=FULL)], ids=["", "more"])
def test_data_is_called_by_nobody(hostile: Any, folder: Path, canary: Path) -> None:
    head = (folder / "dataset.json").read_bytes()
    for changes in hostile:
        (folder / "dataset.json").write_bytes(head)
        change(folder, changes, canary)
        for use in (lambda: resume_job(folder), lambda: command("verify", folder, "--replay", "1").code == 0):
            try:
                assert not use(), changes
            except (JobError, TypeError, AttributeError):
                continue
        assert not canary.exists(), changes


def test_a_module_beside_the_data_is_found_on_demand(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(folder, named("env", "a:make"))
    monkeypatch.chdir(folder)
    for words, is_found in (("info {}", 0), ("resume {}", 0), ("resume {} --allow-import a", 1)):
        monkeypatch.setattr(sys, "argv", ["vecenv-collect", *words.format(folder).split()])
        monkeypatch.setattr(sys, "path", [*sys.path])
        script()
        assert sys.path.count(str(folder)) == is_found, words


@FULL
@pytest.mark.usefixtures("fonts")
def test_what_only_looks_at_a_folder_resolves_no_name(folder: Path, canary: Path, tmp_path: Path) -> None:
    several: dict[str, Any] = {"env": f"{MODULE}:$\\frac$", "policy": f"{MODULE}:policy", "wrappers": []}
    several["transforms"] = [{"call": name, "kwargs": kwargs} for kind, name, kwargs in QUICK if kind == "transform"]
    change(folder, several, canary)
    assert command("info", folder, "--json").json()["statistics"] == []
    for word in ("info", "plot", "verify"):
        assert command(word, folder).code == 0
    assert Dataset(folder).head["job"]["env"] == f"{MODULE}:$\\frac$"
    for target in ("parquet", "lerobot", "minari"):
        export(folder, target, tmp_path / target)


def test_all_modules_are_named_at_once_with_their_flags_before_an_import(folder: Path, canary: Path) -> None:
    many = {**named("env", OTHER), **named("wrapper", "b.c:W"), **named("transform", "b.c:T"), **named("policy", "d:p")}
    change(folder, many)
    done = command("resume", folder, "--allow-import", MODULE, "--allow-import", "d")
    assert done.code == 2
    assert "names 'b.c:W', 'b.c:T'" in done.error
    assert "pass --allow-import b.c (in a program: allow_import=['b.c'])" in done.error
    change(folder, {**many, **named("wrapper", f"{MODULE}:os.mkdir")})
    with pytest.raises(JobError, match=r"as a wrapper, which --allow-import cannot allow"):
        resume_job(folder, allow_import=[MODULE, "b.c", "d"])


OWN = """
import functools, os
from os import mkdir
from json import loads, JSONDecoder
import gymnasium
from gymnasium.wrappers import TimeLimit
from own_package.inner import Shifted, make_inner

class Own(gymnasium.Wrapper):
    class Nested(gymnasium.Wrapper):
        pass

def make_env(**kwargs):
    return gymnasium.make("CartPole-v1", **kwargs)

Again = Own
instance = object()
bound = functools.partial(make_env)
gymnasium.register("InOwn-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=500,
    additional_wrappers=(gymnasium.wrappers.FlattenObservation.wrapper_spec(),))
"""
INNER = """
import gymnasium

class Shifted(gymnasium.Wrapper):
    pass

def make_inner():
    return gymnasium.make("CartPole-v1")
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package/__init__.py").write_text(OWN)
    (tmp_path / "own_package/inner.py").write_text(INNER)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("own_package", "own_package.inner"):
        sys.modules.pop(name, None)
    gymnasium.registry.pop("InOwn-v0", None)


BOTH = ["own_package", "own_package.inner"]


@pytest.mark.usefixtures("own")
def test_what_a_trusted_module_defines_runs(good: Path, tmp_path: Path) -> None:
    for kind, name, allowed in (
        *(("env", name, BOTH[:1]) for name in ("make_env", "InOwn-v0", "CartPole-v1")),
        *(("wrapper", name, BOTH[:1]) for name in ("Own", "Again")),
        ("wrapper", "Shifted", BOTH),  # a name at two places needs both modules
    ):
        folder = shutil.copytree(good, tmp_path / name)
        change(folder, named(kind, f"own_package:{name}"))
        assert resume_job(folder, allow_import=allowed).status == "complete", name


NEVER = "which --allow-import cannot allow"
NOT_DEFINED = "not a class or function that"
IN_INNER = r"is defined in own_package\.inner: if .*, pass --allow-import own_package\.inner"


@pytest.mark.usefixtures("own")
def test_what_a_trusted_module_has_from_elsewhere_does_not_run(folder: Path) -> None:
    names = (
        *(("wrapper", name, NOT_DEFINED) for name in ("mkdir", "os", "instance")),
        ("policy", "bound", NOT_DEFINED),
        ("wrapper", "loads", "is defined in json: if you trust that module, pass --allow-import json too"),
        ("wrapper", "JSONDecoder", r"defined in json\.decoder: if .*--allow-import json\.decoder too"),
        ("wrapper", "Shifted", IN_INNER),
        ("env", "make_inner", IN_INNER),
        ("wrapper", "TimeLimit", r"is defined in gymnasium\.wrappers\.common"),
        *(("wrapper", name, NEVER) for name in ("Own.Nested", "__builtins__", "__loader__")),
        ("wrapper", "absent", "there is no 'absent' in own_package"),
        ("env", "None-v0", "there is no env None-v0 in own_package"),
    )
    head = (folder / "dataset.json").read_bytes()
    for kind, name, message in names:
        (folder / "dataset.json").write_bytes(head)
        change(folder, named(kind, f"own_package:{name}"))
        with pytest.raises(JobError, match=message):
            resume_job(folder, allow_import=["own_package"])


@pytest.mark.usefixtures("own")
def test_no_prefix_allows_an_env_that_its_kwargs_name(folder: Path, canary: Path) -> None:
    envs, versions = ("GymV21Environment", "GymV26Environment"), ("", "-v0", "-v00", "-v\u0660")
    prefixes = ("", "own_package:", "own_package.inner:", "gymnasium:", "ale_py:")
    for name in map("".join, itertools.product(prefixes, envs, versions)):
        change(folder, named("env", name, env_id=OTHER))
        with pytest.raises(JobError, match=NEVER):
            resume_job(folder, allow_import=[*BOTH, "gymnasium", "ale_py"])


@pytest.mark.usefixtures("own")
def test_the_job_of_a_program_or_file_names_what_it_likes(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(
        'env = "own_package:make_inner"\nwrappers = ["own_package:Own.Nested"]\n'
        'episodes = 2\nnum_envs = 1\nbackend = "dummy"\n'
    )
    own_job = load_job(tmp_path / "job.toml")
    assert run_job(own_job, tmp_path / "a").status == "complete"
    with pytest.raises(JobError, match=r"If you have the job file, resume with: .* run FILE --out .* --resume"):
        resume_job(tmp_path / "a", allow_import=BOTH)
    assert resume_job(tmp_path / "a", own_job).status == "complete"


def test_a_folder_may_not_name_a_command(tmp_path: Path) -> None:
    """An env that a command hosts plays the episodes of other envs."""
    settings = {"episodes": 6, "num_envs": 1, "max_episode_steps": 20}
    by_command = job(**settings, backend="subproc", worker_command=COMMAND)
    run_job(by_command, tmp_path / "a")
    with pytest.raises(JobError, match=r"stored in .* names the worker_command .*which runs a program"):
        resume_job(tmp_path / "a")
    assert resume_job(tmp_path / "a", by_command).episodes == 6
    run_job(job(**settings), tmp_path / "b")
    assert_same(tmp_path / "a", tmp_path / "b")


# The list.


def test_listed_names_need_no_flag(tmp_path: Path) -> None:
    wrappers = ("FlattenObservation", "gymnasium.wrappers:TimeAwareObservation")
    chain = ("StepCounter", "vecenv.transforms:RewardSum")
    run_job(job(episodes=2, num_envs=1, wrappers=wrappers, transforms=chain), tmp_path)
    assert command("verify", tmp_path, "--replay", 2).code == 0


def test_an_env_of_ale_is_known_by_both_names(folder: Path) -> None:
    pytest.importorskip("ale_py")
    for name in ("ALE/Pong-v5", "ale_py:ALE/Pong-v5"):
        change(folder, named("env", name))
        with pytest.raises(JobError, match="has changed: observation_space was"):
            resume_job(folder)


def is_listed(folder: Path, kind: str, name: str) -> bool:
    change(folder, {"wrappers": [], "transforms": [], **named(kind, name)})
    try:
        resume_job(folder)
    except Exception as error:  # a listed class may need arguments, or another env
        return "the job that is stored in" not in str(error)
    return True


def test_listed_wrappers_take_data_alone(folder: Path) -> None:
    listed = [name for name in gymnasium.wrappers.__all__ if is_listed(folder, "wrapper", name)]
    assert {"FlattenObservation", "TimeLimit", "FrameStackObservation"} <= {*listed}
    for name in {*listed} - {"JaxToNumpy", "JaxToTorch", "NumpyToTorch"}:  # the libraries may be missing
        assert issubclass(getattr(gymnasium.wrappers, name), gymnasium.Wrapper)
        taken = str(inspect.signature(getattr(gymnasium.wrappers, name)))
        assert not any(word in taken for word in ("Callable", "ModuleType", "func", "folder", "path")), name


def test_all_transforms_are_listed_but_those_that_hold_others(folder: Path) -> None:
    kinds = {name for name in transforms.__all__ if issubclass(getattr(transforms, name), transforms.Transform)}
    found = {name for name in transforms.__all__ if is_listed(folder, "transform", name)}
    assert found == kinds - {"Compose", "EnvTransform", "Transform"}
