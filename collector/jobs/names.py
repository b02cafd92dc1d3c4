"""Resolve the names in a job to objects, from a closed list or from `module:name`.

    kind       listed names                                            code
    env        a registered id without a module: "CartPole-v1"         "module:Id-v0", "module:function"
    wrapper    a class of gymnasium.wrappers: "FlattenObservation"     "module:Class"
    transform  a class of vecenv.transforms: "VecNorm"                 "module:Class"
    policy     "random", "mlp"                                         "module:name"

A job from a file or program may name any code. A stored job may come from a stranger, so `check_names` refuses code
unless the caller trusts its module. Listed classes neither write files, nor call or import their arguments.
"""

from __future__ import annotations

import difflib
import importlib
import re
import shlex
import sys
from collections.abc import Iterable
from contextlib import suppress
from types import FunctionType
from typing import Any, NamedTuple

import gymnasium

from collector.jobs.job import BUILT_IN_POLICIES, Call, Job, JobError
from vecenv.envs.gym_env import find_spec

ATARI_MODULE = "ale_py:"
"""Prefix for the ids "ALE/...", which a job may name without a module."""
ENV_ID = re.compile(r"([\w-]+/)?[\w.-]+", re.ASCII)
ENVS_BY_KWARGS = re.compile(r"GymV2[16]Environment(-v\d+)?")
"""Ids that are never listed, because these envs import and call names in their kwargs."""
CODE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:(?!__)[^\W\d]\w*")
WRAPPERS = frozenset(
    """AddRenderObservation AddWhiteNoise AtariPreprocessing Autoreset ClipAction ClipReward DelayObservation
    DiscretizeAction DiscretizeObservation DtypeObservation FilterObservation FlattenObservation FrameStackObservation
    GrayscaleObservation HumanRendering JaxToNumpy JaxToTorch MaxAndSkipObservation NormalizeObservation NormalizeReward
    NumpyToTorch ObstructView OrderEnforcing PassiveEnvChecker RecordEpisodeStatistics RenderCollection RepeatAction
    RescaleAction RescaleObservation ReshapeObservation ResizeObservation StickyAction TimeAwareObservation
    TimeLimit""".split()  # noqa: SIM905
)
TRANSFORMS = frozenset(
    """ActionScaling CatFrames CatTensors CenterCrop DTypeCast DoubleToFloat Flatten FrameSkip GrayScale NoopReset
    NormalizeReward ObservationNorm PixelObservation RenameTransform Resize RewardClipping RewardScaling RewardSum
    SqueezeTransform StepCounter TimeLimit ToTensorImage UnsqueezeTransform VecNorm""".split()  # noqa: SIM905
)


class NameKind(NamedTuple):
    word: str
    module: str
    names: frozenset[str]


ENV = NameKind("env", "", frozenset())
WRAPPER = NameKind("wrapper", "gymnasium.wrappers", WRAPPERS)
TRANSFORM = NameKind("transform", "vecenv.transforms", TRANSFORMS)
POLICY = NameKind("policy", "", frozenset(BUILT_IN_POLICIES))


def as_call(each: str | Call) -> Call:
    return Call(each) if isinstance(each, str) else each


def is_listed(kind: NameKind, name: str) -> bool:
    """Return whether a name is listed. A class may have its module in front.

    >>> is_listed(ENV, "CartPole-v1"), is_listed(ENV, "this:CartPole-v1")
    (True, False)
    >>> is_listed(WRAPPER, "gymnasium.wrappers:ClipAction"), is_listed(WRAPPER, "RecordVideo")
    (True, False)
    """
    if kind is ENV:
        env_id = name.removeprefix(ATARI_MODULE) if name.startswith(f"{ATARI_MODULE}ALE/") else name
        return bool(ENV_ID.fullmatch(env_id)) and not ENVS_BY_KWARGS.fullmatch(env_id)
    return _bare_name(kind, name) in kind.names


