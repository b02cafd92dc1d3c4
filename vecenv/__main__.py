"""Command line of `python -m vecenv tune CartPole-v1 --num-envs 8`: measure which vector env is the fastest."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

import gymnasium

from vecenv.envs.gym_env import find_spec
from vecenv.errors import VectorEnvError
from vecenv.tuning.tune import tune


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, and return the exit code: 0, or 1 where no candidate could be measured.

    SystemExit with 2 for wrong arguments and for an env that there is not.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    if options.num_envs < 1:
        parser.error(f"--num-envs must be at least 1, got {options.num_envs}")
    try:
        if ":" not in options.env:  # what is behind the name of a module is known once that is imported
            find_spec(options.env)
        env_fns = [partial(gymnasium.make, options.env)] * options.num_envs
        result = tune(env_fns, pause=options.policy_ms / 1e3, seconds=options.seconds)
    except (ValueError, gymnasium.error.Error) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    except VectorEnvError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    kwargs = f", venv_kwargs={result.kwargs}" if result.kwargs else ""
    line = f'vecenv.make_vec("{options.env}", {options.num_envs}, backend="{result.best.backend}"{kwargs})'
    sys.stdout.write(f"{result}\n   or: envs = {line}  # as a gymnasium vector env\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m vecenv", description="Tools for vector envs.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    what = "Measure DummyVectorEnv, ShmemVectorEnv and ThreadVectorEnv on an env."
    command = commands.add_parser("tune", help="measure which vector env is the fastest", description=what)
    command.add_argument("env", metavar="ENV_ID", help="gymnasium id, such as CartPole-v1 or my_module:MyEnv-v0")
    for name, kind, default, letter, text in (
        ("--num-envs", int, 8, "N", "envs side by side"),
        ("--policy-ms", float, 0.3, "X", "milliseconds that the policy computes in each round"),
        ("--seconds", float, 2.0, "S", "how long to measure"),
    ):
        command.add_argument(name, type=kind, default=default, metavar=letter, help=f"{text} [%(default)s]")
    return parser


if __name__ == "__main__":
    sys.exit(main())
