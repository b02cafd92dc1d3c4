"""Multi-agent episodes on disk. Each agent of a game has a row, and each episode a number."""

import argparse
import tempfile

import numpy as np

from collector import Dataset, RecordEpisodes
from vecenv import ParallelVectorEnv, flatten_agents

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--fast", action="store_true", help="a few games only")
options = parser.parse_args()

folder = tempfile.mkdtemp()
rng = np.random.default_rng(0)
games = ParallelVectorEnv(["classic/rps-v2"] * 4, backend="dummy")
with RecordEpisodes(flatten_agents(games), folder) as envs:  # 4 games of two agents: 8 rows
    envs.reset(seed=0)
    for _ in range(250 if options.fast else 5000):
        envs.step(rng.integers(0, 3, size=envs.num_envs))  # rock, paper or scissors

data = Dataset(folder)
print(f"{len(data)} episodes of {data.lengths.max()} rounds, mean return {data.returns.mean():.2f}")
