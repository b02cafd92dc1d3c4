"""Checks and conversions of arguments."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import math
import operator
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import find_highest_version, parse_env_id

from vecenv.nest import tensor_on_host


def check_env_fns(env_fns: Any) -> list[Callable[[], Any]]:
    """Return `env_fns` as a list of callables. An env id (a string) becomes a call of `gymnasium.make`.

    Raises TypeError for other types, ValueError for an empty sequence, and gymnasium's error for an unknown id.
    """
    if callable(env_fns) or not hasattr(env_fns, "__iter__") or isinstance(env_fns, (str, bytes, dict)):
        one = repr(env_fns) if isinstance(env_fns, str) else "env_fn"
        raise TypeError(
            f"env_fns must be a sequence of callables, one per env, got {env_fns!r}; for n equal envs pass [{one}] * n"
        )
    fns = list(env_fns)
    if not fns:
        raise ValueError("env_fns is empty; pass at least one callable")
    for i, env_fn in enumerate(fns):
        if isinstance(env_fn, str):
            fns[i] = _env_fn_of_id(env_fn)
        elif not callable(env_fn):
            kind = "an Env instance" if hasattr(env_fn, "step") else f"of type {type(env_fn).__name__}"
            raise TypeError(f"env_fns[{i}] is {kind}, not a function that makes an env; use lambda: gym.make(...)")
    return fns


def _env_fn_of_id(env_id: str) -> Callable[[], Any]:
    # The env's process imports the module of "module:id", so the id is checked there.
    if ":" not in env_id and env_id not in gymnasium.registry:
        namespace, name, version = parse_env_id(env_id)
        if version is not None or find_highest_version(namespace, name) is None:
            gymnasium.spec(env_id)  # raises an error that suggests an id
    return partial(gymnasium.make, env_id)


class NamedEnv:
    """Env function for a worker command, by name: "module:function" or a gymnasium id, and keyword arguments."""

    def __init__(self, name: str, kwargs: Mapping[str, Any]) -> None:
        self.name, self.kwargs = name, dict(kwargs)

    def __call__(self) -> Any:
        from vecenv.worker_numpy import make_env  # slow to import

        return make_env(self.name, self.kwargs)


def named_env_fns(env_fns: Any) -> Any:
    """Return `env_fns` with a `NamedEnv` for each entry. Raise TypeError for functions, which a command cannot get."""
    if not isinstance(env_fns, (list, tuple)):
        return env_fns  # refused by `check_env_fns`
    return [_named(i, each) for i, each in enumerate(env_fns)]


def _named(i: int, entry: Any) -> NamedEnv:
    if isinstance(entry, NamedEnv):
        return entry
    name, kwargs = entry if isinstance(entry, (tuple, list)) and len(entry) == 2 else (entry, {})
    if isinstance(name, str) and isinstance(kwargs, Mapping):
        return NamedEnv(name, kwargs)
    written = str(getattr(entry, "__module__", None)), str(getattr(entry, "__qualname__", "<"))
    example = "my_envs:make" if "<" in written[1] else ":".join(written)
    raise TypeError(
        f"env_fns[{i}] is {entry!r}. A worker_command gets env functions by name, because it may run another Python. "
        f'Write "{example}" (module:function), a gymnasium id, or ("{example}", {{...}}) with keyword arguments'
    )


def check_python(what: str) -> None:
    if sys.version_info < (3, 11):  # noqa: UP036
        raise RuntimeError(f"{what} need Python 3.11 or newer; Python 3.10 is for the workers of a worker_command")


def check_command(command: Any) -> list[str]:
    """Return `command` as a list. Raise TypeError unless it is a list of one or more texts."""
    check_python("vector envs with a worker_command")
    if isinstance(command, str) or not isinstance(command, Sequence) or not command:
        raise TypeError(f"worker_command must be a list of words, got {command!r}; shlex.split makes a list of a text")
    if wrong := [word for word in command if not isinstance(word, str)]:
        raise TypeError(f"worker_command must be a list of texts, got {wrong[0]!r}")
    return list(command)


def resolve_env_fns(env_fns: Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
    """Replace each function `fn` that has `for_env` (an `EnvCreator`) by `fn.for_env(i, n)`."""
    n = len(env_fns)
    return [fn.for_env(i, n) if hasattr(fn, "for_env") else fn for i, fn in enumerate(env_fns)]


def unshared_env_fns(env_fns: Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
    """Return functions that make envs without shared state, for measurements."""
    return [fn.unshared() if hasattr(fn, "unshared") else fn for fn in resolve_env_fns(env_fns)]


def check_count(name: str, value: Any, most: int | None = None, least: int = 1) -> int:
    """Return `value` as an int. Raise TypeError if it is not an integer, ValueError outside of `least` to `most`."""
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_integer or value < least or (most is not None and value > most):
        expected = f"of at least {least}" if most is None else f"in [{least}, {most}]"
        raise (ValueError if is_integer else TypeError)(f"{name} must be an integer {expected}, got {value!r}")
    return int(value)


def whole(name: str, number: Any) -> int:
    """Return `number`, which may be a whole float such as 1e6, as an int. Raise TypeError for other values."""
    if isinstance(number, float) and number.is_integer():
        return int(number)
    try:
        if isinstance(number, bool):
            raise TypeError
        return operator.index(number)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {number!r}") from None


def at_least_one(name: str, number: Any) -> int:
    """Return `number` as an int. Raise TypeError if it is not whole, ValueError below 1."""
    return check_count(name, whole(name, number))


def check_number(
    name: str, value: Any, least: float | None = None, above: float | None = None, infinite: bool = False
) -> float:
    """Return `value` as a float. Raise TypeError if it is not a real number, ValueError if it is outside the bounds.

    NaN is always refused, and infinity is refused unless `infinite`.
    """
    bound = "" if least is None and above is None else f" of at least {least}" if above is None else f" above {above}"
    expected = f"{name} must be a {'' if infinite else 'finite '}number{bound}, got {value!r}"
    try:
        if isinstance(value, (bool, np.bool_, str, bytes)) or np.ndim(value):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(expected) from None
    except OverflowError:  # an int too large for a float
        number = math.inf
    is_low = (least is not None and number < least) or (above is not None and number <= above)
    if math.isnan(number) or (math.isinf(number) and not infinite) or is_low:
        raise ValueError(expected)
    return number


def check_mapping(name: str, value: Any) -> dict[str, Any]:
    """Return `value` as a new dict, empty for None. Raise TypeError for other types."""
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a dict, got {value!r}")
    return dict(value or {})


def check_resources(num_cpus: Any, num_gpus: Any, resources: Any, runtime_env: Any) -> None:
    """Raise TypeError or ValueError unless these are arguments with which Ray can start an actor."""
    check_mapping("runtime_env", runtime_env)
    for name, amount in {"num_cpus": num_cpus, "num_gpus": num_gpus}.items():
        check_number(name, amount, least=0)
    for name, amount in check_mapping("resources", resources).items():
        check_number(f"resources[{name!r}]", amount, least=0)


MEMORY_UNITS = {f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)}
MEMORY_UNITS |= {f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)}


def as_recycle_after(value: Any) -> tuple[str, Any]:
    """Return "episodes" and a number, "memory" and bytes, "function" and the function, or two empty strings for None.

    Raises TypeError for other types, and ValueError for a number below 1 and for a size without a unit.

    >>> as_recycle_after("1.5 GiB")
    ('memory', 1610612736.0)
    """
    wrong = (
        "recycle_after must be a number of episodes per env (recycle_after=1000), the memory of a worker with its unit "
        f'(recycle_after="2 GiB"), or a function that takes a worker and returns a bool, got {value!r}'
    )
    if value is None:
        return "", ""
    if callable(value):
        return "function", value
    if isinstance(value, str):
        number, unit = re.fullmatch(r"\s*([\d.]*)\s*(.*?)\s*", value).groups()  # type: ignore[union-attr]
        with contextlib.suppress(ValueError, KeyError):
            if (size := float(number) * MEMORY_UNITS[unit.lower()]) > 0:
                return "memory", size
        raise ValueError(wrong)
    try:
        return "episodes", at_least_one("recycle_after", value)
    except (TypeError, ValueError) as error:
        raise type(error)(wrong) from None


def check_timeout(timeout: Any, name: str = "timeout") -> float | None:
    """Return `timeout` as a float or None. Raise ValueError unless it is positive and finite."""
    if timeout is None:
        return None
    with contextlib.suppress(TypeError, ValueError):
        return check_number(name, timeout, above=0)
    raise ValueError(f"{name} must be a positive number of seconds or None, got {timeout!r}")


def check_spaces_equal(reports: Sequence[Any]) -> None:
    for name in ("observation_space", "action_space"):
        found: list[tuple[Any, list[int]]] = []
        for i, report in enumerate(reports):
            space = getattr(report, name)
            ids = next((ids for other, ids in found if space == other), None)
            if ids is None:
                found.append((space, ids := []))
            ids.append(i)
        if len(found) > 1:
            listed = "; ".join(f"envs {ids}: {space}" for space, ids in found)
            raise ValueError(f"the envs differ in their {name}: {listed}")


def as_ids(id: Any, n: int) -> np.ndarray:
    """Return `id` (an int, a sequence or array of ints, or a bool mask) as a new 1-D int64 array.

    Raises IndexError for an id out of range, ValueError for no ids, repeated ids or a mask of the wrong shape, and
    TypeError for other types.
    """
    try:
        array = np.asarray(id)
    except ValueError:
        raise TypeError(f"env ids must be integers, got {id!r}") from None
    if array.dtype.kind == "b":
        if array.shape != (n,):
            raise ValueError(f"a bool mask of env ids must have the shape ({n},), got {array.shape}")
        array = array.nonzero()[0]
    elif array.size and array.dtype.kind not in "iu":
        raise TypeError(f"env ids must be integers, got {id!r}")
    rows = array.reshape(-1).tolist()  # a list, because Python is faster than numpy for few ids
    if not rows:
        raise ValueError("no env ids given; pass at least one, or None for all")
    if min(rows) < 0 or max(rows) >= n:
        wrong = next(i for i in rows if not 0 <= i < n)
        raise IndexError(f"env id {wrong} is out of range for {n} envs (0 to {n - 1})")
    if len(set(rows)) < len(rows):
        raise ValueError(f"env id {next(i for i in rows if rows.count(i) > 1)} is given twice")
    return array.reshape(-1).astype(np.int64)


def reset_arguments(asked: Sequence[int], kwargs: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the reset arguments by env id. Lists of seeds or options follow the order of `asked`."""
    options = kwargs.get("options")
    if isinstance(options, (list, tuple)):
        if len(options) != len(asked):
            raise ValueError(f"got {len(options)} options for {len(asked)} envs {list(asked)}; pass one dict per env")
        rest = reset_arguments(asked, {name: value for name, value in kwargs.items() if name != "options"})
        return {i: {**rest[i], "options": each} for i, each in zip(asked, options, strict=True)}
    if "seed" not in kwargs:
        return dict.fromkeys(asked, kwargs)
    seeds = spread_seeds(kwargs["seed"], asked)
    return {i: {**kwargs, "seed": seed} for i, seed in zip(asked, seeds, strict=True)}


