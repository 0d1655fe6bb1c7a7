"""Lets a second signal end the process whatever it does, also while one call of C holds the interpreter's lock for minutes.

Does: have the kernel take a handler away when it has been called once, and end a loop that stands still. Does not: drain, or
count signals (`run` does). Called on the main thread.

Python runs a signal's handler only once it runs Python code again; nothing that is written in Python can change that.
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
    """Let the handler that is there be called once; then the signal does what it does by default: it ends the process."""
    action = _SigAction()
    sigaction = ctypes.CDLL(None).sigaction
    if sigaction(ctypes.c_int(number), None, ctypes.byref(action)) == 0:
        action.flags |= _SA_RESETHAND
        sigaction(ctypes.c_int(number), ctypes.byref(action), None)


class Watchdog:
    """Ends the process when the event loop has stood still for so long, and says where. Needs no lock of the interpreter."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._next: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Begin; the loop tells it from now on that it runs."""
        faulthandler.dump_traceback_later(self._patience_s, exit=True, file=_STDERR)
        self._next = asyncio.get_running_loop().call_later(self._patience_s / 4, self.watch)

    def stop(self) -> None:
        """End no process any more."""
        if self._next is not None:
            self._next.cancel()
            faulthandler.cancel_dump_traceback_later()
