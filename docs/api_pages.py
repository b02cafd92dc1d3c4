"""Write the pages of the reference from the code.

A block names public objects. The build puts a table in its place, and writes one page per object into reference/api:

    ```{api} vecenv
    DummyVectorEnv ShmemVectorEnv
    ```

A public name that stands on no page, and a parameter without a description, are warnings, which `make docs` takes for
errors. A description comes from the first of these that has one: the section `Args:` or `Arguments:` of the docstring,
the docstring of the field or property of that name, the same for the class that is inherited from, the sentences of the
docstring that name the parameter in backticks, and `WORDS`.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from api_words import WORDS
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import PycodeError
from sphinx.ext.autodoc.mock import mock
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging

from vecenv import BaseVectorEnv
from vecenv.venvs import SET_BY_SUBCLASS

DOCS = Path(__file__).resolve().parent
MODULES = (
    "vecenv",
    "vecenv.transforms",
    "vecenv.spaces",
    "vecenv.sb3",
    "vecenv.testing",
    "collector",
    "collector.testing",
)
BLOCK = re.compile(r"^```\{api\} (\S+)\n(.*?)^```\n", re.M | re.S)
INDEX = re.compile(r"^```\{api-index\} (\S+)\n```\n", re.M)
SECTION = re.compile(r"^(Args|Arguments[^:]*|Guarantees|Example)::?\n((?:\n|[ ]{4}.*\n)+)", re.M)

OF_ERRORS = re.compile(r"(?:Before any change, )?[Rr]aises |(?:- )?`?[A-Z]\w*Error\b")
"""Begin of a sentence about errors, which is not the meaning of an argument."""

OWN = ("vecenv", "collector")
LINKS = {
    "np.ndarray": "numpy.ndarray",
    "Generator": "numpy.random.Generator",
    "Env": "gymnasium.Env",
    "Space": "gymnasium.spaces.Space",
    "Tensor": "torch.Tensor",
    "Module": "torch.nn.Module",
    "torch.device": "torch.device",
    "Distribution": "torch.distributions.distribution.Distribution",
}
"""Names of other projects in annotations, and their targets in docs/inventories."""
PAGES = DOCS / "reference" / "api"
"""Folder of the generated pages, one per public name. Git ignores it."""

logger = logging.getLogger(__name__)


def public_names(module: str) -> list[str]:
    """Return the names of `__all__`, or the public functions of the module."""
    found = importlib.import_module(module)
    names = getattr(found, "__all__", None)
    own = [name for name, value in vars(found).items() if getattr(value, "__module__", "") == module]
    return list(names) if names is not None else [name for name in own if not name.startswith("_")]


def named(module: str, name: str) -> Any:
    """Return the object. TorchRL is mocked, because it needs its own release of tensordict."""
    with mock(["torchrl"]):
        return getattr(importlib.import_module(module), name)


@cache
def blocks() -> dict[str, tuple[str, str]]:
    """Return the page and the module of each name in a block."""
    found = {}
    for page in sorted((DOCS / "reference").glob("*.md")):
        for module, names in BLOCK.findall(page.read_text("utf-8")):
            found |= dict.fromkeys(names.split(), (page.stem, module))
    return found


@cache
def users() -> dict[str, list[tuple[str, str]]]:
    """Return, by name, the pages whose programs use the name, as (page, title)."""
    found: dict[str, list[tuple[str, str]]] = {}
    for page in sorted(DOCS.glob("*/*.md")):
        text = page.read_text("utf-8")
        words = set(re.findall(r"\w+", " ".join(re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S))))
        title = text.partition("\n")[0].removeprefix("# ")
        for name in words & blocks().keys():
            found.setdefault(name, []).append((page.relative_to(DOCS).as_posix(), title))
    return found


@cache
def producers() -> dict[str, list[str]]:
    """Return, by public class, links to the functions and methods that return the class."""
    found: dict[str, list[str]] = {}
    for name, (_, module) in blocks().items():
        obj = named(module, name)
        own = {name: obj} if inspect.isfunction(obj) else {}
        if inspect.isclass(obj) and obj.__name__ == name:
            own = {f"{name}.{key}": each for _, key, each in members(obj)}
        for key, each in own.items():
            words = set(re.findall(r"\w+", str(inspect.signature(each).return_annotation)))
            for result in words & blocks().keys() - {name}:
                found.setdefault(result, []).append(f"{{py:obj}}`{key} <{module}.{key}>`")
    return found


def target(name: str, text: str = "") -> str:
    """Return a link to the page of a public name."""
    return f"{{py:obj}}`{text or name} <{blocks()[name][1]}.{name}>`"


def linked(text: str, own: str) -> str:
    """Return the text with links for public names in backticks, and for pages such as `page ("Section")`."""
    text = re.sub(r"``([^`\n]+)``", r"`\1`", text)

    def name(match: re.Match[str]) -> str:
        first = match[1]
        return target(first) if first in blocks() and first != own and first[0].isupper() else match[0]

    text = re.sub(r"(?<![\w`}])`(\w+)`(?!`)", name, text)
    page = r"`?\bdocs/([\w/-]+\.md)`?"
    text = re.sub(rf'{page}\s\("([^"]+)"\)', lambda m: f"[{m[2]}](/{m[1]}#{nodes.make_id(m[2])})", text)
    return re.sub(page, r"[](/\1)", text)


def as_markdown(doc: str, own: str) -> str:
    """Return a docstring as markdown, with fences around examples and indented blocks."""
    parts = []
    for part in re.split(r"\n\s*\n", doc.strip("\n")):
        body = textwrap.dedent(part)
        if body.startswith(">>> "):
            parts.append(f"```pycon\n{body}\n```")
        elif part.startswith("    ") and not (parts and parts[-1].startswith(("-", "1."))):
            parts.append(f"```{language(body)}\n{body}\n```")
        else:
            parts.append(linked(part, own))
    joined = "\n\n".join(parts)
    return re.sub(r"\n```\n\n```(py|pycon|text)\n", r"\n\n", joined)


def language(block: str) -> str:
    try:
        ast.parse(block)
    except SyntaxError:
        return "text"
    return "py"


def described_arguments(body: str) -> dict[str, str]:
    """Read the entries `name, name: text` of a section. Continued lines of an entry are indented."""
    found: dict[str, str] = {}
    for heads, text in re.findall(r"^([\w*`][^:\n]*): (.*(?:\n[ ]+.*|\n(?=\n[ ]))*)", body, re.M):
        found |= dict.fromkeys(re.findall(r"\w+", heads), " ".join(text.split()))
    return found


def sections(doc: str, names: tuple[str, ...] = ()) -> tuple[str, dict[str, str], dict[str, str]]:
    """Split a docstring into prose, the descriptions of the arguments `names`, and other sections by title."""
    arguments: dict[str, str] = {}
    others: dict[str, str] = {}
    for title, body in SECTION.findall(doc + "\n"):
        if title.startswith("Arg"):
            arguments |= described_arguments(textwrap.dedent(body))
        else:
            others[title] = textwrap.dedent(body).strip("\n")
    doc = SECTION.sub("", doc + "\n")
    if not names:
        return doc, arguments, others
    either = "|".join(map(re.escape, names))
    item = re.compile(rf"(?:^|(?<=[.;])\s|(?<=\n))\s*((?:`?\*{{0,2}}(?:{either})`?,?\s?(?:and )?)+): ")
    prose = []
    for part in re.split(r"\n\s*\n", doc.strip("\n")):
        heads = [] if part.lstrip().startswith(">>> ") else list(item.finditer(part))
        ends = [*(each.start() for each in heads[1:]), len(part)]
        for head, end in zip(heads, ends, strict=False):
            for name in re.findall(r"\w+", head[1]):
                arguments.setdefault(name, " ".join(part[head.end() : end].split()))
        prose.append(part[: heads[0].start()].rstrip() if heads else part)
    return "\n\n".join(part for part in prose if part.strip()), arguments, others


@cache
def fields(cls: type) -> dict[str, str]:
    """Return the docstrings of the attributes and properties of a class and its bases."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        found |= {key: inspect.getdoc(value) or "" for key, value in vars(base).items() if isinstance(value, property)}
        try:
            docs = ModuleAnalyzer.for_module(base.__module__).find_attr_docs()
        except PycodeError:
            continue
        found |= {key: "\n".join(doc).strip() for (owner, key), doc in docs.items() if owner == base.__qualname__}
    # Docstrings of gymnasium are reStructuredText.
    return {key: re.sub(r":(?:attr|class|func|meth|obj):`~?([^`]+)`", r"`\1`", doc) for key, doc in found.items()}


