"""Messages of data sets, exports, jobs and their commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import methodcaller as call
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
    save_statistics,
)
from tests.messages.rows import NOTHING, Row, Subject, arguments_of, each, rows_for
from tests.support.command_line import command
from tests.support.job_envs import HERE, job
from tests.support.simulators import Simulator
from tests.support.stored import ACTION, OBS, episode, files, head, text_episode, write, write_one
from vecenv import from_gymnasium, nest
from vecenv.transforms import VecNorm


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
    assert len(Dataset(writer.folder)) == 0, "nothing is committed yet"
    writer.add(episode(7, **columns))
    writer.end()
    assert Dataset(writer.folder).numbers.tolist() == [1, 7]


def adds(*says: str, **columns: Any) -> tuple[Any, ...]:
    """Return a row: a writer refuses an episode with these columns."""
    return lambda writer: writer.add(episode(2, **columns)), DatasetError, *says


def adds_numbers(*numbers: int) -> Callable[[StoreWriter], None]:
    return lambda writer: writer.add([episode(number) for number in numbers])


def no_number(writer: StoreWriter, name: str) -> None:
    writer.add(episode(2, **{name: 1.5}))


ONE_KIND = "these episodes have the arrays"
TEXTS = np.array(["a", "\ud800", "b", "c"])
EPISODES = rows_for(
    Subject(_writer, _goes_on),
    adds("episode 2 of env 2 has the reward nan in step 1", reward=np.array([1.0, np.nan, 1.0])),
    adds("episode 2 of env 2 are finite, but their sum is not", reward=np.array([1e308, 1e308, -1e308])),
    adds("has [3] observations and [3] actions; expected an action per step", obs=np.zeros((3, 3), np.float32)),
    adds("obs holds Python objects such as None; only numbers and texts can be", obs=np.array([None] * 4)),
    adds("obs is object; only", "one text per step, can be stored", obs=np.array([["a"]] * 4, object)),
    adds(r"obs has the text '\ud800', which UTF-8 cannot express", obs=TEXTS),
    adds("reward holds Python objects; only numbers", reward=np.array(["1", "2", "3"])),
    adds("only text can be stored", obs={"\ud800": np.zeros((4, 3), np.float32)}),
    adds(ONE_KIND, obs=np.array(["a"] * 4)),
    adds(ONE_KIND, obs=np.zeros((4, 2), np.float32)),
    adds("only whole episodes", truncated=np.zeros(3, np.bool_)),
    adds("only whole episodes", truncated=np.ones(3, np.bool_)),
    adds("truncated has the shape (3, 1)", truncated=np.ones((3, 1), np.bool_)),
    adds("an episode has the env_id -1, expected at least 0", env_id=-1),
    adds("an episode has the seed -5, expected at least -1", seed=-5),
    adds("a number or seed of 64 bits or more", seed=2**64),
    adds("its number must be below", number=2**53),
    (each(("number", "seed", "env_id"), no_number), TypeError, "VALUE must be a whole number, got 1.5"),
    (adds_numbers(1), DatasetError, "episode numbers [1] would occur twice in"),
    (adds_numbers(6, 8, 8), DatasetError, "episode numbers [8] would occur twice in"),
    (call("commit", state="x" * 2**26), DatasetError, "failures and state have"),
    # Lines that readers would refuse.
    (each((-1, 2**53, 2.5, np.int64(3)), lambda writer, end: writer.end(episodes=end)), (ValueError, TypeError), "int"),
    (call("commit", failed={"env": -1}), ValueError, "Expected `int` >= 0"),
    (call("commit", state="\ud800"), ValueError, "truncated"),
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
    (row,) = rows_for(subject, adds(*says, **(_infos(*then) if then else {"length": 3})))
    return row


EPISODES += [
    infos((1, None, 2), (0.5, 1, 1), "'x' is 0.5 (float64 ()), but the data set has int64 ()"),
    infos(("a", None, "b"), (1, 2, 3), "'x' is 1 (int64 ()), but the data set has text"),
    infos((1, 2, 3), ("c", "d", "d"), "'x' is 'c' (text), but the data set has int64"),
    infos((np.zeros(2),) * 3, (np.zeros(()),) * 3, "(float64 ()), but the data set has float64 (2,)"),
    infos((1, 2, 3), (), ONE_KIND),
    *rows_for(
        Subject(_empty),
        adds("observation space of the data set: obs is <f4 2, expected <f4 3", obs=np.zeros((4, 2), "f4")),
        adds("do not fit the action space of the data set: action is <i4, expected <i8", action=np.zeros(3, np.int32)),
        adds("entries of 'x',", "name its entries instead, as in ('x.y',)", **_infos(*[{"y": 1}] * 3)),
        adds("numbers of one shape, or texts; leave out this key", **_infos(np.zeros(2), np.zeros(3), 1)),
        adds("entries of 'x', such as 'a', are not numbers", **_infos("a", 1, 2)),
        adds("no info of the first episodes that ended has 'x'; leave this key out", **_infos(*[None] * 3)),
        (call("end", episodes=3), DatasetError, "has no episodes, so it cannot end with 3"),
    ),
]


# Folders.


class CommandFailed(Exception):
    """The text that a command wrote to standard error, before it ended with 1 or 2."""


def ends(*words: object) -> None:
    """Run a command that fails without a traceback, and without a folder of a job that has not begun."""
    done = command(*words)
    assert done.code in (1, 2)
    assert "Traceback" not in done.error
    raise CommandFailed(done.error)


@contextmanager
def _stored() -> Iterator[Path]:
    with _folder() as folder:
        yield write(folder / "a")


def _is_as_before(folder: Path) -> None:
    assert files(folder) == files(write(folder.parent / "same"))


OTHERS = "holiday.png", "videos/holiday.mp4", "tensorboard/events", "statistics.json"
OTHER = make_head(OBS, ACTION, job={"env": "Numbers-v0", "seed": 1})


def occupied(folder: Path, name: str, overwrite: bool = True) -> None:
    """Write into a folder with a file that is not a data set's."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("")
    before = files(folder)
    try:
        StoreWriter(folder, head(), overwrite=overwrite)
    finally:
        assert files(folder) == before
        (folder / name).unlink()


