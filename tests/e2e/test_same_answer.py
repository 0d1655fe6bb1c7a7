"""As it is started without any option, the engine gives a request the same answer alone, again, and under load."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from dragoman.llm import LLM
from dragoman.types import GenerationResult, SamplingParams
from tests.support.cpu import EXACT_PACKED

WORDS = ("river", "is", "long", "old", "people", "of", "the", "city", "build", "a", "house", "from", "stone", "water")


@dataclass(frozen=True)
class Asked:
    """A prompt, and how it is answered."""

    prompt: str
    sampling: SamplingParams
    max_tokens: int


def asked() -> list[Asked]:
    """Greedy and seeded requests, of which some repeat themselves and are guessed."""
    dice = random.Random(1)
    mixed = [Asked("Once upon a time", SamplingParams(temperature=0.0, logprobs=0), 16)]
    for number, num_words in enumerate((1, 2, 5, 12, 20, 33, 40, 70)):
        text = " ".join(dice.choices(WORDS, k=num_words)) + "."
        prompt = text if number % 2 else f"{text} {text} {text}"
        sampling = SamplingParams(temperature=0.0 if number % 3 else 1.0, seed=number, logprobs=0, ignore_eos=True)
        mixed.append(Asked(prompt, sampling, dice.choice((8, 24, 40))))
    return mixed


def tokens(result: GenerationResult) -> list[tuple[int, float | None]]:
    """The tokens and their log-probabilities, in which every bit of the logits shows."""
    return [(token.id, token.logprob) for token in result.sequences[0].tokens]


@pytest.mark.varies("which kernels keep every bit depends on the processor")
@pytest.mark.skipif(not EXACT_PACKED, reason="nobody has measured it on this processor")
def test_the_same_request_has_the_same_answer_alone_again_and_under_load() -> None:
    requests = asked()
    with LLM(max_model_len=512) as llm:

        def answer(one: Asked) -> list[tuple[int, float | None]]:
            return tokens(llm.generate(one.prompt, one.sampling, max_tokens=one.max_tokens)[0])

        alone = [answer(one) for one in requests]
        assert [answer(one) for one in requests] == alone  # prompts are in the cache, and answers are guessed
        crowd = [*range(len(requests))] * 3
        random.Random(2).shuffle(crowd)
        with ThreadPoolExecutor(len(crowd)) as clients:
            together = list(clients.map(lambda number: answer(requests[number]), crowd))
    assert together == [alone[number] for number in crowd]
