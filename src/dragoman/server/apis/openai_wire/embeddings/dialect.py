"""Embeddings in OpenAI's wire format: a body becomes a question to the model's service, the vectors an answer.

Does: read, ask, write, tell errors in the profile's words. Does not: tokenise or compute.
Set up for each served model; called on the event loop.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dragoman.errors import ServerError, UnsupportedFeature
from dragoman.server.api import CallSwitches, HttpCall, ModelProfile, Reply, json_reply
from dragoman.server.apis.openai_wire.embeddings.schema import (
    FORMATS,
    NO_EFFECT,
    EmbeddingItem,
    EmbeddingList,
    EmbeddingsBody,
    TextUsage,
)
from dragoman.server.apis.openai_wire.fields import decode_object, read_struct, shown, unknown_names
from dragoman.server.apis.openai_wire.pooling.rows import encoded_rows
from dragoman.server.apis.openai_wire.pooling.texts import CUT, read_cut, read_texts, told_as
from dragoman.server.apis.openai_wire.profile import V1, Profile
from dragoman.server.apis.openai_wire.staying import NAME, is_idle, note_ttl
from dragoman.server.pooling import AnsweringDialect, Embeddings, EmbedRequest, embedder
from dragoman.server.pooling.base import Text
from dragoman.server.responder import note_ignored

Row = npt.NDArray[np.float32]


class EmbeddingsDialect(AnsweringDialect):
    """Embeddings by one model, in the words of a profile."""

    def __init__(self, profile: ModelProfile, words: Profile = V1) -> None:
        super().__init__(profile)
        self._words = words

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The answer to a call that failed."""
        return self._words.errors.reply(error)

    async def _answer(self, http: HttpCall, switches: CallSwitches) -> Reply:
        words, limits = self._words, self._profile.limits
        raw = decode_object(http, words)
        service = embedder(self._profile)
        body = read_struct(raw, EmbeddingsBody, words)
        check_body(raw, body, words)
        if body.ttl is not None:
            note_ttl(body.ttl, words)
        given = read_texts("input", body.input, limits, words)
        check_token_ids(given.texts, body.allow_token_ids, self._profile, words)
        cut = read_cut(body.truncate_prompt_tokens, words)
        ignored = [name for name in raw if name in NO_EFFECT] + list(unknown_names(raw, EmbeddingsBody))
        if body.ttl is not None and is_idle():
            ignored.append(NAME)
        headers = note_ignored(switches, ignored)
        with told_as({"texts": "input", "max_tokens": CUT, **_task_words(body)}, partial(given.place, "input")):
            made = await service.embed(
                EmbedRequest(
                    texts=given.texts,
                    request_id=http.request_id,
                    prompt_name=body.task if body.prompt_name is None else body.prompt_name,
                    truncation=cut.truncation,
                    max_tokens=cut.max_tokens,
                    dimensions=body.dimensions,
                    normalize=body.normalize,
                    add_special_tokens=body.add_special_tokens is not False,
                )
            )
        as_item = _as_base64 if body.encoding_format == "base64" else _as_numbers
        return json_reply(200, await embedding_list(made, body.model or self._profile.name, as_item), headers)


def _task_words(body: EmbeddingsBody) -> dict[str, str]:
    """The names by which errors call the prompt's name."""
    return {} if body.task is None else {"prompt_name": "task"}


def check_token_ids(texts: Sequence[Text], is_allowed: bool | None, profile: ModelProfile, words: Profile) -> None:
    """Raises: InvalidParameter for token ids that may be another model's: LangChain sends those of OpenAI's."""
    if is_allowed or (is_allowed is None and profile.settings.get("allow_token_ids")):
        return
    if not all(isinstance(text, str) for text in texts):
        message = (
            "input holds token ids, which may be those of another model: send texts (LangChain does with "
            "check_embedding_ctx_length=False), or say allow_token_ids: true if they are this model's"
        )
        raise words.fault("input", "token_ids", message)


def check_body(raw: dict[str, Any], body: EmbeddingsBody, words: Profile) -> None:
    """Raises: InvalidRequest for a body that no texts can be read of, or an unknown format."""
    if words.requires_model and body.model is None:
        raise words.payload_fault("model", "model is missing", param="model")
    if body.input is None and "messages" in raw:
        raise UnsupportedFeature("messages cannot be embedded: send the texts as input", param="messages")
    if body.input is None:
        raise words.fault("input", "missing", "input is missing")
    if None not in (body.task, body.prompt_name) and body.task != body.prompt_name:
        message = f"task must be the same as prompt_name ({shown(body.prompt_name)}), got {shown(body.task)}"
        raise words.fault("task", "conflict", message)
    if body.encoding_format is not None and body.encoding_format not in FORMATS:
        message = f"encoding_format must be float or base64, got {shown(body.encoding_format)}"
        raise words.fault("encoding_format", "value", message)


async def embedding_list(made: Embeddings, model: str, as_item: Any) -> EmbeddingList:
    """The answer's body."""
    num_tokens = sum(made.num_tokens)
    data = await encoded_rows(made.vectors, as_item)
    return EmbeddingList("list", data, model, TextUsage(num_tokens, num_tokens))


def _as_numbers(index: int, row: Row) -> EmbeddingItem:
    return EmbeddingItem("embedding", index, row.tolist())


def _as_base64(index: int, row: Row) -> EmbeddingItem:
    return EmbeddingItem("embedding", index, b64encode(row.astype("<f4", copy=False).tobytes()).decode())
