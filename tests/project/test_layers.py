"""The code keeps the layers and the layout of docs/explanation/design.md. The check needs no optional library."""

import ast
import fnmatch
import functools
import graphlib
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

# A module may import from its row and the rows to the left (lower layers), not from rows to the right.
# An entry stands for the module and all modules inside, but `vecenv` and `collector` only for `__init__`.
LAYERS = """
    vecenv.worker_numpy vecenv.errors vecenv.nest vecenv.spaces vecenv.layout vecenv.actions vecenv.arguments
    vecenv.ctrl_c vecenv.seeds vecenv.random_actions vecenv.portability vecenv.ray_cluster < vecenv.backends.ipc
    vecenv.backends.system_limits < vecenv.spinning_threads < vecenv.backends.memory < vecenv.backends.host <
    vecenv.backends.worker < vecenv.backends.pool < vecenv.backends < vecenv.engine < vecenv.base
    vecenv.running_mean_std < vecenv.venvs < vecenv.tuning < vecenv.wrappers < vecenv.norm_obs vecenv.creator <
    vecenv.envs < vecenv.transforms vecenv.facades < vecenv.sb3 vecenv.testing < vecenv < vecenv.__main__
    vecenv.worker < collector.basics < collector.batch collector.episodes collector.device < collector.store <
    collector.policy < collector.collectors < collector.jobs collector.cluster < collector.testing <
    collector collector.__main__
"""
ROWS = {entry: row for row, entries in enumerate(LAYERS.split("<")) for entry in entries.split()}
PACKAGES = {"vecenv", "collector"}
# The parts of vecenv for packages that extend it: `collector` imports from no others. A package stands for its modules.
PARTS = """
    vecenv vecenv.actions vecenv.arguments vecenv.ctrl_c vecenv.engine.mark vecenv.envs vecenv.errors vecenv.layout
    vecenv.nest vecenv.portability vecenv.random_actions vecenv.ray_cluster vecenv.seeds vecenv.spinning_threads
    vecenv.testing vecenv.transforms vecenv.tuning vecenv.wrappers
"""
SHARED = set(PARTS.split())
# Attributes of the engine for wrappers and facades. `base` and `facades/stepper.py` may read all, and collector none.
ENGINE = {"all_ids", "autoresets", "calls", "check_open", "closed", "exchange", "is_async", "receive", "recover"}
ENGINE |= {"statistics", "status", "wait_for_all"}
READ_ALL = ("vecenv/engine/", "vecenv/base.py", "vecenv/facades/stepper.py")
CORE_LIBRARIES = {"numpy", "gymnasium", "cloudpickle", *sys.stdlib_module_names, *PACKAGES}
# Optional libraries, and the files that may import each.
OPTIONAL = """
    pettingzoo envpool dm_control dm_env mujoco ale_py: vecenv/envs/*
    torch: collector/* vecenv/spinning_threads.py vecenv/*/serialization.py vecenv/*/env_probe.py \
        vecenv/*/repeats.py vecenv/running*.py
    tensordict: collector/batch/tensordict_form.py collector/policy/policy_call.py
    ray: vecenv/ray_cluster.py
    stable_baselines3: vecenv/facades/to_sb3.py vecenv/sb3.py
    matplotlib: collector/jobs/dataset_info.py
    msgspec: collector/jobs/* collector/store/schema.py
    tyro: collector/__main__.py collector/jobs/commands.py
    yaml: collector/jobs/job_files.py
    imageio imageio_ffmpeg: collector/jobs/replay.py
    rich: collector/jobs/report.py
    cv2: vecenv/transforms/*
    gym: vecenv/worker_numpy.py
    minari PIL h5py: collector/store/export/*
    pyarrow: collector/store/export/arrow_*
"""
PLACES = [line.split(":") for line in OPTIONAL.strip().splitlines()]
ALLOWED = {name: places.split() for names, places in PLACES for name in names.split()}
DYNAMIC = re.compile(r"(?:import_module\(|__import__\(|sys\.modules(?:\.get\(|\[))[\"'](?!__main__)([\w.]+)")
Sources = dict[str, str]  # path below the project's root -> source text


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@functools.cache
def row_of(module: str) -> int | None:
    """Return the row of the most specific entry. `vecenv` and `collector` stand only for `__init__`."""
    names = [module, *(module[: dot.start()] for dot in reversed([*re.finditer(r"\.", module)]))]
    return next((ROWS[name] for name in names if name in ROWS and (name == module or name not in PACKAGES)), None)


@functools.cache
def imports_of(source: str) -> list[tuple[str, str, bool]]:
    """List the imports: the imported name, its module, and whether the import is only for types."""
    tree, typed, found = ast.parse(source), set[ast.AST](), list[tuple[str, str, bool]]()
    for node in ast.walk(tree):  # outer nodes come first
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            typed.update(below for part in node.body for below in ast.walk(part))
        elif isinstance(node, ast.Import):
            found += [(alias.name, alias.name, node in typed) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(f"{node.module}.{alias.name}", str(node.module), node in typed) for alias in node.names]
    return found + [(name, name, False) for name in DYNAMIC.findall(source)]