def own_doc(obj: Any) -> str:
    doc = vars(obj).get("__doc__") if inspect.isclass(obj) else getattr(obj, "__doc__", None)
    doc = inspect.cleandoc(doc or "")
    if inspect.isclass(obj) and obj.__init__ is not object.__init__:
        doc += "\n\n" + inspect.cleandoc(vars(obj).get("__init__").__doc__ or "") if "__init__" in vars(obj) else ""
    return doc


def docs_of(obj: Any, owner: type | None) -> list[str]:
    """Return the docstrings that may describe the arguments of a callable, the nearest first.

    Docstrings of other libraries are left out, because their markup is another.
    """
    if owner is None and not inspect.isclass(obj):
        return [own_doc(obj)]
    bases = [base for base in (owner or obj).__mro__ if base.__module__.startswith(OWN)]
    if owner is None:
        docs = [own_doc(base) for base in bases]
        shared = re.findall(r"arguments are (?:as in|those of) `?(\w+)", "\n".join(docs))
        return docs + [own_doc(named(blocks()[name][1], name)) for name in shared if name in blocks()]
    return [own_doc(vars(base)[obj.__name__]) for base in bases if obj.__name__ in vars(base)] + [own_doc(owner)]


def sentences_with(docs: list[str], name: str) -> str:
    """Return the sentences that name an argument in backticks, from the first docstring with such a sentence."""
    for doc in docs:
        text = SECTION.sub(lambda match: textwrap.dedent(match[2]), doc + "\n")
        parts = re.split(r"\n\s*\n|\n\s*(?=`?\w+`?: )", text)
        prose = [" ".join(part.split()) for part in parts if not re.match(r"\s+\w+ = |>>> ", part)]
        every = [each for part in prose for each in re.split(r"(?<=[.;])\s+(?=[A-Z`\"])", part)]
        every = [each for each in every if not OF_ERRORS.match(each)]
        found = [each for each in every if re.search(rf"`\*{{0,2}}{re.escape(name)}[`=(\[]", each)]
        if found:
            return re.sub(r"^\w+: ", "", " ".join(found))
    return ""


