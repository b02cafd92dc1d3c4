"""`verify --replay` plays stored episodes again, and compares them bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from collector import Dataset, run_job
from tests.support.backends import FULL
from tests.support.command_line import command
from tests.support.job_envs import HERE, change_job, counting, job

DIFFERS = "obs differs from step {} on"
FAILED = "its env failed: OverflowError: the episode with the seed "
DRAWING = {"policy": f"{HERE}:Drawing"}
"""A policy that is not repeatable, so that the stored actions are repeated."""
FAILS = counting(every=1, at="reset")


def replay(folder: Path, count: int) -> dict[str, str]:
    """Return the differences by episode, and check how many episodes were played."""
    done = command("verify", folder, "--replay", count, "--allow-import", HERE, "--json")
    found: dict[str, str] = done.json()["differences"]
    assert (done.code, done.json()["replayed"], done.json()["problems"]) == (bool(found), count, [])
    return found


@pytest.mark.guarantee("G11.10")
def test_a_repeatable_job_is_played_again_with_its_policy(tmp_path: Path) -> None:
    run_job(job(**counting(), episodes=20), tmp_path)
    assert replay(tmp_path, 4) == {}
    change_job(tmp_path, seed=1)
    assert replay(tmp_path, 5) == dict.fromkeys(("0", "5", "10", "14", "19"), DIFFERS.format(0))
    [shard] = tmp_path.glob("shards/*/reward.npy")
    content = bytearray(shard.read_bytes())
    content[200] ^= 1
    shard.write_bytes(content)
    done = command("verify", tmp_path)
    assert (done.code, str(shard.parent) in done.out) == (1, True)


@pytest.mark.guarantee("G11.10")
@FULL
@pytest.mark.parametrize(
    ("env", "policy", "differs"), [("CartPole-v1", "Drawing", 0), ("Forgetful", "Drawing", 7), ("Talk", "answers", 0)]
)
def test_of_other_jobs_the_actions_are_repeated(env: str, policy: str, differs: int, tmp_path: Path) -> None:
    name = env if "-v" in env else f"{HERE}:{env}"
    run_job(job(env=name, policy=f"{HERE}:{policy}", episodes=8), tmp_path)
    assert replay(tmp_path, 8) == {str(n): DIFFERS.format(0) for n in range(8 - differs, 8)}
    done = command("verify", tmp_path, "--replay", 8, "--allow-import", HERE)
    assert "8 episodes in 1 shards: whole" in done.out
    assert f"{8 - differs} of 8 episodes, played again with the stored actions, are the same" in done.out


@pytest.mark.parametrize(
    ("settings", "changed", "text"),
    [
        *((settings, FAILS, FAILED) for settings in ({"on_error": "raise"}, {"max_failed": 0, "retries": 0}, DRAWING)),
        *((settings, counting(), DIFFERS.format(0)) for settings in ({}, DRAWING)),
        (DRAWING, {"env": f"{HERE}:Words", "env_kwargs": {}}, DIFFERS.format(0)),
    ],
    ids=str,
)
def test_an_env_that_has_changed_or_fails_is_reported(
    settings: dict[str, Any], changed: dict[str, Any], text: str, tmp_path: Path
) -> None:
    run_job(job(**settings, episodes=3), tmp_path)
    change_job(tmp_path, **changed)
    found = replay(tmp_path, 3)
    assert list(found) == ["0", "1", "2"]
    assert all(each.startswith((text, "its env failed")) for each in found.values()), found


def test_rows_are_compared_bit_for_bit_in_the_stored_dtype(tmp_path: Path) -> None:
    for settings, stored, now, form, same in (
        ({}, "0.1", "0.1", "float64", True),
        ({}, "0", "-0.0", "float32", False),
        (DRAWING, "0.1", "0.1", "float64", True),
        (DRAWING, "0.1", "0.1", "list", True),
        (DRAWING, "1", "1", "bool", True),
        (DRAWING, "0.1", "0.2", "float32", False),
        (DRAWING, "0", "-0.0", "float32", False),
        (DRAWING, "0", "0", "ragged", False),
        (DRAWING, "0", "0", "text", False),
    ):
        wanted = job(env=f"{HERE}:Shows", env_kwargs={"value": stored}, **settings, episodes=1)
        run_job(wanted, tmp_path, overwrite=True)
        change_job(tmp_path, env_kwargs={"value": now, "form": form})
        assert replay(tmp_path, 1) == ({} if same else {"0": DIFFERS.format(1)}), (settings, now, form)


def test_episodes_are_played_on_the_device_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job ran without a GPU, and is verified on a machine with a GPU."""
    pytest.importorskip("torch")
    run_job(job(policy="mlp", device="cpu", episodes=3), tmp_path)
    monkeypatch.setattr("collector.jobs.replay.device_of_policy", lambda job: "cuda")
    assert replay(tmp_path, 3) == {}
    assert Dataset(tmp_path).head["device"] == "cpu"