def find_class(kind: NameKind, name: str) -> Any:
    if is_listed(kind, name):
        return load_attr(f"{kind.module}:{_bare_name(kind, name)}")
    if ":" in name:
        return load_attr(name)
    close = difflib.get_close_matches(name, kind.names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "name any other class as module:name"
    raise JobError(f"there is no {kind.word} {name!r} in the list of {kind.module}; {hint}")


def load_attr(name: str) -> Any:
    """Import `module:attr`; attr may have dots. Raises `JobError`."""
    module, _, attr = name.partition(":")
    found = _import(module, name)
    for part in attr.split("."):
        if not hasattr(found, part):
            here = " (__main__ is another program here: put it into a module)"
            raise JobError(
                f"there is no {part!r} in {name.rpartition(part)[0].rstrip('.:')}, which the job names"
                + here * (module == "__main__")
            )
        found = getattr(found, part)
    if not callable(found):
        raise JobError(f"{name} is {found!r}, not a class or function that a job can call")
    return found


def code_names(job: Job) -> list[tuple[NameKind, str]]:
    """Return the names in a job that are not listed: `module:attr`, env ids with a module, and unknown names."""
    calls = [(WRAPPER, each) for each in job.wrappers] + [(TRANSFORM, each) for each in job.transforms]
    names = [
        *([] if job.worker_command else [(ENV, job.env)]),
        *((kind, as_call(each).call) for kind, each in calls),
        (POLICY, job.policy),
    ]
    return [(kind, name) for kind, name in names if not is_listed(kind, name)]


def names_of_script(job: Job) -> list[str]:
    """Return the names in a job that the running script or notebook defines. Other programs cannot import them.

    >>> names_of_script(Job(env="__main__:make_env", episodes=2))
    ['__main__:make_env']
    """
    return [name for _, name in code_names(job) if name.startswith("__main__:")]


def modules_to_allow(job: Job, where: Any) -> list[str] | None:
    """Return the modules that `resume_job` needs in `allow_import`, or None if no modules suffice."""
    names = [name for _, name in code_names(job)]
    modules = {name.partition(":")[0] for name in names}
    for name in names:
        with suppress(JobError):
            modules.add(getattr(load_attr(name), "__module__", name.partition(":")[0]))
    try:
        check_names(job, modules, where)
    except JobError:
        return None
    return sorted(modules)


def check_names(job: Job, allow_import: Iterable[str], where: Any) -> None:
    """Raise `JobError` if the job stored in `where` names code that is neither listed nor trusted.

    A job may name the classes, functions and envs that the modules in `allow_import` define or register. The form and
    module of each name are checked before the first import.
    """
    allowed, named = {*allow_import}, f"the job that is stored in {where} names"
    if job.worker_command:
        raise JobError(
            f"{named} the worker_command {shlex.join(job.worker_command)}, which runs a program. If you have the job "
            f"file, resume with: python -m collector run FILE --out {where} --resume"
        )
    code = code_names(job)
    for kind, name in code:
        module, _, env_id = name.partition(":")
        is_env = kind is ENV and CODE.fullmatch(f"{module}:x") and is_listed(ENV, env_id)
        # Without a version, the id GymV21Environment looks like a class.
        is_by_kwargs = kind is ENV and ENVS_BY_KWARGS.fullmatch(env_id)
        if not (is_env or CODE.fullmatch(name)) or is_by_kwargs:
            known = f"a listed class of {kind.module}" if kind.module else "a listed name"
            raise JobError(
                f"{named} {name!r} as a {kind.word}, which --allow-import cannot allow: it is neither {known}, nor a "
                "class or function of a module (module:name, without dots after the colon). If you have the job file, "
                f"resume with: python -m collector run FILE --out {where} --resume"
            )
    modules = dict.fromkeys(name.partition(":")[0] for _, name in code)
    if "__main__" in modules and "__main__" not in allowed:
        raise JobError(
            f"{named} {', '.join(names_of_script(job))}, which the script that began the job defines: only this script "
            "can use the folder, for example by run_job(job, folder, resume=True)"
        )
    if missing := [module for module in modules if module not in allowed]:
        unknown = ", ".join(repr(name) for _, name in code if name.partition(":")[0] in missing)
        flags = " ".join(f"--allow-import {module}" for module in missing)
        raise JobError(
            f"{named} {unknown}, which is code: if you trust the folder, pass {flags} (in a program: "
            f"allow_import={missing})"
        )
    homes = {name: _defining_module(kind, name, allowed, named) for kind, name in code}
    if elsewhere := {name: home for name, home in homes.items() if home not in allowed}:
        defined = ", ".join(f"{name!r}, which is defined in {home}" for name, home in elsewhere.items())
        flags = " ".join(f"--allow-import {home}" for home in dict.fromkeys(elsewhere.values()))
        raise JobError(f"{named} {defined}: if you trust that module, pass {flags} too")


def _bare_name(kind: NameKind, name: str) -> str:
    return name.removeprefix(f"{kind.module}:") if kind.module else name


def _defining_module(kind: NameKind, name: str, allowed: set[str], named: str) -> str:
    """Import the trusted module of a name. Return the object's module, or for an env id the imported module.

    If the object's `__module__` is another trusted module, that module must have the object.
    """
    module, _, attr = name.partition(":")
    imported = _import(module, name)
    if kind is ENV and not (attr.isidentifier() and hasattr(imported, attr)):
        try:
            find_spec(attr)
        except gymnasium.error.Error as error:
            raise JobError(f"{named} {name!r}, and there is no env {attr} in {module}: {error}") from None
        return module
    found = load_attr(name)
    home: str = getattr(found, "__module__", "")
    is_elsewhere = home != module and home in allowed
    if not isinstance(found, (type, FunctionType)) or (
        is_elsewhere and getattr(sys.modules.get(home), found.__qualname__, None) is not found
    ):
        raise JobError(f"{named} {name!r}, which is {found!r}, not a class or function that a module defines")
    return home


def _import(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except (ImportError, ValueError, TypeError) as error:  # ValueError, TypeError: a malformed name, such as ".x"
        raise JobError(f"{name} cannot be imported: {error}") from None
