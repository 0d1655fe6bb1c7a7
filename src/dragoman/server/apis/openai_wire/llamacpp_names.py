"""llama.cpp's own parameters, for its routes and those of OpenAI's shape. Source: llama.cpp, tools/server/README.md."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.parameters import FURTHER, NEUTRAL_SAMPLING, Bounds
from dragoman.server.apis.openai_wire.fields import check_count, check_number, shown
from dragoman.server.apis.openai_wire.grammars import GrammarFields
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.types import LineLimits, SamplingParams

# --- samplers ---------------------------------------------------------------------------------------------------------

OF_SAMPLERS: Mapping[str, tuple[str, ...]] = {
    "penalties": (
        "repetition_penalty",
        "repeat_penalty",
        "repeat_last_n",
        "presence_penalty",
        "frequency_penalty",
    ),
    "dry": tuple(name for name in FURTHER if name.startswith("dry_")),
    "temperature": ("temperature",),
    "top_n_sigma": ("top_n_sigma", "nsigma"),
    "top_k": ("top_k",),
    "top_p": ("top_p",),
    "min_p": ("min_p",),
    "typ_p": ("typical_p",),
    "infill": (),
    "xtc": ("xtc_probability", "xtc_threshold"),
}
"""The parameters of our samplers, under every name that they have; the samplers in llama.cpp's order."""
ORDER = tuple(OF_SAMPLERS)
LACKING = ("adaptive_p",)
BY_DEFAULT = tuple(name for name in ORDER if name != "infill")
_OTHER_NAMES = {"temp": "temperature", "typical": "typ_p", "typical_p": "typ_p", "typ": "typ_p"}
_OTHER_NAMES |= {"top-k": "top_k", "top-p": "top_p", "nucleus": "top_p", "min-p": "min_p", "top-n-sigma": "top_n_sigma"}
_LETTERS = {
    "e": "penalties", "d": "dry", "s": "top_n_sigma", "k": "top_k", "y": "typ_p", "p": "top_p", "m": "min_p", "x": "xtc",
    "t": "temperature", "i": "infill", "a": "adaptive_p",
}  # fmt: skip
_MAX_LISTED = 100  # samplers, however often each
NOT_LISTED = "its sampler is not one of samplers"
UNORDERED = f"those that are listed are on, in this order: {', '.join(ORDER)}; there is no {' or '.join(LACKING)}"
OF_SHIFTS = frozenset(("n_keep", "n_discard", "num_keep"))  # the last is Ollama's
NO_MIROSTAT = "there is no Mirostat sampling here"
NO_SHIFT = "the server does not shift contexts"
WHOLE_TEXT = "penalties see the whole text; -1 means that, 0 turns them off"


def read_samplers(samplers: str | list[str] | None, profile: Profile) -> tuple[str, ...]:
    """The samplers' own names, as they were listed. Raises: InvalidParameter for one that nobody has."""
    if samplers is None:
        return BY_DEFAULT
    check_count("samplers", len(samplers), _MAX_LISTED, profile)
    names = [_LETTERS.get(letter, letter) for letter in samplers] if isinstance(samplers, str) else samplers
    known = [_OTHER_NAMES.get(name, name) for name in names]
    allowed = (*ORDER, *LACKING)
    for position, name in enumerate(known):
        if name not in allowed:
            place = f"samplers[{position}]"
            raise profile.fault(
                place, "value", f"{place} must be one of {', '.join(allowed)}, got {shown(names[position])}"
            )
    return tuple(known)


def in_order(samplers: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in ORDER if name in samplers)


def line_limits(n_indent: int | None, t_max_predict_ms: int | None) -> LineLimits | None:
    max_ms = t_max_predict_ms or 0
    if max_ms <= 0 and not n_indent:
        return None
    return LineLimits(n_indent or 0, max_ms / 1000 if max_ms > 0 else None)


# --- adapters ---------------------------------------------------------------------------------------------------------


class LlamaLora(msgspec.Struct):
    """The scale at which an adapter is applied; `id`: its place in the list of adapters."""

    id: int
    scale: float = 1.0


def applied_adapter(name: str, lora: list[LlamaLora], names: Sequence[str], profile: Profile) -> str:
    """The one adapter of scale 1 in a list, "" if there is none. Raises: InvalidParameter."""
    applied: list[str] = []
    for position, entry in enumerate(lora):
        place = f"{name}[{position}]" if name else f"[{position}]"
        if not 0 <= entry.id < len(names):
            allowed = f"between 0 and {len(names) - 1}" if names else "left out, as there are no adapters"
            raise profile.fault(f"{place}.id", "value", f"{place}.id must be {allowed}, got {entry.id}")
        if entry.scale not in (0.0, 1.0):
            message = f"{place}.scale must be 0 or 1, as adapters are applied whole, got {entry.scale}"
            raise profile.fault(f"{place}.scale", "value", message)
        if entry.scale:
            applied.append(names[entry.id])
    if len(applied) > 1:
        message = f"{name or 'the list'} must have at most one adapter of scale 1, got {', '.join(applied)}"
        raise profile.fault(name or "id", "count", message)
    return applied[0] if applied else ""


# --- in bodies of OpenAI's shape ----------------------------------------------------------------------------------------

ALIASES: Mapping[str, tuple[str, ...]] = {
    "n_predict": ("max_tokens", "max_completion_tokens", "max_output_tokens"),
    "n_cmpl": ("n",),
    "n_probs": ("logprobs", "top_logprobs"),
    "repeat_penalty": ("repetition_penalty",),
    "return_tokens": ("return_token_ids",),
}
"""Its names of what bodies of OpenAI's shape call otherwise; where one of these is given as well, that one counts."""