@functools.cache
def engine_reads(source: str) -> set[str]:
    """Return the names that this file reads from an engine, such as `results` in `venv.engine.results`."""
    return {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute))
        if re.fullmatch(r"(.*_)?engine", node.value.id if isinstance(node.value, ast.Name) else node.value.attr)
    }


def shared_part(module: str) -> str | None:
    """Return the entry of SHARED with this module, or `None`."""
    parts = module.split(".")
    names = [module, *(".".join(parts[:stop]) for stop in range(len(parts) - 1, 1, -1))]
    return next((name for name in names if name in SHARED), None)


def breaches(sources: Sources) -> Iterator[str]:
    """Yield a message for each breach of a rule."""
    modules = {module_of(path): path for path in sources}
    graph = defaultdict[str, set[str]](set)  # of files, and of folders that do not contain each other
    unused: set[str | None] = {*SHARED}
    for path, source in sources.items():
        module, here = module_of(path), row_of(module_of(path))
        if here is None:
            yield f"{path}: has no place in LAYERS; give it one"
        private = [name for name, *_ in imports_of(source) if re.match(r"(vecenv|collector)\..*\b_(?!_)", name)]
        yield from (f"{path}: imports {name}, which is private elsewhere" for name in private)
        wanted = engine_reads(source) - (set() if path.startswith("collector/") else ENGINE)
        if wanted and not path.startswith(READ_ALL):
            yield f"{path}: reads {', '.join(sorted(wanted))} of an engine"
        for target, typed in {(name if name in modules else stem, typed) for name, stem, typed in imports_of(source)}:
            at, there, library = f"{path}: imports {target}", row_of(target), target.partition(".")[0]
            if here is not None and there is not None and there > here:
                yield f"{at}, a higher layer"
            if f"{module}.".startswith(f"{target}.") and target != module:  # the package's `__init__` is still running
                yield f"{at}, its own package; import the sibling from its module"
            if path.startswith("collector/") and library == "vecenv":
                if shared_part(target) is None:
                    yield f"{at}, which is inside vecenv; collector may import from the parts in SHARED"
                unused.discard(shared_part(target))
            if library not in CORE_LIBRARIES | ALLOWED.keys():
                yield f"{at}, a library that is neither in CORE_LIBRARIES nor in OPTIONAL"
            if not any(fnmatch.fnmatch(path, pattern) for pattern in ALLOWED.get(library, "*")):
                yield f"{at}, allowed only in {ALLOWED[library]}"
            if not typed and target in modules:
                graph[path].add(modules[target])
                one, other = Path(path).parent, Path(modules[target]).parent
                if not (one.is_relative_to(other) or other.is_relative_to(one)):
                    graph[str(one)].add(str(other))
    yield from (f"collector does not import from {part}; remove it from SHARED" for part in unused)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        yield f"import cycle: {', '.join(sorted(set(error.args[1])))}"


SOURCES: Sources = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}


A_HIGHER = "from vecenv.base import BaseVectorEnv"
BREACHES = (
    ("no place", "vecenv/utils.py", ""),
    ("a higher layer", "vecenv/nest.py", f"def f():\n    {A_HIGHER}"),
    ("a higher layer", "vecenv/nest.py", f"if TYPE_CHECKING:\n    {A_HIGHER}"),
    ("own package", "vecenv/base.py", "from vecenv import WorkerDiedError"),
    ("inside vecenv", "collector/jobs/one.py", "import vecenv.backends.backend"),
    ("cycle: vecenv/errors.py, vecenv/nest.py", "vecenv/nest.py", "def f():\n    import vecenv.errors"),
    ("cycle: vecenv/engine, vecenv/envs", "vecenv/engine/one.py", "def f():\n    import vecenv.envs.gym_env"),
    ("allowed only", "vecenv/nest.py", 'import_module("torch.nn")'),
    ("neither", "collector/sync_collector.py", "import scipy"),
    ("imports vecenv.base._ajar", "vecenv/wrappers.py", "from vecenv.base import _ajar"),
    ("of an engine", "vecenv/facades/one.py", "venv.engine.results.rows()"),
    ("of an engine", "collector/jobs/one.py", "self.env.engine.closed"),
)


def test_the_project_keeps_the_rules_and_each_breach_is_noticed():
    """For a breach, a line is appended to a file of the project."""
    assert {path.partition("/")[0] for path in SOURCES} == PACKAGES, "a package is missing"
    assert list(breaches(SOURCES)) == []
    for message, path, line in BREACHES:
        found = list(breaches({**SOURCES, path: SOURCES.get(path, "") + line + "\n"}))
        assert len([each for each in found if message in each]) == 1, (message, path, line, found)
        assert "TYPE_CHECKING" not in line or "cycle" not in str(found)
