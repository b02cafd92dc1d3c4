"""PoolDouble: a small stand-in for a pool of EnvPool, with the behaviour that an adapter must handle.

EnvPool 1.2.5 shows each behaviour. test_envpool.py checks the same on the real package in the slow tier:

- Autoreset in the step after the end, also of envs that were never reset.
- A synchronous pool returns results in the order of the request. An asynchronous pool returns `batch_size` results in
  any order.
- A call for k envs returns k results.
- Single spaces with wrong bounds, and float32 rewards.
- Infos as a dict of arrays, which includes the players.
- Seeds that are fixed when the pool is created.
- With `episodic_life`, a game goes on after a lost life, unless the env is reset explicitly.

If EnvPool would end the process, hang or mix up rows, the double raises `Broken`.
"""

import random
import warnings
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

MISSING = "EnvPool is not installed: make test-slow does that"
RESET = None
MAX_STEPS = 6


class Broken(BaseException):
    """EnvPool would have crashed, hung or returned garbage. This is a BaseException, so that no handler hides it."""


class PoolSpec:
    """Arguments of a pool. A spec with a changed `config` makes a different pool."""

    gen_config = namedtuple(
        "Config",
        "num_envs batch_size num_threads max_num_players seed env_seed episodic_life",
        defaults=(1, 0, 0, 1, 42, [], False),
    )

    action_array_spec = {name: SimpleNamespace(dtype=np.int32) for name in ("env_id", "players.env_id", "action")}

    def __init__(self, config: Any) -> None:
        self.config = config


class CountedEnv:
    """Env with episodes of three to five steps, or MAX_STEPS when truncated. The observation identifies env, episode
    and step.
    """

    def __init__(self, env_id: int, seed: int) -> None:
        self.env_id, self.seed = env_id, seed
        self.episode, self.elapsed, self.done, self.lives = -1, 0, True, 0

    def run(self, action: Any) -> tuple[Any, ...]:
        if action is RESET or self.done:
            self.lives = 5 if action is RESET or not self.lives else self.lives
            self.episode, self.elapsed, self.done = self.episode + 1, 0, False
            return self.state(0.0, False)
        self.elapsed += 1
        truncated = self.elapsed == MAX_STEPS
        self.done = truncated or (self.length < MAX_STEPS and self.elapsed == self.length)
        self.lives -= self.done
        return self.state(action + 0.1, truncated)

    @property
    def length(self) -> int:
        return 3 + (self.seed + self.episode) % 4

    def state(self, reward: float, truncated: bool) -> tuple[Any, ...]:
        obs = np.array([self.seed % 1000, self.episode, -self.elapsed], np.float32)
        return obs, reward, self.done, truncated, self.env_id, self.elapsed, self.lives


