"""Fixtures that every test shares: the backends, and the check that a test leaves nothing behind."""

import contextlib
import gc
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from multiprocessing.util import Finalize
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.support import local_ray as local_ray_of_the_run
from tests.support.backends import BACKENDS, PROCESS_BACKENDS, and_ray, one_of, vector_env_classes
from vecenv.backends import free_threading
from vecenv.backends.pool import preloading, start_methods

PATIENCE = 2.0
"""Seconds that the system may take to reap what has been closed."""
PATIENCE_WITH_RAY = 45.0
"""As long as Ray may take to end an actor, on a busy machine."""

# A folder for temporary files of its own: tests that count what is left there may run beside others.
os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="tests-")
# Removed after the folder in it that multiprocessing removes with priority -100.
Finalize(None, shutil.rmtree, (tempfile.tempdir, True), exitpriority=-200)

# Semaphores of this process and its workers get names of their own: other programs use /dev/shm as well.
OUR_SEMAPHORES = f"sem.mp-of-{os.getpid()}"
multiprocessing.current_process()._config["semprefix"] = "/" + OUR_SEMAPHORES.removeprefix("sem.")

# What nearly all workers import, with the classes of their envs or for CartPole: once, not in each of them.
start_methods.PRELOAD[:0] = [
    "psutil",
    "pytest",
    "gymnasium.envs.classic_control",
    "gymnasium.envs.toy_text",
    "vecenv.facades.make_vec",
    "vecenv.testing",
    "tests.support.cases",
    "tests.support.countdown",
    "tests.support.oddities",
]

# PyTorch's compiler, where it has triton, keeps a pool of processes until the end. Read when torch is imported.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# MKL's reproducible kernels, for which it can be asked only before it is used. Read then.
os.environ.setdefault("MKL_CBWR", "AUTO")

# Started in the background or under nohup, a program ignores these, and so does all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """All modules are imported: the garbage collector need not look at them again, with which it spends most time."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what tests have recorded for it, from other processes of the run too."""
    for report in terminalreporter.getreports("passed"):
        for name, text in report.user_properties:
            if name == "summary":
                terminalreporter.write_line(text)


backend = vector_env_classes(one_of(BACKENDS))
"""Each vector env class in turn, where the code that decides is shared: the quick tier runs Dummy alone."""
process_backend = vector_env_classes(one_of(PROCESS_BACKENDS))
"""Each class whose envs live in other processes."""
remote_backend = and_ray(PROCESS_BACKENDS)
"""The same, on Ray too."""
waiting_backend = vector_env_classes(one_of(BACKENDS[1:]))
"""Each class whose calls wait for envs that run elsewhere."""


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job with 40 episodes of `Counting` envs, which nothing disturbed."""
    from collector import run_job
    from tests.support.job_envs import counting, job

    folder = tmp_path_factory.mktemp("uninterrupted")
    run_job(job(**counting(), episodes=40), folder)
    return folder


@pytest.fixture
def forkserver_ends() -> Iterator[None]:
    """Ends the process from which `tests.fuzz.kills` forks jobs."""
    yield
    forkserver._forkserver._stop()  # multiprocessing's own


@pytest.fixture(scope="module")
def no_fsync() -> Iterator[None]:
    """Files go to the disk when the system likes: no test can cut the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("collector.store.safe_folder.fsync", lambda fd: None)
        yield


@pytest.fixture
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorder cuts the episodes out of its rounds after every seventh, so that most come in several parts."""
    monkeypatch.setattr("collector.store.recorder.ROUNDS", 7)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where those who run the tests have switched it off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def cuda_has_started() -> None:
    """Descriptors that CUDA opens when it starts stay open for the life of the process: no test has left it behind."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
            torch.empty(1, pin_memory=True)
        torch.cuda.synchronize()


@pytest.fixture(scope="session")
def ray_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The local Ray that all processes of the test run share."""
    base = tmp_path_factory.getbasetemp()
    address, users = local_ray_of_the_run.start((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "ray")
    yield address
    users.close()


@pytest.fixture(scope="module")
def local_ray(ray_address: str) -> Iterator[None]:
    """Connects this process to it."""
    local_ray_of_the_run.connect(ray_address)
    yield
    sys.modules["ray"].shutdown()


@pytest.fixture(scope="session")
def fonts() -> None:
    """matplotlib keeps the font files open that it has once used; that is no leak of the test that draws first."""
    pytest.importorskip("matplotlib")
    import io

    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().set(title="fonts", xlabel="1,000")
    figure.savefig(io.BytesIO(), format="png")


@pytest.fixture(autouse=True, scope="session")
def interpreter_lock_stays_off() -> Iterator[None]:
    """On free-threaded Python no test proves anything about threads once an import has turned the lock on."""
    before = free_threading.has_gil()
    yield
    assert free_threading.has_gil() == before, f"turned on by the import of {free_threading.gil_modules}"


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test draws the same random numbers, alone and beside others. TEST_SEED=7 makes them different ones."""
    seed = int(os.environ.get("TEST_SEED", "0"))
    random.seed(seed)
    np.random.seed(seed)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)


