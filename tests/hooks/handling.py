"""A model.py with a handler, written by a test, behind a real server over the fake service."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from dragoman.server.apis.lmi.dialect import CHAT, COMPLETIONS, INPUTS, LmiDialect
from dragoman.server.apis.lmi.hooks.loader import load_hooks
from dragoman.server.apis.lmi.hooks.threads import HandlerLoop, HookPool
from dragoman.server.apis.lmi.operator.handler_model import HandlerModel
from dragoman.server.apis.lmi.operator.handlers import HandlerRuntime, with_handler
from dragoman.server.apis.lmi_wire.parameters import LmiOptions
from tests.hooks.hooked import write_file
from tests.support.fake_service import FakeService
from tests.support.patience import PATIENCE_S
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, running_server

PROPERTIES = {"model_dir": "/models/m", "device_id": "-1", "tensor_parallel_degree": "1", "task": "say"}


def runtime_of(
    directory: Path, source: str, *, entry_point: str | None = None, timeout_s: float = PATIENCE_S, num_threads: int = 4
) -> tuple[HandlerRuntime, Any]:
    """The handler of such a file, initialised, and the file's module."""
    write_file(directory, source, entry_point or "model.py")
    hooks = load_hooks(entry_point, [directory])
    assert hooks is not None
    assert hooks.handler is not None
    pool = HookPool(None, subject="handler", num_threads=num_threads)
    runtime = HandlerRuntime(hooks.handler, PROPERTIES, timeout_s, pool, HandlerLoop(probe_s=0.05))
    asyncio.run(runtime.start())
    return runtime, hooks.module


@contextmanager
def handling(
    directory: Path, source: str, options: LmiOptions | None = None, **how: Any
) -> Iterator[tuple[RunningServer, Any]]:
    """A server whose LMI routes the handler of such a file answers, and the file's module. `how`: see `runtime_of`."""
    runtime, module = runtime_of(directory, source, **how)
    service = FakeService()
    options = options or LmiOptions()
    lmi, dynamic = LmiDialect(options), LmiDialect(replace(options, rolling_batch="disable"))
    runtime = replace(runtime, make_access=lambda http: HandlerModel(lmi, dynamic, service, http.request_id))
    dialects = real_dialects()
    of_lmi = {name: dialects[name] for name in (INPUTS, CHAT, COMPLETIONS)}
    with running_server(dialects={**dialects, **with_handler(of_lmi, runtime)}) as server:
        server.service.journal = service.journal
        server.service.script = service.script
        server.service.scripts = service.scripts
        yield server, module


def post(
    server: RunningServer, body: Any = b"", path: str = "/invocations", headers: Mapping[str, str] | None = None
) -> httpx.Response:
    """The answer to bytes, or to a JSON body."""
    content = {"content": body} if isinstance(body, bytes) else {"json": body}
    return httpx.post(f"{server.url}{path}", **content, headers=dict(headers or {}), timeout=PATIENCE_S * 2)


def png() -> bytes:
    """A picture of one grey dot."""

    def block(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + block(b"IHDR", head) + block(b"IDAT", zlib.compress(b"\x00\x80")) + block(b"IEND", b"")
    )
