"""Puts a rolling engine together from a loaded model: runner, sampler, proposer, limits.

Does: connect. Does not: load, or choose sizes. Called by the factory, on a worker thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.engine.base import EngineTools
from dragoman.engine.factory import EngineOptionError
from dragoman.engine.rolling.adapters.bank import AdapterBank
from dragoman.engine.rolling.adapters.table import AdapterTable
from dragoman.engine.rolling.engine import RollingEngine
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.forward.runner import ModelRunner
from dragoman.engine.rolling.needs import adapter_slots, limits_of
from dragoman.engine.rolling.options import RollingOptions
from dragoman.engine.rolling.pictures.embedder import PictureEmbedder
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.speculate.draft_model import DraftModelProposer
from dragoman.engine.rolling.speculate.prompt_lookup import PromptLookupProposer
from dragoman.engine.rolling.speculate.proposer import Proposer, SpeculationConfig
from dragoman.engine.rolling.step_log import StepLog
from dragoman.models import LoadedModel


def assemble(
    options: RollingOptions,
    model: LoadedModel,
    draft: LoadedModel | None,
    num_blocks: Sequence[int],
    max_model_len: int,
    tools: EngineTools,
) -> RollingEngine:
    """The engine, not started yet. Allocates the cache: `num_blocks` of each kind.

    Raises: EngineOptionError if the draft model does not fit, or the step log cannot be written.
    """
    table = bank = None
    if model.adapters is not None:
        slots, rank = adapter_slots(options, model.adapters)
        bank = AdapterBank(model.adapters, slots, rank)
        table = AdapterTable(model.adapters, bank, takes_more=options.enable_lora)
    runner = OpenVinoRunner(model, num_blocks, bank)
    limits = limits_of(options, model.facts, model.profile, max_model_len)
    proposer = _proposer(options, draft, runner)
    embedder = None if model.tower is None else PictureEmbedder(model.tower)
    log = None if options.step_log is None else StepLog(options.step_log)
    watched: ModelRunner = runner if log is None else log.watch(runner)
    engine = RollingEngine(watched, Sampler(runner.vocab_size), limits, proposer, tools, embedder, table)
    if log is not None:
        engine.log_steps(log)
    return engine


def _proposer(options: RollingOptions, draft: LoadedModel | None, runner: OpenVinoRunner) -> Proposer | None:
    """Who guesses for speculative decoding; None = nobody."""
    limits = SpeculationConfig(options.num_assistant_tokens, options.max_ngram_size, options.speculative_max_batch)
    if draft is None:
        return PromptLookupProposer(limits) if options.prompt_lookup else None
    try:
        return DraftModelProposer(OpenVinoRunner(draft, runner.pools[0].num_blocks), runner, limits)
    except ValueError as error:
        raise EngineOptionError("draft_model", str(error)) from error
