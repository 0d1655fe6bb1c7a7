"""Turns an upstream's events into outputs of the engine protocol, and texts into token ids. On the event loop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from dragoman.engine.ranking import SequenceEnd
from dragoman.engine.remote.wire import Candidate, Choice, Logprobs, is_token_id, token_id
from dragoman.errors import EngineFailed, InvalidRequest
from dragoman.tokenizer.base import Tokenizer
from dragoman.types import (
    LOWEST_LOGPROB,
    EngineOutput,
    EngineRequest,
    FinishReason,
    Logprob,
    PromptLogprob,
    StopCriterion,
)

_FINISH = {
    "length": FinishReason.LENGTH,
    "repetition": FinishReason.REPETITION,
    "stop": FinishReason.EOS,
    "eos_token": FinishReason.EOS,
    "stop_sequence": FinishReason.EOS,
}
"""An upstream's reasons for the end, where the last token is not one that the request ends at."""

_Rows = tuple[list[float], list[list[Logprob]]]


class SequenceAnswer:
    """One sequence as it grows. `ids_of` gives the tokens that an event adds; `sees_ends`: these are the model's own.

    `criterion` tests stop strings in sequences that clients get whole.
    """

    __slots__ = (
        "_end", "_ids_of", "_most", "_num_tokens", "_num_top", "_request", "_sum", "_wants", "index", "reason",
    )  # fmt: skip

    def __init__(
        self,
        request: EngineRequest,
        index: int,
        ids_of: Callable[[Choice], list[int]],
        criterion: StopCriterion | None,
        *,
        sees_ends: bool = True,
    ) -> None:
        sampling = request.sampling
        self.index = index
        self.reason: FinishReason | None = None
        self._request = request
        self._ids_of = ids_of
        self._wants = sampling.logprobs is not None or request.is_ranked
        self._num_top = sampling.logprobs or 0
        self._sum = 0.0
        self._num_tokens = 0
        self._most = request.max_tokens if sees_ends else sys.maxsize
        self._end = SequenceEnd(request.end_reasons() if sees_ends else {}, criterion)

    def push(self, choice: Choice) -> EngineOutput | None:
        """The output for an event, None for an empty event. Raises: EngineFailed."""
        token_ids = self._ids_of(choice)
        size, self.reason = self._end.find(token_ids)
        self._num_tokens += size
        if self.reason is None and self._num_tokens >= self._most:
            self.reason = FinishReason.LENGTH  # comes with the last token, or in a separate event
        if self.reason is None and choice.finish_reason is not None:
            self.reason = _FINISH.get(choice.finish_reason)
            if self.reason is None:
                raise EngineFailed(f"the upstream gave up the request (finish_reason {choice.finish_reason})")
        if not token_ids and self.reason is None:
            return None
        output = EngineOutput(self._request.request_id, self.index, token_ids[:size], self.reason)
        if self._wants:
            self._add_logprobs(output, choice, size)
        return output

    def _add_logprobs(self, output: EngineOutput, choice: Choice, size: int) -> None:
        chosen, tops = ([], []) if choice.logprobs is None else _rows(choice.logprobs, self._num_top)
        if len(chosen) < size:
            raise EngineFailed(f"the upstream returned {len(chosen)} log-probabilities for {size} tokens")
        output.logprobs, output.top_logprobs = chosen[:size], tops[:size]
        self._sum += sum(output.logprobs)
        if self.reason is not None:
            output.cumulative_logprob = self._sum


def prompt_logprobs(
    rows: Sequence[dict[str, Candidate] | None] | None, prompt_ids: Sequence[int], num_top: int
) -> list[PromptLogprob | None]:
    """Raises: EngineFailed if an upstream's answer lacks some."""
    if rows is None or len(rows) != len(prompt_ids):
        count = "none" if rows is None else str(len(rows))
        raise EngineFailed(f"the upstream returned {count} log-probabilities for a prompt of {len(prompt_ids)} tokens")
    return [None, *map(_prompt_logprob, rows[1:], prompt_ids[1:], [num_top] * (len(prompt_ids) - 1))]


