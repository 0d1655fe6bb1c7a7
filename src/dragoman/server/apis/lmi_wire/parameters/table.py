"""The generation parameters of the LMI dialect: one row each, for every backend profile and version.

Reading, the `x-dragoman-ignored` header, docs/dialects/lmi.md and the OpenAPI document are derived from these rows.
Sources: the LMI schema pages v0.31 and v0.26, the TGI API.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dragoman.parameters import FURTHER, PARAMETERS, Bounds, Need, neutral_value

BACKENDS = ("auto", "vllm", "lmi-dist", "trtllm", "scheduler", "deepspeed")
TGI = "tgi"  # the profile of TGI's own routes; its names are also taken on LMI routes with tgi_compat
VERSIONS = ("0.26", "0.31", "0.32")

_EVERY = (*BACKENDS, TGI)
_VLLM = ("auto", "vllm", "lmi-dist")
_TRT = ("auto", "trtllm")
_PENALISING = (*_VLLM, "trtllm")
_CUTTING = ("auto", "lmi-dist", "deepspeed")


@dataclasses.dataclass(frozen=True, slots=True)
class Param:
    """One parameter in some profiles.

    `field`: of `LmiBody`, which it sets. `default`: for all profiles; `defaults`: by profile or profile/version.
    `bounds`: the range of a number; None = as everywhere. `skips_booleans`: these are legal and have no meaning.
    """

    name: str
    field: str
    profiles: tuple[str, ...]
    effect: str
    default: Any = None
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    bounds: Bounds | None = None
    needs: Need = Need.NOTHING
    skips_booleans: bool = False

    def default_for(self, profile: str, version: str) -> Any:
        return self.defaults.get(f"{profile}/{version}", self.defaults.get(profile, self.default))


def _row(name: str, profiles: tuple[str, ...] = BACKENDS, *, of: str = "", **changes: Any) -> Param:
    """`of`: the field that it sets, its name if absent. `changes`: what LMI says otherwise."""
    field = of or name
    told: dict[str, Any] = {}
    if field in PARAMETERS:
        common = PARAMETERS[field]
        told = {"effect": common.effect.replace("`", ""), "aliases": common.aliases, "needs": common.needs}
        told["default"] = neutral_value(field)
    return Param(name, field, profiles, **{**told, **changes})


_ABOVE_0_TO_1 = Bounds(0.0, 1.0, is_low_open=True)
_TRT_LENGTH = {"trtllm/0.26": 128}
_TGI_ALWAYS: Mapping[str, Any] = {"needs": Need.NOTHING}  # TGI samples as soon as one of them is given

_SAMPLING = (
    _row("do_sample", _EVERY, effect="sample instead of taking the most likely token"),
    _row("seed"),
    _row("seed", (TGI,), bounds=Bounds(0, 2**64 - 1)),
    _row("temperature", defaults={"trtllm/0.26": 0.8}),
    _row("temperature", (TGI,), effect="divides the logits", bounds=Bounds(0.0, is_low_open=True), **_TGI_ALWAYS),
    _row("top_k", defaults={"vllm": -1, "lmi-dist/0.31": -1, "lmi-dist/0.32": -1, "trtllm": 5}),
    _row("top_k", (TGI,), effect="only the k most likely tokens", bounds=Bounds(1), **_TGI_ALWAYS),
    _row(
        "top_p",
        _TRT,
        effect=f"{PARAMETERS['top_p'].effect}; 0 together with top_k 0 is greedy",
        defaults={"trtllm": 0.85},
    ),
    _row("top_p", ("vllm", "lmi-dist", "scheduler", "deepspeed"), bounds=_ABOVE_0_TO_1),
    _row("top_p", (TGI,), bounds=_ABOVE_0_TO_1, **_TGI_ALWAYS),
    _row("min_p", _VLLM),
    _row("typical_p", _CUTTING),
    _row("typical_p", (TGI,), **_TGI_ALWAYS),
    _row("repetition_penalty", _EVERY),
    _row("presence_penalty", _PENALISING),
    _row("frequency_penalty", (*_PENALISING, TGI)),
    _row("logit_bias", _VLLM, default=None),
    _row("bad_sequences", _TRT, of="bad_words", default=None, aliases=("bad_words_list",)),
    *(_row(name, _EVERY) for name in FURTHER),
)

_LENGTH = (
    _row("max_new_tokens", of="max_tokens", default=30, defaults=_TRT_LENGTH),
    _row("max_new_tokens", (TGI,), of="max_tokens", default=100),
    _row("max_tokens", _VLLM, effect="the same as max_new_tokens, which wins", default=30),
    _row(
        "request_output_len",
        ("trtllm",),
        of="max_tokens",
        effect="the same as max_new_tokens, which wins",
        default=30,
        defaults=_TRT_LENGTH,
    ),
    _row("min_tokens", _VLLM),
    _row("thinking_token_budget", _VLLM),
    _row("min_length", _TRT, of="min_tokens", defaults={"trtllm/0.31": 1, "trtllm/0.32": 1}),
    _row("truncate", (*_CUTTING, TGI), of="truncate_prompt_tokens"),
)

_STOPPING = (
    _row("stop_sequences", of="stop", effect="texts that end the answer and are not part of it", default=None),
    _row(
        "stop",
        effect="the same as stop_sequences, and added to them; a boolean is ignored",
        default=None,
        skips_booleans=True,
    ),
    _row("stop", (TGI,), default=None, aliases=("stop_sequences",)),
    _row("stop_words_list", _TRT, of="stop", effect="the same as stop_sequences", default=None),
    _row("stop_token_ids", _VLLM, default=None),
    _row("include_stop_str_in_output", _VLLM, effect=PARAMETERS["include_stop_in_text"].effect, default=False),
    _row("ignore_eos_token", _VLLM, of="ignore_eos", aliases=("ignore_eos",)),
)

_SEQUENCES = (
    _row("n", _VLLM, effect="sequences returned", default=None, needs=Need.ONE_ANSWER),
    _row("best_of", (*_VLLM, TGI)),
    _row("num_beams", (*_VLLM, "trtllm", "scheduler")),
    _row("use_beam_search", _VLLM, effect="best_of is the width of a beam search", default=False),
    _row("length_penalty", _PENALISING),
    _row("early_stopping", _VLLM),
)

_GRAMMAR = (
    _row("response_format", _VLLM, effect="the answer is JSON, or JSON of a schema"),
    _row("guided_json", _VLLM, effect="the answer is JSON of this schema"),
    _row("guided_regex", _VLLM, effect="the answer matches this regular expression"),
    _row("guided_choice", _VLLM, effect="the answer is one of these texts"),
    _row("guided_grammar", _VLLM, effect="the answer is a sentence of this grammar"),
    _row("grammar", ("auto", TGI), of="response_format", effect="the answer is JSON of a schema or matches a regex"),
)

_WITH_DETAILS: Mapping[str, Any] = {"needs": Need.DETAILS}
_ANSWER = (
    _row("details", _EVERY, effect="the answer carries details; on by default with tgi_compat", needs=Need.ROLLING),
    _row("return_full_text", _EVERY, effect="the answer begins with the prompt", default=False),
    _row(
        "decoder_input_details",
        (*_VLLM, TGI),
        effect="details.prefill lists the prompt's tokens",
        default=False,
        **_WITH_DETAILS,
    ),
    _row(
        "prompt_logprobs",
        _VLLM,
        effect="details.prefill lists the prompt's tokens, each with this number of alternatives",
        **_WITH_DETAILS,
    ),
    _row(
        "top_n_tokens",
        _EVERY,
        effect="details.top_tokens lists this number of alternatives for every token",
        **_WITH_DETAILS,
    ),
    _row("logprobs", effect="the same as top_n_tokens, which wins", **_WITH_DETAILS),
    _row("skip_special_tokens", _VLLM),
    _row("spaces_between_special_tokens", _VLLM),
    _row("stream", effect="the same as the body's stream, which wins", default=False),
    _row("output_formatter", effect="json, jsonlines or sse: the form of this answer"),
    _row("adapter_id", (TGI,), effect="the adapter to answer with", needs=Need.ADAPTERS),
)

TABLE: tuple[Param, ...] = (*_SAMPLING, *_LENGTH, *_STOPPING, *_SEQUENCES, *_GRAMMAR, *_ANSWER)


def rows_for(profile: str, *, with_tgi_names: bool = False) -> dict[str, Param]:
    """`disable` (dynamic batch) takes what `auto` takes. TGI's names: where the profile lacks them with LMI's own ranges."""
    name = "auto" if profile == "disable" else profile
    rows = [row for row in TABLE if name in row.profiles]
    if with_tgi_names:
        own = {row.name for row in rows}
        rows += [row for row in TABLE if TGI in row.profiles and row.name not in own]
    by_name: dict[str, Param] = {}
    for row in rows:
        by_name |= {spelling: row for spelling in (row.name, *row.aliases) if spelling not in by_name}
    return by_name