def signature_of(obj: Any) -> inspect.Signature | None:
    if inspect.isclass(obj) and issubclass(obj, enum.Enum):
        return None
    try:
        return inspect.signature(obj)
    except (ValueError, TypeError):
        return None


def plain(annotation: Any) -> str:
    """Return an annotation as text, without the modules of classes."""
    if annotation is inspect.Parameter.empty:
        return ""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "") or repr(annotation)
    if not isinstance(annotation, str) and ("|" in repr(annotation) or "[" in repr(annotation)):
        text = repr(annotation)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", text)


def typed(text: str) -> str:
    """Return an annotation in markdown. Classes of this and of other projects become links."""
    parts = re.split(r" \| (?![^\[]*\])", text)
    return " | ".join(f"{{py:obj}}`{each} <{LINKS[each]}>`" if each in LINKS else f"`{each}`" for each in parts)


def default_of(parameter: inspect.Parameter) -> str:
    value = parameter.default
    if inspect.isclass(value) or inspect.isroutine(value):
        return value.__name__
    if isinstance(value, enum.Enum):
        return str(value)
    text = repr(value)
    return "..." if text.startswith("<") or len(text) > 40 else text


def call_of(signature: inspect.Signature) -> str:
    """Return the arguments with their defaults. The table has the types."""
    parts, starred = [], False
    for parameter in arguments_of(signature):
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        starred |= parameter.kind is parameter.VAR_POSITIONAL
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f"={default_of(parameter)}"
        parts.append(f"{stars}{parameter.name}{default}")
    return f"({', '.join(parts)})"