def _prompt_logprob(candidates: dict[str, Candidate] | None, token: int, num_top: int) -> PromptLogprob:
    candidate = None if candidates is None else candidates.get(str(token))
    if candidates is None or candidate is None:
        raise EngineFailed(f"the upstream returned no log-probability for the prompt's token {token}")
    named = [
        (candidate.rank, int(key), candidate.logprob)
        for key, candidate in candidates.items()
        if candidate.rank is not None
    ]
    top = [Logprob(key, _number(value)) for rank, key, value in sorted(named) if rank <= num_top][:num_top]
    return PromptLogprob(_number(candidate.logprob), tuple(top), candidate.rank)


def told_ids(choice: Choice) -> list[int]:
    """The token ids of an event. Raises: EngineFailed for text without ids."""
    if choice.token_ids is not None:
        return choice.token_ids
    if choice.logprobs is not None and (ids := choice.logprobs.ids()) is not None:
        return ids
    if choice.text:
        raise EngineFailed("the upstream returned text without its tokens")
    return []


def _rows(logprobs: Logprobs, num_top: int) -> _Rows:
    if logprobs.content is not None:
        tops = [
            [Logprob(candidate.id, candidate.logprob) for candidate in token.top_logprobs[:num_top]]
            for token in logprobs.content
        ]
        return [token.logprob for token in logprobs.content], tops
    chosen = [_number(value) for value in logprobs.token_logprobs]
    if not num_top:
        return chosen, [[] for _ in chosen]
    return chosen, [_best(candidates or {}, num_top) for candidates in logprobs.top_logprobs or []]


def _best(candidates: dict[str, float | None], num_top: int) -> list[Logprob]:
    """The candidates, best first. Servers add an unlikely chosen token at the beginning or end."""
    found = [Logprob(token_id(token), _number(value)) for token, value in candidates.items() if is_token_id(token)]
    return sorted(found, key=lambda candidate: -candidate.logprob)[:num_top]


def _number(value: float | None) -> float:
    return LOWEST_LOGPROB if value is None else value


class Retokeniser:
    """Turns ids into text for upstreams that take no ids, and text of those that send none into ids that decode to it.

    The tokens that the upstream's model chose cannot be found.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def ids(self, text: str) -> list[int]:
        """Token ids that decode to `text`, in the middle of other text. Raises: EngineFailed if there are none."""
        ids = self._exact(text)
        if ids is None:
            ids = []
            for character in text:
                found = self._exact(character)
                if found is None:
                    problem = f"the upstream's text holds {character!r}, for which the tokenizer here has no tokens"
                    raise EngineFailed(problem)
                ids += found
        return ids

    def mended(self, text: str, token_ids: list[int]) -> list[int]:
        """The token ids of `text`, given only the last id of each character. Raises: EngineFailed if there are none.

        If the result does not end with the given ids, the text counts, not the ids.
        """
        if len(b"".join(map(self._tokenizer.token_bytes, token_ids))) >= len(text.encode("utf-8", "replace")):
            return token_ids  # complete; control tokens show no text
        return self.ids(text)

    def _exact(self, text: str) -> list[int] | None:
        """The token ids, None if they would decode to another text, or are control tokens."""
        tokenizer = self._tokenizer
        ids = tokenizer.encode_continuation(text)
        if any(map(tokenizer.is_special, ids)):
            return None
        return ids if b"".join(map(tokenizer.token_bytes, ids)) == text.encode("utf-8", "replace") else None

    def prompt_text(self, prompt_ids: tuple[int, ...]) -> str:
        """The text that an upstream encodes to these ids; it adds begin-of-sequence itself. Raises: InvalidRequest."""
        for begin in (0, 1):
            text = self._tokenizer.decode(prompt_ids[begin:], skip_special_tokens=False)
            if tuple(self._tokenizer.encode(text)) == prompt_ids:
                return text
        raise InvalidRequest(
            "prompt cannot be sent as text, the only form the upstream accepts, because the text would be tokenized "
            "differently",
            param="prompt",
        )
