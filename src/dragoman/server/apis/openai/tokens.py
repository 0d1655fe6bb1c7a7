"""vLLM's `/tokenize`, `/detokenize` and `/tokenizer_info`; bodies with `content` are llama.cpp's. On the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from dragoman.server.api import JSON_MEDIA_TYPE, CallSwitches, HttpCall, ModelProfile, Reply, json_reply, model_of_body
from dragoman.server.apis.openai_wire.conversation import CONVERSATION_FIELDS, ChatBody, bare_conversation
from dragoman.server.apis.openai_wire.describe import struct_body
from dragoman.server.apis.openai_wire.errors import ERRORS
from dragoman.server.apis.openai_wire.fields import check_count, decode_object, read_struct, unknown_names
from dragoman.server.apis.openai_wire.pooling import MODEL
from dragoman.server.apis.openai_wire.profile import V1
from dragoman.server.describe.answers import COUNTING, json_answer
from dragoman.server.describe.components import IGNORED, QUESTION
from dragoman.server.describe.json_schema import (
    INTEGER,
    LENIENT_BOOLEAN,
    TEXT,
    Schema,
    an_object,
    any_of,
    array,
    nullable,
    ref,
)
from dragoman.server.generation.prepare import check_num_chars
from dragoman.server.generation.tokenizing_service import TokenizingService, tokenizing_service
from dragoman.server.operations import AnswerOperation, Server
from dragoman.server.responder import note_ignored
from dragoman.server.security.scopes import Scope
from dragoman.tokenizer.base import Tokenizer
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.tokenizer.hf_tokenizer import HfTokenizer
from dragoman.types import Limits, Prompt, TextPrompt

LIMITS = Limits()

_IDS = array({"type": "integer", "minimum": 0})


class TokenizeBody(ChatBody, kw_only=True):
    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class LlamaTokenizeBody(msgspec.Struct, kw_only=True):
    content: str
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None
    model: str | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """The body of POST /detokenize."""

    tokens: list[int]
    model: str | None = None


_READ = CONVERSATION_FIELDS | {"prompt", "add_special_tokens", "return_token_strs"}
"""The fields that shape a prompt; all else in a body of /tokenize has no effect."""


class Tokenized(msgspec.Struct, frozen=True):
    """The answer of /tokenize. `max_model_len`: the context in tokens."""

    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: list[str] | None


class Piece(msgspec.Struct, frozen=True):
    """One token: its text, or its bytes where they are none."""

    id: int
    piece: str | list[int]


class LlamaTokenized(msgspec.Struct, frozen=True):
    """The answer of /tokenize to a body with `content`."""

    tokens: list[int | Piece]


class Detokenized(msgspec.Struct, frozen=True):
    """The answer of /detokenize: the text by vLLM's name and by llama.cpp's."""

    prompt: str
    content: str


async def tokenize(http: HttpCall, server: Server) -> Reply:
    raw = decode_object(http, V1)
    if "content" in raw and "prompt" not in raw and "messages" not in raw:
        return await _llama_tokenized(raw, server, server.switches.for_call(http.headers))
    body = read_struct(raw, TokenizeBody, V1)
    headers = note_ignored(server.switches.for_call(http.headers), [name for name in raw if name not in _READ])
    return json_reply(200, await _tokenized(raw, body, tokenizing_service(server.models.find(body.model))), headers)


async def _tokenized(raw: Mapping[str, Any], body: TokenizeBody, service: TokenizingService) -> Tokenized:
    token_ids = (await service.tokenize(_prompt(body, raw))).token_ids
    if not body.return_token_strs:
        return Tokenized(len(token_ids), service.max_model_len, token_ids, None)
    _check_listed("return_token_strs", token_ids)
    texts = [service.tokenizer.token_bytes(token_id).decode("utf-8", "replace") for token_id in token_ids]
    return Tokenized(len(token_ids), service.max_model_len, token_ids, texts)


async def _llama_tokenized(raw: Mapping[str, Any], server: Server, switches: CallSwitches) -> Reply:
    body = read_struct(raw, LlamaTokenizeBody, V1)
    headers = note_ignored(switches, unknown_names(raw, LlamaTokenizeBody))
    service = tokenizing_service(server.models.find(body.model))
    if body.parse_special is False:
        check_num_chars(len(body.content))
        ids = await asyncio.to_thread(service.tokenizer.encode_plain, body.content, is_first=True)
        bos = service.tokenizer.bos_token_id
        if body.add_special and bos is not None and service.tokenizer.encode("")[:1] == [bos]:
            ids = [bos, *ids]
    else:
        prompt = TextPrompt(body.content, add_special_tokens=bool(body.add_special))
        ids = list((await service.tokenize(prompt)).token_ids)
    if not body.with_pieces:
        return json_reply(200, LlamaTokenized([*ids]), headers)
    _check_listed("with_pieces", ids)
    return json_reply(200, LlamaTokenized([_piece(one, service.tokenizer.token_bytes(one)) for one in ids]), headers)


def _piece(token_id: int, content: bytes) -> Piece:
    try:
        return Piece(token_id, content.decode())
    except UnicodeDecodeError:
        return Piece(token_id, list(content))


def _check_listed(name: str, token_ids: Sequence[int]) -> None:
    if len(token_ids) > LIMITS.max_token_ids:
        message = f"{name} lists at most {LIMITS.max_token_ids} tokens, there are {len(token_ids)}"
        raise V1.fault(name, "count", message)


async def detokenize(http: HttpCall, server: Server) -> Reply:
    raw = decode_object(http, V1)
    body = read_struct(raw, DetokenizeBody, V1)
    check_count("tokens", len(body.tokens), LIMITS.max_token_ids, V1)
    headers = note_ignored(server.switches.for_call(http.headers), unknown_names(raw, DetokenizeBody))
    text = await tokenizing_service(server.models.find(body.model)).detokenize(body.tokens)
    return json_reply(200, Detokenized(text, text), headers)


async def describe_tokenizer(http: HttpCall, server: Server) -> dict[str, Any]:
    service = tokenizing_service(server.models.find(http.query.get("model") or model_of_body(http, server)))
    return tokenizer_info(service.tokenizer, service.chat_template, service.max_model_len)


def tokenizer_info(tokenizer: Tokenizer, template: ChatTemplate | None, max_model_len: int) -> dict[str, Any]:
    """The facts by the names of tokenizer_config.json. No Struct: checkpoints name their tokens themselves."""
    facts = tokenizer.facts if isinstance(tokenizer, HfTokenizer) else None
    named: dict[str, str | None] = {"pad_token": None, "unk_token": None}
    for name, token_id in (("bos_token", tokenizer.bos_token_id), ("eos_token", tokenizer.eos_token_id)):
        named[name] = None if token_id is None else tokenizer.token_bytes(token_id).decode("utf-8", "replace")
    sources = {} if template is None else dict(template.sources)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        **(facts.special_tokens if facts else {}),
        "additional_special_tokens": list(facts.extra_special_tokens) if facts else [],
        "eos_token_ids": sorted(tokenizer.eos_token_ids),
        "vocab_size": tokenizer.vocab_size,
        "model_max_length": max_model_len,
        "chat_template": sources.get("default"),
    }


def _prompt(body: TokenizeBody, raw: Mapping[str, Any]) -> Prompt:
    if body.messages is None:
        if body.prompt is None:
            raise V1.fault("prompt", "missing", "prompt is missing: give a prompt or messages")
        return TextPrompt(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    if body.prompt is not None:
        raise V1.conflict("messages", "prompt")
    return bare_conversation(body, raw, V1)


def token_schemas(model: ModelProfile) -> dict[str, Schema]:
    chat = "messages, and what else shapes a conversation: as in ChatRequestV1"
    named = {"model": "the model to use; the default model if absent"}
    switch = nullable(LENIENT_BOOLEAN)
    more = {"model": MODEL, "return_token_strs": switch}
    conversation = {
        "add_generation_prompt": switch,
        "continue_final_message": switch,
        "tools": nullable(array(ref("Tool"), maxItems=LIMITS.max_tools)),
        "chat_template_kwargs": nullable({"type": "object"}),
    }
    messages = array(ref("ChatMessage"), minItems=1, maxItems=LIMITS.max_messages)
    ids = {**_IDS, "maxItems": LIMITS.max_token_ids}
    names = ("bos_token", "eos_token", "pad_token", "unk_token", "chat_template")
    return {
        "TokenizeRequest": any_of(
            an_object({"prompt": TEXT}, {**more, "add_special_tokens": switch}),
            an_object({"messages": messages}, {**more, **conversation}, chat),
            {
                **struct_body(LlamaTokenizeBody, named, V1, model, needed={"content": TEXT}),
                "description": "llama.cpp's",
            },
        ),
        "DetokenizeRequest": struct_body(DetokenizeBody, named, V1, model, needed={"tokens": ids}),
        "TokenizerInfo": an_object(
            {
                "tokenizer_class": TEXT,
                **{name: nullable(TEXT) for name in names},
                "additional_special_tokens": array(TEXT),
                "eos_token_ids": _IDS,
                "vocab_size": INTEGER,
                "model_max_length": INTEGER,
            }
        ),
    }


_operation = partial(AnswerOperation, tag="Tokens", scope=Scope.INFERENCE)

TOKEN_OPERATIONS = (
    _operation(
        path="/tokenize",
        summary="The tokens of a prompt or of a conversation, as vLLM tells them; of a `content` as llama.cpp does",
        answers=ERRORS.beside(json_answer((Tokenized, LlamaTokenized), "the tokens", *IGNORED), COUNTING),
        body={JSON_MEDIA_TYPE: ref("TokenizeRequest")},
        example={"prompt": QUESTION},
        answer=tokenize,
    ),
    _operation(
        path="/detokenize",
        summary="The text of tokens",
        answers=ERRORS.beside(json_answer(Detokenized, "the text", *IGNORED), COUNTING),
        body={JSON_MEDIA_TYPE: ref("DetokenizeRequest")},
        example={"tokens": [72, 105]},
        answer=detokenize,
    ),
    _operation(
        method="GET",
        path="/tokenizer_info",
        summary="The tokenizer's special tokens and chat template",
        answers=ERRORS.beside(json_answer(ref("TokenizerInfo")), COUNTING),
        answer=describe_tokenizer,
    ),
)
