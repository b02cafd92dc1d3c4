"""Random programs of operations on a vector env, and the log of their results."""

import re

import numpy as np
from gymnasium import spaces

from tests.support.cases import Plays, described
from vecenv.testing import CountingEnv


class Objects(CountingEnv):
    """Env with object observations, and infos with arrays and nested values."""

    def __init__(self, env_id=0, **options):
        super().__init__(env_id, form="object", **options)

    def step(self, action):
        obs, *rest, info = super().step(action)
        return (obs, *rest, {**info, "array": np.arange(self.t), "nested": {"deep": [self.t]}})


class Rich(CountingEnv):
    """Env that observes arrays of several kinds and an object. Infos alternate: empty, numbers, an array, nested."""

    def __init__(self, env_id=0):
        super().__init__(env_id, form="dict")
        self.observation_space = spaces.Dict({**self.observation_space.spaces, "text": spaces.Text(9)})

    def _observation(self):
        return {**super()._observation(), "text": "x" * (1 + self.t % 9)}

    def step(self, action):
        *row, _ = super().step(action)
        infos = {}, {"t": self.t, "x": 0.5}, {"at": np.arange(3) + self.t}, {"deep": [self.t]}
        return (*row, infos[self.t % 4])


class Misfit(CountingEnv):
    """Env with an error that depends on its id: it raises, returns too few values, or observes a float."""

    resets = 0

    def reset(self, **kwargs):
        self.resets += 1
        if self.env_id == 1 and self.resets % 5 == 0:
            raise ValueError("boom in reset")
        return super().reset(**kwargs)

    def step(self, action):
        if self.env_id == 1 and self.t == 3:
            raise KeyError("boom in step")
        result = super().step(action)
        return result[:4] if self.env_id == 2 and self.t % 4 == 0 else result

    def _observation(self):
        return super()._observation() + (0.5 if self.env_id == 3 and self.t % 3 == 2 else 0)


TEAMS = {
    "rich": [Rich] * 4,
    "objects": [Objects] * 3,
    "misfits": [Misfit] * 5,
    "strangers": [lambda i, **o: CountingEnv(i, form=("array", "dict", "object")[i % 3], **o)] * 4,
    "rewards": [lambda i, **o: Plays(spaces.Box(-9, 9, (), np.float16), [i, 0.5], rewards=[[1, 2], [3, i]])] * 3,
}


KINDS = [
    *("step", "step", "step", "autoreset", "reset", "mend", "mend", "mixed", "mixed", "halves", "halves"),
    *("seed", "attr", "set", "call", "wrong"),
]


def team(name):
    """Return the env_fns of a team."""
    return [lambda i=i, maker=maker: maker(i) for i, maker in enumerate(TEAMS[name])]


def program(n, seed, length):
    """Return `length` operations on n envs, as (description, function of a vector env). Some are mistakes."""
    rng = np.random.default_rng(seed)

    def ids():
        k = int(rng.integers(1, n + 1))
        chosen = rng.permutation(n)[:k]
        form = rng.integers(4)
        return None if form == 0 and k == n else chosen.tolist() if form < 3 else np.isin(np.arange(n), chosen)

    def count(chosen):
        return n if chosen is None else len(chosen) if isinstance(chosen, list) else int(chosen.sum())

    def operation():
        kind = rng.choice(KINDS)
        chosen = ids()
        k = count(chosen)
        actions = rng.integers(0, 100, k)
        seed = int(rng.integers(1000))
        if kind == "step":
            return lambda v: v.step(actions, chosen)
        if kind == "mend":
            return lambda v: v.reset(v.failed_id or chosen)
        if kind == "autoreset":
            return lambda v: v.step(actions, chosen, autoreset=True)
        if kind == "reset":
            kwargs = {} if seed % 2 else {"seed": seed, "options": {"t": seed % 3}}
            return lambda v: v.reset(chosen, **kwargs)
        if kind == "mixed":
            mask = rng.random(n) < 0.4
            among = mask if chosen is None else mask & np.isin(np.arange(n), np.arange(n)[chosen])
            return lambda v: v.step(actions, chosen, reset=among)
        if kind == "halves":
            others = [i for i in range(n) if chosen is not None and i not in np.arange(n)[chosen]]

            def halves(v):
                v.send(actions, chosen)
                try:
                    between = [v.waiting_id, *([v.get_env_attr("t", others), v.reset(others)] if others else [])]
                finally:
                    received = v.recv()
                return between, received

            return halves
        if kind == "seed":
            return lambda v: (v.seed(seed), [space.sample() for space in v.action_space])
        if kind == "attr":
            name = ["t", "episode", "calls", "at", "nope"][seed % 5]
            return lambda v: v.get_env_attr(name, chosen)
        if kind == "set":
            return lambda v: v.set_env_attr(["t", "mine"][seed % 2], seed % 4, chosen)
        if kind == "call":
            return lambda v: v.call(["render", "t", "nope"][seed % 3], id=chosen)
        return [
            lambda v: v.step(actions[:-1], chosen),
            lambda v: v.step([1.5] * k, chosen),
            lambda v: v.recv(),
            lambda v: v.reset([0, 0]),
            lambda v: v.reset(n),
            lambda v: v.seed([1] * (n + 1)),
            lambda v: v.step(["x"] * k, chosen),
        ][seed % 7]

    return [operation() for _ in range(length)]


def log_of(venv, operations):
    """Return the result or error of each operation and the state after it, comparable by value."""
    log = []
    for run in operations:
        try:
            entry = described(run(venv))
        except Exception as error:
            partial = getattr(error, "partial", None)
            entry = type(error).__name__, masked(str(error)), getattr(error, "env_id", None), described(partial)
        log.append((entry, venv.ready_id, venv.waiting_id, venv.failed_id))
    return log


def masked(text):
    """Remove process ids from a message."""
    return re.sub(r"pid \d+", "pid P", text)
