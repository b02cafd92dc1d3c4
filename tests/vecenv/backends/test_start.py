"""Workers start from any kind of program, with every start method, and with the program's settings."""

from __future__ import annotations

import errno
import functools
import gc
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.envs.registration import EnvSpec

from tests.support.backends import FULL, full
from tests.support.faulty import Counter, LeavesRunning, SpawnsChild, UsesMultiprocessing, counters
from tests.support.ledger import SEEN, Column, Ledger, N, block_of, columns, gone, pids, wait_until
from tests.support.oddities import RaisesAtPickle
from tests.support.paths import ROOT
from vecenv import ClosedError, ShmemVectorEnv, SubprocVectorEnv, WorkerDiedError
from vecenv import seeds as process_seeds
from vecenv.backends.ipc.serialization import dumps_by_value, loads_by_value
from vecenv.backends.pool import start_methods, worker_pool
from vecenv.backends.pool.process_worker import ProcessWorker
from vecenv.backends.worker.worker_setup import registered_envs
from vecenv.portability import PORTABLE
from vecenv.testing import CountingEnv

fork_may_warn = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*threads.*:RuntimeWarning")

PROGRAM = """
import functools, gymnasium, numpy as np

class Three(gymnasium.spaces.Discrete):
    pass

@functools.cache
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (2,), np.float32)

    @functools.lru_cache(maxsize=7, typed=True)
    def space(self, n):
        return Three(n)

    @functools.cached_property
    def action_space(self):
        return self.space(3)

    def reset(self, *, seed=None, options=None):
        assert options is None or type(options["kind"]) is Kind, options
        assert str(Mine.space.cache_parameters()) == "{'maxsize': 7, 'typed': True}"
        return np.array([LEVEL, fibonacci(20) - 6765], np.float32), {"kind": Kind("reset")}

    def step(self, action):
        if action == 2:
            raise Mistake("both", "sides")
        return np.array([LEVEL, action], np.float32), 1.0, False, False, {"kind": Kind("step")}

class Kind(str):
    pass

class Mistake(Exception):
    pass

class ByName:
    def __reduce__(self):
        return "by_name"

by_name = ByName()

LEVEL = 3
import vecenv
for venv_class in (vecenv.SubprocVectorEnv, vecenv.ShmemVectorEnv):
    venv = venv_class([lambda: Mine(), Mine, Mine], num_workers=2, context=CONTEXT)
    obs, info = venv.reset()
    assert obs.tolist() == [[3, 0]] * 3, obs
    assert type(info[0]["kind"]) is Kind
    assert type(venv.action_space[0]) is Three
    venv.set_env_attr("kind", Kind("set"))
    assert [type(kind) for kind in venv.get_env_attr("kind")] == [Kind] * 3
    venv.reset(options={"kind": Kind("asked")})
    obs, rew, terminated, truncated, info = venv.step([0, 1, 0])
    assert obs.tolist() == [[3, 0], [3, 1], [3, 0]], obs
    try:
        venv.step([0, 2, 0])
    except Mistake as error:
        assert error.args == ("both", "sides")
        assert error.partial.env_id.tolist() == [0, 2]
    else:
        raise SystemExit("no mistake")
    venv.close()
if CONTEXT != "fork":
    with vecenv.ShmemVectorEnv([Mine], context=CONTEXT) as venv:
        for what, send in {
            TypeError: lambda: venv.call("step", by_name),
            AttributeError: lambda: vecenv.ShmemVectorEnv([lambda: by_name], context=CONTEXT),
        }.items():
            try:
                send()
            except what as error:
                text = str(error)
                assert "by_name" in text and "move it to a module" in text, error
                assert what is TypeError or 'context="fork"' in text and "'by_name'" in text, error
            else:
                raise SystemExit("sent")
print("started", flush=True)
"""