def takes(folder: Path, ids: Any) -> None:
    Dataset(folder).take(ids)


def exports_to(folder: Path, name: str) -> None:
    """Export to a place in a data set, also by a link."""
    (folder.parent / "link").symlink_to(folder)
    export(folder, "parquet", folder.parent / name)


def exported(folder: Path, to: str, **options: Any) -> None:
    export(folder, to, folder.parent / "b", **options)


def batches(**given: Any) -> Callable[[Path], object]:
    return lambda a: Dataset(a).batches(**{"batch_size": 2, "seed": 0, **given})


def records_without_ends(folder: Path) -> None:
    RecordEpisodes(from_gymnasium(Simulator(np), has_final_obs=False), folder / "a")


def resumed(head: Any) -> Callable[[Path], object]:
    return lambda folder: StoreWriter(folder, head, resume=True)


def inside(folder: Path) -> None:
    """Write into a link to a data set."""
    (folder.parent / "link").symlink_to(folder)
    StoreWriter(folder.parent / "link/deep/b", head())


FOLDERS = [
    *rows_for(
        Subject(_stored, _is_as_before),
        (lambda a: StoreWriter(a, head()), DatasetError, "already holds 6 episodes of Numbers-v0: continue it"),
        (partial(occupied, name="thesis.tex"), DatasetError, "thesis.tex is not a file of a data set"),
        (inside, DatasetError, "b is inside of the data set", "choose another place"),
        (resumed(OTHER), DatasetError, "begun with other settings (job.seed was 0, and is 1)"),
        (resumed(make_head(OBS, OBS, job=OTHER["job"])), DatasetError, "action_space was ", ", and is "),
        (resumed(make_head(OBS, ACTION)), DatasetError, "job.env was 'Numbers-v0', and is None"),
        (lambda a: Dataset(a)[6], IndexError, "range object index out of range"),
        (partial(takes, ids=[23]), IndexError, "the number of transitions (23)"),
        (each(([], np.ones(23, np.bool_), [0.5], 3, [[3]]), takes), IndexError, "one or more integer indices of"),
        (lambda a: Dataset(a)[:0].transitions(), DatasetError, "data set or slice has no episodes"),
        ([batches(seed=True), batches(seed=None)], ValueError, "a non-negative integer, got "),
        (lambda a: Dataset(a).as_torch("rows"), ValueError, "'transitions', 'episodes' or 'batches'"),
        (lambda a: Dataset(a).as_torch("batches").set_epoch(-1), ValueError, "epoch must be at least 0, got -1"),
        (partial(exported, to="zarr"), ValueError, "to must be one of parquet, lerobot, minari, d3rlpy"),
        (lambda a: export(Dataset(a)[:0], "parquet", a / "b"), DatasetError, "slice has no episodes"),
        (each(("a/out", "a/deep/out", "link/out"), exports_to), DatasetError, "is inside of the data set"),
        (partial(exported, to="minari", algorithm_name=5), TypeError, "texts as metadata", "'algorithm_name': 5"),
        (lambda a: ends("check", a, a), CommandFailed, "a is not an export"),
    ),
    *rows_for(
        IN_FOLDER,
        (lambda it: StoreWriter(it / "a", None, resume=True), DatasetError, "there is no dataset"),
        (lambda it: StoreWriter(it / "a", None), DatasetError, "needs a head: pass make_head(...)"),
        (lambda it: StoreWriter(it / "a", make_head(job={"rate": np.nan})), DatasetError, "cannot be written: "),
        (lambda it: StoreWriter(it / "a", make_head(notes="x" * 2**24)), DatasetError, "cannot be written: it has"),
        (lambda it: StoreWriter(None, head()), TypeError, "expected str, bytes or os.PathLike object, not NoneType"),  # type: ignore[arg-type]
        (records_without_ends, ValueError, "has_final_obs=False"),
        (each(OTHERS, occupied), DatasetError, "has no data set to overwrite, but it has "),
        # The file would be taken for the statistics of the new data set.
        (partial(occupied, name="statistics.json", overwrite=False), DatasetError, "holds files of an earlier job"),
    ),
]


