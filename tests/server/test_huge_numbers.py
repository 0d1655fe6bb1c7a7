"""No number that a client can send becomes an allocation or a loop of its size: on every route, for every parameter.

A huge value is answered like any other: with an answer of bounded size, or with an error of the route's own kind.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import httpx
import pytest

from dragoman.server.admission import Admission
from dragoman.server.generation.service import Service
from dragoman.server.registry import ServedModel
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.types import Limits
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_engine import ABILITIES, FakeEngine, saying
from tests.support.real_dialects import real_dialects
from tests.support.running_server import running_server
from tests.support.tables import table
from tests.support.tiers import width

CONTEXT = 99
MAX_ANSWER_BYTES = 200_000  # 20 sequences of the whole context with 20 alternatives for each token are less
HUGE: tuple[Any, ...] = (10**7, 2**31, 2**32, 2**63, 2**64, 10**30, -(2**63), -(10**30), 1e308, "9" * 30)

TEMPLATE = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
MESSAGES = [{"role": "user", "content": "Hi"}]
Json = dict[str, Any]


class Family(NamedTuple):
    """Routes that read the same numbers: `body` is a legal call, `numbers` go where `put` puts them."""

    paths: tuple[str, ...]
    body: Json
    numbers: tuple[str, ...]
    is_nested: bool = False  # in `parameters`

    def call(self, name: str, value: Any) -> Json:
        """The legal call with one parameter more."""
        if not self.is_nested:
            return {**self.body, name: value}
        return {**self.body, "parameters": {**self.body.get("parameters", {}), name: value}}


SHARED = (
    "max_tokens", "min_tokens", "n", "best_of", "num_beam_groups", "diversity_penalty", "length_penalty", "temperature",
    "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "seed",
    "truncate_prompt_tokens", "prompt_logprobs", "num_assistant_tokens", "assistant_confidence_threshold",
    "max_ngram_size", "priority",
)  # fmt: skip
LMI = (
    "max_new_tokens", "max_tokens", "min_tokens", "min_length", "truncate", "n", "best_of", "num_beams", "length_penalty",
    "temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "seed", "logprobs", "top_n_tokens", "prompt_logprobs",
)  # fmt: skip

FAMILIES: tuple[Family, ...] = (
    Family(("/v1/completions", "/v3/completions"), {"model": "bytes", "prompt": "Hi"}, (*SHARED, "logprobs")),
    Family(
        ("/v1/chat/completions", "/v3/chat/completions"),
        {"model": "bytes", "messages": MESSAGES, "logprobs": True},
        (*SHARED, "max_completion_tokens", "top_logprobs"),
    ),
    Family(("/predictions/bytes",), {"inputs": "Hi", "parameters": {"details": True}}, LMI, is_nested=True),
    Family(("/predictions/bytes",), {"prompt": "Hi"}, (*SHARED, "logprobs")),
    Family(("/predictions/bytes",), {"messages": MESSAGES}, (*SHARED, "top_logprobs")),
    Family(
        ("/generate?model_name=bytes", "/?model_name=bytes"), {"inputs": "Hi"}, ("max_new_tokens", *LMI), is_nested=True
    ),
    Family(("/api/generate-one?model_name=bytes",), {"id": 1, "prompt": "Hi", "maxLength": 5}, ("maxLength", "id")),
    Family(("/api/generate-batch?model_name=bytes",), {"prompts": [{"id": 1, "prompt": "Hi"}]}, ("maxLength",)),
    Family(("/v3/tokenize",), {"model": "bytes", "text": "Hi"}, ("max_length",)),
    Family(("/v3/tokenize",), {"model": "bytes", "text": "Hi", "pad_to_max_length": True}, ("max_length",)),
)
CASES = [
    (path, family, name)
    for family in FAMILIES
    for path in width(family.paths, family.paths[:1])  # the others read bodies with the same code
    for name in dict.fromkeys(family.numbers)
]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    engine = FakeEngine(saying("Hello"), capabilities=replace(ABILITIES, max_model_len=CONTEXT))
    service = Service(name="bytes", engine=engine, tokenizer=ByteTokenizer(), chat_template=TEMPLATE)
    with running_server(dialects=real_dialects()) as server:
        server.registry.add(ServedModel("bytes", service, engine, real_dialects(), Admission("bytes")))
        with httpx.Client(base_url=server.url, timeout=30) as client:
            yield client


def is_bounded(answer: httpx.Response) -> bool:
    """Whether the call succeeded or was refused in words, within the size that any answer may have."""
    is_answered = answer.status_code in (200, 206) or 400 <= answer.status_code < 500
    return is_answered and 0 < len(answer.content) <= MAX_ANSWER_BYTES


@table(("path", "family", "name"), CASES, ids=[f"{path} {name}" for path, _, name in CASES])
def test_a_huge_number_is_answered(client: httpx.Client, path: str, family: Family, name: str) -> None:
    for value in HUGE:
        answer = client.post(path, json=family.call(name, value))
        assert is_bounded(answer), (value, answer.status_code, answer.text[:200])


@table("path", ["/v1/completions", "/v3/completions", "/predictions/bytes", "/generate?model_name=bytes"])
def test_a_number_of_thousands_of_digits_is_answered(client: httpx.Client, path: str) -> None:
    for number in (b"9" * 5000, b'"' + b"9" * 5000 + b'"', b"1e99999", b"-" + b"9" * 400):
        fields = b'"model": "bytes", "prompt": "Hi", "max_tokens": ' + number
        nested = b'"inputs": "Hi", "parameters": {"max_new_tokens": ' + number + b"}"
        body = b"{" + (fields if path.startswith("/v") else nested) + b"}"
        answer = client.post(path, content=body, headers={"content-type": "application/json"})
        assert 400 <= answer.status_code < 500, (number[:9], answer.text[:200])
        assert len(answer.content) < 2_000


@table(("name", "num_listed"), [("limit", 2), ("next_page_token", 0)])
def test_a_page_of_thousands_of_digits_is_beyond_the_list(client: httpx.Client, name: str, num_listed: int) -> None:
    answer = client.get("/models", params={name: "9" * 5000})
    assert (answer.status_code, len(answer.json()["models"])) == (200, num_listed)


LIMITS = Limits()
TOOL = {"type": "function", "function": {"name": "f"}}
V1, V1_CHAT, LMI_PATH = "/v1/completions", "/v1/chat/completions", "/predictions/bytes"
V3, V3_CHAT, TOKENIZE_V3 = "/v3/completions", "/v3/chat/completions", "/v3/tokenize"


def chat_of(**fields: Any) -> Json:
    return {"model": "bytes", "messages": MESSAGES, "store": False, **fields}


def prompt_of(**fields: Any) -> Json:
    return {"model": "bytes", "prompt": "Hi", **fields}


def inputs_of(**parameters: Any) -> Json:
    return {"inputs": "Hi", "parameters": parameters}


# (paths, what a list of so many entries is in a body, how many entries are allowed)
LISTS: list[tuple[str, tuple[str, ...], Callable[[int], Json], int]] = [
    ("prompts", (V1, V3), lambda n: prompt_of(prompt=["x"] * n), LIMITS.max_prompts),
    ("token prompts", (V1, V3), lambda n: prompt_of(prompt=[[5]] * n), LIMITS.max_prompts),
    ("bad_words", (V1, V3), lambda n: prompt_of(bad_words=["x"] * n), LIMITS.max_bad_words),
    ("bad word", (V1, V3), lambda n: prompt_of(bad_words=["x" * n]), LIMITS.max_word_chars),
    ("stop string", (V1, V3), lambda n: prompt_of(stop=["x" * n]), LIMITS.max_word_chars),
    ("stop strings", (V1,), lambda n: prompt_of(stop=["x"] * n), LIMITS.max_stop_strings),
    ("stop_token_ids", (V1, V3), lambda n: prompt_of(stop_token_ids=[5] * n), LIMITS.max_token_ids),
    ("allowed_token_ids", (V1, V3), lambda n: prompt_of(allowed_token_ids=[5] * n), LIMITS.max_token_ids),
    ("messages", (V1_CHAT, V3_CHAT), lambda n: chat_of(messages=MESSAGES * n), LIMITS.max_messages),
    (
        "parts",
        (V1_CHAT, V3_CHAT),
        lambda n: chat_of(messages=[{"role": "user", "content": [{"type": "text", "text": ""}] * n}]),
        LIMITS.max_messages,
    ),
    (
        "tool calls",
        (V1_CHAT, V3_CHAT),
        lambda n: chat_of(messages=[{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}] * n}]),
        LIMITS.max_messages,
    ),
    ("tools", (V1_CHAT, V3_CHAT), lambda n: chat_of(tools=[TOOL] * n), LIMITS.max_tools),
    ("inputs", (LMI_PATH,), lambda n: {"inputs": ["x"] * n}, LIMITS.max_prompts),
    ("bad_sequences", (LMI_PATH,), lambda n: inputs_of(bad_sequences=[str(i) for i in range(n)]), LIMITS.max_bad_words),
    ("bad sequence", (LMI_PATH,), lambda n: inputs_of(bad_sequences=["x" * n]), LIMITS.max_word_chars),
    ("stop_sequence", (LMI_PATH,), lambda n: inputs_of(stop_sequences=["x" * n]), LIMITS.max_word_chars),
    ("LMI stop ids", (LMI_PATH,), lambda n: inputs_of(stop_token_ids=[5] * n), LIMITS.max_token_ids),
    ("texts", (TOKENIZE_V3,), lambda n: {"model": "bytes", "text": ["x"] * n}, LIMITS.max_prompts),
    ("token ids", ("/detokenize",), lambda n: {"model": "bytes", "tokens": [72] * n}, LIMITS.max_token_ids),
]


@table(("paths", "body", "most"), [case[1:] for case in LISTS], ids=[case[0] for case in LISTS])
def test_a_list_has_an_end(
    client: httpx.Client, paths: tuple[str, ...], body: Callable[[int], Json], most: int
) -> None:
    for path in width(paths, paths[:1]):
        refused = client.post(path, json=body(most + 1))
        assert 400 <= refused.status_code < 500
        assert f"at most {most}" in refused.text
        assert f"got {most + 1}" in refused.text
        allowed = client.post(path, json=body(most))
        assert f"at most {most}" not in allowed.text, allowed.text[:200]


@table("path", [V1, V3])
def test_a_bias_names_token_ids_of_a_size_that_ids_have(client: httpx.Client, path: str) -> None:
    for key in ("9" * 5000, "9" * 19):
        answer = client.post(path, json=prompt_of(logit_bias={key: 1}))
        assert answer.status_code == 400
        assert "logit_bias must map token ids to numbers" in answer.text
    many = client.post(path, json=prompt_of(logit_bias={str(i): 1 for i in range(LIMITS.max_token_ids + 1)}))
    assert (many.status_code, "at most 300000" in many.text) == (400, True)


@table("max_length", [CONTEXT, CONTEXT + 1])
def test_padding_goes_as_far_as_the_context(client: httpx.Client, max_length: int) -> None:
    body = {"model": "bytes", "text": "Hi", "max_length": max_length, "pad_to_max_length": True}
    answer = client.post(TOKENIZE_V3, json=body)
    if max_length <= CONTEXT:
        assert len(answer.json()["tokens"]) == max_length
    else:
        assert answer.status_code == 400
        assert answer.json() == {"error": "max_length must be between 1 and 99, got 100"}


def test_cutting_is_not_allocating_and_takes_any_length(client: httpx.Client) -> None:
    answer = client.post(TOKENIZE_V3, json={"model": "bytes", "text": "Hi", "max_length": 10**12})
    assert answer.json() == {"tokens": [*b"Hi"]}


def test_huge_prompts_are_refused_with_the_context_they_exceed(client: httpx.Client) -> None:
    for path, body in (
        (V1, prompt_of(prompt="x" * 3_000_000)),
        (V1, prompt_of(prompt=[5] * 300_000)),
        (V1_CHAT, chat_of(messages=[{"role": "user", "content": "x" * 3_000_000}])),
        (LMI_PATH, {"inputs": "x" * 3_000_000}),
    ):
        answer = client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
        assert answer.status_code in (400, 424)
        assert f"maximum context length is {CONTEXT} tokens" in answer.text
