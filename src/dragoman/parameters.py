"""The generation parameters of all APIs: their ranges, effects, and conditions, by their neutral names.

Each API declares its names for them and its document's changes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import msgspec

from dragoman.types import FurtherSampling, GenerationRequest, Limits, SamplingParams, TokenPrompt

UINT32_MAX = 4294967295
MAX_BREAKERS = 16
MAX_BREAKER_CHARS = 40  # llama.cpp cuts them there

FURTHER: tuple[str, ...] = FurtherSampling.__struct_fields__
"""The samplers in no API's document, which all APIs take that take further fields: DRY, top-n sigma, XTC."""

NEUTRAL_SAMPLING = SamplingParams()
_NEUTRAL_REQUEST = GenerationRequest("", TokenPrompt(()))


@dataclass(frozen=True, slots=True)
class Bounds:
    """The allowed interval of a number; None = unbounded on that side."""

    low: float | None = None
    high: float | None = None
    is_low_open: bool = False
    is_high_open: bool = False
    note: str = ""  # a further remark about the allowed values

    def problem(self, value: float) -> Literal["negative", "low", "high"] | None:
        """The side on which `value` is out of bounds. "negative": "low" where only that is forbidden."""
        if self.low is not None and (value < self.low or (self.is_low_open and value == self.low)):
            return "negative" if value < 0 <= self.low else "low"
        if self.high is not None and (value > self.high or (self.is_high_open and value == self.high)):
            return "high"
        return None

    def __str__(self) -> str:
        low = "" if self.low is None else f"greater than {self.low}" if self.is_low_open else f"at least {self.low}"
        high = "" if self.high is None else f"less than {self.high}" if self.is_high_open else f"at most {self.high}"
        if low and high and not (self.is_low_open or self.is_high_open):
            return f"between {self.low} and {self.high}{self.note}"
        return " and ".join(part for part in (low, high) if part) + self.note


class Need(StrEnum):
    """The condition of a parameter's effect; otherwise it is reported as ignored."""

    NOTHING = "always"
    SAMPLING = "when sampling"
    DRY = "if dry_multiplier and dry_penalty_last_n are not 0"
    XTC = "when sampling with xtc_probability"
    BEAMS = "in a beam search"
    DETAILS = "with details"
    ONE_ANSWER = "when not streaming"  # a stream has only one sequence per prompt
    ROLLING = "not in dynamic batch mode"
    ADAPTERS = "if there are adapters"
    THINKING = "if the model's reasoning can be separated from its answer"
    GUESSING = "if tokens are guessed, and not with beams or prompt_logprobs"
    LOOKUP = "if tokens are guessed by looking them up in the text"


@dataclass(frozen=True, slots=True)
class Parameter:
    """`bounds` None = not a number. `limit`: the operator's limit on its value. `aliases`: clients' other names."""

    effect: str
    bounds: Bounds | None = None
    needs: Need = Need.NOTHING
    limit: str = ""
    aliases: tuple[str, ...] = ()


_PROBABILITY = Bounds(0.0, 1.0)
_PENALTY = Bounds(-2.0, 2.0)

