"""What the models of tests/models/pooling give for their texts, beside what was recorded of them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from dragoman.compose import late_writing
from dragoman.models.pooling.model import LoadedPooler, load_pooler
from dragoman.models.pooling.recipe import read_recipe
from dragoman.models.profile import ModelOptions
from dragoman.models.storage.constants import WeightType
from dragoman.server.pooling.base import (
    ClassifyRequest,
    EmbedRequest,
    PoolingFacts,
    PoolingKind,
    ScoreRequest,
    Truncation,
)
from dragoman.server.pooling.service import normalized
from dragoman.server.pooling.texts import PairQuestion, TextPreparer
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from tests.support.pooling_checkpoint import (
    Array,
    case_classified,
    case_pairs,
    case_texts,
    read_case,
    recorded,
    write_pooling_case,
)


def preparer_of(directory: Path, model: LoadedPooler) -> TextPreparer:
    """What makes tokens of the texts for a model."""
    recipe = model.recipe
    facts = PoolingFacts(
        kind=PoolingKind(recipe.kind),
        max_tokens=model.max_tokens,
        vocab_size=model.facts.vocab_size,
        dimensions=model.dimensions,
        prompts=recipe.prompts if recipe.late is None else {"query": "", "document": ""},
        default_prompt_name=recipe.default_prompt_name,
    )
    template = recipe.template
    question = None
    if template is not None:
        question = PairQuestion(template.before, template.body, template.after, template.instruction)
    tokenizer = load_tokenizer(directory)
    late = None if recipe.late is None else late_writing(recipe.late, tokenizer)
    return TextPreparer(tokenizer, facts, question, recipe.lowers_case, late)


def vectors(name: str, weight_type: WeightType) -> tuple[Array, Array]:
    """What a case's model gives for its texts or pairs, before the activation of scores; and what was recorded."""
    case = read_case(name)
    with tempfile.TemporaryDirectory() as root:
        directory = write_pooling_case(name, Path(root))
        recipe = read_recipe(directory)
        model = load_pooler(directory, recipe, ModelOptions(weight_type))
        preparer = preparer_of(directory, model)
        if recipe.kind == "score":
            pairs = preparer.scored(ScoreRequest(pairs=case_pairs(case), truncation=Truncation.RIGHT))
            return model.run([pair for (pair,) in pairs])[:, 0], recorded(name)["logits"]
        if recipe.kind == "classify":
            asked = ClassifyRequest(texts=case_classified(case), truncation=Truncation.RIGHT)
            return model.run(preparer.classified(asked)), recorded(name)["logits"]
        if recipe.kind == "sparse":
            rows = model.run(preparer.embedded(EmbedRequest(texts=case_texts(case), truncation=Truncation.RIGHT)))
            weights = np.zeros((len(rows), model.dimensions), dtype=np.float32)
            for place, row in enumerate(rows):
                weights[place, row["index"]] = row["value"]
            return weights, recorded(name)["words"]
        if recipe.kind == "tokens":
            asked_for = EmbedRequest(texts=case_texts(case), truncation=Truncation.RIGHT, prompt_name="query")
            made = model.run(preparer.written(asked_for))
            return normalized(np.concatenate(made)), np.concatenate(
                [recorded(name)[f"query_{index}"] for index in range(len(made))]
            )
        texts = preparer.embedded(EmbedRequest(texts=case_texts(case), truncation=Truncation.RIGHT))
        found = model.run(texts)
        return normalized(found) if recipe.is_normalized else found, recorded(name)["embeddings"]


def error(name: str, weight_type: WeightType) -> float:
    """How far they are apart, as a part of the recorded one's length."""
    found, reference = vectors(name, weight_type)
    return float(np.linalg.norm(found - reference) / np.linalg.norm(reference))
