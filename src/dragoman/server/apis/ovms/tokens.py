"""`/v3/tokenize`: the model's service tokenises, long texts on its threads; this cuts and pads.

Source: OpenVINO Model Server, tokenize endpoint.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dragoman.parameters import Bounds
from dragoman.server.api import HttpCall, Reply, json_reply
from dragoman.server.apis.openai_wire.fields import (
    check_count,
    check_number,
    decode_object,
    read_struct,
    shown,
    unknown_names,
)
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.apis.ovms_wire.profile import V3
from dragoman.server.describe.json_schema import BOOLEAN, TEXT, Schema, an_object, any_of, array, nullable
from dragoman.server.generation.tokenizing_service import TokenizingService, tokenizing_service
from dragoman.server.operations import Server
from dragoman.server.responder import note_ignored
from dragoman.tokenizer.base import Tokenizer
from dragoman.tokenizer.hf_tokenizer import HfTokenizer
from dragoman.types import Limits, TextPrompt

LIMITS = Limits()


class OvmsTokenizeBody(msgspec.Struct, kw_only=True):
    """The body of POST /v3/tokenize. `max_length` cuts; with `pad_to_max_length` shorter texts are filled up to it."""

    text: str | list[str] | None = None
    model: str | None = None
    add_special_tokens: bool = True
    max_length: int | None = None
    pad_to_max_length: bool = False
    padding_side: str = "right"


class TokenizedV3(msgspec.Struct, frozen=True):
    """The answer: the tokens of one text, or of each of several."""

    tokens: Sequence[int | list[int]]


async def tokenize(http: HttpCall, server: Server) -> Reply:
    raw = decode_object(http, V3)
    body = read_struct(raw, OvmsTokenizeBody, V3)
    if not body.model:
        raise V3.payload_fault("model", "model field is missing in JSON body", param="model")
    service = tokenizing_service(server.models.find(body.model))
    _check(body, service.max_model_len)
    headers = note_ignored(server.switches.for_call(http.headers), unknown_names(raw, OvmsTokenizeBody))
    if isinstance(body.text, str):
        tokens: Sequence[int | list[int]] = await _tokens(service, body.text, body)
    else:
        tokens = [await _tokens(service, text, body) for text in body.text or []]
    return json_reply(200, TokenizedV3(tokens), headers)


def _check(body: OvmsTokenizeBody, max_model_len: int) -> None:
    profile: Profile = V3
    if body.text is None:
        raise profile.fault("text", "missing", "text is missing: it must be a string or an array of strings")
    num_texts = len(body.text) if isinstance(body.text, list) else 1
    check_count("text", num_texts, LIMITS.max_prompts, profile)
    num_chars = sum(map(len, body.text)) if isinstance(body.text, list) else len(body.text)
    if num_chars > LIMITS.max_text_chars:
        message = f"text must have at most {LIMITS.max_text_chars} characters in all, got {num_chars}"
        raise profile.fault("text", "high", message)
    if body.max_length is not None:
        # Padding allocates what is asked for, and no model here takes more.
        check_number(
            "max_length", body.max_length, Bounds(1, max_model_len if body.pad_to_max_length else None), profile
        )
    num_padded = num_texts * (body.max_length or 0) if body.pad_to_max_length else 0
    if num_padded > LIMITS.max_text_chars:
        message = (
            f"text and max_length ask for {num_padded} tokens, at most {LIMITS.max_text_chars} are padded in a call"
        )
        raise profile.fault("max_length", "high", message)
    if body.pad_to_max_length and body.max_length is None:
        raise profile.fault("pad_to_max_length", "alone", "pad_to_max_length needs max_length, which is missing")
    if body.padding_side not in ("left", "right"):
        message = f"padding_side must be left or right, got {shown(body.padding_side)}"
        raise profile.fault("padding_side", "value", message)


async def _tokens(service: TokenizingService, text: str, body: OvmsTokenizeBody) -> list[int]:
    """The tokens of one text, cut and padded as asked; none for an empty text that gets no special tokens."""
    if not text and not body.add_special_tokens:
        token_ids: list[int] = []
    else:
        token_ids = list(
            (await service.tokenize(TextPrompt(text, add_special_tokens=body.add_special_tokens))).token_ids
        )
    if body.max_length is None:
        return token_ids
    token_ids = token_ids[: body.max_length]
    if not body.pad_to_max_length:
        return token_ids
    padding = [_pad_id(service.tokenizer)] * (body.max_length - len(token_ids))
    return padding + token_ids if body.padding_side == "left" else token_ids + padding


def _pad_id(tokenizer: Tokenizer) -> int:
    if isinstance(tokenizer, HfTokenizer):
        named = tokenizer.facts.special_tokens.get("pad_token")
        token_id = None if named is None else tokenizer.token_to_id(named)
        if token_id is not None:
            return token_id
    return 0 if tokenizer.eos_token_id is None else tokenizer.eos_token_id


def request_schema() -> Schema:
    strict = nullable(BOOLEAN)
    return an_object(
        {"model": TEXT, "text": any_of(TEXT, array(TEXT, maxItems=LIMITS.max_prompts))},
        {
            "add_special_tokens": strict,
            "max_length": nullable(
                {
                    "type": "integer",
                    "minimum": 1,
                    "description": "cuts; with `pad_to_max_length` at most the context",
                }
            ),
            "pad_to_max_length": strict,
            "padding_side": nullable({"enum": ["left", "right"]}),
        },
    )
