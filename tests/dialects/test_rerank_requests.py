"""What rerank and score calls ask of a model's service, and what is refused, in every API's words."""

from __future__ import annotations

from typing import Any

from dragoman.server.pooling.base import Truncation
from tests.dialects.pooling_calls import called, embedding, http_call, reply_of, scoring
from tests.support.fake_pooling import scores_of
from tests.support.tables import table

QUERY = "what is deep learning"
TEXTS = ["bread", "deep learning is fun", "what bread is", "water"]
BY_DOCUMENTS = ["/v1/rerank", "/v2/rerank", "/v3/rerank", "/rerank"]
SCORING = ["/score", "/v1/score"]
ORDER = [1, 2, 0, 3]


def rerank_body(**more: Any) -> dict[str, Any]:
    """A body with documents."""
    return {"model": "fake", "query": QUERY, "documents": TEXTS, **more}


def message_of(answer: Any) -> str:
    """What an error says, in any of the shapes."""
    error = answer.get("error", answer.get("message"))
    return str(error["message"] if isinstance(error, dict) else error)


@table("path", BY_DOCUMENTS)
def test_documents_come_back_best_first(path: str) -> None:
    status, answer = called(path, rerank_body(), scoring())
    values = scores_of([(QUERY, text) for text in TEXTS]).tolist()
    assert status == 200
    assert [(one["index"], one["relevance_score"]) for one in answer["results"]] == [
        (index, values[index]) for index in ORDER
    ]
    assert all("document" not in one for one in answer["results"])


@table("path", BY_DOCUMENTS)
def test_the_best_are_told_and_their_texts_if_asked_for(path: str) -> None:
    documents = [{"text": text, "title": "t"} for text in TEXTS]
    body = rerank_body(documents=documents, top_n=2, return_documents=True, rank_fields=["text"])
    _, answer = called(path, body, scoring())
    assert [one["document"] for one in answer["results"]] == [{"text": TEXTS[index]} for index in ORDER[:2]]
    assert len(called(path, rerank_body(top_n=0), scoring())[1]["results"]) == len(TEXTS)
    assert len(called(path, rerank_body(top_n=99), scoring())[1]["results"]) == len(TEXTS)


def test_each_api_tells_the_fields_of_its_own() -> None:
    fields = {path: set(called(path, rerank_body(), scoring())[1]) for path in BY_DOCUMENTS}
    assert fields == {
        "/v1/rerank": {"id", "model", "results", "usage", "meta"},
        "/rerank": {"id", "model", "results", "usage", "meta"},
        "/v2/rerank": {"id", "results", "meta"},
        "/v3/rerank": {"results"},
    }


@table("path", BY_DOCUMENTS)
def test_parameters_reach_the_service(path: str) -> None:
    service = scoring()
    called(path, rerank_body(), service)
    called(path, rerank_body(truncate_prompt_tokens=8, use_activation=False, instruction="fun"), service)
    called(path, rerank_body(truncation=False), service)
    first, second, third = service.scored
    assert list(first.pairs) == [(QUERY, text) for text in TEXTS]
    assert (first.truncation, first.max_tokens, first.raw, first.instruction) == (Truncation.RIGHT, None, False, None)
    assert (second.truncation, second.max_tokens, second.raw, second.instruction) == (Truncation.RIGHT, 8, True, "fun")
    assert third.truncation is Truncation.NONE


@table(
    ("more", "says"),
    [
        ({"documents": []}, "documents must hold at least one document, got none"),
        ({"documents": "a"}, 'documents must be an array, got "a"'),
        ({"documents": ["a", 7]}, "documents[1] must be a string or an object with a text, got 7"),
        ({"documents": ["a", {"image": "x"}]}, "documents[1].text is missing: only texts are ranked"),
        ({"documents": [{"text": 7}]}, "documents[0].text must be a string, got 7"),
        ({"documents": ["a"] * 5}, "documents must have at most 4 entries, got 5"),
        ({"documents": ["a", "b " * 20], "truncation": False}, "documents[1] has 27 tokens, allowed: at most 12"),
        ({"top_n": -1}, "top_n must be at least 0, got -1"),
        ({"top_n": "few"}, 'top_n must be an integer, got "few"'),
        ({"query": 7}, "query must be a string, got 7"),
        ({"query": None}, "query is missing"),
        ({"rank_fields": ["title"]}, 'rank_fields must be ["text"], got ["title"]: documents are ranked by their text'),
        ({"truncate_prompt_tokens": 13}, "truncate_prompt_tokens must be between 1 and 12, got 13"),
    ],
)
@table("path", ["/v1/rerank", "/v2/rerank"])
def test_what_is_wrong_is_named_with_what_is_allowed(path: str, more: dict[str, Any], says: str) -> None:
    status, answer = called(path, rerank_body(**more), scoring())
    assert status == (422 if path == "/v2/rerank" and "rank_fields" in more else 400)
    assert message_of(answer) == says


