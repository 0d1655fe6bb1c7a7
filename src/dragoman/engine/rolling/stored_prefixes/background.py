"""A thread that gives way to the kernels.

Does: lower the calling thread's priority, so that a step hardly waits for disks. Does not: start threads. Called first by
the threads of this package.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

_NICENESS = 10  # a tenth of a core where the kernels want all, all of one where they do not


def give_way() -> None:
    """Have the calling thread run where others leave time."""
    with suppress(OSError):  # then it competes
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
