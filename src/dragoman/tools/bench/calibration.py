"""Measures how many tokens made-up words have in the tokenizer of a server.

Does: send two questions for one token each and read the server's counts. Does not: measure time. Called once before a
benchmark with synthetic prompts, on the event loop.
"""

from __future__ import annotations

from dataclasses import replace

from dragoman.tools.bench.apis import Prompt, Question
from dragoman.tools.bench.asking import Asker
from dragoman.tools.bench.prompts import WORDS, SyntheticPrompts


async def calibrated(asker: Asker, prompts: SyntheticPrompts, model: str) -> SyntheticPrompts | None:
    """The same prompts with the server's token counts; None if it does not report them."""
    counts = []
    for words in (WORDS, WORDS * 2):  # all words, so that their mean is exact
        sample = await asker.ask(Question([Prompt(" ".join(words))], 1, model))
        if sample.prompt_tokens is None:
            return None
        counts.append(sample.prompt_tokens)
    once, twice = counts
    if twice <= once:
        return None
    return replace(prompts, tokens_per_word=(twice - once) / len(WORDS), overhead=max(0.0, 2.0 * once - twice))
