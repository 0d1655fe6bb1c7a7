"""The routes between text and tokens, over real HTTP and a real service whose tokens are bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from dragoman.config.resolve import demo_model_dir
from dragoman.server.admission import Admission
from dragoman.server.apis.openai.api import tokenizer_info
from dragoman.server.app import ServerConfig
from dragoman.server.generation.service import Service
from dragoman.server.http.fields import Switches
from dragoman.server.registry import ServedModel
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from tests.support.byte_tokenizer import BOS_ID, EOS_ID, VOCAB_SIZE, ByteTokenizer
from tests.support.fake_engine import ABILITIES, FakeEngine, saying
from tests.support.real_dialects import real_dialects
from tests.support.running_server import running_server
from tests.support.tables import table

TEMPLATE = ChatTemplate(
    "{% if tools %}T{{ tools[0].function.name }}{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[go]{% endif %}{{ mood }}"
)
MESSAGES = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f"}}


def served(name: str, template: ChatTemplate | None) -> ServedModel:
    """A model with a real service."""
    engine = FakeEngine(saying("x"), capabilities=replace(ABILITIES, max_model_len=99))
    service = Service(name=name, engine=engine, tokenizer=ByteTokenizer(adds_bos=True), chat_template=template)
    return ServedModel(name, service, engine, real_dialects(), Admission(name))


class Remote:
    """A service whose tokenizer is elsewhere."""

    stream = generate = None


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with running_server(dialects=real_dialects()) as server:
        server.registry.add(served("bytes", TEMPLATE))
        server.registry.add(served("plain", None))
        remote: Any = Remote()
        server.registry.add(replace(served("remote", None), service=remote))
        with httpx.Client(base_url=server.url, timeout=30) as client:
            yield client


@pytest.fixture(scope="module")
def strict_client() -> Iterator[httpx.Client]:
    """Of a server whose operator wants strict reading."""
    with running_server(ServerConfig(switches=Switches(is_strict=True)), dialects=real_dialects()) as server:
        server.registry.add(served("bytes", TEMPLATE))
        with httpx.Client(base_url=server.url, timeout=30) as client:
            yield client


BODIES: dict[str, dict[str, Any]] = {
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [72]},
    "/v3/tokenize": {"text": "Hi"},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/v3/responses/input_tokens": {"input": "Hi"},
    "/api/show": {},
}


@table("path", BODIES)
def test_what_has_no_effect_is_named_or_refused_as_the_operator_wants(
    path: str, client: httpx.Client, strict_client: httpx.Client
) -> None:
    body = {"model": "bytes", **BODIES[path]}
    odd = body | {"colour": 1}
    assert "x-dragoman-ignored" not in client.post(path, json=body).headers
    assert client.post(path, json=odd).headers["x-dragoman-ignored"] == "colour"
    assert client.post(path, json=odd, headers={"x-dragoman-strict": "true"}).status_code == 400
    assert strict_client.post(path, json=body).status_code == 200
    refused = strict_client.post(path, json=odd)
    assert refused.status_code == 400
    assert "colour" in refused.text
    assert strict_client.post(path, json=odd, headers={"x-dragoman-strict": "0"}).status_code == 200


def test_what_does_not_shape_a_prompt_is_named(client: httpx.Client) -> None:
    answer = client.post("/tokenize", json={"model": "bytes", "messages": MESSAGES, "temperature": 0, "seed": 1})
    assert answer.headers["x-dragoman-ignored"] == "temperature,seed"


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def tokens(text: str) -> list[int]:
    return [BOS_ID, *text.encode()]


def test_a_prompt_is_told_in_tokens(client: httpx.Client) -> None:
    answer = post(client, "/tokenize", model="bytes", prompt="Hé")
    assert answer == {"count": 4, "max_model_len": 99, "tokens": tokens("Hé"), "token_strs": None}
    bare = post(client, "/tokenize", model="bytes", prompt="Hi", add_special_tokens=False, return_token_strs=True)
    assert (bare["tokens"], bare["token_strs"]) == ([*b"Hi"], ["H", "i"])


@table(
    ("options", "text"),
    [
        ({}, "[user]Hi[go]"),
        ({"add_generation_prompt": False}, "[user]Hi"),
        ({"chat_template_kwargs": {"mood": "!"}}, "[user]Hi[go]!"),
        ({"tools": [TOOL]}, "Tf[user]Hi[go]"),
        ({"tools": [TOOL], "tool_choice": "none"}, "[user]Hi[go]"),
    ],
)
def test_a_conversation_is_told_as_the_model_would_see_it(
    client: httpx.Client, options: dict[str, Any], text: str
) -> None:
    answer = post(client, "/tokenize", model="bytes", messages=MESSAGES, **options)
    assert bytes(answer["tokens"]).decode() == text


def test_a_last_message_can_be_continued(client: httpx.Client) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "Yo"}]
    answer = post(client, "/tokenize", model="bytes", messages=messages, continue_final_message=True)
    assert bytes(answer["tokens"]).decode() == "[user]Hi[assistant]Yo"


def test_tokens_are_told_as_text_again(client: httpx.Client) -> None:
    assert post(client, "/detokenize", model="bytes", tokens=[*tokens("Hé"), EOS_ID]) == {
        "prompt": "<s>Hé</s>",
        "content": "<s>Hé</s>",
    }


def test_the_tokenizer_describes_itself(client: httpx.Client) -> None:
    info = client.get("/tokenizer_info", params={"model": "bytes"}).json()
    assert (info["bos_token"], info["eos_token"], info["pad_token"]) == ("<s>", "</s>", None)
    assert info["chat_template"] == TEMPLATE.sources["default"]
    assert (info["vocab_size"], info["model_max_length"]) == (VOCAB_SIZE, 99)
    assert client.get("/tokenizer_info", params={"model": "plain"}).json()["chat_template"] is None


def test_each_additional_special_token_is_listed_once_without_those_that_have_names() -> None:
    info = tokenizer_info(load_tokenizer(demo_model_dir()), None, 99)
    assert (info["eos_token"], info["pad_token"]) == ("<|endoftext|>", "<|endoftext|>")
    fim = [f"<|fim_{part}|>" for part in ("prefix", "suffix", "middle")]
    assert info["additional_special_tokens"] == ["<|im_start|>", "<|im_end|>", *fim]


@table(
    ("options", "expected"),
    [
        ({"text": "Hi"}, tokens("Hi")),
        ({"text": ["Hi", ""]}, [tokens("Hi"), [BOS_ID]]),
        ({"text": ["Hi", ""], "add_special_tokens": False}, [[*b"Hi"], []]),
        ({"text": "Hello", "max_length": 3}, tokens("He")),
        ({"text": "a", "max_length": 4, "pad_to_max_length": True}, [*tokens("a"), EOS_ID, EOS_ID]),
        (
            {"text": "a", "max_length": 4, "pad_to_max_length": True, "padding_side": "left"},
            [EOS_ID, EOS_ID, *tokens("a")],
        ),
        ({"text": "Hello", "max_length": 2, "pad_to_max_length": True}, tokens("H")),
        ({"text": "a", "max_length": None, "padding_side": None}, tokens("a")),
    ],
)
def test_model_server_clients_get_tokens_cut_and_padded_as_they_ask(
    client: httpx.Client, options: dict[str, Any], expected: Any
) -> None:
    assert post(client, "/v3/tokenize", model="bytes", **options) == {"tokens": expected}


@table(
    ("path", "body", "status", "words"),
    [
        ("/tokenize", {}, 400, "prompt is missing"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, 400, "cannot be used together"),
        ("/tokenize", {"prompt": 7}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "nobody"}, 404, "nobody"),
        ("/tokenize", {"messages": MESSAGES, "model": "plain"}, 400, "no chat template"),
        ("/tokenize", {"prompt": "a", "model": "remote"}, 400, "has no tokenizer here"),
        ("/detokenize", {}, 400, "tokens is missing"),
        ("/detokenize", {"tokens": [999], "model": "bytes"}, 400, "999"),
        ("/v3/tokenize", {"text": "a"}, 412, "model field is missing"),
        ("/v3/tokenize", {"model": "bytes"}, 400, "text is missing"),
        ("/v3/tokenize", {"model": "bytes", "text": "a", "max_length": 0}, 400, "max_length"),
        ("/v3/tokenize", {"model": "bytes", "text": "a", "pad_to_max_length": True}, 400, "max_length"),
        ("/v3/tokenize", {"model": "bytes", "text": "a", "padding_side": "top"}, 400, "padding_side"),
    ],
)
def test_what_is_wrong_is_told_in_the_routes_own_shape(
    client: httpx.Client, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert words in (error if path.startswith("/v3") else error["message"])


def test_texts_together_are_bounded(client: httpx.Client) -> None:
    answer = client.post("/v3/tokenize", json={"model": "fake", "text": ["a" * 500_000] * 9})
    assert answer.status_code == 400
    assert "text must have at most 4000000 characters in all, got 4500000" in answer.text


def test_a_body_that_is_too_large_is_refused() -> None:
    with running_server(ServerConfig(max_request_size_bytes=20), dialects=real_dialects()) as small:
        answer = httpx.post(f"{small.url}/tokenize", json={"prompt": "x" * 100}, timeout=30)
        assert answer.status_code == 413


def test_the_routes_ask_for_the_key() -> None:
    with running_server(ServerConfig(api_keys=frozenset({"k"})), dialects=real_dialects()) as guarded:
        assert httpx.post(f"{guarded.url}/tokenize", json={"prompt": "x"}, timeout=30).status_code == 401
        assert httpx.get(f"{guarded.url}/tokenizer_info", timeout=30).status_code == 401


@table("adds", [True, False])
def test_an_empty_text_has_the_tokens_that_the_tokenizer_adds_and_no_other(adds: bool, client: httpx.Client) -> None:
    expected = [BOS_ID] if adds else []
    for path, name in (("/tokenize", "prompt"), ("/v3/tokenize", "text")):
        answer = client.post(path, json={"model": "bytes", name: "", "add_special_tokens": adds}).json()
        assert answer["tokens"] == expected, path
        assert answer.get("count", len(expected)) == len(expected)
