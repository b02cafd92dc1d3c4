"""Shared fixtures: the backends, and the check that a test leaves nothing behind."""

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

import gymnasium
import numpy as np
import psutil
import pytest

from tests.support import local_ray as local_ray_of_the_run
from tests.support.backends import BACKENDS, OLD_GYMNASIUM, PROCESS_BACKENDS, and_ray, one_of, vector_env_classes
from vecenv.backends import free_threading
from vecenv.backends.pool import preloading, start_methods

PATIENCE = 2.0
"""Seconds that the system may take to end closed processes."""
PATIENCE_WITH_RAY = 45.0
"""Seconds that Ray may take to end an actor on a busy machine."""

# Each test process has a separate temporary folder, because tests count the files that remain there.
os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="tests-")
# multiprocessing removes its own folder inside with priority -100, so this folder is removed later.
Finalize(None, shutil.rmtree, (tempfile.tempdir, True), exitpriority=-200)

# Semaphores of this process and its workers get recognisable names, because other programs use /dev/shm as well.
OUR_SEMAPHORES = f"sem.mp-of-{os.getpid()}"
multiprocessing.current_process()._config["semprefix"] = "/" + OUR_SEMAPHORES.removeprefix("sem.")

# Nearly all workers import these modules. The forkserver imports them once, so that workers do not have to.
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
    "tests.fuzz.envs",
]

# With triton, PyTorch's compiler keeps a pool of processes until the end. torch reads the variable when imported.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# MKL reads this variable at its first use, and then chooses reproducible kernels.
os.environ.setdefault("MKL_CBWR", "AUTO")

# A program that runs in the background or under nohup ignores these signals, and so do its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """Exclude the imported modules from garbage collection, which would spend most of its time on them."""
    gc.collect()
    gc.freeze()


backend = vector_env_classes(one_of(BACKENDS))
"""Each vector env class, for tests of shared code. The quick tier runs only Dummy."""
remote_backend = and_ray(PROCESS_BACKENDS)
"""Each class with worker processes, and RayVectorEnv."""


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished job with 40 episodes of `Counting` envs."""
    from collector import run_job
    from tests.support.job_envs import counting, job

    folder = tmp_path_factory.mktemp("uninterrupted")
    run_job(job(**counting(), episodes=40), folder)
    return folder


@pytest.fixture
def forkserver_ends() -> Iterator[None]:
    """End the forkserver from which `tests.fuzz.kills` forks jobs."""
    yield
    forkserver._forkserver._stop()  # multiprocessing's own


@pytest.fixture(scope="module")
def no_fsync() -> Iterator[None]:
    """Disable fsync, because no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("collector.store.safe_folder.fsync", lambda fd: None)
        yield


@pytest.fixture
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a recorder cut out episodes after every seventh round, so that most episodes come in several parts."""
    monkeypatch.setattr("collector.store.recorder.ROUNDS", 7)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt, even if the runner of the tests ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def cuda_has_started() -> None:
    """Start CUDA first, because its descriptors stay open until the process ends, which is not a leak of a test."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
            torch.empty(1, pin_memory=True)
        torch.cuda.synchronize()


@pytest.fixture(scope="session")
def ray_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start the local Ray that all processes of the test run share, and return its address."""
    pytest.importorskip("ray")  # it has no wheel for free-threaded Python
    base = tmp_path_factory.getbasetemp()
    address, users = local_ray_of_the_run.start((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "ray")
    yield address
    users.close()


@pytest.fixture(scope="module")
def local_ray(ray_address: str) -> Iterator[None]:
    """Connect this process to the shared local Ray."""
    local_ray_of_the_run.connect(ray_address)
    yield
    sys.modules["ray"].shutdown()


@pytest.fixture(scope="session")
def fonts() -> None:
    """Draw once, because matplotlib keeps its font files open, which is not a leak of the first test that draws."""
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
def clean_metadata() -> Iterator[None]:
    """Undo that gymnasium 1.3's vector envs write into the metadata of the class of their envs."""
    yield
    if OLD_GYMNASIUM:
        classes: list[type] = [gymnasium.Env]
        for each in classes:
            classes += each.__subclasses__()
            if isinstance(metadata := each.__dict__.get("metadata"), dict):
                metadata.pop("autoreset_mode", None)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seed all random generators before each test. TEST_SEED=7 selects another seed."""
    seed = int(os.environ.get("TEST_SEED", "0"))
    random.seed(seed)
    np.random.seed(seed)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)


@pytest.fixture(autouse=True)
def no_leaks(cuda_has_started: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a process, a file descriptor, shared memory or a vecenv thread behind."""
    for name in ("local_ray", "own_ray"):
        if request.node.get_closest_marker(name):  # so that its files are open before the count
            request.getfixturevalue(name)
    files, memory, processes, threads = descriptors(), shared_memory(), children(), block_threads()
    yield
    left = leaks(files, memory, processes, threads)
    on_ray = any(request.node.get_closest_marker(name) for name in ("local_ray", "own_ray"))
    deadline = time.monotonic() + (PATIENCE_WITH_RAY if on_ray else PATIENCE)
    while left and time.monotonic() < deadline:
        gc.collect()  # a traceback may hold the vector env in a cycle
        psutil.wait_procs([child for child in children() if child not in processes], timeout=0.05)
        left = leaks(files, memory, processes, threads)
    if request.node.get_closest_marker("own_ray"):  # Ray opens connections and keeps processes
        left = [line for line in left if "anon_inode:" not in line and "ray::IDLE" not in line]
    assert not left, "the test left behind: " + "; ".join(left)


