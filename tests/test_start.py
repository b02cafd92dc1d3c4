"""How workers come to be: from any kind of program, by any start method, with what the user has set up."""

from __future__ import annotations

import errno
import gc
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.envs.registration import EnvSpec

from tests.backends import BACKENDS, and_ray
from tests.faulty import Counter, SpawnsChild, UsesMultiprocessing, counters
from tests.ledger import SEEN, Column, Ledger, N, block_of, columns, gone, pids
from tests.oddities import RaisesAtPickle
from vecenv import ClosedError, DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv
from vecenv.backends.ipc.serialization import dumps_by_value, loads_by_value
from vecenv.backends.pool import worker_pool
from vecenv.backends.worker.worker_setup import registered_by_user
from vecenv.portability import PORTABLE

backend = and_ray(BACKENDS)

ROOT = Path(__file__).parent.parent
every_context = pytest.mark.parametrize("context", ["forkserver", "fork", "spawn"])
fork_may_warn = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*threads.*:RuntimeWarning")

PROGRAM = """
import gymnasium, numpy as np

class Three(gymnasium.spaces.Discrete):
    pass

class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (2,), np.float32)
    action_space = Three(3)

    def reset(self, *, seed=None, options=None):
        assert options is None or type(options["kind"]) is Kind, options
        return np.array([LEVEL, 0], np.float32), {"kind": Kind("reset")}

    def step(self, action):
        if action == 2:
            raise Mistake("both", "sides")
        return np.array([LEVEL, action], np.float32), 1.0, False, False, {"kind": Kind("step")}

class Kind(str):
    pass

class Mistake(Exception):
    pass

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
print("started", flush=True)
"""


def python(*arguments: str, stdin: str | None = None, cwd: Path = ROOT, **options: Any) -> str:
    """What a fresh interpreter prints; it must end well, and say nothing on stderr."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, input=stdin, capture_output=True, text=True, timeout=60, **options
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    ("how", "context"),
    [(how, "forkserver") for how in ("script", "stdin", "command", "notebook")]
    + [("script", "spawn"), ("stdin", "fork")],
)
def test_no_main_guard_is_needed(how: str, context: str, tmp_path: Path) -> None:
    """Classes, functions and exceptions of the program itself travel, and the program is run once only."""
    program = f"CONTEXT = {context!r}\n{PROGRAM}"
    script = tmp_path / "program.py"
    if how == "script":
        script.write_text(program)
        reported = python(str(script), env={**os.environ, "PYTHONPATH": str(ROOT)})
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


CACHED = """
import functools
import gymnasium
import numpy as np
import vecenv

@functools.cache
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

class Cached(gymnasium.Env):
    observation_space = gymnasium.spaces.Discrete(9999)

    @functools.lru_cache(maxsize=7, typed=True)
    def space(self, n):
        return gymnasium.spaces.Discrete(n)

    @functools.cached_property
    def action_space(self):
        return self.space(3)

    def reset(self, *, seed=None, options=None):
        return fibonacci(20), {"cache": str(Cached.space.cache_parameters())}

    def step(self, action):
        return fibonacci(int(action)), 0.0, False, False, {}

class ByName:
    def __reduce__(self):
        return "by_name"

by_name = ByName()
with vecenv.ShmemVectorEnv([Cached, lambda: Cached()], context=CONTEXT) as venv:
    obs, info = venv.reset()
    assert obs.tolist() == [6765, 6765], obs
    assert info[1]["cache"] == "{'maxsize': 7, 'typed': True}", info
    assert venv.step([2, 1])[0].tolist() == [1, 1]
    try:
        venv.call("step", by_name)
    except TypeError as error:
        assert "by_name" in str(error) and "move it to a module" in str(error), error
    else:
        raise SystemExit("sent")
try:
    vecenv.ShmemVectorEnv([lambda: by_name], context=CONTEXT)
except AttributeError as error:
    assert "'by_name'" in str(error) and 'move it to a module' in str(error) and 'context="fork"' in str(error), error
else:
    raise SystemExit("made")
