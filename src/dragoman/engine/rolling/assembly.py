"""Puts a rolling engine together from a loaded model. Called by the factory, on a worker thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dragoman.engine.base import EngineTools
from dragoman.engine.factory import EngineOptionError
from dragoman.engine.rolling.adapters import AdapterBank, AdapterTable
from dragoman.engine.rolling.engine import RollingEngine
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.needs import adapter_slots, limits_of
from dragoman.engine.rolling.options import RollingOptions
from dragoman.engine.rolling.pictures import PictureEmbedder
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.speculate.copied_text import OwnTextProposer, RecentTextsProposer
from dragoman.engine.rolling.speculate.draft_model import DraftModelProposer
from dragoman.engine.rolling.speculate.proposer import ForcedTokensProposer, Proposer
from dragoman.engine.rolling.step_log import StepLog
from dragoman.engine.rolling.stored_prefixes.store import Storage, Stored
from dragoman.models import LoadedModel

_ATTENTION_FACTOR = 2.5
_WEIGHT_BYTES = {"int4": 0.56, "int8": 1.0, "f32": 4.0}


def assemble(
    options: RollingOptions,
    model: LoadedModel,
    draft: LoadedModel | None,
    num_blocks: Sequence[int],
    max_model_len: int,
    tools: EngineTools,
    stored: Stored | None = None,
) -> RollingEngine:
    """The engine, not started yet, which closes `stored`. Raises: EngineOptionError."""
    table = bank = None
    if model.adapters is not None:
        slots, rank = adapter_slots(options, model.adapters)
        bank = AdapterBank(model.adapters, slots, rank)
        table = AdapterTable(model.adapters, bank, takes_more=options.enable_lora)
    runner = OpenVinoRunner(model, num_blocks, bank)
    limits = limits_of(options, model.facts, model.profile, max_model_len)
    proposers = _proposers(options, model, draft, runner)
    embedder = None if model.tower is None else PictureEmbedder(model.tower)
    limits = replace(limits, speculation=replace(limits.speculation, context_share=_context_share(model)))
    log = None if options.step_log is None else StepLog(options.step_log)
    storage = None if stored is None else Storage(stored.store, runner, stored.model)
    sampler = Sampler(runner.vocab_size)
    engine = RollingEngine(runner, sampler, limits, proposers, tools, embedder, table, storage)
    if log is not None:
        engine.log_steps(log)
    return engine


def _proposers(
    options: RollingOptions, model: LoadedModel, draft: LoadedModel | None, runner: OpenVinoRunner
) -> list[Proposer]:
    """The proposers for speculative decoding, the surest first."""
    takes_back = not (model.facts.state_layers or model.facts.convolution_layers)  # without extra memory
    if options.speculation == "off" or not (options.speculates or takes_back):
        return []
    proposers: list[Proposer] = [ForcedTokensProposer()]
    if options.speculation != "draft":
        proposers.append(OwnTextProposer())
    if options.speculation in ("auto", "suffix"):
        proposers.append(RecentTextsProposer(shares_callers=options.speculation_across_keys))
    if draft is not None:
        proposers.append(_draft_proposer(draft, runner))
    return proposers


def _context_share(model: LoadedModel) -> float:
    """The cost of a token of context, as a share of a step with one token: both wait for memory (measured)."""
    facts, profile = model.facts, model.profile
    matrices = 12 * facts.hidden_size**2 * len(facts.layers) + facts.vocab_size * facts.hidden_size
    weights = matrices * _WEIGHT_BYTES.get(profile.weights.stored_type, 2.0)
    return _ATTENTION_FACTOR * sum(model.block_bytes) / profile.block_size / weights


def _draft_proposer(draft: LoadedModel, runner: OpenVinoRunner) -> Proposer:
    try:
        return DraftModelProposer(OpenVinoRunner(draft, runner.pools[0].num_blocks), runner)
    except ValueError as error:
        raise EngineOptionError("draft_model", str(error)) from error
