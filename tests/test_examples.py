"""The programs in examples/ and the Python blocks of the README and the docs run as they stand, without a warning."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEADLESS = {**os.environ, "SDL_VIDEODRIVER": "dummy"}  # else pygame complains where there is no display
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
PAGES = ["README.md", "CHANGELOG.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
BLOCKS = [
    pytest.param(block, id=f"{page}-{number}", marks=[pytest.mark.ray] if page == "docs/ray.md" else [])
    for page in PAGES
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.M | re.S))
]


def run(*arguments: str, cwd: Path, program: str | None = None) -> str:
    """What a fresh interpreter prints, with warnings as errors; it must end well and say nothing on stderr."""
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(command, cwd=cwd, input=program, capture_output=True, text=True, timeout=100, env=HEADLESS)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]


def test_sync(tmp_path):
    output = run(str(ROOT / "examples/sync.py"), "--fast", cwd=tmp_path)
    assert re.fullmatch(r"\d+ steps, \d+ episodes, mean return \d+\.\d\n", output)
    steps, episodes, mean_return = numbers(output)
    assert steps == 8 * 200
    assert episodes * mean_return <= steps  # CartPole rewards 1 a step, and some episodes are not over
    assert mean_return > 8  # the shortest episode that CartPole's dynamics allow


def test_async_wait_num(tmp_path):
    output = run(str(ROOT / "examples/async_wait_num.py"), "--fast", cwd=tmp_path)
    assert re.fullmatch(r"\d+ steps in \d+ calls, each environment between \d+ and \d+\n", output)
    steps, calls, fewest, most = numbers(output)
    assert 2 * calls <= steps <= 8 * calls
    assert 1 <= fewest <= steps / 8 <= most


def test_waiting_envs(tmp_path):
    output = run(str(ROOT / "examples/waiting_envs.py"), "--fast", cwd=tmp_path)
    assert re.fullmatch(r"ThreadVectorEnv \d+ steps/s, ShmemVectorEnv \d+ steps/s\n", output)
    assert all(rate > 20 for rate in numbers(output))


def test_pettingzoo_game(tmp_path):
    output = run(str(ROOT / "examples/pettingzoo_game.py"), "--fast", cwd=tmp_path)
    assert re.fullmatch(r"\d+ games: \d+ won by the middle, \d+ at random\n", output)
    games, middle, at_random = numbers(output)
    assert games >= 40
    assert games >= middle + at_random
    assert middle > 2 * at_random


def test_sb3_ppo(tmp_path):
    output = run(str(ROOT / "examples/sb3_ppo.py"), "--fast", cwd=tmp_path)
    assert re.fullmatch(r"\d+ steps, then a mean return of \d+\.\d over 8 episodes \(deviation \d+\.\d\)\n", output)
    steps, mean_return, _, _ = numbers(output)
    assert steps == 512
    assert mean_return > 8  # the shortest episode that CartPole's dynamics allow


def test_gymnasium_wrappers(tmp_path):
    output = run(str(ROOT / "examples/gymnasium_wrappers.py"), "--fast", cwd=tmp_path)
    episodes, mean_return, rewards, deviation = numbers(output)
    assert episodes >= 8
    assert mean_return > 300  # pushing to where the pole falls keeps it up
    assert rewards <= 600 * 8 * 0.5
    assert 0.5 < deviation < 2  # normalised


def test_collect(tmp_path):
    output = run(str(ROOT / "examples/collect.py"), "--fast", cwd=tmp_path)
    assert re.fullmatch(r"CollectStats\(\d+ steps, 20 episodes, returns \S+ \+- \S+\)\n", output)
    steps, episodes, mean_return, _ = numbers(output)
    assert steps == pytest.approx(episodes * mean_return, rel=1e-3)  # CartPole rewards 1 a step


def test_ppo_cleanrl(tmp_path):
    output = run(str(ROOT / "examples/ppo_cleanrl.py"), "--fast", cwd=tmp_path)
    assert re.fullmatch(r"\d+ steps, \d+ episodes, mean return of the last 20: \d+\.\d\n", output)
    steps, episodes, _, mean_return = numbers(output)
    assert steps == 2 * 8 * 64
    assert episodes * 8 <= steps
    assert mean_return > 8  # the shortest episode that CartPole's dynamics allow


@pytest.mark.slow
def test_ppo_halfcheetah(tmp_path):
    """MuJoCo itself warns of gymnasium's models on stderr."""
    command = [sys.executable, "-W", "error", str(ROOT / "examples/ppo_halfcheetah.py"), "--fast"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"8192 steps, 8 episodes, mean return of the last 8: -?\d+\.\d\n", done.stdout)
    assert abs(numbers(done.stdout)[-1]) < 1000  # random actions: about -300


