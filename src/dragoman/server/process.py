"""Settings of the server's process, on the main thread: the limit of open files, and signals that surely end it.

Python runs a signal's handler only when it runs Python code again. C code may hold the interpreter's lock for minutes, so
the kernel has to remove the handler.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import logging
import signal
import sys

_SA_RESETHAND = 0x80000000
_STDERR = 2
FEW = 4096  # of these some are the models' and the log's, all others are connections

logger = logging.getLogger("dragoman.server")


def raise_descriptor_limit() -> int | None:
    """The number of files that may be open from now on; None = unlimited."""
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):  # macOS: it allows less than it says
            logger.debug("the limit of open files stays at %d", soft)
    if soft == resource.RLIM_INFINITY:
        return None
    if soft < FEW:
        logger.warning(
            "only %d files may be open at once, and each connection is one: raise the limit (ulimit -Hn, LimitNOFILE=)",
            soft,
        )
    return soft


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
