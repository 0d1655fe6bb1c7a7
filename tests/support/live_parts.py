"""Grammars and stop strings that bring what would be made of them, for tests that need one of their own."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from dragoman.engine.base import EngineTools
from dragoman.types import EngineRequest, Grammar, StopCriterion, StopStrings, TokenMasker


@dataclass(frozen=True)
class LiveGrammar(Grammar):
    """Stands for a grammar that compiles to `masker`."""

    masker: TokenMasker | None = None


class LiveStops(StopStrings, frozen=True):
    """Stands for stop strings that `criterion` finds."""

    criterion: StopCriterion | None = None


def with_masker(request: EngineRequest, masker: TokenMasker | None) -> EngineRequest:
    """The request, following this masker."""
    grammar = None if masker is None else LiveGrammar("lark", masker=masker)
    return msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, grammar=grammar))


def with_criterion(request: EngineRequest, criterion: StopCriterion) -> EngineRequest:
    """The request, ended by this criterion."""
    return msgspec.structs.replace(request, stop=LiveStops((), criterion=criterion))


def masker_of(request: EngineRequest) -> TokenMasker | None:
    """The masker that the request's grammar brings, None without one."""
    grammar = request.sampling.grammar
    return None if grammar is None else compile_live(grammar)


def criterion_of(request: EngineRequest) -> StopCriterion | None:
    """The criterion that the request's stop strings bring, None without one."""
    return None if request.stop is None else watch_live(request.stop, request.sampling.min_tokens)


def compile_live(grammar: Grammar) -> TokenMasker:
    """The masker that the grammar brings."""
    assert isinstance(grammar, LiveGrammar)
    assert grammar.masker is not None
    return grammar.masker


def watch_live(stop: StopStrings, min_tokens: int) -> StopCriterion:
    """The criterion that the stop strings bring."""
    assert isinstance(stop, LiveStops)
    assert stop.criterion is not None
    return stop.criterion


LIVE_TOOLS = EngineTools(compile_live, watch_live)