# Exports.


def exports(to: str, obs_space: Any, *says: str, **columns: Any) -> tuple[Any, ...]:
    """Return a row: a format refuses a data set of one episode with these columns, and nothing is left behind."""

    def refused(it: Path) -> None:
        write_one(it / "a", (obs_space, ACTION) if obs_space is not None else (None, None), **columns)
        try:
            export(it / "a", to, it / "out")
        finally:
            assert [path.name for path in it.iterdir()] == ["a"]

    return refused, DatasetError, *says


def keyed(key: str) -> tuple[Any, Any]:
    """Return a space with this key, and its observations."""
    space = spaces.Dict({"a": spaces.Tuple([spaces.Dict({key: spaces.Discrete(2)})])})
    return space, {"a": ({key: np.zeros(6, np.int64)},)}


def parts(**of: spaces.Space[Any]) -> tuple[Any, Any]:
    return spaces.Dict(of), {key: np.zeros((6, *part.shape), part.dtype) for key, part in of.items()}  # type: ignore[misc]


def tensors_of_texts(folder: Path) -> None:
    Dataset(write(folder / "a", make=text_episode)).transitions().to_tensordict()


def exports_texts(to: str) -> Callable[[Path], object]:
    return lambda it: export(write(it / "a", make=text_episode), to, it / "b")


EMPTY = parts(a=spaces.Box(0, 1, (0,)), b=spaces.Discrete(2))
SAME = parts(**{"arm/pos": spaces.Discrete(2), "arm_pos": spaces.Discrete(2)})
NOT_COUNTED = "integer actions that d3rlpy cannot count from 0"
EXPORTS = rows_for(
    IN_FOLDER,
    exports("d3rlpy", None, NOT_COUNTED, action=np.arange(5) - 2),
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
    exports("minari", OBS, "info has the key 'a/b', which a Minari file cannot", info={"a/b": np.zeros(5)}),
    (exports_texts("minari"), DatasetError, "episode 0 has a text with a null character in obs.say"),
    (exports_texts("lerobot"), DatasetError, "LeRobot takes only numbers, but obs.say, action are texts: export as"),
    (tensors_of_texts, TypeError, "obs.say are texts, which a TensorDict of tensors cannot hold"),
)


# Jobs.


def of_file(line: str, *says: str, name: str = "cartpole.toml") -> tuple[Any, ...]:
    """Return a row: a job file with this line is refused, and the message names the file."""
    rest = 'env = "CartPole-v1"\nnum_envs = 4\nbackend = "dummy"\nepisodes = 12\n[env_kwargs]\nx = true\n'

    def load(it: Path) -> None:
        (it / name).write_text(f"{line}\n{rest}" if name.endswith(".toml") else line)
        load_job(it / name)

    return load, JobError, f"{name}", *says


FILES = rows_for(
    IN_FOLDER,
    of_file("episods = 3", "a job has no 'episods'; did you mean 'episodes'?"),
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
    (lambda it: load_job(it / "none.toml"), JobError, "none.toml cannot be read: No such file"),
)


def refuses(*rows: tuple[dict[str, Any], str]) -> list[Row]:
    """Return rows of (settings, text): a job with these settings is refused."""
    of_cartpole = partial(Job, env="CartPole-v1", episodes=3)
    return arguments_of(of_cartpole, *((settings, JobError, says) for settings, says in rows))


