"""OpenAI's API: completions, conversations, model lists, and what vLLM has beside them for tokens and adapters.

Does not: read bodies of OpenAI's shape (`apis.openai_wire`), load adapters (`server.registry`). On the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from dragoman.errors import Conflict, InvalidPayload, InvalidRequest, NotFound
from dragoman.server.api import JSON_MEDIA_TYPE, CallSwitches, HttpCall, ModelProfile, Reply, json_reply, model_of_body
from dragoman.server.apis.openai.batches import BATCH_OPERATIONS, BATCH_PARAMETERS, batch_schemas
from dragoman.server.apis.openai_wire.chat import LMI_STRICT_MAX_TOKENS
from dragoman.server.apis.openai_wire.conversation import CONVERSATION_FIELDS, ChatBody, bare_conversation
from dragoman.server.apis.openai_wire.describe import struct_body
from dragoman.server.apis.openai_wire.errors import ERRORS, OpenAiError
from dragoman.server.apis.openai_wire.fields import check_count, decode_object, read_struct, unknown_names
from dragoman.server.apis.openai_wire.pooling import MODEL
from dragoman.server.apis.openai_wire.profile import V1
from dragoman.server.apis.openai_wire.routes import OpenAiRoutes
from dragoman.server.descriptions import (
    BOOLEAN,
    COUNTING,
    IGNORED,
    INTEGER,
    LENIENT_BOOLEAN,
    QUESTION,
    TEXT,
    Answer,
    Schema,
    an_object,
    any_of,
    array,
    json_answer,
    nullable,
    ref,
)
from dragoman.server.generation.prepare import check_num_chars
from dragoman.server.generation.tokenizing_service import TokenizingService, tokenizing_service
from dragoman.server.hosting import Changes
from dragoman.server.operations import AnswerOperation, Api, Server
from dragoman.server.registry import ServedAdapters
from dragoman.server.responder import note_ignored
from dragoman.server.security.callers import Scope
from dragoman.tokenizer.base import Tokenizer
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.tokenizer.hf_tokenizer import HfTokenizer
from dragoman.types import Limits, Prompt, TextPrompt

# --- tokens -----------------------------------------------------------------------------------------------------------

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
    return json_reply(
        200, LlamaTokenized([_piece(token_id, service.tokenizer.token_bytes(token_id)) for token_id in ids]), headers
    )


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
    named |= facts.special_tokens if facts else {}
    extra = facts.extra_special_tokens if facts else ()
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        "additional_special_tokens": [text for text in extra if text not in named.values()],
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


_of_tokens = partial(AnswerOperation, tag="Tokens", scope=Scope.INFERENCE)

TOKEN_OPERATIONS = (
    _of_tokens(
        path="/tokenize",
        summary="The tokens of a prompt or of a conversation, as vLLM tells them; of a `content` as llama.cpp does",
        answers=ERRORS.beside(json_answer((Tokenized, LlamaTokenized), "the tokens", *IGNORED), COUNTING),
        body={JSON_MEDIA_TYPE: ref("TokenizeRequest")},
        example={"prompt": QUESTION},
        answer=tokenize,
    ),
    _of_tokens(
        path="/detokenize",
        summary="The text of tokens",
        answers=ERRORS.beside(json_answer(Detokenized, "the text", *IGNORED), COUNTING),
        body={JSON_MEDIA_TYPE: ref("DetokenizeRequest")},
        example={"tokens": [72, 105]},
        answer=detokenize,
    ),
    _of_tokens(
        method="GET",
        path="/tokenizer_info",
        summary="The tokenizer's special tokens and chat template",
        answers=ERRORS.beside(json_answer(ref("TokenizerInfo")), COUNTING),
        answer=describe_tokenizer,
    ),
)

# --- adapters ---------------------------------------------------------------------------------------------------------

_PLAIN_TEXT = "text/plain"


class LoadBody(msgspec.Struct, kw_only=True):
    """The body of POST /v1/load_lora_adapter. `model`: whose adapter it is, the default model's if absent."""

    lora_name: str = ""
    lora_path: str = ""
    load_inplace: bool = False
    model: str | None = None


class UnloadBody(msgspec.Struct, kw_only=True):
    lora_name: str = ""
    model: str | None = None


