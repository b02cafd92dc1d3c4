"""The layer table of docs/design.md, held against the code: what each file may import.

Read is source text only, so the rules also hold for the files whose libraries are not installed here. Each rule is
itself tested, on a small project that breaks it.
"""

import ast
import fnmatch
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("vecenv", "collector")

# Lowest first. A module may import from its own row and from the rows above it (lower layers), never from a row below.
# An entry stands for the module and everything inside it, `vecenv` and `collector` for their `__init__` alone.
LAYERS = """
    vecenv.errors vecenv.nest vecenv.spaces vecenv.running_mean_std vecenv.portability vecenv.ray_cluster
    vecenv.backends.memory vecenv.backends.ipc vecenv.backends.system_limits
    vecenv.backends.host
    vecenv.backends.worker
    vecenv.backends.pool
    vecenv.backends
    vecenv.engine
    vecenv.base
    vecenv.venvs
    vecenv.tuning
    vecenv.wrappers
    vecenv.norm_obs vecenv.creator
    vecenv.envs
    vecenv.transforms vecenv.facades
    vecenv.sb3
    vecenv.testing
    vecenv vecenv.__main__
    collector.timing collector.interruptor
    collector.arguments collector.batch collector.episodes collector.device
    collector.store
    collector.policy
    collector.loops
    collector.env_source collector.collect collector.evaluation collector.base_collector
    collector.sync_collector collector.async_collector
    collector.jobs collector.cluster
    collector collector.__main__
"""
ROWS = {entry: row for row, entries in enumerate(LAYERS.strip().splitlines()) for entry in entries.split()}
ALIASES = {"interruptor", "timing"}
"""Small modules that the tree in docs/design.md leaves out."""

CORE_LIBRARIES = frozenset({"numpy", "gymnasium", "cloudpickle"})
# Optional libraries, and the files that may import them: one for each pattern, any number where it ends in `**`.
OPTIONAL = """
    pettingzoo envpool dm_control dm_env mujoco ale_py: vecenv/envs/*
    torch: collector/** vecenv/backends/pool/spinning_threads.py
    tensordict: collector/batch/tensordict_form.py collector/policy/policy_call.py
    torchrl: collector/device/to_torchrl.py
    ray: vecenv/ray_cluster.py
    stable_baselines3: vecenv/facades/to_sb3.py vecenv/facades/sb3_agents.py
    matplotlib: collector/jobs/look.py
    threadpoolctl: vecenv/backends/pool/spinning_threads.py
    msgspec: collector/jobs/** collector/store/schema.py
    tyro: collector/jobs/cli.py collector/jobs/commands.py
    yaml tomli: collector/jobs/job.py
    imageio imageio_ffmpeg: collector/jobs/replay.py
    rich: collector/jobs/report.py collector/cluster/cluster_stats.py
    cv2: vecenv/transforms/*
    minari PIL: collector/store/export/*
    pyarrow: collector/store/export/arrow_**
"""
OPTIONAL_LIBRARIES = {
    library: files.strip()
    for libraries, _, files in (line.partition(":") for line in OPTIONAL.strip().splitlines())
    for library in libraries.split()
}

# Private names of libraries, where there is no public way to the same thing; each use has its reason beside it.
PRIVATE = {"_clear", "_exit", "_current_frames", "_getframe"}  # of atexit, os, sys
PRIVATE |= {"_args", "_default_context", "_forkserver", "_forkserver_alive_fd"}  # of multiprocessing
PRIVATE |= {"_C", "_is_profiler_enabled", "_version"}  # of torch
PRIVATE |= {"_reset", "_state_keys"}  # of envpool
PRIVATE |= {"_asdict", "_fields", "_make", "_replace"}  # of named tuples, where they are public

parse = functools.cache(ast.parse)
Sources = dict[str, str]  # path below the project's root -> source text


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def row_of(module: str) -> int | None:
    """The row of the most specific entry."""
    matches = [entry for entry in ROWS if inside(module, entry) and (entry not in PACKAGES or module == entry)]
    return ROWS[max(matches, key=len)] if matches else None


