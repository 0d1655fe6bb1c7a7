"""Makes pooling engines: computes a model's memory, loads it, puts the engine together."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace
from math import prod

from dragoman.engine.base import EngineTools, MemoryNeeds
from dragoman.engine.factory import BuiltEngine, EngineOptionError, EngineSetup
from dragoman.engine.pooling.engine import MAX_WAITING_TOKENS, PoolingEngine
from dragoman.engine.rolling.options import RollingOptions
from dragoman.models import ModelOptions
from dragoman.models.pooling.facts import Recipe
from dragoman.models.pooling.model import LoadedPooler, load_pooler, text_family
from dragoman.models.pooling.recipe import chosen_of, read_recipe
from dragoman.models.sources.opening import stored_weights

logger = logging.getLogger(__name__)

_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5}
_BESIDE = 1.1  # buffers and machine code
_GENERATING = ("draft_model", "lora", "enable_lora", "merge_lora")
"""Options that change how text is generated."""


class PoolingFactory:
    def needs(self, setup: EngineSetup) -> MemoryNeeds:
        recipe, options = recipe_of(setup), RollingOptions.among(setup.options)
        family = text_family(setup.model_dir, recipe)
        size = _BYTES[options.model_options.weight_type]
        total = 0.0
        for name, shape in stored_weights(setup.model_dir).shapes().items():
            is_table = (
                len(shape) == 2 and shape[0] >= min(family.facts.vocab_size, 30_000) and re.search("embed|wte", name)
            )
            total += prod(shape) * ((max(size, 2.0) if is_table else size) if len(shape) > 1 else 4.0)
        if recipe.sparse is not None:  # the embedding table a second time, for the words' weights
            total += family.facts.vocab_size * family.facts.hidden_size * size
        return MemoryNeeds(int(total * _BESIDE))

    def load(self, setup: EngineSetup) -> LoadedPooling:
        options, recipe = RollingOptions.among(setup.options), recipe_of(setup)
        for name in _GENERATING:
            if getattr(options, name, None):
                raise EngineOptionError(name, f"must be left out: model {setup.model_dir.name} generates no text")
        stored = replace(options.model_options, has_neighbours=setup.has_neighbours)
        pooler = load_pooler(setup.model_dir, recipe, stored, setup.progress)
        return LoadedPooling(pooler, options, stored, setup.options.get("max_queued_tokens"))


@dataclass(frozen=True, slots=True)
class LoadedPooling:
    pooler: LoadedPooler
    options: RollingOptions
    stored: ModelOptions
    max_waiting_tokens: int | None = None

    def build(self, tools: EngineTools, memory_bytes: int) -> BuiltEngine:
        facts, recipe, longest = self.pooler.facts, self.pooler.recipe, self.pooler.max_tokens
        asked = self.options.max_model_len
        if asked is not None and asked > facts.max_tokens:
            raise EngineOptionError("max_model_len", f"must be at most {facts.max_tokens}, the model's longest text")
        longest = longest if asked is None else asked
        engine = PoolingEngine(
            self.pooler,
            vocab_size=facts.vocab_size,
            max_tokens=longest,
            batch_tokens=self.options.max_batch_tokens,
            max_waiting_tokens=self.max_waiting_tokens or MAX_WAITING_TOKENS,
        )
        for departure in recipe.departures:
            logger.warning("%s: %s", facts.architecture, departure)
        told = (
            facts.architecture,
            f"{self.stored.weight_type} weights",
            f"{longest} tokens of one text",
            *_words(recipe, self.pooler.dimensions),
            *recipe.departures,
        )
        return BuiltEngine(engine, told, self.stored.weight_type, pooling=engine, row_size=self.pooler.dimensions)


def _words(recipe: Recipe, dimensions: int) -> list[str]:
    match recipe.kind:
        case "score":
            return [f"scores pairs of texts ({recipe.activation})"]
        case "classify":
            return [f"classifies texts, {dimensions} labels ({recipe.activation})"]
        case "sparse":
            return [f"weighs {dimensions} words of texts"]
        case "tokens":
            return [f"embeds tokens of texts in {dimensions} dimensions, for late interaction"]
    length = ", of length 1" if recipe.is_normalized else ""
    return [f"embeds texts in {dimensions} dimensions ({' and '.join(recipe.pooling)}{length})"]


def recipe_of(setup: EngineSetup) -> Recipe:
    return read_recipe(setup.model_dir, *chosen_of(setup.options))


factory = PoolingFactory()
