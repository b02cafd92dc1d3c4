"""Names in a stored job: listed and trusted names run; all other names neither run nor import code."""

from __future__ import annotations

import inspect
import json
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from collector import Dataset, DatasetError
from collector.__main__ import main, script
from collector.jobs.dataset_info import dataset_info
from collector.jobs.job import JobError
from collector.jobs.job_files import load_job
from collector.jobs.job_runner import resume_job, run_job
from collector.jobs.names import TRANSFORMS, WRAPPERS, check_names
from collector.jobs.replay import make_videos, replay_episodes
from collector.store.export import export
from tests.support.backends import FULL
from tests.support.cases import NEW_IN_1_3
from tests.support.hostile import Canary
from tests.support.job_envs import job
from vecenv import transforms

pytest.importorskip("imageio_ffmpeg")
pytest.importorskip("imageio.v2")

MODULE = "imports_leave_a_file"
"""Module that a stored job may name. Its import creates the file CANARY."""
CALLED = {"path": "CANARY"}


def wrapper(name: str, /, **kwargs: Any) -> dict[str, Any]:
    return {"wrappers": [{"call": name, "kwargs": kwargs}]}


def transform(name: str, /, **kwargs: Any) -> dict[str, Any]:
    return {"transforms": [{"call": name, "kwargs": kwargs}]}


def env(name: str, /, **kwargs: Any) -> dict[str, Any]:
    return {"env": name, "env_kwargs": kwargs}


def policy(name: str, /, **kwargs: Any) -> dict[str, Any]:
    return {"policy": name, "policy_kwargs": kwargs}


NAMES: dict[str, dict[str, Any]] = {
    # Attributes of attributes
    "a_module_in_a_module": transform("vecenv.engine.engine:os.mkdir", **CALLED),
    "a_submodule": transform("gymnasium.wrappers:rendering.os.mkdir", **CALLED),
    "an_import_by_a_module": transform("gymnasium.envs.registration:importlib.import_module", name=MODULE),
    "an_env_by_a_walk": env("gymnasium:envs.registration.make", id=f"{MODULE}:X-v0"),
    "a_policy_by_a_walk": policy("gymnasium.wrappers.rendering:os.mkdir"),
    # Names with two underscores
    "a_loader_alone": transform("__loader__"),
    "a_class_of_a_module": transform("__class__", name="x"),
    "the_globals_of_a_function": transform("vecenv.transforms:VecNorm.__init__.__globals__", **CALLED),
    # Functions that a module has imported
    "a_loader_of_envs": transform("gymnasium.envs.registration:load_env_creator", name=f"{MODULE}:x"),
    "make": transform("gymnasium.envs.registration:make", id=f"{MODULE}:X-v0"),
    "make_as_an_env": env("gymnasium:make", id=f"{MODULE}:X-v0"),
    "make_from_where_it_is": env("gymnasium.envs.registration:make", id=f"{MODULE}:X-v0"),
    "make_vec": env("vecenv:make_vec", id=f"{MODULE}:X-v0", num_envs=1),
    "a_spec_of_a_module": transform("gymnasium.envs.registration:spec", env_id=f"{MODULE}:X-v0"),
    "an_env_that_makes_envs": env("vecenv:GymEnv", env_name=f"{MODULE}:X-v0"),
    "the_same_by_its_module": env("vecenv.envs.gym_env:GymEnv", env_name=f"{MODULE}:X-v0"),
    "an_env_that_its_kwargs_name": env("GymV26Environment-v0", env_id=f"{MODULE}:X-v0"),
    "the_same_of_any_version": env("GymV21Environment", env_id=f"{MODULE}:X-v0"),
    "a_loader_of_jobs": transform("collector.jobs.names:load_attr", name=f"{MODULE}:x", what="x"),
    # Builtins
    "partial": transform("functools:partial", **CALLED),
    "mkdir": transform("os:mkdir", **CALLED),
    "mkdir_by_its_other_name": transform("posix:mkdir", **CALLED),
    "eval": policy("builtins:eval"),
    "exec": policy("builtins:exec"),
    "an_import": transform("builtins:__import__", name=MODULE),
    "an_open_file": transform("builtins:open", file="CANARY", mode="w"),
    "a_process": transform("subprocess:run", args=["touch", "CANARY"]),
    "a_script": transform("runpy:run_path", path_name="MODULE.py"),
    "a_module_that_runs": transform("runpy:run_module", mod_name=MODULE),
    "a_joke": env("this:X-v0"),
    # Modules that come with the folder
    "an_id_with_a_module": env(f"{MODULE}:X-v0"),
    "a_function": env(f"{MODULE}:make"),
    "a_wrapper": wrapper(f"{MODULE}:Wrapper"),
    "a_policy": policy(f"{MODULE}:policy"),
    "a_module_behind_a_known_one": env(f"ale_py:{MODULE}:X-v0"),
    "a_module_behind_a_known_name": env(f"ALE/{MODULE}:X-v0"),
    "a_namespace_that_is_a_module": env(f"ale_py:ALE/{MODULE}:X-v0"),
    "a_module_in_a_package": wrapper(f"gymnasium.wrappers.{MODULE}:Wrapper"),
    "a_relative_module": wrapper(f".{MODULE}:Wrapper"),
    "no_module": wrapper(":Wrapper"),
    "no_name": wrapper(f"{MODULE}:"),
    # Classes that are not in the list
    "a_video": wrapper("gymnasium.wrappers:RecordVideo", video_folder="CANARY"),
    "a_video_by_its_name": wrapper("RecordVideo", video_folder="CANARY"),
    "a_function_of_observations": wrapper("TransformObservation", func="print", observation_space=None),
    "a_library_of_arrays": wrapper("gymnasium.wrappers:ArrayConversion", env_xp=MODULE, target_xp=MODULE),
    "several_transforms": transform("Compose", transforms=[{"call": "os:mkdir", "kwargs": CALLED}]),
    "what_is_no_transform": transform("TransformedEnv", env=None),
    "a_module_that_is_no_transform": transform("images"),
    "an_id_that_no_env_has": env("CartPole-v1\nthis:X-v0"),
}
"""Changes of a stored job, by the kind of name."""

