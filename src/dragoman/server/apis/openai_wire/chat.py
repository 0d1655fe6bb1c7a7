"""Conversations in OpenAI's shape or in LMI's: answers, encoder and dialect. On the event loop.

Sources: OpenAI API reference, chat; LMI 0.30, chat completions API schema; vLLM.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from copy import copy
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dragoman.errors import CapacityError, ServerError
from dragoman.server.api import Call, HttpCall, ModelProfile, PureDialect, Reply
from dragoman.server.apis.openai_wire.common import Created, OpenAiEncoder, PromptLogprobs, Reading, Usage, json_logprob
from dragoman.server.apis.openai_wire.conversation import (
    ChatBody,
    check_restricted,
    check_sizes,
    check_tool_types,
    conversation,
    tool_use,
)
from dragoman.server.apis.openai_wire.fields import decode_object, read_struct
from dragoman.server.apis.openai_wire.profile import OPENAI_FINISH, Profile
from dragoman.server.apis.openai_wire.sampling import (
    NO_LOGPROBS,
    check_shared,
    logprob_count,
    shared_request,
    tells_progress,
    without_effect,
)
from dragoman.server.apis.openai_wire.thinking import ReasoningBody, effort_switches
from dragoman.server.json_body import NotJson
from dragoman.server.timings import Timings, ToldProgress
from dragoman.types import (
    ChatPrompt,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    GenerationResult,
    Prompt,
    SequenceResult,
    TokenOutput,
    ToolCall,
)

# --- answers ----------------------------------------------------------------------------------------------------------


class TopLogprob(msgspec.Struct):
    """A candidate. `token` is a number only where LMI's slip of the pen is reproduced."""

    token: str | float | None
    logprob: float | None
    bytes: list[int] | None


class TokenLogprob(msgspec.Struct):
    """A generated token; `bytes` are its own, however its character was pieced together."""

    token: str
    logprob: float | None
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """`logprobs` of a choice."""

    content: list[TokenLogprob]


class FunctionCall(msgspec.Struct, omit_defaults=True):
    """A function call, or a piece of one: `name` only in the first piece."""

    name: str | None = None
    arguments: str | UnsetType = UNSET


class ToolCallObject(msgspec.Struct, omit_defaults=True):
    """A tool call of an answer (without `index`) or of a chunk (`id` and `type` only in the first piece)."""

    function: FunctionCall
    index: int | UnsetType = UNSET
    id: str | None = None
    type: str | None = None


class AnswerMessage(msgspec.Struct):
    """The assistant's message; `content` is null beside tool calls that came without text."""

    role: str
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallObject] | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET


class Delta(msgspec.Struct):
    """The part of the message that a chunk adds."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallObject] | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET


_FINISH_WORDS = sorted({*OPENAI_FINISH.values(), "tool_calls", "function_call", "eos_token", "stop_sequence"})
FinishWord = Annotated[str, Meta(extra_json_schema={"enum": _FINISH_WORDS})]  # the last two are LMI's


class ChatChoice(msgspec.Struct):
    """One choice of an answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishWord
    token_ids: list[int] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    """One choice of a chunk. `logprobs` is a list only where LMI's slip of the pen is reproduced."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | list[ChatLogprobs] | None
    finish_reason: FinishWord | None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct):
    """An answer. LMI's shape has no `system_fingerprint`, and says eos_token or stop_sequence where OpenAI's says stop."""

    id: str
    object: Literal["chat.completion"]
    created: Created
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class ChatCompletionChunk(msgspec.Struct):
    """One event or line of a stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: Created
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    prompt_progress: ToldProgress | UnsetType = UNSET


# --- encoder ----------------------------------------------------------------------------------------------------------

_CUT_SHORT = (FinishReason.LENGTH, FinishReason.ABORT, FinishReason.REPETITION)


