"""The programs in examples/, and the Python blocks of the README and the docs, run unchanged and without a warning."""

import json
import os
import re
import subprocess
import sys
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pytest

from tests.support.backends import FULL, NEEDS_DM_CONTROL, RAY
from tests.support.paths import ROOT

PATIENCE = 500
"""Seconds. A busy machine takes many times as long as an idle machine."""
pytestmark = pytest.mark.timeout(PATIENCE + 60)
HEADLESS = {**os.environ, "SDL_VIDEODRIVER": "dummy"}  # pygame needs a driver without a display
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
DOCS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "api")
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", *DOCS]
ON_RAY = re.compile(r"\bRay[A-Z]|\bray\b")


def run(*arguments: str, cwd: Path, program: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a new interpreter with warnings as errors."""
    command = [sys.executable, "-W", "error", *arguments]
    env = {**HEADLESS, **env}
    return subprocess.run(command, cwd=cwd, input=program, capture_output=True, text=True, timeout=PATIENCE, env=env)


def printed(*arguments: str, cwd: Path, program: str | None = None) -> str:
    """Return the output of a program that must succeed with an empty stderr."""
    done = run(*arguments, cwd=cwd, program=program)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


SHORTEST = 8
"""Lower bound on the length of a CartPole episode, and on its return."""

# Output of each program. `#` is an integer, `~` has decimals, `!` is a number of at least SHORTEST, `*` is anything.
PROGRAMS = {
    "sync": "1600 steps, # episodes, mean return !",
    "async_wait_num": "! steps in ! calls, each environment between # and #",
    "waiting_envs": "ThreadVectorEnv ! steps/s, ShmemVectorEnv ! steps/s",
    "pettingzoo_game": "! games: ! won by the middle, # at random",
    "sb3_ppo": "512 steps, then a mean return of ! over 8 episodes (deviation ~)",
    "sb3_vecnormalize": "512 steps, then a mean return of -! over 8 episodes (deviation ~)",
    "gymnasium_wrappers": "! episodes, mean return !, rewards ~, deviation ~",
    "collect": "CollectStats(! steps, 20 episodes, returns ! +- ~)",
    "ppo_cleanrl": "1024 steps, # episodes, mean return of the last 20: !",
    "tianshou_dqn": "1 epochs, test return ! +- ~",
    "lstm_policy": "20 batches, then right in !% of 64 episodes",
    "record_agents": "! episodes of # rounds, mean return *",
    "ray_rollouts": "2048 steps of 2 actors, mean return of the last 20: !",
    "dict_text_spaces": "! errands in 50 rounds\nposition (4, 10, 1), order (4, 10), the first of them '# to the *'",
    "ppo_halfcheetah": "8192 steps, 8 episodes, mean return of the last 8: *",
    "rllib_ppo": "! steps by vecenv.AsyncVectorEnv and vecenv.AsyncVectorEnv, mean return !",
}
TIERS = {"sync": [], "ray_rollouts": pytest.mark.ray}
TIERS |= dict.fromkeys(("sb3_vecnormalize", "ppo_halfcheetah", "rllib_ppo"), pytest.mark.slow)
"""Marks of the programs that are not in the full tier."""
WARN = {"ppo_halfcheetah", "rllib_ppo"}
"""Programs whose libraries warn: MuJoCo about gymnasium's models, and RLlib often."""
FORMS = {"#": r"\d+", "~": r"\d+\.\d+", "!": r"(\d+(?:\.\d+)?)", "*": ".*"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=TIERS.get(name, FULL)) for name in PROGRAMS])
def test_program(name, tmp_path):
    options = [] if name == "dict_text_spaces" else ["--fast"]
    pattern = re.escape(PROGRAMS[name])
    for sign, form in FORMS.items():
        pattern = pattern.replace(re.escape(sign), form)
    program = str(ROOT / f"examples/{name}.py")
    if name in WARN:
        done = run("-W", "ignore", program, *options, cwd=tmp_path)
        found = re.search(f"^{pattern}$", done.stdout, re.M)
        assert done.returncode == 0, done.stderr
    else:
        done = run(program, *options, cwd=tmp_path)
        found = re.fullmatch(pattern + "\n", done.stdout)
        assert (done.returncode, done.stderr) == (0, "")
    assert found, done.stdout
    assert all(float(number) >= SHORTEST for number in found.groups()), done.stdout


