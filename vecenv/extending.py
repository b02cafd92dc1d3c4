"""Names for packages that extend vecenv, as `collector` does.

Users of vector envs find theirs in `vecenv`. `collector` imports from there, from here, and from modules of `vecenv`
itself; nothing below imports this module.
"""

from vecenv.backends.host.failure import add_note as add_note
from vecenv.backends.host.row_writer import cast_exactly as cast_exactly
from vecenv.backends.memory.arena import Layout as Layout
from vecenv.backends.memory.arena import Leaf as Leaf
from vecenv.backends.memory.arena import ObjectLeaf as ObjectLeaf
from vecenv.backends.memory.arena import common_layout as common_layout
from vecenv.backends.pool.spinning_threads import release_pool as release_pool
from vecenv.backends.worker.worker_setup import seed_generators as seed_generators
from vecenv.backends.worker.worker_setup import worker_seeds as worker_seeds
from vecenv.engine.actions import batch_actions as batch_actions
from vecenv.engine.arguments import as_autoreset as as_autoreset
from vecenv.engine.arguments import as_ids as as_ids
from vecenv.engine.arguments import check_count as check_count
from vecenv.engine.arguments import check_options as check_options
from vecenv.engine.arguments import check_seed as check_seed
from vecenv.engine.arguments import check_timeout as check_timeout
from vecenv.engine.arguments import own_env_fns as own_env_fns
from vecenv.engine.arguments import round_envs as round_envs
from vecenv.engine.arguments import seed_chain as seed_chain
from vecenv.engine.arguments import spread_seeds as spread_seeds
from vecenv.engine.recovery import is_repeated as is_repeated
from vecenv.envs.gym_env import find_spec as find_spec
from vecenv.transforms.compose import HasTransforms as HasTransforms
from vecenv.transforms.compose import flat as flat
from vecenv.transforms.transform import Freezable as Freezable
from vecenv.tuning.auto_backend import VECTOR_ENVS as VECTOR_ENVS