class ChatEncoder(OpenAiEncoder[ChatCompletionChunk]):
    """Implements `Encoder` for chat; a call has one request with `n` sequences."""

    def __init__(
        self,
        body: ChatBody,
        request: GenerationRequest,
        reading: Reading,
        http: HttpCall,
        clock: Callable[[], float],
        *,
        has_lmi_slips: bool,
    ) -> None:
        """`clock` gives the creation time of each LMI chunk; OpenAI's chunks all have that of the first.

        `has_lmi_slips`: reproduce the two slips in LMI's documented stream (logprobs in a list, numeric tokens).
        """
        is_openai = reading.profile.name != "lmi"
        super().__init__(
            body,
            reading,
            f"chatcmpl-{http.request_id}",
            is_sse=is_openai,
            has_reasoning=True,
            shows_ids=bool(body.return_token_ids),
            num_prompt_logprobs=request.sampling.prompt_logprobs,
        )
        self._clock = clock
        self._begin_s = self._text_chunks_s = int(clock())  # the latter: when all of `_text_chunks` were made
        self._has_lmi_slips = has_lmi_slips
        self._finish = reading.profile.finish_words
        self._top_logprobs = request.sampling.logprobs  # None = no log-probabilities
        self._needs_tokens = self._top_logprobs is not None or self._shows_ids
        self._is_plain = not (self._needs_tokens or self._has_continuous_usage)
        self._fingerprint = reading.model.system_fingerprint if is_openai else UNSET
        if not is_openai:
            self._chunk_usage = UNSET
        self._has_parallel_calls = request.parallel_tool_calls
        self._has_functions = bool(body.functions)  # calls have the older form, `function_call`
        self._shows_reasoning = body.include_reasoning is not False and not (body.reasoning and body.reasoning.exclude)
        self.echoed = _last_words(request.prompt) if body.echo else ""  # goes before every answer
        self._begun: set[int] = set()  # sequences whose role was sent
        self._calling: set[int] = set()  # sequences that made a tool call

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        [result] = results
        choices = [self._full_choice(sequence) for sequence in result.sequences]
        return self._reply(
            ChatCompletion(
                self._id,
                "chat.completion",
                self._created_s(),
                self._model,
                choices,
                self._usage.of(results),
                self._fingerprint,
                self._prompt_logprobs(result.prompt),
                self._prompt_ids(result.prompt),
                self._timings.of(),
            )
        )

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        """Runs once per step and sequence, so it stays cheap; b"" while there is nothing to tell."""
        self._usage.add(event)
        if self._is_text_only(event):
            return self._more_text(event.index, event.content)
        tool_calls = self._tool_pieces(event)
        prompt = self._prompt_logprobs(event.prompt)
        reasoning = event.reasoning if self._shows_reasoning else ""
        has_tokens = self._needs_tokens and event.tokens
        has_news = event.content or reasoning or tool_calls or event.finish_reason is not None
        if not has_news and not has_tokens and prompt is UNSET:
            return b""
        choice = ChunkChoice(
            event.index,
            self._delta(event.index, event.content, reasoning, tool_calls),
            self._chunk_logprobs(event.tokens),
            self._finish_word(event.index, event.finish_reason),
            self._token_ids(event.tokens),
        )
        chunk = self._event_chunk(choice, event)
        chunk.prompt_logprobs, chunk.prompt_token_ids = prompt, self._prompt_ids(event.prompt)
        return self._frame(chunk)

    def _is_text_only(self, event: GenerationEvent) -> bool:
        """True if the event's chunk is like others of its sequence but for the text; nearly all are."""
        return (
            event.content != ""
            and event.index in self._begun
            and event.finish_reason is None
            and event.prompt is None
            and not (event.reasoning or event.tool_calls)
            and self._is_plain
        )

    def _more_text(self, index: int, text: str) -> bytes:
        created_s = self._created_s()
        if created_s != self._text_chunks_s:
            self._text_chunks_s = created_s
            self._text_chunks.clear()
        return super()._more_text(index, text)

    def _text_choice(self, index: int, text: str) -> ChunkChoice:
        return ChunkChoice(index, Delta(content=text), None, None)

    def _silent_choice(self) -> ChunkChoice:
        return ChunkChoice(0, Delta(role="assistant", content=None), None, None)

    def _full_choice(self, sequence: SequenceResult) -> ChatChoice:
        calls = self._tool_calls(sequence.tool_calls)
        reasoning = sequence.reasoning if sequence.reasoning and self._shows_reasoning else UNSET
        content = self.echoed + sequence.content
        message = AnswerMessage(
            "assistant",
            None if calls and not content else content,
            reasoning,
            reasoning,
            UNSET if self._has_functions else calls or UNSET,
            calls[0].function if calls and self._has_functions else UNSET,
        )
        if calls:
            self._calling.add(sequence.index)
        logprobs = None if self._top_logprobs is None else self._logprobs(sequence.tokens)
        reason = self._finish_word(sequence.index, sequence.finish_reason) or ""
        return ChatChoice(sequence.index, message, logprobs, reason, self._token_ids(sequence.tokens))

    def _delta(self, index: int, content: str, reasoning: str, tool_calls: list[ToolCallObject]) -> Delta:
        delta = Delta()
        if index not in self._begun:
            self._begun.add(index)
            delta.role = "assistant"
            content = self.echoed + content
        if content or not (reasoning or tool_calls):
            delta.content = content
        if reasoning:
            delta.reasoning_content = delta.reasoning = reasoning
        if tool_calls and self._has_functions:
            delta.function_call = _joined(tool_calls)
        elif tool_calls:
            delta.tool_calls = tool_calls
        return delta

    def _finish_word(self, index: int, reason: FinishReason | None) -> str | None:
        if reason is None:
            return None
        is_calling = index in self._calling and reason not in _CUT_SHORT
        if is_calling:
            return "function_call" if self._has_functions else "tool_calls"
        return self._finish[reason]

    def _tool_calls(self, calls: Sequence[ToolCall]) -> list[ToolCallObject]:
        kept = calls if self._has_parallel_calls else calls[:1]
        return [ToolCallObject(FunctionCall(call.name, call.arguments), id=call.id, type="function") for call in kept]

    def _tool_pieces(self, event: GenerationEvent) -> list[ToolCallObject]:
        pieces = [
            ToolCallObject(
                FunctionCall(delta.name, delta.arguments),
                delta.index,
                delta.id,
                None if delta.id is None else "function",
            )
            for delta in event.tool_calls
            if self._has_parallel_calls or delta.index == 0
        ]
        if pieces:
            self._calling.add(event.index)
        return pieces

    def _chunk_logprobs(self, tokens: Sequence[TokenOutput]) -> ChatLogprobs | list[ChatLogprobs] | None:
        if self._top_logprobs is None:
            return None
        logprobs = self._logprobs(tokens)
        if not self._has_lmi_slips:
            return logprobs
        for token in logprobs.content:
            for top in token.top_logprobs:
                top.token = top.logprob
        return [logprobs]

    def _logprobs(self, tokens: Sequence[TokenOutput]) -> ChatLogprobs:
        top_n = self._top_logprobs or 0
        return ChatLogprobs([_token_logprob(token, top_n) for token in tokens])

    def _chunk(self, choices: list[ChunkChoice], usage: Usage | UnsetType | None) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            self._id,
            "chat.completion.chunk",
            self._created_s(),
            self._model,
            choices,
            usage,
            self._fingerprint,
        )

    def _created_s(self) -> int:
        return self._begin_s if self._is_sse else int(self._clock())


