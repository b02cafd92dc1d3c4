"""Programs that end without `close`. They must end as with gymnasium's and SB3's classes, which leave envs open."""

import functools
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

from collector import Dataset
from tests.support.backends import FULL
from tests.support.paths import ROOT

HERE = {
    "dummy": "vecenv.DummyVectorEnv([LateEnv] * 2)",
    "thread": "vecenv.ThreadVectorEnv([LateEnv] * 2)",
    "sb3": "vecenv.sb3.DummyVecEnv([LateEnv] * 2)",
    "from_gymnasium": "vecenv.from_gymnasium(gym.vector.SyncVectorEnv([LateEnv] * 2))",
    "recorded": "collector.RecordEpisodes(vecenv.DummyVectorEnv([LateEnv] * 2), FOLDER)",
}
"""Vector envs with envs in this process."""
SHMEM = "vecenv.ShmemVectorEnv([LateEnv] * 2)"
REMOTE = {
    "auto": "collector.SyncDataCollector([LateEnv] * 2, frames_per_batch=4, backend='auto')",
    "shmem": SHMEM,
    "subproc": "vecenv.sb3.SubprocVecEnv([LateEnv] * 2)",
}
COLLECTOR = "collector.AsyncDataCollector([LateEnv] * 2, frames_per_batch=4, backend='thread')"
ORIGINALS = {
    "gymnasium": "gym.vector.SyncVectorEnv([LateEnv] * 2)",
    "sb3": "stable_baselines3.common.vec_env.DummyVecEnv([LateEnv] * 2)",
}
ENDS = {
    "end": "",
    "in a loop": "for _ in range(9):\n    envs.step(np.zeros((2, 2), np.float32))\n    sys.exit(3)",
    "exception": "envs.step(np.zeros((2, 2), np.float32))\nraise ValueError('a mistake')",
}
EXIT_CODES = {"end": 0, "in a loop": 3, "exception": 1}
PROGRAM = """
import sys, gymnasium as gym, numpy as np
IMPORTS
from tests.support.late_library import LateEnv
envs = MAKE
BEGIN
print("end", flush=True)
END
"""
WORKER = """
import subprocess
class Worker(vecenv.EnvWorker):
    # A worker that owns a process, for example a simulator's. The process runs until its input is closed.
    def __init__(self, env_fn):
        super().__init__(env_fn)
        self.env = env_fn()
        self.simulator = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    def get_env_attr(self, key): return getattr(self.env, key)
    def set_env_attr(self, key, value): setattr(self.env, key, value)
    def render(self): return self.env.render()
    def send(self, action, **kwargs):
        self.result = self.env.reset(**kwargs) if action is None else self.env.step(action)
    def close_env(self):
        self.simulator.kill()
        print("killed", self.simulator.wait(), flush=True)
"""
LAST_LINES = "end\nthe library ends\n"
DELETED = "deleted\ndeleted\n"


def run(make: str, end: str = "end", begin: str = "envs.reset()", folder: Path = ROOT) -> tuple[int, str, list[str]]:
    """Return exit code, output, and the last line of the errors."""
    names = [name for name in ("stable_baselines3", "collector", "vecenv.sb3", "vecenv") if f"{name}." in make]
    imports = "".join(f"import {name}; " for name in names) + WORKER * ("Worker)" in make)
    parts = {"IMPORTS": imports, "MAKE": make, "BEGIN": begin, "END": ENDS[end], "FOLDER": repr(str(folder))}
    program = functools.reduce(lambda text, name: text.replace(name, parts[name]), parts, PROGRAM)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout, done.stderr.splitlines()[-1:]


@functools.cache
def original(name: str, end: str) -> tuple[int, str, list[str]]:
    return run(ORIGINALS[name], end)


@pytest.mark.guarantee("G9.7")
@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("dummy", "in a loop"),
        *(
            pytest.param(name, end, marks=FULL)
            for name, end in (
                ("dummy", "exception"),
                ("thread", "end"),
                ("sb3", "in a loop"),
                ("from_gymnasium", "exception"),
                ("recorded", "end"),
                ("recorded", "in a loop"),
            )
        ),
    ],
)
def test_envs_in_this_process_are_left_open_as_in_the_originals(name: str, end: str, tmp_path: Path) -> None:
    closes = hasattr(gymnasium.vector.VectorEnv, "__del__")  # of gymnasium 1.2, whose program then hangs
    expected = original("sb3" if name == "sb3" or closes else "gymnasium", end)
    assert expected[:2] == (EXIT_CODES[end], LAST_LINES + DELETED)
    assert run(HERE[name], end, folder=tmp_path / "data") == expected
    if name == "recorded":  # its own exit function has committed the episodes
        data = Dataset(tmp_path / "data")
        assert (len(data), data.complete) == (2 * (end != "end"), False)


@FULL
def test_a_collector_leaves_envs_of_this_process_open() -> None:
    assert run(COLLECTOR, begin="batches = iter(envs)\nbatch = next(batches)") == (0, LAST_LINES + DELETED, [])


@pytest.mark.guarantee("G9.6")
@pytest.mark.parametrize("name", [pytest.param(name, marks=FULL) for name in REMOTE])
def test_workers_close_their_envs_before_the_library_ends(name: str) -> None:
    begin = "batch = next(iter(envs))" if name == "auto" else "envs.reset()"
    code, output, errors = run(REMOTE[name], begin=begin)
    assert (code, output.removesuffix(DELETED), errors) == (0, LAST_LINES, [])  # "auto" may choose this process


@FULL
def test_a_program_ends_though_an_env_hangs_in_a_step_and_its_error_is_the_last_line() -> None:
    begin = """
import time, vecenv.engine.lifetime
vecenv.engine.lifetime.CLOSE_TIMEOUT = 0.5
envs.reset()
envs.set_env_attr("step", lambda action: time.sleep(600), [0])
envs.send(np.zeros((1, 2), np.float32), [0])"""
    assert run(SHMEM, begin=begin) == (0, LAST_LINES, [])
    assert run(SHMEM, end="exception") == (1, LAST_LINES, ["ValueError: a mistake"])


@pytest.mark.guarantee("G9.9")
def test_custom_workers_are_closed_because_they_may_own_processes() -> None:
    code, output, _ = run("vecenv.BaseVectorEnv([LateEnv] * 2, Worker)", "exception")
    assert (code, output) == (1, LAST_LINES + "killed -9\n" * 2 + DELETED)


@pytest.mark.guarantee("G9.8")
def test_a_thread_finishes_its_step_before_python_ends() -> None:
    """If not, Python may crash: MuJoCo's `mj_step`, for example, segfaults when it returns."""
    begin = """
import os, threading, time
begun = threading.Barrier(3)
def step(action):
    begun.wait()
    time.sleep(0.3)
    os.write(1, b"stepped\\n")  # one write: `print` makes two, and threads may come between them
envs.set_env_attr("step", step)
envs.reset()
envs.send(np.zeros((2, 2), np.float32))
begun.wait()"""
    code, output, errors = run("vecenv.ThreadVectorEnv([LateEnv] * 2, num_workers=2)", begin=begin)
    lines = [*LAST_LINES.split(), *DELETED.split(), "stepped", "stepped"]
    assert (code, sorted(output.split()), errors) == (0, sorted(lines), [])
