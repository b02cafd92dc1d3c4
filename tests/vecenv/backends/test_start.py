"""Workers start from any kind of program, with every start method, and with the program's settings."""

from __future__ import annotations

import gc
import itertools
import mmap
import multiprocessing
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
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
from tests.support.ledger import Ledger, gone, kill, pids, wait_until
from tests.support.programs import output_of, run_python
from vecenv import ClosedError, ShmemVectorEnv, SubprocVectorEnv
from vecenv.testing import CountingEnv

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*threads.*:RuntimeWarning")
each_context = pytest.mark.parametrize("context", ["forkserver", *full(["fork", "spawn"])])

PROGRAM = """
import functools, multiprocessing
from vecenv.testing import CountingEnv

@functools.cache
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

class Mine(CountingEnv):
    @functools.lru_cache(maxsize=7, typed=True)
    def level(self):
        return LEVEL

    def reset(self, *, seed=None, options=None):
        assert type(options["kind"]) is Kind
        assert (self.level(), fibonacci(20)) == (3, 6765)
        assert str(Mine.level.cache_parameters()) == "{'maxsize': 7, 'typed': True}"
        return super().reset(seed=seed)[0], {"kind": Kind("reset")}

    def step(self, action):
        if action == 2:
            raise Mistake("both", "sides")
        return super().step(action)

class Kind(str):
    pass

class Mistake(Exception):
    pass

LEVEL = 3
import vecenv
with vecenv.ShmemVectorEnv([lambda: Mine(), Mine, Mine], num_workers=2, context=CONTEXT) as venv:
    assert type(venv.reset(options={"kind": Kind("asked")})[1][0]["kind"]) is Kind
    venv.set_env_attr("kind", Kind("set"))
    assert [type(kind) for kind in venv.get_env_attr("kind")] == [Kind] * 3
    try:
        venv.step([0, 2, 0])
    except Mistake as error:
        assert error.args == ("both", "sides")
        assert error.partial.env_id.tolist() == [0, 2]
    else:
        raise SystemExit("no mistake")
assert multiprocessing.get_start_method(allow_none=True) is None, "the choice of the program"
print("started", flush=True)
"""


def _as_notebook(program: str) -> str:
    """Return a program that runs cells one by one in the namespace of __main__, without a file."""
    before, line, after = program.partition("import vecenv\n")
    loop = "for k, cell in enumerate(CELLS):\n    exec(compile(cell, f'<cell {k}>', 'exec'), globals())\n"
    return f"CELLS = {[before, line + after]!r}\n{loop}"


@pytest.mark.guarantee("G9.13")
@pytest.mark.parametrize(
    ("how", "context"),
    [
        ("script", "forkserver"),
        pytest.param("stdin", "fork", marks=FULL),
        pytest.param("command", "spawn", marks=FULL),
        pytest.param("notebook", "forkserver", marks=FULL),
        pytest.param("pdb", "forkserver", marks=FULL),  # pdb of Python 3.11 and 3.12 removes __spec__ from __main__
    ],
)
def test_no_main_guard_is_needed(how: str, context: str, tmp_path: Path) -> None:
    """Classes, functions (also cached) and exceptions of the program reach workers. The program runs only once.

    A file in the working directory does not hide a library from workers, as it does not from the program, whose own
    folder is searched instead.
    """
    program = f"CONTEXT = {context!r}\n{PROGRAM}"
    script = tmp_path / "program" / "main.py"
    script.parent.mkdir()
    script.write_text(program)
    (tmp_path / "gymnasium.py").write_text("raise SystemExit('not me')")
    runs: dict[str, Callable[[], str]] = {
        "script": lambda: output_of(script, cwd=tmp_path),
        "stdin": lambda: output_of("-", stdin=program),
        "command": lambda: output_of("-c", program),
        "notebook": lambda: output_of("-c", _as_notebook(program)),
        "pdb": lambda: output_of("-m", "pdb", "-c", "continue", "-c", "quit", script),
    }
    assert runs[how]().partition("The program finished")[0] == "started\n"