@pytest.mark.slow
def test_sb3_vecnormalize(tmp_path):
    output = run(str(ROOT / "examples/sb3_vecnormalize.py"), "--fast", cwd=tmp_path)
    assert re.fullmatch(r"512 steps, then a mean return of -\d+\.\d over 8 episodes \(deviation \d+\.\d\)\n", output)
    mean_return = numbers(output)[1]
    assert 100 < mean_return < 1900  # true returns, not normalised ones; the worst of Pendulum is near -1,900


def test_tianshou_dqn(tmp_path):
    output = run(str(ROOT / "examples/tianshou_dqn.py"), "--fast", cwd=tmp_path)
    assert re.fullmatch(r"1 epochs, test return \d+\.\d \+- \d+\.\d\n", output)
    assert numbers(output)[1] > 8  # the shortest episode that CartPole's dynamics allow


def test_crashing_envs(tmp_path):
    lines = run(str(ROOT / "examples/crashing_envs.py"), cwd=tmp_path).splitlines()
    kinds = {1: "ZeroDivisionError", 2: "WorkerTimeoutError", 3: "WorkerDiedError"}
    restarted = [line for line in lines if line.startswith("restarted")]
    assert set(restarted) == {f"restarted env {i}: {kind}" for i, kind in kinds.items()}
    others = {i: [j for j in range(4) if j != i] for i in kinds}
    assert set(lines) - set(restarted) == {
        f"caught {kind}, kept the rows of envs {others[i]}" for i, kind in kinds.items()
    }
    assert len(lines) == 2 * len(restarted) == 10


def test_dict_text_spaces(tmp_path):
    errands, shapes = run(str(ROOT / "examples/dict_text_spaces.py"), cwd=tmp_path).splitlines()
    assert re.fullmatch(r"\d+ errands in 50 rounds", errands)
    assert 4 * 50 / 5 - 4 <= numbers(errands)[0] <= 4 * 50 / 3  # each takes 3 or 5 steps
    assert re.fullmatch(r"position \(4, 10, 1\), order \(4, 10\), the first of them '[24] to the (left|right)'", shapes)


def test_lstm_policy(tmp_path):
    output = run(str(ROOT / "examples/lstm_policy.py"), "--fast", cwd=tmp_path)
    assert re.fullmatch(r"20 batches, then right in \d+% of 64 episodes\n", output)
    assert 20 < numbers(output)[1] <= 100  # a guess is right in half of them


@pytest.mark.slow
def test_notebook(tmp_path):
    """In a fresh kernel, as `jupyter execute` does; it stops at the first cell that raises."""
    notebook = tmp_path / "notebook.ipynb"
    notebook.write_bytes((ROOT / "examples/notebook.ipynb").read_bytes())
    command = [sys.executable, "-c", "from nbclient.cli import main; main()", str(notebook), "--inplace"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, env=HEADLESS)
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


