"""Actions in every form that users of other libraries pass, and the actions that envs then receive.

Workers import this module, so it imports little.
"""

import functools

import numpy as np
from gymnasium import spaces

from tests.support.cases import Records, discrete

N = 3
PAIR, ONE, NUMBER = (spaces.Box(-9, 9, shape, np.float32) for shape in ((2,), (1,), ()))
TREE = spaces.Dict(a=spaces.Discrete(9), b=spaces.Dict(c=PAIR))
TUPLE = spaces.Tuple((spaces.Discrete(9), PAIR))
CHOICE, CHOICES, BITS = spaces.Discrete(9), spaces.MultiDiscrete([9, 9]), spaces.MultiBinary(2)
TENTHS = np.arange(1, 2 * N + 1).reshape(N, 2) / 10
INTS = np.arange(N)
DTYPES = [np.float32, np.float64, np.float16, np.int32, np.int64, np.uint8, np.bool_]

BATCHES = {
    **{f"Box {np.dtype(t)}": (PAIR, TENTHS.astype(t)) for t in DTYPES},
    "Box in the other order": (PAIR, np.asfortranarray(TENTHS)),
    "Box lists": (PAIR, TENTHS.tolist()),
    "Box ints": (PAIR, [[1, 2], [3, 4], [5, 6]]),
    "Box tuple of arrays": (PAIR, tuple(TENTHS.astype(np.float32))),
    "Box arrays of several types": (PAIR, [np.ones(2, np.float32), np.ones(2), [1, True]]),
    "Box objects": (PAIR, TENTHS.astype(object)),
    **{f"(1,) {np.dtype(t)}": (ONE, TENTHS[:, :1].astype(t)) for t in (np.float32, np.float64)},
    "(1,) numbers": (ONE, TENTHS[:, 0]),
    **{f"() {np.dtype(t)}": (NUMBER, TENTHS[:, 0].astype(t)) for t in DTYPES},
    "() floats": (NUMBER, TENTHS[:, 0].tolist()),
    "() arrays": (NUMBER, [np.array(0.5, np.float32)] * N),
    "() rows": (NUMBER, TENTHS[:, :1].astype(np.float32)),
    **{f"Discrete {np.dtype(t)}": (CHOICE, INTS.astype(t)) for t in DTYPES},
    "Discrete ints": (CHOICE, [4, 5, 6]),
    "Discrete bools": (CHOICE, [True, False, True]),
    "Discrete numbers": (CHOICE, [np.int64(4), np.int32(5), 6]),
    "Discrete objects": (CHOICE, np.array([4, 5, 6], object)),
    "Discrete texts": (CHOICE, ["up", "down", "left"]),
    "Discrete rows": (CHOICE, INTS[:, None]),
    "Discrete int32 in int32": (discrete(9, np.int32), INTS.astype(np.int32)),
    **{f"MultiDiscrete {t.__name__}": (CHOICES, np.ones((N, 2), t)) for t in (np.int64, np.int32)},
    "MultiDiscrete ints": (CHOICES, [[1, 2]] * N),
    **{f"MultiBinary {t.__name__}": (BITS, np.ones((N, 2), t)) for t in (np.int8, np.bool_)},
    "Dict": (TREE, {"a": INTS, "b": {"c": TENTHS.astype(np.float32)}}),
    "Dict float64": (TREE, {"a": INTS, "b": {"c": TENTHS}}),
    "Dict int32, ints": (TREE, {"a": INTS.astype(np.int32), "b": {"c": [[1, 2]] * N}}),
    "Tuple": (TUPLE, (INTS, TENTHS.astype(np.float32))),
    "Tuple float64, ints": (TUPLE, ([1, 2, 3], TENTHS)),
}
"""Name -> (action space, batch for N envs), in the form of gymnasium."""

ROWS = {
    **{name: batch for name, batch in BATCHES.items() if batch[0] not in (TREE, TUPLE)},
    "Dict": (TREE, [{"a": a, "b": {"c": c}} for a, c in zip(INTS, TENTHS.astype(np.float32), strict=True)]),
    "Dict float64, ints": (TREE, [{"a": 3, "b": {"c": c}} for c in TENTHS]),
    "Tuple": (TUPLE, list(zip(INTS, TENTHS.astype(np.float32), strict=True))),
    "Tuple float64, ints": (TUPLE, [(3, c) for c in TENTHS]),
}
"""The same batches in the form of SB3, indexed by env."""


def described(action):
    """Return the types of an action and its parts, with dtype, shape and bytes."""
    if isinstance(action, dict):
        return {key: described(part) for key, part in action.items()}
    if isinstance(action, (list, tuple)):
        return type(action), [described(part) for part in action]
    if isinstance(action, (np.ndarray, np.generic)):
        values = action.tolist() if action.dtype == object else action.tobytes()
        return type(action), action.dtype, action.shape, values
    return type(action), action


def actions_of(envs, batches):
    """Step each batch once, and return the actions that each env received."""
    envs.reset()
    for batch in batches:
        envs.step(batch)
    return envs.get_attr("actions")


def arrived(make, batches=BATCHES):
    """Return a description of each env's action by name of the batch. `make(env_fns)` is called once per space."""
    found = {}
    for space in {id(space): space for space, _ in batches.values()}.values():
        mine = {name: batch for name, (its, batch) in batches.items() if its is space}
        envs = make([functools.partial(Records, space)] * N)
        actions = actions_of(envs, mine.values())
        found |= {name: [described(got[k]) for got in actions] for k, name in enumerate(mine)}
        envs.close()
    return found