async def load_adapter(http: HttpCall, server: Server) -> Reply:
    body = read_struct(decode_object(http, V1), LoadBody, V1)
    if not body.lora_name or not body.lora_path:
        raise InvalidPayload("Both 'lora_name' and 'lora_path' must be provided.")
    adapters = _adapters(body.model, server)
    try:
        work = adapters.load(body.lora_name, body.lora_path, is_replacing=body.load_inplace)
        await server.shared(Changes.of).run(work)
    except Conflict as error:
        if body.lora_name in adapters.names:
            message = f"The lora adapter '{body.lora_name}' has already been loaded."
            raise InvalidRequest(message, param="lora_name") from error
        raise InvalidRequest(error.message, param="lora_name") from error
    return _done(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def unload_adapter(http: HttpCall, server: Server) -> Reply:
    body = read_struct(decode_object(http, V1), UnloadBody, V1)
    if not body.lora_name:
        raise InvalidPayload("'lora_name' needs to be provided to unload a LoRA adapter.")
    adapters = _adapters(body.model, server)
    if body.lora_name not in adapters.names:
        raise NotFound(f"The lora adapter '{body.lora_name}' cannot be found.", param="lora_name")
    await server.shared(Changes.of).run(adapters.unload(body.lora_name))
    return _done(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _adapters(model: str | None, server: Server) -> ServedAdapters:
    found = server.models.find(model).adapters
    if found is None or not found.can_change:
        raise InvalidRequest("Adapters cannot be loaded here: start the server with --enable-lora")
    return found


def _done(text: str) -> Reply:
    return Reply(200, text.encode(), _PLAIN_TEXT)


def adapter_schemas() -> dict[str, Schema]:
    model = {**TEXT, "description": "whose adapter it is; the default model's if absent"}
    name = {**TEXT, "description": "what requests are to call it, as `model`"}
    path = {**TEXT, "description": "its directory: below the adapter store, or the folder adapters beside the model"}
    inplace = {**BOOLEAN, "default": False, "description": "it may take the place of an adapter of that name"}
    return {
        "LoadAdapter": an_object({"lora_name": name, "lora_path": path}, {"load_inplace": inplace, "model": model}),
        "UnloadAdapter": an_object({"lora_name": name}, {"model": model}),
    }


_of_adapters = partial(AnswerOperation, tag="Adapters", scope=Scope.MANAGEMENT)
_CHANGE_KINDS = (
    "invalid_payload", "invalid_parameter", "invalid_request", "unauthorized", "not_found", "too_large", "no_memory",
    "unavailable", "overloaded", "engine_dead", "server_error",
)  # fmt: skip
_CHANGED = ERRORS.beside(Answer("it is done", {_PLAIN_TEXT: TEXT}), _CHANGE_KINDS)

ADAPTER_OPERATIONS = (
    _of_adapters(
        path="/v1/load_lora_adapter",
        summary="Load an adapter, as vLLM does",
        answers=_CHANGED,
        body={JSON_MEDIA_TYPE: ref("LoadAdapter")},
        answer=load_adapter,
    ),
    _of_adapters(
        path="/v1/unload_lora_adapter",
        summary="Unload an adapter, as vLLM does",
        description="Requests that run go on with it.",
        answers=_CHANGED,
        body={JSON_MEDIA_TYPE: ref("UnloadAdapter")},
        answer=unload_adapter,
    ),
)

# --- the API ----------------------------------------------------------------------------------------------------------

ROUTES = OpenAiRoutes(
    name="openai",
    version="v1",
    chat_profile=V1,
    completions_profile=V1,
    embeddings_profile=V1,
    errors=ERRORS,
    error=OpenAiError,
    owned_by="dragoman",
    server="OpenAI",
    manner="as OpenAI's",
)


def _schemas(profile: ModelProfile) -> dict[str, Schema]:
    settings = profile.settings
    is_strict = settings.get("lmi_strict") and settings.get("chat_format") == "lmi"
    return {
        **ROUTES.schemas(profile, {"max_tokens": LMI_STRICT_MAX_TOKENS} if is_strict else {}),
        **token_schemas(profile),
        **adapter_schemas(),
        **batch_schemas(),
    }


def _description(profile: ModelProfile) -> str:
    settings = profile.settings
    return (
        f"chat_format={settings.get('chat_format', 'auto')}, lmi_strict={str(bool(settings.get('lmi_strict'))).lower()}"
    )


API = Api(
    name="openai",
    title="OpenAI",
    owns=("/v1", "/tokenize", "/detokenize", "/tokenizer_info"),
    set_up=ROUTES.dialects,
    teller=lambda dialects: dialects[ROUTES.completions],
    schemas=_schemas,
    description=_description,
    operations=(
        *ROUTES.operations(),
        *TOKEN_OPERATIONS,
        *ADAPTER_OPERATIONS,
        *BATCH_OPERATIONS,
    ),
    parameters=BATCH_PARAMETERS,
)
