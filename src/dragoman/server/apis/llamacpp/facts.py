"""`/props`, `/slots`, `/lora-adapters` and `/apply-template`: what there is to know of a model besides its answers.

Does not: generate. On the event loop. Source: llama.cpp, tools/server/README.md.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman import __version__
from dragoman.errors import Unavailable, UnsupportedFeature
from dragoman.server.api import HttpCall, Reply, json_reply, model_of_body
from dragoman.server.apis.llamacpp.completion import AppliedAdapter, CompletionDialect
from dragoman.server.apis.llamacpp.request import WORDS, default_settings
from dragoman.server.apis.openai_wire.conversation import CONVERSATION_FIELDS, ChatBody, bare_conversation
from dragoman.server.apis.openai_wire.fields import check_count, decode_object, read_struct, shown
from dragoman.server.apis.openai_wire.llamacpp_names import LlamaLora, applied_adapter
from dragoman.server.generation.tokenizing_service import TokenizingService, tokenizing_service
from dragoman.server.json_body import NotJson
from dragoman.server.operations import Server
from dragoman.server.registry import ServedModel
from dragoman.server.responder import note_ignored

COMPLETION = "llamacpp.completion"


class LlamaTemplated(msgspec.Struct):
    """A conversation as the model sees it."""

    prompt: str


class LlamaNext(msgspec.Struct):
    """The progress of a slot's answer."""

    has_next_token: bool
    n_remain: int
    n_decoded: int


class LlamaSlot(msgspec.Struct, kw_only=True):
    """Room for one sequence, and the progress of the sequence in it."""

    id: int
    id_task: int = -1
    n_ctx: int
    speculative: bool
    is_processing: bool
    next_token: LlamaNext


class LlamaModalities(msgspec.Struct):
    """The inputs that a model takes besides text."""

    vision: bool
    audio: bool = False


class LlamaDefaults(msgspec.Struct):
    """The defaults of calls."""

    n_ctx: int
    params: dict[str, Any]


class LlamaProps(msgspec.Struct, kw_only=True):
    """The answer of GET /props."""

    default_generation_settings: LlamaDefaults
    total_slots: int
    model_alias: str
    model_path: str
    modalities: LlamaModalities
    chat_template: str
    chat_template_caps: dict[str, bool]
    bos_token: str
    eos_token: str
    build_info: str
    endpoint_slots: bool
    endpoint_props: bool = False
    endpoint_metrics: bool = True
    is_sleeping: bool = False


class LlamaAdapter(msgspec.Struct):
    """An adapter, and how much of it is applied where a call says nothing."""

    id: int
    path: str
    scale: float


class LlamaDone(msgspec.Struct):
    """It was done."""

    success: bool = True


def model_meant(http: HttpCall, server: Server) -> str | None:
    """The model that a body names; the only model under any name, as llama.cpp has no other."""
    return _known(http.query.get("model") if http.method == "GET" else model_of_body(http, server), server)


def _known(name: str | None, server: Server) -> str | None:
    return None if name is None or (server.models.is_single and not server.models.knows(name)) else name


def _model(http: HttpCall, server: Server) -> ServedModel:
    return server.models.find(model_meant(http, server))


async def props(http: HttpCall, server: Server) -> LlamaProps:
    """The model's properties and the defaults of calls. Raises: ServerError."""
    model = _model(http, server)
    profile, service = model.profile, model.service
    tokenizer = service.tokenizer if isinstance(service, TokenizingService) else None
    template = service.chat_template if isinstance(service, TokenizingService) else None

    def text_of(name: str) -> str:
        token_id: int | None = getattr(tokenizer, name, None)
        if tokenizer is None or token_id is None:
            return ""
        return tokenizer.token_bytes(token_id).decode("utf-8", "replace")

    return LlamaProps(
        default_generation_settings=LlamaDefaults(model.engine.capabilities.max_model_len, default_settings(profile)),
        total_slots=model.admission.max_running,
        model_alias=model.name,
        model_path=model.url,
        modalities=LlamaModalities(vision="vision" in profile.abilities),
        chat_template="" if template is None else template.sources.get("default", ""),
        chat_template_caps={"supports_tools": "tools" in profile.abilities},
        bos_token=text_of("bos_token_id"),
        eos_token=text_of("eos_token_id"),
        build_info=f"dragoman-{__version__}",
        endpoint_slots=_tells_slots(model),
    )


