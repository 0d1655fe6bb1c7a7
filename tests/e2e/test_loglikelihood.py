"""What evaluation harnesses compute over the completions routes equals what the model's own logits say.

The client does what lm-eval's `local-completions` does: prompts as token ids, `echo`, `logprobs: 1`, one generated token,
and of the echoed rows those of the continuation; a continuation is greedy if every token's log-probability equals, as a
float, the highest of its row. The reference is one forward pass per text, outside the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
from tokenizers import Tokenizer

from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.models import BLOCK_SIZE, ModelOptions, load_model
from tests.support.cpu import EXACT_F32
from tests.support.forward import forward_batch
from tests.support.server_process import ServerProcess

DEMO_MODEL = Path(__file__).parents[2] / "src" / "dragoman" / "demo_model"

# Questions with the possible continuations, as multiple-choice tasks have them.
TASK: Sequence[tuple[str, Sequence[str]]] = [
    ("What is deep learning? Deep learning is", (" a kind of machine learning", " a kind of orange", " the")),
    ("The capital of France is", (" Paris", " London", " bread and butter")),
    ("How many ways can I peel an", (" orange", " computer", " apple with a very long knife")),
    ("One, two, three,", (" four", " five", " garden")),
    ("The opposite of hot is", (" cold", " hot", " a story about a garden")),
]


class Score(NamedTuple):
    """The log-likelihood of a continuation, and whether greedy decoding would give it."""

    loglikelihood: float
    is_greedy: bool


class Text(NamedTuple):
    """A context and a continuation as token ids; harnesses encode them together and cut at the context's length."""

    token_ids: tuple[int, ...]
    num_context: int


def task_texts() -> list[Text]:
    tokenizer = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    texts = []
    for context, continuations in TASK:
        num_context = len(tokenizer.encode(context, add_special_tokens=False).ids)
        for continuation in continuations:
            ids = tokenizer.encode(context + continuation, add_special_tokens=False).ids
            texts.append(Text(tuple(ids), num_context))
    return texts


TEXTS = task_texts()


