"""Jobs as files and command lines: accepted values, and error messages."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest
from gymnasium.wrappers import FlattenObservation

from collector import Dataset, Job, load_job, run_job
from collector.__main__ import main
from collector.jobs.dataset_info import dataset_info
from collector.jobs.job import Call, JobError, as_record
from collector.jobs.job_files import with_settings
from collector.jobs.job_progress import JobState
from collector.jobs.report import make_console, summary
from collector.store import safe_folder
from tests.support.backends import FULL
from tests.support.job_envs import HERE
from tests.support.paths import ROOT
from vecenv.transforms import StepCounter

TOML = """
env = "CartPole-v1"
num_envs = 4
backend = "dummy"
episodes = 12
seed = 3
wrappers = ["gymnasium.wrappers:FlattenObservation"]

[env_kwargs]
sutton_barto_reward = true
"""
YAML = """
env: CartPole-v1
num_envs: 4
backend: dummy
episodes: 12
seed: 3
wrappers: ["gymnasium.wrappers:FlattenObservation"]
env_kwargs: {sutton_barto_reward: true}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cartpole.toml"
    path.write_text(TOML)
    return path


class TestFiles:
    def test_toml_json_and_yaml_say_the_same(self, file: Path, tmp_path: Path) -> None:
        job = load_job(file)
        assert (job.env, job.episodes, job.steps, job.seed) == ("CartPole-v1", 12, None, 3)
        assert job.env_kwargs == {"sutton_barto_reward": True}
        (tmp_path / "a.yaml").write_text(YAML)
        assert load_job(tmp_path / "a.yaml") == job
        file.write_text(TOML, "utf-8-sig")
        assert load_job(file) == job
        names = ("env", "num_envs", "backend", "episodes", "seed", "wrappers", "env_kwargs")
        (tmp_path / "a.json").write_text(json.dumps({name: getattr(job, name) for name in names}))
        assert load_job(tmp_path / "a.json") == job

    def test_what_is_wrong_is_said(self, file: Path) -> None:
        for line, message in (
            ("episods = 3", "a job has no 'episods'; did you mean 'episodes'?"),
            ("colour = 3", "a job has no 'colour'; it has env, episodes, steps, "),
            ("num_workers = 'two'", "num_workers: Expected `int | null`, got `str`: 'two'"),
            ("max_failed = 1.5", "max_failed: Expected `int`, got `float`: 1.5"),
            ("retries = -1", "retries: Expected `int` >= 0, got -1"),
            ("transforms = {call = 'A', kwargs = {a = 2026-01-01}}", "kwargs of A.a: datetime.date(2026, 1, 1) (date)"),
            (
                "transforms = [{call = 'VecNorm', kwargs = {a = [1, nan]}}]",
                "kwargs of VecNorm.a[1]: nan (float) cannot",
            ),
            ("ray.num_cpus = inf", "ray.num_cpus: inf (float) cannot be stored"),
            ("policy_threads = 65537", "policy_threads: Expected `int` <= 65536, got 65537"),
            ("transforms = [{call = 'VecNorm', kwarg = {}}]", "transforms[0]: Object contains unknown field `kwarg`"),
            ("steps = 3", "a job has either episodes = N or steps = N, not both"),
            ("num_workers = 1", "num_workers: the dummy backend has no workers; use backend = "),
            ("step_timeout = 1.5", "step_timeout: the dummy backend cannot end an env that hangs; use backend = "),
            ("recycle_after = 9", "recycle_after: memory that an env leaks is only free after the end of its process"),
            (
                "recycle_after = 0",
                "a number of episodes per env (recycle_after=1000), the memory of a worker with its unit",
            ),
            (
                "recycle_after = '2'",
                '(recycle_after="2 GiB"), or a function that takes a worker and returns a bool, got',
            ),
            ("recycle_after = nan", "recycle_after: Expected `int | str | null`, got `float`"),
            ("spare_envs = 1", "spare_envs: the dummy backend has no worker processes; use backend = "),
            ("spare_envs = -1", "spare_envs: Expected `int` >= 0, got -1"),
            ("step_timeout = nan", "step_timeout: Expected `float` > 0.0, got nan"),
            ("shard_seconds = inf", "shard_seconds: Expected `float` <= 1000000000.0, got inf"),
            ("policy = 'clever'", 'policy must be "random", "mlp" or "module:attr", got \'clever\''),
            ("checkpoint = 'w.pt'", "random actions have no checkpoint"),
            ("device = 'cuda:x'", 'device must be "auto", "cpu", "cuda", "cuda:N" or another'),
            ("env_kwargs.deep = 1", "cannot be read"),
            ("[[", "cannot be read"),
        ):
            file.write_text(f"{line}\n{TOML}")
            with pytest.raises(JobError) as error:
                load_job(file)
            assert str(file) in str(error.value)
            assert message in str(error.value)

    @pytest.mark.parametrize(
        "value", [b"a", {1}, {1: 2}, [np.float32(1)], np.zeros(1), Path("a"), float("inf")], ids=repr
    )
    def test_arguments_that_a_resumed_job_would_read_as_others_are_refused(self, value: Any) -> None:
        with pytest.raises(JobError, match=r"env_kwargs.*cannot be stored"):
            Job(env="CartPole-v1", episodes=1, env_kwargs={"limit": value})
        with pytest.raises(JobError, match="env must be a name or module:name, got ':'"):
            Job(env=":", episodes=1)
        with pytest.raises(JobError, match="seed: Expected `int` <= 9223372036854775807"):
            Job(env="CartPole-v1", episodes=1, seed=2**63)

    def test_tuples_are_lists_as_in_a_resumed_job(self) -> None:
        calls = [Call("ResizeObservation", {"shape": (2, 2)}), "FlattenObservation"]
        options: dict[str, Any] = {"policy": "mlp", "policy_kwargs": {"hidden": (8, 8)}, "wrappers": calls}
        job = Job(env="CartPole-v1", episodes=1, env_kwargs={"deep": [{"size": (1, (2,))}]}, **options)
        assert job.env_kwargs == {"deep": [{"size": [1, [2]]}]}
        assert job.policy_kwargs == {"hidden": [8, 8]}
        assert job.wrappers == (Call("ResizeObservation", {"shape": [2, 2]}), "FlattenObservation")
        assert calls[0].kwargs == {"shape": (2, 2)}
        assert Job(**json.loads(json.dumps(as_record(job)))) == job

    def test_files_that_are_none(self, tmp_path: Path) -> None:
        for name, message in (("job.txt", r"must end in \.toml, \.json"), ("none.toml", "No such file")):
            with pytest.raises(JobError, match=message):
                load_job(tmp_path / name)
        (tmp_path / "list.json").write_text("[1]")
        with pytest.raises(JobError, match="it holds a list"):
            load_job(tmp_path / "list.json")

    def test_settings_take_the_place_of_what_is_there(self, file: Path) -> None:
        job = load_job(file, ["steps=1e3", "env_kwargs.sutton_barto_reward=false", "num_envs=1,000", "policy=mlp"])
        assert (job.steps, job.episodes, job.num_envs, job.policy) == (1000, None, 1000, "mlp")
        assert job.env_kwargs == {"sutton_barto_reward": False}
        assert type(job.steps) is int
        assert with_settings(job, ["checkpoint=NaN"]).checkpoint == "NaN"
        for setting, message in (
            ("steps", "takes name=value"),
            ("step=3", "did you mean 'steps'"),
            ("seed.a=1", "has no"),
            ('env_kwargs={"limit": Infinity}', "is not JSON: Infinity is not a number of JSON"),
        ):
            with pytest.raises(JobError, match=message):
                with_settings(job, [setting])

    def test_whole_floats_are_numbers_and_others_are_not(self) -> None:
        job = Job(env="CartPole-v1", steps=1)
        for text, steps in (("1e3", 1000), ("2.0", 2), ("1,000", 1000), ("9007199254740993", 2**53 + 1)):
            assert with_settings(job, [f"steps={text}"]).steps == steps
        assert (
            with_settings(job, ["ray.memory=4e9"]).ray.memory == Job(env="a", steps=1, ray={"memory": 4e9}).ray.memory
        )
        for text in ("1.5", "1e-3", "nan", "inf", "1e999", "0x10", "many", "0", "-1"):
            with pytest.raises(JobError, match="steps"):
                with_settings(job, [f"steps={text}"])


