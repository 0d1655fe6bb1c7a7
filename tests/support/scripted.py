"""A scripted generation, for golden tests of dialects: a pure function of the request, no engine and no tokenizer.

The answer is always " Deep learning is fun." token by token, then end-of-sequence; max_tokens, n, logprobs and
prompt_logprobs are honoured, and a budget of reasoning and the search for repetitions in a way (`scripted_events`).
"""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.types import (
    ChatPrompt,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    GenerationResult,
    InfillPrompt,
    MixedPrompt,
    PromptInfo,
    SequenceResult,
    TextPrompt,
    TokenOutput,
    TokenPrompt,
    TopToken,
)

WORDS = (" Deep", " learning", " is", " fun", ".", " 🍊")
EOS_ID = 2


def scripted_token(position: int, top_n: int | None, *, text: str | None = None) -> TokenOutput:
    """Token `position` of the script; the one after the last word is end-of-sequence."""
    is_end = position >= len(WORDS)
    word = "" if is_end else WORDS[position]
    token_text = "</s>" if is_end else word
    logprob = -0.25 * (position + 1)
    rest = [
        TopToken(900 + i, f" alt{i}", logprob - 0.5 * (i + 1), f" alt{i}".encode()) for i in range((top_n or 1) - 1)
    ]
    own = TopToken(EOS_ID if is_end else 300 + position, token_text, logprob, token_text.encode())
    return TokenOutput(
        id=own.id,
        text=word if text is None else text,
        token_text=token_text,
        bytes=token_text.encode(),
        logprob=None if top_n is None else logprob,
        top=(own, *rest) if top_n else (),
        special=is_end,
    )


def scripted_prompt(request: GenerationRequest) -> PromptInfo:
    """Prompt facts: one token per word, chat turns as `role: content` lines."""
    match request.prompt:
        case TextPrompt(text=text):
            pass
        case ChatPrompt(messages=messages):
            text = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
        case TokenPrompt(token_ids=token_ids):
            text = " ".join(f"t{token_id}" for token_id in token_ids)
        case MixedPrompt(parts=parts):
            text = " ".join(part if isinstance(part, str) else f"t{part}" for part in parts)
        case InfillPrompt(before=before, behind=behind):
            text = f"<pre>{before}<suf>{behind}<mid>"
    words = text.split(" ")
    pieces = [words[0], *(f" {word}" for word in words[1:])]
    top_n = request.sampling.prompt_logprobs
    tokens = tuple(
        TokenOutput(
            id=100 + i,
            text=piece,
            token_text=piece,
            bytes=piece.encode(),
            logprob=None if i == 0 else -1.0 - i,
            top=(TopToken(100 + i, piece, -1.0 - i, piece.encode()),) if i and top_n else (),
        )
        for i, piece in enumerate(pieces)
    )
    ids = tuple(token.id for token in tokens)
    # Where the prompt is kept, a block has four tokens, and the first is found.
    num_kept = len(ids) // 4 * 4 if request.cache_keep_s else 0
    return PromptInfo(
        text=text,
        token_ids=ids,
        tokens=() if top_n is None else tokens,
        num_cached_tokens=min(num_kept, 4),
        seed=request.sampling.seed or 7,
        num_kept_tokens=num_kept,
    )


def scripted_events(request: GenerationRequest) -> Iterator[GenerationEvent]:
    """The events of a request, interleaved by sequence as an engine would.

    With a budget the first two tokens are reasoning; where repetitions are looked for, the end is one.
    """
    sampling = request.sampling
    num_thought = min(2, sampling.thinking_token_budget or 0) if request.parse_reasoning else 0
    last = FinishReason.EOS if sampling.repetition_detection is None else FinishReason.REPETITION
    limit = len(WORDS) + 1 if request.max_tokens is None else min(request.max_tokens, len(WORDS) + 1)
    prompt = scripted_prompt(request)
    total = 0.0
    if limit == 0:
        for index in range(request.sampling.n):
            yield GenerationEvent(index, "", finish_reason=FinishReason.LENGTH, prompt=prompt if index == 0 else None)
    for position in range(limit):
        token = scripted_token(position, request.sampling.logprobs)
        total -= 0.25 * (position + 1)
        for index in range(request.sampling.n):
            finish = None
            if position == limit - 1:
                finish = last if position == len(WORDS) else FinishReason.LENGTH
            yield GenerationEvent(
                index,
                token.text,
                tokens=(token,),
                finish_reason=finish,
                prompt=prompt if position == 0 and index == 0 else None,
                content="" if position < num_thought else token.text,
                reasoning=token.text if position < num_thought else "",
                cumulative_logprob=total if finish else None,
            )


def scripted_result(request: GenerationRequest) -> GenerationResult:
    """The fold over `scripted_events`."""
    events = list(scripted_events(request))
    sequences = []
    for index in range(request.sampling.n):
        own = [event for event in events if event.index == index]
        text = "".join(event.text for event in own)
        finish = own[-1].finish_reason
        assert finish is not None
        sequences.append(
            SequenceResult(
                index=index,
                text=text,
                tokens=tuple(token for event in own for token in event.tokens),
                finish_reason=finish,
                content="".join(event.content for event in own),
                reasoning="".join(event.reasoning for event in own),
                cumulative_logprob=own[-1].cumulative_logprob,
            )
        )
    return GenerationResult(request=request, prompt=scripted_prompt(request), sequences=tuple(sequences))
