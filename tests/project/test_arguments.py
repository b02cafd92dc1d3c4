"""Every public argument that is a number or a dict refuses values that are not usable, before anything starts."""

import functools
import inspect
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import collector
import vecenv
import vecenv.transforms

ENV_FNS = [functools.partial(gym.make, "CartPole-v1")] * 2
PACKAGES = vecenv, vecenv.transforms, collector

# Arguments beside the tested one, per class or function.
OTHERS: dict[str, dict[str, Any]] = {
    "CatFrames": {"N": 2, "dim": -1},
    "CatTensors": {"in_keys": ["a"]},
    "CenterCrop": {"height": 4},
    "Dataset": {"folder": "missing"},
    "GymEnv": {"env_name": "CartPole-v1", "from_pixels": True},
    "GymnasiumVectorEnv": {"venv": None},
    "MLPPolicy": {"observation_space": gym.spaces.Discrete(2), "action_space": gym.spaces.Discrete(2)},
    "MultiStep": {"n": 2, "gamma": 0.9},
    "MultiThreadedEnv": {"num_workers": 2, "env_name": "CartPole-v1"},
    "RayCollector": {"make_venv": ENV_FNS[0], "num_actors": 2, "frames_per_batch": 8, "total_frames": 8},
    "RecordEpisodes": {"venv": None, "folder": "missing"},
    "Resize": {"height": 4},
    "RewardScaling": {"loc": 0.0, "scale": 1.0},
    "SqueezeTransform": {"dim": 0},
    "StoreWriter": {"folder": "missing"},
    "TimeLimit": {"max_episode_steps": 4},
    "UnsqueezeTransform": {"dim": 0},
    "action_seed": {"job_seed": 0, "number": 0},
    "episode_seed": {"job_seed": 0, "number": 0},
    "make_vec": {"id": "CartPole-v1"},
    "rollout": {"venv_or_env": None, "max_steps": 8},
    "tune": {"env_fns": ENV_FNS},
}
OTHERS |= {name: {"num_workers": 2, "create_env_fn": ENV_FNS[0]} for name in ("SerialEnv", "ParallelEnv")}
OF_COLLECTORS = {"create_env_fn": ENV_FNS, "frames_per_batch": 8, "total_frames": 8}
# Values of these may be below zero, or the text has another name for the argument.
ANY_SIGN = {"dim", "low", "high", "clamp_min", "clamp_max", "loc", "scale", "padding_value", "number"}
ANY_SIGN |= {"total_frames", "max_frames_per_traj", "init_random_frames"}  # as in TorchRL, -1 is no limit
# The arguments of these come from vecenv, or their values are checked elsewhere.
RESULTS = {"ClusterStats", "CollectStats", "CollectorStats", "Episode", "JobState", "SequenceSummaryStats"}
RESULTS |= {"TuneResult", "TuneRow"}
CHECKED_ELSEWHERE = {"Job", "run_job", "resume_job", "DMControlEnv"}


def takes_arguments(each: Any) -> bool:
    is_class = isinstance(each, type) and not issubclass(each, BaseException)
    return is_class or inspect.isfunction(each)


def arguments(*annotations: str) -> list[Any]:
    """Return the public classes and functions, and their parameters with one of the annotations."""
    named = {name: getattr(package, name) for package in PACKAGES for name in package.__all__}
    return [
        pytest.param(each, parameter.name, id=f"{name}-{parameter.name}")
        for name, each in named.items()
        if name not in RESULTS | CHECKED_ELSEWHERE and takes_arguments(each)
        for parameter in inspect.signature(each).parameters.values()
        if str(parameter.annotation) in annotations
    ]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the test in an empty folder, and check that refused calls leave it empty."""
    monkeypatch.chdir(tmp_path)
    yield
    assert list(tmp_path.iterdir()) == []


def check_refusals(made: Callable[..., Any], argument: str, values: list[Any]) -> None:
    others = OTHERS.get(made.__name__, {})
    if made.__name__.endswith(("VectorEnv", "Collector")) and not others:
        others = {"env_fns": ENV_FNS} if made.__module__.startswith("vecenv") else OF_COLLECTORS
    if made is vecenv.BaseVectorEnv:
        made = vecenv.ShmemVectorEnv
    with vecenv.DummyVectorEnv(ENV_FNS) as venv:
        given = {name: venv if each is None else each for name, each in others.items()}
        for value in values:
            with pytest.raises((TypeError, ValueError), match=rf"\b{argument.removeprefix('job_')}\b"):
                made(**given | {argument: value})


@pytest.mark.parametrize(("made", "argument"), arguments("int", "int | None", "float", "float | None"))
def test_a_number_that_cannot_be_used_is_refused_and_named(made: Callable[..., Any], argument: str) -> None:
    is_finite = argument != "padding_value"
    values = ["3", 1.5j, np.array([2, 3])] + [math.nan] * is_finite + [-3] * (argument not in ANY_SIGN)
    check_refusals(made, argument, values)


@pytest.mark.parametrize(
    ("made", "argument"), arguments("dict[str, Any] | None", "Mapping[str, Any] | None", "Mapping[str, float] | None")
)
def test_a_mapping_of_another_type_is_refused_and_named(made: Callable[..., Any], argument: str) -> None:
    check_refusals(made, argument, ["width", 3, [1]])
