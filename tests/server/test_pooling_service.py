"""Embedding and scoring as client APIs ask for it, by served models: what sentence-transformers computes, limits, errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.cli.arguments import read_arguments
from dragoman.compose import ComposedModel, build_served_model
from dragoman.config.resolve import resolve
from dragoman.errors import CapacityError, InvalidParameter, ServerError, UnsupportedFeature
from dragoman.server.api import ModelProfile
from dragoman.server.generation.tokenizing_service import tokenizing_service
from dragoman.server.pooling.base import (
    ClassifyRequest,
    EmbedRequest,
    PoolingFacts,
    PoolingKind,
    PoolingService,
    ScoreRequest,
    Truncation,
    embedder,
    scorer,
)
from dragoman.server.pooling.texts import PairQuestion, TextPreparer
from dragoman.tokenizer.hf_tokenizer import HfTokenizer, load_tokenizer
from dragoman.types import GenerationRequest, TextPrompt
from tests.support.pooling_checkpoint import (
    case_classified,
    case_names,
    case_pairs,
    case_texts,
    read_case,
    recorded,
    words,
    write_pooling_case,
)
from tests.support.tables import table
from tests.support.tiers import width

EMBEDDING = [name for name in case_names() if "texts" in read_case(name) and "records" not in read_case(name)]
SCORING = [name for name in case_names() if "pairs" in read_case(name)]
RIGHT = Truncation.RIGHT
TOLERANCE = 1e-4


@asynccontextmanager
async def served(name: str, root: Path, *more: str) -> AsyncIterator[ComposedModel]:
    """The model of a case, computing in f32."""
    directory = write_pooling_case(name, root)
    config = resolve(read_arguments([str(directory), "--dtype", "f32", *more]).givens, {}, directory)
    composed = await build_served_model(config, lambda stage, fraction: None)
    try:
        yield composed
    finally:
        await composed.served.engine.shutdown(5)


Work = Callable[[PoolingService], Awaitable[Any]]


class Models:
    """The models that these tests ask, each made once, and the event loop that they live in."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._runner = asyncio.Runner()
        self._ends = AsyncExitStack()
        self._made: dict[tuple[str, ...], PoolingService] = {}

    def ask(self, name: str, work: Work, *more: str) -> Any:
        """What `work` makes of the case's service."""
        return self._runner.run(asyncio.wait_for(self._ask(name, work, *more), 120))

    def end(self) -> None:
        """End all models and the loop."""
        self._runner.run(self._ends.aclose())
        self._runner.close()

    async def _ask(self, *asked: Any) -> Any:
        name, work, *more = asked
        key = (name, *more)
        if key not in self._made:
            composed = await self._ends.enter_async_context(served(name, self._root / str(len(self._made)), *more))
            assert composed.served.pooling is not None
            self._made[key] = composed.served.pooling
        return await work(self._made[key])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    """No models yet."""
    made = Models(tmp_path_factory.mktemp("models"))
    yield made
    made.end()


def refused(models: Models, name: str, kind: type[ServerError], request: EmbedRequest | ScoreRequest) -> ServerError:
    """The error that a request meets."""

    async def work(service: PoolingService) -> ServerError:
        with pytest.raises(kind) as caught:
            await (service.embed(request) if isinstance(request, EmbedRequest) else service.score(request))
        return caught.value

    found: ServerError = models.ask(name, work)
    assert "\n" not in found.message
    return found


@table("name", width(EMBEDDING, ["bert_cls", "jina_tasks", "qwen3_last"]))  # tests/models has the numbers of all
def test_embeddings_are_those_of_sentence_transformers(name: str, models: Models) -> None:
    case, reference = read_case(name), recorded(name)
    texts = case_texts(case)

    async def work(service: PoolingService) -> dict[str, Any]:
        found = {"embeddings": (await service.embed(EmbedRequest(texts=texts, truncation=RIGHT))).values}
        for prompt in case.get("prompts", []):
            asked = EmbedRequest(texts=texts, prompt_name=prompt, truncation=RIGHT)
            found[f"embeddings_{prompt}"] = (await service.embed(asked)).values
        return found

    found = models.ask(name, work)
    assert found.keys() == reference.keys()
    for key, expected in reference.items():
        assert found[key].shape == expected.shape
        assert np.abs(found[key] - expected).max() <= TOLERANCE
        assert np.ptp(expected, axis=0).max() > 100 * TOLERANCE  # a mistake would be seen