print("started")
"""


@pytest.mark.parametrize("context", ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_cached_functions_and_properties_of_the_script_travel(context: str, tmp_path: Path) -> None:
    """And what cannot travel says so, with what to do."""
    script = tmp_path / "program.py"
    script.write_text(f"CONTEXT = {context!r}\n{CACHED}")
    assert python(str(script), env={**os.environ, "PYTHONPATH": str(ROOT)}) == "started\n"


def test_a_cached_function_of_a_module_travels_by_its_name() -> None:
    """Where it is, its results are."""
    assert hasattr(urlsplit, "cache_info")
    assert loads_by_value(dumps_by_value([urlsplit]))[0] is urlsplit


@pytest.mark.skipif(sys.version_info < (3, 11), reason="PYTHONSAFEPATH came with Python 3.11")
def test_a_file_in_the_working_directory_does_not_hide_a_library_from_workers(tmp_path: Path) -> None:
    """As it does not from the program, whose own folder is searched instead."""
    (tmp_path / "gymnasium.py").write_text("raise SystemExit('not me')")
    (tmp_path / "program").mkdir()
    script = tmp_path / "program" / "main.py"
    script.write_text(f"CONTEXT = None\n{PROGRAM}")
    assert python(str(script), cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}) == "started\n"


@columns("blocks", dummy=False, ray=False)
@every_context
@fork_may_warn
def test_every_start_method_gives_the_same_envs(column: Column, context: str) -> None:
    with column.open(counters(N), context=context) as ledger:
        ledger.begin()
        for _ in range(3):
            assert ledger.round() == []
        assert len(set(pids(ledger.venv))) == 2
        assert os.getpid() not in pids(ledger.venv)


@pytest.fixture
def busy_threads() -> Iterator[None]:
    """A few threads that compute, print and take locks, as those of a learner do."""
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


@columns("blocks", dummy=False, ray=False)
@pytest.mark.parametrize("context", ["fork", "spawn"])
@fork_may_warn
def test_a_kernel_without_pidfds_will_do(column: Column, context: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with column.open(counters(N), context=context) as ledger:
        ledger.begin()


@columns("blocks", only=ShmemVectorEnv)
@every_context
@fork_may_warn
@pytest.mark.usefixtures("busy_threads")
def test_threads_of_the_program_do_not_disturb_the_start(column: Column, context: str) -> None:
    with column.open(counters(N), context=context) as ledger:
        ledger.begin()
        assert ledger.round() == []


@columns("blocks", dummy=False, ray=False)
def test_a_vector_env_made_in_a_thread_outlives_the_thread(column: Column) -> None:
    """The kernel signals a process of the death of the thread that started it, not of the program."""
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(column.backend(counters(N), **column.options)))
    thread.start()
    thread.join()
    ledger = Ledger(made[0])
    ledger.begin()
    assert ledger.round() == []
    assert made[0].alive() == [True] * N
    made[0].close()


# What the workers know of the program.


@columns("single", only=ShmemVectorEnv)
@every_context
@fork_may_warn
def test_ids_that_the_program_registered_are_known_to_the_workers(column: Column, context: str) -> None:
    gymnasium.register(id="Local/Counter-v0", entry_point=lambda number: Counter(number), max_episode_steps=2)
    try:
        env_fns = [partial(gymnasium.make, "Local/Counter-v0", number=i, disable_env_checker=True) for i in range(N)]
        with column.backend(env_fns, context=context, **column.options) as venv:
            obs, _ = venv.reset()
            assert obs[:, 0].tolist() == [0, 1, 2, 3]
            assert [spec.id for spec in venv.spec] == ["Local/Counter-v0"] * N
            venv.step([0] * N)
            assert venv.step([0] * N)[3].tolist() == [True] * N
    finally:
        del gymnasium.registry["Local/Counter-v0"]


class LooksIntoTheRegistry(Counter):
    def knows(self, id: str) -> bool:
        return id in gymnasium.registry


@columns("single", dummy=False, ray=False)
def test_what_the_program_registered_is_looked_up_once_for_all_workers(
    column: Column, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[None] = []
    monkeypatch.setattr(worker_pool, "registered_by_user", lambda: looks.append(None) or registered_by_user())
    with column.open([partial(LooksIntoTheRegistry, i) for i in range(N)]) as ledger:
        assert (ledger.venv.num_workers, len(looks)) == (N, 1)
        monkeypatch.setitem(gymnasium.registry, "Local/Later-v0", EnvSpec("Local/Later-v0"))
        ledger.begin()
        dies_and_is_reset(ledger, 1)
        assert len(looks) == 2
        assert ledger.venv.call("knows", "Local/Later-v0") == [i == 1 for i in range(N)]


class ShowsEnviron(Counter):
    def variable(self, name: str) -> str | None:
        return os.environ.get(name)


@columns("single", only=ShmemVectorEnv)
@every_context
@fork_may_warn
def test_a_change_of_the_environment_is_seen_by_the_next_vector_env(
    column: Column, context: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that starts the workers was started with the environment of its own time."""
    seen = []
    for value in ("one", "two", None):
        monkeypatch.setenv("VECENV_TEST", value) if value else monkeypatch.delenv("VECENV_TEST")
        with column.backend([partial(ShowsEnviron, 0)], context=context) as venv:
            seen += venv.call("variable", "VECENV_TEST")
    assert seen == ["one", "two", None]


