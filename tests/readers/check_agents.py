"""The adapters of docs/guides/agent-envs.md, with the published packages: episodes are the same on every backend."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from vecenv import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv

Run = Callable[[str], dict[str, Any]]
N = 3


def play(kind: Any, env_fns: Any, act: Callable[[Any, int], Any], steps: int, **options: Any) -> list[Any]:
    """Return what the envs return, in episodes that follow each other."""
    with kind(env_fns, **options) as venv:
        obs, infos = venv.reset(seed=5)
        rows = [list(obs)]
        for t in range(steps):
            obs, rewards, terminated, truncated, infos = venv.step([act(each, t) for each in obs], autoreset=True)
            rows.append([list(obs), rewards.tolist(), terminated.tolist(), truncated.tolist()])
            rows.append([info["final_obs"] for info in infos if "final_obs" in info])
    return rows


@pytest.fixture
def server() -> Iterator[str]:
    pytest.importorskip("openenv", reason="needs openenv")
    import uvicorn
    from fastapi import FastAPI
    from openenv.core.env_server.http_server import HTTPEnvServer
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class Move(Action):
        by: int

    class Place(Observation):
        place: int

    class Walk(Environment[Move, Place, State]):
        """Walk from a drawn place. The reward is None until the end."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Place:
            self.place = int(np.random.default_rng(seed).integers(5))
            return Place(place=self.place)

        def step(self, action: Move, timeout_s: float | None = None, **_: Any) -> Place:
            self.place += action.by
            over = self.place > 6
            return Place(place=self.place, done=over, reward=1.0 if over else None)

        @property
        def state(self) -> State:
            return State()

    app = FastAPI()
    HTTPEnvServer(Walk, Move, Place, max_concurrent_envs=16).register_routes(app)
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    running.should_exit = True
    thread.join()


def test_openenv(run: Run, server: str) -> None:
    adapter = run("class OpenEnv")["OpenEnv"]
    episodes = [
        play(ThreadVectorEnv, [partial(adapter, server)] * N, lambda obs, t: {"by": 1 + t % 2}, 12, **options)
        for options in ({}, {"timeout": 30})
    ]
    assert episodes[0] == episodes[1]
    rewards = [reward for row in episodes[0][1::2] for reward in row[1]]
    assert set(rewards) == {0.0, 1.0}
    assert len({each[0][0]["place"] for each in (episodes[0],)} | {row[0][1]["place"] for row in episodes[0][1::2]}) > 1


def test_fhaviary(run: Run) -> None:
    pytest.importorskip("aviary", reason="needs fhaviary")
    from aviary.env import DummyEnv
    from aviary.message import Message
    from aviary.tools import ToolCall, ToolRequestMessage

    adapter = run("class AviaryEnv")["AviaryEnv"]

    def make(rng: np.random.Generator) -> Any:
        return DummyEnv(task=str(rng.integers(10**6)), end_immediately=False)

    def act(messages: Any, t: int) -> Any:
        assert all(isinstance(each, Message) for each in messages)
        return ToolRequestMessage(tool_calls=[ToolCall.from_name("print_story", story="a b c d e")])

    with ThreadVectorEnv([partial(adapter, make)] * N) as venv:
        obs, infos = venv.reset(seed=5)
        first = [each[0].content for each in obs]
        assert len(set(first)) == N
        assert {tool.info.name for tool in infos[0]["tools"]} >= {"print_story", "cast_int"}
        obs, rewards, *_ = venv.step([act(each, 0) for each in obs])
        assert rewards.tolist() == [1.0] * N
        second = [each[0].content for each in venv.reset()[0]]
        assert len({*first, *second}) == 2 * N
        assert [each[0].content for each in venv.reset(seed=5)[0]] == first
        assert [each[0].content for each in venv.reset()[0]] == second
        wrong = ToolRequestMessage(tool_calls=[ToolCall.from_name("cast_int", x="no number")])
        with pytest.raises(Exception, match="no number") as raised:
            venv.step([wrong, *[act(None or [], 0)] * (N - 1)])
        assert raised.value.partial.env_id.tolist() == [1, 2]


def test_skyrl_gym(run: Run) -> None:
    pytest.importorskip("skyrl_gym", reason="needs skyrl-gym")
    adapter = run("class SkyRLEnv")["SkyRLEnv"]
    tasks = [
        ([{"role": "user", "content": f"{a} + 1?"}], {"reward_spec": {"ground_truth": str(a + 1)}}) for a in range(9)
    ]
    env_fns = [partial(adapter, "gsm8k", tasks)] * N
    rows = [
        play(kind, env_fns, lambda obs, t: f"#### {t}", 8)
        for kind in (DummyVectorEnv, ThreadVectorEnv, SubprocVectorEnv)
    ]
    assert rows[0] == rows[1] == rows[2]
    assert {reward for row in rows[0][1::2] for reward in row[1]} == {0.0, 1.0}
    assert rows[0][2][0][-1] == {"role": "assistant", "content": "#### 0"}


def test_gem(run: Run) -> None:
    pytest.importorskip("gem", reason="needs gem-llm")
    adapter = run("class GemEnv")["GemEnv"]
    env_fns = [partial(adapter, "game:GuessTheNumber-v0-easy")] * N
    rows = [
        play(kind, env_fns, lambda obs, t: f"\\boxed{{{1 + t % 10}}}", 25)
        for kind in (DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv)
    ]
    assert rows[0] == rows[1] == rows[2]


def test_textarena(run: Run) -> None:
    pytest.importorskip("textarena", reason="needs textarena")
    adapter = run("class TextArenaEnv")["TextArenaEnv"]

    def guess(text: str, t: int = 0) -> str:
        return f"[{1 + t % 20}]"

    def move(text: str, t: int = 0) -> str:
        """The first free cell of the board."""
        return next((f"[{cell}]" for cell in range(9) if f" {cell} " in text.rsplit("\n\n", 1)[-1]), "[0]")

    for env_fn, act in (
        (partial(adapter, "GuessTheNumber-v0"), guess),
        (partial(adapter, "TicTacToe-v0", move), lambda text, t: move(text)),
    ):
        rows = [play(kind, [env_fn] * N, act, 25) for kind in (DummyVectorEnv, ThreadVectorEnv, SubprocVectorEnv)]
        assert rows[0] == rows[1] == rows[2]
        assert any(any(row[2]) for row in rows[0][1::2])
