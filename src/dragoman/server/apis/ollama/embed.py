"""`/api/embed` and `/api/embeddings`, on the event loop. Source: Ollama API reference, "Generate Embeddings"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dragoman.server.apis.ollama.encoder import CLOCK, nanoseconds
from dragoman.server.apis.ollama.errors import ERRORS
from dragoman.server.apis.ollama.options import WORDS
from dragoman.server.apis.ollama.request import idle_without_text, named_model, note_keep_alive
from dragoman.server.apis.ollama.schema import (
    OllamaEmbedBody,
    OllamaEmbedded,
    OllamaEmbedding,
    OllamaEmbeddingsBody,
)
from dragoman.server.apis.openai_wire.fields import check_count
from dragoman.server.apis.openai_wire.pooling import TextsCall, TextsOperation, told_as
from dragoman.server.observation.record import current_call
from dragoman.server.pooling.base import EmbedRequest, Numbers, Pooled, Truncation, embedder


async def _embed(call: TextsCall[OllamaEmbedBody]) -> OllamaEmbedded:
    record, body = current_call(), call.body
    begin_s = CLOCK.timer() if record is None else record.begin_s
    texts = [body.input] if isinstance(body.input, str) else body.input or []
    check_count("input", len(texts), call.limits.max_prompts, WORDS)
    ready_s = CLOCK.timer()
    truncation = Truncation.NONE if body.truncate is False else Truncation.RIGHT
    made = await _made(call, "input", texts, truncation=truncation, dimensions=body.dimensions, normalize=True)
    return OllamaEmbedded(
        model=body.model or "",
        embeddings=[] if made is None else made.values.tolist(),
        total_duration=nanoseconds(CLOCK.timer() - begin_s),
        load_duration=nanoseconds(ready_s - begin_s),
        prompt_eval_count=0 if made is None else sum(made.num_tokens),
    )


async def _embeddings(call: TextsCall[OllamaEmbeddingsBody]) -> OllamaEmbedding:
    prompt = call.body.prompt
    made = await _made(call, "prompt", [prompt] if prompt else [], truncation=Truncation.RIGHT)
    return OllamaEmbedding([] if made is None else made.values[0].tolist())


async def _made(call: TextsCall[Any], name: str, texts: Sequence[str], **more: Any) -> Pooled[Numbers] | None:
    """The texts' vectors, None without texts; errors speak of the texts by `name`."""
    named_model(call.body.model)
    note_keep_alive(call.body.keep_alive)
    service = embedder(call.profile)
    if not texts:
        return None
    with told_as({"texts": name}, lambda index: f"{name}[{index}]" if len(texts) > 1 else name):
        return await service.embed(EmbedRequest(texts=texts, request_id=call.request_id, **more))


def _idle(call: TextsCall[Any]) -> Iterator[str]:
    yield from idle_without_text(call.raw, type(call.body))


EMBED = TextsOperation(OllamaEmbedBody, _embed, WORDS, ERRORS, _idle)
EMBEDDINGS = TextsOperation(OllamaEmbeddingsBody, _embeddings, WORDS, ERRORS, _idle)
