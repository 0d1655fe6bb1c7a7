"""Measures how many tokens made-up words have in the tokenizer of a server.

Does: ask two questions for one token each and read what the server counted. Does not: measure time. Called once before a
benchmark with synthetic prompts, on the event loop.
"""

from __future__ import annotations

from dataclasses import replace

from dragoman.tools.bench.apis import Prompt, Question
from dragoman.tools.bench.asking import Asker
from dragoman.tools.bench.prompts import WORDS, SyntheticPrompts


async def calibrated(asker: Asker, prompts: SyntheticPrompts, model: str) -> SyntheticPrompts | None:
    """The same prompts with the server's own numbers of tokens; None if it does not tell them."""
    counts = []
    for words in (WORDS, WORDS * 2):  # all of them: their mean is then that of the prompts, and not an estimate
        sample = await asker.ask(Question([Prompt(" ".join(words))], 1, model))
        if sample.prompt_tokens is None:
            return None
        counts.append(sample.prompt_tokens)
    once, twice = counts
    if twice <= once:
        return None
    return replace(prompts, tokens_per_word=(twice - once) / len(WORDS), overhead=max(0.0, 2.0 * once - twice))