def python(*arguments: str, stdin: str | None = None, cwd: Path = ROOT, **options: Any) -> str:
    """Return the output of a fresh interpreter, which must succeed and print nothing on stderr."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, input=stdin, capture_output=True, text=True, timeout=110, **options
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.guarantee("G9.13")
@pytest.mark.parametrize(
    ("how", "context"),
    [
        ("script", "forkserver"),
        *(
            pytest.param(how, context, marks=FULL)
            for how, context in (
                *(("stdin", "fork"), ("command", "spawn"), ("notebook", "forkserver")),
                ("pdb", "forkserver"),  # pdb of Python 3.11 and 3.12 removes __spec__ from __main__
            )
        ),
    ],
)
def test_no_main_guard_is_needed(how: str, context: str, tmp_path: Path) -> None:
    """Classes, functions (also cached) and exceptions of the program reach workers. The program runs only once.

    An error about an object that cannot be sent says how to fix it.

    A file in the working directory does not hide a library from workers, as it does not from the program, whose own
    folder is searched instead.
    """
    program = f"CONTEXT = {context!r}\n{PROGRAM}"
    script = tmp_path / "program" / "main.py"
    script.parent.mkdir()
    if how == "pdb":
        script.write_text(program)
        reported = python("-m", "pdb", "-c", "continue", "-c", "quit", str(script)).partition("The program finished")[0]
    elif how == "script":
        script.write_text(program)
        (tmp_path / "gymnasium.py").write_text("raise SystemExit('not me')")
        reported = python(str(script), cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    elif how == "stdin":
        reported = python("-", stdin=program)
    elif how == "command":
        reported = python("-c", program)
    else:
        # As in a notebook: cells are compiled one by one and run in the namespace of __main__, without a file.
        before, line, after = program.partition("import vecenv\n")
        loop = "for k, cell in enumerate(CELLS):\n    exec(compile(cell, f'<cell {k}>', 'exec'), globals())\n"
        script.write_text(f"CELLS = {[before, line + after]!r}\n{loop}")
        reported = python("-c", f"exec(open({str(script)!r}).read())")
    assert reported == "started\n"


MAKES_A_VECTOR_ENV = """
import os, gymnasium, vecenv
from vecenv.testing import CountingEnv
level = int(os.environ.get("LEVEL", "0"))
os.environ["LEVEL"] = str(level + 1)
assert level < 3, "too many"
class Mine(CountingEnv):
    pass
vecenv.SubprocVectorEnv([ENV] * 2, num_workers=1, context=CONTEXT).close()
"""
USES_THE_MODULE = """
import envs, vecenv
with vecenv.ShmemVectorEnv([envs.Mine] * 2, context=envs.CONTEXT) as venv:
    print(*venv.reset()[0].shape)
"""


@pytest.mark.guarantee("G9.16")
@pytest.mark.parametrize("context", ["forkserver", *full(["spawn"])])
@pytest.mark.parametrize("script", ["main.py", *full(["envs.py"])])
def test_a_module_whose_import_makes_vector_envs_without_end_is_named(
    script: str, context: str, tmp_path: Path
) -> None:
    """The main script imports the module, or imports itself under its own name."""
    code = MAKES_A_VECTOR_ENV.replace("ENV]", "Mine]").replace("class Mine", "import envs\nclass Mine")
    (tmp_path / "main.py").write_text("import envs")
    (tmp_path / "envs.py").write_text(f"CONTEXT = {context!r}\n{code}")
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = [sys.executable, str(tmp_path / script)]
    done = subprocess.run(program, env=environ, capture_output=True, text=True, timeout=110)
    assert done.returncode == 1
    assert "RuntimeError: the module envs makes a vector env while it is imported." in done.stderr
    assert f"In {tmp_path / 'envs.py'}, move the code into a function" in done.stderr
    assert "too many" not in done.stderr


@pytest.mark.parametrize("context", full(["forkserver", "spawn"]))
def test_a_module_may_make_a_vector_env_of_other_envs_while_it_is_imported(context: str, tmp_path: Path) -> None:
    code = MAKES_A_VECTOR_ENV.replace("ENV]", "CountingEnv]")
    (tmp_path / "envs.py").write_text(f"CONTEXT = {context!r}\n{code}")
    (tmp_path / "main.py").write_text(USES_THE_MODULE)
    assert python(str(tmp_path / "main.py"), env={**os.environ, "PYTHONPATH": str(ROOT)}) == "2 5\n"


@functools.cache
def square(number: int) -> int:
    return number * number


def test_a_cached_function_of_a_module_travels_by_its_name() -> None:
    """The worker uses the cache of the function in its module."""
    assert loads_by_value(dumps_by_value([square]))[0] is square


def test_functions_of_a_script_keep_the_name_of_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the stack of an env that hangs shows the file. cloudpickle 3.1.3 replaces the name."""
    reduce = cloudpickle.Pickler.dispatch_table[CodeType]

    def reduce_as_3_1_3(code: CodeType) -> Any:
        make, arguments = reduce(code)
        return make, (*arguments[:10], "<dynamic-code>", *arguments[11:])

    monkeypatch.setitem(cloudpickle.Pickler.dispatch_table.maps[0], CodeType, reduce_as_3_1_3)
    function = loads_by_value(dumps_by_value(lambda: lambda: 0))
    assert [code.co_filename for code in (function.__code__, function().__code__)] == [__file__] * 2


