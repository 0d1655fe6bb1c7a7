"""The oracle: one sequence at a time, no batch, no cache, no scheduler. And small helpers to drive the engine's core."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AddRequest
from dragoman.errors import ServerError
from dragoman.types import (
    ContextShift,
    EngineOutput,
    EngineRequest,
    FinishReason,
    Logprob,
    PromptLogprob,
    SamplingParams,
)
from tests.engine.fake_runner import PLAIN, FakeModel, last_logits, reference_logits
from tests.engine.integrity import check_core
from tests.support.letters import letter_watch
from tests.support.live_parts import criterion_of, masker_of


@dataclass
class Generated:
    """One finished (or aborted) sequence."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[Logprob]] = field(default_factory=list)


def make_request(
    prompt_ids: Iterable[int], max_tokens: int = 8, *, seed: int = 1, name: str = "r", **sampling: Any
) -> EngineRequest:
    """A greedy request unless `sampling` says otherwise; token 0 ends a sequence."""
    params = SamplingParams(**{"temperature": 0.0, **sampling})
    return EngineRequest(name, tuple(prompt_ids), params, max_tokens, seed, eos_token_ids=frozenset({0}))


def naive_sequence(request: EngineRequest, index: int, vocab_size: int, model: FakeModel = PLAIN) -> Generated:
    """Sequence `index` of the request, token by token, from logits computed without a cache."""
    sampler = Sampler(vocab_size)
    state = sampler.new_state(request, index, masker_of(request), letter_watch(request))
    sampling = request.sampling
    result = Generated()
    read, num_prompt = list(request.prompt_ids), len(request.prompt_ids)
    while result.finish_reason is None:
        if len(result.token_ids) == request.max_tokens:
            result.finish_reason = FinishReason.LENGTH
            break
        if request.shift is not None and len(read) >= request.shift.longest:
            read = shifted(read, request.shift)
            num_prompt = len(read)
        logits = last_logits(read, vocab_size, model, num_prompt)
        sampled = sampler.sample(logits, [state])
        token_id = int(sampled.token_ids[0])
        is_loop = state.watch is not None and state.watch.ends_with(token_id)
        state.observe(token_id)
        result.token_ids.append(token_id)
        read.append(token_id)
        if (logprob := sampled.logprobs[0]) is not None:
            result.logprobs.append(logprob)
        if (top := sampled.top_logprobs[0]) is not None:
            result.top_logprobs.append(top)
        # Before `min_tokens` an end is banned; what closes the reasoning comes all the same, and ends nothing then.
        is_long = len(result.token_ids) >= sampling.min_tokens
        may_end = is_long or state.masker is not None
        if may_end and token_id in request.eos_token_ids and not sampling.ignore_eos:
            result.finish_reason = FinishReason.EOS
        elif may_end and token_id in sampling.stop_token_ids:
            result.finish_reason = FinishReason.STOP_TOKEN
        elif is_long and is_loop:
            result.finish_reason = FinishReason.REPETITION
    return result


def shifted(token_ids: list[int], shift: ContextShift) -> list[int]:
    """The tokens of a full context that the model reads on."""
    assert len(token_ids) == shift.longest
    *known, last = token_ids
    kept, others = known[: shift.num_kept], known[shift.num_kept :]
    if len(others) < 3:
        kept, others = known[:-3], known[-3:]
    num_dropped = min(shift.num_dropped or max(len(others) // 2, 1), max(len(others) - 1, 1))
    return [*kept, *others[num_dropped:], last]


def naive_prompt_logprobs(
    request: EngineRequest, vocab_size: int, model: FakeModel = PLAIN
) -> list[PromptLogprob | None]:
    """Log-probabilities of the prompt's tokens, from logits computed without a cache."""
    logits = reference_logits(request.prompt_ids, vocab_size, model)[:-1]
    top_n = request.sampling.prompt_logprobs or 0
    return [None, *Sampler(vocab_size).prompt_logprobs(logits, request.prompt_ids[1:], top_n)]


class Collector:
    """Steps an EngineCore, checks its books after every step, and keeps what each key got."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.outputs: dict[int, list[EngineOutput]] = defaultdict(list)
        self.errors: dict[int, ServerError] = {}

    def add(self, key: int, request: EngineRequest) -> None:
        """Queue a request, with the live parts that it brings."""
        self.core.inbox.put(
            AddRequest(key, request, masker_of(request), criterion_of(request), watch=letter_watch(request))
        )

    def step(self) -> None:
        """One step."""
        for key, item in self.core.step():
            assert key not in self.errors, "something was delivered after an error"
            if isinstance(item, ServerError):
                self.errors[key] = item
            else:
                self.outputs[key].append(item)
        check_core(self.core)

    def run(self, max_steps: int = 2000) -> None:
        """Step until nothing is left to do."""
        self.step()
        for _ in range(max_steps):
            if not self.core.has_work():
                return
            self.step()
        raise AssertionError(f"unfinished after {max_steps} steps")

    def sequence(self, key: int, index: int = 0) -> Generated:
        """What key's sequence `index` got, folded."""
        result = Generated()
        for output in self.outputs[key]:
            if output.index != index:
                continue
            assert result.finish_reason is None, "an output after the finishing one"
            result.token_ids += output.token_ids
            result.logprobs += output.logprobs or []
            result.top_logprobs += output.top_logprobs or []
            result.finish_reason = output.finish_reason
        return result
