"""A job that is killed and resumed, as the terminal shows it: `python docs/killed_job.py [PAGE]` writes it into a page.

The commands are run as they stand. Repeated lines of their output are left out.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from collector import Dataset, DatasetError

HOME = Path(__file__).resolve().parent / "index.md"
BEGIN, END = "<!-- killed: begin -->", "<!-- killed: end -->"
EPISODES = 4000
JOB = f"python -m collector run --env CartPole-v1 --episodes {EPISODES} \\\n    --shard-seconds 0.2 --out"
COMPARE = """python -c "from collector import Dataset
pairs = zip(Dataset('killed'), Dataset('whole'))
print(all((a.obs == b.obs).all() for a, b in pairs))\""""
KEPT = re.compile(r"Collecting|│ (?:status|episodes|this run) |\w+$")


def recording(folder: Path) -> str:
    """Run the commands in a folder, which gets both data sets, and return the text of the terminal."""
    lines = [f"$ {JOB} killed &"]
    first = start(f"{JOB} killed", folder)
    while episodes_in(folder / "killed") < EPISODES // 3:
        if first.poll() is not None:
            raise RuntimeError(f"the job ended before it was killed:\n{first.communicate()[0]}")
        # It runs only while nothing looks at it: on a fast machine it would be over before the kill.
        first.send_signal(signal.SIGCONT)
        time.sleep(0.01)
        first.send_signal(signal.SIGSTOP)
    first.kill()
    lines += [*shown(first.communicate()[0]), "$ kill -9 $!"]
    lines += session("python -m collector info killed", folder)
    lines += session("python -m collector resume killed", folder)
    lines += ["$ # the same job, which nothing stops", *session(f"{JOB} whole", folder)[:1]]
    lines += session(COMPARE, folder)
    return "\n".join(lines)


def start(command: str, folder: Path) -> subprocess.Popen[str]:
    command = command.replace("python", f"exec '{sys.executable}'", 1)
    return subprocess.Popen(
        command, shell=True, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def session(command: str, folder: Path) -> list[str]:
    """Run a command and return the lines to show; CalledProcessError where it fails."""
    done = start(command, folder)
    output = done.communicate()[0]
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, output)
    return [f"$ {command}", *shown(output)]


def shown(output: str) -> list[str]:
    return [line.strip(" │").replace("│", " ").rstrip() for line in output.splitlines() if KEPT.match(line)]


def episodes_in(folder: Path) -> int:
    """Count the episodes that are committed."""
    try:
        return len(Dataset(folder))
    except DatasetError:
        return 0


def main(page: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        text = f"{BEGIN}\n\n```console\n{recording(Path(folder))}\n```\n\n{END}"
    before = page.read_text("utf-8")
    page.write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: text, before, flags=re.DOTALL), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else HOME)