def sets(setting: str, *says: str) -> tuple[Any, ...]:
    return lambda it: load_job(_job_file(it), [setting]), JobError, *says


def _job_file(it: Path) -> Path:
    (it / "a.json").write_text(json.dumps({"env": "CartPole-v1", "steps": 5, "env_kwargs": {}}))
    return it / "a.json"


class Cell:
    """Class that `worker_command` cannot import by itself."""


def stores(limit: Any) -> Job:
    return Job(env="CartPole-v1", episodes=3, env_kwargs={"limit": limit})


def sets_steps(folder: Path, text: str) -> None:
    load_job(_job_file(folder), [f"steps={text}"])


BY_COMMAND: dict[str, Any] = {"worker_command": ["python", "-m", "vecenv.worker"], "backend": "subproc"}
NOT_STORED = b"a", {1}, {1: 2}, [np.float32(1)], np.zeros(1), Path("a"), float("inf")
NOT_STEPS = "1.5", "1e-3", "nan", "inf", "1e999", "0x10", "many", "0", "-1"
SETTINGS = [
    *rows_for(NOTHING, (each(NOT_STORED, stores), JobError, "env_kwargs.limit", " cannot be stored: ")),
    *refuses(
        ({"env": ":"}, "env must be a name or module:name, got ':'"),
        ({"seed": 2**63}, "seed: Expected `int` <= 9223372036854775807"),
        ({"backend": "shm"}, "backend: Invalid enum value 'shm'; it is one of auto, dummy, ray, shmem,"),
        ({"env": lambda: Cell()}, "cannot be imported by workers and resumed jobs"),
        ({"policy": 3}, "policy: 3 cannot be imported"),
        ({"wrappers": [{"call": "ClipAction", "frozen": "a.json"}]}, "wrappers: `frozen` is for transforms"),
        ({"info_keys": ("reward",)}, "info_keys has 'reward', which a batch has already"),
        ({"ray": {"num_cpus": -1}}, "ray.num_cpus: Expected `float` >= 0.0"),
        ({"num_workers": 3, "num_envs": 2}, "3 workers for 2 envs; pass at most one per env"),
        ({**BY_COMMAND, "backend": "shmem"}, 'only backend = "subproc"'),
        ({**BY_COMMAND, "wrappers": ["FlattenObservation"]}, "the command makes the env, so put wrappers"),
        ({**BY_COMMAND, "env": "a:make", "max_episode_steps": 3}, "max_episode_steps into the function"),
    ),
    *rows_for(
        IN_FOLDER,
        sets("steps", "takes name=value"),
        sets("step=3", "did you mean 'steps'"),
        sets('env_kwargs={"limit": Infinity}', "is not JSON: Infinity is not a number of JSON"),
        (each(NOT_STEPS, sets_steps), JobError, "a.json: steps: Expected `int"),
    ),
]


def runs(*says: str, error: type[Exception] = JobError, options: Any = (), **settings: Any) -> tuple[Any, ...]:
    """Return a row: a job that is refused, or fails at once, makes no folder."""

    def run(it: Path) -> None:
        try:
            run_job(job(**settings), it / "a", **dict(options))
        finally:
            assert not (it / "a").exists()

    return run, error, *says


def below_a_file(folder: Path) -> None:
    (folder / "file").write_text("")
    run_job(job(), folder / "file/x")


def freezes(content: str | None, *says: str, call: str = "VecNorm") -> tuple[Any, ...]:
    """Return a row: a job whose transform is frozen by a file with this content makes no folder."""

    def run(it: Path) -> None:
        if content is not None:
            (it / "stats.json").write_text(content)
        try:
            run_job(job(transforms=({"call": call, "frozen": str(it / "stats.json")},)), it / "a")
        finally:
            assert not (it / "a").exists()

    return run, JobError, *says


