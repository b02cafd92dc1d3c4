"""The settings of a job as flags of the command line: made from `Job`, so that there is one list of them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
import tyro

from collector.job.job import Job

SINGULARS = {"wrappers": ("--wrapper",), "transforms": ("--transform",)}
"""Other names of flags, for one entry."""
PLURALS = {"wrappers", "transforms", "env_kwargs", "policy_kwargs"}
"""Settings that have no simple value: a flag takes JSON."""


def _flag_type(name: str, hint: Any, default: Any) -> Any:
    choices = [each for each in get_args(hint) if isinstance(each, str)]
    shown = "" if default in (None, msgspec.NODEFAULT) or name in PLURALS else f" [{default}]"
    kinds = {str: "TEXT", str | None: "TEXT", bool: "true|false"}
    metavar = "|".join(choices) or ("JSON" if name in PLURALS else kinds.get(hint, "N"))
    return Annotated[
        str | None,
        tyro.conf.arg(
            help=_docs()[name] + shown, metavar=metavar, help_behavior_hint="", aliases=SINGULARS.get(name, ())
        ),
    ]


@cache
def _docs() -> dict[str, str]:
    """The text under each field of `Job`."""
    [body] = (
        node.body for node in ast.parse(textwrap.dedent(inspect.getsource(Job))).body if isinstance(node, ast.ClassDef)
    )
    found: dict[str, str] = {}
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            assert isinstance(text.value, ast.Constant)
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


HINTS = get_type_hints(Job)
DEFAULTS = dict(zip(Job.__struct_fields__[-len(Job.__struct_defaults__) :], Job.__struct_defaults__, strict=True))
JobFlags: Any = msgspec.defstruct(
    "JobFlags",
    [(name, _flag_type(name, HINTS[name], DEFAULTS.get(name)), None) for name in Job.__struct_fields__],
    frozen=True,
    kw_only=True,
)
"""A Struct with the names of `Job`, each a text or None: what was given on the command line."""


def as_settings(flags: Any) -> list[str]:
    """The flags that were given, as `--set` takes them.

    >>> as_settings(JobFlags(num_envs="3"))
    ['num_envs=3']
    """
    given = ((name, getattr(flags, name)) for name in Job.__struct_fields__)
    return [f"{name}={value}" for name, value in given if value is not None]