def leaks(
    files: dict[int, str], memory: set[str], processes: set[psutil.Process], threads: set[threading.Thread]
) -> list[str]:
    """Return a line for each process, descriptor, thread, actor and file that is new."""
    kept = kept_descriptors()
    new_files = {fd: name for fd, name in descriptors().items() if files.get(fd) != name and fd not in kept}
    # CUDA, Ray, and pygame (as started by gymnasium 1.3) keep the descriptors that they open at their first use.
    new_files = {fd: name for fd, name in new_files.items() if not name.startswith(("/dev/nvidia", "network socket"))}
    return [
        *(f"process {child}" for child in children() - processes),
        *(f"descriptor {fd} ({name})" for fd, name in new_files.items()),
        *(f"thread {thread.name}" for thread in block_threads() - threads),
        *(f"actor {name}" for name in actors()),
        *(f"/dev/shm/{name}" for name in sorted(shared_memory() - memory) if not used_elsewhere(name)),
    ]


def actors() -> list[str]:
    """Return the names of running actors of vector envs that this process has started."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return []
    own = ray.get_runtime_context().get_job_id()
    known = ray._private.state.actors(actor_state_name="ALIVE")
    return [name for name, actor in known.items() if actor["JobID"] == own and actor["ActorClassName"] == "EnvActor"]


def block_threads() -> set[threading.Thread]:
    """Return the running threads of ThreadVectorEnv."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("vecenv-block-")}


def descriptors() -> dict[int, str]:
    """Return the open descriptors of this process, with the file, pipe or socket of each."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[int(fd)] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # the descriptor of listdir itself
            continue
    if not sys.modules.keys().isdisjoint(("ray", "pygame")):
        # A table of TCP would lack sockets that Ray has not connected. vecenv has only Unix sockets.
        own = {line.split()[6] for line in Path("/proc/self/net/unix").read_text().splitlines()}
        for fd, name in found.items():
            if name.startswith("socket:") and name[8:-1] not in own:
                found[fd] = f"network {name}"
    return found


def kept_descriptors() -> set[int]:
    """Return the descriptors that stay open: forkserver, resource tracker and the file of threads' stacks."""
    owned = [
        start_methods._server._forkserver_alive_fd,
        resource_tracker._resource_tracker._fd,
        *free_threading._stacks,
    ]
    for server in preloading._all:
        owned += [server._forkserver_alive_fd, *start_methods.parent_fds(server.process)]
    return {fd for fd in owned if fd is not None}


def children() -> set[psutil.Process]:
    """Return all descendants of this process except the forkserver and the resource tracker."""
    kept = {start_methods._server._forkserver_pid, resource_tracker._resource_tracker._pid}
    kept |= {server.process.pid for server in preloading._all if server.close.alive}
    found = set()
    for pid in _below(os.getpid()):
        if pid not in kept:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.add(psutil.Process(pid))
    return found


def _below(pid: int) -> Iterator[int]:
    """Yield the pids of all descendants. psutil reads every process of the system for this."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
                yield int(child)
                yield from _below(int(child))


def shared_memory() -> set[str]:
    """Return the names of files in /dev/shm, without the semaphores of other programs."""
    folder = Path("/dev/shm")
    names = {entry.name for entry in folder.iterdir() if entry.is_file()} if folder.is_dir() else set()
    return {name for name in names if name.startswith(OUR_SEMAPHORES) or not name.startswith("sem.")}


def used_elsewhere(name: str) -> bool:
    """Return True if a process outside of this test run has mapped the file."""
    ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    for process in psutil.process_iter():
        try:
            if process.pid not in ours and f"/dev/shm/{name}" in Path(f"/proc/{process.pid}/maps").read_text():
                return True
        except OSError:  # the process has ended, or belongs to another user
            continue
    return not Path("/dev/shm", name).exists()  # removed in the meantime