def imports_of(path: str, source: str, modules: set[str]) -> Iterator[tuple[int, str, bool]]:
    """Line, absolute name, and whether importing the file runs it: not in functions, nor under TYPE_CHECKING.

    The name of `from p import name` is `p.name` where that is a module, else `p`.
    """
    tree, late = parse(source, path), set[ast.AST]()
    parents = module_of(path).split(".") if path.endswith("__init__.py") else module_of(path).split(".")[:-1]
    for node in ast.walk(tree):  # outer nodes come first
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            late.update(ast.walk(node))
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            late.update(below for part in node.body for below in ast.walk(part))
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, node not in late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            ancestor = parents[: len(parents) - node.level + 1] if node.level else []
            stem = ".".join([*ancestor, *([node.module] if node.module else [])])
            for target in {f"{stem}.{a.name}" if f"{stem}.{a.name}" in modules else stem for a in node.names}:
                yield node.lineno, target, node not in late
    for found in re.finditer(r"(?:import_module\(|__import__\(|sys\.modules(?:\.get\(|\[))[\"']([\w.]+)", source):
        yield source.count("\n", 0, found.start()) + 1, found[1], False


def private_names(path: str, source: str) -> Iterator[tuple[int, str]]:
    """Names with a leading underscore that this file uses and does not define, each with its line."""
    own, used = set(PRIVATE), list[tuple[int, str]]()
    for node in ast.walk(parse(source, path)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own.add(node.attr)
        elif isinstance(node, ast.Attribute) and node.attr[0] == "_":
            used += [(node.lineno, node.attr)] * (ast.unparse(node.value) not in ("self", "cls", "super()"))
        elif isinstance(node, ast.ImportFrom):
            used += [(node.lineno, alias.name) for alias in node.names]
    yield from ((n, name) for n, name in used if name[0] == "_" and not name.endswith("__") and name not in own)


def breaches(sources: Sources) -> Iterator[str]:
    """Each thing that breaks a rule."""
    reached: dict[str, set[str]] = {module_of(path): set() for path in sources}
    users: dict[str, set[str]] = {library: set() for library in OPTIONAL_LIBRARIES}
    for path, source in sources.items():
        module, here = module_of(path), row_of(module_of(path))
        if here is None:
            yield f"{path}: has no place in LAYERS; give it one"
        if Path(path).stem in CORE_LIBRARIES | OPTIONAL_LIBRARIES.keys():
            yield f"{path}: shadows a library"
        yield from (f"{path}:{n}: uses {name}, which is private elsewhere" for n, name in private_names(path, source))
        for line, target, at_import in imports_of(path, source, set(reached)):
            at, there, library = f"{path}:{line}: imports {target}", row_of(target), target.partition(".")[0]
            if here is not None and there is not None and there > here:
                yield f"{at}, a higher layer"
            if target != module and inside(module, target):  # its __init__ is still running
                yield f"{at}, its own package; import the sibling from its module"
            if target in reached and at_import:
                reached[module].add(target)
            if library in OPTIONAL_LIBRARIES:
                users[library].add(path)
                if not any(fnmatch.fnmatch(path, pattern) for pattern in OPTIONAL_LIBRARIES[library].split()):
                    yield f"{at}, allowed only in {OPTIONAL_LIBRARIES[library]}"
            elif library not in CORE_LIBRARIES.union(sys.stdlib_module_names, PACKAGES):
                yield f"{at}, a library that is neither in CORE_LIBRARIES nor in OPTIONAL_LIBRARIES"
    for library, files in users.items():
        if "**" not in (allowed := OPTIONAL_LIBRARIES[library]) and len(files) > (most := len(allowed.split())):
            yield f"{library} is imported in {', '.join(sorted(files))}: {most} at most"
    for middle in reached:  # now with what they reach through others
        for targets in reached.values():
            if middle in targets:
                targets |= reached[middle]
    for group in {tuple(sorted(other for other in reached[m] if m in reached[other])) for m in reached} - {()}:
        yield f"import cycle: {', '.join(group)}"


def test_the_project_keeps_the_rules():
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    sources = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}
    assert {path.partition("/")[0] for path in sources} == set(PACKAGES), "a package is missing"
    assert list(breaches(sources)) == []