def _last_words(prompt: Prompt) -> str:
    """The text of the assistant's last message, which the answer goes on from."""
    if not isinstance(prompt, ChatPrompt) or prompt.messages[-1]["role"] != "assistant":
        return ""
    content = prompt.messages[-1].get("content") or ""
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def _joined(pieces: Sequence[ToolCallObject]) -> FunctionCall:
    """The pieces of one call as one: a chunk has room for no more."""
    name = next((piece.function.name for piece in pieces if piece.function.name is not None), None)
    return FunctionCall(name, "".join(piece.function.arguments or "" for piece in pieces))


def _token_logprob(token: TokenOutput, top_n: int) -> TokenLogprob:
    top = [TopLogprob(entry.text, json_logprob(entry.logprob), _byte_list(entry.bytes)) for entry in token.top[:top_n]]
    return TokenLogprob(token.token_text, json_logprob(token.logprob), _byte_list(token.bytes), top)


def _byte_list(data: bytes) -> list[int] | None:
    return list(data) if data else None


# --- dialect ----------------------------------------------------------------------------------------------------------

LMI_STRICT_MAX_TOKENS = 30  # what LMI v0.31 generates for a conversation without max_tokens


ChatRoute = Callable[[ModelProfile, HttpCall], Profile]
"""(model, call) -> the profile that answers."""