EFFECTS: Mapping[str, str] = {
    "n_predict": "llama.cpp's name of `max_tokens`, which overrides it; -1: no limit, 0: only compute the prompt",
    "n_cmpl": "llama.cpp's name of `n`, which overrides it",
    "n_probs": "llama.cpp's: log-probabilities of so many candidates for each token; `logprobs` overrides it",
    "repeat_penalty": "llama.cpp's name of `repetition_penalty`, which overrides it",
    "repeat_last_n": "llama.cpp's: 0 turns penalties off, -1 lets them see the whole text, as they always do",
    "samplers": "llama.cpp's: the samplers that are on, by name or letter; the model's own values for others do not count",
    "grammar": "llama.cpp's: the answer is a sentence of this grammar, in GBNF, or in Lark after %llguidance",
    "json_schema": "llama.cpp's: the answer is JSON of this schema; {} is any object",
    "cache_prompt": "llama.cpp's: false neither uses nor keeps cached parts of the prompt",
    "return_tokens": "llama.cpp's name of `return_token_ids`, which overrides it",
    "n_keep": "llama.cpp's: tokens of the prompt that stay when a full context is shifted; -1: all",
    "n_discard": "llama.cpp's: of the others, the number that goes then; 0: half",
    "n_indent": "llama.cpp's: the answer ends before a line that is indented by fewer blanks and tabs",
    "t_max_predict_ms": "llama.cpp's: the answer ends at the first end of a line that comes later after the first token",
    "post_sampling_probs": "llama.cpp's: log-probabilities are of what each token was drawn from",
    "lora": "llama.cpp's: the adapter of this answer, by its place in the list; a scale is 0 or 1",
}

_OVERRIDDEN = "another name of the same is given as well, which counts"
REASONS: Mapping[str, str] = {
    **dict.fromkeys(ALIASES, _OVERRIDDEN),
    "repeat_last_n": WHOLE_TEXT,
    **dict.fromkeys(OF_SHIFTS, NO_SHIFT),
    "post_sampling_probs": "no log-probabilities are asked for",
}


class LlamaFields(GrammarFields, kw_only=True):
    n_predict: int | None = None
    n_cmpl: int | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    samplers: str | list[str] | None = None
    cache_prompt: bool | None = None
    n_keep: int | None = None
    n_discard: int | None = None
    n_indent: int | None = None
    t_max_predict_ms: int | None = None
    post_sampling_probs: bool | None = None
    lora: list[LlamaLora] | None = None


def adopt_aliases(body: LlamaFields, max_n: int, profile: Profile) -> None:
    """Puts what was given by llama.cpp's names where OpenAI's are read, unless these were given too. Mutates: `body`."""
    if body.n_cmpl is not None:
        check_number("n_cmpl", body.n_cmpl, Bounds(1, max_n), profile)
    for name, (field, *_) in ALIASES.items():
        value = getattr(body, name, None)
        if value is None or name == "n_probs" or (name == "n_predict" and value < 0):  # dialects read these
            continue
        if getattr(body, field) is None:
            setattr(body, field, value)


def without_unlisted(
    sampling: SamplingParams, body: LlamaFields, profile: Profile, lacks: Collection[str]
) -> SamplingParams:
    """The parameters with everything off that llama.cpp's fields turn off. Raises: InvalidParameter."""
    if body.samplers is None and body.repeat_last_n is None and not body.post_sampling_probs:  # as nearly always
        return sampling
    listed = read_samplers(body.samplers, profile)
    off = {*ORDER, "infill"} - set(listed)
    if body.repeat_last_n == 0:  # penalties look at no token then
        off.add("penalties")
    names = [name for sampler in off for name in OF_SAMPLERS[sampler] if name in SamplingParams.__struct_fields__]
    return msgspec.structs.replace(
        sampling,
        **{name: getattr(NEUTRAL_SAMPLING, name) for name in names},
        infill="infill" in listed and "infill" not in lacks,
        post_sampling_probs=bool(body.post_sampling_probs and sampling.logprobs),
    )


def idle_llama_names(raw: Mapping[str, Any], body: LlamaFields, sampling: SamplingParams) -> set[str]:
    """Its fields that change nothing, besides those of `unlisted_names`."""
    idle = {name for name in ALIASES.keys() & raw.keys() if any(alias in raw for alias in ALIASES[name])}
    penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    if body.repeat_last_n not in (None, -1, 0) and penalties != (1.0, 0.0, 0.0):
        idle.add("repeat_last_n")
    if body.post_sampling_probs and not sampling.logprobs:
        idle.add("post_sampling_probs")
    return idle


def unlisted_names(
    raw: Mapping[str, Any], body: LlamaFields, profile: Profile, lacks: Collection[str]
) -> dict[str, str]:
    """Fields of any name whose sampler is not listed, and `samplers` where it is not done as it says; and why."""
    if body.samplers is None:
        return {}
    listed = read_samplers(body.samplers, profile)
    idle = {
        name: NOT_LISTED for sampler in ORDER if sampler not in listed for name in OF_SAMPLERS[sampler] if name in raw
    }
    is_done = listed == in_order(listed) and not set(listed) & set(lacks)
    return idle if is_done else {**idle, "samplers": UNORDERED}
