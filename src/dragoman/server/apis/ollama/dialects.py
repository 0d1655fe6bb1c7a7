"""Reads `/api/generate`, `/api/chat`, and `/api/embed` with its older form. On the event loop.

Source: Ollama API reference (docs/api.md), and its server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from dragoman.errors import InvalidRequest, UnsupportedFeature
from dragoman.server.api import Call, CallSwitches, HttpCall, ModelProfile, Opening, PureDialect, Reply, json_reply
from dragoman.server.apis.ollama.encoder import CLOCK, Clock, Nanoseconds, OllamaEncoder, answer_object, nanoseconds
from dragoman.server.apis.ollama.models import model_meant, served_name
from dragoman.server.apis.ollama.request import (
    ERRORS,
    IGNORED,
    KEPT,
    OPTIONS,
    WORDS,
    OllamaBody,
    OllamaChatBody,
    OllamaGenerateBody,
    OllamaMessage,
    OllamaOptions,
    Sent,
    content_of,
    format_grammar,
    idle_without_text,
    keep_s,
    logprobs_of,
    named_model,
    note_keep_alive,
    read_body,
    thinking_kwargs,
    without_effect,
)
from dragoman.server.apis.openai_wire.common import Reading
from dragoman.server.apis.openai_wire.conversation import ChatBody, tool_use
from dragoman.server.apis.openai_wire.fields import check_count
from dragoman.server.apis.openai_wire.pooling import TextsCall, TextsField, TextsOperation
from dragoman.server.apis.openai_wire.sampling import shared_body, shared_request
from dragoman.server.apis.openai_wire.sampling import without_effect as options_without_effect
from dragoman.server.http.exchange import Exchange
from dragoman.server.observation.record import current_call
from dragoman.server.operations import Proceed, Server
from dragoman.server.pooling.base import EmbedRequest, Numbers, Pooled, Truncation, embedder
from dragoman.server.responder import note_ignored
from dragoman.types import ChatPrompt, Prompt, TextPrompt

_NUM_KEPT = 4  # Ollama's default of `num_keep`


class _Dialect(PureDialect):
    errors = ERRORS
    kind: type[OllamaBody]

    def __init__(self, profile: ModelProfile, clock: Clock = CLOCK) -> None:
        self._profile = profile
        self._reading = Reading(OPTIONS, profile)
        self._clock = clock

    def open(self, http: HttpCall) -> Opening:
        opening = super().open(http)
        if not _asks_for_no_text(http, self.kind):
            return opening
        return msgspec.structs.replace(opening, answer=partial(self._load, http))

    async def _load(self, http: HttpCall, switches: CallSwitches) -> Reply:
        return _without_text(http, self.kind, switches, self._clock)

    def _call(
        self,
        sent: Sent[Any],
        request_id: str,
        prompt: Prompt,
        idle: Sequence[str] = (),
        *,
        has_context: bool,
        **more: Any,
    ) -> Call:
        """`idle`: names without effect, beside the usual ones. `more`: further fields of the request."""
        body, reading = sent.body, self._reading
        options = body.options or OllamaOptions()
        limit = options.num_predict or 0  # 0, -1 and -2 all mean as many as fit
        name = served_name(sent.name, self._profile)
        kept = None
        if self._profile.shifts_context:
            kept = _NUM_KEPT if options.num_keep is None else options.num_keep
        shared = shared_body(options, model=name, max_tokens=limit if limit > 0 else None, n_keep=kept)
        request = shared_request(
            shared,
            reading,
            request_id=request_id,
            prompt=prompt,
            logprobs=logprobs_of(body, self._profile),
            grammar=format_grammar(body.format),
            parse_reasoning=isinstance(prompt, ChatPrompt),
            may_shift=body.shift is not False,
            **more,
        )
        names = [*without_effect(sent, self._profile), *idle]
        idle_options = options_without_effect(sent.options, shared, request, reading, OllamaOptions)
        is_chat = self.kind is OllamaChatBody
        return Call(
            (request,),
            OllamaEncoder(sent.name, self._clock, request, is_chat=is_chat, has_context=has_context),
            stream=body.stream is not False,
            idle={
                **{name: IGNORED.get(name, "") for name in names},
                **{f"options.{name}": why for name, why in idle_options.items()},
            },
        )


def _without_text(
    http: HttpCall, kind: type[OllamaBody], switches: CallSwitches, clock: Clock, known: Sequence[str] = ()
) -> Reply:
    """The answer to a call that only loads or unloads a model. Raises: InvalidRequest."""
    sent = read_body(http, kind)
    headers = note_ignored(switches, idle_without_text(sent.raw, kind, known))
    made = answer_object(is_chat=kind is OllamaChatBody, model=sent.name, created_s=clock.now(), done=True)
    made.done_reason = "unload" if keep_s(sent.body.keep_alive) == 0 else "load"
    return json_reply(200, made, headers)


async def answer_unload(exchange: Exchange, http: HttpCall, server: Server, proceed: Proceed) -> bool:
    """Answer a call to unload a model that is not loaded, without loading it. See `Before`."""
    kind: type[OllamaBody] = OllamaChatBody if http.path.endswith("/chat") else OllamaGenerateBody
    if server.hosting is None or not _asks_for_no_text(http, kind) or not _asks_to_unload(http):
        return False
    name = model_meant(http, server)
    if name is None or server.models.unloaded_called(name) is None:
        return False
    switches = server.switches.for_call(http.headers)
    await exchange.send_reply(_without_text(http, kind, switches, CLOCK, known=(KEPT,)))
    return True


def _asks_for_no_text(http: HttpCall, kind: type[OllamaBody]) -> bool:
    asking = ("messages",) if kind is OllamaChatBody else ("prompt", "suffix", "images")
    return not any(http.field(name) for name in asking)


def _asks_to_unload(http: HttpCall) -> bool:
    value = http.field(KEPT)
    try:
        return isinstance(value, str | int | float) and keep_s(value) == 0
    except InvalidRequest:
        return False


class GenerateDialect(_Dialect):
    kind = OllamaGenerateBody

    def parse(self, http: HttpCall) -> Call:
        sent = read_body(http, OllamaGenerateBody)
        body = sent.body
        _refuse(body)
        prompt = self._prompt(body)
        fields = {"system": bool(body.system), "think": body.think is not None}
        idle = [] if isinstance(prompt, ChatPrompt) else [name for name, is_said in fields.items() if is_said]
        has_context = not (body.raw or body.suffix or body.images)
        return self._call(sent, http.request_id, prompt, idle, has_context=has_context)

    def _prompt(self, body: OllamaGenerateBody) -> Prompt:
        """One turn of a conversation, where the model holds any; else the text itself."""
        text, context = body.prompt or "", tuple(body.context or ())
        check_count("context", len(context), self._profile.limits.max_token_ids, WORDS)
        check_count("images", len(body.images or ()), self._profile.limits.max_messages, WORDS)
        kwargs = thinking_kwargs(body.think, self._profile)
        if body.suffix:
            return TextPrompt(text, body.suffix)
        if body.raw or not (body.images or "chat" in self._profile.abilities):
            return TextPrompt(text, add_special_tokens=not context, before_ids=context)
        system = [{"role": "system", "content": body.system}] if body.system else []
        turn = {"role": "user", "content": content_of(text, body.images, "")}
        return ChatPrompt((*system, turn), template_kwargs=kwargs, before_ids=context)


def _refuse(body: OllamaGenerateBody) -> None:
    if body.template:
        reason = "it is a Go template; the model's own chat template is used"
        raise UnsupportedFeature(f"template is not supported: {reason}", param="template")
    for name, excluded in (("raw", ("system", "context", "images")), ("suffix", ("context", "images"))):
        for other in excluded:
            if getattr(body, name) and getattr(body, other):
                raise WORDS.conflict(other, name)


class ChatDialect(_Dialect):
    kind = OllamaChatBody

    def parse(self, http: HttpCall) -> Call:
        sent = read_body(http, OllamaChatBody)
        self._check_sizes(sent.body)
        messages = template_messages(sent.body.messages or [])
        tools = tool_use(ChatBody(tools=sent.body.tools), sent.raw, WORDS)
        last = messages[-1] if messages else {}
        prompt = ChatPrompt(
            messages,
            tools.tools,
            # As Ollama has it: what the assistant has begun to say, it goes on saying.
            continue_final_message=last.get("role") == "assistant"
            and bool(last["content"])
            and "tool_calls" not in last,
            template_kwargs=thinking_kwargs(sent.body.think, self._profile),
        )
        return self._call(
            sent,
            http.request_id,
            prompt,
            has_context=False,
            **tools.request_fields(),
        )

    def _check_sizes(self, body: OllamaChatBody) -> None:
        messages, limits = body.messages or [], self._profile.limits
        check_count("messages", len(messages), limits.max_messages, WORDS)
        for name in ("images", "tool_calls"):
            count = sum(len(getattr(message, name) or ()) for message in messages)
            check_count(f"messages[].{name}", count, limits.max_messages, WORDS)
        check_count("tools", len(body.tools or ()), limits.max_tools, WORDS)


def template_messages(messages: Sequence[OllamaMessage]) -> tuple[dict[str, Any], ...]:
    """The conversation as templates take it. Raises: InvalidRequest."""
    calls = _Calls()
    return tuple(_template_message(message, f"messages[{i}].", calls) for i, message in enumerate(messages))


class _Calls:
    """The tool calls of a conversation. Ollama's clients need not name them, but some templates want ids."""

    def __init__(self) -> None:
        self._waiting: list[tuple[str, str]] = []  # ids and functions of calls whose result has not come yet
        self._count = 0

    def made(self, message: OllamaMessage) -> list[dict[str, Any]]:
        entries = []
        for call in message.tool_calls or ():
            self._count += 1
            call_id = call.id or f"call{self._count:05}"  # nine characters, as some templates insist
            self._waiting.append((call_id, call.function.name))
            function = {"name": call.function.name, "arguments": call.function.arguments or {}}
            entries.append({"id": call_id, "type": "function", "function": function})
        return entries

    def answered(self, message: OllamaMessage) -> Mapping[str, str]:
        """The call that a tool's message answers: the one that it names, else the first of its function, or of any."""
        named, function = message.tool_call_id, message.tool_name
        found = (
            next((call for call in self._waiting if call[0] == named), None)
            if named
            else next((call for call in self._waiting if call[1] == function), None) or next(iter(self._waiting), None)
        )
        if found is not None:
            self._waiting.remove(found)
            named, function = found[0], function or found[1]
        entry = {"tool_call_id": named, "name": function}
        return {name: value for name, value in entry.items() if value}


