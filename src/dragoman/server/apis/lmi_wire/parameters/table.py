"""The generation parameters of the LMI dialect: one row each, for every backend profile and version.

Does: say how LMI and TGI call the parameters of `server.parameters`, which profiles have them, and what their documents
change; declare those that nobody else has. Parsing, error messages, the `x-dragoman-ignored` header and
docs/dialects/lmi.md are derived from these rows. Does not: read values (`reader` does).
Imported by `reader`, `docs` and the description. Sources: the LMI schema pages v0.31 and v0.26, the TGI API.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dragoman.server.apis.lmi_wire.parameters.values import ValueType as T
from dragoman.server.bounds import Bounds
from dragoman.server.parameters import PARAMETERS, Need, neutral_value
from dragoman.server.samplers import FIELDS

BACKENDS = ("auto", "vllm", "lmi-dist", "trtllm", "scheduler", "deepspeed")
TGI = "tgi"  # the profile of TGI's own routes; its names are also taken on LMI routes with tgi_compat
VERSIONS = ("0.26", "0.31", "0.32")

_EVERY = (*BACKENDS, TGI)
_VLLM = ("auto", "vllm", "lmi-dist")
_TRT = ("auto", "trtllm")
_PENALISING = (*_VLLM, "trtllm")
_CUTTING = ("auto", "lmi-dist", "deepspeed")
_ANY_NUMBER = Bounds()


@dataclasses.dataclass(frozen=True, slots=True)
class Param:
    """One parameter in some profiles.

    `field`: of `Parameters`, which it sets. `default`: for all profiles; `defaults`: by profile or profile/version.
    `bounds`: the range of a number. `limit`: the field of `Limits` that is the largest value instead.
    """

    name: str
    type: T
    effect: str
    field: str
    profiles: tuple[str, ...] = BACKENDS
    default: Any = None
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    bounds: Bounds = _ANY_NUMBER
    limit: str = ""
    needs: Need = Need.NOTHING

    def default_for(self, profile: str, version: str) -> Any:
        """The default in that profile and version."""
        return self.defaults.get(f"{profile}/{version}", self.defaults.get(profile, self.default))


_TYPES: Mapping[type, T] = {bool: T.BOOLEAN, int: T.INTEGER, float: T.FLOAT, list: T.STRINGS}


def _shared(name: str, profiles: tuple[str, ...] = BACKENDS, *, of: str = "", **changes: Any) -> Param:
    """The row of a parameter that other APIs have as well, `of` its neutral name; `changes`: what LMI says otherwise.

    Whole numbers have no upper end here but that of their type.
    """
    neutral = of or name
    common, value = PARAMETERS[neutral], neutral_value(neutral)
    kind = changes.get("type", _TYPES.get(type(value), T.INTEGER))
    bounds = common.bounds or _ANY_NUMBER
    if kind is T.INTEGER:
        bounds = Bounds(bounds.low, None)
    told = {
        "type": kind,
        "effect": common.effect.replace("`", ""),
        "field": neutral,
        "default": value,
        "aliases": common.aliases,
        "bounds": bounds,
        "limit": common.limit,
        "needs": common.needs,
    }
    return Param(name, profiles=profiles, **{**told, **changes})


def _own(name: str, kind: T, effect: str, profiles: tuple[str, ...] = BACKENDS, of: str = "", **more: Any) -> Param:
    """The row of a parameter that is declared here only; `of`: the field that it sets, its name if absent."""
    return Param(name, kind, effect, of or name, profiles, **more)


_ABOVE_0_TO_1 = Bounds(0.0, 1.0, is_low_open=True)
_SEED: Mapping[str, Any] = {
    "default": None,
    "bounds": PARAMETERS["seed"].bounds,
}  # torch takes signed and unsigned 64-bit seeds
_TRT_LENGTH = {"trtllm/0.26": 128}
_TGI_ALWAYS: Mapping[str, Any] = {"needs": Need.NOTHING}  # TGI samples as soon as one of them is given

_SAMPLING = (
    _own("do_sample", T.BOOLEAN, "sample instead of taking the most likely token", _EVERY),
    _shared("seed", **_SEED),
    _shared("seed", (TGI,), **{**_SEED, "bounds": Bounds(0, 2**64 - 1)}),
    _shared("temperature", defaults={"trtllm/0.26": 0.8}),
    _shared("temperature", (TGI,), effect="divides the logits", bounds=Bounds(0.0, is_low_open=True), **_TGI_ALWAYS),
    _shared("top_k", defaults={"vllm": -1, "lmi-dist/0.31": -1, "lmi-dist/0.32": -1, "trtllm": 5}),
    _shared("top_k", (TGI,), effect="only the k most likely tokens", bounds=Bounds(1), **_TGI_ALWAYS),
    _shared(
        "top_p",
        _TRT,
        effect=f"{PARAMETERS['top_p'].effect}; 0 together with top_k 0 is greedy",
        defaults={"trtllm": 0.85},
    ),
    _shared("top_p", ("vllm", "lmi-dist", "scheduler", "deepspeed"), bounds=_ABOVE_0_TO_1),
    _shared("top_p", (TGI,), bounds=_ABOVE_0_TO_1, **_TGI_ALWAYS),
    _shared("min_p", _VLLM),
    _shared("typical_p", _CUTTING),
    _shared("typical_p", (TGI,), **_TGI_ALWAYS),
    _shared("repetition_penalty", _EVERY),
    _shared("presence_penalty", _PENALISING),
    _shared("frequency_penalty", (*_PENALISING, TGI)),
    _shared("logit_bias", _VLLM, type=T.LOGIT_BIAS, default=None),
    _shared("bad_sequences", _TRT, of="bad_words", default=None, aliases=("bad_words_list",)),
    *(_shared(name, _EVERY) for name in FIELDS),
)

_LENGTH = (
    _shared("max_new_tokens", of="max_tokens", default=30, defaults=_TRT_LENGTH),
    _shared("max_new_tokens", (TGI,), of="max_tokens", default=100),
    _shared("max_tokens", _VLLM, effect="the same as max_new_tokens, which wins", default=30),
    _shared(
        "request_output_len",
        ("trtllm",),
        of="max_tokens",
        effect="the same as max_new_tokens, which wins",
        default=30,
        defaults=_TRT_LENGTH,
    ),
    _shared("min_tokens", _VLLM),
    _shared("thinking_token_budget", _VLLM),
    _shared("min_length", _TRT, of="min_tokens", defaults={"trtllm/0.31": 1, "trtllm/0.32": 1}),
    _shared("truncate", (*_CUTTING, TGI), of="truncate_prompt_tokens"),
)

_STOPPING = (
    _shared("stop_sequences", of="stop", effect="texts that end the answer and are not part of it", default=None),
    _shared(
        "stop", type=T.STOP, effect="the same as stop_sequences, and added to them; a boolean is ignored", default=()
    ),
    _shared("stop", (TGI,), default=(), aliases=("stop_sequences",)),
    _shared("stop_words_list", _TRT, of="stop", effect="the same as stop_sequences", default=None),
    _shared("stop_token_ids", _VLLM, type=T.TOKEN_IDS, default=()),
    _shared("include_stop_str_in_output", _VLLM, of="include_stop_in_text"),
    _shared("ignore_eos_token", _VLLM, of="ignore_eos", aliases=("ignore_eos",)),
)

_SEQUENCES = (
    _shared("n", _VLLM, effect="sequences returned", default=None, needs=Need.ONE_ANSWER),
    _shared("best_of", (*_VLLM, TGI)),
    _shared("num_beams", (*_VLLM, "trtllm", "scheduler")),
    _own("use_beam_search", T.BOOLEAN, "best_of is the width of a beam search", _VLLM, default=False),
    _shared("length_penalty", _PENALISING),
    _shared("early_stopping", _VLLM, type=T.EARLY_STOPPING),
)

_GRAMMAR = (
    _own("response_format", T.RESPONSE_FORMAT, "the answer is JSON, or JSON of a schema", _VLLM, "grammar"),
    _own("guided_json", T.GUIDED_JSON, "the answer is JSON of this schema", _VLLM, "grammar"),
    _own("guided_regex", T.REGEX, "the answer matches this regular expression", _VLLM, "grammar"),
    _own("guided_choice", T.CHOICE, "the answer is one of these texts", _VLLM, "grammar"),
    _own("guided_grammar", T.LARK, "the answer is a sentence of this grammar", _VLLM, "grammar"),
    _own("grammar", T.TGI_GRAMMAR, "the answer is JSON of a schema or matches a regex", ("auto", TGI)),
)

_WITH_DETAILS: Mapping[str, Any] = {"needs": Need.DETAILS}
_ANSWER = (
    _own("details", T.BOOLEAN, "the answer carries details; on by default with tgi_compat", _EVERY, needs=Need.ROLLING),
    _own("return_full_text", T.BOOLEAN, "the answer begins with the prompt", _EVERY, default=False),
    _own(
        "decoder_input_details",
        T.BOOLEAN,
        "details.prefill lists the prompt's tokens",
        (*_VLLM, TGI),
        default=False,
        **_WITH_DETAILS,
    ),
    _shared(
        "prompt_logprobs",
        _VLLM,
        effect="details.prefill lists the prompt's tokens, each with this many alternatives",
        **_WITH_DETAILS,
    ),
    _own(
        "top_n_tokens",
        T.INTEGER,
        "details.top_tokens lists this many alternatives for every token",
        _EVERY,
        bounds=Bounds(0),
        limit="max_logprobs",
        **_WITH_DETAILS,
    ),
    _shared("logprobs", effect="the same as top_n_tokens, which wins", **_WITH_DETAILS),
    _shared("skip_special_tokens", _VLLM),
    _shared("spaces_between_special_tokens", _VLLM),
    _own("stream", T.BOOLEAN, "the same as the body's stream, which wins", default=False),
    _own("output_formatter", T.STRING, "json, jsonlines or sse: the form of this answer"),
    _own("adapter_id", T.STRING, "the adapter to answer with", (TGI,), needs=Need.ADAPTERS),
)

TABLE: tuple[Param, ...] = (*_SAMPLING, *_LENGTH, *_STOPPING, *_SEQUENCES, *_GRAMMAR, *_ANSWER)


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