def arguments_of(signature: inspect.Signature) -> list[inspect.Parameter]:
    return [each for each in signature.parameters.values() if each.name not in ("self", "cls")]


def every_argument(obj: Any) -> list[inspect.Parameter]:
    """Return the arguments of a callable. For a class, `**options` becomes the arguments of its public bases."""
    signature = signature_of(obj)
    found = arguments_of(signature) if signature is not None else []
    if not inspect.isclass(obj) or not issubclass(obj, BaseVectorEnv):
        return found
    taken = {each.name: each for each in found if each.kind is not each.VAR_KEYWORD}
    for base in obj.__mro__[1:]:
        if found[-1].kind is found[-1].VAR_KEYWORD and "__init__" in vars(base):
            found = arguments_of(inspect.signature(vars(base)["__init__"]))
            more = [each for each in found if each.kind is not each.VAR_KEYWORD and each.name not in SET_BY_SUBCLASS]
            taken = {each.name: each.replace(kind=each.KEYWORD_ONLY) for each in more} | taken
    return list(taken.values())


def table(shown: str, obj: Any, owner: type | None, signature: inspect.Signature) -> Iterator[str]:
    """Yield the table of the arguments with name, type, default and meaning."""
    rows = every_argument(obj) if owner is None else arguments_of(signature)
    if not rows:
        return
    docs = docs_of(obj, owner)
    known = fields(obj) if inspect.isclass(obj) else {}
    for each in reversed(docs):
        known |= sections(each, tuple(row.name for row in rows))[1]
    described = []
    for row in rows:
        meaning = known.get(row.name) or WORDS.get(f"{shown}.{row.name}") or sentences_with(docs, row.name)
        meaning = meaning or WORDS.get(row.name, "")
        bases = [base.__name__ for base in getattr(obj, "__mro__", ())[1:] if base.__name__ in blocks()]
        if row.kind is row.VAR_KEYWORD and bases and not known.get(row.name):
            meaning = f"Keyword arguments of `{bases[0]}`."
        if not meaning:
            logger.warning("%s: no description of the parameter %s", shown, row.name)
        for glued in re.findall(r"(?:^|[.;] )`?(\w+)`?: ", meaning):
            if glued in {each.name for each in rows}:
                logger.warning("%s: the description of %s holds the one of %s", shown, row.name, glued)
        stars = {row.VAR_POSITIONAL: "*", row.VAR_KEYWORD: "**"}.get(row.kind, "")
        kind = "" if stars or plain(row.annotation) in ("", "Any") else typed(plain(row.annotation))
        default = "" if row.default is row.empty else f"default `{default_of(row)}`"
        described.append((stars + row.name, ", ".join(filter(None, (kind, default))), meaning))
    yield from arguments_table("Parameter", described, shown)


def arguments_table(head: str, rows: list[tuple[str, str, str]], own: str = "") -> Iterator[str]:
    """Yield a table with two columns: the name, type and default, and the meaning."""
    yield from ("```{list-table}", ":class: arguments", ":header-rows: 1", ":widths: 30 70", "")
    yield from (f"* - {head}", "  - Meaning")
    for name, details, meaning in rows:
        yield f"* - **`{name}`**"
        if details:
            yield from ("", f"    {details}")
        text = linked(" ".join(meaning.split()), own)
        yield f"  - {text[:1].upper() + text[1:]}"
    yield from ("```", "")