def _template_message(message: OllamaMessage, path: str, calls: _Calls) -> dict[str, Any]:
    if not message.role:
        raise WORDS.fault(f"{path}role", "missing", f"{path}role is missing: every message must have a role")
    role = message.role.lower()
    entry: dict[str, Any] = {"role": role, "content": content_of(message.content or "", message.images, path)}
    if message.tool_calls:
        entry["tool_calls"] = calls.made(message)
    if role == "tool":
        entry.update(calls.answered(message))
    if message.thinking:
        entry["reasoning_content"] = message.thinking
    return entry


# --- embeddings -------------------------------------------------------------------------------------------------------


class OllamaEmbedBody(msgspec.Struct, kw_only=True):
    """The body of POST /api/embed. `truncate` absent = true."""

    model: str | None = None
    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: int | None = None
    keep_alive: float | str | None = None
    options: dict[str, Any] | None = None


class OllamaEmbeddingsBody(msgspec.Struct, kw_only=True):
    """The body of POST /api/embeddings, which `/api/embed` has replaced."""

    model: str | None = None
    prompt: str | None = None
    keep_alive: float | str | None = None
    options: dict[str, Any] | None = None


class OllamaEmbedded(msgspec.Struct):
    """The answer of /api/embed: an embedding for each text."""

    model: str
    embeddings: list[list[float]]
    total_duration: Nanoseconds
    load_duration: Nanoseconds
    prompt_eval_count: int


class OllamaEmbedding(msgspec.Struct):
    """The answer of /api/embeddings."""

    embedding: list[float]


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
    request = EmbedRequest(texts=texts, request_id=call.request_id, **more)
    return await TextsField(name, len(texts) > 1).asked(service.embed, request)


def _idle(call: TextsCall[Any]) -> Iterator[str]:
    yield from idle_without_text(call.raw, type(call.body))


EMBED = TextsOperation(OllamaEmbedBody, _embed, WORDS, ERRORS, _idle)
EMBEDDINGS = TextsOperation(OllamaEmbeddingsBody, _embeddings, WORDS, ERRORS, _idle)
