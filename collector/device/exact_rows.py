"""Matrix products in which a row has the same bits wherever in the batch it stands.

Kernels treat rows differently by where they lie in memory (Intel's MKL, as it comes), and the last ones of a batch
differently where their number is not a multiple of four. So an episode would differ in its last bits where it is
played in another env. Where MKL has not been used yet, it can be asked for its reproducible kernels; whether products
are exact then is found by trying.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import lru_cache

from collector.device.tensors import torch

_MULTIPLE = 4
_ANY_REPRODUCIBLE = 2
"""MKL_CBWR_AUTO: as the environment variable MKL_CBWR=AUTO."""


def full_rows(rows: int) -> int:
    """The number of rows to which a batch of `rows` is filled up."""
    return rows if rows == 1 else -(-rows // _MULTIPLE) * _MULTIPLE


@lru_cache
def rows_are_exact(rows: int, device: torch.device) -> bool:
    """Whether rows of products of `rows` rows do not depend on where they stand, as far as trying can find it.

    The first call asks MKL for reproducible kernels, for the whole process. MKL refuses once it has been used.
    """
    _ask_for_reproducible()
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        for inputs in (6, 17, 64, 376):
            for outputs in (1, 6, 64):
                weight = torch.randn(outputs, inputs, generator=generator).to(device)
                batch = torch.randn(rows, inputs, generator=generator).to(device)
                product = torch.nn.functional.linear(batch, weight)
                for shift in range(1, min(rows, 5)):
                    moved = torch.nn.functional.linear(batch.roll(shift, 0), weight)
                    if not torch.equal(moved, product.roll(shift, 0)):
                        return False
    return True


def _ask_for_reproducible() -> None:
    # What `mkl_cbwr_set` calls, which torch does not export; the variable in the environment counts where it is set.
    with suppress(AttributeError):
        ctypes.PyDLL(torch._C.__file__).mkl_serv_cbwr_set(_ANY_REPRODUCIBLE)
