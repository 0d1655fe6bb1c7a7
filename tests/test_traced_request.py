"""The request that docs/architecture.md follows through the server: each of its lines is what the code does."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from dragoman.cli.arguments import read_arguments
from dragoman.compose import build_served_model
from dragoman.config.resolve import Config, demo_model_dir, resolve
from dragoman.engine.base import Take
from dragoman.engine.rolling.engine import RollingEngine
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.server.api import HttpCall
from dragoman.types import EngineOutput, EngineRequest
from tests.support.streaming import stream_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "architecture.md"


def documented() -> list[str]:
    """The lines of the page's trace, with single blanks between words."""
    section = PAGE.read_text(encoding="utf-8").partition("## A request on its way\n")[2]
    block = section.partition("```\n")[2].partition("```")[0]
    return [" ".join(line.split()) for line in block.splitlines()]


def shown(value: Any, *, hide: tuple[str, ...] = ()) -> str:
    """`name=value` for each field that is not at its default, in their order."""
    return ", ".join(f"{name}={_plain(found)}" for name, found in _not_neutral(value) if name not in hide)


def _plain(value: Any) -> str:
    has_fields = isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(value)
    return f"{type(value).__name__}({shown(value)})" if has_fields else repr(value)


def _not_neutral(value: Any) -> Iterator[tuple[str, Any]]:
    fields: Sequence[Any] = (
        dataclasses.fields(value) if dataclasses.is_dataclass(value) else msgspec.structs.fields(value)
    )
    for field in fields:
        is_made = field.default_factory not in (dataclasses.MISSING, msgspec.NODEFAULT)
        found = getattr(value, field.name)
        if found != (field.default_factory() if is_made else field.default):
            yield field.name, found


def test_the_traced_request_is_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[str] = []
    steps: list[str] = []
    outputs: list[str] = []
    deliver, forward = RollingEngine.deliver, OpenVinoRunner.forward

    async def traced_deliver(engine: RollingEngine, request: EngineRequest, take: Take) -> None:
        requests.append(f"EngineRequest {shown(request, hide=('request_id', 'sampling'))}")
        steps.clear()  # the graph has run once before

        def noted(output: EngineOutput) -> bool:
            outputs.append(f"EngineOutput {shown(output, hide=('request_id', 'index', 'queue_s'))}")
            return take(output)

        await deliver(engine, request, noted)

    def traced_forward(runner: OpenVinoRunner, batch: ForwardBatch) -> npt.NDArray[np.float32]:
        steps.append(f"ForwardBatch input_ids={batch.input_ids.tolist()}, past_lens={batch.past_lens.tolist()}")
        return forward(runner, batch)

    monkeypatch.setattr(RollingEngine, "deliver", traced_deliver)
    monkeypatch.setattr(OpenVinoRunner, "forward", traced_forward)
    arguments = read_arguments(["--dtype", "f32", "--cache-dir", str(tmp_path)])
    seen = asyncio.run(trace(resolve(arguments.givens, {}, demo_model_dir()), documented()[0]))
    lines = [*seen.parsed, *requests]
    for number, hops in enumerate(zip(steps, outputs, seen.events, seen.sent, strict=True), 1):
        lines += [f"step {number} {hops[0]}", *hops[1:]]
    assert [*lines, seen.end] == documented()


@dataclasses.dataclass
class Seen:
    """What went in and out at the door."""

    parsed: list[str]
    events: list[str]
    sent: list[str]
    end: str = ""


async def trace(config: Config, first: str) -> Seen:
    """Send the request of the page's first line through the service of a model of `config`."""
    model = (await build_served_model(config, lambda stage, fraction: None)).served
    route, _, body = first.removeprefix("POST ").partition(" ")
    http = HttpCall("POST", route, body.encode(), {"content-type": "application/json"}, request_id="r")
    call = model.dialects["ovms.completions"].open(http).parse()
    (request,) = call.requests
    called = f"Call {shown(call, hide=('requests', 'encoder'))}"
    asked = f"GenerationRequest {shown(request, hide=('request_id', 'sampling'))}"
    seen = Seen([first, called, asked, f".sampling {shown(request.sampling)}"], [], [])
    try:
        async for event in stream_of(model.service, request):
            seen.events.append(f"GenerationEvent {shown(event, hide=('index', 'tokens', 'content'))}")
            sent = call.encoder.event(0, event).decode().strip()
            seen.sent.append("bytes " + re.sub(r'"id":.*"choices"', '..., "choices"', sent))
        seen.end = f"end {call.encoder.end().decode().strip()}"
    finally:
        await model.engine.shutdown(0.0)
    return seen
