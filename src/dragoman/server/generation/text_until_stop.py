"""Turns what an engine adds to one sequence into events with text, up to a stop string. Runs on the event loop.

Where a parser takes the text apart, stop strings count in its content: only that is held back, not the tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from dragoman.server.observation.record import SequenceRecord
from dragoman.tokenizer.base import TokenPieces
from dragoman.tokenizer.detokenizer import IncrementalDetokenizer
from dragoman.tokenizer.stop_strings import StopMatch, StopScanner
from dragoman.types import (
    EngineOutput,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    LineLimits,
    Logprob,
    PromptInfo,
    TokenOutput,
    ToolCallDelta,
    TopToken,
)

_TOKEN_ENDS = (FinishReason.EOS, FinishReason.STOP_TOKEN)


class ParsedText(NamedTuple):
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


class TextParser(Protocol):
    """Splits one sequence's text as it comes. It may keep some text until more is known, but not after the last."""

    def push(self, text: str, *, is_last: bool) -> ParsedText: ...


ParserFactory = Callable[[GenerationRequest, str], TextParser | None]
"""(request, prompt text) -> the parser for one of its sequences, None = all of the text is the answer."""


def parser_of(make: ParserFactory | None, request: GenerationRequest, prompt_text: str) -> TextParser | None:
    is_parsed = request.parse_tool_calls or request.parse_reasoning
    return make(request, prompt_text) if make is not None and is_parsed else None


class _StoppedContent:
    """A parser's output with the content ended at a stop string; reasoning and calls may hold any of them."""

    __slots__ = ("_contents", "_includes_stop", "_parser", "_reasonings", "_scanner", "_tool_calls")

    def __init__(self, parser: TextParser, stops: Sequence[str], *, includes_stop: bool) -> None:
        self._parser = parser
        self._scanner = StopScanner(stops)
        self._includes_stop = includes_stop
        self._contents: list[str] = []
        self._reasonings: list[str] = []
        self._tool_calls: list[ToolCallDelta] = []

    def took_in(self, text: str, reason: FinishReason | None, *, counts: bool) -> StopMatch | None:
        match = self._search(self._parser.push(text, is_last=False), counts=counts)
        if match is not None or reason is None:
            return match
        last = self._parser.push("", is_last=True)
        # The beginning of a call that has no end comes out as content where the answer was cut off.
        is_cut = reason is FinishReason.LENGTH and bool(last.content.strip())
        match = self._search(last, counts=counts and not is_cut)
        if match is None:
            self._let_go()
        return match

    def released(self) -> ParsedText:
        parsed = ParsedText("".join(self._contents), "".join(self._reasonings), tuple(self._tool_calls))
        self._contents, self._reasonings, self._tool_calls = [], [], []
        return parsed

    def _search(self, piece: ParsedText, *, counts: bool) -> StopMatch | None:
        scanner = self._scanner
        if piece.reasoning:
            self._let_go()
            self._reasonings.append(piece.reasoning)
        held = scanner.tail
        match = _searched(scanner, piece.content, counts=counts)
        self._tool_calls += piece.tool_calls
        seen, shown = held + piece.content, len(held) if self._includes_stop else 0
        if match is not None:
            self._contents.append(seen[shown : match.end if self._includes_stop else match.start])
            return match
        self._contents.append(seen[shown : len(seen) - (0 if self._includes_stop else len(scanner.tail))])
        if piece.tool_calls:
            self._let_go()
        return None

    def _let_go(self) -> None:
        if not self._includes_stop:
            self._contents.append(self._scanner.tail)
        self._scanner.tail = ""


class _LineEnd:
    """Finds where a text ends by its lines, see `LineLimits`."""

    __slots__ = ("_begin_s", "_indent", "_is_before_text", "_limits")

    def __init__(self, limits: LineLimits) -> None:
        self._limits = limits
        self._begin_s: float | None = None
        self._is_before_text = False  # of a line that is not the first
        self._indent = 0

    def pushed(self, text: str) -> int | None:
        """The number of this text's characters that still belong to the answer, None = it does not end here."""
        self._begin_s = perf_counter() if self._begin_s is None else self._begin_s
        for position, character in enumerate(text if self._limits.min_indent else ""):
            if self._is_before_text and character in " \t":
                self._indent += 1
            elif self._is_before_text and self._indent < self._limits.min_indent:
                return position
            else:
                self._is_before_text = False
            if character == "\n":
                self._is_before_text, self._indent = True, 0
        max_s = self._limits.max_s
        is_late = max_s is not None and "\n" in text and perf_counter() - self._begin_s > max_s
        return len(text) if is_late else None


