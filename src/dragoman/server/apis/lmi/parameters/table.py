"""The generation parameters of the LMI dialect: one row each, for every backend profile and version.

Does: declare names, aliases, types, ranges, defaults and what each row sets. Parsing, error messages, the
`x-dragoman-ignored` header and docs/dialects/lmi.md are derived from these rows. Does not: read values (`lmi_params`).
Imported by `lmi_params` and `lmi_docs`. Sources: the LMI schema pages v0.31 and v0.26, the TGI API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dragoman.server.apis.lmi.parameters.values import ValueType as T
from dragoman.server.samplers import FIELDS, NEUTRAL_SAMPLING

BACKENDS = ("auto", "vllm", "lmi-dist", "trtllm", "scheduler", "deepspeed")
TGI = "tgi"  # the profile of TGI's own routes; its names are also taken on LMI routes with tgi_compat
VERSIONS = ("0.26", "0.31", "0.32")

_EVERY = (*BACKENDS, TGI)
_VLLM = ("auto", "vllm", "lmi-dist")
_TRT = ("auto", "trtllm")


class Need(StrEnum):
    """What has to hold for a parameter to have an effect; where it does not, the parameter is reported as ignored."""

    NOTHING = "always"
    SAMPLING = "when sampling"
    DRY = "where dry_multiplier and dry_penalty_last_n are not 0"
    XTC = "when sampling with xtc_probability"
    BEAMS = "with num_beams > 1"
    DETAILS = "with details"
    ONE_ANSWER = "when not streaming"  # several sequences per prompt have no place in a stream
    ROLLING = "not in dynamic batch mode"
    ADAPTERS = "where there are adapters"
    THINKING = "where the model's reasoning can be told from its answer"


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter in some profiles.

    `target`: the field of `Parameters` it sets. `default`: for all profiles; `defaults`: by profile or profile/version.
    `low`, `high`: the range, ends included unless `is_low_open`. `limit`: the field of `Limits` that bounds it instead.
    """

    name: str
    type: T
    effect: str
    target: str = ""
    profiles: tuple[str, ...] = BACKENDS
    default: Any = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    is_low_open: bool = False
    limit: str = ""
    needs: Need = Need.NOTHING

    @property
    def field(self) -> str:
        """The field of `Parameters` that this row sets."""
        return self.target or self.name

    def default_for(self, profile: str, version: str) -> Any:
        """The default in that profile and version."""
        return self.defaults.get(f"{profile}/{version}", self.defaults.get(profile, self.default))


_SAMPLING = (
    Param("do_sample", T.BOOLEAN, "sample instead of taking the most likely token", profiles=_EVERY),
    Param(
        "seed",
        T.INTEGER,
        "makes sampling repeatable; drawn at random when absent",
        low=-(2**63),
        high=2**64 - 1,  # torch takes signed and unsigned 64-bit seeds
    ),
    Param("seed", T.INTEGER, "makes sampling repeatable", profiles=(TGI,), low=0, high=2**64 - 1),
    Param(
        "temperature",
        T.FLOAT,
        "divides the logits; 0 is greedy",
        default=1.0,
        defaults={"trtllm/0.26": 0.8},
        low=0,
        needs=Need.SAMPLING,
    ),
    Param("temperature", T.FLOAT, "divides the logits", profiles=(TGI,), default=1.0, low=0, is_low_open=True),
    Param(
        "top_k",
        T.INTEGER,
        "only the k most likely tokens; 0 and -1 mean all",
        default=0,
        defaults={"vllm": -1, "lmi-dist/0.31": -1, "lmi-dist/0.32": -1, "trtllm": 5},
        low=-1,
        needs=Need.SAMPLING,
    ),
    Param("top_k", T.INTEGER, "only the k most likely tokens", profiles=(TGI,), default=0, low=1),
    Param(
        "top_p",
        T.FLOAT,
        "only the most likely tokens whose probabilities add up to p; 0 together with top_k 0 is greedy",
        profiles=_TRT,
        default=1.0,
        defaults={"trtllm": 0.85},
        low=0,
        high=1,
        needs=Need.SAMPLING,
    ),
    Param(
        "top_p",
        T.FLOAT,
        "only the most likely tokens whose probabilities add up to p",
        profiles=("vllm", "lmi-dist", "scheduler", "deepspeed"),
        default=1.0,
        low=0,
        high=1,
        is_low_open=True,
        needs=Need.SAMPLING,
    ),
    Param(
        "top_p",
        T.FLOAT,
        "only the most likely tokens whose probabilities add up to p",
        profiles=(TGI,),
        default=1.0,
        low=0,
        high=1,
        is_low_open=True,
    ),
    Param(
        "min_p",
        T.FLOAT,
        "only tokens at least this likely relative to the most likely one",
        profiles=_VLLM,
        default=0.0,
        low=0,
        high=1,
        needs=Need.SAMPLING,
    ),
    Param(
        "typical_p",
        T.FLOAT,
        "locally typical sampling with this probability mass",
        profiles=("auto", "lmi-dist", "deepspeed"),
        default=1.0,
        low=0,
        high=1,
        is_low_open=True,
        needs=Need.SAMPLING,
    ),
    Param(
        "typical_p",
        T.FLOAT,
        "locally typical sampling with this probability mass",
        profiles=(TGI,),
        default=1.0,
        low=0,
        high=1,
        is_low_open=True,
    ),
)

