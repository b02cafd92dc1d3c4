"""Command line: `python -m vecenv tune CartPole-v1 --num-envs 8` and `python -m vecenv check CartPole-v1`."""

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
    """Run the command line `argv` (default: `sys.argv[1:]`), and return the exit code.

    The code of `check` is 1 if the env breaks a condition for equal results on every backend, else 0. Raises
    SystemExit with code 1 if `tune` cannot measure the envs, and 2 for wrong arguments or an unknown env.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        make = _env_fn(options.env, options.env_kwargs)
        code: int = options.run(make, options)
    except (ValueError, gymnasium.error.Error) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    except VectorEnvError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    return code


def _tune(make: Callable[[], Any], options: argparse.Namespace) -> int:
    if options.num_envs < 1:
        raise ValueError(f"--num-envs must be at least 1, got {options.num_envs}")
    result = tune([make] * options.num_envs, pause=options.policy_ms / 1e3, seconds=options.seconds)
    kwargs = f", venv_kwargs={result.kwargs}" if result.kwargs else ""
    kwargs += "".join(f", {name}={value!r}" for name, value in options.env_kwargs.items())
    line = f'vecenv.make_vec("{options.env}", {options.num_envs}, backend="{result.best.backend}"{kwargs})'
    sys.stdout.write(f"{result}\n")
    if not _is_function(options.env):
        sys.stdout.write(f"   or: envs = {line}  # as a gymnasium vector env\n")
    return 0


def _check(make: Callable[[], Any], options: argparse.Namespace) -> int:
    from vecenv.testing import check_env  # the other commands do not need it

    result = check_env(make, seed=options.seed, steps=options.steps, timeout=options.timeout)
    rows = [row._asdict() for row in result.rows]
    sys.stdout.write(json.dumps({"ok": result.ok, "rows": rows}, indent=1) if options.json else f"{result}")
    sys.stdout.write("\n")
    return 0 if result.ok else 1


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


Numbers = Sequence[tuple[str, Callable[[str], Any], Any, str, str]]
"""Options with a number: name, type, default, metavar, help."""


def _add_command(commands: Any, run: Callable[..., int], help: str, what: str, numbers: Numbers) -> Any:
    command = commands.add_parser(run.__name__.strip("_"), help=help, description=what)
    command.set_defaults(run=run)
    command.add_argument(
        "env", metavar="ENV_ID", help="gymnasium id or function: CartPole-v1, module:MyEnv-v0, module:function"
    )
    text = 'arguments of the env as JSON, such as \'{"render_mode": "rgb_array"}\''
    command.add_argument("--env-kwargs", type=_kwargs, default={}, metavar="JSON", help=text)
    for name, kind, default, letter, text in numbers:
        command.add_argument(name, type=kind, default=default, metavar=letter, help=f"{text} [%(default)s]")
    return command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m vecenv", description="Tools for vector envs.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    what = "Measure DummyVectorEnv, ShmemVectorEnv and ThreadVectorEnv on an env."
    numbers: Numbers = (
        ("--num-envs", int, 8, "N", "envs side by side"),
        ("--policy-ms", float, 0.3, "X", "milliseconds that the policy computes in each round"),
        ("--seconds", float, 2.0, "S", "how long to measure"),
    )
    _add_command(commands, _tune, "measure which vector env is the fastest", what, numbers)
    what = "Check if an env repeats, is independent of other envs, and what it costs."
    numbers = (
        ("--seed", int, 0, "N", "seed of the first episode"),
        ("--steps", int, 200, "N", "steps of each play"),
        ("--timeout", float, 60.0, "S", "seconds that the env may take for each play"),
    )
    command = _add_command(
        commands, _check, "check if an env meets the conditions for equal results on every backend", what, numbers
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
