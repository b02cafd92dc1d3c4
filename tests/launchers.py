"""Run one program under many launchers: `python -m tests.launchers [NAME...]`.

The program steps an `AsyncVectorEnv` of envs of its main module, and prints a hash of all results. Under each launcher
that is installed, every hash must be the hash of the plain program. The page "Launchers, notebooks, profilers" has a
row per launcher. `tests/project/test_launchers.py` runs the launchers that need no further package.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

PROGRAM = """
import hashlib

import gymnasium as gym
import numpy as np

import vecenv


class Env(gym.Wrapper):
    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        return obs, reward + 1, *rest


def play(_=None):
    envs = vecenv.AsyncVectorEnv([lambda: Env(gym.make("CartPole-v1"))] * 3, num_workers=2)
    found = hashlib.sha256(envs.reset(seed=0)[0].tobytes())
    for step in range(50):
        for part in envs.step(np.full(3, step // 3 % 2))[:4]:
            found.update(part.tobytes())
    envs.close()
    return "hash " + found.hexdigest()[:16]

"""
# What follows in the main program; the results of `play` must be printed.
PLAIN = "print(play())\n"
POOL = "import multiprocessing\nwith multiprocessing.Pool(1) as pool:\n    print(*pool.map(play, [0, 1]), sep='\\n')\n"
EXECUTOR = "from concurrent.futures import {0}\nwith {0}(1) as pool:\n    print(*pool.map(play, [0, 1]), sep='\\n')\n"
JOBLIB = "import joblib\nprint(*joblib.Parallel(2, {0})([joblib.delayed(play)()] * 2), sep='\\n')\n"
DASK = """
from dask.distributed import Client, LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=1, processes={0}, dashboard_address=None) as cluster, Client(cluster) as client:
        print(client.submit(play, pure=False).result())
"""
SUBMITIT = "import submitit\nprint(submitit.LocalExecutor(folder='log').submit(play).result())\n"
HYDRA = "import hydra\n@hydra.main(version_base=None)\ndef main(_):\n    print(play())\nmain()\n"
RAY = "import ray\nray.init(num_cpus=1, logging_level='error')\nprint(ray.get(ray.remote(play).remote()))\n"
TUNE = """
import ray
from ray import tune
ray.init(num_cpus=2, logging_level="error")
found = tune.Tuner(lambda config: {"hash": play()}, tune_config=tune.TuneConfig(num_samples=2)).fit()
print(*(each.metrics["hash"] for each in found), sep="\\n")
"""
PYTEST = "def test_it():\n    print(play())\n"


class Launcher(NamedTuple):
    """How the program is run: what follows its functions, the words before its file, and the module that is needed."""

    ending: str = PLAIN
    words: str = "python"
    needs: str = ""
    hashes: int = 1
    after: str = ""


LAUNCHERS = {
    "plain": Launcher(),
    "python -": Launcher(words="python - <"),
    "pdb": Launcher(words="python -m pdb -c continue -c quit"),
    "cProfile": Launcher(words="python -m cProfile"),
    "python -X dev": Launcher(words="python -X dev"),
    "multiprocessing.Pool": Launcher(POOL, hashes=2),
    "ProcessPoolExecutor": Launcher(EXECUTOR.format("ProcessPoolExecutor"), hashes=2),
    "ThreadPoolExecutor": Launcher(EXECUTOR.format("ThreadPoolExecutor"), hashes=2),
    "pytest": Launcher(PYTEST, "python -m pytest -q -s -p no:cacheprovider -W error", "pytest"),
    "pytest-xdist": Launcher(PYTEST, "python -m pytest -q -rP -n 2 -p no:cacheprovider -W error", "xdist"),
    "torchrun": Launcher(words="python -m torch.distributed.run --nproc-per-node 2", needs="torch", hashes=2),
    "Ray task": Launcher(RAY, needs="ray"),
    "Ray Tune": Launcher(TUNE, needs="ray.tune", hashes=2),
    "joblib loky": Launcher(JOBLIB.format(""), needs="joblib", hashes=2),
    "joblib multiprocessing": Launcher(JOBLIB.format('backend="multiprocessing"'), needs="joblib", hashes=2),
    "dask processes": Launcher(DASK.format(True), needs="distributed"),
    "dask threads": Launcher(DASK.format(False), needs="distributed"),
    "submitit": Launcher(SUBMITIT, needs="submitit"),
    "hydra --multirun": Launcher(HYDRA, needs="hydra", hashes=2, after="--multirun +seed=1,2"),
    "accelerate": Launcher(words="python -m accelerate.commands.launch --cpu", needs="accelerate"),
    "mpirun": Launcher(words="mpirun --allow-run-as-root --oversubscribe -n 2 python", needs="mpirun", hashes=2),
    "mpi4py": Launcher(
        words="mpirun --allow-run-as-root --oversubscribe -n 2 python -m mpi4py", needs="mpi4py", hashes=2
    ),
    "coverage": Launcher(words="python -m coverage run", needs="coverage"),
    "viztracer": Launcher(words="python -m viztracer --quiet", needs="viztracer"),
    "memray": Launcher(words="python -m memray run --follow-fork -o out.bin", needs="memray"),
    "scalene": Launcher(words="python -m scalene run --cpu-only", needs="scalene"),
    "debugpy": Launcher(words="python -m debugpy --listen 0", needs="debugpy"),
}


def is_installed(launcher: Launcher) -> bool:
    if launcher.words.startswith("mpirun") and shutil.which("mpirun") is None:
        return False
    if launcher.needs in ("", "mpirun"):
        return True
    try:
        return importlib.util.find_spec(launcher.needs) is not None
    except ModuleNotFoundError:
        return False


def hashes(launcher: Launcher, folder: Path, timeout: float = 300) -> list[str]:
    """Return the hashes that a program under this launcher prints."""
    program = folder / "test_program.py"
    program.write_text(PROGRAM + launcher.ending)
    words = launcher.words.replace("python", sys.executable, 1) if "mpirun" not in launcher.words else launcher.words
    words = words.replace(" python", f" {sys.executable}")
    command = f"{words} {program} {launcher.after}"
    done = subprocess.run(
        command, shell=True, cwd=folder, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL
    )
    found = re.findall(r"hash ([0-9a-f]{16})", done.stdout)
    assert found, done.stdout[-2000:] + done.stderr[-4000:]
    return found


def main(names: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        (want,) = hashes(LAUNCHERS["plain"], Path(folder))
        failures = 0
        for name, launcher in LAUNCHERS.items():
            if names and name not in names:
                continue
            if not is_installed(launcher):
                print(f"{name:24} not installed")
                continue
            try:
                found = hashes(launcher, Path(folder))
                text = "equal" if found == [want] * launcher.hashes else f"DIFFERS: {found}"
            except Exception as error:
                text = f"FAILS: {str(error)[-1500:]}"
            failures += text != "equal"
            print(f"{name:24} {text}", flush=True)
    return min(failures, 1)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
