"""Eight games of connect four in parallel. A player that prefers the middle plays against a random player.

Needs `pip install 'vecenv[pettingzoo]'`.

python examples/pettingzoo_game.py [--fast]
"""

import argparse

import numpy as np

from vecenv import AECVectorEnv

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--fast", action="store_true", help="few games, to see that it works")
games = 40 if parser.parse_args().fast else 1_000
rng = np.random.default_rng(0)


def policy(agent, mask):
    """Choose one of the seven columns for the agent that moves. `mask` marks the open columns."""
    columns = np.flatnonzero(mask)
    return columns[np.abs(columns - 3).argmin()] if agent == 0 else rng.choice(columns)


with AECVectorEnv(["classic/connect_four-v3"] * 8, autoreset_mode="SameStep") as venv:
    obs, infos = venv.reset(seed=0)
    returns, finished = np.zeros((8, 2)), []
    while len(finished) < games:
        actions = [policy(agent, mask) for agent, mask in zip(infos["agent"], infos["action_mask"], strict=True)]
        obs, rewards, terminations, truncations, infos = venv.step(actions)
        returns += rewards  # of both players
        finished.extend(returns[infos["done"]])  # these games have restarted
        returns[infos["done"]] = 0

wins = (np.array(finished) > 0).sum(axis=0)
print(f"{len(finished)} games: {wins[0]} won by the middle, {wins[1]} at random")