def test_dm_control_pixels(tmp_path):
    """Where the machine has no OpenGL it ends with what to install."""
    command = [sys.executable, "-W", "error", str(ROOT / "examples/dm_control_pixels.py"), "--fast"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    if done.returncode:
        assert re.fullmatch(r"no pixels: .*apt-get install libegl1.*\n", done.stderr)
    else:
        assert re.fullmatch(
            r"\d+ frames a second of uint8 \(48, 64, 3\), \d+\.\d% of the pixels changed\n", done.stdout
        )
        assert numbers(done.stdout)[-1] > 0


def test_record_agents(tmp_path):
    output = run(str(ROOT / "examples/record_agents.py"), "--fast", cwd=tmp_path)
    assert re.fullmatch(r"\d+ episodes of \d+ rounds, mean return -?\d+\.\d+\n", output)
    assert numbers(output)[0] >= 8


JOBS = {
    "cartpole": ["steps=200", "num_envs=2", "device=cpu"],
    "atari": ["episodes=2", "num_envs=2", "max_episode_steps=40"],
    "dm_control_pixels": ["steps=20", "num_envs=2", "max_episode_steps=10"],
    "ray": ["episodes=4"],
}
MARKS = {"atari": [pytest.mark.slow], "dm_control_pixels": [pytest.mark.slow], "ray": [pytest.mark.ray]}


@pytest.mark.parametrize("job", [pytest.param(job, marks=MARKS.get(job, [])) for job in JOBS])
def test_job(job, tmp_path, request):
    """With small numbers. Where the machine has no OpenGL, that of dm_control ends with what to install."""
    settings = [f"--set={setting}" for setting in JOBS[job]]
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "collector",
        "run",
        str(ROOT / f"examples/jobs/{job}.toml"),
        *settings,
        *([f"--cluster={request.getfixturevalue('ray_address')}", "--cluster-actors=1"] if job == "ray" else []),
    ]
    done = subprocess.run([*command, "--no-plot"], cwd=tmp_path, capture_output=True, text=True, timeout=110)
    if job == "dm_control_pixels" and done.returncode:
        assert "libegl1" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert "Collected:" in done.stdout
    assert (tmp_path / "data" / job / "manifest.jsonl").is_file()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_commands_of_the_page_on_jobs(tmp_path):
    """All of them but those on a cluster, in their order in docs/jobs.md, with the job file that stands there."""
    page = (ROOT / "docs/jobs.md").read_text("utf-8")
    (tmp_path / "cartpole.toml").write_text(re.search(r"^```toml\n(.*?)^```$", page, re.M | re.S).group(1))
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```$", page, re.M | re.S))
    commands = re.findall(r"^(python -m collector .+)$|`(python -m collector .+?)`", page, re.M)
    commands = [shlex.split(block or inline, comments=True) for block, inline in commands]
    commands = [command for command in commands if "--cluster" not in command]
    assert len(commands) >= blocks.count("python -m collector") - blocks.count("--cluster") + 3
    assert {command[3] for command in commands} >= {
        "run",
        "resume",
        "info",
        "plot",
        "video",
        "verify",
        "export",
        "tune",
    }
    environment = {**HEADLESS, "MINARI_DATASETS_PATH": str(tmp_path / "minari")}
    for command in commands:
        done = subprocess.run(
            [sys.executable, *command[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=100, env=environment
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)


def test_every_job_has_a_test():
    assert {path.stem for path in (ROOT / "examples/jobs").iterdir()} == set(JOBS)


@pytest.mark.slow  # the default tier runs each block of the page by itself
def test_tutorial(tmp_path):
    output = run(str(ROOT / "examples/tutorial.py"), "pictures", cwd=tmp_path)
    titles = re.findall(r"^## (.+)$", (ROOT / "docs/tutorial.md").read_text("utf-8"), re.M)
    assert output.splitlines() == [*titles, "pictures: frames.png returns.png timeline.png"]
    for picture in (tmp_path / "pictures").iterdir():
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert 1000 < picture.stat().st_size < 40_000
    assert {path.name for path in (ROOT / "docs/images").iterdir()} == {
        p.name for p in (tmp_path / "pictures").iterdir()
    }


@pytest.mark.ray
def test_ray_rollouts(tmp_path):
    output = run(str(ROOT / "examples/ray_rollouts.py"), "--fast", cwd=tmp_path)
    assert re.fullmatch(r"\d+ steps of 2 actors, mean return of the last 20: \d+\.\d\n", output)
    assert numbers(output)[0] == 2 * 1024
    assert numbers(output)[-1] > 8  # the shortest episode that CartPole's dynamics allow


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rllib_ppo(tmp_path):
    """RLlib itself warns of much."""
    command = [sys.executable, "-W", "ignore", str(ROOT / "examples/rllib_ppo.py"), "--fast"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    ours = "vecenv.AsyncVectorEnv and vecenv.AsyncVectorEnv"
    assert re.search(rf"^\d+ steps by {ours}, mean return \d+\.\d$", done.stdout, re.M), done.stdout
    steps, mean_return = numbers(done.stdout.splitlines()[-1])
    assert steps >= 2 * 2048
    assert mean_return > 8  # the shortest episode that CartPole's dynamics allow


def test_every_example_has_a_test_and_is_short():
    assert {f"test_{path.stem}" for path in [*EXAMPLES, *NOTEBOOKS]} <= set(globals())
    assert [path.name for path in EXAMPLES if len(path.read_text(encoding="utf-8").splitlines()) > 60] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_short_and_have_no_outputs(path):
    cells = [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert sum(len(cell["source"]) for cell in cells) <= 60
    assert [cell for cell in cells if cell["outputs"] or cell["execution_count"] is not None] == []


def test_the_programs_to_start_from_are_run_by_tests():
    """Each link of the README's table is an example, the folder of jobs, or a section, whose blocks are run."""
    section = re.search(r"^## Programs to start from\n(.*?)^## ", (ROOT / "README.md").read_text("utf-8"), re.M | re.S)
    rows = [row for row in section.group(1).splitlines() if "](" in row]
    assert len(rows) == 11
    for target in re.findall(r"\]\(([^)]+)\)", section.group(1)):
        name, _, anchor = target.partition("#")
        assert ROOT / name in [*EXAMPLES, *NOTEBOOKS, ROOT / "examples/jobs"] or anchor, target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", (ROOT / name).read_text("utf-8"), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, target


def test_the_pages_have_python_blocks():
    assert {"README.md-0", "docs/migrate.md-0"} <= {block.id for block in BLOCKS}


@pytest.mark.parametrize("block", BLOCKS)
def test_block(block, tmp_path):
    """From standard input, so that it also shows that no `__main__` file or guard is needed."""
    assert run("-", program=block, cwd=tmp_path) == ""


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = [target for target in re.findall(r"\]\(([^)#]+)", text) if "://" not in target]
    assert [target for target in targets if not (ROOT / page).parent.joinpath(target).exists()] == []
