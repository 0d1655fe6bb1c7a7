"""The routes between text and tokens: vLLM's `/tokenize`, `/detokenize`, `/tokenizer_info`, and `/v3/tokenize`.

Does: read their bodies, ask the model's service, write their answers. Does not: tokenise itself, or generate.
Called by the app, on the event loop; long texts are tokenised on the service's threads. Evaluation harnesses use them to
count as the server does. Sources: vLLM's tokenizer endpoints; OpenVINO Model Server, tokenize endpoint.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from dragoman.errors import UnsupportedFeature
from dragoman.server.api import HttpCall
from dragoman.server.apis.models_list import peek_model
from dragoman.server.apis.openai_wire.chat.messages import (
    check_sizes,
    continues_final_message,
    template_messages,
    tool_use,
)
from dragoman.server.apis.openai_wire.chat.schema import ChatBody
from dragoman.server.apis.openai_wire.fields import check_count, check_number, decode_object, read_struct, shown
from dragoman.server.apis.openai_wire.profile import V1, Bounds, Profile
from dragoman.server.apis.ovms.profile import V3
from dragoman.server.exchange import Exchange
from dragoman.server.front import json_reply
from dragoman.server.prepare import PromptTokens
from dragoman.server.registry import ModelRegistry, ServedModel
from dragoman.server.responder import run_unless_gone
from dragoman.server.routes import Gate, Handler, PathParams, Route
from dragoman.tokenizer.base import Tokenizer
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.tokenizer.hf_tokenizer import HfTokenizer
from dragoman.types import ChatPrompt, Limits, Prompt, TextPrompt

LIMITS = Limits()

Answer = Callable[[HttpCall], Awaitable[Any]]
"""The value to answer with. Raises: ServerError."""


@runtime_checkable
class TextService(Protocol):
    """What these routes need of a model's service. Services without a tokenizer of their own are not served here."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def chat_template(self) -> ChatTemplate | None: ...

    @property
    def max_model_len(self) -> int: ...

    async def tokenize(self, prompt: Prompt) -> PromptTokens: ...

    async def detokenize(self, token_ids: Sequence[int]) -> str: ...


class TokenizeBody(ChatBody, kw_only=True):
    """The body of POST /tokenize: a `prompt`, or `messages` with what else shapes a conversation."""

    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """The body of POST /detokenize."""

    tokens: list[int]
    model: str | None = None


class OvmsTokenizeBody(msgspec.Struct, kw_only=True):
    """The body of POST /v3/tokenize. `max_length` cuts; with `pad_to_max_length` shorter texts are filled up to it."""

    text: str | list[str] | None = None
    model: str | None = None
    add_special_tokens: bool = True
    max_length: int | None = None
    pad_to_max_length: bool = False
    padding_side: str = "right"


