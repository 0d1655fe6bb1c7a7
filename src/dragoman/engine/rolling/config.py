"""The rolling engine's limits, as plain values. `compose` translates the options into them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dragoman.engine.rolling.blocks.block_manager import MIN_CHUNK

PrefixCacheMode = Literal["prompt", "all", "off"]


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """Defaults for requests that do not set their own.

    `num_assistant_tokens`: guesses per step; None = as many as pay. `max_batch`: with more sequences, fixed numbers of
    guesses do not apply. `context_share`: the estimated cost of a token of context, as a share of the smallest step.
    `pads_steps`: steps may have dummy rows if that takes less time.
    """

    num_assistant_tokens: int | None = None
    max_ngram_size: int | None = None
    max_batch: int = 8
    context_share: float = 0.0
    pads_steps: bool = False

    def __post_init__(self) -> None:
        for name in ("num_assistant_tokens", "max_ngram_size", "max_batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}, must be at least 1")


@dataclass(frozen=True, slots=True)
class RollingConfig:
    """Limits of the rolling engine.

    `prefix_cache`: the blocks that later prompts reuse: of prompts, also of answers (`all`), or none. With `all`, bits
    stay the same only if decoding writes the same as a prompt. `max_prompt_logprob_rows`: per step. `max_slowdown`: see
    `pacing`; 0 = no limit. `assumed_output_tokens`: the length of answers before any are known. `max_model_len` None =
    the model's.

    `repeats_steps`: a step may be computed again after a failure; False if layers only keep what the next step needs.
    `has_states`: generated tokens are computed again one by one, as layers with states round differently for several at
    once.
    """

    max_batch_tokens: int = 2048
    max_num_seqs: int = 64
    prefix_cache: PrefixCacheMode = "prompt"
    max_prompt_logprob_rows: int = 256
    max_slowdown: float = 0.0
    assumed_output_tokens: int = 256
    max_model_len: int | None = None
    repeats_steps: bool = True
    has_states: bool = False
    speculation: SpeculationConfig = SpeculationConfig()

    def __post_init__(self) -> None:
        least_of = {
            "max_batch_tokens": MIN_CHUNK,
            "max_num_seqs": 1,
            "max_prompt_logprob_rows": MIN_CHUNK,
            "assumed_output_tokens": 1,
        }
        for name, least in least_of.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least {least}")
        if self.prefix_cache not in ("prompt", "all", "off"):
            raise ValueError(f"prefix_cache is {self.prefix_cache!r}, must be one of: prompt, all, off")
