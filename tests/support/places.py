"""Places for worker commands: this machine, namespaces, a chroot, a container, and an ssh server on 127.0.0.1."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

SSHD = "/usr/sbin/sshd"
BWRAP = ["bwrap", "--unshare-all", "--die-with-parent", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
UNSHARE = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--root=/"]
WITHOUT_RIGHTS = ["unshare", "--user", "--map-root-user", *UNSHARE[1:]]


def missing(place: str) -> str:
    """Return why this place cannot be used here, or an empty string."""
    tool = {"here": "sh", "bwrap": "bwrap", "unshare": "unshare", "without rights": "unshare", "ssh": SSHD}[place]
    if shutil.which(tool) is None:
        return f"{tool} is not installed"
    if place in ("here", "ssh"):
        return "" if place == "here" or os.geteuid() == 0 else "the ssh server of the tests needs root"
    prefix = {"bwrap": BWRAP, "unshare": UNSHARE, "without rights": WITHOUT_RIGHTS}[place]
    found = subprocess.run([*prefix, "true"], capture_output=True, text=True)
    return found.stderr.strip().partition("\n")[0] if found.returncode else ""


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