@table(
    ("body", "status", "says"),
    [
        ({"query": QUERY, "documents": TEXTS}, 412, "model field is missing"),
        ({"model": "fake", "documents": TEXTS}, 400, "query field is missing in request"),
        ({"model": "fake", "query": 7, "documents": TEXTS}, 400, "query is not a string"),
        ({"model": "fake", "query": QUERY}, 400, "documents field is missing in request"),
        (rerank_body(documents="a"), 400, "documents is not an array"),
        (rerank_body(documents=[7]), 400, "documents array element is neither string nor object"),
        (rerank_body(documents=[{"title": "a"}]), 400, "document text field is missing"),
        (rerank_body(top_n="2"), 400, "top_n accepts integer values"),
        (rerank_body(return_documents=1), 400, "return_documents accepts boolean values"),
    ],
)
def test_openvino_has_words_of_its_own(body: dict[str, Any], status: int, says: str) -> None:
    found, answer = called("/v3/rerank", body, scoring())
    assert (found, says in answer["error"]) == (status, True), answer


@table("path", BY_DOCUMENTS)
def test_what_has_no_effect_is_named(path: str) -> None:
    body = rerank_body(user="me", colour="red")
    named = reply_of(http_call(path, body), scoring()).headers["x-dragoman-ignored"]
    assert named == "user,colour"
    status, answer = called(path, body, scoring(), x_dragoman_strict="true")
    assert (status, "colour" in message_of(answer)) == (400, True)


@table("path", [*BY_DOCUMENTS, *SCORING])
def test_a_model_that_embeds_ranks_by_similarity_and_one_that_generates_does_not(path: str) -> None:
    body = rerank_body() if path in BY_DOCUMENTS else {"text_1": QUERY, "text_2": TEXTS}
    assert called(path, body, embedding())[0] == 200
    status, answer = called(path, body, None)
    assert status == (422 if path == "/v2/rerank" else 400)
    assert message_of(answer) == "model fake generates text and does not score or rerank"


# --- Text Embeddings Inference ------------------------------------------------------------------------------------------


def test_tei_orders_texts() -> None:
    status, answer = called("/rerank", {"query": QUERY, "texts": TEXTS}, scoring())
    values = scores_of([(QUERY, text) for text in TEXTS]).tolist()
    assert status == 200
    assert answer == [{"index": index, "score": values[index]} for index in ORDER]


def test_tei_tells_texts_and_the_output_itself() -> None:
    service = scoring()
    body = {"query": QUERY, "texts": TEXTS, "return_text": True, "raw_scores": True}
    _, answer = called("/rerank", {**body, "truncate": True, "truncation_direction": "Left"}, service)
    assert [one["text"] for one in answer] == [TEXTS[index] for index in ORDER]
    assert answer[0]["score"] == 7.5
    assert (service.scored[0].raw, service.scored[0].truncation) == (True, Truncation.LEFT)


@table(
    ("body", "status", "says"),
    [
        (
            {"query": QUERY, "texts": ["a", "b " * 20], "truncate": False},
            422,
            "texts[1] has 27 tokens, allowed: at most 12",
        ),
        ({"query": QUERY, "texts": ["a", 7]}, 422, "texts[1] must be a string, got 7"),
        ({"query": QUERY, "texts": []}, 400, "texts must hold at least one text, got none"),
        ({"query": QUERY}, 422, "texts is missing"),
        ({"texts": TEXTS}, 422, "query is missing"),
    ],
)
def test_tei_tells_what_is_wrong(body: dict[str, Any], status: int, says: str) -> None:
    found, answer = called("/rerank", body, scoring())
    assert (found, answer["error"]) == (status, says)


