"""Fallbacks for other systems (`vecenv.portability`), tested on Linux without the Linux-only calls."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.backends import FULL
from tests.support.paths import ROOT
from vecenv import SharedMemoryError, portability
from vecenv.backends.ipc.messages import READY, Channel
from vecenv.backends.memory.shared_memory import anonymous_file, reserve
from vecenv.backends.pool.process_worker import SOCKET_BUFFER, enlarge_buffers

CONTRACT = """
import warnings
from vecenv import ShmemVectorEnv
from vecenv.testing import CountingEnv, check_vector_env

check_vector_env(ShmemVectorEnv)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with ShmemVectorEnv([CountingEnv] * 2, num_workers=2, context="spawn", affinity=True) as venv:
        venv.reset()
        venv.step([0, 0])
assert ["affinity=True has no effect" in str(warning.message) for warning in caught] == [True], caught
"""


ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
    "VECENV_PORTABLE": "1",
    "PYTHONPATH": str(ROOT),
}
"""Environment of a process that uses the fallbacks."""


@FULL
def test_shmem_keeps_the_contract_without_the_calls_of_linux(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CONTRACT], env=ENVIRONMENT, text=True, capture_output=True, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")


SUITE = (
    *("contract", "async", "start", "leaks", "interrupts", "threads", "status_bytes", "internals", "system_limits"),
    *("faults", "faults_data", "faults_death", "faults_errors", "faults_parent"),
    *("faults_races", "faults_restart", "faults_time"),
)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_backends_keep_the_contract_and_survive_faults_without_the_calls_of_linux() -> None:
    files = [f"tests/test_{name}.py" for name in SUITE]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "worksteal", *files]
    done = subprocess.run(command, env=ENVIRONMENT, text=True, capture_output=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-8000:]


def test_a_batch_larger_than_the_free_disk_space_is_refused_where_space_cannot_be_reserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(portability, "PORTABLE", True)
    monkeypatch.setattr(os, "fstatvfs", lambda fd: SimpleNamespace(f_bavail=256, f_frsize=4096))
    fd = anonymous_file("vecenv-test")
    try:
        reserve(fd, 4 << 20, "2 envs", used=1 << 20).close()
        with pytest.raises(SharedMemoryError, match=r"^2\.0 MiB [^,]* for 4 envs, but only 1\.0 MiB are free in"):
            reserve(fd, 2 << 20, "4 envs")
    finally:
        os.close(fd)


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ENOTCONN, errno.EPROTOTYPE])
def test_every_errno_of_a_closed_channel_is_a_broken_pipe_for_the_worker(number: int) -> None:
    def sendall(data: bytes) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(BrokenPipeError):
        Channel(SimpleNamespace(sendall=sendall)).write(READY, 0)  # type: ignore[arg-type]


def test_small_socket_buffers_are_enlarged() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        enlarge_buffers(ours, theirs)
        for end in (ours, theirs):
            assert end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= SOCKET_BUFFER
            assert end.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= SOCKET_BUFFER
