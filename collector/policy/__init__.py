"""Policies of collectors.

A policy is a callable. It gets observations `(k, ...)`, with a row for each env that steps next, and returns one of:

- actions `(k, ...)`. For Dict and Tuple spaces: a list of k actions, or `{"action": a}` with a dict or tuple of arrays.
- a distribution of actions, with `sample` and `log_prob` as in `torch.distributions`. The collector's
  `exploration_type` selects a sample, the mode or the mean.
- a dict with `action` (as above) and more outputs `(k, ...)` to store.
- a tuple: the actions, then more outputs, stored as `output1`, `output2`, ...

A `torch.nn.Module` gets tensors, and so does any policy if the collector has a `policy_device`. Other policies get
numpy arrays. Every policy may return tensors or arrays. Batches store outputs without gradients, and bfloat16 as
float32.

Modules of tensordict get a `TensorDict` and no infos. So does any policy, if its only required parameter is named
`tensordict` or `td`, or annotated as `TensorDict` or `TensorDictBase`.

Other policies get arguments by the names of their parameters:

- Keys of a dict observation: if all required parameters are keys, the policy gets these entries. Otherwise the first
  parameter is the whole observation.
- `env_id`: the env of each row, int64 `(k,)`.
- `state`: the recurrent state, an array or tensor `(k, ...)`, or a dict or tuple of these. The policy returns
  `{"action": ..., "state": ...}` or `(action, state)`, with the new state. When an episode begins, the state is a row
  of `policy.initial_state(k)`, or zeros without this method. To learn the shapes of the zeros, the collector makes a
  first call with `state=None`, and then restores random generators.
- a name in the collector's `info_keys`: this entry of the infos, `(k, ...)`, in the dtype of `batch.extras`. Rows
  without the entry are zero. The argument is `None` until an info has the entry.
- `info`: the infos of the observations, an object array of dicts `(k,)`, which the policy must not change.

If a name has several meanings, observation keys have priority, then `state`, `env_id` and `info`, then `info_keys`.

Envs that are being reset have no row. So if a policy draws from one random stream, its actions depend on which envs
step together. `RandomPolicy` has a stream per env. With `episode_seeds`, every call has rows for all envs, and the
random numbers for random actions and common torch distributions depend only on job seed, episode and step.
"""