GOOD: Sources = {
    "vecenv/__init__.py": "from vecenv.venvs import ShmemVectorEnv\nfrom vecenv.errors import WorkerDiedError\n",
    "vecenv/errors.py": "",
    "vecenv/nest.py": "import collections.abc\nimport numpy as np\nfrom vecenv.errors import ObservationError\n",
    "vecenv/backends/__init__.py": "",
    "vecenv/backends/base.py": "from vecenv import nest\nfrom ..errors import WorkerDiedError\n",
    "vecenv/backends/shmem.py": "from vecenv.backends import base\nfrom . import base\nfrom .base import Backend\n",
    "vecenv/ray_cluster.py": "def connect():\n    import ray\n",
    "vecenv/base.py": "from vecenv.backends.base import Backend\n",
    "vecenv/envs/one.py": "import envpool\n",
    "vecenv/venvs.py": "from vecenv.base import BaseVectorEnv\nfrom vecenv.backends.shmem import ShmemBackend\n",
    "vecenv/testing.py": "import gymnasium as gym\nfrom vecenv.venvs import ShmemVectorEnv\n",
    "collector/__init__.py": "from collector.sync_collector import SyncDataCollector\n",
    "collector/sync_collector.py": "import torch\nimport torch.nn as nn\nfrom vecenv import ShmemVectorEnv\n",
    "collector/cluster.py": "from vecenv.ray_cluster import connect\n",
}
TYPES_ONLY = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from vecenv.base import BaseVectorEnv"
IN_A_FUNCTION = "def f():\n    from vecenv.base import BaseVectorEnv"
TRIED = "try:\n    from .base import BaseVectorEnv\nexcept ImportError:\n    BaseVectorEnv = None"


def test_a_project_that_keeps_the_rules_passes_them_all():
    assert list(breaches(GOOD)) == []
    for line in (IN_A_FUNCTION, TYPES_ONLY):  # only imports that run at import time make a cycle
        assert not any("cycle" in each for each in breaches({**GOOD, "vecenv/errors.py": line}))


@pytest.mark.parametrize(
    ("path", "lines", "message"),
    [
        ("vecenv/utils.py", [""], "no place"),
        ("stray/__init__.py", [""], "no place"),
        ("vecenv/nest.py", ["from vecenv.base import BaseVectorEnv", "from .base import X"], "a higher layer"),
        ("vecenv/nest.py", ["from . import base", "import vecenv.venvs as v", IN_A_FUNCTION], "a higher layer"),
        ("vecenv/nest.py", [TYPES_ONLY], "a higher layer"),
        ("vecenv/venvs.py", ["import vecenv.testing", "import collector.sync_collector"], "a higher layer"),
        ("vecenv/base.py", ["import vecenv", "from . import WorkerDiedError"], "own package"),
        ("vecenv/backends/shmem.py", ["from vecenv.backends import Backend"], "own package"),
        ("collector/jobs/run.py", ["from collector import Rollout"], "own package"),
        ("vecenv/errors.py", ["import vecenv.nest"], "cycle: vecenv.errors, vecenv.nest"),
        ("vecenv/errors.py", [TRIED], "cycle: vecenv.backends.base, vecenv.base, vecenv.errors"),
        ("vecenv/nest.py", ["import torch", "def f():\n    import torch"], "only in collector/"),
        ("vecenv/nest.py", ['import importlib\nimportlib.import_module("torch.nn")'], "only in collector/"),
        ("vecenv/nest.py", ['import sys\nsys.modules.get("torch")', 'sys.modules["torch"]'], "only in collector/"),
        ("vecenv/backends/shmem.py", ["from ray import get", '__import__("ray")'], "only in vecenv/ray_cluster.py"),
        ("collector/sync_collector.py", ["import scipy"], "neither"),
        ("vecenv/envs/two.py", ["import envpool.x"], "in vecenv/envs/one.py, vecenv/envs/two.py: 1 at most"),
        ("vecenv/base.py", ["Backend._open()", "from vecenv.nest import _open"], "uses _open"),
        ("vecenv/envs/pettingzoo.py", [""], "shadows"),
    ],
)
def test_each_breach_is_noticed(path, lines, message):
    """Each line is appended to the good project."""
    for line in lines:
        found = list(breaches({**GOOD, path: GOOD.get(path, "") + line + "\n"}))
        assert len([each for each in found if message in each]) == 1, (line, found)


def test_design_md_names_every_folder_and_none_holds_more_files_than_a_reader_takes_in():
    tree = (ROOT / "docs" / "design.md").read_text().partition("## Layout and layers")[2].partition("## Engine")[0]
    folders = [path.parent for package in PACKAGES for path in sorted((ROOT / package).rglob("__init__.py"))]
    modules = {path.stem for package in PACKAGES for path in (ROOT / package).glob("*.py")} - {"__init__", "__main__"}
    assert (modules | {folder.name for folder in folders}) - set(re.findall(r"\w+", tree)) == ALIASES
    assert {str(folder): n for folder in folders if (n := len(list(folder.glob("*.py")))) > 15} == {}
