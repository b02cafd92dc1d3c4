"""Messages of data sets, exports, jobs and their commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from gymnasium import spaces

from collector import (
    Dataset,
    DatasetError,
    Job,
    JobError,
    RecordEpisodes,
    StoreWriter,
    export,
    load_job,
    make_head,
    run_job,
)
from tests.messages.rows import NOTHING, Row, Subject, rows_for
from tests.support.command_line import command
from tests.support.job_envs import HERE, job
from tests.support.simulators import Simulator
from tests.support.stored import ACTION, OBS, episode, head, text_episode, write, write_one
from vecenv import from_gymnasium, nest


@contextmanager
def _folder() -> Iterator[Path]:
    with TemporaryDirectory() as name:
        yield Path(name)


IN_FOLDER = Subject(_folder)


# Writers. A refused call adds nothing, and the writer goes on.


@contextmanager
def _writer(**columns: Any) -> Iterator[StoreWriter]:
    with _folder() as folder, StoreWriter(folder / "a", make_head() if columns else head()) as writer:
        writer.add(episode(1, **columns))
        yield writer


def _goes_on(writer: StoreWriter, **columns: Any) -> None:
    writer.add(episode(7, **columns))
    writer.end()
    assert Dataset(writer.folder).numbers.tolist() == [1, 7]


def adds(error: type[Exception], *says: str, **columns: Any) -> tuple[Any, ...]:
    """Return a row: a writer refuses an episode with these columns."""
    return lambda writer: writer.add(episode(2, **columns)), error, *says


WRITER = Subject(_writer, _goes_on)
FITS = "do not fit the {} space of the data set: {}"
EPISODES = rows_for(
    WRITER,
    adds(DatasetError, "episode 2 of env 2 has the reward nan in step 1", reward=np.array([1.0, np.nan, 1.0])),
    adds(DatasetError, "episode 2 of env 2 are finite, but their sum is not", reward=np.array([1e308, 1e308, -1e308])),
    adds(
        DatasetError,
        "has [3] observations and [3] actions; expected an action per step",
        obs=np.zeros((3, 3), np.float32),
    ),
    adds(
        DatasetError, "obs holds Python objects such as None; only numbers and texts can be", obs=np.array([None] * 4)
    ),
    adds(DatasetError, "obs holds Python objects such as b'd'", obs=np.array(["a", "b", "c", b"d"], object)),
    adds(DatasetError, "obs is object; only", "one text per step, can be stored", obs=np.array([["a"]] * 4, object)),
    adds(
        DatasetError, r"obs has the text '\ud800', which UTF-8 cannot express", obs=np.array(["a", "\ud800", "b", "c"])
    ),
    adds(DatasetError, "reward holds Python objects; only numbers", reward=np.array(["1", "2", "3"])),
    adds(DatasetError, "obs is complex64", obs=np.zeros((4, 3), np.complex64)),
    adds(DatasetError, "only text can be stored", obs={"\ud800": np.zeros((4, 3), np.float32)}),
    adds(DatasetError, "these episodes have the arrays", obs=np.array(["a"] * 4)),
    adds(DatasetError, "these episodes have the arrays", obs=np.zeros((4, 2), np.float32)),
    adds(DatasetError, "only whole episodes", truncated=np.zeros(3, np.bool_)),
    adds(DatasetError, "only whole episodes", truncated=np.ones(3, np.bool_)),
    adds(DatasetError, "truncated has the shape (3, 1)", truncated=np.ones((3, 1), np.bool_)),
    adds(DatasetError, "episode numbers [1] would occur twice in", number=1),
    adds(DatasetError, "an episode has the env_id -1, expected at least 0", env_id=-1),
    adds(DatasetError, "an episode has the seed -5, expected at least -1", seed=-5),
    adds(DatasetError, "a number or seed of 64 bits or more", seed=2**64),
    adds(DatasetError, "an env_id of 32 bits or more", env_id=2**40),
    adds(DatasetError, "its number must be below", number=2**53),
    *(adds(TypeError, f"{name} must be a whole number", **{name: 1.5}) for name in ("number", "seed", "env_id")),
    adds(TypeError, "seed must be a whole number", seed="1"),
    (lambda writer: writer.commit(state="x" * 2**26), DatasetError, "failures and state have"),
    (
        lambda writer: writer.add([episode(6), episode(8), episode(8)]),
        DatasetError,
        "episode numbers [8] would occur twice in",
    ),
)


@contextmanager
def _empty() -> Iterator[StoreWriter]:
    with _folder() as folder, StoreWriter(folder / "a", head()) as writer:
        yield writer


def _infos(*values: Any) -> dict[str, Any]:
    return {"length": 3, "info": {"x": nest.object_array(list(values))}}


def infos(first: tuple[Any, ...], then: tuple[Any, ...], *says: str) -> Row:
    """Return a row: after an episode with the infos `first`, those of `then` are refused."""
    fitting = _infos(*first) if first else {"length": 3}
    subject = Subject(partial(_writer, **fitting), partial(_goes_on, **fitting))
    (row,) = rows_for(subject, adds(DatasetError, *says, **(_infos(*then) if then else {"length": 3})))
    return row


ONE = Subject(_empty)
EPISODES += [
    infos((1, None, 2), (0.5, 1, 1), "'x' is 0.5 (float64 ()), but the data set has int64 ()"),
    infos(("a", None, "b"), (1, 2, 3), "'x' is 1 (int64 ()), but the data set has text"),
    infos((1, 2, 3), ("c", "d", "d"), "'x' is 'c' (text), but the data set has int64"),
    infos((np.zeros(2),) * 3, (np.zeros(3),) * 3, "(float64 (3,)), but the data set has float64 (2,)"),
    infos((1, 2, 3), (), "these episodes have the arrays"),
    *rows_for(
        ONE,
        adds(
            DatasetError, "observation space of the data set: obs is <f4 2, expected <f4 3", obs=np.zeros((4, 2), "f4")
        ),
        adds(DatasetError, FITS.format("action", "action is <i4, expected <i8"), action=np.zeros(3, np.int32)),
        adds(DatasetError, "entries of 'x',", "name its entries instead, as in ('x.y',)", **_infos(*[{"y": 1}] * 3)),
        adds(
            DatasetError,
            "not numbers, arrays of numbers of one shape, or texts; leave out this key",
            **_infos(np.zeros(2), np.zeros(3), 1),
        ),
        adds(DatasetError, "entries of 'x', such as 'a', are not numbers", **_infos("a", 1, 2)),
        adds(
            DatasetError, "no info of the first episodes that ended has 'x'; leave this key out", **_infos(*[None] * 3)
        ),
        (lambda writer: writer.end(episodes=3), DatasetError, "has no episodes, so it cannot end with 3"),
    ),
]


# Folders.


@contextmanager
def _stored() -> Iterator[Path]:
    with _folder() as folder:
        yield write(folder / "a")


def _is_as_before(folder: Path) -> None:
    assert Dataset(folder).numbers.tolist() == [*range(6)]


STORED = Subject(_stored, _is_as_before)
OTHER = make_head(OBS, ACTION, job={"env": "Numbers-v0", "seed": 1})
FOLDERS = [
    *rows_for(
        STORED,
        (lambda a: StoreWriter(a, head()), DatasetError, "already holds 6 episodes of Numbers-v0: continue it"),
        (
            lambda a: ((a / "thesis.tex").write_text(""), StoreWriter(a, head(), overwrite=True)),
            DatasetError,
            "thesis.tex is not a file of a data set",
        ),
        (lambda a: StoreWriter(a / "b", head()), DatasetError, "b is inside of the data set", "choose another place"),
        (
            lambda a: StoreWriter(a, OTHER, resume=True),
            DatasetError,
            "begun with other settings (job.seed was 0, and is 1)",
        ),
        (lambda a: Dataset(a)[6], IndexError, "range object index out of range"),
        (lambda a: Dataset(a).take([23]), IndexError, "the number of transitions (23)"),
        *(
            (lambda a, wrong=wrong: Dataset(a).take(wrong), IndexError, "one or more integer indices of transitions")
            for wrong in ([], np.ones(23, np.bool_), [0.5], 3, [[3]])
        ),
        (lambda a: Dataset(a)[:0].transitions(), DatasetError, "data set or slice has no episodes"),
        (lambda a: Dataset(a).blocks(0), ValueError, "nbytes must be an integer of at least 1, got 0"),
        *(
            (lambda a, wrong=wrong: Dataset(a).batches(**{"batch_size": 2, "seed": 0, **wrong}), error, says)
            for wrong, error, says in (
                ({"batch_size": 0}, ValueError, "batch_size must be an integer of at least 1, got 0"),
                ({"batch_size": "2"}, TypeError, "batch_size must be a whole number, got '2'"),
                ({"seed": -1}, ValueError, "a seed must be at least 0"),
                ({"seed": True}, ValueError, "a non-negative integer, got True"),
                ({"seed": None}, ValueError, "a non-negative integer, got None"),
                ({"passes": 1.5}, TypeError, "passes must be a whole number, got 1.5"),
            )
        ),
        (lambda a: Dataset(a).as_torch("rows"), ValueError, "'transitions', 'episodes' or 'batches'"),
        (lambda a: Dataset(a).as_torch("batches").set_epoch(-1), ValueError, "epoch must be at least 0, got -1"),
        (lambda a: export(a, "zarr", a.parent / "b"), ValueError, "to must be one of parquet, lerobot, minari, d3rlpy"),
        (lambda a: export(Dataset(a)[:0], "parquet", a.parent / "b"), DatasetError, "slice has no episodes"),
        (
            lambda a: export(a, "lerobot", a.parent / "b", fps=0),
            ValueError,
            "fps must be an integer of at least 1, got 0",
        ),
        (
            lambda a: export(a, "minari", a.parent / "b", algorithm_name=5),
            TypeError,
            "Minari takes texts as metadata",
            "'algorithm_name': 5",
        ),
        (lambda a: checked(a, a), DatasetError, "a is not an export"),
    ),
    *rows_for(
        IN_FOLDER,
        (lambda it: StoreWriter(it / "a", None, resume=True), DatasetError, "there is no dataset"),
        (lambda it: StoreWriter(it / "a", None), DatasetError, "needs a head: pass make_head(...)"),
        (lambda it: StoreWriter(it / "a", make_head(job={"rate": np.nan})), DatasetError, "cannot be written"),
        (
            lambda it: StoreWriter(it / "a", make_head(OBS, ACTION, notes="x" * 2**24)),
            DatasetError,
            "the head of a data set cannot be written: it has",
        ),
        (lambda it: StoreWriter(None, head()), TypeError, "NoneType"),  # type: ignore[arg-type]
        (
            lambda it: RecordEpisodes(from_gymnasium(Simulator(np), has_final_obs=False), it / "a"),
            ValueError,
            "has_final_obs=False",
        ),
        (
            lambda it: ((it / "holiday.png").write_text(""), StoreWriter(it, head(), overwrite=True)),
            DatasetError,
            "has no data set to overwrite",
        ),
    ),
]


class CommandFailed(Exception):
    """The text that a command wrote to standard error, before it ended with 1 or 2."""


def ends(*words: object) -> None:
    """Run a command that fails without a traceback, and without a folder of a job that has not begun."""
    done = command(*words)
    assert done.code in (1, 2)
    assert "Traceback" not in done.error
    raise CommandFailed(done.error)


def checked(folder: Path, out: Path) -> None:
    try:
        ends("check", folder, out)
    except CommandFailed as error:
        raise DatasetError(str(error)) from None


# Exports.


def exports(to: str, obs_space: Any, *says: str, **columns: Any) -> tuple[Any, ...]:
    """Return a row: a format refuses a data set of one episode with these columns, and nothing is left behind."""

    def call(it: Path) -> None:
        write_one(it / "a", (obs_space, ACTION) if obs_space is not None else (None, None), **columns)
        try:
            export(it / "a", to, it / "out")
        finally:
            assert [path.name for path in it.iterdir()] == ["a"]

    return call, DatasetError, *says


def keyed(key: str) -> tuple[Any, Any]:
    """Return a space with this key, and its observations."""
    space = spaces.Dict({"a": spaces.Tuple([spaces.Dict({key: spaces.Discrete(2)})])})
    return space, {"a": ({key: np.zeros(6, np.int64)},)}


def parts(**of: spaces.Space[Any]) -> tuple[Any, Any]:
    return spaces.Dict(of), {key: np.zeros((6, *part.shape), part.dtype) for key, part in of.items()}  # type: ignore[misc]


EMPTY = parts(a=spaces.Box(0, 1, (0,)), b=spaces.Discrete(2))
SAME = parts(**{"arm/pos": spaces.Discrete(2), "arm_pos": spaces.Discrete(2)})
EXPORTS = rows_for(
    IN_FOLDER,
    exports("d3rlpy", None, "integer actions that d3rlpy cannot count from 0", action=np.arange(5) - 2),
    exports("d3rlpy", None, "integer actions that d3rlpy cannot count from 0", action=np.zeros((5, 2), np.int64)),
    exports("robomimic", None, "rewards or actions with several parts, which robomimic", reward=np.zeros((5, 2))),
    exports("ogbench", None, "observations of several arrays, which OGBench", obs={"a": np.zeros(6), "b": np.zeros(6)}),
    exports("parquet", EMPTY[0], "obs.a has", "which Parquet cannot store", obs=EMPTY[1]),
    exports("lerobot", EMPTY[0], "obs.a has", "which LeRobot cannot store", obs=EMPTY[1]),
    exports("lerobot", SAME[0], "become the feature 'observation.arm_pos'", obs=SAME[1]),
    exports("minari", None, "no spaces in its head"),
    *(
        exports("minari", keyed(key)[0], "observation['a'][0] has the key", "export as Parquet", obs=keyed(key)[1])
        for key in ("c/d", "", ".", "a\0")
    ),
    exports(
        "minari", OBS, "info has the key 'a/b', which a Minari file cannot hold: export", info={"a/b": np.zeros(5)}
    ),
    (
        lambda it: export(write(it / "a", make=text_episode), "minari", it / "b"),
        DatasetError,
        "episode 0 has a text with a null character in obs.say",
        "export as Parq",
    ),
    (
        lambda it: export(write(it / "a", make=text_episode), "lerobot", it / "b"),
        DatasetError,
        "LeRobot takes only numbers, but obs.say, action are texts: export as Parquet",
    ),
    (
        lambda it: Dataset(write(it / "a", make=text_episode)).transitions().to_tensordict(),
        TypeError,
        "obs.say are texts, which a TensorDict of tensors cannot hold",
    ),
)


# Jobs.


def of_file(line: str, *says: str, name: str = "cartpole.toml") -> tuple[Any, ...]:
    """Return a row: a job file with this line is refused, and the message names the file."""
    rest = 'env = "CartPole-v1"\nnum_envs = 4\nbackend = "dummy"\nepisodes = 12\n[env_kwargs]\nx = true\n'

    def call(it: Path) -> None:
        (it / name).write_text(f"{line}\n{rest}" if name.endswith(".toml") else line)
        load_job(it / name)

    return call, JobError, f"{name}", *says


FILES = rows_for(
    IN_FOLDER,
    of_file("episods = 3", "a job has no 'episods'; did you mean 'episodes'?"),
    of_file("colour = 3", "a job has no 'colour'; it has env, episodes, steps, "),
    of_file("num_workers = 'two'", "num_workers: Expected `int | null`, got `str`: 'two'"),
    of_file("retries = -1", "retries: Expected `int` >= 0, got -1"),
    of_file("transforms = {call = 'A', kwargs = {a = 2026-01-01}}", "kwargs of A.a: datetime.date(2026, 1, 1) (date)"),
    of_file("transforms = [{call = 'VecNorm', kwargs = {a = [1, nan]}}]", "kwargs of VecNorm.a[1]: nan (float) cannot"),
    of_file("ray.num_cpus = inf", "ray.num_cpus: inf (float) cannot be stored"),
    of_file("transforms = [{call = 'VecNorm', kwarg = {}}]", "transforms[0]: Object contains unknown field `kwarg`"),
    of_file("steps = 3", "a job has either episodes = N or steps = N, not both"),
    of_file("num_workers = 1", "num_workers: the dummy backend has no workers; use backend = "),
    of_file("step_timeout = 1.5", "step_timeout: the dummy backend cannot end an env that hangs; use backend = "),
    of_file("recycle_after = 9", "recycle_after: memory that an env leaks is only free after the end of its process"),
    of_file("recycle_after = 0", "a number of episodes per env (recycle_after=1000), the memory of a worker with its"),
    of_file("recycle_after = '2'", '(recycle_after="2 GiB"), or a function that takes a worker and returns a bool'),
    of_file("spare_envs = 1", "spare_envs: the dummy backend has no worker processes; use backend = "),
    of_file("shard_seconds = inf", "shard_seconds: Expected `float` <= 1000000000.0, got inf"),
    of_file("policy = 'clever'", 'policy must be "random", "mlp" or "module:attr", got \'clever\''),
    of_file("checkpoint = 'w.pt'", "random actions have no checkpoint"),
    of_file("device = 'cuda:x'", 'device must be "auto", "cpu", "cuda", "cuda:N" or another'),
    of_file("env_kwargs.deep = 1", "cannot be read"),
    of_file("[[", "cannot be read"),
    of_file("", "must end in .toml, .json", name="job.txt"),
    of_file("[1]", "it holds a list", name="list.json"),
    (lambda it: load_job(it / "none.toml"), JobError, "No such file"),
)


def makes(*says: str, **settings: Any) -> tuple[Any, ...]:
    return lambda _: Job(**{"env": "CartPole-v1", "episodes": 3, **settings}), JobError, *says


def sets(setting: str, *says: str) -> tuple[Any, ...]:
    return lambda it: load_job(_job_file(it), [setting]), JobError, *says


def _job_file(it: Path) -> Path:
    (it / "a.json").write_text(json.dumps({"env": "CartPole-v1", "steps": 5, "env_kwargs": {}}))
    return it / "a.json"


class Cell:
    """Class that `worker_command` cannot import by itself."""


BY_COMMAND: dict[str, Any] = {"worker_command": ["python", "-m", "vecenv.worker"]}
SETTINGS = [
    *rows_for(
        NOTHING,
        *(
            makes("env_kwargs", "cannot be stored", env_kwargs={"limit": value})
            for value in (b"a", {1}, {1: 2}, [np.float32(1)], np.zeros(1), Path("a"), float("inf"))
        ),
        makes("env must be a name or module:name, got ':'", env=":"),
        makes("seed: Expected `int` <= 9223372036854775807", seed=2**63),
        makes("backend: Invalid enum value 'shm'; it is one of auto, dummy, ray, shmem,", backend="shm"),
        makes("cannot be imported by workers and resumed jobs", env=lambda: Cell()),
        makes("policy: 3 cannot be imported", policy=3),
        makes("wrappers: `frozen` is for transforms", wrappers=[{"call": "ClipAction", "frozen": "a.json"}]),
        makes("info_keys has 'reward', which a batch has already", info_keys=("reward",)),
        makes("ray.num_cpus: Expected `float` >= 0.0", ray={"num_cpus": -1}),
        makes("3 workers for 2 envs; pass at most one per env", num_workers=3, num_envs=2),
        makes('only backend = "subproc"', **BY_COMMAND, backend="shmem"),
        makes("put wrappers", **BY_COMMAND, backend="subproc", wrappers=["FlattenObservation"]),
        makes(
            "max_episode_steps into the function", **BY_COMMAND, backend="subproc", env="a:make", max_episode_steps=3
        ),
    ),
    *rows_for(
        IN_FOLDER,
        sets("steps", "takes name=value"),
        sets("step=3", "did you mean 'steps'"),
        sets("seed.a=1", "seed: Expected `int`"),
        sets('env_kwargs={"limit": Infinity}', "is not JSON: Infinity is not a number of JSON"),
        *(
            sets(f"steps={text}", "a.json: steps: Expected `int")
            for text in ("1.5", "1e-3", "nan", "inf", "1e999", "0x10", "many", "0", "-1")
        ),
    ),
]


def runs(error: type[Exception], *says: str, options: Any = (), **settings: Any) -> tuple[Any, ...]:
    """Return a row: a job that is refused, or fails at once, makes no folder."""

    def call(it: Path) -> None:
        try:
            run_job(job(**settings), it / "a", **dict(options))
        finally:
            assert not (it / "a").exists()

    return call, error, *says


AUTO = {"cluster": "auto"}
RUNS = rows_for(
    IN_FOLDER,
    runs(KeyError, "no such state", policy=f"{HERE}:bad"),
    runs(
        DatasetError,
        "leave 'items' out with the wrapper",
        "FilterObservation, filter_keys=['image', 'mission']",
        env=f"{HERE}:Inventory",
    ),
    runs(JobError, "pass only one of them", options={"resume": True, "overwrite": True}),
    runs(JobError, "statistics of VecNorm would differ between the tasks", options=AUTO, transforms=("VecNorm",)),
    runs(JobError, "leave it out, or name the backend of each task", options=AUTO, backend="ray"),
    runs(JobError, "a task sees its own GPU only", options=AUTO, device="cuda:1"),
    *(
        runs(JobError, "must be an integer of at least 1, got", options={**AUTO, "cluster_actors": wrong})
        for wrong in (0, 1.5, "2")
    ),
    runs(JobError, "--cluster auto", options={"cluster_actors": 2}),
    (
        lambda it: ((it / "file").write_text(""), run_job(job(), it / "file/x")),
        DatasetError,
        "cannot write to",
        "Not a directory; choose another",
    ),
)


# Commands.


def fails(words: str, *says: str) -> tuple[Any, ...]:
    """Return a row: the words are split at spaces. FOLDER is an empty folder."""

    def call(it: Path) -> None:
        given = [each.replace("FOLDER", str(it)) for each in words.split()]
        more = ["--no-plot", "--out", str(it / "a")] if given[0] == "run" else []
        try:
            ends(*given, *more)
        finally:
            assert not [*it.iterdir()], "a job that has not begun leaves a folder"

    return call, CommandFailed, *says


CARTPOLE = "run --env CartPole-v1 --steps 3 --backend dummy"
NO_SUBCOMMAND = "Arguments are applied to the directly preceding subcommand"
COMMANDS = rows_for(
    IN_FOLDER,
    fails("run --episodes 3", "a job has an env"),
    fails("run --env CartPole-v1", "a job has either episodes = N or steps = N"),
    fails("run --env CartPoll-v1 --steps 3", "there is no env CartPoll-v1: "),
    fails(f"{CARTPOLE} --wrapper {{call:x}}", "wrappers: {call:x} is not JSON: "),
    fails(f"run --env {HERE}:Wlak --steps 3 --backend dummy", f"there is no 'Wlak' in {HERE}, which the job names"),
    fails(f"{CARTPOLE} --policy none:policy", "none:policy cannot be imported: No module named 'none'"),
    fails(f'{CARTPOLE} --policy {HERE}:Mean --policy-kwargs {{"size":3}}', "argument 'size'"),
    fails(
        f"{CARTPOLE} --policy {HERE}:Takes",
        "makes its policy by Takes(observation_space, action_space), which failed: Takes() takes no arguments",
    ),
    fails(f'{CARTPOLE} --policy mlp --policy-kwargs {{"hidden":0}}', "hidden must be an integer"),
    fails("run --env math:pi --steps 3 --backend dummy", "math:pi is 3.14"),
    fails("run --env os:getcwd --steps 3 --backend dummy", "expected an env with step and reset"),
    fails("run --env gymnasium.wrappers:ClipAction --steps 3 --backend dummy", "required positional argument"),
    fails(f"{CARTPOLE} --wrapper TimeLimit", "required positional argument"),
    fails(
        f"{CARTPOLE} --wrapper Shifted",
        "there is no wrapper 'Shifted' in the list of gymnasium.wrappers; name any other class as",
    ),
    fails(f"{CARTPOLE} --transform VecNom", "in the list of vecenv.transforms; did you mean 'VecNorm'?"),
    fails("run --env CartPole-v1 --steps 3 --backend shmem --wrapper ClipAction", "wrapper ClipAction cannot be "),
    fails(
        f'{CARTPOLE} --transform {{"call":"Resize","kwargs":{{"height":3}}}}',
        "the transforms of CartPole-v1 cannot be made: Resize",
    ),
    fails(f'{CARTPOLE} --env-kwargs {{"id":3}}', "multiple values for argument 'id'"),
    fails(f"{CARTPOLE} --env-kwargs 3", "env_kwargs: Expected `object`, got `int`"),
    fails(f'{CARTPOLE} --env-kwargs {{"gravity":3}}', "unexpected keyword argument 'gravity'"),
    fails(f"{CARTPOLE} --policy mlp --device tpu", "PyTorch sees 0 TPU devices; use 'cpu' or 'auto'"),
    fails("run FOLDER/none.toml", "none.toml cannot be read: No such file"),
    fails(f"run {HERE}:Counting", f"is not a job file; to name an env, pass --env {HERE}:Counting"),
    fails("plot FOLDER/none --out a.jpg", "--out names a PNG file, got a.jpg"),
    fails("resume FOLDER/none", "start it again: python -m collector run FILE --out", "none --resume"),
    fails("info FOLDER/none", "none holds no collected episodes"),
    fails("verify FOLDER/none --replay -1", "--replay must be at least 0, got -1"),
    fails("video FOLDER/none --num-workers 0", "--num-workers must be at least 1, got 0"),
    fails("runn x.toml", "runn", "Available subcommands: run, resume, info, "),
    fails("--env CartPole-v1", "--env", NO_SUBCOMMAND),
    fails("run --episode 3", "--episodes N", "run python -m collector run --help"),
)

ROWS = [*EPISODES, *FOLDERS, *EXPORTS, *FILES, *SETTINGS, *RUNS, *COMMANDS]
