"""Command line `python -m vecenv tune CartPole-v1 --num-envs 8`: measures which vector env is the fastest."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium

from vecenv.envs.gym_env import find_spec
from vecenv.errors import VectorEnvError
from vecenv.tuning.tune import tune


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: `sys.argv[1:]`), and return 0.

    Raises SystemExit with code 1 if the envs cannot be measured, and 2 for wrong arguments or an unknown env.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    if options.num_envs < 1:
        parser.error(f"--num-envs must be at least 1, got {options.num_envs}")
    try:
        make = _env_fn(options.env, options.env_kwargs)
        env_fns = [make] * options.num_envs
        result = tune(env_fns, pause=options.policy_ms / 1e3, seconds=options.seconds)
    except (ValueError, gymnasium.error.Error) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    except VectorEnvError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    kwargs = f", venv_kwargs={result.kwargs}" if result.kwargs else ""
    kwargs += "".join(f", {name}={value!r}" for name, value in options.env_kwargs.items())
    line = f'vecenv.make_vec("{options.env}", {options.num_envs}, backend="{result.best.backend}"{kwargs})'
    if _is_function(options.env):
        sys.stdout.write(f"{result}\n")
        return 0
    sys.stdout.write(f"{result}\n   or: envs = {line}  # as a gymnasium vector env\n")
    return 0


def _is_function(env: str) -> bool:
    """Return True for "module:function", and False for "module:MyEnv-v0"."""
    return ":" in env and env.rpartition(":")[2].isidentifier()


def _env_fn(env: str, kwargs: dict[str, Any]) -> Callable[[], Any]:
    if _is_function(env):
        module, _, name = env.rpartition(":")
        sys.path.insert(0, "")
        try:
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"there is no function {env}: {error}") from None
        if not callable(function):
            raise ValueError(f"{env} is not a function but {function!r}; name a function or class that makes an env")
        return partial(function, **kwargs)
    if ":" not in env:  # the id in "module:id" exists only after `gymnasium.make` has imported the module
        try:
            find_spec(env)
        except gymnasium.error.Error as error:
            raise ValueError(
                f"there is no env {env}: {error} If a package registers this env, pass package:{env}"
            ) from None
    return partial(gymnasium.make, env, **kwargs)


def _kwargs(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"it must be a JSON object: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"it must be a JSON object, got {text}")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m vecenv", description="Tools for vector envs.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    what = "Measure DummyVectorEnv, ShmemVectorEnv and ThreadVectorEnv on an env."
    command = commands.add_parser("tune", help="measure which vector env is the fastest", description=what)
    command.add_argument(
        "env", metavar="ENV_ID", help="gymnasium id or function: CartPole-v1, module:MyEnv-v0, module:function"
    )
    text = 'arguments of the env as JSON, such as \'{"render_mode": "rgb_array"}\''
    command.add_argument("--env-kwargs", type=_kwargs, default={}, metavar="JSON", help=text)
    for name, kind, default, letter, text in (
        ("--num-envs", int, 8, "N", "envs side by side"),
        ("--policy-ms", float, 0.3, "X", "milliseconds that the policy computes in each round"),
        ("--seconds", float, 2.0, "S", "how long to measure"),
    ):
        command.add_argument(name, type=kind, default=default, metavar=letter, help=f"{text} [%(default)s]")
    return parser


if __name__ == "__main__":
    sys.exit(main())