def ask(base_url: str, prefix: str, texts: Sequence[Text]) -> list[dict[str, Any]]:
    """The choices for these prompts, in one call, in the order of their indices."""
    body = {
        "model": "demo",
        "prompt": [text.token_ids for text in texts],
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    answer = httpx.post(f"{base_url}{prefix}/completions", json=body, timeout=120)
    answer.raise_for_status()
    return sorted(answer.json()["choices"], key=lambda choice: int(choice["index"]))


def scored(choice: dict[str, Any], text: Text) -> Score:
    """The score as harnesses read it from a choice: without the generated token, which is the last row."""
    rows = slice(text.num_context, -1)
    values = choice["logprobs"]["token_logprobs"][rows]
    tops = choice["logprobs"]["top_logprobs"][rows]
    is_greedy = all(value == max(top.values()) for value, top in zip(values, tops, strict=True))
    return Score(sum(values), is_greedy)


@pytest.fixture(scope="module")
def reference() -> list[Score]:
    """The scores computed from logits."""
    runner = OpenVinoRunner(load_model(DEMO_MODEL, ModelOptions(weight_type="f32")), num_blocks=8)
    return [reference_score(runner, text) for text in TEXTS]


def reference_score(runner: OpenVinoRunner, text: Text) -> Score:
    num_tokens = len(text.token_ids)
    blocks = range(-(-num_tokens // BLOCK_SIZE))
    batch = forward_batch([(text.token_ids, 0, blocks)], logit_rows=range(num_tokens))
    logits = runner.forward(batch).astype(np.float64)
    highest = logits.max(axis=1, keepdims=True)
    logprobs = logits - highest - np.log(np.exp(logits - highest).sum(axis=1, keepdims=True))
    places = range(text.num_context, num_tokens)  # the row before a token predicts it
    chosen = [float(logprobs[place - 1, text.token_ids[place]]) for place in places]
    is_greedy = all(int(logits[place - 1].argmax()) == text.token_ids[place] for place in places)
    return Score(sum(chosen), is_greedy)


@pytest.mark.parametrize("prefix", ["/v1", "/v3"])
def test_loglikelihoods_equal_those_of_the_logits(prefix: str, server: ServerProcess, reference: list[Score]) -> None:
    choices = ask(server.base_url, prefix, TEXTS)
    assert [choice["index"] for choice in choices] == list(range(len(TEXTS)))
    scores = [scored(choice, text) for choice, text in zip(choices, TEXTS, strict=True)]
    assert [score.is_greedy for score in scores] == [score.is_greedy for score in reference]
    assert {score.is_greedy for score in scores} == {True, False}, "the task tells nothing about greediness"
    expected = [score.loglikelihood for score in reference]
    assert [score.loglikelihood for score in scores] == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("prefix", ["/v1", "/v3"])
def test_every_prompt_token_and_the_generated_one_have_a_row(prefix: str, server: ServerProcess) -> None:
    for choice, text in zip(ask(server.base_url, prefix, TEXTS), TEXTS, strict=True):
        rows = choice["logprobs"]
        num_rows = len(text.token_ids) + 1
        lengths = {name: len(rows[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
        assert lengths == dict.fromkeys(lengths, num_rows)
        assert rows["token_logprobs"][0] is None
        assert None not in rows["token_logprobs"][1:]


@pytest.mark.parametrize("prefix", ["/v1", "/v3"])
def test_offsets_count_in_the_text_that_is_returned(prefix: str, server: ServerProcess) -> None:
    words = "How many ways can I peel an orange?"
    ids = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json")).encode(words, add_special_tokens=False).ids
    for prompt in (words, ids):
        for keep in (None, 1, 3, len(ids), len(ids) + 9):
            asked = {"prompt": prompt, "truncate_prompt_tokens": keep, "echo": True, "logprobs": 0, "max_tokens": 2}
            body = {"model": "demo", "temperature": 0, **asked}
            choice = httpx.post(f"{server.base_url}{prefix}/completions", json=body, timeout=60).json()["choices"][0]
            text, rows = choice["text"], choice["logprobs"]
            begins = rows["text_offset"]
            pieces = [text[begin:end] for begin, end in zip(begins, [*begins[1:], len(text)], strict=True)]
            assert [piece.strip() for piece in pieces] == [token.strip() for token in rows["tokens"]], (keep, text)
            assert (begins[0], len(pieces)) == (0, min(keep or len(ids), len(ids)) + 2)


def test_a_prompt_with_a_gap_is_not_cut(server: ServerProcess) -> None:
    body = {"model": "demo", "prompt": "def f(", "suffix": ")", "truncate_prompt_tokens": 1}
    answer = httpx.post(f"{server.base_url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 400
    assert "truncate_prompt_tokens 1 is not supported together with suffix" in answer.json()["error"]["message"]


@pytest.mark.parametrize("prefix", ["/v1", "/v3"])
def test_a_prompt_scores_the_same_alone_as_among_others(prefix: str, server: ServerProcess) -> None:
    together = ask(server.base_url, prefix, TEXTS)
    alone = ask(server.base_url, prefix, TEXTS[4:5])
    one, among_others = scored(alone[0], TEXTS[4]), scored(together[4], TEXTS[4])
    assert one.is_greedy == among_others.is_greedy
    assert one.loglikelihood == (
        among_others.loglikelihood if EXACT_F32 else pytest.approx(among_others.loglikelihood, abs=2e-3)
    )


def test_the_best_continuation_of_each_question_is_the_logits_choice(
    server: ServerProcess, reference: list[Score]
) -> None:
    scores = [scored(choice, text) for choice, text in zip(ask(server.base_url, "/v1", TEXTS), TEXTS, strict=True)]
    first = 0
    for _, continuations in TASK:
        own = range(first, first + len(continuations))
        assert max(own, key=lambda i: scores[i].loglikelihood) == max(own, key=lambda i: reference[i].loglikelihood)
        first += len(continuations)