@FULL
def test_crashing_envs(tmp_path):
    lines = printed(str(ROOT / "examples/crashing_envs.py"), cwd=tmp_path).splitlines()
    kinds = {1: "ZeroDivisionError", 2: "WorkerTimeoutError", 3: "WorkerDiedError"}
    others = {i: [j for j in range(4) if j != i] for i in kinds}
    assert len(lines) == 2 * len([line for line in lines if line.startswith("restarted")]) == 10
    assert set(lines) == {f"restarted env {i}: {kind}" for i, kind in kinds.items()} | {
        f"caught {kind}, kept the rows of envs {others[i]}" for i, kind in kinds.items()
    }


@FULL
@NEEDS_DM_CONTROL
def test_dm_control_pixels(tmp_path):
    """Without OpenGL, the program says which package to install."""
    done = run(str(ROOT / "examples/dm_control_pixels.py"), "--fast", cwd=tmp_path)
    if done.returncode:
        assert re.fullmatch(r"no pixels: .*apt-get install libegl1.*\n", done.stderr)
    else:
        pattern = r"\d+ frames a second of uint8 \(48, 64, 3\), (\d+\.\d)% of the pixels changed\n"
        assert float(re.fullmatch(pattern, done.stdout)[1]) > 0


@pytest.mark.slow
def test_notebook(tmp_path):
    """Run in a new kernel, like `jupyter execute`. The run stops at the first cell that raises."""
    notebook = tmp_path / "notebook.ipynb"
    notebook.write_bytes((ROOT / "examples/notebook.ipynb").read_bytes())
    command = [sys.executable, "-c", "from nbclient.cli import main; main()", str(notebook), "--inplace"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, env=HEADLESS)
    assert done.returncode == 0, done.stderr
    outputs = [
        output for cell in json.loads(notebook.read_text("utf-8"))["cells"] for output in cell.get("outputs", [])
    ]
    assert [output["output_type"] for output in outputs] == ["execute_result", "stream", "stream"]
    assert [output.get("name", "stdout") for output in outputs] == ["stdout"] * 3  # nothing on stderr
    positions, best, error = ("".join(output.get("text") or output["data"]["text/plain"]) for output in outputs)
    assert re.fullmatch(r"array\(\[.*\], dtype=float32\)", positions)
    assert best == "stop at step 5\n"
    assert re.match(r"out of fuel\b.*\n$", error)


@pytest.mark.slow
def test_pictures(tmp_path):
    """The blocks of the pages can draw every picture of the pages."""
    assert printed(str(ROOT / "docs/pictures.py"), "pictures", cwd=tmp_path) == ""
    pictures = list((tmp_path / "pictures").iterdir())
    assert {path.name for path in (ROOT / "docs/images").glob("*.png")} == {path.name for path in pictures}
    for picture in pictures:
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert 1000 < picture.stat().st_size < 40_000


JOBS = {
    "cartpole": (["steps=200", "num_envs=2", "device=cpu"], FULL),
    "atari": (["episodes=2", "num_envs=2", "max_episode_steps=40"], pytest.mark.slow),
    "dm_control_pixels": (["steps=20", "num_envs=2", "max_episode_steps=10"], [pytest.mark.slow, NEEDS_DM_CONTROL]),
    "ray": (["episodes=4"], RAY),
}


@pytest.mark.parametrize("job", [pytest.param(job, marks=mark) for job, (_, mark) in JOBS.items()])
def test_job(job, tmp_path, request):
    """Run each job file with small numbers. Without OpenGL, the dm_control job says which package to install."""
    settings = [f"--set={setting}" for setting in JOBS[job][0]]
    if job == "ray":
        settings += [f"--cluster={request.getfixturevalue('ray_address')}", "--cluster-actors=1"]
    file = str(ROOT / f"examples/jobs/{job}.toml")
    done = run("-m", "collector", "run", file, *settings, "--no-plot", cwd=tmp_path)
    if job == "dm_control_pixels" and done.returncode:
        assert "libegl1" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert "Collected:" in done.stdout
    assert (tmp_path / "data" / job / "manifest.jsonl").is_file()


