"""Classification, words' weights and tokens' vectors as TEI's and vLLM's clients ask for them: bodies, answers, refusals."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import numpy as np

from dragoman.server.pooling.base import PoolingKind, Truncation
from tests.dialects.pooling_calls import called
from tests.support.fake_pooling import FakePooling, vectors_of
from tests.support.tables import table

EMBED, SCORE, CLASSIFY, SPARSE, TOKENS = PoolingKind

SHORT = [{"score": 0.75, "label": "short"}, {"score": 0.25, "label": "long"}]
LONG = [{"score": 0.75, "label": "long"}, {"score": 0.25, "label": "short"}]


@table(
    ("inputs", "texts", "expected"),
    [
        ("a b", ["a b"], SHORT),
        (["a b"], ["a b"], SHORT),
        (["a", "b"], [("a", "b")], LONG),
        ([["a"], ["b", "c"]], ["a", ("b", "c")], [SHORT, LONG]),
    ],
)
def test_predict_tells_the_likeliest_label_first(inputs: Any, texts: list[Any], expected: Any) -> None:
    for kind in (CLASSIFY, SCORE):
        service = FakePooling(kind)
        assert called("/predict", {"inputs": inputs}, service) == (200, expected)
        assert called("/", {"inputs": inputs}, FakePooling(CLASSIFY)) == (200, expected)
        assert list(service.classified[0].texts) == texts
        assert service.classified[0].truncation is Truncation.RIGHT
        assert called("/predict", {"inputs": inputs, "raw_scores": True}, service)[0] == 200
        assert service.classified[1].raw


def test_words_and_tokens_are_told_as_tei_has_them() -> None:
    vector = vectors_of(["a b"])[0].tolist()
    assert called("/embed_all", {"inputs": "a b"}, FakePooling()) == (200, [[vector] * 4])
    assert called("/embed_all", {"inputs": ["a b", "a b"]}, FakePooling(TOKENS)) == (200, [[vector] * 4] * 2)
    words = [[{"index": 4, "value": 0.5}], [{"index": 3, "value": 0.5}]]
    assert called("/embed_sparse", {"inputs": ["a b", "c"]}, FakePooling(SPARSE)) == (200, words)
    service = FakePooling()
    called("/embed_all", {"inputs": "a", "truncate": False, "prompt_name": "query"}, service)
    asked = service.embedded[0]
    assert (asked.truncation, asked.prompt_name, asked.normalize) == (Truncation.NONE, "query", False)


def test_classify_tells_probabilities_as_vllm_has_them() -> None:
    status, answer = called("/classify", {"input": ["a", "b c"], "model": "m"}, FakePooling(CLASSIFY))
    assert status == 200
    assert answer["object"] == "list"
    assert answer["model"] == "m"
    assert answer["data"][1] == {"index": 1, "label": "short", "probs": [0.75, 0.25], "num_classes": 2}
    assert answer["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    service = FakePooling(CLASSIFY)
    for field in ("use_activation", "activation"):
        called("/classify", {"input": "a", field: False, "truncate_prompt_tokens": 5}, service)
    assert [(one.raw, one.max_tokens) for one in service.classified] == [(True, 5)] * 2


def test_pooling_makes_what_its_task_says() -> None:
    vector = vectors_of(["a b"])[0].tolist()
    for kind, task, data in (
        (EMBED, None, vector),
        (EMBED, "token_embed", [vector] * 4),
        (TOKENS, None, [vector] * 4),
        (CLASSIFY, None, [0.75, 0.25]),
        (SCORE, "classify", [0.75, 0.25]),
    ):
        status, answer = called("/pooling", {"input": "a b", "task": task}, FakePooling(kind))
        assert (status, answer["data"]) == (200, [{"index": 0, "object": "pooling", "data": data}])
    body = {"input": "a b", "task": "token_embed", "encoding_format": "base64", "dimensions": 2}
    _, answer = called("/pooling", body, FakePooling())
    packed = np.frombuffer(b64decode(answer["data"][0]["data"]), dtype="<f4")
    assert packed.reshape(4, 2).tolist() == [vector[:2]] * 4


@table(
    ("path", "body", "kind", "status", "told"),
    [
        ("/predict", {"inputs": "a"}, EMBED, 424, "embeds texts and does not classify"),
        ("/predict", {"inputs": "a"}, None, 424, "generates text and does not classify"),
        ("/predict", {"inputs": []}, CLASSIFY, 400, "at least one text"),
        ("/predict", {"inputs": [["a"], []]}, CLASSIFY, 422, "inputs[1] must be a string or a list of one or two"),
        ("/predict", {"inputs": ["a", "b", "c"]}, CLASSIFY, 422, "inputs must be a string or a list of one or two"),
        ("/predict", {"inputs": [["a"]] * 5}, CLASSIFY, 422, "inputs"),
        ("/predict", {"inputs": [["a"], ["b", 1]]}, CLASSIFY, 422, "inputs[1][1] must be a string"),
        ("/embed_all", {"inputs": "a"}, CLASSIFY, 424, "classifies texts and does not embed tokens"),
        ("/embed_sparse", {"inputs": "a"}, EMBED, 424, "embeds texts and does not weigh words"),
        ("/embed", {"inputs": "a"}, TOKENS, 424, "embeds the tokens of texts and does not embed"),
        ("/rerank", {"query": "a", "texts": ["a"]}, CLASSIFY, 424, "classifies texts and does not score or rerank"),
        ("/classify", {"input": "a"}, EMBED, 400, "embeds texts and does not classify"),
        ("/classify", {}, CLASSIFY, 400, "input is missing"),
        ("/classify", {"input": [1, 2]}, CLASSIFY, 400, "token ids"),
        ("/classify", {"messages": []}, CLASSIFY, 400, "messages"),
        ("/pooling", {"input": "a", "task": "plugin"}, EMBED, 400, "task must be one of embed, token_embed, classify"),
        ("/pooling", {"input": "a", "task": "embed"}, TOKENS, 400, "does not embed"),
        ("/pooling", {"input": "a", "encoding_format": "hex"}, EMBED, 400, "encoding_format must be float or base64"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(
    path: str, body: Any, kind: PoolingKind | None, status: int, told: str
) -> None:
    found, answer = called(path, body, None if kind is None else FakePooling(kind))
    message = answer["error"] if isinstance(answer["error"], str) else answer["error"]["message"]
    assert (found, told in message, "\n" in message) == (status, True, False), message


def test_long_documents_are_cut_into_pieces_where_that_is_asked_for_or_usual() -> None:
    for path, more, expected in (
        ("/v1/rerank", {}, 1),
        ("/v1/rerank", {"max_chunks_per_doc": 3}, 3),
        ("/v3/rerank", {"model": "m"}, 10_000),
        ("/v3/rerank", {"model": "m", "max_chunks_per_doc": 2}, 2),
    ):
        service = FakePooling(SCORE)
        status, _ = called(path, {"query": "a", "documents": ["a"], **more}, service)
        assert (status, service.scored[0].max_pieces) == (200, expected)
    status, answer = called(
        "/v1/rerank", {"query": "a", "documents": ["a"], "max_chunks_per_doc": 0}, FakePooling(SCORE)
    )
    assert status == 400
    assert "max_chunks_per_doc" in answer["error"]["message"]
