"""Has two libraries lose no time in tests: httpx keeps its TLS contexts, and uvicorn soon sees that it shall end.

Each call of `httpx.get` and the like reads the certificates of the machine anew, which takes longer than most tests' calls.
uvicorn sleeps twice for 0.1 s until it has ended, and offers no other way. Both act as before, and where a module of tests
imports this one: those that start servers do.
"""

from __future__ import annotations

import asyncio
import os
from types import ModuleType
from typing import Any

import uvicorn.server
from httpx._transports import default as transports

_TICK_S = 0.01
_contexts: dict[object, Any] = {}
_create = vars(transports)["create_ssl_context"]


def _context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> Any:
    """The context that httpx would make, made once. The key has the variables that name the certificates to be trusted."""
    if verify is not True or cert is not None:
        return _create(verify=verify, cert=cert, trust_env=trust_env)
    key = (trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    if key not in _contexts:
        _contexts[key] = _create(trust_env=trust_env)
    return _contexts[key]


async def _sleep(delay_s: float) -> None:
    await asyncio.sleep(min(delay_s, _TICK_S))


def _hasten() -> None:
    vars(transports)["create_ssl_context"] = _context
    hasty = ModuleType("asyncio")
    vars(hasty).update(vars(asyncio), sleep=_sleep)
    vars(uvicorn.server)["asyncio"] = hasty


_hasten()
