"""An engine that generates scripted token ids: the Engine protocol without a model, for tests of everything above it.

Runs on the event loop; it never sleeps, so a test's outcome depends on its script only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from dragoman.engine.base import Capabilities, EngineStats, Health
from dragoman.errors import ServerError
from dragoman.tokenizer.base import TokenPieces
from dragoman.tokenizer.stop_strings import StopOnTokens
from dragoman.types import EngineOutput, EngineRequest, FinishReason, Logprob, PromptLogprob, StopCriterion
from tests.support.byte_tokenizer import VOCAB_SIZE, ByteTokenizer

Script = Callable[[EngineRequest, int], Sequence[int]]
"""(request, sequence index) -> the tokens of that sequence."""

ABILITIES = Capabilities(
    max_model_len=1024,
    vocab_size=VOCAB_SIZE,
    max_logprobs=20,
    beam_search=True,
    best_of=True,
    grammar=True,
    stop_strings=True,
    bounds_answers=True,
)


NUM_CACHED_TOKENS = 3
_PIECES = TokenPieces(ByteTokenizer())


def saying(*texts: str) -> Script:
    """Sequence i writes the i-th text (the last one for all further) in bytes, then ends."""
    return lambda request, index: list(texts[min(index, len(texts) - 1)].encode())


def logprob_of(token_id: int) -> float:
    """The log-probability that the fake model gives to a token, wherever it stands."""
    return -(token_id % 7 + 1) / 8


def top_of(token_id: int, size: int) -> list[Logprob]:
    """The `size` most likely tokens where `token_id` was chosen; it is among them."""
    return [Logprob((token_id + i) % VOCAB_SIZE, logprob_of(token_id) - i) for i in range(size)]


class FakeEngine:
    """Generates `script`, then an end-of-sequence token; without one, the script again and again.

    `tokens_per_step`: as speculation would. `gate`: nothing more is generated after `gate_after` outputs of a
    request until it is set. `error`: raised after `error_after` outputs.
    """

    def __init__(
        self,
        script: Script,
        *,
        capabilities: Capabilities = ABILITIES,
        tokens_per_step: int = 1,
        gate: asyncio.Event | None = None,
        gate_after: int = 0,
        error: ServerError | None = None,
        error_after: int = 0,
    ) -> None:
        self.capabilities = capabilities
        self.requests: list[EngineRequest] = []
        self.aborted: list[str] = []
        self.finished: list[str] = []
        self.num_outputs = 0
        self._script = script
        self._tokens_per_step = tokens_per_step
        self._gate = gate
        self._gate_after = gate_after
        self._error = error
        self._error_after = error_after
        self._progressed = asyncio.Event()

    async def until_outputs(self, count: int) -> None:
        """Return once `count` outputs were made, of all requests together."""
        while self.num_outputs < count:
            self._progressed.clear()
            await self._progressed.wait()

    async def start(self) -> None:
        """Nothing to start."""

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineOutput, None]:
        """The scripted outputs of the request."""
        self.capabilities.check(request)
        self.requests.append(request)
        is_finished = False
        try:
            outputs = _ranked(request, self._script) if request.is_ranked else self._steps(request)
            for number, output in enumerate(outputs):
                if self._gate is not None and number >= self._gate_after:
                    await self._gate.wait()
                if self._error is not None and number >= self._error_after:
                    raise self._error
                await asyncio.sleep(0)  # a real engine's outputs never come within one turn of the event loop either
                if number == 0:
                    output.prompt_logprobs = _prompt_logprobs(request)
                    output.num_cached_tokens = NUM_CACHED_TOKENS
                self.num_outputs += 1
                self._progressed.set()
                is_finished = number == len(outputs) - 1
                yield output
        finally:
            (self.finished if is_finished else self.aborted).append(request.request_id)

    def health(self) -> Health:
        """Always alive."""
        return Health(is_alive=True)

    def stats(self) -> EngineStats:
        """Nothing is counted."""
        return EngineStats()

    async def shutdown(self, drain_s: float) -> None:
        """Nothing to end."""

    def _steps(self, request: EngineRequest) -> list[EngineOutput]:
        """One output per sequence and step, interleaved as in a batch."""
        sequences = [generated(request, self._script(request, index)) for index in range(request.sampling.n)]
        outputs: list[EngineOutput] = []
        size = self._tokens_per_step
        for begin in range(0, max(1, *(len(ids) for ids, _ in sequences)), size):
            for index, (ids, reason) in enumerate(sequences):
                if begin < len(ids) or (begin == 0 and not ids):
                    is_last = begin + size >= len(ids)
                    outputs.append(_output(request, index, ids[begin : begin + size], reason if is_last else None))
                    if is_last and request.sampling.logprobs is not None:
                        outputs[-1].cumulative_logprob = sum(map(logprob_of, ids))
        return outputs


def generated(request: EngineRequest, script: Sequence[int]) -> tuple[list[int], FinishReason]:
    """The tokens of one sequence, its end included, and why it ended: the rules that every engine follows."""
    ids: list[int] = []
    stops = watcher_of(request)
    ends = set() if request.sampling.ignore_eos else set(request.eos_token_ids)
    source = [*script, *sorted(ends)[:1]]
    while len(ids) < request.max_tokens:
        token_id = source[len(ids) % len(source)]
        ids.append(token_id)
        if token_id in ends:
            return ids, FinishReason.EOS
        if token_id in request.sampling.stop_token_ids:
            return ids, FinishReason.STOP_TOKEN
        if stops is not None and stops(ids):
            return ids, FinishReason.STOP_STRING
    return ids, FinishReason.LENGTH


def watcher_of(request: EngineRequest) -> StopCriterion | None:
    """What ends the request's sequences at its stop strings, None if their reader does."""
    stop, min_tokens = request.stop, request.sampling.min_tokens
    if stop is None or not request.is_ranked:
        return None
    return StopOnTokens(_PIECES, stop, min_tokens)


def _ranked(request: EngineRequest, script: Script) -> list[EngineOutput]:
    """The best n of all drawn sequences, each whole."""
    drawn = [generated(request, script(request, index)) for index in range(request.sampling.num_sequences)]
    drawn.sort(key=lambda sequence: -sum(map(logprob_of, sequence[0])))
    outputs = [_output(request, index, ids, reason) for index, (ids, reason) in enumerate(drawn[: request.sampling.n])]
    for output in outputs:
        output.cumulative_logprob = sum(map(logprob_of, output.token_ids))
    return outputs


def _output(request: EngineRequest, index: int, ids: Sequence[int], reason: FinishReason | None) -> EngineOutput:
    size = request.sampling.logprobs
    return EngineOutput(
        request_id=request.request_id,
        index=index,
        token_ids=list(ids),
        finish_reason=reason,
        logprobs=None if size is None else [logprob_of(token_id) for token_id in ids],
        top_logprobs=[top_of(token_id, size) for token_id in ids] if size else None,
    )


def _prompt_logprobs(request: EngineRequest) -> list[PromptLogprob | None] | None:
    size = request.sampling.prompt_logprobs
    if size is None:
        return None
    rest = request.prompt_ids[1:]
    return [None, *(PromptLogprob(logprob_of(token_id), tuple(top_of(token_id, size))) for token_id in rest)]
