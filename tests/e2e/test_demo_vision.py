"""The bundled model that sees, in a server of its own: drawn pictures through every API that takes pictures."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import anthropic
import httpx
import ollama
import openai
import pytest

from demo.evaluate_pictures import Case, cases, messages_of
from demo.pictures.wordings import NO_PICTURE
from tests.support.cpu import EXACT_F32
from tests.support.drawn_pictures import messages
from tests.support.server_process import ServerProcess, serve
from tests.support.tiers import width

EACH = 3  # questions of every kind
LEAST_SHARE = 0.9  # of right answers: below what the model was measured at (demo/README.md), as these are few
MAX_TOKENS = 40


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with serve("demo-vision", "--dtype", "f32", "--max-num-seqs", "16") as running:
        yield running


@pytest.fixture(scope="module")
def asked() -> list[Case]:
    """Pictures and wordings that training never saw."""
    return cases(EACH, Random("drawn for the tests"))


@contextmanager
def asking(server: ServerProcess, route: str = "v1") -> Iterator[Any]:
    """OpenAI's client of the server."""
    with openai.OpenAI(base_url=f"{server.base_url}/{route}", api_key="none", max_retries=0) as client:
        yield client


def through_client(server: ServerProcess, case: Case, route: str = "v1") -> str:
    with asking(server, route) as client:
        answer = client.chat.completions.create(
            model="demo-vision", messages=messages(case), temperature=0, max_tokens=MAX_TOKENS
        )
    return str(answer.choices[0].message.content).strip()


def through_lmi(server: ServerProcess, case: Case, path: str) -> str:
    body = {"messages": messages(case), "temperature": 0, "max_tokens": MAX_TOKENS}
    answer = httpx.post(f"{server.base_url}{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"]).strip()


def test_drawn_pictures_are_understood_through_the_openai_client(server: ServerProcess, asked: list[Case]) -> None:
    answers = [
        (case, through_client(server, case))
        for case in width(asked, list({case.kind: case for case in asked}.values()))
    ]
    missed = [(case.kind, case.question, answer, case.answer) for case, answer in answers if answer != case.answer]
    assert 1 - len(missed) / len(answers) >= LEAST_SHARE, missed


def test_every_api_that_takes_pictures_gives_the_same_answers(server: ServerProcess, asked: list[Case]) -> None:
    for case in width(asked[::9], asked[::27]):
        expected = through_client(server, case)
        assert through_client(server, case, "v3") == expected
        for path in ("/invocations", "/predictions/demo-vision", "/v1/chat/completions"):
            assert through_lmi(server, case, path) == expected


@pytest.fixture
def official(server: ServerProcess) -> Iterator[ollama.Client]:
    client = ollama.Client(host=server.base_url)
    yield client
    client._client.close()


@pytest.fixture
def claude(server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.base_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def opened(server: ServerProcess) -> Iterator[Any]:
    """OpenAI's client; typed loosely, as messages are dictionaries here."""
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0) as client:
        yield client


class Told(NamedTuple):
    """An answer: its text, its tokens where the API shows them, and how many tokens prompt and answer have."""

    text: str
    tokens: list[str] | None
    num_prompt_tokens: int
    num_tokens: int


def parts_of(case: Case) -> tuple[str, str, bool]:
    """The question, the picture's base64, and whether the picture comes first."""
    [message] = messages(case)
    urls = [part["image_url"]["url"] for part in message["content"] if part["type"] == "image_url"]
    return case.question, urls[0].partition(",")[2], message["content"][0]["type"] == "image_url"


def ordered(picture: dict[str, Any], text: dict[str, Any], comes_first: bool) -> list[dict[str, Any]]:
    return [picture, text] if comes_first else [text, picture]


def of_text(told: Sequence[Any]) -> list[str]:
    """The tokens without the end of the turn, which some APIs show and others do not."""
    return [one.token for one in told if one.token != "<|im_end|>"]