def reset_rows(ids: np.ndarray | None, reset: Any, n: int) -> tuple[np.ndarray, list[int]]:
    """Return the envs to reset: as a bool mask over `ids` (`None`: all), and as ids in the order of `reset`."""
    try:
        mask = np.asarray(reset)
    except ValueError:
        raise TypeError(f"reset= must be ids or a mask, got {reset!r}") from None
    if mask.dtype == np.bool_ and mask.shape == (n,):
        chosen = mask.nonzero()[0]
        if ids is None:
            return mask, chosen.tolist()
    else:
        chosen = as_ids(reset, n) if mask.size else mask
    if chosen.size == 0:
        return np.zeros(n if ids is None else len(ids), dtype=np.bool_), []
    asked = np.arange(n) if ids is None else ids
    is_chosen = np.zeros(n, dtype=np.bool_)
    is_chosen[chosen] = True
    rows = is_chosen[asked]
    if rows.sum() != len(chosen):
        raise ValueError(f"reset={chosen.tolist()} must be among the envs of this call, {asked.tolist()}")
    return rows, chosen.tolist()


def as_autoreset(autoreset: Any, k: int) -> bool | np.ndarray:
    """Return `autoreset` for `k` envs as a bool, or as an int64 array of k seeds (-1: no seed).

    Raises TypeError for other types, and ValueError for a wrong seed or number of seeds.
    """
    if autoreset is None or isinstance(autoreset, (bool, np.bool_)):
        return bool(autoreset)
    value = tensor_on_host(autoreset)
    if isinstance(value, np.ndarray):
        if value.dtype == np.int64 and value.shape == (k,) and value.min() >= -1:
            return value
        value = value.tolist()
        if isinstance(value, bool):
            return value
    if not isinstance(value, SEED_LISTS):
        raise TypeError(
            f"autoreset must be True, False, or one seed per env that steps (-1: no seed), got {autoreset!r}"
        )
    seeds = [-1 if seed is None or seed == -1 else check_seed(seed) for seed in value]
    if len(seeds) != k:
        raise ValueError(f"got {len(seeds)} seeds in autoreset for {k} envs; pass one per env that steps (-1: no seed)")
    return np.array(seeds, np.int64)