def test_similarity_is_that_of_the_tasks_that_search(models: Models) -> None:
    """Queries and passages are embedded for those, with their instructions; texts of several tasks run together."""
    reference, texts = recorded("jina_tasks"), case_texts(read_case("jina_tasks"))

    async def work(service: PoolingService) -> Any:
        score = service.score(ScoreRequest(pairs=[(texts[1], text) for text in texts], truncation=RIGHT))
        tasks = [
            service.embed(EmbedRequest(texts=texts, prompt_name=name)) for name in ("separation", "classification")
        ]
        return await asyncio.gather(score, *tasks)

    scores, separation, classification = models.ask("jina_tasks", work)
    query, passages = reference["embeddings_retrieval.query"][1], reference["embeddings_retrieval.passage"]
    assert np.abs(scores.values - passages @ query).max() < 1e-5
    assert np.abs(separation.values - reference["embeddings_separation"]).max() <= TOLERANCE
    assert np.abs(classification.values - reference["embeddings_classification"]).max() <= TOLERANCE


@table("name", width(SCORING, ["bert_reranker", "qwen3_reranker"]))
def test_scores_are_those_of_the_reference(name: str, models: Models) -> None:
    pairs, reference = case_pairs(read_case(name)), recorded(name)

    async def work(service: PoolingService) -> Any:
        assert service.facts.kind is PoolingKind.SCORE
        scores = await service.score(ScoreRequest(pairs=pairs, truncation=RIGHT))
        raw = await service.score(ScoreRequest(pairs=pairs, truncation=RIGHT, raw=True))
        return scores.values, raw.values

    scores, logits = models.ask(name, work)
    assert np.abs(scores - reference["scores"]).max() <= TOLERANCE
    assert np.abs(logits - reference["logits"]).max() <= TOLERANCE
    assert np.ptp(reference["logits"]) > 1000 * TOLERANCE


@table("name", ["bert_classifier", "xlmr_labels"])
def test_labels_are_those_of_transformers(name: str, models: Models) -> None:
    texts, reference = case_classified(read_case(name)), recorded(name)

    async def work(service: PoolingService) -> Any:
        assert service.facts.kind is PoolingKind.CLASSIFY
        assert service.facts.labels == tuple(read_case(name)["config"]["id2label"].values())
        return [(await service.classify(ClassifyRequest(texts=texts, raw=raw))).values for raw in (False, True)]

    for found, key in zip(models.ask(name, work), ("probabilities", "logits"), strict=True):
        assert np.abs(found - reference[key]).max() <= TOLERANCE
        assert np.ptp(reference[key], axis=0).max() > 100 * TOLERANCE


