"""Encodes chat: messages, tool calls, reasoning, logprobs, chunks, usage; in OpenAI's shape or in LMI's.

Does: everything the answer shows, for whole answers and streams alike.
Does not: parse. One encoder per call, on the event loop; `event` runs once per step and sequence, so it stays cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import UNSET, UnsetType

from dragoman.errors import ServerError
from dragoman.server.api import JSONLINES_MEDIA_TYPE, SSE_MEDIA_TYPE, Head, HttpCall, IndexedEvent, Reply
from dragoman.server.apis.openai_wire.chat.schema import (
    AnswerMessage,
    ChatBody,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatLogprobs,
    ChunkChoice,
    Delta,
    FunctionCall,
    TokenLogprob,
    ToolCallObject,
    TopLogprob,
)
from dragoman.server.apis.openai_wire.common import (
    PromptLogprobs,
    ReasoningCounter,
    ReasoningTokens,
    TextChunk,
    Usage,
    UsageCounter,
    Wire,
    json_logprob,
    num_reasoning_tokens,
    prompt_logprobs,
    usage_of,
)
from dragoman.server.apis.openai_wire.sampling import Reading, has_continuous_usage, tells_usage
from dragoman.server.progress import ToldProgress
from dragoman.server.timings import NO_TIMINGS, ShownTimings
from dragoman.types import (
    ChatPrompt,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    GenerationResult,
    Prompt,
    PromptInfo,
    SequenceResult,
    TokenOutput,
    ToolCall,
    ToolCallDelta,
)

ChatShape = Literal["lmi", "openai"]

_CUT_SHORT = (FinishReason.LENGTH, FinishReason.ABORT, FinishReason.REPETITION)


class ChatEncoder:
    """Implements `Encoder` for chat; a call has one request with `n` sequences."""

    def __init__(
        self,
        body: ChatBody,
        request: GenerationRequest,
        reading: Reading,
        http: HttpCall,
        clock: Callable[[], float],
        *,
        is_openai: bool,
        has_lmi_slips: bool,
    ) -> None:
        """`clock` gives the creation time of each LMI chunk; OpenAI's chunks all have that of the first.

        `has_lmi_slips`: reproduce the two slips in LMI's documented stream (logprobs in a list, numeric tokens).
        """
        profile, sampling = reading.profile, request.sampling
        self._id = f"chatcmpl-{http.request_id}"
        self._model = reading.options.names.answering(profile, body.model)
        self._clock = clock
        self._text_chunks_s = int(clock())
        self._begin_s = self._text_chunks_s
        self._is_sse = is_openai
        self._has_lmi_slips = has_lmi_slips
        self._wire = Wire(profile.errors, is_sse=is_openai)
        self._has_details = profile.name == "v1"
        self._usage = UsageCounter(has_details=self._has_details)
        self._finish = profile.finish_words
        self._reasoning_counter = ReasoningCounter()
        self._top_logprobs = sampling.logprobs  # None = no log-probabilities
        self._num_prompt_logprobs = sampling.prompt_logprobs
        self._shows_ids = bool(body.return_token_ids)
        self._has_continuous_usage = has_continuous_usage(body)
        self._needs_tokens = self._top_logprobs is not None or self._shows_ids
        self._is_plain = not (self._needs_tokens or self._has_continuous_usage)
        self._fingerprint = reading.options.system_fingerprint if is_openai else UNSET
        self._tells_usage = tells_usage(body)
        self._chunk_usage = None if self._tells_usage and is_openai else UNSET
        self._has_parallel_calls = request.parallel_tool_calls
        self._has_functions = bool(body.functions)  # calls have the older form, `function_call`
        self._shows_reasoning = body.include_reasoning is not False and not (body.reasoning and body.reasoning.exclude)
        self.echoed = _last_words(request.prompt) if body.echo else ""  # goes before every answer
        self._begun: set[int] = set()  # sequences whose role was sent
        self._text_chunks: dict[int, TextChunk] = {}  # by sequence, all of `_text_chunks_s`
        self._calling: set[int] = set()  # sequences that made a tool call
        self._timings = NO_TIMINGS

    def show_timings(self, timings: ShownTimings) -> bool:
        """They stand in a whole answer and in a stream's last chunk."""
        self._timings = timings
        return True

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        """All choices and the usage."""
        [result] = results
        choices = [self._full_choice(sequence) for sequence in result.sequences]
        counted = usage_of(results, has_details=self._has_details)
        usage = self._with_reasoning(counted, sum(map(num_reasoning_tokens, result.sequences)))
        created_s, prompt = self._created_s(), self._prompt_logprobs(result.prompt)
        return self._wire.reply(
            ChatCompletion(
                self._id,
                "chat.completion",
                created_s,
                self._model,
                choices,
                usage,
                self._fingerprint,
                prompt,
                self._prompt_ids(result.prompt),
                self._timings.of(),
            )
        )

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        """200 and the framing's media type."""
        return Head(SSE_MEDIA_TYPE if self._is_sse else JSONLINES_MEDIA_TYPE)

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        """One chunk; b"" while there is nothing to tell, as inside a character of several tokens."""
        self._usage.add(event.prompt, len(event.tokens), event.num_cached_tokens)
        self._reasoning_counter.add(event)
        if self._is_text_only(event):
            return self._text_chunk(event.index).frame(event.content)
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
        chunk = self._chunk([choice], self._usage_now() if self._has_continuous_usage else self._chunk_usage, prompt)
        chunk.prompt_token_ids = self._prompt_ids(event.prompt)
        if event.finish_reason is not None and self._timings is not NO_TIMINGS and not self._tells_usage:
            chunk.timings = self._timings.sequence_ended()
        return self._wire.frame(chunk)

    def end(self) -> bytes:
        """The usage chunk, if asked for, and the end mark."""
        usage = b""
        if self._tells_usage:
            chunk = self._chunk([], self._usage_now(), UNSET)
            chunk.timings = self._timings.of()
            usage = self._wire.frame(chunk)
        return usage + self._wire.done()

    def stream_error(self, error: ServerError) -> bytes:
        """The error as the stream's last event."""
        return self._wire.error(error)

    def trailers(self) -> Sequence[tuple[str, str]]:
        """None."""
        return ()

    def progress(self, told: ToldProgress) -> bytes:
        """A chunk that says nothing yet, as llama.cpp has it."""
        choice = ChunkChoice(0, Delta(role="assistant", content=None), None, None)
        chunk = self._chunk([choice], self._chunk_usage, UNSET)
        chunk.prompt_progress = told
        return self._wire.frame(chunk)

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

    def _text_chunk(self, index: int) -> TextChunk:
        created_s = self._created_s()
        if created_s != self._text_chunks_s:
            self._text_chunks_s = created_s
            self._text_chunks.clear()
        chunk = self._text_chunks.get(index)
        if chunk is None:
            chunk = self._text_chunks[index] = TextChunk(lambda text: self._frame_text(index, text))
        return chunk

    def _frame_text(self, index: int, text: str) -> bytes:
        choice = ChunkChoice(index, Delta(content=text), None, None)
        return self._wire.frame(self._chunk([choice], self._chunk_usage, UNSET))

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
        pieces = [self._tool_piece(delta) for delta in event.tool_calls if self._is_kept(delta)]
        if pieces:
            self._calling.add(event.index)
        return pieces

    def _is_kept(self, delta: ToolCallDelta) -> bool:
        return self._has_parallel_calls or delta.index == 0

    @staticmethod
    def _tool_piece(delta: ToolCallDelta) -> ToolCallObject:
        kind = None if delta.id is None else "function"
        return ToolCallObject(FunctionCall(delta.name, delta.arguments), delta.index, delta.id, kind)

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

    def _prompt_logprobs(self, prompt: PromptInfo | None) -> PromptLogprobs | UnsetType:
        if prompt is None or self._num_prompt_logprobs is None:
            return UNSET
        return prompt_logprobs(prompt, self._num_prompt_logprobs)

    def _token_ids(self, tokens: Sequence[TokenOutput]) -> list[int] | UnsetType:
        return [token.id for token in tokens] if self._shows_ids else UNSET

    def _prompt_ids(self, prompt: PromptInfo | None) -> list[int] | UnsetType:
        return list(prompt.token_ids) if prompt is not None and self._shows_ids else UNSET

    def _usage_now(self) -> Usage:
        return self._with_reasoning(self._usage.usage(), self._reasoning_counter.num_tokens)

    def _with_reasoning(self, usage: Usage, num_reasoning: int) -> Usage:
        if self._has_details:
            usage.completion_tokens_details = ReasoningTokens(num_reasoning)
        return usage

    def _chunk(
        self, choices: list[ChunkChoice], usage: Usage | UnsetType | None, prompt: PromptLogprobs | UnsetType
    ) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            self._id,
            "chat.completion.chunk",
            self._created_s(),
            self._model,
            choices,
            usage,
            self._fingerprint,
            prompt,
        )

    def _created_s(self) -> int:
        return self._begin_s if self._is_sse else int(self._clock())


def _last_words(prompt: Prompt) -> str:
    """The text of the conversation's last message if the assistant has said it: what the answer goes on from."""
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
