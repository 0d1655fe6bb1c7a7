"""Lets a second signal end the process even while C code holds the interpreter's lock, which keeps handlers from
running.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import signal

_SA_RESETHAND = 0x80000000
_STDERR = 2


class _SigAction(ctypes.Structure):
    """The C library's `struct sigaction` on Linux. Source: signal.h of glibc and of musl."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint64 * 16),
        ("flags", ctypes.c_uint),
        ("restorer", ctypes.c_void_p),
    )


def handle_once(number: signal.Signals) -> None:
    """Let the present handler be called once; then the signal ends the process."""
    action = _SigAction()
    sigaction = ctypes.CDLL(None).sigaction
    if sigaction(ctypes.c_int(number), None, ctypes.byref(action)) == 0:
        action.flags |= _SA_RESETHAND
        sigaction(ctypes.c_int(number), ctypes.byref(action), None)


class Watchdog:
    """Ends the process, and prints where it was, if the event loop stands still. Needs no interpreter lock."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._next: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Begin; the running loop then restarts the countdown."""
        faulthandler.dump_traceback_later(self._patience_s, exit=True, file=_STDERR)
        self._next = asyncio.get_running_loop().call_later(self._patience_s / 4, self.watch)

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
            faulthandler.cancel_dump_traceback_later()