def round_envs(n: int, action: Any, id: Any, kwargs: dict[str, Any]) -> tuple[np.ndarray | None, list[int]]:
    """Return the ids of the envs in a `step` or `send` (`None`: all), and the ids of the envs to reset."""
    reset = tensor_on_host(kwargs.get("reset"))
    if action is None:
        ids = np.zeros(0, np.int64) if reset is None else as_ids(reset, n)
        return ids, ids.tolist()
    id = kwargs.get("env_id") if id is None else id
    asked = None if id is None else as_ids(tensor_on_host(id), n)
    if reset is None:
        return asked, []
    return asked, reset_rows(asked, reset, n)[1]


MAX_SEED = 2**63
SEED_LISTS = (list, tuple, range)


def check_seed(seed: Any) -> int:
    """Return `seed` as an int. Raise ValueError unless it is an integer (not a bool) from 0 to 2**63 - 1."""
    if isinstance(seed, (bool, np.bool_)) or not isinstance(seed, (int, np.integer)):
        raise ValueError(f"a seed must be a non-negative integer, got {seed!r} of type {type(seed).__name__}")
    if not 0 <= int(seed) < MAX_SEED:
        raise ValueError(f"a seed must be at least 0 and below 2**63, got {seed}")
    return int(seed)


def spread_seeds(seed: Any, env_ids: Iterable[int]) -> list[int | None]:
    """Return a seed per env: for an int s, env i gets s + i. None means no seed.

    Raises ValueError for a wrong seed or number of seeds.

    >>> spread_seeds(7, [0, 1, 3])
    [7, 8, 10]
    """
    ids = list(env_ids)
    if seed is None:
        return [None] * len(ids)
    if isinstance(seed := tensor_on_host(seed), np.ndarray):
        seed = seed.tolist()
    if not isinstance(seed, SEED_LISTS):
        first = check_seed(seed)
        return [check_seed(first + i) for i in ids]
    seeds = [None if s is None else check_seed(s) for s in seed]
    if len(seeds) != len(ids):
        raise ValueError(f"got {len(seeds)} seeds for {len(ids)} envs {ids}; pass one seed per env, or a single int")
    return seeds