PARAMETERS: Mapping[str, Parameter] = {
    "temperature": Parameter("divides the logits; 0 is greedy", Bounds(0.0), Need.SAMPLING),
    "top_p": Parameter("only the most likely tokens whose probabilities sum to p", _PROBABILITY, Need.SAMPLING),
    "top_k": Parameter("only the k most likely tokens; -1 and 0 mean all", Bounds(-1, UINT32_MAX), Need.SAMPLING),
    "min_p": Parameter("only tokens with at least this share of the largest probability", _PROBABILITY, Need.SAMPLING),
    "typical_p": Parameter(
        "locally typical sampling with this probability mass", Bounds(0.0, 1.0, is_low_open=True), Need.SAMPLING
    ),
    "repetition_penalty": Parameter("divides the logits of tokens in prompt and answer", Bounds(0.0, is_low_open=True)),
    "presence_penalty": Parameter("subtracted from the logits of tokens already generated", _PENALTY),
    "frequency_penalty": Parameter("subtracted from a token's logit once for each time it was generated", _PENALTY),
    "logit_bias": Parameter("added to the logits of these token ids"),
    "bad_words": Parameter("texts that are never generated"),
    "allowed_token_ids": Parameter("only these tokens may be generated"),
    "seed": Parameter("makes sampling repeatable; drawn at random when absent", Bounds(-(2**63), 2**64 - 1)),
    "max_tokens": Parameter("maximum number of tokens to generate", Bounds(1, UINT32_MAX)),
    "min_tokens": Parameter("no end of sequence before this many tokens", Bounds(0, UINT32_MAX)),
    "stop": Parameter("texts that end the answer"),
    "stop_token_ids": Parameter("tokens that end the answer"),
    "include_stop_in_text": Parameter("the stop text is part of the answer"),
    "ignore_eos": Parameter("do not end at the end-of-sequence token"),
    "n": Parameter("answers to each prompt", Bounds(1), limit="max_best_of"),
    "best_of": Parameter("number of sequences drawn; the `n` most likely are returned", Bounds(1), limit="max_best_of"),
    "num_beams": Parameter("beam search of this width", Bounds(1), limit="max_best_of"),
    "num_beam_groups": Parameter(
        "groups of beams that are kept different; divides the beam width", Bounds(1), Need.BEAMS
    ),
    "diversity_penalty": Parameter(
        "penalty for a token that another group chose at the same step; alone, it makes every beam a group",
        Bounds(),
        Need.BEAMS,
    ),
    "length_penalty": Parameter("beam scores are divided by length to this power", Bounds(), Need.BEAMS),
    "early_stopping": Parameter(
        "end a beam search when it has the requested number of finished beams", needs=Need.BEAMS
    ),
    "truncate_prompt_tokens": Parameter("keep only the last tokens of the prompt", Bounds(1, UINT32_MAX)),
    "logprobs": Parameter("returns this number of alternatives for every token", Bounds(0), limit="max_logprobs"),
    "prompt_logprobs": Parameter(
        "returns this number of candidates for every token of the prompt", Bounds(0), limit="max_logprobs"
    ),
    "skip_special_tokens": Parameter("special tokens have no text"),
    "spaces_between_special_tokens": Parameter("special tokens with text are separated by spaces"),
    "num_assistant_tokens": Parameter(  # 0 = none for this request
        "draft tokens per step; not together with `assistant_confidence_threshold`",
        Bounds(0, Limits().max_assistant_tokens),
        Need.GUESSING,
    ),
    "assistant_confidence_threshold": Parameter(
        "the draft stops below this confidence", Bounds(0.0, 1.0, is_low_open=True), Need.GUESSING
    ),
    "max_ngram_size": Parameter(
        "longest run of equal tokens to search for in the text", Bounds(1, UINT32_MAX), Need.LOOKUP
    ),
    "thinking_token_budget": Parameter(
        "maximum number of reasoning tokens, then reasoning is ended; 0: none, -1: no limit",
        Bounds(-1, UINT32_MAX),
        Need.THINKING,
    ),
    "dry_multiplier": Parameter(
        "DRY: penalty for a token that continues a repetition of the allowed length; 0 = off",
        Bounds(0.0, 1000.0),
        Need.DRY,
    ),
    "dry_base": Parameter(
        "DRY: factor of the penalty for each further token of the repetition", Bounds(1.0, 100.0), Need.DRY
    ),
    "dry_allowed_length": Parameter("DRY: shorter repetitions have no penalty", Bounds(1, UINT32_MAX), Need.DRY),
    "dry_penalty_last_n": Parameter(
        "DRY: number of last tokens to search, including the prompt; -1 = all, 0 = off",
        Bounds(-1, UINT32_MAX),
        Need.DRY,
    ),
    "dry_sequence_breakers": Parameter(
        f"DRY: texts that end a repetition, at most {MAX_BREAKERS} of {MAX_BREAKER_CHARS} characters",
        needs=Need.DRY,
    ),
    "top_n_sigma": Parameter(
        "only tokens with logits at most this number of standard deviations below the largest; -1 and 0 = all",
        Bounds(-1.0, 100.0),
        Need.SAMPLING,
        aliases=("nsigma",),
    ),
    "xtc_probability": Parameter(
        "XTC: probability of excluding the likeliest tokens except the last of them; 0 = never",
        _PROBABILITY,
        Need.SAMPLING,
    ),
    "xtc_threshold": Parameter("XTC: minimum probability of these tokens", _PROBABILITY, Need.XTC),
}

