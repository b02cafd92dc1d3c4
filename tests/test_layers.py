"""The layer table of docs/design.md, held against the code: what each file may import.

The rules read source text only, so they also hold for the files whose libraries are not installed here. Each rule is
itself tested, on a small project that breaks it.
"""

import ast
import fnmatch
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("vecenv", "collector")

# Lowest first. A module may import from its own row and from the rows above it (lower layers), never from a row below.
# An entry stands for the module and everything inside it; the most specific entry counts.
LAYERS = (
    (
        "vecenv.errors",
        "vecenv.nest",
        "vecenv.spaces",
        "vecenv.running_mean_std",
        "vecenv.portability",
        "vecenv.ray_cluster",
    ),
    ("vecenv.backends.memory", "vecenv.backends.ipc", "vecenv.backends.system_limits", "vecenv.openmp"),
    ("vecenv.backends.host",),
    ("vecenv.backends.worker",),
    ("vecenv.backends.pool",),
    ("vecenv.backends",),
    ("vecenv.engine",),
    ("vecenv.base",),
    ("vecenv.venvs",),
    ("vecenv.tuning",),
    ("vecenv.wrappers",),
    ("vecenv.norm_obs", "vecenv.envs", "vecenv.transforms", "vecenv.facades", "vecenv.sb3", "vecenv.creator"),
    ("vecenv.testing",),
    ("vecenv", "vecenv.__main__"),
    ("collector.timing", "collector.interruptor"),
    ("collector.arguments", "collector.batch", "collector.episodes", "collector.device"),
    ("collector.store",),
    ("collector.policy", "collector.mlp", "collector.prepare"),
    ("collector.loops",),
    ("collector.env_source", "collector.collect", "collector.evaluation", "collector.base_collector"),
    ("collector.sync_collector", "collector.async_collector", "collector.rollouts"),
    ("collector.job", "collector.cluster"),
    ("collector", "collector.__main__"),
)

ALIASES = {"interruptor", "mlp", "prepare", "timing"}
"""Small modules that the tree in docs/design.md leaves out."""

CORE_LIBRARIES = frozenset({"numpy", "gymnasium", "cloudpickle"})


class Adapted(NamedTuple):
    """Where an optional library may be imported: files that match one of `files`, and at most `limit` of them."""

    files: tuple[str, ...]
    limit: int | None = 1


OPTIONAL_LIBRARIES = {
    "torch": Adapted(("collector/*", "vecenv/openmp.py"), limit=None),
    # One file imports it; one looks whether the program has, to tell a module of tensordict's from others.
    "tensordict": Adapted(("collector/batch/tensordict_form.py", "collector/policy/signature.py"), limit=2),
    "torchrl": Adapted(("collector/device/to_torchrl.py",)),
    "ray": Adapted(("vecenv/ray_cluster.py",)),
    "pettingzoo": Adapted(("vecenv/envs/*",)),
    "envpool": Adapted(("vecenv/envs/*",)),
    "dm_control": Adapted(("vecenv/envs/*",)),
    "dm_env": Adapted(("vecenv/envs/*",)),
    "mujoco": Adapted(("vecenv/envs/*",)),
    "ale_py": Adapted(("vecenv/envs/*",)),
    "stable_baselines3": Adapted(("vecenv/facades/to_sb3.py", "vecenv/facades/sb3_agents.py"), limit=2),
    "matplotlib": Adapted(("collector/*",)),
    "threadpoolctl": Adapted(("vecenv/backends/pool/openmp_release.py",)),
    "msgspec": Adapted(("collector/job/*",), limit=None),
    "tyro": Adapted(("collector/job/cli.py", "collector/job/commands.py", "collector/job/job_flags.py"), limit=3),
    "yaml": Adapted(("collector/job/job_files.py",)),
    "tomli": Adapted(("collector/job/job_files.py",)),
    "imageio": Adapted(("collector/job/look/video.py",)),
    "imageio_ffmpeg": Adapted(("collector/job/look/video.py",)),
    "rich": Adapted(("collector/job/look/progress_report.py", "collector/cluster/display.py"), limit=2),
    "array_api_compat": Adapted(("vecenv/transforms/*",)),
    "h5py": Adapted(("collector/store/export/*",)),
    "pyarrow": Adapted(("collector/store/export/arrow_*.py",), limit=None),
    "minari": Adapted(("collector/store/export/*",)),
    "PIL": Adapted(("collector/store/export/*",)),
    "cv2": Adapted(("vecenv/transforms/*",)),
}