def next_seed(seed: int) -> int:
    """Return the seed that follows `seed` in torchrl's `set_seed`: a number from 0 to 2**32 - 2.

    >>> next_seed(0)
    795726461
    """
    return int.from_bytes(np.random.default_rng(seed).bytes(8), "big") % (2**32 - 1)


def seed_chain(seed: int, n: int) -> list[int]:
    """Return `seed` and its n successors: a seed for each of n envs, and the seed for the next call."""
    chain = [check_seed(seed)]
    for _ in range(n):
        chain.append(next_seed(chain[-1]))
    return chain


KEYWORD_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


NEEDS_WORKERS = '; it needs workers: use ShmemVectorEnv (backend="shmem")'
OF_WORKERS = dict.fromkeys(("start_timeout", "step_timeout", "context", "affinity", "release_openmp"), NEEDS_WORKERS)
OF_WORKERS["worker_command"] = "; only SubprocVectorEnv starts its workers by a command"
OF_WORKERS["spare_envs"] = '; it needs worker processes: use ShmemVectorEnv (backend="shmem")'
OF_WORKERS["recycle_after"] = (
    "; memory that an env leaks is only free after the end of its process, so this needs worker processes: use "
    'ShmemVectorEnv (backend="shmem")'
)


def check_options(user: type[Any], options: Iterable[str], *takers: type[Any], hidden: Iterable[str] = ()) -> None:
    """Raise TypeError for an option that is in `hidden`, or that no class of `takers` (default: `user`) accepts."""
    known = sorted(_argument_names(takers or (user,)) - set(hidden))
    for name in options:
        if name not in known:
            close = _closest(name, known)
            meant = f"; it has {', '.join(known)}" if close is None else f"; did you mean {close!r}?"
            raise TypeError(f"{user.__name__} has no argument {name!r}{OF_WORKERS.get(name, meant)}")


def option_meant(name: str, *takers: type[Any]) -> str | None:
    """Return the constructor argument that is most like `name`, or `None`."""
    return _closest(name, sorted(_argument_names(takers)))


def _closest(name: str, known: Sequence[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.75)), None)


def _argument_names(takers: Sequence[type[Any]]) -> set[str]:
    found = set()
    for cls in {base for taker in takers for base in taker.__mro__ if "__init__" in vars(base) and base is not object}:
        for parameter in inspect.signature(vars(cls)["__init__"]).parameters.values():
            if parameter.kind in KEYWORD_KINDS:
                found.add(parameter.name)
    return found - {"self"}