_PENALTIES = (
    Param(
        "repetition_penalty",
        T.FLOAT,
        "divides the logits of tokens seen in prompt and answer",
        profiles=_EVERY,
        default=1.0,
        low=0,
        is_low_open=True,
    ),
    Param(
        "presence_penalty",
        T.FLOAT,
        "subtracted from the logits of tokens already generated",
        profiles=(*_VLLM, "trtllm"),
        default=0.0,
        low=-2,
        high=2,
    ),
    Param(
        "frequency_penalty",
        T.FLOAT,
        "subtracted from the logits of tokens, once for each time they were generated",
        profiles=(*_VLLM, "trtllm", TGI),
        default=0.0,
        low=-2,
        high=2,
    ),
    Param("logit_bias", T.LOGIT_BIAS, "added to the logits of these tokens", profiles=_VLLM),
    Param(
        "bad_sequences",
        T.STRINGS,
        "texts that are never generated",
        target="bad_words",
        profiles=_TRT,
        aliases=("bad_words_list",),
    ),
)

_NEEDS = {"top_n_sigma": Need.SAMPLING, "xtc_probability": Need.SAMPLING, "xtc_threshold": Need.XTC}
_FURTHER = tuple(
    Param(
        name,
        {float: T.FLOAT, int: T.INTEGER, tuple: T.STRINGS}[type(value)],
        field.effect.replace("`", ""),
        profiles=_EVERY,
        default=value,
        aliases=field.aliases,
        low=field.bounds.low if field.bounds else None,
        high=field.bounds.high if field.bounds and isinstance(value, float) else None,
        needs=_NEEDS.get(name, Need.DRY),
    )
    for name, field in FIELDS.items()
    for value in [getattr(NEUTRAL_SAMPLING, name)]
)

_LENGTH = (
    Param(
        "max_new_tokens",
        T.INTEGER,
        "most tokens to generate",
        target="max_tokens",
        default=30,
        defaults={"trtllm/0.26": 128},
        low=1,
    ),
    Param("max_new_tokens", T.INTEGER, "most tokens to generate", "max_tokens", profiles=(TGI,), default=100, low=1),
    Param("max_tokens", T.INTEGER, "the same as max_new_tokens, which wins", profiles=_VLLM, default=30, low=1),
    Param(
        "request_output_len",
        T.INTEGER,
        "the same as max_new_tokens, which wins",
        target="max_tokens",
        profiles=("trtllm",),
        default=30,
        defaults={"trtllm/0.26": 128},
        low=1,
    ),
    Param("min_tokens", T.INTEGER, "no end of sequence before this many tokens", profiles=_VLLM, default=0, low=0),
    Param(
        "thinking_token_budget",
        T.INTEGER,
        "most tokens of reasoning, whose end is forced then; 0 is none, -1 as many as the model likes",
        profiles=_VLLM,
        low=-1,
        needs=Need.THINKING,
    ),
    Param(
        "min_length",
        T.INTEGER,
        "no end of sequence before this many tokens",
        target="min_tokens",
        profiles=_TRT,
        default=0,
        defaults={"trtllm/0.31": 1, "trtllm/0.32": 1},
        low=0,
    ),
    Param(
        "truncate",
        T.INTEGER,
        "keep only the last tokens of the prompt",
        profiles=("auto", "lmi-dist", "deepspeed", TGI),
        low=1,
    ),
)

_STOPPING = (
    Param("stop_sequences", T.STRINGS, "texts that end the answer and are not part of it", target="stop"),
    Param("stop", T.STOP, "the same as stop_sequences, and added to them; a boolean is ignored", default=()),
    Param("stop", T.STRINGS, "texts that end the answer", profiles=(TGI,), default=(), aliases=("stop_sequences",)),
    Param("stop_words_list", T.STRINGS, "the same as stop_sequences", target="stop", profiles=_TRT),
    Param("stop_token_ids", T.TOKEN_IDS, "tokens that end the answer", profiles=_VLLM, default=()),
    Param(
        "include_stop_str_in_output",
        T.BOOLEAN,
        "the stop text is part of the answer",
        target="include_stop",
        profiles=_VLLM,
        default=False,
    ),
    Param(
        "ignore_eos_token",
        T.BOOLEAN,
        "do not end at the end-of-sequence token",
        target="ignore_eos",
        profiles=_VLLM,
        default=False,
        aliases=("ignore_eos",),
    ),
)

