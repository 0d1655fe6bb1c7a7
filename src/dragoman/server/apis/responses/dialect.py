"""Turns a body, and what goes before it, into one GenerationRequest. One per model and route; on the event loop."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from dragoman.errors import CapacityError, InvalidParameter, NotFound, ServerError, UnsupportedFeature
from dragoman.server.api import Call, CallSwitches, HttpCall, ModelProfile, Opening, Reply
from dragoman.server.apis.openai_wire.common import Reading, name_in_answer
from dragoman.server.apis.openai_wire.conversation import ToolUse, check_restricted
from dragoman.server.apis.openai_wire.fields import decode_object, read_struct
from dragoman.server.apis.openai_wire.grammars import JsonSchemaFormat
from dragoman.server.apis.openai_wire.sampling import check_shared, shared_request, without_effect
from dragoman.server.apis.responses.encoder import ResponseEncoder
from dragoman.server.apis.responses.items import Conversation, check_items, new_item_id, stored_form, type_of
from dragoman.server.apis.responses.request import (
    TOOL_FIELDS,
    InputItem,
    ReasoningOptions,
    ResponsesBody,
    ResponsesProfile,
    TextFormat,
    check_options,
    check_refused,
    idle_names,
    read_tools,
    response_format,
    template_kwargs,
    top_logprobs,
)
from dragoman.server.apis.responses.schema import Response, ToldFormat, ToldReasoning, ToldText
from dragoman.server.apis.responses.store import Asking, Item, ResponseDocument, ResponseStore, current_asking
from dragoman.server.generation.tokenizing_service import TokenizingService, tokenizing_service
from dragoman.types import ChatPrompt, GenerationRequest

# --- truncation: auto -------------------------------------------------------------------------------------------------

Message = Mapping[str, Any]

# Of the context, for an input that was too long, where the client does not say how long the answer may be.
_KEPT_SHARE = 0.75


async def fitted(prompt: ChatPrompt, max_tokens: int | None, service: TokenizingService) -> ChatPrompt:
    """The conversation without its oldest messages, until it fits with room for `max_tokens`. Raises: InvalidRequest.

    Instructions, the last message of the user's and what came last stay, even if they do not fit.
    Source: OpenAI API reference, responses, truncation.
    """
    context = service.max_model_len
    if await _fits(prompt, context - (max_tokens or 1), service):
        return prompt
    room = context - max_tokens if max_tokens is not None else int(context * _KEPT_SHARE)
    shorter = list(_shortened(prompt.messages))
    low, high = 0, len(shorter) - 1  # the first that fits is between them, or it is the last whatever its size
    while low < high:
        middle = (low + high) // 2
        if await _fits(msgspec.structs.replace(prompt, messages=shorter[middle]), room, service):
            high = middle
        else:
            low = middle + 1
    return msgspec.structs.replace(prompt, messages=shorter[low]) if shorter else prompt


async def _fits(prompt: ChatPrompt, room: int, service: TokenizingService) -> bool:
    try:
        return len((await service.tokenize(prompt)).token_ids) <= room
    except CapacityError:  # more text than is tokenised at all
        return False


def _shortened(messages: Sequence[Message]) -> Iterator[tuple[Message, ...]]:
    """The conversation, ever shorter: first without its oldest turns, then without what followed the last question."""
    num_leading = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    leading, rest = tuple(messages[:num_leading]), messages[num_leading:]
    begins = [i for i, message in enumerate(rest) if message["role"] == "user"]
    for begin in begins[1:] if begins and begins[0] == 0 else begins:
        yield (*leading, *rest[begin:])
    if begins:
        question, after = rest[begins[-1]], rest[begins[-1] + 1 :]
        steps = [i for i, message in enumerate(after) if message["role"] != "tool"]
        for begin in steps[1:]:
            yield (*leading, question, *after[begin:])


# --- dialect ----------------------------------------------------------------------------------------------------------

_MESSAGE = re.compile(r"\bmessages\[(\d+)\]")
_OTHER_NAMES = (
    (re.compile(r"(?<!reasoning\.)\bmax_tokens\b"), "max_output_tokens"),
    (re.compile(r"^messages\b"), "input"),
    (re.compile(r"\bof type image_url\b"), "of type input_image"),
)

_TOLD_BACK = (
    "instructions", "max_tool_calls", "previous_response_id", "prompt_cache_key", "prompt_cache_retention",
    "prompt_cache_options", "safety_identifier", "top_logprobs", "user", "metadata",
)  # fmt: skip

NewId = Callable[[str, bool], str]
"""(caller, is it stored) -> the id of a new response."""


class Parsed(NamedTuple):
    """A body that was understood. `items`: everything that the model is given, as it is stored."""

    body: ResponsesBody
    raw: Mapping[str, Any]
    request: GenerationRequest
    response: Response
    items: tuple[Item, ...]
    logprobs: int | None


class ResponsesDialect:
    """Translates responses. `clock`: Unix time in seconds. `new_id`: in a test, ids that are known."""

    def __init__(
        self,
        model: ModelProfile,
        profile: ResponsesProfile,
        clock: Callable[[], float] = time.time,
        new_id: NewId | None = None,
    ) -> None:
        self._profile = profile
        self._reading = Reading(profile.wire, model)
        self._clock = clock
        self._new_id = new_id

    def open(self, http: HttpCall) -> Opening:
        asking = current_asking()
        if asking.server is None or http.field("truncation") != "auto":
            return Opening(partial(self.parse, http))
        return Opening(partial(self.parse, http), answer=partial(self._fit, http, asking))

    def parse(self, http: HttpCall) -> Call:
        asking = current_asking()
        parsed = self.understood(http, asking)
        body, request = parsed.body, parsed.request
        if asking.fitted is not None:
            request = msgspec.structs.replace(request, prompt=asking.fitted)
        running = ResponseDocument.begun(parsed.response, parsed.items, http.caller, http.request_id)
        asking.begin(running, is_streamed=bool(body.stream))
        ended = partial(_keep, asking.store)
        encoder = ResponseEncoder(parsed.response, self._profile, parsed.logprobs, self._clock, ended)
        return Call(
            (request,),
            encoder,
            stream=bool(body.stream),
            idle=self.without_effect(parsed),
        )

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        return self._profile.wire.errors.reply(self._renamed(error, current_asking().paths))

    def understood(self, http: HttpCall, asking: Asking) -> Parsed:
        """The parsed body; records nothing. Raises: InvalidRequest."""
        reading = self._reading
        profile, limits = reading.profile, reading.model.limits
        raw = decode_object(http, profile)
        check_refused(raw)
        check_items(raw.get("input"), profile, limits)
        body = read_struct(raw, ResponsesBody, profile)
        check_options(body, self._profile)
        if body.max_output_tokens is not None:
            body.max_tokens = body.max_output_tokens
        if body.stream_options is not None and not body.stream:
            body.stream_options = None  # OpenAI's clients send it with every call
        check_shared(raw, body, reading)
        logprobs = top_logprobs(body, reading, self._profile)
        tools = read_tools(body, limits, profile)
        new_id, store = self._new_id or asking.store.new_id, asking.store
        response_id = new_id(http.caller, body.store is not False)
        before = self._before(body, http.caller, store)
        new = self._new_items(raw, body, response_id, http.caller, store)
        prompt = self._prompt(body, before, new, tools, asking)
        body.response_format, grammar = response_format(body, profile)
        request = shared_request(
            body,
            reading,
            request_id=http.request_id,
            prompt=prompt,
            logprobs=logprobs,
            grammar=grammar,
            parse_reasoning=True,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            **tools.request_fields(),
        )
        response = self._response(response_id, body, request)
        return Parsed(body, raw, request, response, (*before, *new), logprobs)

    # --- what goes before ---------------------------------------------------------------------------------------------

    def _before(self, body: ResponsesBody, caller: str, store: ResponseStore) -> tuple[Item, ...]:
        if body.previous_response_id is None:
            return ()
        running = store.running(body.previous_response_id, caller)
        if running is not None:
            message = f"previous_response_id {running.response.id} is still in progress: wait until it has ended"
            raise InvalidParameter(message, param="previous_response_id")
        try:
            kept = store.get(body.previous_response_id, caller)
        except NotFound as error:
            raise InvalidParameter(f"previous_response_id: {error.message}", param="previous_response_id") from error
        return (*kept.items, *kept.output)

    def _new_items(
        self, raw: Mapping[str, Any], body: ResponsesBody, response_id: str, caller: str, store: ResponseStore
    ) -> tuple[Item, ...]:
        """The items of this call's own input, as they are stored; references are resolved."""
        profile, prompt = self._profile.wire, body.input
        if prompt is None:
            if body.previous_response_id is not None:
                return ()
            raise profile.missing("input", "a text or an array of items")
        if prompt == "" and profile.refuses_empty_prompt:
            raise profile.fault("input", "empty", "input must not be empty")
        if prompt == [] and body.previous_response_id is None:
            raise profile.fault("input", "no_items", "input must hold at least one item, got []")
        if isinstance(prompt, str):
            prompt, sent = [InputItem(role="user", content=prompt)], [{"role": "user", "content": prompt}]
        else:
            sent = raw["input"]
        items: list[Item] = []
        for position, (item, written) in enumerate(zip(prompt, sent, strict=True)):
            kind = type_of(item)
            if kind == "item_reference":
                items.append(self._referred(item, f"input[{position}]", caller, store))
            else:
                items.append(stored_form(written, kind, new_item_id(kind, response_id, f"i{position}")))
        return tuple(items)

    def _referred(self, item: InputItem, path: str, caller: str, store: ResponseStore) -> Item:
        if item.id is None:
            raise self._profile.wire.missing(f"{path}.id")
        try:
            return store.item(item.id, caller)
        except NotFound as error:
            raise InvalidParameter(f"{path}.id: {error.message}", param=f"{path}.id") from error

    def _prompt(
        self,
        body: ResponsesBody,
        before: Collection[Item],
        new: Collection[Item],
        tools: ToolUse,
        asking: Asking,
    ) -> ChatPrompt:
        profile = self._profile.wire
        conversation = Conversation(profile, body.instructions)
        paths = ["instructions"] * conversation.num_messages
        for name, items in (("previous_response_id", before), ("input", new)):
            for position, item in enumerate(msgspec.convert(list(items), list[InputItem], strict=False)):
                path = f"{name}[{position}]"
                conversation.add(item, path)
                paths += [path] * (conversation.num_messages - len(paths))
        asking.paths = paths
        messages = conversation.messages
        check_restricted(messages, profile)
        return ChatPrompt(messages, tools.tools, template_kwargs=template_kwargs(body))

    async def _fit(self, http: HttpCall, asking: Asking, switches: CallSwitches) -> None:
        assert asking.server is not None
        request = self.understood(http, asking).request
        assert isinstance(request.prompt, ChatPrompt)
        try:
            service = tokenizing_service(asking.server.models.find(request.model))
        except UnsupportedFeature as error:
            message = f"truncation auto is not supported: {error.message}"
            raise UnsupportedFeature(message, param="truncation") from error
        asking.fitted = await fitted(request.prompt, request.max_tokens, service)

    # --- what is told -------------------------------------------------------------------------------------------------

    def _response(self, response_id: str, body: ResponsesBody, request: GenerationRequest) -> Response:
        reasoning, sampling = body.reasoning or ReasoningOptions(), request.sampling
        return Response(
            **{name: value for name in _TOLD_BACK if (value := getattr(body, name)) is not None},
            id=response_id,
            created_at=int(self._clock()),
            status="in_progress",
            max_output_tokens=body.max_tokens,
            model=name_in_answer(self._reading, body.model),
            parallel_tool_calls=body.parallel_tool_calls is not False,
            reasoning=ToldReasoning(reasoning.effort, reasoning.summary or reasoning.generate_summary),
            store=body.store is not False,
            background=bool(body.background),
            temperature=sampling.temperature,
            text=_told_text(body),
            tool_choice=body.tool_choice or "auto",
            tools=[_told_tool(tool) for tool in body.tools or ()],
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            top_p=sampling.top_p if body.top_p is None else body.top_p,
            truncation="auto" if body.truncation == "auto" else "disabled",
        )

    def without_effect(self, parsed: Parsed) -> dict[str, str]:
        body, raw = parsed.body, parsed.raw
        idle = without_effect(raw, body, parsed.request, self._reading)
        for position, item in enumerate(body.input if isinstance(body.input, list) else ()):
            if item.encrypted_content:
                idle[f"input[{position}].encrypted_content"] = ""
        return idle | idle_names(raw, body, parsed.logprobs)

    def _renamed(self, error: ServerError, paths: Sequence[str]) -> ServerError:
        """A copy of the service's error, which speaks of messages and `max_tokens`, in this API's words."""
        twin = copy(error)

        def place(found: re.Match[str]) -> str:
            index = int(found[1])
            return paths[index] if index < len(paths) else "input"

        twin.message = _MESSAGE.sub(place, error.message)
        twin.param = None if error.param is None else _MESSAGE.sub(place, error.param)
        if self._profile.wire.name == "v1":
            if isinstance(error, CapacityError) and error.param == "prompt":
                twin.param = "input"
            for pattern, name in _OTHER_NAMES:
                twin.message = pattern.sub(name, twin.message)
                twin.param = None if twin.param is None else pattern.sub(name, twin.param)
        return twin


def _keep(store: ResponseStore, response: Response) -> None:
    output: list[Item] = [msgspec.to_builtins(item) for item in response.output]
    store.end(response, output)


def _told_text(body: ResponsesBody) -> ToldText:
    text = body.text
    form = (None if text is None else text.format) or body.response_format
    shown = ToldFormat("text" if form is None else form.type)
    if form is not None and form.type == "json_schema":
        wanted = form if isinstance(form, TextFormat) else form.json_schema or JsonSchemaFormat(schema=form.schema)
        shown.name = UNSET if wanted.name is None else wanted.name
        shown.description = wanted.description
        shown.schema = UNSET if wanted.schema is None else wanted.schema
        shown.strict = bool(wanted.strict)
    return ToldText(shown, UNSET if text is None or text.verbosity is None else text.verbosity)


def _told_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool.get("function") or tool
    return {"type": "function", **{name: function.get(name) for name in TOOL_FIELDS}}
