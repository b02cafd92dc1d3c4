"""The layers and the layout of docs/explanation/design.md, held against the code: no library need be installed.

Each rule is itself tested, on a small project that breaks it.
"""

import ast
import fnmatch
import re
import sys
from collections import Counter
from collections.abc import Container, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("vecenv", "collector")

# Lowest first. A module may import from its own row and from the rows above it (lower layers), never from a row below.
# An entry stands for the module and everything inside it, `vecenv` and `collector` for their `__init__` alone.
LAYERS = """
    vecenv.errors vecenv.nest vecenv.spaces vecenv.portability vecenv.ray_cluster
    vecenv.backends.ipc vecenv.backends.system_limits
    vecenv.backends.memory
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
    vecenv.sb3 vecenv.testing vecenv.extending
    vecenv vecenv.__main__
    collector.timing collector.interruptor
    collector.collector_arguments collector.batch collector.episodes collector.device
    collector.store
    collector.policy
    collector.loops
    collector.env_source collector.collect collector.evaluation collector.base_collector
    collector.sync_collector collector.async_collector
    collector.jobs collector.cluster
    collector collector.__main__
"""
ROWS = {entry: row for row, entries in enumerate(LAYERS.strip().splitlines()) for entry in entries.split()}
MOST_FILES = {"vecenv": 117, "collector": 88}
MOST_IN_A_FOLDER = 15
LINES = range(40, 401)
"""Lines of a file; one with several importers may have fewer."""

CORE_LIBRARIES = {"numpy", "gymnasium", "cloudpickle", *sys.stdlib_module_names, *PACKAGES}
# Optional libraries, and the files that may import them: one for each pattern, any number where it ends in `**`.
OPTIONAL = """
    pettingzoo envpool dm_control dm_env mujoco ale_py: vecenv/envs/*
    torch: collector/** vecenv/backends/pool/spinning_threads.py
    tensordict: collector/batch/tensordict_form.py collector/policy/policy_call.py
    torchrl: collector/device/to_torchrl.py
    ray: vecenv/ray_cluster.py
    stable_baselines3: vecenv/facades/to_sb3.py vecenv/sb3.py
    matplotlib: collector/jobs/look.py
    threadpoolctl: vecenv/backends/pool/spinning_threads.py
    msgspec: collector/jobs/** collector/store/schema.py
    tyro: collector/jobs/cli.py collector/jobs/commands.py
    yaml tomli: collector/jobs/job_files.py
    imageio imageio_ffmpeg: collector/jobs/replay.py
    rich: collector/jobs/report.py collector/cluster/cluster_stats.py
    cv2: vecenv/transforms/*
    minari PIL: collector/store/export/*
    pyarrow: collector/store/export/arrow_**
"""
ALLOWED = {
    library: line.partition(":")[2].split()
    for line in OPTIONAL.strip().splitlines()
    for library in line.partition(":")[0].split()
}

# Private names of libraries, where there is no public way to the same thing; each use has its reason beside it.
PRIVATE = {"_clear", "_exit", "_current_frames", "_getframe"}  # of atexit, os, sys
PRIVATE |= {"_args", "_default_context", "_forkserver", "_forkserver_alive_fd"}  # of multiprocessing
PRIVATE |= {"_C", "_is_profiler_enabled", "_version"}  # of torch
PRIVATE |= {"_reset", "_state_keys"}  # of envpool
PRIVATE |= {"_asdict", "_fields", "_make", "_replace"}  # of named tuples, where they are public

Sources = dict[str, str]  # path below the project's root -> source text


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def row_of(module: str) -> int | None:
    """The row of the most specific entry."""
    matches = [entry for entry in ROWS if inside(module, entry) and (entry not in PACKAGES or module == entry)]
    return ROWS[max(matches, key=len)] if matches else None


def imports_of(path: str, source: str, modules: Container[str]) -> Iterator[tuple[int, str, bool]]:
    """Line, absolute name (`p.name` of `from p import name` where that is a module), and if it is for types only."""
    parents, typed = Path(path).parent.parts, set[ast.AST]()
    for node in ast.walk(ast.parse(source, path)):  # outer nodes come first
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            typed.update(below for part in node.body for below in ast.walk(part))
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, node in typed) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            ancestor = parents[: len(parents) - node.level + 1] if node.level else ()
            stem = ".".join([*ancestor, *([node.module] if node.module else [])])
            names = {f"{stem}.{alias.name}" for alias in node.names}
            yield from ((node.lineno, n, node in typed) for n in {n if n in modules else stem for n in names})
    for found in re.finditer(r"(?:import_module\(|__import__\(|sys\.modules(?:\.get\(|\[))[\"']([\w.]+)", source):
        yield source.count("\n", 0, found.start()) + 1, found[1], False


