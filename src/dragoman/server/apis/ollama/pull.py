"""`/api/pull`, on the event loop. Source: Ollama API reference, "Pull a Model"; Hugging Face, `hf.co/ORG/NAME:TYPE`."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from dragoman.errors import ServerError, UnsupportedFeature
from dragoman.server.api import NDJSON_MEDIA_TYPE, Head, HttpCall, Reply, StreamedReply, json_reply, jsonline
from dragoman.server.apis.ollama.errors import OllamaError
from dragoman.server.apis.ollama.names import LATEST, meant
from dragoman.server.apis.ollama.options import WORDS
from dragoman.server.apis.ollama.request import named_model
from dragoman.server.apis.ollama.schema import OllamaPullBody, OllamaPulled
from dragoman.server.apis.openai_wire.fields import decode_object, read_struct, unknown_names
from dragoman.server.hosting import PullStep
from dragoman.server.operations import Server
from dragoman.server.registry import PLACEHOLDER_MODELS
from dragoman.server.responder import note_ignored

_HUB = re.compile(r"(?:https?://)?(?:hf\.co|huggingface\.co)/", re.IGNORECASE)
_NOT_ALLOWED = (
    "pull is not offered here: clients may have models downloaded only if the server was started with --allow-pull "
    "(option.allow_pull)"
)
_BEGUN = OllamaPulled(status="pulling manifest")
_DONE = OllamaPulled(status="success")


async def pull(http: HttpCall, server: Server) -> Reply | StreamedReply:
    raw = decode_object(http, WORDS)
    body = read_struct(raw, OllamaPullBody, WORDS)
    name = _HUB.sub("", named_model(body.model or body.name), count=1)
    idle = [*unknown_names(raw, OllamaPullBody), *(["insecure"] if body.insecure else [])]
    headers = note_ignored(server.switches.for_call(http.headers), idle)
    steps = None if _is_served(name, server) else _begun(name, server)
    if body.stream is not False:
        return StreamedReply(Head(NDJSON_MEDIA_TYPE, headers=headers), _lines(steps), _last_line)
    async for _ in _lines(steps):
        pass
    return json_reply(200, _DONE, headers)


def _is_served(name: str, server: Server) -> bool:
    models = server.models
    is_default = name in PLACEHOLDER_MODELS and bool(models.models)
    return is_default or models.knows(meant(name, models.knows))


def _begun(name: str, server: Server) -> AsyncGenerator[PullStep]:
    if server.pulling is None:
        raise UnsupportedFeature(_NOT_ALLOWED)
    return server.pulling.pull(name.removesuffix(LATEST))


async def _lines(steps: AsyncGenerator[PullStep] | None) -> AsyncGenerator[bytes]:
    yield _line(_BEGUN)
    if steps is not None:
        async with aclosing(steps):
            async for step in steps:
                if told := _told(step):
                    yield _line(told)
    yield _line(_DONE)


def _told(step: PullStep) -> OllamaPulled | None:
    if step.note:
        return OllamaPulled(status=step.note)
    if not step.size:
        return None
    return OllamaPulled(
        status=f"pulling {step.what}", digest=f"sha1:{step.commit}", total=step.size, completed=step.num_bytes
    )


def _line(told: OllamaPulled | OllamaError) -> bytes:
    return jsonline(msgspec.json.encode(told))


def _last_line(error: ServerError) -> bytes:
    return _line(OllamaError(error.message))