def test_every_example_has_a_test():
    assert {path.stem for path in [*EXAMPLES, *NOTEBOOKS]} <= {name[5:] for name in globals()} | PROGRAMS.keys()
    assert {path.stem for path in (ROOT / "examples/jobs").iterdir()} == set(JOBS)


@pytest.mark.slow
def test_the_recording_of_a_killed_job(tmp_path):
    """The script reproduces the recording in Home, except for the commits before the kill, and the CPUs."""
    home, page = (ROOT / "docs/index.md").read_text("utf-8"), tmp_path / "page.md"
    page.write_text(re.sub(r"(?s)(<!-- killed: begin -->).*(<!-- killed: end -->)", r"\1\2", home), "utf-8")
    assert printed(str(ROOT / "docs/killed_job.py"), str(page), cwd=tmp_path) == ""
    text, recorded = (re.sub(r"[\d,]+ of a job|this run .*", "#", each) for each in (page.read_text("utf-8"), home))
    assert text == recorded
    assert "\nTrue\n" in text


RUN_BLOCKS = """
import sys, types
for number, block in enumerate({blocks!r}):
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    exec(compile(block, "{page}, block %d" % number, "exec"), vars(main))
    print("{end}")
"""
END = "--- end of the block ---"
STEP = re.compile(
    r"(?:`([\w.]+\.toml)`:\n\n)?^```(python|sh|toml)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.M | re.S
)
COMMAND = re.compile(r"^(?:python -m (?:collector|vecenv) |rm -rf ).*", re.M)


def parts_of_pages():
    """Yield the steps of each page in two parts: the steps without Ray, and the steps with Ray.

    The quick tier follows the two pages that most readers see first.
    """
    for page in PAGES:
        steps = [match.groups() for match in STEP.finditer((ROOT / page).read_text("utf-8"))]
        on_ray = [step for step in steps if step[1] == "python" and ON_RAY.search(step[2])]
        local = [step for step in steps if step not in on_ray]
        if any(step[1] == "python" for step in local):
            marks = [] if page in ("README.md", "docs/index.md") else FULL
            yield pytest.param(page, local, marks=marks, id=page)
        if on_ray:
            yield pytest.param(page, on_ray, marks=pytest.mark.ray, id=f"{page}, Ray")


def follow(page, steps, folder):
    """Follow a page in order: save its job files, and run its commands and programs."""
    for kind, group in groupby(steps, key=itemgetter(1)):
        group = list(group)
        if kind == "toml":
            for name, _, text, _ in group:
                if name:
                    # A reader needs the time to kill the job.
                    (folder / name).write_text(text.replace("episodes = 2000\n", "episodes = 300\n"))
        elif kind == "sh":
            for command in COMMAND.findall("".join(text for _, _, text, _ in group)):
                if "--cluster" not in command:
                    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
                    env = {**HEADLESS, "PATH": path}
                    done = subprocess.run(
                        ["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=PATIENCE, env=env
                    )
                    assert done.returncode == 0, (command, done.stdout, done.stderr)
        else:
            blocks = [text for _, _, text, _ in group]
            # Each block is a separate `__main__` without a file, so it needs no guard.
            output = printed("-", program=RUN_BLOCKS.format(page=page, blocks=blocks, end=END), cwd=folder)
            outputs = output.split(END + "\n")[:-1]
            for (_, _, block, shown), text in zip(group, outputs, strict=True):
                assert bool(text) == ("print(" in block)
                if shown:
                    pattern = re.escape(shown).replace(r"\.\.\.", ".*")
                    assert re.fullmatch(pattern, text, re.S), (block, text, shown)


@pytest.mark.parametrize(("page", "steps"), list(parts_of_pages()))
def test_a_page_can_be_followed_from_top_to_bottom_twice(page, steps, tmp_path):
    """The second time is only for pages that leave files, because other pages begin as before."""
    follow(page, steps, tmp_path)
    if any(tmp_path.iterdir()):
        follow(page, steps, tmp_path)


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        targets = [target for target in re.findall(r"\]\(([^)#]+)", text) if "://" not in target]
        targets += [f"{card}.md" for card in re.findall(r"^:link: ([^:]+)\n:link-type: doc$", text, re.M)]
        assert [target for target in targets if not (ROOT / page).parent.joinpath(target).exists()] == [], page