QUICK = (
    *("a_module_in_a_module", "a_submodule", "an_env_by_a_walk", "a_policy_by_a_walk", "a_loader_alone"),
    *("the_globals_of_a_function", "make_as_an_env", "a_process", "an_id_with_a_module", "a_policy"),
    *("a_video", "several_transforms", "an_id_that_no_env_has"),
)

DATA: dict[str, dict[str, Any]] = {
    "a_call_in_a_transform": transform("CatFrames", N={"call": "os:mkdir", "kwargs": CALLED}, dim=-1),
    "a_call_in_a_wrapper": wrapper("FrameStackObservation", stack_size={"call": "os:mkdir", "kwargs": CALLED}),
    "a_call_in_an_env": env("CartPole-v1", render_mode={"call": "os:mkdir", "kwargs": CALLED}),
    "another_id_for_make": env("CartPole-v1", id=f"{MODULE}:X-v0"),
    "a_call_in_a_policy": policy("mlp", hidden={"call": "os:mkdir", "kwargs": CALLED}),
    "a_dtype": transform("DTypeCast", dtype_in="float32", dtype_out=f"{MODULE}.x"),
    "a_file_of_statistics": {"transforms": [{"call": "VecNorm", "frozen": "CANARY.pickle"}]},
    "pickled_weights": {"policy": "mlp", "device": "cpu", "checkpoint": "CANARY.pickle"},
    "pickled_weights_elsewhere": {"policy": "mlp", "device": "cpu", "checkpoint": "FOLDER/shards/../../canary.pickle"},
}
"""Listed names with hostile values. Values are data, and are never called."""