def raised(obj: Any, doc: str) -> list[str]:
    """Return the exceptions that the docstring names and that the function raises."""
    names = set(re.findall(r"\b[A-Z]\w*(?:Error|Interrupt)\b", doc))
    if inspect.isroutine(obj):
        tree = ast.parse(textwrap.dedent(inspect.getsource(obj)))
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
                names.add(node.exc.func.id)
    return sorted(name for name in names if name in blocks() or name in vars(__import__("builtins")))


def entry(name: str, obj: Any, owner: type | None = None, shown: str = "") -> Iterator[str]:
    """Yield the text below the signature of a class, method or function."""
    doc, signature = own_doc(obj), signature_of(obj)
    prose, _, others = sections(doc, tuple(each.name for each in arguments_of(signature)) if signature else ())
    yield from (as_markdown(prose, name), "")
    for title, body in others.items():
        if title == "Example":
            yield from (f"```{language(body)}\n{body}\n```", "")
        else:
            yield from (f"**{title}:**", "", linked(body, name), "")
    if signature is not None:
        yield from table(shown or name, obj, owner, signature)
        result = plain(signature.return_annotation)
        if not inspect.isclass(obj) and result not in ("", "None"):
            yield from (f"**Returns:** {typed(result)}", "")
    if not (inspect.isclass(obj) and issubclass(obj, BaseException)):
        errors = [target(each) if each in blocks() else f"`{each}`" for each in raised(obj, doc)]
        if errors:
            yield from (f"**Raises:** {', '.join(errors)}", "")
    if inspect.isclass(obj) and producers().get(name):
        yield from (f"**Returned by:** {', '.join(producers()[name][:6])}", "")
    if owner is None and ">>> " not in doc and "Example" not in others and users().get(name):
        pages = ", ".join(f"[{title}](/{page})" for page, title in users()[name][:3])
        yield from (f"**Example:** {pages}", "")


def members(cls: type) -> Iterator[tuple[str, str, Any]]:
    """Yield the kind, name and object of the members that no public base has."""
    bases = [base for base in cls.__mro__[1:] if base.__name__ in blocks() and base.__module__.startswith(OWN)]
    if any(base.__name__ == "Transform" for base in bases):
        bases = list(cls.__mro__[1:-1])  # private classes between a transform and its public base
    inherited = {key for base in bases for each in base.__mro__ for key in vars(each)}
    seen: set[str] = set()
    for base in cls.__mro__:
        if not base.__module__.startswith(OWN) or base in bases:
            continue
        for key, value in vars(base).items():
            value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if key.startswith("_") or key in seen or key in inherited or not inspect.getdoc(value):
                continue
            if inspect.isfunction(value):
                seen.add(key)
                yield "method", key, value


