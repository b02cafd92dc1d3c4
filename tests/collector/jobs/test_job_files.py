"""Jobs as files, settings and objects of a program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from gymnasium.wrappers import FlattenObservation

from collector import Job, load_job, run_job
from tests.support.command_line import command
from tests.support.job_envs import job
from tests.support.paths import ROOT
from tests.support.steps import Steps
from vecenv.transforms import StepCounter

TOML = """
env = "CartPole-v1"
num_envs = 4
backend = "dummy"
episodes = 12
seed = 3
wrappers = ["gymnasium.wrappers:FlattenObservation"]

[env_kwargs]
sutton_barto_reward = true
"""
YAML = """
env: CartPole-v1
num_envs: 4
backend: dummy
episodes: 12
seed: 3
wrappers: ["gymnasium.wrappers:FlattenObservation"]
env_kwargs: {sutton_barto_reward: true}
"""


def test_toml_json_and_yaml_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(TOML, "utf-8-sig")
    (tmp_path / "a.yaml").write_text(YAML)
    found = load_job(tmp_path / "a.toml")
    assert (found.env, found.episodes, found.steps, found.seed) == ("CartPole-v1", 12, None, 3)
    assert found.env_kwargs == {"sutton_barto_reward": True}
    names = ("env", "num_envs", "backend", "episodes", "seed", "wrappers", "env_kwargs")
    (tmp_path / "a.json").write_text(json.dumps({name: getattr(found, name) for name in names}))
    assert load_job(tmp_path / "a.yaml") == load_job(tmp_path / "a.json") == found


def test_tuples_are_lists_as_in_a_resumed_job(tmp_path: Path) -> None:
    calls = [{"call": "ResizeObservation", "kwargs": {"shape": (2, 2)}}, "FlattenObservation"]
    options: dict[str, Any] = {"policy": "mlp", "policy_kwargs": {"hidden": (8, 8)}, "wrappers": calls}
    made = Job(env="CartPole-v1", episodes=1, env_kwargs={"deep": [{"size": (1, (2,))}]}, **options)
    assert made.env_kwargs == {"deep": [{"size": [1, [2]]}]}
    assert made.policy_kwargs == {"hidden": [8, 8]}
    assert (made.wrappers[0].kwargs, made.wrappers[1]) == ({"shape": [2, 2]}, "FlattenObservation")  # type: ignore[union-attr]
    assert calls[0]["kwargs"] == {"shape": (2, 2)}  # type: ignore[index]
    (tmp_path / "a.json").write_bytes(msgspec.json.encode(made))
    assert load_job(tmp_path / "a.json") == made


def test_settings_take_the_place_of_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(TOML)
    load = lambda *settings: load_job(tmp_path / "a.toml", settings)  # noqa: E731
    found = load("steps=1e3", "env_kwargs.sutton_barto_reward=false", "num_envs=1,000", "policy=mlp", "checkpoint=NaN")
    assert (found.steps, found.episodes, found.num_envs, found.policy) == (1000, None, 1000, "mlp")
    assert (found.env_kwargs, found.checkpoint) == ({"sutton_barto_reward": False}, "NaN")
    for text, steps in (("1e3", 1000), ("2.0", 2), ("1,000", 1000), ("9007199254740993", 2**53 + 1)):
        assert load(f"steps={text}").steps == steps
        assert type(load(f"steps={text}").steps) is int
    assert load("ray.memory=4e9").ray.memory == job(ray={"memory": 4e9}).ray.memory == 4 * 10**9


def policy(obs: Any) -> Any:
    return np.zeros(len(obs["step_count"]), int)


def test_classes_and_functions_are_named(tmp_path: Path) -> None:
    made = Job(env=Steps, policy=policy, wrappers=FlattenObservation, transforms=[StepCounter], episodes=3.0)  # type: ignore[arg-type]
    assert (made.env, made.policy, made.episodes) == (f"{Steps.__module__}:Steps", f"{__name__}:policy", 3)
    assert made.wrappers == ("gymnasium.wrappers:FlattenObservation",)
    assert made.transforms == ("vecenv.transforms:StepCounter",)
    state = run_job(msgspec.structs.replace(made, backend="dummy", num_envs=1), tmp_path)
    assert repr(state).startswith(f"JobState({Steps.__module__}:Steps in {tmp_path}, complete: 3 episodes, 3 steps, ")
    assert repr(state).endswith(" steps/s, mean return 1.0 ± 0.0, 0 skipped)")


def test_what_a_program_defines_itself_works_in_workers_and_only_there(tmp_path: Path) -> None:
    code = f"""
import gymnasium
from collector import Job, run_job

class Cell(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 9, (1,)), gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None): return self.observation_space.sample(), {{}}
    def step(self, action): return self.observation_space.sample(), 1.0, True, False, {{}}

if __name__ == "__main__":
    job = Job(env=Cell, backend="shmem", num_envs=2, episodes=3)
    for _ in range(2):
        print(run_job(job, {str(tmp_path / "a")!r}, resume=True).status)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "complete\ncomplete\n"
    assert done.stderr.count("the job names __main__:Cell, which only this script can import") == 1
    found = command("resume", tmp_path / "a", "--no-plot")
    assert found.code == 2
    assert "names __main__:Cell, which the script that began the job defines: only this" in found.error