@columns("single", only=ShmemVectorEnv)
@every_context
@fork_may_warn
def test_workers_use_one_thread_for_linear_algebra_by_default(
    column: Column, context: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dict(os.environ)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    with column.backend([partial(ShowsEnviron, 0)], context=context) as venv:
        assert venv.call("variable", "OMP_NUM_THREADS") == ["1"]
        assert venv.call("variable", "OPENBLAS_NUM_THREADS") == ["1"]
        assert venv.call("variable", "MKL_NUM_THREADS") == ["3"]
    assert "OMP_NUM_THREADS" not in os.environ
    assert before.get("OPENBLAS_NUM_THREADS") == os.environ.get("OPENBLAS_NUM_THREADS")


class ShowsThreads(Counter):
    def threads(self) -> int:
        np.ones((300, 300)) @ np.ones((300, 300))
        return psutil.Process().num_threads()


def test_linear_algebra_in_workers_starts_no_threads() -> None:
    """The main thread, and the one that watches the parent."""
    with ShmemVectorEnv([partial(ShowsThreads, 0)]) as venv:
        assert venv.call("threads") == [2]


MODULES = """
import sys, gymnasium, vecenv
class ShowsModules(type(gymnasium.make("CartPole-v1").unwrapped)):
    def modules(self):
        return set(sys.modules)
with vecenv.SubprocVectorEnv([ShowsModules], context=CONTEXT) as venv:
    print(*venv.call("modules")[0])
"""


@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_workers_import_nothing_heavy_of_the_program(context: str) -> None:
    program = f"import torch, pytest, matplotlib, collector\nCONTEXT = {context!r}{MODULES}"
    modules = set(python("-c", program).split())
    assert {"numpy", "gymnasium"} <= modules
    assert not modules & {"torch", "ray", "pytest", "pandas", "matplotlib", "collector", "unittest"}


# What forked workers inherit, and others cannot be sent.


@pytest.fixture(scope="module")
def tally() -> Any:
    """Made once, because multiprocessing keeps the memory for the next one."""
    return multiprocessing.get_context("fork").Value("i", 0)


class Tallies(Counter):
    """Counts every step in a number that the program shares."""

    def __init__(self, id: int, tally: Any) -> None:
        super().__init__(id)
        self.tally = tally

    def on_step(self) -> None:
        with self.tally.get_lock():
            self.tally.value += 1


def dies_and_is_reset(ledger: Ledger, i: int) -> None:
    """The worker of env i is killed while idle, and its envs are made anew."""
    block = block_of(ledger.venv, i)
    os.kill(pids(ledger.venv)[i], signal.SIGKILL)
    deadline = time.monotonic() + SEEN
    while ledger.venv.alive()[i]:
        assert time.monotonic() < deadline
    ledger.born_again(block)
    ledger.reset(block)


@columns("blocks", dummy=False, ray=False)
@fork_may_warn
def test_forked_envs_share_what_the_program_shares(column: Column, tally: Any) -> None:
    tally.value = 0
    with column.open([partial(Tallies, i, tally) for i in range(N)], context="fork") as ledger:
        ledger.begin()
        assert tally.value == N
        dies_and_is_reset(ledger, 1)
        assert ledger.round() == []
        assert tally.value == 2 * N


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


@columns("blocks", dummy=False, ray=False)
@pytest.mark.parametrize("made", [under_a_lock, from_a_generator, besides_what_no_pickle_takes])
@fork_may_warn
def test_env_fns_of_forked_workers_may_hold_anything(column: Column, made: Callable[[int], Any]) -> None:
    with column.open([made(i) for i in range(N)], context="fork") as ledger:
        ledger.begin()
        dies_and_is_reset(ledger, 1)
        assert ledger.round() == []


class NotesPickle:
    """Notes that it was pickled."""

    def __init__(self) -> None:
        self.pickled = 0

    def __reduce__(self) -> Any:
        self.pickled += 1
        return NotesPickle, ()


@columns("blocks", dummy=False, ray=False)
@pytest.mark.parametrize(("context", "pickled"), [("fork", False), ("forkserver", True)])
@fork_may_warn
def test_nothing_is_pickled_for_a_forked_worker(column: Column, context: str, pickled: bool) -> None:
    held, registered = NotesPickle(), NotesPickle()
    gymnasium.register(id="Local/Noting-v0", entry_point=Counter, kwargs={"note": registered})
    try:
        with column.open([partial(lambda i, _: Counter(i), i, held) for i in range(N)], context=context) as ledger:
            ledger.begin()
    finally:
        del gymnasium.registry["Local/Noting-v0"]
    assert [bool(note.pickled) for note in (held, registered)] == [pickled] * 2


@columns("blocks", dummy=False, ray=False)
@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_who_cannot_send_an_env_fn_is_reported_of_fork(column: Column, context: str) -> None:
    with pytest.raises(TypeError, match=r"env_fns\[1\] cannot be sent to a worker: .*context=\"fork\""):
        column.backend([partial(Counter, 0), under_a_lock(1)], context=context)


# The random generators that a process has from the beginning.


class ShowsRandom(Counter):
    def draw(self) -> float:
        return float(np.random.random())

    def draw_plain(self) -> float:
        return random.random()


@pytest.fixture
def own_generators() -> Iterator[None]:
    """The test may seed the global generators."""
    states = np.random.get_state(), random.getstate()
    yield
    np.random.set_state(states[0])
    random.setstate(states[1])


def drawn(venv: Any) -> list[float]:
    return [*venv.call("draw"), *venv.call("draw_plain")]


@columns("blocks", dummy=False, ray=False)
@pytest.mark.parametrize("context", ["forkserver", "fork", pytest.param("spawn", marks=pytest.mark.slow)])
@fork_may_warn
@pytest.mark.usefixtures("own_generators")
def test_no_worker_repeats_another(column: Column, context: str) -> None:
    """Neither one of its own vector env nor one of the vector env before."""
    numbers = []
    for _ in range(2):
        np.random.seed(0)
        random.seed(0)
        with column.open([partial(ShowsRandom, i) for i in range(2)], context=context) as ledger:
            numbers += drawn(ledger.venv)
    assert len(set(numbers)) == 8


@columns("single", dummy=False, far=False)
@pytest.mark.usefixtures("own_generators")
def test_a_worker_does_not_repeat_the_one_that_died(column: Column) -> None:
    with column.open([partial(ShowsRandom, i) for i in range(N)]) as ledger:
        ledger.begin()
        before = drawn(ledger.venv)
        dies_and_is_reset(ledger, 1)
        after = drawn(ledger.venv)
    assert not {after[1], after[N + 1]} & set(before)


@columns("blocks", dummy=False, ray=False)
@pytest.mark.parametrize("context", ["forkserver", "fork"])
@fork_may_warn
@pytest.mark.usefixtures("own_generators")
def test_the_generators_of_the_program_are_not_advanced(column: Column, context: str) -> None:
    np.random.seed(0)
    random.seed(0)
    expected = np.random.random(), random.random()
    np.random.seed(0)
    random.seed(0)
    with column.open([partial(ShowsRandom, i) for i in range(2)], context=context) as ledger:
        drawn(ledger.venv)
    assert (np.random.random(), random.random()) == expected


@columns("blocks", dummy=False, ray=False)
@pytest.mark.parametrize("context", ["forkserver", "fork"])
@fork_may_warn
def test_the_program_may_have_put_another_generator_behind_numpy(column: Column, context: str) -> None:
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(0))
    try:
        with column.open([partial(ShowsRandom, i) for i in range(2)], context=context) as ledger:
            assert len(set(drawn(ledger.venv))) == 4
    finally:
        np.random.set_bit_generator(before)