MAKES_A_VECTOR_ENV = """
import os, vecenv
from vecenv.testing import CountingEnv
level = int(os.environ.get("LEVEL", "0"))
os.environ["LEVEL"] = str(level + 1)
assert level < 3, "too many"
import envs
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
@pytest.mark.parametrize(
    ("script", "context", "env"),
    [
        ("main.py", "forkserver", "Mine"),
        pytest.param("envs.py", "spawn", "Mine", marks=FULL),
        pytest.param("main.py", "forkserver", "CountingEnv", marks=FULL),
    ],
)
def test_a_module_whose_import_makes_vector_envs_without_end_is_named(
    script: str, context: str, env: str, tmp_path: Path
) -> None:
    """The main script imports the module, or imports itself under its own name. Envs of other modules are allowed."""
    (tmp_path / "main.py").write_text(USES_THE_MODULE)
    (tmp_path / "envs.py").write_text(f"CONTEXT = {context!r}\n{MAKES_A_VECTOR_ENV.replace('ENV]', f'{env}]')}")
    done = run_python(tmp_path / script)
    if env == "CountingEnv":
        assert (done.returncode, done.stdout, done.stderr) == (0, "2 5\n", "")
        return
    assert done.returncode == 1
    assert "RuntimeError: the module envs makes a vector env while it is imported." in done.stderr
    assert f"In {tmp_path / 'envs.py'}, move the code into a function" in done.stderr
    assert "too many" not in done.stderr


class Looks(Counter):
    """Env that reports properties of its process."""

    def variables(self, *names: str) -> list[str | None]:
        return [os.environ.get(name) for name in names]

    def limits(self, *ids: str) -> list[int | None]:
        return [gymnasium.spec(id).max_episode_steps for id in ids]

    def threads(self) -> int:
        np.ones((300, 300)) @ np.ones((300, 300))
        return psutil.Process().num_threads()

    def draws(self) -> tuple[float, float]:
        return float(np.random.random()), random.random()

    def cpus(self) -> list[int]:
        return sorted(os.sched_getaffinity(0))

    def streams(self) -> list[bool]:
        return [os.fstat(fd).st_rdev == os.stat(os.devnull).st_rdev for fd in range(3)]

    def never_sees_control_c(self) -> bool:
        """SIGINT must be blocked from the first moment of the process on, so its starter has blocked SIGINT."""
        return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def dies_and_is_reset(venv: Any, i: int) -> None:
    """Kill the idle worker of env i, and let vecenv make its envs anew."""
    kill(pids(venv)[i])
    wait_until(lambda: not venv.alive()[i])
    venv.reset([j for j, alive in enumerate(venv.alive()) if not alive])


@each_context
def test_workers_know_what_the_program_has_set_up(
    context: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a worker that starts again after the working directory was removed."""
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
        assert [spec.id for spec in venv.spec] == ["Local/Looks-v0"] * 2
        assert venv.call("limits", *own) == [[7, 8]] * 2
        names = ("VECENV_TEST", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        assert venv.call("variables", *names) == [["one", "1", "1", "3"]] * 2
        assert venv.call("never_sees_control_c") == [True] * 2
        if context != "fork":  # the main thread, and the thread that watches the parent
            assert venv.call("threads") == [2, 2]
        monkeypatch.setitem(gymnasium.registry, "Local/Later-v0", EnvSpec("Local/Later-v0", max_episode_steps=5))
        folder = tmp_path / "gone"
        folder.mkdir()
        monkeypatch.chdir(folder)
        folder.rmdir()
        dies_and_is_reset(venv, 1)
        assert venv.call("limits", "Local/Later-v0", id=[1]) == [[5]]
    monkeypatch.chdir(tmp_path)
    assert dict(os.environ) == before
    for value in ("two", None):  # the forkserver still has the environment of its start
        monkeypatch.setenv("VECENV_TEST", value) if value else monkeypatch.delenv("VECENV_TEST")
        with ShmemVectorEnv([partial(Looks, 0)], context=context) as venv:
            assert venv.call("variables", "VECENV_TEST") == [[value]]


def test_functions_of_a_script_keep_the_name_of_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the stack of an env that hangs shows the file. cloudpickle 3.1.3 replaces the name."""
    reduce = cloudpickle.Pickler.dispatch_table[CodeType]

    def reduce_as_3_1_3(code: CodeType) -> Any:
        make, arguments = reduce(code)
        return make, (*arguments[:10], "<dynamic-code>", *arguments[11:])

    class Own(CountingEnv):
        def file(self) -> str:
            return sys._getframe().f_code.co_filename

    monkeypatch.setitem(cloudpickle.Pickler.dispatch_table.maps[0], CodeType, reduce_as_3_1_3)
    with ShmemVectorEnv([Own]) as venv:
        assert venv.call("file") == [__file__]


CLOSES_STREAMS = """
import os, sys
from tests.vecenv.backends.test_start import Looks
from vecenv import SubprocVectorEnv
os.closerange(0, 3)
for context in ("fork", "forkserver", "spawn"):
    with SubprocVectorEnv([lambda: Looks(0)], context=context) as venv, open(sys.argv[1], "a") as file:
        print(*venv.call("streams")[0], file=file)
"""


@FULL
def test_envs_of_a_program_without_standard_streams_write_to_no_pipe_of_vecenv(tmp_path: Path) -> None:
    output_of("-c", CLOSES_STREAMS, tmp_path / "found")
    assert (tmp_path / "found").read_text() == "True True True\n" * 3


@pytest.mark.guarantee("G9.14")
@each_context
def test_a_vector_env_is_made_in_a_thread_beside_busy_threads_and_outlives_its_thread(context: str) -> None:
    """The kernel signals the end of the thread that started a process, not the end of the program."""
    made, stop, lock = list[Any](), threading.Event(), threading.Lock()

    def learn() -> None:
        while not stop.is_set():
            with lock:
                np.ones((50, 50)) @ np.ones((50, 50))

    def make() -> None:
        made.append(ShmemVectorEnv(counters(2), context=context))

    learners, maker = [threading.Thread(target=learn) for _ in range(2)], threading.Thread(target=make)
    for thread in (*learners, maker):
        thread.start()
    maker.join()
    with made[0] as venv:
        Ledger(venv).begin()
        assert venv.alive() == [True, True]
    stop.set()
    for thread in learners:
        thread.join()


SUITE = """
import gymnasium
for id in ("Suite/E0-v0", "Suite/E1-v0"):
    gymnasium.register(id, entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=9)
"""
USES_SUITE = """
import gymnasium, suite, vecenv
gymnasium.registry["Suite/E1-v0"].max_episode_steps = 7  # the value in the program
def late():
    import suite
    return gymnasium.make("Suite/E0-v0")
makers = [lambda: gymnasium.make("suite:Suite/E0-v0"), lambda: gymnasium.make("Suite/E1-v0"), late]
for context in ("forkserver", "spawn"):
    with vecenv.ShmemVectorEnv(makers, num_workers=1, context=context) as venv:
        print([spec.max_episode_steps for spec in venv.spec])
"""


@FULL
def test_a_package_that_registers_its_envs_again_in_a_worker_is_no_reason_for_warnings(tmp_path: Path) -> None:
    (tmp_path / "suite.py").write_text(SUITE)
    (tmp_path / "main.py").write_text(USES_SUITE)
    assert output_of(tmp_path / "main.py") == "[9, 7, 9]\n" * 2


def test_env_fns_of_forked_workers_may_hold_anything() -> None:
    """Forked workers share the shared memory of the program."""
    tally, lock, numbers = mmap.mmap(-1, 2), threading.Lock(), itertools.count()

    class Tallies(Counter):
        def on_step(self) -> None:
            with lock:
                tally[self.id] += 1

    env_fns: list[Any] = [lambda i=i: Tallies(next(numbers) + i) for i in range(2)]
    with SubprocVectorEnv(env_fns, num_workers=2, context="fork") as venv:
        venv.reset()
        venv.step([0, 0])
        dies_and_is_reset(venv, 1)
        venv.step([0, 0])
    assert list(tally[:]) == [2, 2]


@FULL
@pytest.mark.parametrize(("context", "seen"), [("fork", 5.0), ("forkserver", 1.0)])
def test_a_model_with_shared_memory_is_shared_only_with_fork(context: str, seen: float) -> None:
    """As in gymnasium. There, fork is the default on Linux before Python 3.14."""
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(1, 1, bias=False).share_memory()

    class Opponent(CountingEnv):
        def weight(self) -> float:
            return model.weight.item()

    with torch.no_grad():
        model.weight.fill_(1)
    with ShmemVectorEnv([Opponent] * 2, context=context) as venv:
        with torch.no_grad():
            model.weight.fill_(5)
        assert venv.call("weight") == [seen] * 2


# The global random generators of a process.


@each_context
def test_no_worker_repeats_another(context: str) -> None:
    """No worker repeats the numbers of another worker, of an earlier vector env, or of the worker that it replaces."""
    numbers: list[float] = []
    for _ in range(2):
        np.random.seed(0)
        random.seed(0)
        before = np.random.get_state()[1].tolist(), random.getstate()
        with ShmemVectorEnv([partial(Looks, i) for i in range(2)], num_workers=2, context=context) as venv:
            numbers += itertools.chain(*venv.call("draws"))
            dies_and_is_reset(venv, 1)
            numbers += venv.call("draws", id=[1])[0]
        assert (np.random.get_state()[1].tolist(), random.getstate()) == before, "they are read, not advanced"
    assert len(set(numbers)) == 12


def draws_of_a_new_run(numpys: int | None, pythons: int | None) -> list[tuple[float, float]]:
    np.random.seed(numpys)
    random.seed(pythons)
    with ShmemVectorEnv([partial(Looks, i) for i in range(2)], num_workers=2, context="fork") as venv:
        return venv.call("draws")


@pytest.mark.guarantee("G6.7")
def test_the_generators_of_workers_follow_from_those_of_the_program() -> None:
    """A seeded generator gives the same numbers in every run. An unseeded generator gives new numbers."""

    def run(*seeds: int | None) -> tuple[list[float], list[float]]:
        with multiprocessing.get_context("fork").Pool(1) as pool:  # a copy of this program, at the same point
            draws = pool.apply(draws_of_a_new_run, seeds)
            pool.close()
            pool.join()  # the end of the block sends SIGTERM, and hangs if a handler of the program swallows it
        return [numpys for numpys, _ in draws], [pythons for _, pythons in draws]

    both, again, only_numpys, only_pythons = run(1, 1), run(1, 1), run(1, None), run(None, 1)
    assert both == again
    assert (only_numpys[0], only_pythons[1]) == both
    assert only_numpys[1] != both[1]
    assert only_pythons[0] != both[0]


# Envs that start processes, and processes that use vector envs.


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


@pytest.mark.parametrize("context", full(["forkserver", "fork", "spawn"]))
def test_envs_may_start_processes_threads_and_vector_envs_and_leave_them_running(context: str) -> None:
    """A worker that had to be killed would be a warning, which fails the test."""
    classes = [SpawnsChild, *(partial(LeavesRunning, what=what) for what in ("thread", "pool"))]
    classes += [*(partial(UsesMultiprocessing, method=method) for method in ("fork", "spawn")), Nested]
    with ShmemVectorEnv([partial(make, i) for i, make in enumerate(classes)], num_workers=6, context=context) as venv:
        venv.reset()
        (child,) = venv.get_env_attr("child", [0])
        assert psutil.pid_exists(child)
        assert venv.step([3] * 6)[1][3:5].tolist() == [9, 9]
    assert gone(child)


@pytest.mark.parametrize(
    ("backend", "is_dropped"), [(ShmemVectorEnv, False), (ShmemVectorEnv, True), (SubprocVectorEnv, True)]
)
def test_a_forked_copy_of_the_program_cannot_use_the_vector_env_nor_harm_it(backend: Any, is_dropped: bool) -> None:
    """A forked copy may make a new vector env."""
    venv = backend(counters(2))
    ledger = Ledger(venv)
    ledger.begin()
    child = os.fork()
    if child == 0:
        is_fine = False
        try:
            is_fine = is_dropped or _is_refused_in_the_copy(venv)
            del venv, ledger
            gc.collect()
        finally:
            os._exit(not is_fine)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ledger.round() == []
    assert venv.alive() == [True, True]
    venv.close()


def _is_refused_in_the_copy(venv: Any) -> bool:
    """Expect a refusal with both process ids for each call."""
    refused = 0
    for call in (venv.reset, lambda: venv.step([0, 0]), lambda: venv.get_env_attr("t"), venv.alive, lambda: venv.spec):
        try:
            call()
        except ClosedError as error:
            refused += f"belongs to process {os.getppid()}" in str(error) and str(os.getpid()) in str(error)
    venv.close()
    with ShmemVectorEnv(counters(2)) as own:
        return (refused, own.reset()[0][:, 0].tolist()) == (5, [0, 1])


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="there is nothing to bind them with")
def test_workers_are_bound_to_a_cpu_on_request_only() -> None:
    """The worker reports its CPUs, because a sleeping worker may be bound to one CPU."""
    allowed = sorted(os.sched_getaffinity(0))
    for affinity, expected in ((False, {tuple(allowed)}), (True, {(cpu,) for cpu in allowed[:2]})):
        with ShmemVectorEnv([partial(Looks, i) for i in range(4)], num_workers=2, affinity=affinity) as venv:
            Ledger(venv).begin()
            assert {tuple(cpus) for cpus in venv.call("cpus")} == expected
