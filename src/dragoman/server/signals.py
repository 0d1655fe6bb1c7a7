"""Lets a second signal end the process at any time, even while a call of C holds the interpreter's lock for minutes.

Does: have the kernel remove a handler after its first call, and end a process whose loop stands still. Does not: drain, or
count signals (`run` does). Called on the main thread.

Python runs a signal's handler only once it runs Python code again; no Python code can change that.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import signal

_SA_RESETHAND = 0x80000000
_STDERR = 2


class _SigAction(ctypes.Structure):
    """The C library's `struct sigaction` on Linux. Source: its signal.h, of glibc and of musl."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint64 * 16),
        ("flags", ctypes.c_uint),
        ("restorer", ctypes.c_void_p),
    )


def handle_once(number: signal.Signals) -> None:
    """Let the present handler be called once; afterwards the signal has its default effect: it ends the process."""
    action = _SigAction()
    sigaction = ctypes.CDLL(None).sigaction
    if sigaction(ctypes.c_int(number), None, ctypes.byref(action)) == 0:
        action.flags |= _SA_RESETHAND
        sigaction(ctypes.c_int(number), ctypes.byref(action), None)


class Watchdog:
    """Ends the process when the event loop has stood still for `patience_s`, and prints where. Needs no interpreter lock."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._next: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Begin; from now on the loop restarts the countdown while it runs."""
        faulthandler.dump_traceback_later(self._patience_s, exit=True, file=_STDERR)
        self._next = asyncio.get_running_loop().call_later(self._patience_s / 4, self.watch)

    def stop(self) -> None:
        """Stop watching."""
        if self._next is not None:
            self._next.cancel()
            faulthandler.cancel_dump_traceback_later()