_SEQUENCES = (
    Param(
        "n",
        T.INTEGER,
        "sequences returned",
        profiles=_VLLM,
        low=1,
        limit="max_best_of",
        needs=Need.ONE_ANSWER,
    ),
    Param(
        "best_of",
        T.INTEGER,
        "sequences drawn, of which the n most likely are returned",
        profiles=(*_VLLM, TGI),
        low=1,
        limit="max_best_of",
    ),
    Param(
        "num_beams",
        T.INTEGER,
        "beam search of this width",
        profiles=(*_VLLM, "trtllm", "scheduler"),
        default=1,
        low=1,
        limit="max_best_of",
    ),
    Param("use_beam_search", T.BOOLEAN, "best_of is the width of a beam search", profiles=_VLLM, default=False),
    Param(
        "length_penalty",
        T.FLOAT,
        "beam scores are divided by length to this power",
        profiles=(*_VLLM, "trtllm"),
        default=1.0,
        needs=Need.BEAMS,
    ),
    Param(
        "early_stopping",
        T.EARLY_STOPPING,
        "end as soon as there are num_beams finished beams",
        profiles=_VLLM,
        default=False,
        needs=Need.BEAMS,
    ),
)

_GRAMMAR = (
    Param("response_format", T.RESPONSE_FORMAT, "the answer is JSON, or JSON of a schema", "grammar", profiles=_VLLM),
    Param("guided_json", T.GUIDED_JSON, "the answer is JSON of this schema", "grammar", profiles=_VLLM),
    Param("guided_regex", T.REGEX, "the answer matches this regular expression", "grammar", profiles=_VLLM),
    Param("guided_choice", T.CHOICE, "the answer is one of these texts", "grammar", profiles=_VLLM),
    Param("guided_grammar", T.LARK, "the answer is a sentence of this grammar", "grammar", profiles=_VLLM),
    Param("grammar", T.TGI_GRAMMAR, "the answer is JSON of a schema or matches a regex", profiles=("auto", TGI)),
)

_ANSWER = (
    Param(
        "details",
        T.BOOLEAN,
        "the answer carries details; on by default with tgi_compat",
        profiles=_EVERY,
        needs=Need.ROLLING,
    ),
    Param("return_full_text", T.BOOLEAN, "the answer begins with the prompt", profiles=_EVERY, default=False),
    Param(
        "decoder_input_details",
        T.BOOLEAN,
        "details.prefill lists the prompt's tokens",
        profiles=(*_VLLM, TGI),
        default=False,
        needs=Need.DETAILS,
    ),
    Param(
        "prompt_logprobs",
        T.INTEGER,
        "details.prefill lists the prompt's tokens, each with this many alternatives",
        profiles=_VLLM,
        low=0,
        limit="max_logprobs",
        needs=Need.DETAILS,
    ),
    Param(
        "top_n_tokens",
        T.INTEGER,
        "details.top_tokens lists this many alternatives for every token",
        profiles=_EVERY,
        low=0,
        limit="max_logprobs",
        needs=Need.DETAILS,
    ),
    Param(
        "logprobs",
        T.INTEGER,
        "the same as top_n_tokens, which wins",
        low=0,
        limit="max_logprobs",
        needs=Need.DETAILS,
    ),
    Param("skip_special_tokens", T.BOOLEAN, "special tokens have no text", profiles=_VLLM, default=True),
    Param(
        "spaces_between_special_tokens",
        T.BOOLEAN,
        "special tokens that have text are set off by spaces",
        profiles=_VLLM,
        default=True,
    ),
    Param("stream", T.BOOLEAN, "the same as the body's stream, which wins", default=False),
    Param("output_formatter", T.STRING, "json, jsonlines or sse: the form of this answer"),
    Param("adapter_id", T.STRING, "the adapter to answer with", profiles=(TGI,), needs=Need.ADAPTERS),
)

TABLE: tuple[Param, ...] = (*_SAMPLING, *_PENALTIES, *_FURTHER, *_LENGTH, *_STOPPING, *_SEQUENCES, *_GRAMMAR, *_ANSWER)


def rows_for(profile: str, *, with_tgi_names: bool = False) -> dict[str, Param]:
    """The rows of a profile by every name they answer to; `disable` (dynamic batch) takes what `auto` takes.

    With `with_tgi_names` TGI's parameters are taken too, where the profile does not have them with LMI's own ranges.
    """
    name = "auto" if profile == "disable" else profile
    rows = [row for row in TABLE if name in row.profiles]
    if with_tgi_names:
        own = {row.name for row in rows}
        rows += [row for row in TABLE if TGI in row.profiles and row.name not in own]
    by_name: dict[str, Param] = {}
    for row in rows:
        by_name |= {spelling: row for spelling in (row.name, *row.aliases) if spelling not in by_name}
    return by_name
