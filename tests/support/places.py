"""Places for worker commands: this machine, namespaces, a chroot, a container, and an ssh server on 127.0.0.1."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SSHD = "/usr/sbin/sshd"
UNSHARE = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
WORDS = {
    "here": [],
    "bwrap": ["bwrap", "--unshare-all", "--die-with-parent", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc"],
    "unshare": [*UNSHARE, "--root=/"],
    "user namespace": [*UNSHARE, "--user", "--map-root-user"],
}
"""The words before a command, by place."""
PLACES = [*WORDS, "podman", "ssh"]


@contextlib.contextmanager
def place(name: str, folder: Path) -> Iterator[list[str]]:
    """Yield the words that run a command in a place. Skip the test if the place cannot be used here."""
    if name == "ssh":
        if os.geteuid() != 0 or shutil.which(SSHD) is None:
            pytest.skip("the tests of ssh need root and openssh-server")
        with ssh_server(folder) as words:
            yield words
        return
    words = container(folder) if name == "podman" else WORDS[name]
    try:
        found = subprocess.run([*words, sys.executable, "-c", ""], capture_output=True, text=True)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    if found.returncode:
        pytest.skip(f"{words[0]}: {found.stderr.strip()[-200:]}")
    yield words


def container(folder: Path) -> list[str]:
    """Return the words of a container whose root folder has the folders of this machine."""
    root = folder / "root"
    kept = {"/usr", "/root", "/tmp", f"/{ROOT.parts[1]}", f"/{Path(sys.prefix).parts[1]}"}
    for name in (*kept, "/proc", "/dev", "/sys", "/etc", "/run"):
        (root / name[1:]).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    limits = [f"--ulimit={name}=1000:1000" for name in ("nproc", "nofile")]
    mounts = [f"--volume={name}:{name}" for name in sorted(kept)]
    return [
        *("podman", "--storage-driver=vfs", "--runtime=runc", "run", "-i", "--rm", "--network=none"),
        *("--cgroupns=private", *limits, *mounts, "--rootfs", str(root)),
    ]


@contextlib.contextmanager
def ssh_server(folder: Path) -> Iterator[list[str]]:
    """Start an ssh server on 127.0.0.1 with a throw-away key, and yield the words of `ssh host`."""
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    Path("/run/sshd").mkdir(exist_ok=True)
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        f"UsePAM no\nStrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\nPidFile none\n"
    )
    server = subprocess.Popen([SSHD, "-D", "-f", folder / "config", "-E", folder / "log"])
    words = ["ssh", "-i", f"{folder}/user", "-p", str(port), "-o", "StrictHostKeyChecking=no"]
    words += ["-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-o", "BatchMode=yes", "127.0.0.1"]
    try:
        deadline = time.monotonic() + 10
        while subprocess.run([*words, "true"], capture_output=True).returncode:
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        yield words
    finally:
        server.terminate()
        server.wait()
