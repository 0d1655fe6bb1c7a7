"""What embedding calls ask of a model's service, and what is refused, in every API's words."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from dragoman.errors import ALL_KINDS, Overloaded
from dragoman.server.apis.tei_wire import STATUSES, TYPES
from dragoman.server.pooling.base import Truncation
from tests.dialects.pooling_calls import called, embedding, http_call, reply_of, scoring
from tests.support.every_api import CLASSES
from tests.support.fake_pooling import vectors_of
from tests.support.tables import table

ROUTES = {"/v1/embeddings": "input", "/v3/embeddings": "input", "/embed": "inputs", "/invocations": "inputs"}
OPENAI = ["/v1/embeddings", "/v3/embeddings"]


def body_for(path: str, texts: Any, **more: Any) -> dict[str, Any]:
    """A body with these texts."""
    model = {"model": "fake"} if path == "/v3/embeddings" else {}
    allowing = {"allow_token_ids": True} if path in OPENAI else {}
    return {ROUTES[path]: texts, **model, **allowing, **more}


def message_of(answer: Any) -> str:
    """What an error says, in any of the shapes."""
    error = answer.get("error", answer.get("message"))
    return str(error["message"] if isinstance(error, dict) else error)


def rows_of(answer: Any) -> Any:
    """The vectors in an answer of any shape."""
    if isinstance(answer, dict):
        assert [item["index"] for item in answer["data"]] == list(range(len(answer["data"])))
        return [item["embedding"] for item in answer["data"]]
    return answer if isinstance(answer[0], list) else [answer]


@table("path", ROUTES)
@table(
    ("given", "texts"),
    [
        ("one text", ["one text"]),
        (["one text"], ["one text"]),
        (["b", "a", "b"], ["b", "a", "b"]),
        ([5, 6, 7], [(5, 6, 7)]),
        ([[5, 6], [7]], [(5, 6), (7,)]),
        (["a", [7]], ["a", (7,)]),
    ],
)
def test_texts_and_token_ids_come_back_as_vectors_in_their_order(path: str, given: Any, texts: Any) -> None:
    service = embedding()
    status, answer = called(path, body_for(path, given), service)
    assert (status, list(service.embedded[0].texts)) == (200, texts)
    assert rows_of(answer) == vectors_of(texts).tolist()


@table("path", OPENAI)
def test_token_ids_are_refused_unless_the_request_or_the_operator_allows_them(path: str) -> None:
    """LangChain sends those of OpenAI's models, and their vectors would be those of another text."""
    for given in ([5, 6], [[5, 6]], ["a", [7]]):
        status, answer = called(path, body_for(path, given, allow_token_ids=None), embedding())
        assert status == 400
        assert "check_embedding_ctx_length=False" in message_of(answer)
        assert "allow_token_ids: true" in message_of(answer)
        for asked, is_open, expected in ((None, True, 200), (False, True, 400), (True, False, 200)):
            http = http_call(path, body_for(path, given, allow_token_ids=asked))
            reply = reply_of(http, embedding(), settings={"allow_token_ids": is_open})
            assert reply.status == expected


@table("path", ROUTES)
@table(
    ("given", "says"),
    [
        ([], "must hold at least one"),
        (7, "must be a string, an array of strings or token ids, got 7"),
        (["a", None], "[1] must be a string or an array of token ids, got null"),
        (["a", True], "[1] must be a string or an array of token ids, got true"),
        (["a", []], "[1] must hold at least one token, got none"),
        ([1, "a"], '[1] must be a token id like the others, got "a"'),
        ([[1, 2.5]], "[0][1] must be a token id like the others, got 2.5"),
        ([[1, 200]], "[0] has token 200, allowed: 0 to 99"),
        (["a"] * 5, "must have at most 4 entries, got 5"),
        ([1] * 9, "must have at most 8 entries, got 9"),
        ("a" * 201, "must have at most 200 characters, got 201"),
    ],
)
def test_what_is_no_text_is_refused_by_its_place(path: str, given: Any, says: str) -> None:
    status, answer = called(path, body_for(path, given), embedding())
    assert status in (400, 422)
    if path == "/v3/embeddings" and given == 7:
        says = "input should be string or array of strings"  # that server's words
    assert says in message_of(answer)
    assert message_of(answer).startswith(ROUTES[path])


@table("path", ROUTES)
def test_no_texts_at_all_are_missed_by_name(path: str) -> None:
    status, answer = called(path, {"model": "fake"}, embedding())
    assert status in (400, 422)
    assert ROUTES[path] in message_of(answer)