@table("name", ["bert_splade", "distilbert_splade", "gte_splade"])
def test_weights_of_words_are_those_of_sentence_transformers(
    name: str, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, reference = case_texts(read_case(name)), recorded(name)["words"]
    monkeypatch.setattr("dragoman.models.pooling.model._LOGITS", 168 * 7)  # seven tokens at once

    async def work(service: PoolingService) -> Any:
        return (await service.weigh(EmbedRequest(texts=texts))).values

    for row, expected in zip(models.ask(name, work), reference, strict=True):
        found = np.zeros_like(expected)
        found[row["index"]] = row["value"]
        assert np.abs(found - expected).max() <= TOLERANCE
        assert list(row["index"]) == np.flatnonzero(found).tolist()
        assert np.ptp(expected) > 100 * TOLERANCE


@table("name", ["bert_colbert", "modernbert_colbert"])
def test_vectors_of_tokens_are_those_of_sentence_transformers(name: str, models: Models) -> None:
    texts, reference = case_texts(read_case(name)), recorded(name)

    async def work(service: PoolingService) -> Any:
        found: dict[str, Any] = {}
        for kind in ("query", "document"):
            made = await service.token_vectors(EmbedRequest(texts=texts, prompt_name=kind, truncation=RIGHT))
            found |= {f"{kind}_{index}": row for index, row in enumerate(made.values)}
        pairs = [(query, document) for query in texts for document in texts]
        scores = await service.score(ScoreRequest(pairs=pairs, truncation=RIGHT))
        return found | {"scores": scores.values.reshape(len(texts), -1)}

    found = models.ask(name, work)
    assert found.keys() == reference.keys()
    for key, expected in reference.items():
        assert found[key].shape == expected.shape
        assert np.abs(found[key] - expected).max() <= (10 if key == "scores" else 1) * TOLERANCE


def test_the_tokens_of_a_model_that_embeds_are_those_it_pools(models: Models) -> None:
    async def work(service: PoolingService) -> Any:
        texts = ["the way of water", "people"]
        beside = asyncio.gather(
            service.token_vectors(EmbedRequest(texts=texts, normalize=False)),
            service.embed(EmbedRequest(texts=texts, normalize=False)),
        )
        return await beside

    for name, pooling in (("bert_mean", "mean"), ("bert_cls", "cls"), ("qwen3_last", "last")):
        tokens, whole = models.ask(name, work, "--normalize", "false")
        for row, vector, count in zip(tokens.values, whole.values, tokens.num_tokens, strict=True):
            assert len(row) == count
            own = {"mean": row.mean(axis=0), "cls": row[0], "last": row[-1]}[pooling]
            assert own == pytest.approx(vector, abs=1e-5)


@table("name", ["bert_reranker", "qwen3_reranker"])
def test_the_best_piece_of_a_long_document_counts(name: str, models: Models) -> None:
    async def work(service: PoolingService) -> Any:
        query, document = "who", words(service.facts.max_tokens * 2)
        length = len(await service.tokenize(document))

        async def scored(document: str, max_pieces: int) -> Any:
            asked = ScoreRequest(
                pairs=[("a", "b"), (query, document)], truncation=RIGHT, max_pieces=max_pieces, raw=True
            )
            made = await service.score(asked)
            return made.values[1], made.num_tokens[1]

        cut, pieces = await scored(document, 1), [await scored(document, count) for count in (2, 3, 100)]
        short = await service.score(ScoreRequest(pairs=[(query, "water")], raw=True, max_pieces=9))
        return cut, pieces, length, short.num_tokens[0], service.facts.max_tokens

    cut, pieces, length, short, longest = models.ask(name, work)
    assert cut[1] == longest
    assert pieces[0][1] > longest
    assert [count for _, count in pieces] == sorted(count for _, count in pieces)
    assert pieces[-1][1] > length  # all of it, and the query beside each piece
    assert short < longest
    values = [cut[0], *(value for value, _ in pieces)]
    assert values == sorted(values)  # the first piece is among all
    assert values[-1] > values[0]


@table("name", ["bert_reranker", "qwen3_reranker", "bert_mean", "bert_colbert"])
def test_so_many_tokens_of_a_document_count_as_are_asked_for(name: str, models: Models) -> None:
    async def work(service: PoolingService) -> Any:
        async def scored(document: str, most: int | None, max_pieces: int = 1) -> tuple[float, int]:
            asked = ScoreRequest(
                pairs=[("who", document)], max_document_tokens=most, max_pieces=max_pieces, truncation=RIGHT, raw=True
            )
            made = await service.score(asked)
            return float(made.values[0]), made.num_tokens[0]

        around = (await scored("", None))[1]
        whole, cut = await scored(words(30), None), await scored(words(30), 9)
        length = len(await service.tokenize(words(30), add_special_tokens=False))
        return around, length, whole, cut, await scored(words(30), 10_000), await scored(words(30), 9, 2)

    around, length, whole, cut, uncut, pieces = models.ask(name, work)
    assert whole[1] == around + length
    assert cut[1] == around + 9
    assert cut[0] != whole[0]
    assert uncut == whole
    if name in ("bert_reranker", "qwen3_reranker"):  # the others take the first piece
        assert pieces[1] == 2 * (around + 9)


def test_a_long_query_leaves_half_of_the_room_to_pieces(models: Models) -> None:
    async def work(service: PoolingService) -> Any:
        longest = service.facts.max_tokens
        asked = ScoreRequest(pairs=[(words(longest), words(100))], truncation=RIGHT, max_pieces=9)
        made = await service.score(asked)
        cut = (await service.score(replace(asked, max_pieces=1))).num_tokens[0]
        return longest, cut, made.num_tokens[0]

    longest, cut, num_tokens = models.ask("bert_reranker", work)
    assert cut == longest
    assert longest < num_tokens <= 2 * longest


def test_too_many_pieces_are_refused(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.server.pooling.texts._MOST_PIECES", 2)
    asked = ScoreRequest(pairs=[("who", words(400))], truncation=RIGHT, max_pieces=100)
    error = refused(models, "bert_reranker", InvalidParameter, asked)
    assert error.param == "pairs"
    assert "at most 2 pieces" in error.message


def test_all_at_once_is_one_at_a_time(models: Models) -> None:
    texts = case_texts(read_case("bert_mean")) * 5

    async def work(service: PoolingService) -> Any:
        together = await service.embed(EmbedRequest(texts=texts, truncation=RIGHT))
        beside = await asyncio.gather(*(service.embed(EmbedRequest(texts=[one], truncation=RIGHT)) for one in texts))
        return together, np.concatenate([one.values for one in beside]), [one.num_tokens[0] for one in beside]

    together, alone, num_tokens = models.ask("bert_mean", work)
    assert np.abs(together.values - alone).max() <= 1e-6
    assert list(together.num_tokens) == num_tokens


def test_token_ids_are_taken_as_they_are(models: Models) -> None:
    async def work(service: PoolingService) -> Any:
        ids = await service.tokenize("the way of water")
        answer = await service.embed(EmbedRequest(texts=["the way of water", ids]))
        assert answer.num_tokens == (len(ids), len(ids))
        return answer.values

    first, second = models.ask("bert_mean", work)
    assert np.abs(first - second).max() <= 1e-6


def test_fewer_dimensions_are_the_first_ones_of_length_one(models: Models) -> None:
    async def work(service: PoolingService) -> Any:
        asked = [
            EmbedRequest(texts=["water"], dimensions=dimensions, normalize=normalize)
            for dimensions, normalize in ((None, False), (8, False), (8, None))
        ]
        return [(await service.embed(one)).values[0] for one in asked]

    whole, plain, normed = models.ask("bert_mean", work)
    assert np.linalg.norm(whole) != pytest.approx(1.0, abs=0.1)
    assert plain == pytest.approx(whole[:8])
    assert normed == pytest.approx(whole[:8] / np.linalg.norm(whole[:8]), abs=1e-6)


def test_a_prompt_is_put_before_the_text(models: Models) -> None:
    async def work(service: PoolingService) -> Any:
        asked = [
            EmbedRequest(texts=["people find: water"]),
            EmbedRequest(texts=["water"], prompt_name="query"),
            EmbedRequest(texts=["water"]),
        ]
        return [(await service.embed(one)).values[0] for one in asked]

    written, named, without = models.ask("bert_cls", work)
    assert named == pytest.approx(written, abs=1e-6)
    assert np.abs(without - written).max() > 0.01


@table(("truncation", "kept"), [(Truncation.RIGHT, "the way of"), (Truncation.LEFT, "of water now")])
def test_a_long_text_loses_its_end_or_its_beginning(truncation: Truncation, kept: str, models: Models) -> None:
    async def work(service: PoolingService) -> Any:
        asked = EmbedRequest(texts=["the way of water now"], truncation=truncation, max_tokens=5)
        cut, short = await service.embed(asked), await service.embed(EmbedRequest(texts=[kept]))
        assert cut.num_tokens == short.num_tokens == (5,)
        return cut.values, short.values

    cut, short = models.ask("bert_mean", work)
    assert cut == pytest.approx(short, abs=1e-6)


def test_a_text_that_is_too_long_is_refused_with_both_numbers(models: Models) -> None:
    error = refused(models, "bert_mean", CapacityError, EmbedRequest(texts=["a", words(200)]))
    assert isinstance(error, CapacityError)
    assert "text 1 has " in error.message
    assert "at most 128" in error.message
    assert error.max_model_len == 128


def test_megabytes_are_neither_tokenised_nor_put_together_for_a_few_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    encode_all = HfTokenizer.encode_all

    def counting(self: HfTokenizer, texts: Sequence[str]) -> list[list[int]]:
        sizes.append(sum(map(len, texts)))
        return encode_all(self, texts)

    monkeypatch.setattr(HfTokenizer, "encode_all", counting)
    tokenizer = load_tokenizer(write_pooling_case("bert_mean", tmp_path))
    left, longest = Truncation.LEFT, words(600_000)  # three megabytes
    facts = PoolingFacts(PoolingKind.EMBED, 128, tokenizer.vocab_size, prompts={"long": longest})
    embedding = TextPreparer(tokenizer, facts)
    scoring = replace(embedding, facts=replace(embedding.facts, kind=PoolingKind.SCORE))
    asking = replace(scoring, question=PairQuestion("a", "{instruction}{query}{document}", "b", "c"))
    long = longest[:60_000]
    embeds = [
        EmbedRequest(texts=[longest]),
        EmbedRequest(texts=[long] * 500),
        EmbedRequest(texts=["a"] * 1000, prompt_name="long"),
        EmbedRequest(texts=[(1,) * 300_000]),
    ]
    scores = [
        ScoreRequest(pairs=[(longest, "a")] * 500),
        ScoreRequest(pairs=[("a", long)] * 500),
        ScoreRequest(pairs=[("a", long + str(number)) for number in range(500)]),
    ]
    prepares: list[Callable[[], Any]] = [
        *(partial(embedding.embedded, request) for request in embeds),
        *(partial(preparer.scored, request) for request in scores for preparer in (scoring, asking)),
    ]
    for prepare in prepares:
        with pytest.raises(CapacityError):
            prepare()
    assert sum(sizes) < 20 * 65_536
    sizes.clear()
    for truncation, near in ((RIGHT, longest[:4000]), (left, longest[-4000:])):
        texts = embedding.embedded(EmbedRequest(texts=[longest, near], truncation=truncation))
        assert texts[0] == texts[1]
    embedding.embedded(EmbedRequest(texts=["a"] * 50, prompt_name="long", truncation=RIGHT))  # equal texts only once
    scoring.scored(ScoreRequest(pairs=[(long, f"a {number}") for number in range(200)], truncation=RIGHT))
    assert sum(sizes) < 20 * 65_536


@table(
    ("request_", "param", "told"),
    [
        (EmbedRequest(texts=[]), "texts", "at least one"),
        (EmbedRequest(texts=["a", (1, 99999)]), "texts", "text 1 has token 99999"),
        (EmbedRequest(texts=[()]), "texts", "no tokens"),
        (EmbedRequest(texts=["a"], prompt_name="poem"), "prompt_name", "query, document"),
        (EmbedRequest(texts=["a"], dimensions=0), "dimensions", "between 1 and 48"),
        (EmbedRequest(texts=["a"], dimensions=49), "dimensions", "between 1 and 48"),
        (EmbedRequest(texts=["a"], max_tokens=1000), "max_tokens", "between 1 and 128"),
        (ScoreRequest(pairs=[]), "pairs", "at least one"),
        (ScoreRequest(pairs=[("a", "b")], instruction="x"), "instruction", "takes none"),
    ],
)
def test_what_is_asked_wrongly_is_refused_by_name(
    request_: EmbedRequest | ScoreRequest, param: str, told: str, models: Models
) -> None:
    error = refused(models, "bert_cls", InvalidParameter, request_)
    assert error.param == param
    assert told in error.message


def test_an_instruction_changes_what_is_relevant(models: Models) -> None:
    async def work(service: PoolingService) -> Any:
        pairs = [("who", "people"), ("{document}", "{query}")]
        asked = [ScoreRequest(pairs=pairs, instruction=one, raw=True) for one in (None, "find water")]
        return [(await service.score(one)).values for one in asked]

    usual, own = models.ask("qwen3_reranker", work)
    assert np.abs(usual - own).min() > 1e-3


def test_a_model_that_embeds_scores_by_similarity(models: Models) -> None:
    async def work(service: PoolingService) -> Any:
        scores = await service.score(ScoreRequest(pairs=[("who", "water"), ("who", "people"), ("oil", "people")]))
        queries = await service.embed(EmbedRequest(texts=["who", "oil"], prompt_name="query"))
        documents = await service.embed(EmbedRequest(texts=["water", "people"], prompt_name="document"))
        return scores.values, queries.values @ documents.values.T

    scores, products = models.ask("bert_cls", work)
    assert scores == pytest.approx([products[0, 0], products[0, 1], products[1, 1]], abs=1e-6)


def test_a_model_says_what_it_does_not_do(tmp_path: Path) -> None:
    async def run() -> None:
        async with served("bert_mean", tmp_path) as composed:
            model = composed.served
            assert model.profile.pooling is model.pooling
            assert embedder(model.profile) is model.pooling
            with pytest.raises(UnsupportedFeature, match="embeds texts and does not score"):
                scorer(model.profile)
            assert scorer(model.profile, by_similarity=True) is model.pooling
            with pytest.raises(UnsupportedFeature, match="embeds texts and does not generate"):
                await model.service.generate(GenerationRequest("r", TextPrompt("a")))
            tokens = await tokenizing_service(model).tokenize(TextPrompt("the way"))
            assert len(tokens.token_ids) == 4
            assert any("embeds texts in 48 dimensions (mean, of length 1)" in fact for fact in composed.facts)
        async with served("bert_reranker", tmp_path) as composed:
            with pytest.raises(UnsupportedFeature, match="scores pairs of texts and does not embed"):
                embedder(composed.served.profile)

    asyncio.run(asyncio.wait_for(run(), 120))
    with pytest.raises(UnsupportedFeature, match="generates text and does not embed"):
        embedder(ModelProfile())
    with pytest.raises(UnsupportedFeature, match="generates text and does not score"):
        scorer(ModelProfile())


@table(
    ("line", "expected"),
    [
        ("--pooling max --normalize false", ("max", False)),
        ("--task text_embedding", ("mean", True)),
    ],
)
def test_options_decide(line: str, expected: tuple[str, bool], models: Models) -> None:
    async def work(service: PoolingService) -> Any:
        return service.facts.pooling, service.facts.is_normalized

    assert models.ask("bert_mean", work, *line.split()) == expected


def test_the_operator_can_shorten_texts(models: Models) -> None:
    async def work(service: PoolingService) -> Any:
        answer = await service.embed(EmbedRequest(texts=[words(50)], truncation=RIGHT))
        return service.facts.max_tokens, answer.num_tokens

    assert models.ask("bert_mean", work, "--max-model-len", "16") == (16, (16,))


def test_an_engine_that_died_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with served("bert_mean", tmp_path) as composed:
            service = composed.served.pooling
            assert service is not None
            before = await service.embed(EmbedRequest(texts=["water"]))
            with monkeypatch.context() as patch:
                patch.setattr("dragoman.models.pooling.model.graph_inputs", _fail)
                with pytest.raises(ServerError, match="no memory left"):
                    await service.embed(EmbedRequest(texts=["water"]))
            assert not composed.served.engine.health().is_alive
            await composed.renew(lambda stage, fraction: None)
            after = await service.embed(EmbedRequest(texts=["water"]))
            assert np.array_equal(before.values, after.values)
            assert composed.served.engine.stats().num_restarts == 1

    asyncio.run(asyncio.wait_for(run(), 120))


def _fail(*_: object) -> Any:
    raise RuntimeError("no memory left")
