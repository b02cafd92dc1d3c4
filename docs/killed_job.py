"""Record a job that is killed and resumed, as a terminal shows it: `python docs/killed_job.py [PAGE]`.

The commands run in one shell, exactly as the page shows them. Most lines of the tables in their output are left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HOME = Path(__file__).resolve().parent / "index.md"
BEGIN, END = "<!-- killed: begin -->", "<!-- killed: end -->"
JOB = "python -m collector run --env CartPole-v1 --episodes 4000 \\\n    --shard-seconds 0.2 --out"
COMMANDS = (
    "rm -rf killed whole",
    f"{JOB} killed &",
    "until [ -e killed/shards/000003 ]; do sleep 0.1; done; kill -9 $!",
    "python -m collector info killed",
    "python -m collector resume killed",
    f"{JOB} whole",
    """python -c "from collector import Dataset as D; \\
    print(all((a.obs == b.obs).all() for a, b in zip(D('killed'), D('whole'))))\"""",
)
KEPT = re.compile(r"│ (?:status|episodes|this run) |True$|False$")
MARK = "=== {} ==="


def recording(folder: Path) -> str:
    """Run the commands in a folder, which gets both data sets, and return the text of the terminal."""
    script = "\n".join(f"echo '{MARK.format(i)}'\n{command}" for i, command in enumerate(COMMANDS))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PATH": path},
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, "bash", done.stdout)
    lines: list[str] = []
    for i, command in enumerate(COMMANDS):
        output = done.stdout.partition(MARK.format(i))[2].partition(MARK.format(i + 1))[0]
        # The table of the second run adds nothing.
        lines += [f"$ {command}", *([] if command.endswith("whole") else shown(output))]
    return "\n".join(lines)


def shown(output: str) -> list[str]:
    return [line.strip(" │").replace("│", " ").rstrip() for line in output.splitlines() if KEPT.match(line)]


def main(page: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        text = f"{BEGIN}\n\n```console\n{recording(Path(folder))}\n```\n\n{END}"
    before = page.read_text("utf-8")
    page.write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: text, before, flags=re.DOTALL), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else HOME)