DRAWS = """
import random
import numpy as np
import vecenv
from vecenv.testing import CountingEnv

class Draws(CountingEnv):
    def draw(self):
        return np.random.random(), random.random()

{seeding}
drawn = []
for venv_class in (vecenv.SubprocVectorEnv, vecenv.ShmemVectorEnv):
    with venv_class([Draws] * 2, num_workers=2, context={context!r}) as venv:
        drawn += venv.call("draw")
for numbers in zip(*drawn):
    print(numbers)
"""


@pytest.mark.parametrize("context", ["forkserver", "fork"])
def test_a_program_that_seeds_its_generators_seeds_those_of_its_workers(context: str) -> None:
    """The one that it seeds gives the same numbers in every run, the one that it does not seed gives new ones."""

    def run(*seeding: str) -> list[str]:
        program = DRAWS.format(seeding="\n".join(seeding), context=context)
        return python("-W", "ignore", "-c", program).splitlines()

    both = run("np.random.seed(1)", "random.seed(1)")
    numpys, plain = run("np.random.seed(1)"), run("random.seed(1)")
    assert (numpys[0], plain[1]) == (both[0], both[1])
    assert (numpys[1] != both[1], plain[0] != both[0]) == (True, True)
    assert run("np.random.seed(2)", "random.seed(2)")[0] != both[0]


