"""Places for worker commands: this machine, namespaces, a root folder, a container, and ssh servers."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

PATIENCE = 60.0
SSHD = "/usr/sbin/sshd"
UNSHARE = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
WORDS = {
    "here": [],
    "bwrap": ["bwrap", "--unshare-all", "--die-with-parent", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc"],
}
"""The words before a command, by place."""
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


@contextlib.contextmanager
def place(name: str, folder: Path) -> Iterator[list[str]]:
    """Yield the words that run a command in a place. Skip the test if the place cannot be used here."""
    with contextlib.ExitStack() as stack:
        if name.startswith("ssh"):
            host = stack.enter_context(network()) if "network" in name else ("127.0.0.1", [])
            yield stack.enter_context(ssh_server(folder, *host))
            return
        if name.startswith("chroot"):
            words = [*UNSHARE, f"--root={root_folder()}"]
            words = [*NOBODY, *words, "--user", "--map-root-user"] if "user" in name else words
        else:
            words = container(folder) if name == "podman" else WORDS[name]
        try:
            _run(*words, sys.executable, "-c", "")
        except FileNotFoundError as error:
            pytest.skip(str(error))
        yield words


def _run(*command: Any) -> None:
    """Run a command, and skip the test if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{command[0]}: {done.stderr.strip()[-300:] or done.stdout.strip()[-300:]}")


def root_folder() -> Path:
    """Return the root folder of a small Debian with numpy, gymnasium and this checkout. The first call makes it."""
    root = ROOT / "build/chroot"
    if not root.exists():
        if os.geteuid() != 0 or shutil.which("debootstrap") is None:
            pytest.skip("the tests in a root folder need root and debootstrap")
        root.parent.mkdir(exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix="chroot-", dir=root.parent))
        new.chmod(0o755)
        packages = "--include=python3-minimal,libpython3-stdlib"
        pip = [sys.executable, "-m", "pip", "install", "--python-version=3.11", "--only-binary=:all:", "--target"]
        try:
            _run("debootstrap", "--variant=minbase", packages, "bookworm", new, "http://deb.debian.org/debian")
            _run(*pip, new / "usr/lib/python3/dist-packages", "numpy", "gymnasium", "cloudpickle")
            python = new / sys.executable[1:]
            python.parent.mkdir(parents=True, exist_ok=True)
            python.symlink_to("/usr/bin/python3")
            with contextlib.suppress(OSError):  # another process was faster
                new.rename(root)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    for part in ("vecenv", "tests/support"):
        target = root / str(ROOT / part)[1:]
        shutil.copytree(ROOT / part, target, dirs_exist_ok=True, copy_function=_replace)
    return root


def _replace(source: str, target: str) -> None:
    """Copy a file that other processes may read."""
    new = f"{target}.{os.getpid()}"
    shutil.copyfile(source, new)
    os.replace(new, target)


@contextlib.contextmanager
def network() -> Iterator[tuple[str, list[str]]]:
    """Make a network namespace. Yield the address of a host there, and the words that run a command on it."""
    if shutil.which("ip") is None:
        pytest.skip("the tests in a network namespace need iproute2")
    pid = os.getpid()
    name, prefix = f"vecenv-{pid}", f"10.{78 + pid // 16384 % 100}.{pid // 64 % 256}"
    ours, theirs = (f"{prefix}.{pid % 64 * 4 + k}" for k in (1, 2))
    _run("ip", "netns", "add", name)
    try:
        _run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "addr", "add", f"{ours}/30", "dev", name)
        _run("ip", "link", "set", name, "up")
        _run("ip", "-n", name, "addr", "add", f"{theirs}/30", "dev", "eth0")
        _run("ip", "-n", name, "link", "set", "eth0", "up")
        yield theirs, ["ip", "netns", "exec", name]
    finally:
        subprocess.run(["ip", "link", "del", name])
        subprocess.run(["ip", "netns", "del", name])


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
def ssh_server(folder: Path, address: str, inside: list[str]) -> Iterator[list[str]]:
    """Start an ssh server with a throw-away key, and yield the words of `ssh host`.

    `inside`: words that run a command on the host with this address.
    """
    if os.geteuid() != 0 or shutil.which(SSHD) is None:
        pytest.skip("the tests of ssh need root and openssh-server")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # also a free port in a new network
        port = free.getsockname()[1]
    Path("/run/sshd").mkdir(exist_ok=True)
    (folder / "config").write_text(
        f"Port {port}\nListenAddress {address}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        f"UsePAM no\nStrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\nPidFile none\n"
    )
    server = subprocess.Popen([*inside, SSHD, "-D", "-f", folder / "config", "-E", folder / "log"])
    words = ["ssh", "-i", f"{folder}/user", "-p", str(port), "-o", "StrictHostKeyChecking=no"]
    words += ["-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-o", "BatchMode=yes", address]
    try:
        deadline = time.monotonic() + 10
        while subprocess.run([*words, "true"], capture_output=True).returncode:
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        yield words
    finally:
        server.terminate()
        server.wait()


def processes_with(token: str) -> list[tuple[str, str]]:
    """Return the pids and commands of processes that have `token` in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if token in Path(f"/proc/{pid}/environ").read_text(errors="replace"):
                found.append((pid, Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")))
        except OSError:
            continue
    return found


def left_of(token: str) -> list[tuple[str, str]]:
    """Return the processes with `token` that do not end."""
    deadline = time.monotonic() + PATIENCE
    while (left := processes_with(token)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left