def test_tei_ranks_with_models_that_score_only() -> None:
    for service, does in ((embedding(), "embeds texts"), (None, "generates text")):
        says = f"model fake {does} and does not score or rerank"
        answer = called("/rerank", {"query": QUERY, "texts": TEXTS}, service)
        assert answer == (424, {"error": says, "error_type": "Backend"})


# --- scores -------------------------------------------------------------------------------------------------------------


@table("path", SCORING)
@table("names", [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")])
@table(
    ("one", "other", "pairs"),
    [
        ("a", "b", [("a", "b")]),
        ("a", ["b", "a"], [("a", "b"), ("a", "a")]),
        (["a"], ["b", "a"], [("a", "b"), ("a", "a")]),
        (["a", "b"], ["b", "b"], [("a", "b"), ("b", "b")]),
    ],
)
def test_pairs_are_scored_in_their_order(path: str, names: tuple[str, str], one: Any, other: Any, pairs: Any) -> None:
    service = scoring()
    status, answer = called(path, {names[0]: one, names[1]: other}, service)
    assert (status, list(service.scored[0].pairs)) == (200, pairs)
    values = scores_of(pairs).tolist()
    assert answer["data"] == [{"index": index, "object": "score", "score": value} for index, value in enumerate(values)]
    assert answer["usage"] == {"prompt_tokens": 5 * len(pairs), "total_tokens": 5 * len(pairs)}


@table(
    ("body", "says", "param"),
    [
        ({}, "text_1 is missing: give text_1 and text_2, or queries and documents", "text_1"),
        ({"text_1": "a"}, "text_2 is missing: give text_1 and text_2, or queries and documents", "text_2"),
        ({"documents": "a"}, "queries is missing: give text_1 and text_2, or queries and documents", "queries"),
        ({"text_1": "a", "text_2": []}, "text_2 must hold at least one text, got none", "text_2"),
        ({"text_1": ["a", "b"], "text_2": "c"}, "text_1 must have 1 text or as many as text_2, got 2 and 1", "text_1"),
        ({"text_1": "a", "text_2": ["b", 7]}, "text_2[1] must be a string, got 7", "text_2[1]"),
        ({"text_1": "a", "text_2": "b " * 20}, "text_2 has 24 tokens, allowed: at most 12", "text_2"),
        ({"queries": "a", "items": ["b " * 20]}, "items[0] has 24 tokens, allowed: at most 12", "items"),
    ],
)
def test_wrong_pairs_are_refused_by_name(body: dict[str, Any], says: str, param: str) -> None:
    status, answer = called("/score", body, scoring())
    assert (status, answer["error"]["message"], answer["error"]["param"]) == (400, says, param)


def test_the_activation_may_be_left_out_under_both_names() -> None:
    service = scoring()
    for more in ({}, {"use_activation": False}, {"activation": False}, {"activation": True}):
        called("/score", {"text_1": "a", "text_2": "a", **more}, service)
    assert [request.raw for request in service.scored] == [False, True, True, False]


# --- LMI ----------------------------------------------------------------------------------------------------------------


def test_lmi_scores_pairs_of_key_and_value() -> None:
    pairs = [{"key": QUERY, "value": text} for text in TEXTS]
    values = scores_of([(QUERY, text) for text in TEXTS]).tolist()
    assert called("/invocations", {"inputs": pairs}, scoring()) == (200, values)
    assert called("/invocations", {"inputs": pairs[0]}, scoring()) == (200, values[:1])


@table(
    ("inputs", "says"),
    [
        ([], "inputs must hold at least one pair, got none"),
        ("a", 'inputs[0] must be an object with key and value, got "a"'),
        ([{"key": "a"}], 'inputs[0] must be an object with key and value, got {"key": "a"}'),
        ([{"key": "a", "value": 7}], "inputs[0].value must be a string, got 7"),
    ],
)
def test_lmi_refuses_what_is_no_pair(inputs: Any, says: str) -> None:
    answer = called("/invocations", {"inputs": inputs}, scoring())
    assert answer == (400, {"code": 400, "type": "TranslateException", "message": says})
