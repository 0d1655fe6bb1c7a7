"""Llama with windows in some of its layers, for tests of what lies between the windows of real families."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from dragoman.engine.rolling import needs
from dragoman.models import loader
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts
from dragoman.models.families.llama import Llama


@contextmanager
def windows_in_layers(windows: Sequence[int]) -> Iterator[None]:
    """Every Llama checkpoint that is looked at or loaded meanwhile has these windows in its layers, 0 = none."""

    class Windowed(Llama):
        def attention_facts(self, config: Config, index: int) -> AttentionFacts:
            return replace(super().attention_facts(config, index), window=windows[index])

    def read_model(raw_config: dict[str, Any], *, sees: bool = False) -> Windowed:
        return Windowed(Config(raw_config))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "read_model", read_model)
        patch.setattr(needs, "read_model", read_model)
        yield