class SequenceText:
    """One sequence on its way to the client. `shown_ids`: special tokens that the parser has to see.

    Every token is in exactly one event, in order, and an event's text is the text of its tokens.
    """

    __slots__ = (
        "_cumulative_logprob", "_detokenizer", "_held", "_held_size", "_includes_end", "_includes_stop", "_index",
        "_line_end", "_min_tokens", "_num_accepted", "_num_drafts", "_parser", "_pieces", "_record", "_scanner",
        "_skips_special", "_stopped", "is_finished",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        request: GenerationRequest,
        pieces: TokenPieces,
        parser: TextParser | None = None,
        shown_ids: frozenset[int] = frozenset(),
        record: SequenceRecord | None = None,
    ) -> None:
        self.is_finished = False
        self._record = record or SequenceRecord()
        self._index = index
        self._pieces = pieces
        self._parser = parser
        self._skips_special = request.skip_special_tokens
        self._includes_stop = request.include_stop_in_text
        self._includes_end = request.include_stop_in_text or request.include_end_in_text
        self._min_tokens = request.sampling.min_tokens
        self._detokenizer = IncrementalDetokenizer(
            pieces,
            skip_special_tokens=request.skip_special_tokens,
            spaces_between_special_tokens=request.spaces_between_special_tokens,
            shown_ids=shown_ids,
        )
        self._scanner = StopScanner(request.stop) if request.stop and parser is None else None
        self._stopped: _StoppedContent | None = None
        if request.stop and parser is not None:
            self._stopped = _StoppedContent(parser, request.stop, includes_stop=request.include_stop_in_text)
        self._line_end = None if request.lines is None else _LineEnd(request.lines)
        self._held: deque[TokenOutput] = deque()
        self._held_size = 0  # characters in `_held`
        self._num_drafts = 0  # these two since the last event
        self._num_accepted = 0
        self._cumulative_logprob: float | None = None

    def push(self, output: EngineOutput, prompt: PromptInfo | None = None) -> GenerationEvent | None:
        """The event for this output, None while all of it is held back. `prompt` goes into the event."""
        if output.num_draft_tokens:
            self._count_drafts(output)
        released: list[TokenOutput] = []
        match: StopMatch | None = None
        last = len(output.token_ids) - 1
        # The one loop over tokens of the text layer.
        for position, token_id in enumerate(output.token_ids):
            reason = output.finish_reason if position == last else None
            text = self._detokenizer.push(token_id) if reason is None else self._last_text(token_id, reason)
            kept = None if self._line_end is None else self._line_end.pushed(text)
            token = self._token(output, position, text if kept is None else text[:kept], reason)
            if self._scanner is not None:
                match = self._scan(token, self._scanner, released)
            else:
                released.append(token)
                if self._stopped is not None:
                    match = self._stopped.took_in(text, reason, counts=self._counts_stops())
            if match is not None:
                break
            if kept is not None:
                return self._event([*released, *self._held], output, FinishReason.LENGTH, None, prompt)
        if self._stopped is not None and last < 0 and output.finish_reason is not None:
            match = self._stopped.took_in("", output.finish_reason, counts=self._counts_stops())
        if match is not None:
            return self._event(released, output, FinishReason.STOP_STRING, match.stop, prompt)
        if output.finish_reason is not None:
            released += self._held
            return self._event(released, output, output.finish_reason, _stop_token(output), prompt)
        return self._event(released, output, None, None, prompt) if released else None

    def _count_drafts(self, output: EngineOutput) -> None:
        self._num_drafts += output.num_draft_tokens
        self._num_accepted += output.num_accepted_tokens
        self._record.num_draft_tokens += output.num_draft_tokens
        self._record.num_accepted_tokens += output.num_accepted_tokens

    def _last_text(self, token_id: int, reason: FinishReason) -> str:
        is_hidden = reason in _TOKEN_ENDS and not self._includes_end
        is_hidden = is_hidden or (self._skips_special and reason is FinishReason.EOS)
        return ("" if is_hidden else self._detokenizer.push(token_id)) + self._detokenizer.flush()

    def _token(self, output: EngineOutput, position: int, text: str, reason: FinishReason | None) -> TokenOutput:
        self._record.num_tokens += 1
        token_id = output.token_ids[position]
        token_bytes, token_text, is_special = self._pieces[token_id]
        if output.logprobs is None:
            return TokenOutput(
                token_id, text, token_text, token_bytes, special=is_special or reason is FinishReason.EOS
            )
        logprob = output.logprobs[position]
        self._cumulative_logprob = (self._cumulative_logprob or 0.0) + logprob
        top = top_tokens(self._pieces, output.top_logprobs[position]) if output.top_logprobs is not None else ()
        return TokenOutput(
            token_id, text, token_text, token_bytes, logprob, top, is_special or reason is FinishReason.EOS
        )

    def _counts_stops(self) -> bool:
        return self._record.num_tokens >= self._min_tokens

    def _scan(self, token: TokenOutput, scanner: StopScanner, released: list[TokenOutput]) -> StopMatch | None:
        match = _searched(scanner, token.text, counts=self._counts_stops())
        self._held.append(token)
        if match is not None:
            # The tail, which the match counts from, is the end of what was held before this token.
            begin = self._held_size - len(scanner.tail)
            released += self._cut(begin + (match.end if self._includes_stop else match.start))
            return match
        self._held_size += len(token.text)
        self._release(0 if self._includes_stop else len(scanner.tail), released)
        return None

    def _release(self, num_open: int, released: list[TokenOutput]) -> None:
        """Release tokens before the last `num_open` characters. Tokens are not split, so a bit more may stay."""
        held = self._held
        while held and self._held_size - len(held[0].text) >= num_open:
            self._held_size -= len(held[0].text)
            released.append(held.popleft())

    def _cut(self, size: int) -> list[TokenOutput]:
        tokens = []
        for token in self._held:
            kept = token.text[: max(0, size)]
            size -= len(token.text)
            tokens.append(token if kept == token.text else replace(token, text=kept))
        return tokens

    def _event(
        self,
        tokens: list[TokenOutput],
        output: EngineOutput,
        reason: FinishReason | None,
        stop_match: str | int | None,
        prompt: PromptInfo | None,
    ) -> GenerationEvent:
        record, cumulative = self._record, None
        record.event_s.append(perf_counter())
        if reason is not None:
            self.is_finished = True
            record.finish_reason = reason
            cumulative = output.cumulative_logprob
            if cumulative is None:
                cumulative = self._cumulative_logprob
        text = tokens[0].text if len(tokens) == 1 else "".join([token.text for token in tokens])
        if self._stopped is not None:
            parsed = self._stopped.released()
        else:
            parsed = _AS_IT_IS if self._parser is None else self._parser.push(text, is_last=self.is_finished)
        event = GenerationEvent(
            self._index,
            text,
            tuple(tokens),
            reason,
            stop_match,
            prompt,
            text if self._parser is None else parsed.content,
            parsed.reasoning,
            parsed.tool_calls,
            cumulative,
            self._num_drafts,
            self._num_accepted,
        )
        if self._num_drafts:
            self._num_drafts = self._num_accepted = 0
        return event


