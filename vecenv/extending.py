"""Names for packages that extend vecenv, as `collector` does: checks of arguments, layouts, lists of vector envs.

Users of vector envs find theirs in `vecenv`. `collector` imports from there, from here, and from modules of `vecenv`
itself; nothing below imports this module.
"""

from vecenv.backends.host.failure import add_note
from vecenv.backends.host.row_writer import cast_exactly
from vecenv.backends.memory.arena import Layout, Leaf, ObjectLeaf, common_layout
from vecenv.backends.pool.spinning_threads import release_pool
from vecenv.backends.worker.worker_setup import seed_generators, worker_seeds
from vecenv.engine.actions import batch_actions
from vecenv.engine.arguments import (
    as_ids,
    check_count,
    check_options,
    check_seed,
    check_timeout,
    own_env_fns,
    round_envs,
    seed_chain,
    spread_seeds,
)
from vecenv.engine.recovery import is_repeated
from vecenv.envs.gym_env import find_spec
from vecenv.transforms.compose import HasTransforms, flat
from vecenv.transforms.transform import Freezable
from vecenv.tuning.auto_backend import VECTOR_ENVS

__all__ = [
    "VECTOR_ENVS",
    "Freezable",
    "HasTransforms",
    "Layout",
    "Leaf",
    "ObjectLeaf",
    "add_note",
    "as_ids",
    "batch_actions",
    "cast_exactly",
    "check_count",
    "check_options",
    "check_seed",
    "check_timeout",
    "common_layout",
    "find_spec",
    "flat",
    "is_repeated",
    "own_env_fns",
    "release_pool",
    "round_envs",
    "seed_chain",
    "seed_generators",
    "spread_seeds",
    "worker_seeds",
]
