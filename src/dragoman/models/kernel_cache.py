"""Bounds what the runtime keeps for steps of every size that it has computed.

Does: limit the two caches that hold kernels. Does not: choose kernels. Called by the loader, before the first compiling.

The CPU plugin generates machine code for each size of step, a megabyte for some five kernels, and keeps it for the next step
of that size. By default it keeps 5,000 kernels, and the library below it 1,024 more: a server whose prompts have many lengths
grows by up to a gigabyte. Steps that only decode have few sizes, which come back all the time; those are worth keeping.
Generating a step's kernels again takes some milliseconds, little beside a step with a prompt in it.
"""

from __future__ import annotations

import os

_NUM_KERNELS = 320  # five for each size of step up to 64, the sizes in which decoding comes back: some 75 MB
_NUM_SHARED_KERNELS = 64  # the library's own cache: it matters only to kernels that the plugin has dropped

PROPERTIES = {"CPU_RUNTIME_CACHE_CAPACITY": _NUM_KERNELS}
"""For compiling a graph, and for mapping one."""


def bound_shared_cache() -> None:
    """Limit the library's cache, which all graphs of the process share, unless the operator's environment does.

    It has no other setting than the environment, which it reads when it makes its first kernel.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(_NUM_SHARED_KERNELS))