USES: tuple[Callable[[Path], Any], ...] = (resume_job, lambda folder: replay_episodes(folder, 1), make_videos)


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
    """Change a stored job; CANARY, FOLDER and MODULE.py stand for paths."""
    head = json.loads((folder / "dataset.json").read_text())
    head["job"] |= changes
    text = json.dumps(head)
    for name, path in (("MODULE.py", f"{canary}.py"), ("CANARY", canary), ("FOLDER", folder)):
        text = text.replace(name, str(path))
    (folder / "dataset.json").write_text(text)


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    shutil.copytree(good, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """File that must not be created."""
    path = tmp_path / "canary"
    code = f"from pathlib import Path\nPath({str(path)!r}).touch()\nmake = Wrapper = policy = x = print\n"
    (tmp_path / f"{MODULE}.py").write_text(code)
    (tmp_path / "canary.py").write_text(code)
    (tmp_path / "canary.pickle").write_bytes(pickle.dumps(Canary(path)))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield path
    sys.modules.pop(MODULE, None)


class TestNames:
    @pytest.mark.parametrize(
        "names", [QUICK, pytest.param(sorted(NAMES.keys() - {*QUICK}), marks=FULL)], ids=["", "all"]
    )
    def test_what_is_not_in_the_list_is_refused(self, names: Sequence[str], folder: Path, canary: Path) -> None:
        head = (folder / "dataset.json").read_bytes()
        before, files = {*sys.modules}, {*folder.rglob("*")}
        for name in names:
            (folder / "dataset.json").write_bytes(head)
            change(folder, NAMES[name], canary)
            for use in USES:
                with pytest.raises(JobError, match=r"the job that is stored in .*data names "):
                    use(folder)
            assert not canary.exists(), name
            assert {*sys.modules} == before, name
            assert {*folder.rglob("*")} == files, name

    @pytest.mark.parametrize(
        "name", ["a_call_in_a_transform", *(pytest.param(each, marks=FULL) for each in [*DATA][1:])]
    )
    def test_data_is_called_by_nobody(self, name: str, folder: Path, canary: Path) -> None:
        change(folder, DATA[name], canary)
        for use in USES[:2]:
            with pytest.raises((JobError, TypeError, AttributeError)):
                use(folder)
        assert not canary.exists()
        assert MODULE not in sys.modules

    def test_the_commands_say_so(self, folder: Path, canary: Path, capsys: Any) -> None:
        change(folder, NAMES["a_module_in_a_module"], canary)
        for command in (["resume", str(folder)], ["video", str(folder)], ["verify", str(folder), "--replay", "1"]):
            assert main(command) == 2
            assert (
                "names 'vecenv.engine.engine:os.mkdir' as a transform, which --allow-import cannot allow"
                in capsys.readouterr().err
            )
        assert not canary.exists()

    @pytest.mark.parametrize(
        ("command", "is_found"), [("info {}", 0), ("resume {}", 0), ("resume {} --allow-import a", 1)]
    )
    def test_a_module_beside_the_data_is_found_on_demand(
        self, command: str, is_found: int, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        change(folder, env("a:make"))
        monkeypatch.setattr(sys, "argv", ["vecenv-collect", *command.format(folder).split()])
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.chdir(folder)
        script()
        assert sys.path.count(str(folder)) == is_found

    @FULL
    @pytest.mark.usefixtures("fonts")
    def test_what_only_looks_at_a_folder_resolves_no_name(self, folder: Path, canary: Path, tmp_path: Path) -> None:
        several: dict[str, Any] = {"env": f"{MODULE}:$\\frac$", "policy": f"{MODULE}:policy", "wrappers": []}
        several["transforms"] = [each for change in NAMES.values() for each in change.get("transforms", ())]
        change(folder, several, canary)
        assert dataset_info(folder)["statistics"] == []
        assert main(["info", str(folder)]) == 0
        assert main(["plot", str(folder)]) == 0
        assert main(["verify", str(folder)]) == 0
        assert Dataset(folder).head["job"]["env"] == f"{MODULE}:$\\frac$"
        for target in ("parquet", "lerobot", "minari"):
            export(folder, target, tmp_path / target)
        assert not canary.exists()
        assert MODULE not in sys.modules

    def test_all_modules_are_named_at_once_with_their_flags(self, folder: Path, capsys: Any) -> None:
        names = {**env("a:X-v0"), **wrapper("b.c:W"), **transform("b.c:T"), **policy("d:p")}
        change(folder, names)
        assert main(["resume", str(folder), "--allow-import", "d"]) == 2
        message = capsys.readouterr().err
        assert "names 'a:X-v0', 'b.c:W', 'b.c:T'" in message
        assert "pass --allow-import a --allow-import b.c (in a program: allow_import=['a', 'b.c'])" in message

    def test_the_rest_of_a_head_is_checked_before_anything_is_imported(self, folder: Path, canary: Path) -> None:
        change(folder, {**env(f"{MODULE}:make"), **wrapper("other_module:Wrapper")})
        with pytest.raises(JobError, match="pass --allow-import other_module "):
            resume_job(folder, allow_import=[MODULE])
        change(folder, {**env(f"{MODULE}:make"), **wrapper(f"{MODULE}:os.mkdir")})
        with pytest.raises(JobError, match=r"as a wrapper, which --allow-import cannot allow"):
            resume_job(folder, allow_import=[MODULE])
        assert not canary.exists()


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
_hidden = make_env
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


class TestAllowed:
    @pytest.fixture(autouse=True)
    def own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        (tmp_path / "own_package").mkdir()
        (tmp_path / "own_package/__init__.py").write_text(OWN)
        (tmp_path / "own_package/inner.py").write_text(INNER)
        monkeypatch.syspath_prepend(str(tmp_path))
        yield
        for name in ("own_package", "own_package.inner"):
            sys.modules.pop(name, None)
        gymnasium.registry.pop("InOwn-v0", None)

    def test_what_the_module_defines_goes_on(self, good: Path, tmp_path: Path) -> None:
        names = [env(f"own_package:{name}") for name in ("make_env", "InOwn-v0", "CartPole-v1")]
        names += [wrapper("own_package:Own"), wrapper("own_package:Again")]
        for i, changes in enumerate(names):
            folder = Path(shutil.copytree(good, tmp_path / str(i)))
            change(folder, changes)
            assert resume_job(folder, allow_import=["own_package"]).status == "complete", changes

    @pytest.mark.parametrize("version", ["", "-v0", "-v1", "-v00", "-v\u0660"])
    @pytest.mark.parametrize("own", ["GymV21Environment", "GymV26Environment"])
    def test_no_prefix_allows_an_env_that_its_kwargs_name(
        self, own: str, version: str, folder: Path, canary: Path
    ) -> None:
        for prefix in ("", "own_package:", "own_package.inner:", "gymnasium:", "ale_py:"):
            change(folder, env(f"{prefix}{own}{version}", env_id=f"{MODULE}:X-v0"))
            for use in (resume_job, partial(replay_episodes, count=1)):
                with pytest.raises(JobError, match="which --allow-import cannot allow"):
                    use(folder, allow_import=["own_package", "own_package.inner", "gymnasium", "ale_py"])
        change(folder, env(f":{own}{version}", env_id=f"{MODULE}:X-v0"))
        for use in (resume_job, partial(replay_episodes, count=1)):
            with pytest.raises(DatasetError, match="env must be a name or module:name"):
                use(folder, allow_import=["own_package"])
        assert not canary.exists()

    def test_what_it_has_from_elsewhere_does_not(self, folder: Path) -> None:
        inner = r"is defined in own_package\.inner: if .*, pass --allow-import own_package\.inner"
        names = (
            (wrapper("own_package:mkdir"), "own_package:mkdir', .*, not a class or function that a module defines"),
            (wrapper("own_package:os"), "not a class or function that"),
            (wrapper("own_package:instance"), "not a class or function that"),
            (policy("own_package:bound"), "not a class or function that"),
            (
                wrapper("own_package:loads"),
                "is defined in json: if you trust that module, pass --allow-import json too",
            ),
            (wrapper("own_package:JSONDecoder"), r"defined in json\.decoder: if .*--allow-import json\.decoder too"),
            (wrapper("own_package:Shifted"), inner),
            (env("own_package:make_inner"), inner),
            (wrapper("own_package:TimeLimit"), r"is defined in gymnasium\.wrappers\.common"),
            (wrapper("own_package:Own.Nested"), "which --allow-import cannot allow"),
            (wrapper("own_package:__builtins__"), "which --allow-import cannot allow"),
            (wrapper("own_package:__loader__"), "which --allow-import cannot allow"),
            (wrapper("own_package:absent"), "there is no 'absent' in own_package"),
            (env("own_package:None-v0"), "there is no env None-v0 in own_package"),
            (env("own_package:GymV26Environment-v0"), "which --allow-import cannot allow"),
            (wrapper("own_package.inner:Shifted"), r"pass --allow-import own_package\.inner "),
        )
        head = (folder / "dataset.json").read_bytes()
        for changes, message in names:
            (folder / "dataset.json").write_bytes(head)
            change(folder, changes)
            with pytest.raises(JobError, match=message):
                resume_job(folder, allow_import=["own_package"])

    def test_a_name_at_two_places_needs_both_modules(self, folder: Path) -> None:
        change(folder, wrapper("own_package:Shifted"))
        state = resume_job(folder, allow_import=["own_package", "own_package.inner"])
        assert state.status == "complete"

    def test_the_job_of_a_program_or_file_names_what_it_likes(self, tmp_path: Path) -> None:
        (tmp_path / "job.toml").write_text(
            'env = "own_package:make_inner"\nwrappers = ["own_package:Own.Nested"]\n'
            'episodes = 2\nnum_envs = 1\nbackend = "dummy"\n'
        )
        own = load_job(tmp_path / "job.toml")
        assert run_job(own, tmp_path / "a").status == "complete"
        with pytest.raises(JobError, match=r"If you have the job file, resume with: .* run FILE --out .* --resume"):
            resume_job(tmp_path / "a", allow_import=["own_package", "own_package.inner"])
        assert resume_job(tmp_path / "a", own).status == "complete"


class TestTheList:
    def test_known_names_need_no_flag(self, tmp_path: Path) -> None:
        known = job(
            episodes=2,
            num_envs=1,
            wrappers=("FlattenObservation", "gymnasium.wrappers:TimeAwareObservation"),
            transforms=("StepCounter", "vecenv.transforms:RewardSum"),
        )
        run_job(known, tmp_path / "a")
        assert replay_episodes(tmp_path / "a", 2) == {0: "", 1: ""}

    def test_an_env_of_ale_is_known_by_both_names(self) -> None:
        for name in ("ALE/Pong-v5", "ale_py:ALE/Pong-v5"):
            check_names(job(env=name), (), "a")

    def test_wrappers_take_data_alone(self) -> None:
        for name in WRAPPERS - {"JaxToNumpy", "JaxToTorch", "NumpyToTorch"}:  # the libraries may be missing
            kind: Any = getattr(gymnasium.wrappers, name, None)
            if kind is None:
                assert name in NEW_IN_1_3
                continue
            assert issubclass(kind, gymnasium.Wrapper)
            taken = str(inspect.signature(kind))
            assert not any(word in taken for word in ("Callable", "ModuleType", "func", "folder", "path")), name

    def test_a_new_transform_is_listed_or_left_out(self) -> None:
        found = {name for name in transforms.__all__ if issubclass(getattr(transforms, name), transforms.Transform)}
        assert found - {"Compose", "EnvTransform", "Transform"} == TRANSFORMS