async def slots(http: HttpCall, server: Server) -> list[LlamaSlot]:
    """Raises: Unavailable if a call asks for room and none is left; UnsupportedFeature if switched off."""
    model = _model(http, server)
    if not _tells_slots(model):
        raise UnsupportedFeature("this server does not tell its slots: start it with --slots")
    n_ctx, is_guessing = model.engine.capabilities.max_model_len, model.profile.proposer is not None
    busy = [
        LlamaNext(
            has_next_token=sequence.finish_reason is None,
            n_remain=max(request.max_tokens // len(request.sequences) - sequence.num_tokens, 0),
            n_decoded=sequence.num_tokens,
        )
        for call in server.watch.running
        if call.model == model.name
        for request in call.requests
        for sequence in request.sequences
        if sequence.finish_reason is None
    ][: model.admission.max_running]
    if len(busy) == model.admission.max_running and http.query.get("fail_on_no_slot"):
        raise Unavailable("all slots are in use", retry_after_s=model.admission.retry_after_s())
    idle = [LlamaNext(has_next_token=False, n_remain=-1, n_decoded=0)] * (model.admission.max_running - len(busy))
    return [
        LlamaSlot(
            id=position,
            n_ctx=n_ctx,
            speculative=is_guessing,
            is_processing=following.has_next_token,
            next_token=following,
        )
        for position, following in enumerate([*busy, *idle])
    ]


def _tells_slots(model: ServedModel) -> bool:
    return bool(model.profile.settings.get("slots", True))


async def adapters(http: HttpCall, server: Server) -> list[LlamaAdapter]:
    model = _model(http, server)
    applied = _applied(model).name
    listed = [] if model.adapters is None else model.adapters.all()
    return [
        LlamaAdapter(position, adapter.source, float(adapter.name == applied))
        for position, adapter in enumerate(listed)
    ]


async def set_adapters(http: HttpCall, server: Server) -> LlamaDone:
    """Apply an adapter to calls of this API that name none. Raises: ServerError."""
    try:
        raw = http.json()
    except NotJson as error:
        raise WORDS.payload_fault(error.problem, error.of("the body")) from None
    if not isinstance(raw, list):
        raise WORDS.payload_fault("array", f"the body must be an array of adapters and their scales, got {shown(raw)}")
    model = server.models.find(_known(http.query.get("model"), server))
    check_count("the body", len(raw), model.limits.max_token_ids, WORDS)
    wanted = [read_struct(_entry(position, entry), LlamaLora, WORDS) for position, entry in enumerate(raw)]
    _applied(model).name = applied_adapter("", wanted, tuple(model.profile.adapter_names()), WORDS)
    return LlamaDone()


def _entry(position: int, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise WORDS.fault("id", "type", f"[{position}] must be an object with id and scale, got {shown(value)}")
    return value


def _applied(model: ServedModel) -> AppliedAdapter:
    dialect = model.dialects.get(COMPLETION)
    if not isinstance(dialect, CompletionDialect):
        raise UnsupportedFeature(f"model {model.name} does not support adapters", param="model")
    return dialect.applied


async def apply_template(http: HttpCall, server: Server) -> Reply:
    raw = decode_object(http, WORDS)
    body = read_struct(raw, ChatBody, WORDS)
    idle = [name for name in raw if name not in CONVERSATION_FIELDS]
    headers = note_ignored(server.switches.for_call(http.headers), idle)
    prompt = bare_conversation(body, raw, WORDS)
    rendered = await tokenizing_service(_model(http, server)).tokenize(prompt)
    return json_reply(200, LlamaTemplated(rendered.text), headers)