@columns("single", dummy=False, ray=False)
def test_the_start_method_of_the_program_stays_its_own_choice(column: Column) -> None:
    program = (
        "import multiprocessing, vecenv\n"
        "from tests.faulty import Counter\n"
        f"vecenv.{column.backend.__name__}([lambda: Counter(0)]).close()\n"
        "assert multiprocessing.get_start_method(allow_none=True) is None, multiprocessing.get_start_method()\n"
        "multiprocessing.set_start_method('spawn')\n"
        "print('free')\n"
    )
    assert python("-c", program) == "free\n"


# Envs that start processes.


@columns("blocks")
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


class Nested(Counter):
    """An env that uses a vector env itself."""

    def __init__(self, id: int) -> None:
        super().__init__(id)
        self.inner = SubprocVectorEnv(counters(2))
        self.inner.reset()

    def on_step(self) -> None:
        assert self.inner.step([self.t, 0])[0][0].tolist() == [0, 1, self.t, self.t]

    def close(self) -> None:
        self.inner.close()


@columns("blocks", only=ShmemVectorEnv)
@every_context
@fork_may_warn
def test_a_worker_may_have_vector_envs_of_its_own(column: Column, context: str) -> None:
    with column.open([partial(Nested, i) for i in range(2)], num_workers=2, context=context) as ledger:
        ledger.begin()
        assert ledger.round() == []


# A forked copy of the program.


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_copy_of_the_program_cannot_use_the_vector_env_nor_harm_it(backend: type) -> None:
    with backend(counters(2)) as venv:
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
    """Each call is refused with the two process ids; then the copy ends without leaving pytest's own exit to it."""
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
    calls = venv = None
    gc.collect()
    os._exit(0 if refused == 7 else 1)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("venv_class", [SubprocVectorEnv, ShmemVectorEnv])
def test_a_forked_copy_of_the_program_may_have_vector_envs_of_its_own(venv_class: type) -> None:
    with venv_class(counters(2)) as venv:
        ledger = Ledger(venv)
        ledger.begin()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with venv_class(counters(2)) as own:
                    status = int(own.reset()[0][:, 0].tolist() != [0, 1])
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert ledger.round() == []


def test_two_vector_envs_at_a_time_do_not_mix(backend: type) -> None:
    with backend(counters(2)) as one, DummyVectorEnv(counters(2)) as other, backend(counters(2)) as third:
        ledgers = [Ledger(venv) for venv in (one, other, third)]
        for ledger in ledgers:
            ledger.begin()
        one.close()
        for ledger in ledgers[1:]:
            assert ledger.round() == []


HOW_SIGINT_IS_TAKEN = """
import psutil, vecenv
from vecenv.testing import CountingEnv
with vecenv.ShmemVectorEnv([CountingEnv] * 2, num_workers=2, context={context!r}) as venv:
    for child in psutil.Process().children(recursive=True):
        with open(f"/proc/{{child.pid}}/status") as status:
            masks = dict(line.split(":") for line in status)
        # Bit 1 is SIGINT. From its first moment on, not only once the process has seen to it.
        print(int(masks["SigBlk"], 16) >> 1 & 1)
"""


@every_context
@pytest.mark.skipif(sys.platform != "linux", reason="signal masks are read from /proc")
def test_whatever_is_started_never_sees_control_c(context: str) -> None:
    """Neither does the start of the forkserver; only the resource tracker of Python sees to it by itself."""
    blocked = python("-W", "ignore", "-c", HOW_SIGINT_IS_TAKEN.format(context=context)).split()
    assert blocked.count("1") >= 2
    assert blocked.count("0") == (context != "fork")


class TellsCPUs(Counter):
    def cpus(self) -> list[int]:
        return sorted(os.sched_getaffinity(0))


@columns("blocks", dummy=False, ray=False)
@pytest.mark.skipif(PORTABLE, reason="there is nothing to bind them with")
@pytest.mark.parametrize("affinity", [False, True])
def test_workers_are_bound_to_a_cpu_on_request_only(column: Column, affinity: bool) -> None:
    """Asked in the worker: one that sleeps may wait on a single CPU, without a request."""
    allowed = sorted(os.sched_getaffinity(0))
    with column.open([partial(TellsCPUs, i) for i in range(N)], affinity=affinity) as ledger:
        ledger.begin()
        bound = {frozenset(cpus) for cpus in ledger.venv.call("cpus")}
    assert bound == ({frozenset({cpu}) for cpu in allowed[:2]} if affinity else {frozenset(allowed)})
