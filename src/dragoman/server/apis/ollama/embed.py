"""`/api/embed` and `/api/embeddings`: texts become vectors, by a model that embeds.

Does: read the bodies, ask the model's service, write the answers. Does not: compute.
Set up for each served model; called on the event loop.
Source: Ollama API reference (docs/api.md), "Generate Embeddings".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from dragoman.errors import ServerError
from dragoman.server.api import CallSwitches, HttpCall, ModelProfile, Reply, json_reply
from dragoman.server.apis.ollama.dialects import CLOCK
from dragoman.server.apis.ollama.encoder import Clock, nanoseconds
from dragoman.server.apis.ollama.errors import OllamaErrors
from dragoman.server.apis.ollama.options import WORDS
from dragoman.server.apis.ollama.request import has_no_effect, named_model, note_keep_alive
from dragoman.server.apis.ollama.schema import (
    OllamaEmbedBody,
    OllamaEmbedded,
    OllamaEmbedding,
    OllamaEmbeddingsBody,
)
from dragoman.server.apis.openai_wire.fields import check_count, decode_object, read_struct, unknown_names
from dragoman.server.observation.record import current_call
from dragoman.server.pooling import AnsweringDialect, Embeddings, EmbedRequest, Truncation, embedder
from dragoman.server.responder import note_ignored

BodyT = TypeVar("BodyT", bound=OllamaEmbedBody | OllamaEmbeddingsBody)


class EmbedDialect(OllamaErrors, AnsweringDialect):
    """`/api/embed` for one model."""

    def __init__(self, profile: ModelProfile, clock: Clock = CLOCK) -> None:
        super().__init__(profile)
        self._clock = clock

    async def _answer(self, http: HttpCall, switches: CallSwitches) -> Reply:
        record = current_call()
        begin_s = self._clock.timer() if record is None else record.begin_s
        body, headers = _read(http, switches, OllamaEmbedBody)
        texts = [body.input] if isinstance(body.input, str) else body.input or []
        check_count("input", len(texts), self._profile.limits.max_prompts, WORDS)
        ready_s = self._clock.timer()
        made = await _embedded(
            self._profile,
            EmbedRequest(
                texts=texts,
                request_id=http.request_id,
                truncation=Truncation.NONE if body.truncate is False else Truncation.RIGHT,
                dimensions=body.dimensions,
                normalize=True,
            ),
            "input",
        )
        answer = OllamaEmbedded(
            model=body.model or "",
            embeddings=[] if made is None else made.vectors.tolist(),
            total_duration=nanoseconds(self._clock.timer() - begin_s),
            load_duration=nanoseconds(ready_s - begin_s),
            prompt_eval_count=0 if made is None else sum(made.num_tokens),
        )
        return json_reply(200, answer, headers)


class EmbeddingsDialect(OllamaErrors, AnsweringDialect):
    """`/api/embeddings` for one model: one text, and its vector as the model makes it."""

    async def _answer(self, http: HttpCall, switches: CallSwitches) -> Reply:
        body, headers = _read(http, switches, OllamaEmbeddingsBody)
        request = EmbedRequest(
            texts=[body.prompt] if body.prompt else [], request_id=http.request_id, truncation=Truncation.RIGHT
        )
        made = await _embedded(self._profile, request, "prompt")
        answer = OllamaEmbedding([] if made is None else made.vectors[0].tolist())
        return json_reply(200, answer, headers)


def _read(http: HttpCall, switches: CallSwitches, kind: type[BodyT]) -> tuple[BodyT, dict[str, str]]:
    """The body, and the header that names what has no effect. Raises: InvalidRequest."""
    raw = decode_object(http, WORDS)
    body = read_struct(raw, kind, WORDS)
    named_model(body.model)
    note_keep_alive(body.keep_alive)
    idle = [name for name in raw if has_no_effect(name)] + list(unknown_names(raw, kind))
    return body, note_ignored(switches, idle + [f"options.{name}" for name in body.options or {}])


async def _embedded(profile: ModelProfile, request: EmbedRequest, name: str) -> Embeddings | None:
    """The texts' vectors, None if there are no texts; errors speak of the texts by `name`. Raises: ServerError."""
    service = embedder(profile)
    if not request.texts:
        return None
    try:
        return await service.embed(request)
    except ServerError as error:
        if error.param == "texts":
            error.param, error.message = name, _renamed(error.message, name, request.texts)
        raise


def _renamed(message: str, name: str, texts: Sequence[object]) -> str:
    """The message about `text 3`, by the name and place that it has here."""
    for index in range(len(texts)):
        if message.startswith(f"text {index} "):
            place = f"{name}[{index}]" if len(texts) > 1 else name
            return f"{place} {message.removeprefix(f'text {index} ')}"
    return message