class PoolDouble:
    metadata = {"render_modes": ["rgb_array"], "autoreset_mode": "next step"}
    # EnvPool's default bounds are the smallest positive and the largest float.
    observation_space = spaces.Box(np.finfo(np.float32).tiny, np.finfo(np.float32).max, (3,), np.float32)
    action_space = spaces.Discrete(3)
    _state_keys = ["info:env_id", "info:players.env_id", "elapsed_step", "done", "reward", "trunc", "obs"]
    made: list["PoolDouble"] = []

    def __init__(self, spec: PoolSpec) -> None:
        self.spec = spec
        n = spec.config.num_envs
        if spec.config.episodic_life:
            self._state_keys = [*self._state_keys[:2], "info:lives", *self._state_keys[2:]]
        seeds = spec.config.env_seed or [spec.config.seed + i for i in range(n)]
        self.envs = [CountedEnv(i, seed) for i, seed in enumerate(seeds)]
        self.is_sync = spec.config.batch_size in (0, n)
        self.pending: list[tuple[int, Any]] = []
        self.sends = 0
        self.is_closed = False
        self.shuffle = random.Random(0)
        PoolDouble.made.append(self)

    @classmethod
    def make(cls, num_envs: int, **config: Any) -> "PoolDouble":
        return cls(PoolSpec(PoolSpec.gen_config(num_envs=num_envs, **{"batch_size": num_envs, **config})))

    @property
    def config(self) -> dict[str, Any]:
        return self.spec.config._asdict()

    def _ask(self, ids: np.ndarray, actions: list[Any]) -> None:
        if self.is_closed:
            raise Broken("used after close")
        if ids.dtype != np.int32 or len(ids) != len(actions):
            raise Broken(f"ids {ids.dtype} {ids} for {len(actions)} actions")
        for i, action in zip(ids.tolist(), actions, strict=True):
            if not 0 <= i < len(self.envs):
                raise Broken(f"env {i} of {len(self.envs)}: segmentation fault")
            if i in dict(self.pending):
                raise Broken(f"env {i} is stepped by two threads")
            if action is not RESET and not 0 <= action < 3 and not self.envs[i].done:
                raise Broken(f"action {action}: segmentation fault")
            self.pending.append((i, action))
        self.sends += 1

    def _reset(self, env_id: np.ndarray) -> None:
        self._ask(env_id, [RESET] * len(env_id))

    def async_reset(self) -> None:
        self._reset(np.arange(len(self.envs), dtype=np.int32))

    def _send(self, arrays: list[np.ndarray]) -> None:
        env_id, players, action = arrays
        if action.dtype != np.int32 or players.tolist() != env_id.tolist():
            raise Broken(f"{arrays} are not what the C++ expects")
        self._ask(env_id, action.tolist())

    def send(self, action: np.ndarray, env_id: np.ndarray | None = None) -> None:
        ids = np.arange(len(self.envs)) if env_id is None else env_id
        self._send([ids.astype(np.int32), ids.astype(np.int32), np.asarray(action).astype(np.int32)])

    def _recv(self) -> list[np.ndarray]:
        count = len(self.pending) if self.is_sync else self.spec.config.batch_size
        if not 0 < count <= len(self.pending):
            raise Broken(f"waits without an end: {len(self.pending)} on their way, {count} needed")
        if self.is_sync and self.sends > 1:
            raise Broken("two batches of a synchronous pool are mixed up")
        if not self.is_sync:
            self.shuffle.shuffle(self.pending)
        taken, self.pending, self.sends = self.pending[:count], self.pending[count:], 0
        obs, reward, done, truncated, ids, elapsed, lives = zip(*(self.envs[i].run(a) for i, a in taken), strict=True)
        env_id = np.array(ids, np.int32)
        head = [env_id, env_id.copy(), *[np.array(lives, np.int32)] * self.spec.config.episodic_life]
        head.append(np.array(elapsed, np.int32))
        return [*head, np.array(done), np.array(reward, np.float32), np.array(truncated), np.stack(obs)]

    def recv(self) -> tuple[Any, ...]:
        env_id, players, *lives, elapsed, done, reward, truncated, obs = self._recv()
        info = {"env_id": env_id, "players": {"env_id": players}, "elapsed_step": elapsed}
        if lives:
            info["lives"] = lives[0]
        return obs, reward, done & ~truncated, truncated, info

    def step(self, action: np.ndarray, env_id: np.ndarray | None = None) -> tuple[Any, ...]:
        self.send(action, env_id)
        return self.recv()

    def reset(self, env_id: np.ndarray | None = None) -> tuple[Any, Any]:
        self._reset(np.arange(len(self.envs), dtype=np.int32) if env_id is None else env_id)
        obs, _, _, _, info = self.recv()
        return obs, info

    @property
    def render_mode(self) -> str | None:
        return getattr(self, "_render_mode", None)

    def render(self, env_ids: np.ndarray) -> np.ndarray:
        if self.render_mode != "rgb_array":
            raise RuntimeError("render_mode must be set to 'rgb_array' or 'human' when creating this env")
        return np.stack([np.full((2, 2, 3), i, np.uint8) for i in env_ids])

    def close(self) -> None:
        self.is_closed = True


def real_pool(num_envs, task="CartPole-v1", **config):
    """Return a pool of EnvPool, or skip the test without EnvPool."""
    envpool = pytest.importorskip("envpool", reason=MISSING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the precision of its bounds
        pool = envpool.make(task, env_type="gymnasium", num_envs=num_envs, **config)
        assert pool.observation_space is not None
    return pool