class ChatDialect(PureDialect):
    """Translates conversations. `clock` returns Unix time in seconds.

    The setting `lmi_strict` reproduces LMI v0.31 to the letter where it errs.
    """

    def __init__(self, model: ModelProfile, route: ChatRoute, clock: Callable[[], float] = time.time) -> None:
        self._model = model
        self._route = route
        self._clock = clock

    def parse(self, http: HttpCall) -> Call:
        model = self._model
        profile = self._route(model, http)
        is_strict = profile.name == "lmi" and bool(model.settings.get("lmi_strict"))
        raw = decode_object(http, profile)
        reading = Reading(profile, model)
        check_tool_types(raw, profile)
        body = read_struct(raw, ChatBody, profile)
        check_shared(raw, body, reading)
        if body.max_completion_tokens is not None:
            body.max_tokens = body.max_completion_tokens
        top_logprobs = _top_logprobs(body, reading, needs_top=is_strict)
        check_sizes(body, model.limits, profile)
        tools = tool_use(body, raw, profile)
        prompt = conversation(body, tools, profile, **_effort(body))
        check_restricted(prompt.messages, profile)
        request = shared_request(
            body,
            reading,
            request_id=http.request_id,
            prompt=prompt,
            logprobs=top_logprobs,
            max_tokens=LMI_STRICT_MAX_TOKENS if is_strict else None,
            parse_reasoning=True,
            parallel_tool_calls=body.parallel_tool_calls is not False and not body.functions,
            **tools.request_fields(),
        )
        idle = without_effect(raw, body, request, reading)
        if top_logprobs is None and raw.get("top_logprobs"):
            idle["top_logprobs"] = NO_LOGPROBS
        encoder = ChatEncoder(body, request, reading, http, self._clock, has_lmi_slips=is_strict)
        if body.echo and not encoder.echoed:
            idle["echo"] = ""
        return Call(
            (request,),
            encoder,
            stream=bool(body.stream),
            idle=idle,
            wants_progress=tells_progress(body, reading),
        )

    def ignores_unknown_model(self, http: HttpCall) -> bool:
        return self._route(self._model, http).ignores_model

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        profile = self._route(self._model, http)
        return profile.errors.reply(_renamed(error, http) if profile.name == "v1" else error)


_MAX_TOKENS = re.compile(r"(?<!reasoning\.)\bmax_tokens\b")


def _renamed(error: ServerError, http: HttpCall) -> ServerError:
    """A copy of the service's error, which speaks of a prompt and of `max_tokens`, in the names of this body."""
    twin = copy(error)
    if isinstance(error, CapacityError) and error.param == "prompt":
        twin.param = "messages"
    if _has_newer_limit(http):
        twin.message = _MAX_TOKENS.sub("max_completion_tokens", error.message)
        twin.param = None if twin.param is None else _MAX_TOKENS.sub("max_completion_tokens", twin.param)
    return twin


def _has_newer_limit(http: HttpCall) -> bool:
    try:
        body = http.json()
    except NotJson:
        return False
    return isinstance(body, dict) and body.get("max_completion_tokens") is not None


def _top_logprobs(body: ChatBody, reading: Reading, *, needs_top: bool) -> int | None:
    """Number of candidates to show per token; None = no logprobs. `needs_top`: `logprobs: true` alone does nothing."""
    if body.n_probs is not None:
        logprob_count("n_probs", body.n_probs, reading)
        if body.n_probs and body.logprobs is None and body.top_logprobs is None:
            body.logprobs, body.top_logprobs = True, body.n_probs
    if body.top_logprobs is not None:
        body.top_logprobs = logprob_count("top_logprobs", body.top_logprobs, reading)
    if body.logprobs:
        return None if needs_top and not body.top_logprobs else body.top_logprobs or 0
    if body.top_logprobs and reading.profile.name != "lmi":
        message = f"top_logprobs needs logprobs: true, got top_logprobs {body.top_logprobs}"
        raise reading.profile.fault("top_logprobs", "without_logprobs", message)
    return None


def _effort(body: ChatBody) -> dict[str, Any]:
    reasoning = body.reasoning or ReasoningBody()
    kwargs = effort_switches(body.reasoning_effort or reasoning.effort)
    if reasoning.enabled is not None:
        kwargs |= {"enable_thinking": reasoning.enabled, "thinking": reasoning.enabled}
    if body.documents is not None:
        kwargs["documents"] = body.documents
    return kwargs
