"""SB3, the advantages of CleanRL and the examples learn at a time limit what the page "Time limits" says."""

import pytest

from tests.support.paths import ROOT

pytest.importorskip("torch")

from benchmarks.time_limits.__main__ import ROWS, main
from benchmarks.time_limits.cut_env import MOST, RIGHT

PAGE = (ROOT / "docs/explanation/time-limits.md").read_text("utf-8")


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param("ppo", marks=pytest.mark.full)]
    + [pytest.param(name, marks=pytest.mark.slow) for name in ("a2c", "dqn", "sac")],
)
def test_sb3_learns_the_same_over_both(algorithm):
    pytest.importorskip("stable_baselines3")
    from benchmarks.time_limits import sb3

    learn = getattr(sb3, algorithm)
    truncated, terminated = learn("truncated", ours=True), learn("terminated", ours=True)
    assert truncated == pytest.approx(RIGHT, abs=0.1)
    # The loss of DQN is smooth L1.
    assert (7 < terminated < 9) if algorithm == "dqn" else (terminated < MOST)
    assert (truncated, terminated) == (learn("truncated", ours=False), learn("terminated", ours=False))


@pytest.mark.full
def test_cleanrls_loop_takes_a_time_limit_for_an_end_over_both(capsys):
    assert main(["CleanRL"]) == 0
    *own, ours, ours_term = capsys.readouterr().out.splitlines()[-1].split()[-4:]
    assert own == [ours, ours_term]
    assert ours == ours_term
    assert float(ours) < MOST


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["ppo_cleanrl", "collect", "tianshou_dqn"])
def test_examples_learn_the_value_behind_a_time_limit(recipe):
    from benchmarks.time_limits import recipes

    assert getattr(recipes, recipe)("truncated") == pytest.approx(RIGHT, abs=0.2)


@pytest.mark.full
def test_the_advantages_of_the_example_end_with_a_termination():
    from benchmarks.time_limits import recipes

    assert 2 < recipes.ppo_cleanrl("terminated") < MOST


def test_the_page_has_the_rows_of_the_benchmark():
    for row in ROWS:
        name, _, detail = row.trainer.partition(", ")
        assert name in PAGE, row
        assert detail in PAGE, row
