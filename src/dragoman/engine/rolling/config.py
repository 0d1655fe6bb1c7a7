"""The rolling engine's limits, as plain values.

Does: hold and check them. Does not: know options or their sources (`compose` translates). Made once, read by the engine's
parts; immutable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dragoman.engine.rolling.blocks.block_manager import MIN_CHUNK

PrefixCacheMode = Literal["prompt", "all", "off"]


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """Defaults for requests that do not set their own.

    `num_assistant_tokens`: guesses per step; None = as many as pay. `max_ngram_size`: the longest run of equal tokens that a
    copy is found by; None = unlimited. `max_batch`: with more running sequences, fixed numbers of guesses do not apply, and
    as many are verified as pay. `context_share`: the estimated cost of a token of context, as a share of the smallest step.
    `pads_steps`: whether steps may have dummy rows if that takes less time.
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

    `max_batch_tokens`: tokens computed in one step. `max_num_seqs`: sequences that run at once. `prefix_cache`: the blocks
    that later prompts reuse. `prompt`: those filled by a prompt alone; `all`: also those filled while decoding; `off`: none.
    With `all`, reuse never changes a bit of an answer if decoding writes the same as a prompt.

    `max_prompt_logprob_rows`: prompt positions per step whose logits are computed for prompt log-probabilities; each costs a
    row of the vocabulary's size. `max_slowdown`: the bound on a step's time for the sake of prompts, as a multiple of a
    decode step's (`pacer`); 0 = no limit. `assumed_output_tokens`: the assumed length of answers, up to their max_tokens,
    before any are known (`forecast`). `max_model_len`: a shorter context than the model's; None = the model's.

    `repeats_steps`: a step may be computed again after a failure; False if layers only keep what the next step needs.
    `has_states`: generated tokens are computed again one by one, as layers with states round differently for several at
    once. `speculation`: defaults for speculative decoding.
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