@table("path", ROUTES)
def test_null_is_as_good_as_absent(path: str) -> None:
    names = ["dimensions", "encoding_format", "normalize", "truncate", "prompt_name", "user", "parameters"]
    reply = reply_of(http_call(path, body_for(path, "a") | dict.fromkeys(names)), embedding())
    assert (reply.status, dict(reply.headers)) == (200, {})


@table("path", OPENAI)
def test_base64_holds_the_same_numbers(path: str) -> None:
    _, numbers = called(path, body_for(path, ["a", "word"], encoding_format="float"), embedding())
    _, coded = called(path, body_for(path, ["a", "word"], encoding_format="base64"), embedding())
    rows = [np.frombuffer(base64.b64decode(text), "<f4").tolist() for text in rows_of(coded)]
    assert rows == rows_of(numbers)


@table("path", OPENAI)
def test_parameters_reach_the_service(path: str) -> None:
    service = embedding()
    more = {"dimensions": 2, "normalize": True, "add_special_tokens": False, "task": "query"}
    status, answer = called(path, body_for(path, ["a b c"], truncate_prompt_tokens=3, **more), service)
    assert status == 200
    [request] = service.embedded
    assert (request.dimensions, request.normalize, request.add_special_tokens) == (2, True, False)
    assert (request.prompt_name, request.truncation, request.max_tokens) == ("query", Truncation.RIGHT, 3)
    assert request.request_id == "req-1"
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert answer["data"][0]["embedding"] == vectors_of(["a b c"])[0, :2].tolist()


@table("path", OPENAI)
def test_too_long_texts_are_refused_unless_they_may_be_cut(path: str) -> None:
    texts = ["a", "b " * 20]
    status, answer = called(path, body_for(path, texts), embedding())
    assert status == 400
    said = {
        "/v1/embeddings": "input[1] has 22 tokens, allowed: at most 12",
        "/v3/embeddings": "Number of prompt tokens: 22 exceeds model max length: 12",
    }
    assert message_of(answer) == said[path]
    assert called(path, body_for(path, texts, truncate_prompt_tokens=-1), embedding())[0] == 200


@table(
    ("more", "says"),
    [
        ({"dimensions": 0}, "dimensions must be between 1 and 4, got 0"),
        ({"dimensions": "many"}, 'dimensions must be an integer, got "many"'),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens must be -1 or at least 1, got 0"),
        ({"truncate_prompt_tokens": 13}, "truncate_prompt_tokens must be between 1 and 12, got 13"),
        ({"encoding_format": "int8"}, 'encoding_format must be float or base64, got "int8"'),
        ({"encoding_format": 3}, "encoding_format must be a string, got 3"),
        ({"prompt_name": "other"}, "prompt_name 'other' is unknown, allowed: query"),
        ({"task": "other"}, "task 'other' is unknown, allowed: query"),
        ({"task": "other", "prompt_name": "query"}, 'task must be the same as prompt_name ("query"), got "other"'),
        ({"normalize": "perhaps"}, 'normalize must be true or false, got "perhaps"'),
    ],
)
def test_a_wrong_parameter_is_named_with_what_is_allowed(more: dict[str, Any], says: str) -> None:
    status, answer = called("/v1/embeddings", {"input": "a", **more}, embedding())
    assert (status, answer["error"]["message"], answer["error"]["param"]) == (400, says, next(iter(more)))


def test_conversations_are_refused_by_name() -> None:
    status, answer = called("/v1/embeddings", {"messages": [{"role": "user", "content": "a"}]}, embedding())
    assert (status, answer["error"]["param"]) == (400, "messages")


def test_openvino_wants_a_model_and_strict_types() -> None:
    assert called("/v3/embeddings", {"input": "a"}, embedding())[0] == 412
    assert called("/v3/embeddings", {"model": "fake", "input": "a", "dimensions": "2"}, embedding())[0] == 400
    assert called("/v1/embeddings", {"input": "a", "dimensions": "2"}, embedding())[0] == 200


@table("path", ROUTES)
def test_what_has_no_effect_is_named_or_refused(path: str) -> None:
    body = body_for(path, "a", colour="red")
    assert "colour" in reply_of(http_call(path, body), embedding()).headers["x-dragoman-ignored"]
    status, answer = called(path, body, embedding(), x_dragoman_strict="1")
    assert status in (400, 422)
    assert "colour" in message_of(answer)


