"""Names for packages that extend vecenv.

The package `collector` imports only from `vecenv`, `vecenv.nest`, `vecenv.transforms` and this module.
"""

from vecenv.backends.gymnasium_backend import split_infos
from vecenv.backends.host.failure import add_note
from vecenv.backends.host.own_process import OneEnvPerProcess, retried_alone
from vecenv.backends.host.row_writer import cast_exactly
from vecenv.backends.memory.arena import Layout, Leaf, ObjectLeaf, common_layout, common_tree
from vecenv.backends.pool.spinning_threads import release_pool
from vecenv.backends.worker.worker_setup import seed_generators, worker_seeds
from vecenv.engine.actions import batch_actions
from vecenv.engine.arguments import (
    as_autoreset,
    as_ids,
    at_least_one,
    check_count,
    check_mapping,
    check_number,
    check_options,
    check_resources,
    check_seed,
    check_timeout,
    resolve_env_fns,
    round_envs,
    seed_chain,
    spread_seeds,
    whole,
)
from vecenv.engine.mark import LayerMark
from vecenv.engine.recovery import is_repeated
from vecenv.envs.gym_env import find_spec
from vecenv.envs.native_class import NativeClass
from vecenv.errors import warn_caller
from vecenv.portability import UNTRACKED, path_of_descriptor
from vecenv.ray_cluster import (
    RayCluster,
    actor_options,
    cause_of,
    connect,
    dead_nodes,
    end_actor,
    ends_soon,
    free_places,
    get_record,
    is_loss,
    make_actor,
    make_counter,
    missing_package,
    put_record,
    reason_of,
    remove_record,
    start_task,
    unreachable_nodes,
    unscheduled,
)
from vecenv.transforms.compose import HasTransforms, flat
from vecenv.transforms.transform import Freezable
from vecenv.tuning.auto_backend import VECTOR_ENVS
from vecenv.tuning.random_actions import draw_action, mask_in
from vecenv.tuning.repeats import RepeatProbe
from vecenv.wrappers import check_send_and_recv, resets_in_step, step_with_views

__all__ = ["UNTRACKED", "VECTOR_ENVS", "Freezable", "HasTransforms", "LayerMark", "Layout", "Leaf", "NativeClass"]
__all__ += ["ObjectLeaf", "OneEnvPerProcess", "RayCluster", "RepeatProbe"]
__all__ += ["actor_options", "add_note", "as_autoreset", "as_ids", "at_least_one", "batch_actions", "cast_exactly"]
__all__ += ["cause_of", "check_count", "check_mapping", "check_number", "check_options", "check_resources"]
__all__ += [
    "check_seed",
    "check_send_and_recv",
    "check_timeout",
    "common_layout",
    "common_tree",
    "connect",
    "dead_nodes",
]
__all__ += ["draw_action", "end_actor"]
__all__ += ["ends_soon", "find_spec", "flat", "free_places", "get_record", "is_loss", "is_repeated", "make_actor"]
__all__ += [
    "make_counter",
    "mask_in",
    "missing_package",
    "path_of_descriptor",
    "put_record",
    "reason_of",
    "release_pool",
]
__all__ += ["remove_record", "resets_in_step", "resolve_env_fns", "retried_alone", "round_envs", "seed_chain"]
__all__ += [
    "seed_generators",
    "split_infos",
    "spread_seeds",
    "start_task",
    "step_with_views",
    "unreachable_nodes",
    "unscheduled",
]
__all__ += ["warn_caller", "whole", "worker_seeds"]
