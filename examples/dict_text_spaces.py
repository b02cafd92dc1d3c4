"""Dict and Text spaces. Observations are a dict of batches, texts an object array, and actions a dict per env.

python examples/dict_text_spaces.py
"""

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from collector import SyncDataCollector
from vecenv import ShmemVectorEnv


class Errand(gym.Env):
    """Walk to the place that the text names, and report the arrival."""

    observation_space = spaces.Dict({"position": spaces.Box(-5, 5, (1,)), "order": spaces.Text(20)})
    action_space = spaces.Dict({"move": spaces.Discrete(3, start=-1), "say": spaces.Text(20)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.goal = 0, int(self.np_random.choice([-4, -2, 2, 4]))
        return self.look(), {}

    def look(self):
        order = f"{abs(self.goal)} to the {'left' if self.goal < 0 else 'right'}"
        return {"position": np.array([self.position], np.float32), "order": order}

    def step(self, action):
        self.position = int(np.clip(self.position + action["move"], -5, 5))
        there = action["say"] == "here" and self.position == self.goal
        return self.look(), float(there), there, False, {}


def policy(obs):  # {"position": (k, 1), "order": (k,)}: a row for each env that steps next
    actions = np.empty(len(obs["order"]), object)  # a dict per env
    for row, order in enumerate(obs["order"]):
        goal = int(order[0]) * (1 if order.endswith("right") else -1)
        move = int(np.sign(goal - obs["position"][row, 0]))
        actions[row] = {"move": move, "say": "" if move else "here"}
    return actions


with ShmemVectorEnv([Errand] * 4) as venv:
    obs, info = venv.reset(seed=0)
    arrived = 0
    for _ in range(50):
        obs, rew, terminated, truncated, info = venv.step(policy(obs))
        arrived += terminated.sum()
        if terminated.any():
            for key, rows in venv.reset(terminated)[0].items():
                obs[key][terminated] = rows
print(f"{arrived} errands in 50 rounds")

with SyncDataCollector([Errand] * 4, policy, frames_per_batch=40) as collector:
    obs = collector.next().obs
    print(f"position {obs['position'].shape}, order {obs['order'].shape}, the first of them {obs['order'][0, 0]!r}")