def document(module: str, name: str) -> Iterator[str]:
    """Yield the page of a public name."""
    obj = named(module, name)
    signature = signature_of(obj) if callable(obj) else None
    call = call_of(signature) if signature is not None else ""
    if inspect.isclass(obj) and issubclass(obj, BaseException):
        kind, call = "exception", ""
    else:
        kind = "class" if inspect.isclass(obj) else "function" if callable(obj) else "data"
    yield from (f"::::::{{py:{kind}}} {name}{call}", f":module: {module}", "")
    if inspect.isclass(obj) and obj.__name__ != name and obj.__name__ in blocks():
        yield from (f"Another name of {target(obj.__name__)}.", "", "::::::", "")
        return
    if kind == "data":
        yield from ("::::::", "")
        return
    if inspect.isclass(obj):
        bases = [base.__name__ for base in obj.__bases__ if base.__name__ in blocks() and base.__name__ != name]
        if bases:
            yield from (f"*A {' and a '.join(target(base) for base in bases)}, with the methods of it.*", "")
    if kind == "exception":
        yield from (as_markdown(own_doc(obj), name), "")
    else:
        yield from entry(name, obj)
    if inspect.isclass(obj):
        docs = {key: doc for key, doc in fields(obj).items() if doc and not key.startswith("_")}
        bases = [base for base in obj.__mro__[1:] if base.__name__ in blocks()]
        known = (
            {key for base in bases for key in (*fields(base), *dir(base))} | {each.name for each in every_argument(obj)}
            if signature
            else set()
        )
        rows = [(key, doc) for key, doc in docs.items() if key not in known]
        if rows:
            yield from arguments_table("Attribute", [(key, "", sections(doc)[0]) for key, doc in rows], name)
        for each, key, value in members(obj):
            called = signature_of(value)
            yield from (f":::::{{py:{each}}} {key}{call_of(called) if called else ''}", f":module: {module}", "")
            yield from entry(key, value, obj, f"{name}.{key}")
            yield from (":::::", "")
    yield from ("::::::", "")


def index(page: str) -> str:
    """Return a table of the names on a page of the reference, with a row per section."""
    rows = []
    text = (DOCS / "reference" / f"{page}.md").read_text("utf-8")
    for title, rest in re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", text, re.M | re.S):
        names = [name for _, found in BLOCK.findall(rest) for name in found.split()]
        rows.append(f"| [{title}](#{nodes.make_id(title)}) | {', '.join(map(target, names))} |")
    return "\n".join(["| section | names |", "|---|---|", *rows])


def first_sentence(obj: Any, name: str) -> str:
    text = " ".join(own_doc(obj).partition("\n\n")[0].split())
    return linked(re.split(r"(?<=\.) (?=[A-Z`])", text)[0], name)


def listing(match: re.Match[str]) -> str:
    """Return the table of the names of a block, each with a link to its page and the first sentence."""
    lines = ["```{list-table}", ":class: names", ":widths: auto", ""]
    for name in match[2].split():
        lines += [f"* - {target(name)}", f"  - {first_sentence(named(match[1], name), name)}"]
    pages = [f"api/{match[1]}.{name}" for name in match[2].split()]
    return "\n".join([*lines, "```", "", "```{toctree}", ":hidden:", "", *pages, "```", ""])


def write_pages(app: Sphinx) -> None:
    """Write a page for each public name. A page that has not changed keeps its time, so Sphinx does not read it."""
    PAGES.mkdir(exist_ok=True)
    texts = {}
    for name, (_, module) in blocks().items():
        texts[PAGES / f"{module}.{name}.md"] = "\n".join([f"# {name}", "", *document(module, name)]) + "\n"
    for path in set(PAGES.glob("*.md")) - texts.keys():
        path.unlink()
    for path, text in texts.items():
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace each block of a page by a table of names."""
    if docname.startswith("reference/") and not docname.startswith("reference/api/"):
        source[0] = BLOCK.sub(listing, source[0])
        source[0] = INDEX.sub(lambda match: index(match[1]) + "\n", source[0])
        for path in (path for package in OWN for path in sorted((DOCS.parent / package).rglob("*.py"))):
            app.env.note_dependency(path)
        for name in ("api_pages.py", "api_words.py", "command_pages.py"):
            app.env.note_dependency(DOCS / name)


def check(app: Sphinx) -> None:
    """Warn of public names that no page lists."""
    placed = {(module, name) for name, (_, module) in blocks().items()}
    for module in MODULES:
        for name in public_names(module):
            if (module, name) not in placed and not (name in blocks() and module != "vecenv.testing"):
                logger.warning("%s.%s stands on no page of docs/reference", module, name)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", check)
    app.connect("builder-inited", write_pages)
    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "version": "1"}