def private_names(path: str, source: str) -> Iterator[tuple[int, str]]:
    """Names with a leading underscore that this file uses and does not define, each with its line."""
    own, used = set(PRIVATE), list[tuple[int, str]]()
    for node in ast.walk(ast.parse(source, path)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            own.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.Attribute):
            used += [(node.lineno, node.attr)] * (ast.unparse(node.value) not in ("self", "cls", "super()"))
        elif isinstance(node, ast.ImportFrom):
            used += [(node.lineno, alias.name) for alias in node.names]
    yield from ((n, name) for n, name in used if name[0] == "_" and not name.endswith("__") and name not in own)


def breaches(sources: Sources) -> Iterator[str]:
    """Each thing that breaks a rule."""
    modules = {module_of(path): path for path in sources}
    users = {name: set[str]() for name in [*ALLOWED, *modules]}  # paths
    for path, source in sources.items():
        module, here = module_of(path), row_of(module_of(path))
        if here is None:
            yield f"{path}: has no place in LAYERS; give it one"
        if Path(path).stem in CORE_LIBRARIES | ALLOWED.keys():
            yield f"{path}: shadows a library"
        yield from (f"{path}:{n}: uses {name}, which is private elsewhere" for n, name in private_names(path, source))
        for line, target, typed in imports_of(path, source, modules):
            at, there, library = f"{path}:{line}: imports {target}", row_of(target), target.partition(".")[0]
            if here is not None and there is not None and there > here:
                yield f"{at}, a higher layer"
            if target != module and inside(module, target):  # its __init__ is still running
                yield f"{at}, its own package; import the sibling from its module"
            if path.startswith("collector/") and library == "vecenv" and target.count(".") > 1:
                yield f"{at}, which is inside vecenv; import it from vecenv.extending"
            if library not in CORE_LIBRARIES and library not in ALLOWED:
                yield f"{at}, a library that is neither in CORE_LIBRARIES nor in OPTIONAL"
            if library in ALLOWED and not any(fnmatch.fnmatch(path, pattern) for pattern in ALLOWED[library]):
                yield f"{at}, allowed only in {ALLOWED[library]}"
            if not typed:
                users.setdefault(library if library in ALLOWED else target, set()).add(path)
    for library, allowed in ALLOWED.items():
        if "**" not in str(allowed) and len(users[library]) > len(allowed):
            yield f"{library} is imported in {', '.join(sorted(users[library]))}: {len(allowed)} at most"
    yield from layout_breaches(sources, modules, users)


def layout_breaches(sources: Sources, modules: dict[str, str], users: dict[str, set[str]]) -> Iterator[str]:
    """Sizes, names, and circles: of modules, and of folders that do not hold each other."""
    files = {path: source for path, source in sources.items() if Path(path).stem not in ("__init__", "__main__")}
    for path, source in files.items():
        lines = source.count("\n")
        if lines >= LINES.stop or (lines < LINES.start and len(users[module_of(path)]) == 1):
            yield f"{path}: {lines} lines; put it into the file that imports it, or take it apart"
    for name, count in Counter(Path(path).name for path in files).items():
        if count > 1:
            yield f"{count} files are called {name}"
    for count, most, where in [
        *((sum(path.startswith(each) for path in sources), MOST_FILES[each], each) for each in PACKAGES),
        *((n, MOST_IN_A_FOLDER, str(each)) for each, n in Counter(Path(path).parent for path in sources).items()),
    ]:
        if count > most:
            yield f"{count} files in {where}, {most} at most"
    reached: dict[str, set[str]] = {}
    for target, paths in users.items():
        if (file := modules.get(target)) is not None:
            for path in paths:
                reached.setdefault(path, set()).add(file)
                here, there = str(Path(path).parent), str(Path(file).parent)
                if not (Path(here).is_relative_to(there) or Path(there).is_relative_to(here)):
                    reached.setdefault(here, set()).add(there)
    for middle in reached:  # now with what they reach through others
        for targets in reached.values():
            if middle in targets:
                targets |= reached[middle]
    for group in {tuple(sorted(o for o in reached[m] if m in reached.get(o, ()))) for m in reached} - {()}:
        yield f"import cycle: {', '.join(group)}"


def test_the_project_keeps_the_rules():
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    sources = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}
    assert {path.partition("/")[0] for path in sources} == set(PACKAGES), "a package is missing"
    assert list(breaches(sources)) == []