class Looks(Counter):
    """Env that reports properties of its process."""

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def knows(self, id: str) -> bool:
        return id in gymnasium.registry

    def limit(self, id: str) -> int | None:
        return gymnasium.spec(id).max_episode_steps

    def threads(self) -> int:
        np.ones((300, 300)) @ np.ones((300, 300))
        return psutil.Process().num_threads()

    def draws(self) -> tuple[float, float]:
        return float(np.random.random()), random.random()

    def cpus(self) -> list[int]:
        return sorted(os.sched_getaffinity(0))

    def streams(self) -> list[bool]:
        return [os.fstat(fd).st_rdev == os.stat(os.devnull).st_rdev for fd in range(3)]


@pytest.mark.parametrize("context", ["spawn", *full(["forkserver", "fork"])])
@fork_may_warn
def test_workers_know_what_the_program_has_set_up(context: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VECENV_TEST", "one")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    before = dict(os.environ)
    make = EnvSpec("Local/Looks-v0", entry_point=lambda number: Looks(number), max_episode_steps=9)
    monkeypatch.setitem(gymnasium.registry, "Local/Looks-v0", make)
    for limit, id in enumerate(own := ("Local/Short-v0", "CartPole-v1"), 7):  # of an env of gymnasium, and in its place
        spec = EnvSpec(id, entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=limit)
        monkeypatch.setitem(gymnasium.registry, id, spec)
    env_fns = [partial(gymnasium.make, "Local/Looks-v0", number=i, disable_env_checker=True) for i in range(2)]
    with ShmemVectorEnv(env_fns, num_workers=2, context=context) as venv:
        ledger = Ledger(venv)
        ledger.begin()
        assert ledger.round() == []
        assert len({os.getpid(), *pids(venv)}) == 3
        assert [spec.id for spec in venv.spec] == ["Local/Looks-v0"] * 2
        assert [venv.call("limit", id)[1] for id in own] == [7, 8]
        names = ("VECENV_TEST", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        assert [venv.call("variable", name)[1] for name in names] == ["one", "1", "1", "3"]
        if context != "fork":  # the main thread, and the thread that watches the parent
            assert venv.call("threads") == [2, 2]
    assert dict(os.environ) == before
    for value in ("two", None):  # the forkserver still has the environment of its start
        monkeypatch.setenv("VECENV_TEST", value) if value else monkeypatch.delenv("VECENV_TEST")
        with ShmemVectorEnv([partial(Looks, 0)], context=context) as venv:
            assert venv.call("variable", "VECENV_TEST") == [value]


CLOSES_STREAMS = """
import os, sys
from tests.vecenv.backends.test_start import Looks
from vecenv import SubprocVectorEnv
os.closerange(0, 3)
with SubprocVectorEnv([lambda: Looks(0)], context=sys.argv[1]) as venv:
    venv.reset()
    with open(sys.argv[2], "w") as file:
        file.write(str(venv.call("streams")))
"""


@pytest.mark.parametrize("context", ["fork", *full(["forkserver", "spawn"])])
def test_envs_of_a_program_without_standard_streams_write_to_no_pipe_of_vecenv(context: str, tmp_path: Path) -> None:
    python("-c", CLOSES_STREAMS, context, str(tmp_path / "found"))
    assert (tmp_path / "found").read_text() == "[[True, True, True]]"


@pytest.mark.parametrize("context", ["forkserver", *full(["spawn", "fork"])])
@fork_may_warn
def test_a_worker_starts_again_though_the_working_directory_was_removed(
    context: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ShmemVectorEnv(counters(2), context=context) as venv:
        first = pids(venv)
        gone_folder = tmp_path / "gone"
        gone_folder.mkdir()
        monkeypatch.chdir(gone_folder)
        gone_folder.rmdir()
        os.kill(first[0], signal.SIGKILL)
        wait_until(lambda: not venv.alive()[0])
        assert venv.reset()[0].shape == (2, 4)
        assert first[0] not in pids(venv)


@pytest.fixture
def busy_threads() -> Iterator[None]:
    """Run a few threads that compute, print and take locks, as a learner does."""
    stop = threading.Event()

    def work() -> None:
        lock = threading.Lock()
        while not stop.is_set():
            with lock:
                np.ones((50, 50)) @ np.ones((50, 50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join()


@columns("blocks", only=ShmemVectorEnv)
@pytest.mark.parametrize("context", ["fork", "spawn"])
@fork_may_warn
def test_a_kernel_without_pidfds_will_do(column: Column, context: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with column.open(counters(N), context=context) as ledger:
        ledger.begin()


@pytest.mark.guarantee("G9.14")
@columns("blocks", only=ShmemVectorEnv)
@pytest.mark.parametrize("context", ["forkserver", "fork"])
@fork_may_warn
@pytest.mark.usefixtures("busy_threads")
def test_threads_of_the_program_do_not_disturb_the_start(column: Column, context: str) -> None:
    with column.open(counters(N), context=context) as ledger:
        ledger.begin()
        assert ledger.round() == []


@columns("blocks", only=ShmemVectorEnv)
def test_a_vector_env_made_in_a_thread_outlives_the_thread(column: Column) -> None:
    """The kernel signals the death of the thread that started a process, not the death of the program."""
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(column.backend(counters(N), **column.options)))
    thread.start()
    thread.join()
    ledger = Ledger(made[0])
    ledger.begin()
    assert ledger.round() == []
    assert made[0].alive() == [True] * N
    made[0].close()


# Settings of the program that workers have.


@columns("single", only=ShmemVectorEnv)
def test_what_the_program_registered_is_looked_up_once_for_all_workers(
    column: Column, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[None] = []
    monkeypatch.setattr(worker_pool, "registered_envs", lambda: looks.append(None) or registered_envs())
    with column.open([partial(Looks, i) for i in range(N)]) as ledger:
        assert (ledger.venv.num_workers, len(looks)) == (N, 1)
        monkeypatch.setitem(gymnasium.registry, "Local/Later-v0", EnvSpec("Local/Later-v0"))
        ledger.begin()
        dies_and_is_reset(ledger, 1)
        assert len(looks) == 2
        assert ledger.venv.call("knows", "Local/Later-v0") == [i == 1 for i in range(N)]


SUITE = """
import gymnasium
for k in range(30):
    gymnasium.register(f"Suite/E{k}-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=9)
"""

USES_SUITE = """
import gymnasium, suite, vecenv
gymnasium.registry["Suite/E1-v0"].max_episode_steps = 7  # the value in the program
def late():
    import suite
    return gymnasium.make("Suite/E0-v0")
makers = [lambda: gymnasium.make("suite:Suite/E0-v0"), lambda: gymnasium.make("Suite/E1-v0"), late]
for backend in (vecenv.SubprocVectorEnv, vecenv.ShmemVectorEnv):
    with backend(makers, num_workers=1, context=CONTEXT) as venv:
        print([spec.max_episode_steps for spec in venv.spec])
"""


@pytest.mark.parametrize("context", ["forkserver", *full(["spawn"])])
def test_a_package_that_registers_its_envs_again_in_a_worker_is_no_reason_for_warnings(
    context: str, tmp_path: Path
) -> None:
    (tmp_path / "suite.py").write_text(SUITE)
    (tmp_path / "main.py").write_text(f"CONTEXT = {context!r}\n{USES_SUITE}")
    reported = python(str(tmp_path / "main.py"), env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert reported == "[9, 7, 9]\n" * 2


MODULES = """
import multiprocessing, sys, gymnasium, vecenv, torch, pytest, matplotlib, collector
class ShowsModules(type(gymnasium.make("CartPole-v1").unwrapped)):
    def modules(self):
        return set(sys.modules)
for context in ("forkserver", "spawn"):
    with vecenv.SubprocVectorEnv([ShowsModules], context=context) as venv:
        print(*venv.call("modules")[0])
assert multiprocessing.get_start_method(allow_none=True) is None, multiprocessing.get_start_method()
multiprocessing.set_start_method("spawn")
"""


@FULL
def test_workers_import_nothing_heavy_of_the_program_whose_start_method_stays_its_own_choice() -> None:
    for line in python("-c", MODULES).splitlines():
        assert {"numpy", "gymnasium"} <= set(line.split())
        assert not set(line.split()) & {"torch", "ray", "pytest", "pandas", "matplotlib", "collector", "unittest"}


# Objects that only forked workers can have.


@pytest.fixture(scope="module")
def tally() -> Any:
    """Make the value once, because multiprocessing reuses its memory."""
    return multiprocessing.get_context("fork").Value("i", 0)


class Tallies(Counter):
    """Counts every step in a shared value of the program."""

    def __init__(self, id: int, tally: Any) -> None:
        super().__init__(id)
        self.tally = tally

    def on_step(self) -> None:
        with self.tally.get_lock():
            self.tally.value += 1


def dies_and_is_reset(ledger: Ledger, i: int) -> None:
    """Kill the idle worker of env i, and let vecenv make its envs anew."""
    block = block_of(ledger.venv, i)
    os.kill(pids(ledger.venv)[i], signal.SIGKILL)
    wait_until(lambda: not ledger.venv.alive()[i], SEEN)
    ledger.born_again(block)
    ledger.reset(block)


def under_a_lock(i: int) -> Callable[[], Any]:
    lock = threading.Lock()

    def made() -> Any:
        with lock:
            return Counter(i)

    return made


def from_a_generator(i: int) -> Callable[[], Any]:
    numbers = (number for number in itertools.count(i))
    return lambda: Counter(next(numbers))


def besides_what_no_pickle_takes(i: int) -> Callable[[], Any]:
    odd = RaisesAtPickle()
    return lambda: Counter(i) if odd else None


@columns("blocks", only=SubprocVectorEnv)
@fork_may_warn
def test_env_fns_of_forked_workers_may_hold_anything(column: Column, tally: Any) -> None:
    """Forked workers share the shared values of the program."""
    tally.value = 0
    env_fns = [under_a_lock(0), from_a_generator(1), besides_what_no_pickle_takes(2), partial(Tallies, 3, tally)]
    with column.open(env_fns, context="fork") as ledger:
        ledger.begin()
        for i in (1, 3):
            dies_and_is_reset(ledger, i)
        assert ledger.round() == []
        assert tally.value == 2


class NotesPickle:
    """Object that records its pickling."""

    def __init__(self) -> None:
        self.pickled = 0

    def __reduce__(self) -> Any:
        self.pickled += 1
        return NotesPickle, ()


@columns("blocks", only=ShmemVectorEnv)
@pytest.mark.parametrize(("context", "pickled"), [("fork", False), ("forkserver", True)])
@fork_may_warn
def test_nothing_is_pickled_for_a_forked_worker(column: Column, context: str, pickled: bool) -> None:
    """If an env_fn cannot be pickled, the error names fork."""
    held, registered = NotesPickle(), NotesPickle()
    gymnasium.register(id="Local/Noting-v0", entry_point=Counter, kwargs={"note": registered})
    try:
        with column.open([partial(lambda i, _: Counter(i), i, held) for i in range(N)], context=context) as ledger:
            ledger.begin()
    finally:
        del gymnasium.registry["Local/Noting-v0"]
    assert [bool(note.pickled) for note in (held, registered)] == [pickled] * 2
    if pickled:
        with pytest.raises(TypeError, match=r"env_fns\[1\] cannot be sent to a worker: .*context=\"fork\""):
            column.backend([partial(Counter, 0), under_a_lock(1)], context=context)


# The global random generators of a process.


@pytest.fixture
def own_generators() -> Iterator[None]:
    """Restore the global generators after a test that seeds them."""
    bits, states = np.random.get_bit_generator(), (np.random.get_state(), random.getstate())
    yield
    np.random.set_bit_generator(bits)
    np.random.set_state(states[0])
    random.setstate(states[1])


@columns("blocks", only=ShmemVectorEnv)
@pytest.mark.parametrize("context", ["forkserver", "fork", pytest.param("spawn", marks=pytest.mark.slow)])
@fork_may_warn
@pytest.mark.usefixtures("own_generators")
def test_no_worker_repeats_another(column: Column, context: str) -> None:
    """No worker repeats the numbers of another worker, of an earlier vector env, or of the worker that it replaces."""
    numbers: list[float] = []
    for _ in range(2):
        np.random.seed(0)
        random.seed(0)
        with column.open([partial(Looks, i) for i in range(2)], context=context) as ledger:
            ledger.begin()
            numbers += itertools.chain(*ledger.venv.call("draws"))
            dies_and_is_reset(ledger, 1)
            numbers += ledger.venv.call("draws", id=[1])[0]
    assert len(set(numbers)) == 12


@pytest.mark.guarantee("G6.7")
@pytest.mark.usefixtures("own_generators")
def test_the_generators_of_workers_follow_from_those_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seeded generator gives the same numbers in every run. An unseeded generator gives new numbers."""

    def in_a_new_run(numpys: int | None, pythons: int | None) -> tuple[bytes, bytes]:
        monkeypatch.setattr(process_seeds, "_launches", itertools.count())
        np.random.seed(numpys)
        random.seed(pythons)
        states = np.random.get_state()[1].tolist(), random.getstate()
        seeds = process_seeds.worker_seeds(0)
        assert (np.random.get_state()[1].tolist(), random.getstate()) == states, "they are read, not advanced"
        assert len({seeds, process_seeds.worker_seeds(0), process_seeds.worker_seeds(1)}) == 3
        return seeds

    both = in_a_new_run(1, 1)
    assert in_a_new_run(1, 1) == both
    numpys, plain = in_a_new_run(1, None), in_a_new_run(None, 1)
    assert (numpys[0], plain[1]) == both
    assert numpys[1] != both[1]
    assert plain[0] != both[0]
    np.random.set_bit_generator(np.random.PCG64(0))  # the program may have replaced numpy's generator
    assert len({process_seeds.worker_seeds(0), process_seeds.worker_seeds(0)}) == 2


# Envs that start processes.


@columns("blocks", only=ShmemVectorEnv)
@pytest.mark.parametrize("method", ["fork", "spawn"])
@fork_may_warn
def test_envs_may_start_processes_and_threads_of_their_own(column: Column, method: str) -> None:
    with column.backend([partial(UsesMultiprocessing, i, method) for i in range(2)]) as venv:
        venv.reset()
        assert venv.step([3, 4])[1].tolist() == [9, 16]


@columns("blocks", dummy=False)
def test_programs_that_an_env_started_and_forgot_end_with_close(column: Column) -> None:
    with column.open(counters(N, env1=SpawnsChild)) as ledger:
        ledger.begin()
        (child,) = ledger.venv.get_env_attr("child", [1])
        assert psutil.pid_exists(child)
    assert gone(child)


@pytest.mark.parametrize("context", ["forkserver", *full(["fork", "spawn"])])
@pytest.mark.parametrize("what", ["thread", "pool"])
@fork_may_warn
def test_a_worker_ends_by_itself_though_an_env_left_a_thread_or_pool_running(
    context: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[Any] = []
    monkeypatch.setattr(ProcessWorker, "kill", killed.append)
    with ShmemVectorEnv([partial(LeavesRunning, i, what) for i in range(2)], num_workers=1, context=context) as venv:
        venv.reset()
    assert killed == []


class Nested(Counter):
    """Env that uses a vector env."""

    def __init__(self, id: int) -> None:
        super().__init__(id)
        self.inner = SubprocVectorEnv(counters(2))
        self.inner.reset()

    def on_step(self) -> None:
        assert self.inner.step([self.t, 0])[0][0].tolist() == [0, 1, self.t, self.t]

    def close(self) -> None:
        self.inner.close()


@columns("blocks", only=ShmemVectorEnv)
@pytest.mark.parametrize(
    "context", ["forkserver", *(pytest.param(c, marks=pytest.mark.slow) for c in ("fork", "spawn"))]
)
@fork_may_warn
def test_a_worker_may_have_vector_envs_of_its_own(column: Column, context: str) -> None:
    with column.open([partial(Nested, i) for i in range(2)], num_workers=2, context=context) as ledger:
        ledger.begin()
        assert ledger.round() == []


# A forked copy of the program.


@FULL
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_copy_of_the_program_cannot_use_the_vector_env_nor_harm_it() -> None:
    """A forked copy may make a new vector env."""
    with ShmemVectorEnv(counters(2)) as venv:
        ledger = Ledger(venv)
        ledger.begin()
        for leave in ("exit", "drop"):
            child = os.fork()
            if child == 0:
                _in_the_copy(venv, leave)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert ledger.round() == []
        assert venv.alive() == [True, True]


def _in_the_copy(venv: Any, leave: str) -> None:
    """Expect a refusal with both process ids for each call, and end the copy without running pytest's exit."""
    refused = 0
    calls = (
        venv.reset,
        lambda: venv.step([0, 0]),
        venv.render,
        lambda: venv.get_env_attr("t"),
        lambda: venv.seed(1),
        venv.alive,
        lambda: venv.spec,
    )
    for call in calls:
        try:
            call()
        except ClosedError as error:
            refused += f"belongs to process {os.getppid()}" in str(error) and str(os.getpid()) in str(error)
    if leave == "exit":
        venv.close()
        with ShmemVectorEnv(counters(2)) as own:
            refused += own.reset()[0][:, 0].tolist() == [0, 1]
    calls = venv = None
    gc.collect()
    os._exit(0 if refused == 7 + (leave == "exit") else 1)


HOW_SIGINT_IS_TAKEN = """
import sys, threading, psutil, vecenv
from vecenv.testing import CountingEnv
open_venvs = []
for context in ("fork", "spawn", "forkserver"):
    fill = lambda: open_venvs.append(vecenv.ShmemVectorEnv([CountingEnv] * 2, num_workers=2, context=context))
    thread = threading.Thread(target=fill)
    if sys.argv[1] == "thread":
        thread.start()
        thread.join()
    else:
        fill()
    with open_venvs.pop():
        for child in psutil.Process().children(recursive=True):
            with open(f"/proc/{child.pid}/status") as status:
                masks = dict(line.split(":") for line in status)
            # Bit 1 is SIGINT. It must be blocked from the first moment of the process on.
            print(int(masks["SigBlk"], 16) >> 1 & 1, end="")
    print()
"""


@FULL
@pytest.mark.skipif(sys.platform != "linux", reason="signal masks are read from /proc")
@pytest.mark.parametrize("starter", ["main", "thread"])
def test_whatever_is_started_never_sees_control_c(starter: str) -> None:
    """The workers and the forkserver block SIGINT. Python's resource tracker handles the signal itself."""
    lines = python("-W", "ignore", "-c", HOW_SIGINT_IS_TAKEN, starter).splitlines()
    assert [line.count("1") >= 2 for line in lines] == [True] * 3
    assert [line.count("0") for line in lines] == [0, 1, 1]


@columns("blocks", only=ShmemVectorEnv)
@pytest.mark.skipif(PORTABLE, reason="there is nothing to bind them with")
def test_workers_are_bound_to_a_cpu_on_request_only(column: Column) -> None:
    """The worker reports its CPUs, because a sleeping worker may be bound to one CPU."""
    allowed = sorted(os.sched_getaffinity(0))
    for affinity, expected in ((False, {tuple(allowed)}), (True, {(cpu,) for cpu in allowed[:2]})):
        with column.open([partial(Looks, i) for i in range(N)], affinity=affinity) as ledger:
            ledger.begin()
            assert {tuple(cpus) for cpus in ledger.venv.call("cpus")} == expected


def test_a_worker_that_dies_before_it_reads_its_arguments_is_a_worker_that_died(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect = start_methods._ForkServerPopen._connect

    def children() -> set[psutil.Process]:
        server = start_methods._server._forkserver_pid
        return set() if server is None else set(psutil.Process(server).children())

    def connect_and_kill(popen: Any, fds: list[int]) -> Any:
        earlier = children()  # workers of other tests, which may still be ending
        ends = connect(popen, fds)
        wait_until(lambda: children() - earlier, text="no worker was forked")
        (worker,) = children() - earlier
        worker.kill()
        wait_until(lambda: not worker.is_running(), text="the worker lives")
        return ends

    monkeypatch.setattr(start_methods._ForkServerPopen, "_connect", connect_and_kill)
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        ShmemVectorEnv(counters(1), context="forkserver")


@FULL
@fork_may_warn
@pytest.mark.parametrize(("context", "seen"), [("fork", 5.0), ("forkserver", 1.0), ("spawn", 1.0)])
def test_a_model_with_shared_memory_is_shared_only_with_fork(context: str, seen: float) -> None:
    """As in gymnasium. There, fork is the default on Linux before Python 3.14."""
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(1, 1, bias=False).share_memory()

    class Opponent(CountingEnv):
        def weight(self) -> float:
            return model.weight.item()

        def load(self, weights: Any) -> None:
            model.load_state_dict(weights)

    with torch.no_grad():
        model.weight.fill_(1)
    with ShmemVectorEnv([Opponent] * 2, context=context) as venv:
        with torch.no_grad():
            model.weight.fill_(5)
        assert venv.call("weight") == [seen] * 2
        venv.call("load", model.state_dict())
        assert venv.call("weight") == [5.0] * 2