class TokenRoutes:
    """Makes the handlers of these routes."""

    def __init__(self, registry: ModelRegistry, gate: Gate) -> None:
        self._registry = registry
        self._gate = gate

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route("/tokenize", {"POST": self._handler(self._tokenize)}),
            Route("/detokenize", {"POST": self._handler(self._detokenize)}),
            Route("/tokenizer_info", {"GET": self._handler(self._tokenizer_info)}),
            Route("/v3/tokenize", {"POST": self._handler(self._tokenize_v3)}),
        ]

    def _handler(self, answer: Answer) -> Handler:
        """A handler that asks for the key and reads the body."""

        async def handle(exchange: Exchange, path_params: PathParams) -> None:
            self._gate.check_key(exchange.http_call(path_params=path_params))
            body = await exchange.read_body(self._gate.max_request_size_bytes)
            value = await run_unless_gone(exchange, answer(exchange.http_call(body, path_params)))
            await exchange.send_reply(json_reply(200, value))

        return handle

    async def _tokenize(self, http: HttpCall) -> Mapping[str, Any]:
        raw = decode_object(http.body, V1)
        body = read_struct(raw, TokenizeBody, V1)
        service = text_service(self._registry.find(body.model))
        _, token_ids = await service.tokenize(_prompt(body, raw))
        if body.return_token_strs and len(token_ids) > LIMITS.max_token_ids:
            message = f"return_token_strs lists at most {LIMITS.max_token_ids} tokens, there are {len(token_ids)}"
            raise V1.fault("return_token_strs", "count", message)
        pieces = [service.tokenizer.token_bytes(token_id) for token_id in token_ids] if body.return_token_strs else None
        return {
            "count": len(token_ids),
            "max_model_len": service.max_model_len,
            "tokens": token_ids,
            "token_strs": None if pieces is None else [piece.decode("utf-8", "replace") for piece in pieces],
        }

    async def _detokenize(self, http: HttpCall) -> Mapping[str, Any]:
        body = read_struct(decode_object(http.body, V1), DetokenizeBody, V1)
        check_count("tokens", len(body.tokens), LIMITS.max_token_ids, V1)
        return {"prompt": await text_service(self._registry.find(body.model)).detokenize(body.tokens)}

    async def _tokenizer_info(self, http: HttpCall) -> Mapping[str, Any]:
        service = text_service(self._registry.find(http.query.get("model") or peek_model(http.body)))
        return tokenizer_info(service.tokenizer, service.chat_template, service.max_model_len)

    async def _tokenize_v3(self, http: HttpCall) -> Mapping[str, Any]:
        body = read_struct(decode_object(http.body, V3), OvmsTokenizeBody, V3)
        if not body.model:
            raise V3.payload_fault("model", "model field is missing in JSON body", param="model")
        service = text_service(self._registry.find(body.model))
        _check_ovms(body, service.max_model_len)
        texts = [body.text] if isinstance(body.text, str) else body.text or []
        tokens = [await _ovms_tokens(service, text, body) for text in texts]
        return {"tokens": tokens[0] if isinstance(body.text, str) else tokens}


def text_service(model: ServedModel) -> TextService:
    """The model's service. Raises: UnsupportedFeature if it has no tokenizer."""
    if isinstance(model.service, TextService):
        return model.service
    raise UnsupportedFeature(
        f"model {model.name} has no tokenizer here: its text is tokenised elsewhere", param="model"
    )


def tokenizer_info(tokenizer: Tokenizer, template: ChatTemplate | None, max_model_len: int) -> dict[str, Any]:
    """The tokenizer's facts, by the names of tokenizer_config.json."""
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
    """The prompt as it would be generated from. Raises: InvalidRequest."""
    if body.messages is None:
        if body.prompt is None:
            raise V1.fault("prompt", "missing", "prompt is missing: give a prompt or messages")
        return TextPrompt(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    if body.prompt is not None:
        raise V1.fault("messages", "conflict", "messages cannot be used together with prompt: give one of them")
    check_sizes(body, LIMITS, V1)
    continues = continues_final_message(body, V1)
    kwargs = dict(body.chat_template_kwargs or {})
    if body.add_generation_prompt is False and not continues:
        kwargs["add_generation_prompt"] = False
    tools = tool_use(body, raw, V1).tools
    return ChatPrompt(template_messages(body.messages, V1), tools, continues, kwargs)


def _check_ovms(body: OvmsTokenizeBody, max_model_len: int) -> None:
    """Raises: InvalidRequest."""
    profile: Profile = V3
    if body.text is None:
        raise profile.fault("text", "missing", "text is missing: it must be a string or an array of strings")
    num_texts = len(body.text) if isinstance(body.text, list) else 1
    check_count("text", num_texts, LIMITS.max_prompts, profile)
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


async def _ovms_tokens(service: TextService, text: str, body: OvmsTokenizeBody) -> list[int]:
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
    """The padding token: the tokenizer's own, else its end-of-sequence token."""
    if isinstance(tokenizer, HfTokenizer):
        named = tokenizer.facts.special_tokens.get("pad_token")
        token_id = None if named is None else tokenizer.token_to_id(named)
        if token_id is not None:
            return token_id
    return 0 if tokenizer.eos_token_id is None else tokenizer.eos_token_id