LONG = "#\n" * LINES.start
GOOD: Sources = {
    "vecenv/__init__.py": "from vecenv.venvs import ShmemVectorEnv\nfrom vecenv.errors import WorkerDiedError\n",
    "vecenv/errors.py": LONG,
    "vecenv/nest.py": f"import collections.abc\nimport numpy as np\nfrom vecenv.errors import X\n{LONG}",
    "vecenv/backends/__init__.py": "",
    "vecenv/backends/backend.py": "from vecenv import nest\nfrom ..errors import WorkerDiedError\n",
    "vecenv/backends/shmem.py": "from vecenv.backends import backend\nfrom . import backend\n" + LONG,
    "vecenv/ray_cluster.py": f"def connect():\n    import ray\n{LONG}",
    "vecenv/base.py": f"from vecenv.backends.backend import Backend\n{LONG}",
    "vecenv/envs/one.py": "import envpool\n",
    "vecenv/venvs.py": "from vecenv.base import BaseVectorEnv\nfrom vecenv.backends.shmem import ShmemBackend\n" + LONG,
    "vecenv/testing.py": "import gymnasium as gym\nfrom vecenv.venvs import ShmemVectorEnv\n",
    "collector/__init__.py": "from collector.sync_collector import SyncDataCollector\n",
    "collector/sync_collector.py": f"import torch\nimport torch.nn as nn\nfrom vecenv import ShmemVectorEnv\n{LONG}",
    "collector/cluster/rays.py": "from vecenv.ray_cluster import connect\n",
}
TYPES_ONLY = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from vecenv.base import BaseVectorEnv"
IN_A_FUNCTION = "def f():\n    from vecenv.base import BaseVectorEnv"


def test_a_project_that_keeps_the_rules_passes_them_all():
    assert list(breaches(GOOD)) == []
    assert not any("cycle" in each for each in breaches({**GOOD, "vecenv/errors.py": TYPES_ONLY}))


@pytest.mark.parametrize(
    ("path", "lines", "message"),
    [
        ("vecenv/utils.py", [""], "no place"),
        ("vecenv/nest.py", ["from .base import X", "import vecenv.venvs as v", TYPES_ONLY], "a higher layer"),
        ("vecenv/nest.py", [IN_A_FUNCTION, "import collector.sync_collector"], "a higher layer"),
        ("vecenv/base.py", ["import vecenv", "from . import WorkerDiedError"], "own package"),
        ("collector/jobs/run.py", ["from collector import Rollout"], "own package"),
        ("collector/jobs/run.py", ["import vecenv.backends.shmem"], "vecenv.extending"),
        ("vecenv/errors.py", ["import vecenv.nest"], "cycle: vecenv/errors.py, vecenv/nest.py"),
        ("vecenv/errors.py", [IN_A_FUNCTION], "cycle: vecenv/backends/backend.py, vecenv/base.py, vecenv/errors.py"),
        ("vecenv/nest.py", ["import torch", 'import_module("torch.nn")', 'sys.modules.get("torch")'], "allowed only"),
        ("vecenv/base.py", ["from ray import get", '__import__("ray")'], "only in ['vecenv/ray_cluster.py']"),
        ("collector/sync_collector.py", ["import scipy"], "neither"),
        ("vecenv/envs/two.py", ["import envpool.x"], "in vecenv/envs/one.py, vecenv/envs/two.py: 1 at most"),
        ("vecenv/base.py", ["Backend._open()", "from vecenv.nest import _open"], "uses _open"),
        ("vecenv/envs/pettingzoo.py", [""], "shadows"),
        ("vecenv/envs/base.py", [""], "2 files are called base.py"),
        ("vecenv/base.py", [LONG * 10], "lines"),
        ("collector/batch/rows.py", ["import collector.cluster.rays"], "rays.py: 1 lines"),
    ],
)
def test_each_breach_is_noticed(path, lines, message):
    """Each line is appended to the good project."""
    for line in lines:
        found = list(breaches({**GOOD, path: GOOD.get(path, "") + line + "\n"}))
        assert len([each for each in found if message in each]) == 1, (line, found)


def test_folders_neither_circle_nor_hold_more_files_than_a_reader_takes_in():
    circle = {"vecenv/envs/one.py": "import vecenv.transforms.two", "vecenv/transforms/two.py": LONG}
    circle |= {"vecenv/transforms/three.py": "def f():\n    import vecenv.envs.four", "vecenv/envs/four.py": LONG}
    assert [each for each in breaches(circle) if "cycle" in each] == ["import cycle: vecenv/envs, vecenv/transforms"]
    many = {f"vecenv/envs/e{i}.py": LONG for i in range(MOST_IN_A_FOLDER + 1)}
    assert list(breaches(many)) == ["16 files in vecenv/envs, 15 at most"]


def test_design_md_names_every_folder_and_module_of_the_packages():
    page = (ROOT / "docs/explanation/design.md").read_text()
    tree = page.partition("## Layout and layers")[2].partition("## Two walks")[0]
    folders = {path.parent.name for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")}
    modules = {path.stem for package in PACKAGES for path in (ROOT / package).glob("*.py")} - {"__init__", "__main__"}
    assert (modules | folders) - set(re.findall(r"\w+", tree)) == set()
