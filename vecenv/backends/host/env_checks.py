"""Checks of an env's interface. Each error says what was found, and what to write."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from vecenv.backends.host.env_access import is_coroutine_env, is_env
from vecenv.errors import EnvContractError

WRAPPERS = "docs/guides/troubleshooting.md (Envs with another interface) has wrappers"
_REFUSED = re.compile(r"reset\(\) got an unexpected keyword argument '(seed|options)'")


def check_env(env: Any, origin: str) -> None:
    if isinstance(env, type):
        raise TypeError(f"{origin} returned the class {env.__name__}, expected an env; use lambda: {env.__name__}()")
    if isinstance(env, gymnasium.vector.VectorEnv) or getattr(type(env), "has_many_envs", False):
        raise TypeError(f"{origin} returned the vector env {env!r}, expected one env; use lambda: gym.make(...)")
    if not is_env(env):
        raise TypeError(f"{origin} returned {env!r}, expected an env with step and reset")


def check_single_agent(env: Any, origin: str) -> None:
    """Raise TypeError for a PettingZoo env, which has spaces per agent."""
    if not (callable(getattr(env, "observation_space", None)) and callable(getattr(env, "action_space", None))):
        return
    if callable(getattr(env, "last", None)):
        kind = "an AECEnv of PettingZoo: use AECVectorEnv(env_fns), or let each function return PettingZooEnv(env)"
    else:
        kind = "a ParallelEnv of PettingZoo: use ParallelVectorEnv(env_fns), and flatten_agents for a row per agent"
    raise TypeError(f"{origin} returned {env!r}, {kind}")


def check_coroutines(env: Any, origin: str, allowed: bool = False) -> bool:
    """Return True for a coroutine env. Raise TypeError if it is not `allowed`, or if a wrapper does not await it."""
    layer = env
    while isinstance(layer, gymnasium.Wrapper) and not is_coroutine_env(layer):
        # A wrapper of the user may run the coroutines in a loop of its own.
        if is_coroutine_env(layer.env) and type(layer).step.__module__.startswith(("gymnasium.", "vecenv.")):
            raise TypeError(
                f"{origin} returned {env!r}, but the wrapper {type(layer).__name__} does not await the reset and step "
                "of a coroutine env. Return the env without the wrapper (gymnasium.make adds some, unless the env is "
                "registered with disable_env_checker=True and order_enforce=False). Or subclass gymnasium.Wrapper with "
                "reset and step as `async def`, which await self.env.reset and self.env.step. For transforms, wrap the "
                "vector env in TransformedVectorEnv"
            )
        layer = layer.env
    found = is_coroutine_env(env)
    if found and not allowed:
        raise TypeError(
            f"{origin} returned {env!r}, whose reset and step are coroutine functions (async def): use "
            "ThreadVectorEnv, or backend='thread' in collectors, which run such envs in an event loop"
        )
    return found


def check_spaces(report: Any, origin: str) -> None:
    """Raise TypeError for spaces of another package, for example of `gym`."""
    for name in ("observation_space", "action_space"):
        space = getattr(report, name)
        if not isinstance(space, gymnasium.Space):
            raise TypeError(
                f"{origin} returned an env whose {name} is a {type(space).__module__}.{type(space).__qualname__}, "
                "expected a space of gymnasium. For an env of the package gym 0.26, write: import shimmy; "
                f"gymnasium.make('GymV26Environment-v0', env=env). {WRAPPERS} for other envs"
            )


def check_distinct(envs: Sequence[Any]) -> None:
    seen: dict[int, int] = {}
    for i, env in enumerate(envs):
        inner = getattr(env, "unwrapped", None)
        first = seen.setdefault(id(env if inner is None else inner), i)
        if first != i:
            raise ValueError(
                f"env_fns[{first}] and env_fns[{i}] returned the same env object; each must make a new one: "
                "lambda: gym.make(...), not lambda: env"
            )


def step_result(result: Any) -> tuple[Any, ...]:
    if isinstance(result, (tuple, list)) and len(result) == 5:
        return tuple(result)
    text = f"step() returned {_got(result)}, expected 5: (obs, reward, terminated, truncated, info)"
    if isinstance(result, (tuple, list)) and len(result) == 4:
        text += (
            "; the env has the interface of the old Gym. Write (with pip install gym shimmy): import shimmy; "
            f"gymnasium.make('GymV21Environment-v0', env=env). {WRAPPERS} that need no package"
        )
    raise EnvContractError(text)


def reset_result(result: Any) -> tuple[Any, Any]:
    if isinstance(result, (tuple, list)) and len(result) == 2:
        if isinstance(result[1], Mapping):
            return result[0], result[1]
        got = f"2 values, the second a {type(result[1]).__name__}"
    else:
        got = _got(result)
    raise EnvContractError(
        f"reset() returned {got}, expected 2: (obs, info) with a dict as info; return (obs, {{}}). {WRAPPERS} for an "
        "env that you cannot change"
    )


def _got(result: Any) -> str:
    return f"{len(result)} values" if isinstance(result, (tuple, list)) else f"a {type(result).__name__}"


def explained(error: BaseException, op: str) -> BaseException:
    """Return an EnvContractError if `reset` takes no `seed` or `options`, else the error itself."""
    refused = _REFUSED.search(str(error)) if op == "reset" and isinstance(error, TypeError) else None
    if refused is None:
        return error
    explanation = EnvContractError(
        f"reset() takes no {refused[1]} ({error}), expected reset(*, seed=None, options=None). {WRAPPERS} for an env "
        "that you cannot change"
    )
    explanation.__cause__ = error
    return explanation