Sources = dict[str, str]  # path below the project's root -> source text


class Import(NamedTuple):
    """One imported module, by its absolute name. `at_import` is false in functions and under TYPE_CHECKING."""

    path: str
    line: int
    target: str
    at_import: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: imports {self.target}"


def project_sources() -> Sources:
    files = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def statements(node: ast.AST, at_import: bool = True) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below `node`, with whether importing the module runs it."""
    for child in ast.iter_child_nodes(node):
        yield child, at_import
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from statements(child, False)
        elif isinstance(child, ast.If) and is_type_checking(child.test):
            for part in child.body:
                yield part, False
                yield from statements(part, False)
            for part in child.orelse:
                yield part, at_import
                yield from statements(part, at_import)
        else:
            yield from statements(child, at_import)


def dynamic_import(node: ast.AST) -> str | None:
    """The module named by `import_module("x")`, `__import__("x")`, `sys.modules.get("x")` or `sys.modules["x"]`."""
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "sys.modules":
        return node.slice.value if isinstance(node.slice, ast.Constant) else None
    if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
        return None
    if ast.unparse(node.func) == "sys.modules.get":
        return str(node.args[0].value)
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
    value = node.args[0].value
    return value if name in ("import_module", "__import__") and isinstance(value, str) else None


def imports_of(path: str, source: str, modules: set[str]) -> Iterator[Import]:
    """Every import in one file. The target of `from p import name` is `p.name` where that is a module, else `p`."""
    module = module_of(path)
    package = module if path.endswith("__init__.py") else module.rpartition(".")[0]
    for node, at_import in statements(ast.parse(source, path)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            ancestor = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            stem = ".".join([*ancestor, *([node.module] if node.module else [])])
            targets = [f"{stem}.{a.name}" if f"{stem}.{a.name}" in modules else stem for a in node.names]
        elif (dynamic := dynamic_import(node)) is not None:
            targets = [dynamic]
        else:
            continue
        for target in dict.fromkeys(targets):
            yield Import(path, getattr(node, "lineno", 0), target, at_import)


def all_imports(sources: Sources) -> list[Import]:
    modules = {module_of(path) for path in sources}
    return [found for path, source in sources.items() for found in imports_of(path, source, modules)]


def layer_of(module: str) -> int | None:
    """The row of the most specific entry. Entry "vecenv" is its `__init__` alone, so is "collector"."""
    places = {entry: row for row, entries in enumerate(LAYERS) for entry in entries}
    matches = [entry for entry in places if inside(module, entry) and (entry not in PACKAGES or module == entry)]
    return places[max(matches, key=len)] if matches else None


def unplaced_modules(sources: Sources) -> list[str]:
    return [f"{path}: has no place in LAYERS; give it one" for path in sources if layer_of(module_of(path)) is None]


def upward_imports(sources: Sources) -> list[str]:
    wrong = []
    for found in all_imports(sources):
        here, there = layer_of(module_of(found.path)), layer_of(found.target)
        if here is not None and there is not None and there > here and found.target != module_of(found.path):
            wrong.append(f"{found}, a higher layer")
    return wrong


def own_package_imports(sources: Sources) -> list[str]:
    """Imports from an `__init__` that is itself still running when the importing module is first reached."""
    wrong = []
    for found in all_imports(sources):
        module = module_of(found.path)
        if found.target != module and inside(module, found.target):
            wrong.append(f"{found}, its own package; import the sibling from its module")
    return wrong


def import_cycles(sources: Sources) -> list[str]:
    """Groups of modules that reach each other through imports that run at import time."""
    modules = {module_of(path) for path in sources}
    reached: dict[str, set[str]] = {module: set() for module in modules}
    for found in all_imports(sources):
        if found.at_import and found.target in modules:
            reached[module_of(found.path)].add(found.target)
    for middle in modules:
        for module in modules:
            if middle in reached[module]:
                reached[module] |= reached[middle]
    groups = {tuple(sorted(other for other in reached[m] if m in reached[other])) for m in modules}
    return [f"import cycle: {', '.join(group)}" for group in sorted(groups) if group]


def library_breaches(sources: Sources) -> list[str]:
    """Third-party libraries that are listed nowhere, imported outside of their files, or in too many of them."""
    wrong, users = [], dict[str, set[str]]()
    for found in all_imports(sources):
        library = found.target.partition(".")[0]
        if library in sys.stdlib_module_names or library in CORE_LIBRARIES or library in PACKAGES:
            continue
        if library not in OPTIONAL_LIBRARIES:
            wrong.append(f"{found}, a library that is neither in CORE_LIBRARIES nor in OPTIONAL_LIBRARIES")
        elif not any(fnmatch.fnmatch(found.path, pattern) for pattern in OPTIONAL_LIBRARIES[library].files):
            wrong.append(f"{found}, allowed only in {', '.join(OPTIONAL_LIBRARIES[library].files)}")
        else:
            users.setdefault(library, set()).add(found.path)
    for library, files in users.items():
        limit = OPTIONAL_LIBRARIES[library].limit
        if limit is not None and len(files) > limit:
            wrong.append(f"{library} is imported in {', '.join(sorted(files))}: {limit} at most")
    return wrong


# Of other libraries, where there is no public way to the same thing; each use has its reason beside it.
PRIVATE_NAMES_OF_LIBRARIES = {
    "atexit": {"_clear"},
    "os": {"_exit"},
    "sys": {"_current_frames", "_getframe"},
    "multiprocessing": {"_args", "_default_context", "_forkserver", "_forkserver_alive_fd"},
    "envpool": {"_reset", "_state_keys"},
    "torch": {"_C", "_is_profiler_enabled", "_cuda_endAllocateToPool", "_validate_args"},
}
PUBLIC_OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}


def private_names(sources: Sources) -> list[str]:
    """Names with a leading underscore that are used outside of the file that defines them."""
    wrong = []
    of_libraries = PUBLIC_OF_NAMED_TUPLES.union(*PRIVATE_NAMES_OF_LIBRARIES.values())
    for path, source in sources.items():
        tree = ast.parse(source, path)
        own = set(of_libraries)
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                own.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                own.add(node.attr)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                own.update(target.id for target in targets if isinstance(target, ast.Name))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.Attribute):
                names = [] if ast.unparse(node.value) in ("self", "cls", "super()") else [node.attr]
            else:
                continue
            wrong += [
                f"{path}:{node.lineno}: uses {name}, which is private elsewhere"
                for name in names
                if name.startswith("_") and not name.endswith("__") and name not in own
            ]
    return wrong


def shadowing_names(sources: Sources) -> list[str]:
    libraries = CORE_LIBRARIES | OPTIONAL_LIBRARIES.keys()
    return [f"{path}: shadows a library" for path in sources if Path(path).stem in libraries]


RULES = (
    unplaced_modules,
    upward_imports,
    own_package_imports,
    import_cycles,
    library_breaches,
    private_names,
    shadowing_names,
)


@pytest.mark.parametrize("rule", RULES)
def test_the_project_keeps_the_rule(rule):
    sources = project_sources()
    assert {path.partition("/")[0] for path in sources} == set(PACKAGES), "a package is missing"
    assert rule(sources) == []


GOOD: Sources = {
    "vecenv/__init__.py": "from vecenv.venvs import ShmemVectorEnv\nfrom vecenv.errors import WorkerDiedError\n",
    "vecenv/errors.py": "",
    "vecenv/nest.py": "import collections.abc\nimport numpy as np\nfrom vecenv.errors import ObservationError\n",
    "vecenv/backends/__init__.py": "",
    "vecenv/backends/base.py": "from vecenv import nest\nfrom ..errors import WorkerDiedError\n",
    "vecenv/backends/shmem.py": "from vecenv.backends import base\nfrom . import base\nfrom .base import Backend\n",
    "vecenv/ray_cluster.py": "def connect():\n    import ray\n",
    "vecenv/base.py": "from vecenv.backends.base import Backend\n",
    "vecenv/venvs.py": "from vecenv.base import BaseVectorEnv\nfrom vecenv.backends.shmem import ShmemBackend\n",
    "vecenv/testing.py": "import gymnasium as gym\nfrom vecenv.venvs import ShmemVectorEnv\n",
    "collector/__init__.py": "from collector.sync_collector import SyncDataCollector\n",
    "collector/sync_collector.py": "import torch\nimport torch.nn as nn\nfrom vecenv import ShmemVectorEnv\n",
    "collector/cluster.py": "from vecenv.ray_cluster import connect\n",
}


def test_a_project_that_keeps_the_rules_passes_them_all():
    assert [message for rule in RULES for message in rule(GOOD)] == []


TYPES_ONLY = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from vecenv.base import BaseVectorEnv"
TRIED = "try:\n    from .base import BaseVectorEnv\nexcept ImportError:\n    BaseVectorEnv = None"
CALLED = 'import importlib\nimportlib.import_module("torch.nn")'


@pytest.mark.parametrize(
    ("rule", "path", "line", "message"),
    [
        (unplaced_modules, "vecenv/utils.py", "", "no place"),
        (unplaced_modules, "stray/__init__.py", "", "no place"),
        (upward_imports, "vecenv/nest.py", "from vecenv.base import BaseVectorEnv", "higher layer"),
        (upward_imports, "vecenv/nest.py", "from .base import BaseVectorEnv", "higher layer"),
        (upward_imports, "vecenv/nest.py", "from . import base", "higher layer"),
        (upward_imports, "vecenv/nest.py", "import vecenv.venvs as v", "higher layer"),
        (upward_imports, "vecenv/nest.py", "def f():\n    import vecenv.base", "higher layer"),
        (upward_imports, "vecenv/nest.py", TYPES_ONLY, "higher layer"),
        (upward_imports, "vecenv/venvs.py", "import vecenv.testing", "higher layer"),
        (upward_imports, "vecenv/venvs.py", "import collector.sync_collector", "higher layer"),
        (own_package_imports, "vecenv/base.py", "import vecenv", "own package"),
        (own_package_imports, "vecenv/base.py", "from vecenv import WorkerDiedError", "own package"),
        (own_package_imports, "vecenv/base.py", "from . import WorkerDiedError", "own package"),
        (own_package_imports, "vecenv/backends/shmem.py", "from vecenv.backends import Backend", "own package"),
        (own_package_imports, "collector/job/run.py", "from collector import Rollout", "own package"),
        (import_cycles, "vecenv/errors.py", "import vecenv.nest", "vecenv.errors, vecenv.nest"),
        (import_cycles, "vecenv/errors.py", TRIED, "vecenv.backends.base, vecenv.base, vecenv.errors"),
        (library_breaches, "vecenv/nest.py", "import torch", "only in collector/"),
        (library_breaches, "vecenv/nest.py", "def f():\n    import torch", "only in collector/"),
        (library_breaches, "vecenv/nest.py", CALLED, "only in collector/"),
        (library_breaches, "vecenv/backends/shmem.py", "from ray import get", "only in vecenv/ray_cluster.py"),
        (library_breaches, "collector/sync_collector.py", "import scipy", "neither"),
        (library_breaches, "vecenv/nest.py", 'import sys\nsys.modules.get("torch")', "only in collector/"),
        (private_names, "vecenv/base.py", "Backend._open()", "uses _open"),
        (private_names, "vecenv/base.py", "from vecenv.nest import _map", "uses _map"),
        (shadowing_names, "vecenv/envs/pettingzoo.py", "", "shadows"),
    ],
)
def test_each_rule_notices_its_breach(rule, path, line, message):
    """The line is appended to the good project, so that it is the only thing wrong with it."""
    found = rule({**GOOD, path: GOOD.get(path, "") + line + "\n"})
    assert len(found) == 1
    assert message in found[0]


def test_an_optional_library_has_one_adapter():
    sources = {**GOOD, "vecenv/envs/one.py": "import envpool\n"}
    assert library_breaches(sources) == []
    sources["vecenv/envs/two.py"] = "import envpool.registration\n"
    assert library_breaches(sources) == ["envpool is imported in vecenv/envs/one.py, vecenv/envs/two.py: 1 at most"]


@pytest.mark.parametrize("line", ["def f():\n    from vecenv.base import BaseVectorEnv", TYPES_ONLY])
def test_only_imports_that_run_at_import_time_make_a_cycle(line):
    assert import_cycles({**GOOD, "vecenv/errors.py": line + "\n"}) == []


def folders() -> list[Path]:
    return [path.parent for package in PACKAGES for path in sorted((ROOT / package).rglob("__init__.py"))]


def test_no_folder_holds_more_files_than_a_reader_takes_in():
    assert {str(folder): n for folder in folders() if (n := len(list(folder.glob("*.py")))) > 15} == {}


def test_design_md_names_every_folder_and_every_module_of_the_top_level():
    tree = (ROOT / "docs" / "design.md").read_text().partition("## Layout and layers")[2].partition("## Engine")[0]
    words = set(re.findall(r"[\w]+", tree))
    modules = {path.stem for package in PACKAGES for path in (ROOT / package).glob("*.py")} - {"__init__", "__main__"}
    assert (modules | {folder.name for folder in folders()}) - words == ALIASES
