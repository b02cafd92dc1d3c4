"""Blocks of `docs/reference/commands.md`, from the code: the arguments of each command, and the keys of a job."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, get_args, get_type_hints

import msgspec
from api_pages import arguments_table, linked, own_doc, plain, sections
from sphinx.application import Sphinx

from collector.jobs.commands import COMMANDS, DEFAULTS, Positional, Running
from collector.jobs.job import Job
from vecenv.__main__ import _parser


def option_row(name: str, parameter: inspect.Parameter, hint: Any, text: str) -> tuple[str, str, str]:
    """A row of a command: the option, its value, and the meaning."""
    positional = any(each is Positional for each in getattr(hint, "__metadata__", ()))
    metavars = [each.metavar for each in getattr(hint, "__metadata__", ()) if getattr(each, "metavar", None)]
    if metavars:
        metavar = metavars[-1]
    else:
        kind = get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
        choices = [each for each in get_args(kind) if isinstance(each, str)]
        metavar = "|".join(choices) or {int: "N", float: "X", bool: ""}.get(kind, "PATH")
    if positional or metavar.startswith("["):
        return metavar.strip("[]") if metavar != "PATH" else name.upper(), "", text
    default = parameter.default
    shown = f"default `{default}`" if isinstance(default, int | float) and not isinstance(default, bool) else ""
    return f"--{name.replace('_', '-')} {metavar}".strip(), shown, text


def command(name: str, function: Callable[..., int]) -> Iterator[str]:
    """The text and the table of a command of `python -m collector`."""
    signature, hints = inspect.signature(function), get_type_hints(function, include_extras=True)
    prose, texts, _ = sections(own_doc(function), tuple(signature.parameters))
    yield from (f"### {name}", "", linked(prose.strip(), name), "")
    rows = []
    for key, parameter in signature.parameters.items():
        if key == "running":
            parameters, more = inspect.signature(Running).parameters, get_type_hints(Running, include_extras=True)
            _, own, _ = sections(own_doc(Running), tuple(parameters))
            rows += [option_row(each, parameters[each], more[each], own[each]) for each in parameters]
        elif key != "flags":
            rows.append(option_row(key, parameter, hints[key], texts[key]))
    if "flags" in signature.parameters:
        rows.append(("--KEY VALUE", "", "Any [key of a job](#keys-of-a-job), as in `--num-envs 16`."))
    yield from arguments_table("Argument", rows)


def vecenv_command(name: str) -> Iterator[str]:
    """The table of a command of `python -m vecenv`."""
    (actions,) = (each for each in _parser()._actions if isinstance(each, argparse._SubParsersAction))
    rows = []
    for action in actions.choices[name]._actions:
        if action.dest != "help":
            option = " ".join([*action.option_strings, *([action.metavar] if action.metavar else [])])
            text = re.sub(r" \[%\(default\)s\]$", "", action.help or "")
            default = "" if action.default is None or action.nargs == 0 else f"default `{action.default}`"
            rows.append((option, default, text))
    yield from arguments_table("Argument", rows)


def job_keys() -> Iterator[str]:
    """The table of the keys of a job."""
    fields = {each.name: each for each in msgspec.structs.fields(Job)}
    _, texts, _ = sections(own_doc(Job), tuple(fields))
    rows = []
    for name in fields:
        default = DEFAULTS[name]
        kind = plain(Job.__annotations__[name])
        shown = "" if default is msgspec.NODEFAULT else f", default `{default!r}`"
        rows.append((name, f"`{kind}`{shown}" if kind else shown, texts[name]))
    yield from arguments_table("Key", rows)


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname == "reference/commands":
        commands = [line for name, function in COMMANDS.items() for line in command(name, function)]
        parts = {"commands": commands, "job-keys": job_keys()}
        parts |= {f"{name}-command": vecenv_command(name) for name in ("tune", "check")}
        for name, lines in parts.items():
            source[0] = source[0].replace(f"```{{{name}}}\n```\n", "\n".join(lines) + "\n")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "version": "1"}