AUTO = {"cluster": "auto"}
INVENTORY = "leave 'items' out with the wrapper", "FilterObservation, filter_keys=['image', 'mission']"
RUNS = rows_for(
    IN_FOLDER,
    runs("no such state", "the collector was shut down", error=KeyError, policy=f"{HERE}:bad"),
    runs(*INVENTORY, error=DatasetError, env=f"{HERE}:Inventory"),
    runs("pass only one of them", options={"resume": True, "overwrite": True}),
    runs("statistics of VecNorm would differ between the tasks", options=AUTO, transforms=("VecNorm",)),
    runs("leave it out, or name the backend of each task", options=AUTO, backend="ray"),
    runs("a task sees its own GPU only", options=AUTO, device="cuda:1"),
    runs("cluster_actors must be an integer of at least 1, got 1.5", options={**AUTO, "cluster_actors": 1.5}),
    runs("are for a cluster", "(--cluster auto)", options={"cluster_actors": 2}),
    (below_a_file, DatasetError, "cannot write to", "Not a directory; choose another"),
    freezes('{"mean": 1.0}', "StepCounter cannot be frozen: it has no statistics; remove `frozen`", call="StepCounter"),
    freezes("{", "stats.json cannot be read: "),
    freezes(None, "stats.json cannot be read: No such file or directory"),
    freezes("[1, 2]", "stats.json has no statistics; write the file with collector.save_statistics"),
    freezes("{}", "stats.json has no statistics"),
    freezes('{"envs": [{"0.VecNorms": {}}]}', "not of one VecNorm; write the file with collector.save_statistics"),
    freezes('{"mean": 1.0}', "stats.json does not fit VecNorm: ", "expected {'obser", "got {'mean': ()}"),
    (lambda it: save_statistics(VecNorm(), it / "none.json"), ValueError, "has no statistics to save"),
)


# Commands.


def fails(words: str, *says: str) -> tuple[Any, ...]:
    """Return a row: the words are split at spaces. FOLDER is an empty folder."""

    def fail(it: Path) -> None:
        given = [each.replace("FOLDER", str(it)) for each in words.split()]
        more = ["--no-plot", "--out", str(it / "a")] if given[0] == "run" else []
        try:
            ends(*given, *more)
        finally:
            assert not [*it.iterdir()], "a job that has not begun leaves a folder"

    return fail, CommandFailed, *says


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
    fails(
        f'{CARTPOLE} --policy {HERE}:Mean --policy-kwargs {{"size":3}}', "**policy_kwargs), which", "argument 'size'"
    ),
    fails(f"{CARTPOLE} --policy {HERE}:Takes", "by Takes(observation_space, action_space), which failed: Takes()"),
    fails(f'{CARTPOLE} --policy mlp --policy-kwargs {{"hidden":0}}', "hidden must be an integer"),
    fails("run --env math:pi --steps 3 --backend dummy", "math:pi is 3.141592653589793, not a class or function"),
    fails("run --env os:getcwd --steps 3 --backend dummy", "expected an env with step and reset"),
    fails("run --env gymnasium.wrappers:ClipAction --steps 3 --backend dummy", "required positional argument"),
    fails(f"{CARTPOLE} --wrapper Shifted", "there is no wrapper 'Shifted' in the list of gymnasium.wrappers; name any"),
    fails(f"{CARTPOLE} --transform VecNom", "in the list of vecenv.transforms; did you mean 'VecNorm'?"),
    fails("run --env CartPole-v1 --steps 3 --backend shmem --wrapper ClipAction", "wrapper ClipAction cannot be "),
    fails(f'{CARTPOLE} --transform {{"call":"Resize","kwargs":{{"height":3}}}}', "transforms of CartPole-v1 cannot be"),
    fails(f'{CARTPOLE} --env-kwargs {{"id":3}}', "multiple values for argument 'id'"),
    fails(f"{CARTPOLE} --env-kwargs 3", "env_kwargs: Expected `object`, got `int`"),
    fails(f'{CARTPOLE} --env-kwargs {{"gravity":3}}', "unexpected keyword argument 'gravity'"),
    fails(f"{CARTPOLE} --policy mlp --device tpu", "PyTorch sees 0 TPU devices; use 'cpu' or 'auto'"),
    fails("run FOLDER/none.toml", "none.toml cannot be read: No such file"),
    fails(f"run {HERE}:Counting", f"is not a job file; to name an env, pass --env {HERE}:Counting"),
    fails("plot FOLDER/none --out a.jpg", "--out names a PNG file, got a.jpg"),
    fails("resume FOLDER/none", "none holds no", "it again: python -m collector run FILE --out", "none --resume"),
    fails("verify FOLDER/none --replay -1", "--replay must be at least 0, got -1"),
    fails("video FOLDER/none --num-workers 0", "--num-workers must be at least 1, got 0"),
    fails("runn x.toml", "runn", "Available subcommands: run, resume, info, "),
    fails("--env CartPole-v1", "--env", NO_SUBCOMMAND),
    fails("run --episode 3", "--episodes N", "run python -m collector run --help"),
)

ROWS = [*EPISODES, *FOLDERS, *EXPORTS, *FILES, *SETTINGS, *RUNS, *COMMANDS]
