"""Simulated hosts on this machine, to test Ray on several hosts.

Each host has a separate network, hostname, process tree, /dev/shm and /tmp. All hosts see the folder `shared`.

    with Hosts(folder, "ABC") as hosts:
        hosts.start_ray("A", 4, head=True)
        program = hosts.program("A", "steps")       a driver on host A, see `host_programs`
        hosts.power_off("B"); hosts.set_link("C", up=False); hosts.boot("B")
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BOOT = """
hostname "$1"
mount --bind "$2" /mnt && mount -t tmpfs tmpfs /tmp && mkdir -p "$2" && mount --bind /mnt "$2" || exit 1
mount -t tmpfs -o size=1g tmpfs /dev/shm || exit 1
echo up
exec sleep infinity
"""
NAMESPACES = ["unshare", "--uts", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc", "bash", "-c"]
ENVIRON = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_memory_monitor_refresh_ms": "0"}

# A process of its own, because Ray's client keeps its connections open.
DRAIN = """
import ray, sys, time
ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
from ray.core.generated.autoscaler_pb2 import DrainNodeReason
def found():
    alive = [each for each in ray.nodes() if each["Alive"]]
    return [each["NodeID"] for each in alive if sys.argv[1] in (each["NodeID"], each["NodeManagerAddress"])]
while len(found()) > 1:  # Ray has not yet noticed that an earlier host with this address lost its power
    time.sleep(0.2)
(node,) = found()
client = ray._raylet.GcsClient(address=ray.get_runtime_context().gcs_address)
assert client.drain_node(node, DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"), "taken back", 0)[0]
"""


def missing() -> str:
    """Return the reason why hosts cannot be simulated here, or an empty string."""
    if os.geteuid() != 0:
        return "simulated hosts need root"
    tools = [tool for tool in ("ip", "nsenter", "unshare") if shutil.which(tool) is None]
    return f"simulated hosts need {', '.join(tools)} (iproute2, util-linux)" if tools else ""


class Program:
    """Driver on a host. It writes lines of JSON, and waits for a line before it continues."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process, self.log = process, log

    def hears(self) -> dict[str, Any]:
        """Return the next line of the program."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise AssertionError(f"the program ended with {self.process.wait()}:\n{self.log.read_text()[-4000:]}")

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ends(self) -> int:
        """Wait for the end of the program, and return its exit code."""
        self.process.communicate()
        return self.process.returncode

    def kill(self) -> None:
        """Kill the program, which is a child of `nsenter`."""
        os.kill(_child_of(self.process.pid), 9)
        self.process.communicate()


class Hosts:
    """Hosts, each with a letter as its name, and with the addresses 10.77.0.1 (A), 10.77.0.2 (B), ..."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.names, self.shared = names, folder / "shared"
        self.shared.mkdir()
        self._prefix = f"vecenv{os.getpid()}"
        self._booted: dict[str, subprocess.Popen[str]] = {}
        self._programs: list[Program] = []

    def __enter__(self) -> Hosts:
        _run("ip", "netns", "add", self._prefix)
        switch = ["ip", "-n", self._prefix, "link"]
        _run(*switch, "add", "br0", "type", "bridge")
        _run(*switch, "set", "br0", "up")
        for name in self.names:
            space = f"{self._prefix}-{name}"
            _run("ip", "netns", "add", space)
            _run(*switch, "add", f"port{name}", "type", "veth", "peer", "name", "eth0", "netns", space)
            _run(*switch, "set", f"port{name}", "master", "br0", "up")
            for device in ("lo", "eth0"):
                _run("ip", "-n", space, "link", "set", device, "up")
            _run("ip", "-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            self.boot(name)
        return self

    def __exit__(self, *exception: object) -> None:
        for name in list(self._booted):
            self.power_off(name)
        for space in [*(f"{self._prefix}-{name}" for name in self.names), self._prefix]:
            _run("ip", "netns", "del", space)

    def address(self, name: str) -> str:
        return f"10.77.0.{ord(name) - ord('A') + 1}"

    def boot(self, name: str) -> None:
        """Start a host that is powered off."""
        into = ["nsenter", f"--net=/run/netns/{self._prefix}-{name}"]
        command = [*into, *NAMESPACES, BOOT, "boot", f"host-{name}", str(self.shared)]
        quiet = subprocess.DEVNULL
        host = subprocess.Popen(command, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, text=True)
        assert host.stdout is not None
        assert host.stdout.readline() == "up\n"
        self._booted[name] = host

    def power_off(self, name: str) -> None:
        """Kill all processes of a host."""
        host = self._booted.pop(name)
        os.kill(_child_of(host.pid), 9)
        host.communicate()

    def set_link(self, name: str, up: bool) -> None:
        """Disconnect a host from the network, or connect it."""
        _run("ip", "-n", self._prefix, "link", "set", f"port{name}", "up" if up else "down")

    def on(self, name: str, *command: str) -> list[str]:
        """Return the command line that runs a command on a host."""
        into = ["nsenter", "-t", str(_child_of(self._booted[name].pid)), "-a", f"--wd={os.getcwd()}", "--"]
        return [*into, "env", "-u", "RAY_ADDRESS", "-u", "TMPDIR", *(f"{k}={v}" for k, v in ENVIRON.items()), *command]

    def start_ray(self, name: str, cpus: int, head: bool = False) -> None:
        """Start Ray on a host."""
        place = ["--head", "--port=6379", "--include-dashboard=false"] if head else ["--address=10.77.0.1:6379"]
        options = [f"--node-ip-address={self.address(name)}", f"--num-cpus={cpus}", "--object-store-memory=200000000"]
        ray = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]
        log = self.shared / f"ray-{name}.log"
        with log.open("w") as file:
            command = self.on(name, *ray, "start", *place, *options, "--disable-usage-stats")
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=True)

    def drain(self, name: str) -> None:
        """Announce the end of a host to Ray, as a cloud does before it takes a host back."""
        command = self.on(name, sys.executable, "-c", DRAIN, self.address(name))
        subprocess.run(command, stdin=subprocess.DEVNULL, check=True, capture_output=True, timeout=60)

    def program(self, name: str, *arguments: str) -> Program:
        """Start a program of `host_programs` on a host."""
        command = self.on(name, sys.executable, "-u", "-m", "tests.support.host_programs", *arguments)
        log, pipe = self.shared / f"program-{arguments[0]}.log", subprocess.PIPE
        with log.open("a") as file:
            started = Program(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=file, text=True), log)
        self._programs.append(started)
        return started

    def kill_programs(self) -> None:
        """Kill the programs that a failed test has left running."""
        for each in self._programs:
            if each.process.poll() is None:
                each.kill()
        self._programs.clear()


def _child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