ALIASES: Mapping[str, str] = {alias: name for name, parameter in PARAMETERS.items() for alias in parameter.aliases}


class SamplingFields(msgspec.Struct, kw_only=True):
    """The samplers' parameters in bodies, with equal names in several APIs; None = not given."""

    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    top_n_sigma: float | None = None
    nsigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None


Asked = tuple[str, str, Need, Any]
"""The client's name of a parameter, the parameter's, the condition of its effect, the value."""


def idle_parameters(rows: Iterable[Asked], lacking: Collection[Need]) -> dict[str, str]:
    """The parameters without effect because of `lacking` conditions, by the client's names, with reasons."""
    return {
        name: f"it acts only {needs}"
        for name, parameter, needs, value in rows
        if needs in lacking and asks_for_something(parameter, value)
    }


def asks_for_something(parameter: str, value: Any) -> bool:
    """False for a neutral value, and for a temperature that itself makes the request greedy."""
    if parameter in ("top_k", "top_n_sigma"):
        return (value or 0) > 0
    if parameter in PARAMETERS and parameter not in ("temperature", "logprobs"):
        return value is not None and value != neutral_value(parameter)
    return bool(value) and (parameter not in PARAMETERS or value != neutral_value(parameter))


def lacking_needs(sampling: SamplingParams, *, thinks: bool, proposer: str | None = None) -> set[Need]:
    """The conditions that do not hold. `thinks`: the model has reasoning. `proposer`: the kind of speculation."""
    is_drawn = sampling.temperature > 0.0 and sampling.num_beams == 1
    is_guessed = proposer is not None and sampling.num_beams == 1 and sampling.prompt_logprobs is None
    holds = {
        Need.SAMPLING: is_drawn,
        Need.DRY: sampling.has_dry,
        Need.XTC: is_drawn and sampling.xtc_probability > 0.0,
        Need.BEAMS: sampling.num_beams > 1,
        Need.THINKING: thinks,
        Need.GUESSING: is_guessed,
        Need.LOOKUP: is_guessed and proposer != "draft",
    }
    return {need for need, does_hold in holds.items() if not does_hold}


def neutral_value(name: str) -> Any:
    name = ALIASES.get(name, name)
    value = getattr(NEUTRAL_SAMPLING if hasattr(NEUTRAL_SAMPLING, name) else _NEUTRAL_REQUEST, name)
    return list(value) if isinstance(value, tuple) else value


def bounds_of(*names: str, **renamed: str) -> dict[str, Bounds]:
    """The ranges of parameters, by their names or an API's (its name = the parameter's)."""
    spelled = {**dict(zip(names, names, strict=True)), **renamed}
    found = {name: PARAMETERS[ALIASES.get(neutral, neutral)].bounds for name, neutral in spelled.items()}
    return {name: bounds for name, bounds in found.items() if bounds is not None}


DURATION = "a number of seconds, or a duration like 10m or 1h30m"
"""The durations that people and clients may write. Source: Go's time.ParseDuration, which Ollama's clients write for."""

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_MAX_CHARS = 1_000  # of a duration
# A number has one reading only: with two, a long row of digits would take quadratic time.
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_FORM = re.compile(rf"[-+]?(?:(?:{_PART.pattern})+|\d+(?:\.\d+)?)", re.ASCII)


def seconds_of(text: str) -> float:
    """The seconds of a duration, which may be negative. Raises: ValueError for another form."""
    form = _FORM.fullmatch(text) if len(text) <= _MAX_CHARS else None
    if form is None:
        raise ValueError(text)
    if form[1] is None:  # without a unit
        return float(text)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    return -seconds if text.startswith("-") else seconds