_AS_IT_IS = ParsedText()


def _searched(scanner: StopScanner, text: str, *, counts: bool) -> StopMatch | None:
    if counts:
        return scanner.push(text)
    scanner.skip(text)
    return None


def _stop_token(output: EngineOutput) -> int | None:
    return output.token_ids[-1] if output.finish_reason is FinishReason.STOP_TOKEN else None


def top_tokens(pieces: TokenPieces, top: list[Logprob] | tuple[Logprob, ...]) -> tuple[TopToken, ...]:
    return tuple(
        TopToken(
            candidate.token_id, pieces[candidate.token_id].text, candidate.logprob, pieces[candidate.token_id].bytes
        )
        for candidate in top
    )


def prompt_info(
    text: str, prompt_ids: tuple[int, ...], first: EngineOutput, pieces: TokenPieces, seed: int
) -> PromptInfo:
    """Has tokens if log-probabilities were asked for."""
    tokens: list[TokenOutput] = []
    if first.prompt_logprobs is not None:
        detokenizer = IncrementalDetokenizer(
            pieces, skip_special_tokens=False, spaces_between_special_tokens=False, at_start=True
        )
        for token_id, known in zip(prompt_ids, first.prompt_logprobs, strict=True):
            token_bytes, token_text, is_special = pieces[token_id]
            token_piece = detokenizer.push(token_id)
            token = TokenOutput(token_id, token_piece, token_text, token_bytes, special=is_special)
            if known is not None:
                top = top_tokens(pieces, known.top)
                token = replace(token, logprob=known.logprob, top=top, rank=known.rank)
            tokens.append(token)
        tokens[-1] = replace(tokens[-1], text=tokens[-1].text + detokenizer.flush())
    return PromptInfo(text, prompt_ids, tuple(tokens), first.num_cached_tokens, seed)