def told_by_chat(client: Any, case: Case) -> Told:
    made = client.chat.completions.create(
        model="demo-vision", messages=messages(case), temperature=0, max_tokens=MAX_TOKENS, logprobs=True
    )
    [choice] = made.choices
    tokens = of_text(choice.logprobs.content)
    return Told(choice.message.content, tokens, made.usage.prompt_tokens, made.usage.completion_tokens)


def told_by_responses(client: Any, case: Case) -> Told:
    question, data, comes_first = parts_of(case)
    picture = {"type": "input_image", "image_url": f"data:image/png;base64,{data}"}
    made = client.responses.create(
        model="demo-vision",
        input=[{"role": "user", "content": ordered(picture, {"type": "input_text", "text": question}, comes_first)}],
        temperature=0,
        max_output_tokens=MAX_TOKENS,
        include=["message.output_text.logprobs"],
    )
    tokens = of_text(made.output[0].content[0].logprobs)
    return Told(made.output_text, tokens, made.usage.input_tokens, made.usage.output_tokens)


def told_by_messages(client: Any, case: Case) -> Told:
    question, data, comes_first = parts_of(case)
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    sent = [{"role": "user", "content": ordered(picture, {"type": "text", "text": question}, comes_first)}]
    made = client.messages.create(
        model="demo-vision", messages=sent, max_tokens=MAX_TOKENS, extra_body={"temperature": 0}
    )
    num_prompt_tokens = made.usage.input_tokens + made.usage.cache_read_input_tokens
    assert client.messages.count_tokens(model="demo-vision", messages=sent).input_tokens > 0
    return Told(made.content[0].text, None, num_prompt_tokens, made.usage.output_tokens)


def told_by_ollama(client: ollama.Client, case: Case) -> Told:
    question, data, _ = parts_of(case)
    made = client.chat(
        "demo-vision",
        [{"role": "user", "content": question, "images": [data]}],
        options={"temperature": 0, "num_predict": MAX_TOKENS},
        logprobs=True,
    )
    assert made.message.content is not None
    assert made.logprobs is not None
    tokens = of_text(made.logprobs)
    assert made.prompt_eval_count is not None
    assert made.eval_count is not None
    return Told(made.message.content, tokens, made.prompt_eval_count, made.eval_count)


def test_the_same_picture_gives_the_same_tokens_through_every_api(
    opened: Any, claude: anthropic.Anthropic, official: ollama.Client, asked: list[Case]
) -> None:
    seeing = [case for case in asked if case.scene is not None]
    begun = [case for case in seeing if parts_of(case)[2]]  # Ollama's pictures come before the text
    assert begun
    for case in {id(case): case for case in (*seeing[:2], *begun[:2])}.values():
        expected = told_by_chat(opened, case)
        assert expected.num_tokens > 1
        assert told_by_responses(opened, case) == expected
        assert told_by_messages(claude, case) == expected._replace(tokens=None)
        if case in begun:
            assert told_by_ollama(official, case) == expected


def with_logprobs(server: ServerProcess, case: Case) -> tuple[str, list[float]]:
    """The answer, and the log-probabilities of the prompt's tokens, placeholders among them, and of its own.

    As those of the prompt are wanted, all of it is computed: no block of an earlier request is reused.
    """
    with asking(server) as client:
        answer = client.chat.completions.create(
            model="demo-vision",
            messages=messages(case),
            temperature=0,
            max_tokens=MAX_TOKENS,
            logprobs=True,
            extra_body={"prompt_logprobs": 0},
        )
    choice = answer.choices[0]
    first, *others = answer.prompt_logprobs
    assert first is None
    assert len(others) == answer.usage.prompt_tokens - 1
    logprobs = [next(iter(told.values()))["logprob"] for told in others]
    return str(choice.message.content).strip(), logprobs + [told.logprob for told in choice.logprobs.content]