class Cell(gymnasium.Env):
    """Env class that a program passes to `Job` as an object."""

    observation_space, action_space = gymnasium.spaces.Box(0, 9, (1,)), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return np.ones(1, np.float32), 1.0, True, False, {}


def policy(obs: Any) -> Any:
    return np.zeros(len(obs["step_count"]), int)


class TestPrograms:
    def test_classes_and_functions_are_named(self, tmp_path: Path) -> None:
        job = Job(env=Cell, policy=policy, wrappers=FlattenObservation, transforms=[StepCounter], episodes=3.0)  # type: ignore[arg-type]
        assert (job.env, job.policy, job.episodes) == (f"{__name__}:Cell", f"{__name__}:policy", 3)
        assert (job.wrappers, job.transforms) == (
            ("gymnasium.wrappers:FlattenObservation",),
            ("vecenv.transforms:StepCounter",),
        )
        state = run_job(msgspec.structs.replace(job, backend="dummy", num_envs=1), tmp_path)
        assert state.status == "complete"
        assert repr(state).startswith(f"JobState({__name__}:Cell in {tmp_path}, complete: 3 episodes, 3 steps, ")
        assert repr(state).endswith(" steps/s, mean return 1.0 ± 0.0, 0 skipped)")

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"backend": "shm"}, "backend: Invalid enum value 'shm'; it is one of auto, dummy, ray, shmem,"),
            (
                {"env": lambda: Cell()},
                "env: <function .* cannot be imported by workers and resumed jobs",
            ),
            ({"policy": 3}, "policy: 3 cannot be imported"),
            ({"wrappers": [{"call": "ClipAction", "frozen": "a.json"}]}, "wrappers: `frozen` is for transforms"),
        ],
    )
    def test_values_are_checked_when_a_job_is_made(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(JobError, match=message):
            Job(**{"env": "CartPole-v1", "episodes": 3, **settings})

    def test_help_describes_each_field(self) -> None:
        text = str(inspect.getdoc(Job)).partition("Args:")[2]
        assert re.findall(r"^    (\w+): ", text, re.M) == list(Job.__struct_fields__)

    @pytest.mark.parametrize("backend", ["dummy", pytest.param("shmem", marks=FULL)])
    def test_what_a_program_defines_itself_works_on_every_backend_and_only_there(
        self, backend: str, tmp_path: Path, capsys: Any
    ) -> None:
        code = f"""
import gymnasium
from collector import Job, run_job

class Cell(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 9, (1,)), gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None): return self.observation_space.sample(), {{}}
    def step(self, action): return self.observation_space.sample(), 1.0, True, False, {{}}

for _ in range(2):
    job = Job(env=Cell, backend="{backend}", num_envs=2, episodes=3)
    print(run_job(job, {str(tmp_path / "a")!r}, resume=True).status)
"""
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.stdout == "complete\ncomplete\n"
        assert done.stderr.count("the job names __main__:Cell, which only this script can import") == 1
        assert main(["resume", str(tmp_path / "a"), "--no-plot"]) == 2
        assert "names __main__:Cell, which the script that began the job defines: only this" in capsys.readouterr().err


class TestCommandLine:
    @pytest.mark.usefixtures("fonts")
    def test_a_job_runs_and_is_looked_at(self, file: Path, tmp_path: Path, capsys: Any) -> None:
        folder = tmp_path / "a"
        assert main(["run", str(file), "--set", "seed=4", "--num-envs", "2", "--out", str(folder)]) == 0
        out = capsys.readouterr().out
        assert out.startswith('Job: {"env": "CartPole-v1", "episodes": 12, "seed": 4, "num_envs": 2')
        assert "Collecting 12 episodes of CartPole-v1 from 2 envs into" in out
        assert "\x1b" not in out
        assert (folder / "returns.png").read_bytes().startswith(b"\x89PNG")
        data = Dataset(folder)
        assert (len(data), data.head["job"]["seed"]) == (12, 4)
        assert main(["info", str(folder)]) == 0
        assert "12 of a job of 12 episodes" in capsys.readouterr().out
        assert main(["info", str(folder), "--json"]) == 0
        info = json.loads(capsys.readouterr().out)
        found = [info[name] for name in ("status", "episodes", "steps", "repeatable")]
        assert found == ["complete", 12, data.steps, True]
        assert main(["verify", str(folder), "--replay", "3"]) == 0
        assert "3 of 3 episodes, played again with the policy, are the same bit for bit" in capsys.readouterr().out
        assert main(["plot", str(folder), "--out", str(tmp_path / "b.png")]) == 0
        assert (tmp_path / "b.png").is_file()
        assert main(["resume", str(folder), "--no-plot"]) == 0
        assert "the job was already complete" in capsys.readouterr().out
        assert main(["run", str(file), "--out", str(folder)]) == 1
        assert "--overwrite" in capsys.readouterr().err
        assert main(["run", str(file), "--resume", "--set", "seed=5", "--out", str(folder)]) == 2
        assert "has changed: seed was 4, and is 5" in capsys.readouterr().err

    @pytest.mark.usefixtures("fonts")
    def test_an_env_may_change_the_current_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
    ) -> None:
        (tmp_path / "other").mkdir()
        flags = ["--env", f"{HERE}:Moving", "--env-kwargs", json.dumps({"folder": str(tmp_path / "other")})]
        for command in (["run", *flags, "--episodes", "3", "--backend", "dummy", "--out", "a"], ["resume", "a"]):
            monkeypatch.chdir(tmp_path)
            allowed = ["--allow-import", HERE] if command[0] == "resume" else []
            assert main([*command, *allowed, "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["folder"] == "a"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "other"]
        assert len(Dataset(tmp_path / "a")) == 3
        assert (tmp_path / "a/returns.png").exists()

    @pytest.mark.usefixtures("fonts")
    @pytest.mark.parametrize("command", ["plot", "video"])
    def test_pictures_that_cannot_be_written_are_said_in_a_line(
        self, command: str, tmp_path: Path, capsys: Any
    ) -> None:
        pytest.importorskip("imageio_ffmpeg")
        run_job(Job(env="CartPole-v1", backend="dummy", num_envs=1, episodes=1), tmp_path / "a")
        (tmp_path / "file").touch()
        (tmp_path / "b").mkdir()
        for out in {"plot": ["none/a.png", "b"], "video": ["file/videos", "file"]}[command]:
            assert main([command, str(tmp_path / "a"), "--out", str(tmp_path / out)]) == 1
            assert f"cannot write to {tmp_path / out}: " in capsys.readouterr().err
        assert main([command, str(tmp_path / "a"), "--out", str(tmp_path / "a/my pictures")]) == 1
        assert f"is inside of the data set {tmp_path / 'a'}; choose another place" in capsys.readouterr().err
        assert not (tmp_path / "a/my pictures").exists(), "the job could not be resumed"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "file"]

    @pytest.mark.usefixtures("fonts")
    def test_a_job_whose_picture_cannot_be_written_has_succeeded(
        self, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
    ) -> None:
        def write(fd: int, data: Any) -> None:
            stored(fd, data)
            if isinstance(data, bytes) and data.startswith(b"\x89PNG"):
                raise OSError(28, "No space left on device")

        stored = safe_folder.write
        monkeypatch.setattr(safe_folder, "write", write)
        assert main(["run", str(file), "--out", str(tmp_path / "a")]) == 0
        out = capsys.readouterr().out
        assert "complete" in out
        assert "No space left" in out
        assert not [path for path in (tmp_path / "a").iterdir() if "png" in path.name]

    def test_without_matplotlib_the_advice_is_for_the_command(
        self, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
    ) -> None:
        run_job(Job(env="CartPole-v1", backend="dummy", num_envs=1, episodes=1), tmp_path / "a")
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        for arguments in (["plot", str(tmp_path / "a")], ["run", str(file), "--out", str(tmp_path / "b")]):
            assert main(arguments) == 2
            error = capsys.readouterr().err
            assert "the picture needs matplotlib: pip install 'vecenv[job]'" in error
            assert ("--no-plot" in error) == (arguments[0] == "run")

    def test_the_advice_names_a_folder_with_brackets(self, tmp_path: Path, capsys: Any) -> None:
        for name in ("run[lr=0.1]", "a[/b]"):
            state = JobState(job=Job(env="CartPole-v1", episodes=1), out=tmp_path / name, status="interrupted")
            run_job(Job(env="CartPole-v1", backend="dummy", num_envs=1, episodes=1), tmp_path / name)
            make_console().print(summary(state, dataset_info(tmp_path / name)), soft_wrap=True)
            assert f"python -m collector resume '{tmp_path / name}'" in capsys.readouterr().out
            make_console().print(summary(state, None), soft_wrap=True)  # no episode is stored, perhaps no folder
            assert "To resume, run the same command with --resume" in capsys.readouterr().out

    def test_output_that_cannot_be_written_ends_no_command(self, file: Path, tmp_path: Path) -> None:
        """The terminal cannot encode the folder, or the caller has closed the streams."""
        program, folder = f"{sys.executable} -m collector", tmp_path / "Läufe"
        for command in (
            f"PYTHONIOENCODING=ascii {program} run {file} --no-plot --out {folder}",
            f"{program} verify {folder} >&-",
            f"{program} info {folder} --json <&- >&- 2>&-",
        ):
            subprocess.run(command, shell=True, cwd=ROOT, check=True)

    def test_no_data_gets_the_descriptor_of_a_closed_stream(self, file: Path, tmp_path: Path) -> None:
        code = "import os; from collector.__main__ import main; main(['info', 'none']); os.write(1, b'from C')"
        subprocess.run(f'{sys.executable} -c "{code}" <&- >&-', shell=True, cwd=ROOT, check=True)

    def test_json_is_alone_on_standard_output(self, file: Path, tmp_path: Path, capsys: Any) -> None:
        assert main(["run", str(file), "--no-plot", "--json", "--out", str(tmp_path / "a")]) == 0
        out, error = capsys.readouterr()
        found = [json.loads(out)[name] for name in ("episodes", "status", "interrupted", "skipped")]
        assert found == [12, "complete", False, {}]
        assert "Collecting 12 episodes" in error

    def test_a_dry_run_says_what_would_be_and_does_nothing(
        self, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert main(["run", str(file), "--dry-run", "--backend", "shmem"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["out"] == "data/cartpole"
        assert found["job"]["backend"] == "shmem"
        assert not (tmp_path / "data").exists()

    @pytest.mark.filterwarnings("ignore:.*latest versioned env")
    def test_flags_alone_are_a_job(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert main(["run", "--env", "CartPole", "--steps", "1e2", "--backend", "dummy", "--no-plot"]) == 0
        assert Dataset("data/CartPole").steps >= 100

    def test_arguments_of_an_env_may_have_its_limit(self, tmp_path: Path) -> None:
        flags = [
            "--episodes",
            "3",
            "--backend",
            "dummy",
            "--no-plot",
            "--env",
            "CartPole-v1",
            "--env-kwargs",
            '{"max_episode_steps":5}',
        ]
        for wrapper in ([], ["--wrapper", "FlattenObservation"]):
            assert main(["run", *flags, *wrapper, "--overwrite", "--out", str(tmp_path)]) == 0
            assert Dataset(tmp_path).lengths.tolist() == [5, 5, 5]
        assert main(["run", *flags, "--max-episode-steps", "4", "--overwrite", "--out", str(tmp_path)]) == 0
        assert Dataset(tmp_path).lengths.tolist() == [4, 4, 4]

    def test_what_cannot_be_is_said_without_a_traceback(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for arguments, message in (
            ("run --episodes 3", "a job has an env"),
            ("run --env CartPole-v1", "a job has either episodes = N or steps = N"),
            ("run --env CartPoll-v1 --steps 3", "there is no env CartPoll-v1: "),
            ("run --env CartPole-v1 --steps 0", "steps: Expected `int` >= 1, got 0"),
            ("run --env CartPole-v1 --steps 3 --wrapper {call:x}", "wrappers: {call:x} is not JSON: "),
            (f"run --env {HERE}:Wlak --steps 3 --backend dummy", f"there is no 'Wlak' in {HERE}, which the job names"),
            ("run --env CartPole-v1 --steps 3 --backend ship", "backend: Invalid enum value 'ship'"),
            ("run --env none:X-v0 --steps 3 --backend dummy", "No module named 'none'"),
            (f'run --env CartPole-v1 --steps 3 --policy {HERE}:Mean --policy-kwargs {{"size":3}}', "argument 'size'"),
            (
                f"run --env CartPole-v1 --steps 3 --policy {HERE}:Takes",
                "makes its policy by Takes(observation_space, action_space), which failed: Takes() takes no arguments",
            ),
            ('run --env CartPole-v1 --steps 3 --policy mlp --policy-kwargs {"hidden":0}', "hidden must be an integer"),
            ("run --env math:pi --steps 3 --backend dummy", "math:pi is 3.14"),
            ("run --env os:getcwd --steps 3 --backend dummy", "expected an env with step and reset"),
            ("run --env gymnasium.wrappers:ClipAction --steps 3 --backend dummy", "required positional argument"),
            ("run --env CartPole-v1 --steps 3 --backend dummy --wrapper math:pi", "math:pi is 3.14"),
            ("run --env CartPole-v1 --steps 3 --backend dummy --wrapper TimeLimit", "required positional argument"),
            (
                "run --env CartPole-v1 --steps 3 --backend shmem --wrapper ClipAction",
                "the wrapper ClipAction cannot be ",
            ),
            (
                'run --env CartPole-v1 --steps 3 --transform {"call":"Resize","kwargs":{"height":3}}',
                "the transforms of CartPole-v1 cannot be made: Resize",
            ),
            ('run --env CartPole-v1 --steps 3 --env-kwargs {"id":3}', "multiple values for argument 'id'"),
            ("plot none --out a.jpg", "--out names a PNG file, got a.jpg"),
            ("run none.toml", "none.toml cannot be read: No such file"),
            (f"run {HERE}:Counting", f"is not a job file; to name an env, pass --env {HERE}:Counting"),
            ("resume none", "start it again: python -m collector run FILE --out none --resume"),
            ("info none", "none holds no collected episodes"),
            ("verify none --replay -1", "--replay must be at least 0, got -1"),
            ("video none --num-workers 0", "--num-workers must be at least 1, got 0"),
        ):
            no_plot = ["--no-plot"] if arguments.startswith("run ") else []
            assert main([*arguments.split(), *no_plot]) in (1, 2)
            error = capsys.readouterr().err
            assert error.count(message) == 1
            assert "Traceback" not in error
            assert not [*tmp_path.glob("data/*")], "no folder stays of a job that has not begun"

    def test_a_command_that_is_none_is_named(self, capsys: Any) -> None:
        for arguments, message in (
            (["runn", "x.toml"], "Available subcommands: run, resume, info, "),
            (["--env", "CartPole-v1"], "Arguments are applied to the directly preceding subcommand"),
        ):
            with pytest.raises(SystemExit) as ended:
                main(arguments)
            assert ended.value.code == 2
            error = capsys.readouterr().err
            assert arguments[0] in error
            assert message in error

    @pytest.mark.parametrize("device", ["cuda", "tpu"])
    def test_a_device_that_is_not_there_is_an_error(self, device: str, file: Path, tmp_path: Path, capsys: Any) -> None:
        if pytest.importorskip("torch").cuda.is_available() and device == "cuda":
            pytest.skip("there is a CUDA device")
        flags = ["--policy", "mlp", "--device", device, "--no-plot", "--out", str(tmp_path / "a")]
        assert main(["run", str(file), *flags]) == 2
        assert f"PyTorch sees 0 {device.upper()} devices; use 'cpu' or 'auto'" in capsys.readouterr().err

    def test_an_env_whose_episodes_never_end_is_noted(self, tmp_path: Path, capsys: Any) -> None:
        options = ["--env", "Pendulum-v1", "--max-episode-steps", "400", "--steps", "100", "--num-envs", "1"]
        assert main(["run", *options, "--backend", "dummy", "--no-plot", "--out", str(tmp_path / "a")]) == 0
        assert capsys.readouterr().out.count("note: no episode has ended in 1") == 1

    def test_tensorboard_that_is_missing_is_said_before_anything_is_written(
        self, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
    ) -> None:
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
        assert main(["run", str(file), "--tensorboard", "--no-plot", "--out", str(tmp_path / "a")]) == 2
        assert "pip install tensorboard" in capsys.readouterr().err
        assert not (tmp_path / "a").exists()

    @FULL
    def test_help_needs_few_libraries_and_an_error_names_those_that_a_run_needs(self, tmp_path: Path) -> None:
        """One program forks a child for each missing library."""
        command = f"run --env CartPole-v1 --steps 9 --out {tmp_path / 'a'}".split()
        code = (
            "import os, sys\n"
            "if not os.fork():\n"
            "    from collector.__main__ import main\n"
            "    try: main(['run', '--help'])\n"
            "    finally: print([name for name in ('torch', 'rich', 'matplotlib') if name in sys.modules])\n"
            "print('help:', os.wait()[1])\n"
            "for library in ('msgspec', 'tyro', 'rich', 'matplotlib'):\n"
            "    sys.stdout.flush()\n"
            "    if not os.fork():\n"
            "        sys.modules[library] = None\n"
            "        from collector.__main__ import main\n"
            f"        sys.exit(main({command}))\n"
            "    print(library, os.waitstatus_to_exitcode(os.wait()[1]))\n"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0
        lines = done.stdout.splitlines()
        assert lines[-6:] == ["[]", "help: 0", "msgspec 2", "tyro 2", "rich 2", "matplotlib 2"]
        assert "--num-envs" in done.stdout
        assert done.stderr.count("pip install 'vecenv[job]'") == 4
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "a").exists()