@table("path", [*OPENAI, "/embed"])
def test_a_model_that_does_not_embed_says_so(path: str) -> None:
    for service, does in ((None, "generates text"), (scoring(), "scores pairs of texts")):
        status, answer = called(path, body_for(path, "a"), service)
        assert status == (424 if path == "/embed" else 400)
        assert message_of(answer) == f"model fake {does} and does not embed"


@table("path", ROUTES)
def test_a_busy_server_says_when_to_come_back(path: str) -> None:
    service = embedding()
    service.failure = Overloaded("the queue is full", retry_after_s=7)
    reply = reply_of(http_call(path, body_for(path, "a")), service)
    assert reply.status == {"/invocations": 503}.get(path, 429)
    assert reply.headers["retry-after"] == "7"


# --- Text Embeddings Inference ------------------------------------------------------------------------------------------


def test_tei_normalizes_unless_it_is_told_otherwise() -> None:
    service = embedding()
    called("/embed", {"inputs": "a"}, service)
    called("/embed", {"inputs": "a", "normalize": False, "dimensions": 3, "prompt_name": "query"}, service)
    first, second = service.embedded
    assert (first.normalize, first.prompt_name, first.dimensions) == (True, None, None)
    assert (second.normalize, second.prompt_name, second.dimensions) == (False, "query", 3)


@table(
    ("more", "truncation"),
    [
        ({}, Truncation.RIGHT),
        ({"truncation_direction": "Left"}, Truncation.LEFT),
        ({"truncate": True}, Truncation.RIGHT),
        ({"truncate": True, "truncation_direction": "left"}, Truncation.LEFT),
        ({"truncate": False}, Truncation.NONE),
        ({"truncate": False, "truncation_direction": "right"}, Truncation.NONE),
    ],
)
def test_tei_cuts_unless_it_is_told_not_to(more: dict[str, Any], truncation: Truncation) -> None:
    service = embedding()
    status, answer = called("/embed", {"inputs": ["b " * 20], **more}, service)
    assert service.embedded[0].truncation is truncation
    if truncation is Truncation.NONE:
        says = "inputs[0] has 22 tokens, allowed: at most 12"
        assert (status, answer) == (422, {"error": says, "error_type": "Validation"})
    else:
        assert status == 200


def test_tei_tells_what_is_wrong_in_its_own_shape() -> None:
    says = "inputs must hold at least one text, got none"
    nothings: list[Any] = ["", []]
    for nothing in nothings:
        answer = called("/embed", {"inputs": nothing}, embedding())
        assert answer == (400, {"error": says, "error_type": "Empty"})
    status, answer = called("/embed", b"{", embedding())
    assert (status, answer["error_type"]) == (422, "Validation")
    status, answer = called("/embed", {"inputs": "a", "truncation_direction": "up"}, embedding())
    assert (status, answer["error"]) == (422, 'truncation_direction must be left or right, got "up"')


@table("kind", ALL_KINDS)
def test_tei_tells_every_kind_of_error(kind: str) -> None:
    service = embedding()
    service.failure = CLASSES[kind]("it failed")
    status, answer = called("/embed", {"inputs": "a"}, service)
    assert (status, answer) == (
        STATUSES[kind],
        {"error": "it failed", "error_type": TYPES.get(STATUSES[kind], "Validation")},
    )


# --- LMI ----------------------------------------------------------------------------------------------------------------


def test_lmi_answers_a_string_with_one_vector_and_a_list_with_a_list() -> None:
    [row] = vectors_of(["a"]).tolist()
    assert called("/invocations", {"inputs": "a"}, embedding()) == (200, row)
    assert called("/invocations", {"inputs": ["a"]}, embedding()) == (200, [row])


def test_lmi_reads_forms_and_plain_text() -> None:
    [row] = vectors_of(["some words"]).tolist()
    for media_type, body in (
        ("text/plain", b"some words"),
        ("application/x-www-form-urlencoded", b"inputs=some+words"),
    ):
        http = http_call("/invocations", body, content_type=media_type)
        assert reply_of(http, embedding()).body.decode() == str(row).replace(" ", "")


def test_lmi_cuts_long_texts_and_tells_errors_as_its_translator() -> None:
    assert called("/invocations", {"inputs": "b " * 20}, embedding())[0] == 200
    status, answer = called("/invocations", {"inputs": 7}, embedding())
    assert (status, answer["code"], answer["type"]) == (400, 400, "TranslateException")
    service = embedding()
    service.failure = CLASSES["engine_dead"]("it is dead")
    assert called("/invocations", {"inputs": "a"}, service)[0] == 503