@pytest.fixture(autouse=True)
def no_leaks(cuda_has_started: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a process, a file descriptor, shared memory or thread of ours behind."""
    for name in ("local_ray", "own_ray"):
        if request.node.get_closest_marker(name):  # what it opens is there before
            request.getfixturevalue(name)
    files, memory, processes, threads = descriptors(), shared_memory(), children(), block_threads()
    yield
    left = leaks(files, memory, processes, threads)
    on_ray = any(request.node.get_closest_marker(name) for name in ("local_ray", "own_ray"))
    deadline = time.monotonic() + (PATIENCE_WITH_RAY if on_ray else PATIENCE)
    while left and time.monotonic() < deadline:
        gc.collect()  # a test may end with its vector env in the cycle of a traceback
        psutil.wait_procs([child for child in children() if child not in processes], timeout=0.05)
        left = leaks(files, memory, processes, threads)
    if request.node.get_closest_marker("own_ray"):  # Ray opens connections where a node is lost, and keeps processes
        left = [line for line in left if "anon_inode:" not in line and "ray::IDLE" not in line]
    assert not left, "the test left behind: " + "; ".join(left)


def leaks(
    files: dict[int, str], memory: set[str], processes: set[psutil.Process], threads: set[threading.Thread]
) -> list[str]:
    """One line for each thing that is there now and was not then."""
    kept = kept_descriptors()
    new_files = {fd: name for fd, name in descriptors().items() if files.get(fd) != name and fd not in kept}
    # CUDA, Ray, and pygame as gymnasium 1.3 starts it, keep descriptors that they opened when they were first used.
    new_files = {fd: name for fd, name in new_files.items() if not name.startswith(("/dev/nvidia", "network socket"))}
    return [
        *(f"process {child}" for child in children() - processes),
        *(f"descriptor {fd} ({name})" for fd, name in new_files.items()),
        *(f"thread {thread.name}" for thread in block_threads() - threads),
        *(f"actor {name}" for name in actors()),
        *(f"/dev/shm/{name}" for name in sorted(shared_memory() - memory) if not used_elsewhere(name)),
    ]


def actors() -> list[str]:
    """The actors of vector envs that this process has started and that run."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return []
    own = ray.get_runtime_context().get_job_id()
    known = ray._private.state.actors(actor_state_name="ALIVE")
    return [name for name, actor in known.items() if actor["JobID"] == own and actor["ActorClassName"] == "EnvActor"]


def block_threads() -> set[threading.Thread]:
    """The threads of ThreadVectorEnv."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("vecenv-block-")}


def descriptors() -> dict[int, str]:
    """The open descriptors of this process, each with what it refers to."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[int(fd)] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # the one that listed the folder
            continue
    if not sys.modules.keys().isdisjoint(("ray", "pygame")):
        table = "".join(Path(f"/proc/self/net/{name}").read_text() for name in ("tcp", "tcp6", "netlink"))
        inodes = {line.split()[9] for line in table.splitlines()}
        found = {fd: f"network {name}" if name[8:-1] in inodes else name for fd, name in found.items()}
    return found


def kept_descriptors() -> set[int]:
    """Descriptors that stay for the life of the process: of servers, the resource tracker, and stacks of threads."""
    owned = [
        start_methods._server._forkserver_alive_fd,
        resource_tracker._resource_tracker._fd,
        *free_threading._stacks,
    ]
    for server in preloading._all:
        owned += [server._forkserver_alive_fd, *start_methods.parent_fds(server.process)]
    return {fd for fd in owned if fd is not None}


def children() -> set[psutil.Process]:
    """All processes below this one, except the forkserver and the resource tracker."""
    kept = {start_methods._server._forkserver_pid, resource_tracker._resource_tracker._pid, *preloading.server_pids()}
    found = set()
    for pid in _below(os.getpid()):
        if pid not in kept:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.add(psutil.Process(pid))
    return found


def _below(pid: int) -> Iterator[int]:
    """The processes below this one: what psutil finds too, by looking at every process of the system."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
                yield int(child)
                yield from _below(int(child))


def shared_memory() -> set[str]:
    """Files in /dev/shm, less the semaphores of other programs."""
    folder = Path("/dev/shm")
    names = {entry.name for entry in folder.iterdir() if entry.is_file()} if folder.is_dir() else set()
    return {name for name in names if name.startswith(OUR_SEMAPHORES) or not name.startswith("sem.")}


def used_elsewhere(name: str) -> bool:
    """Return whether a process that is neither this one nor below it has mapped the file."""
    ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    for process in psutil.process_iter():
        try:
            if process.pid not in ours and f"/dev/shm/{name}" in Path(f"/proc/{process.pid}/maps").read_text():
                return True
        except OSError:  # it has ended, or is not ours to look into
            continue
    return not Path("/dev/shm", name).exists()  # gone while we looked