def test_requests_with_and_without_pictures_get_at_once_what_they_get_alone(
    server: ServerProcess, asked: list[Case]
) -> None:
    """Eight questions, each with its picture and without: what one sees must not reach the other, in any number."""
    seeing = Random(3).sample([case for case in asked if case.scene is not None], 8)
    mixed = [one for case in seeing for one in (case, replace(case, answer=NO_PICTURE, scene=None))]
    alone = [with_logprobs(server, case) for case in mixed]
    with ThreadPoolExecutor(len(mixed)) as pool:
        together = list(pool.map(lambda case: with_logprobs(server, case), mixed))
    for case, (text, logprobs), (text_alone, logprobs_alone) in zip(mixed, together, alone, strict=True):
        assert text == text_alone, (case.question, case.scene)
        assert logprobs == (logprobs_alone if EXACT_F32 else pytest.approx(logprobs_alone, abs=1e-4))
    is_right = [text == case.answer for case, (text, _) in zip(mixed, together, strict=True)]
    for begin in (0, 1):  # with a picture, and without
        assert sum(is_right[begin::2]) >= 7, together


def test_a_picture_costs_tokens_and_is_embedded_once(server: ServerProcess, asked: list[Case]) -> None:
    case = next(case for case in asked if case.scene is not None)
    without = messages_of(case.question, None, True)
    with asking(server) as client:
        sizes = [
            client.chat.completions.create(model="demo-vision", messages=sent, max_tokens=1).usage.prompt_tokens
            for sent in (without, messages(case))
        ]
        assert sizes[1] - sizes[0] > 9  # embeddings, and what stands around them
        before = server.metrics()
        for format in ("PNG", "BMP", "WEBP"):  # of which the last loses something
            sent = messages(case, format)
            client.chat.completions.create(model="demo-vision", messages=sent, max_tokens=1)
        after = server.metrics()
    assert after["dragoman_pictures_total"] - before["dragoman_pictures_total"] == 3
    assert after["dragoman_picture_cache_hits_total"] - before["dragoman_picture_cache_hits_total"] == 2


def test_a_picture_that_is_none_hurts_nobody(server: ServerProcess, asked: list[Case]) -> None:
    for url in ("data:image/png;base64,bm90IGEgcGljdHVyZQ==", "http://127.0.0.1:1/a.png"):
        part = {"type": "image_url", "image_url": {"url": url}}
        with asking(server) as client, pytest.raises(openai.BadRequestError, match="image_url"):
            client.chat.completions.create(model="demo-vision", messages=messages_of("What is this?", part, True))
    case = next(case for case in asked if case.scene is not None)
    assert through_client(server, case)


def in_ollamas_words(case: Case) -> list[dict[str, Any]]:
    """The messages of a question about a picture."""
    told = []
    sent: list[Any] = list(messages(case))
    for message in sent:
        content: Any = message["content"]
        parts: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        text = "\n".join(part["text"] for part in parts if part["type"] == "text")
        urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
        told.append({"role": message["role"], "content": text, "images": [url.partition(",")[2] for url in urls]})
    return told


def test_ollamas_client_sees_pictures_in_prompts_and_conversations(
    server: ServerProcess, official: ollama.Client
) -> None:
    options = {"temperature": 0, "num_predict": 40}
    drawn = cases(1, Random("drawn for Ollama"))[:6]
    for case in width(drawn, drawn[:2]):
        expected = httpx.post(
            f"{server.base_url}/v1/chat/completions",
            json={"model": "demo-vision", "messages": messages(case), "temperature": 0, "max_tokens": 40},
            headers={"api-key": "x"},
            timeout=60,
        ).json()["choices"][0]["message"]["content"]
        told = in_ollamas_words(case)
        assert official.chat("demo-vision", told, options=options).message.content == expected
        if len(told) == 1:
            prompt, images = told[0]["content"], told[0]["images"]
            assert official.generate("demo-vision", prompt, images=images, options=options).response == expected
    assert "vision" in (official.show("demo-vision").capabilities or ())
    with pytest.raises(ollama.ResponseError, match=r"^images\[0\]"):
        official.generate("demo-vision", "What is this?", images=[base64.b64encode(b"no picture").decode()])
    with pytest.raises(ollama.ResponseError, match=r"^messages\[0\].images\[0\]"):
        official.chat("demo-vision", [{"role": "user", "content": "?", "images": [base64.b64encode(b"none").decode()]}])
