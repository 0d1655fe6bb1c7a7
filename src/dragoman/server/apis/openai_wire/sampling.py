"""The parameters that completions and chat share, and how they become neutral ones. On the event loop.

Sources: OVMS v2025.0, completions API (`/v3`), OpenAI API reference (`/v1`), vLLM SamplingParams (the extensions).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from operator import attrgetter
from typing import Any, Literal, TypeVar

import msgspec

from dragoman.errors import UnsupportedFeature
from dragoman.parameters import (
    ALIASES,
    FURTHER,
    MAX_BREAKER_CHARS,
    MAX_BREAKERS,
    PARAMETERS,
    Bounds,
    Need,
    idle_parameters,
    lacking_needs,
)
from dragoman.server.apis.openai_wire import keeping, thinking
from dragoman.server.apis.openai_wire import llamacpp_names as llama
from dragoman.server.apis.openai_wire.common import Reading, StreamOptions, knows_name, requested_model
from dragoman.server.apis.openai_wire.fields import (
    check_bounds,
    check_number,
    read_logit_bias,
    read_texts,
    read_token_ids,
    unknown_names,
)
from dragoman.server.apis.openai_wire.grammars import read_grammar
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.types import GenerationRequest, Grammar, Prompt, SamplingParams

ValueT = TypeVar("ValueT")

IGNORED: Mapping[str, str] = {
    "user": "an end-user label; nothing is tracked per user",
    "metadata": "labels for a hosted service's dashboard",
    "store": "answers are not stored",
    "service_tier": "there is one tier",
    "safety_identifier": "nothing is tracked per user",
    "guided_decoding_backend": "there is one grammar engine",
    "guided_whitespace_pattern": "the grammar engine decides on whitespace",
    "request_id": "the x-request-id header names a request",
}
"""Parameters that are known and have no effect; all of them are reported to the client."""

_NEEDY: Mapping[str, str] = {
    **{
        name: name
        for name, parameter in PARAMETERS.items()
        if parameter.needs is not Need.NOTHING and name != "temperature"
    },
    **ALIASES,
    **dict.fromkeys(thinking.BUDGETS, "thinking_token_budget"),
}
"""Fields that have an effect under some condition, and the parameters that they are."""

NO_PROGRESS = "the answer is not streamed, or the engine does not tell how far it is"
NO_LOGPROBS = "logprobs is not true"

_REASONS: Mapping[str, str] = {
    **IGNORED,
    **keeping.CACHING_REASONS,
    **{name: f"it acts only {PARAMETERS[of].needs}" for name, of in _NEEDY.items()},
    thinking.REASONING_TOKENS: thinking.NO_REASONING,
    **llama.REASONS,
    keeping.TTL: keeping.TTL_NO_EFFECT,
    "model": "this route has one model, whatever it is called",
    "return_progress": NO_PROGRESS,
}

REFUSED: Mapping[str, str] = {
    "logits_processors": "it names code that would run inside the server",
    "chat_template": "it is code; the model's own template is used",
}
"""Parameters refused by name, since leaving them out would change the answer unseen."""


class SharedBody(llama.LlamaFields, kw_only=True):
    """Request fields of both completions and chat; None = not given."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    num_beam_groups: int | None = None
    diversity_penalty: float | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    prompt_logprobs: int | None = None
    num_assistant_tokens: int | None = None
    assistant_confidence_threshold: float | None = None
    max_ngram_size: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    ttl: float | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: keeping.PromptCacheOptions | None = None

    thinking_token_budget: int | None = None
    reasoning_budget: int | None = None
    reasoning_budget_tokens: int | None = None
    thinking_budget_tokens: int | None = None
    repetition_detection: thinking.RepetitionBody | None = None

    def reasoning_tokens(self) -> int | None:
        """Most tokens of reasoning, where the body has an object for what concerns reasoning."""
        return None


def shared_body(body: msgspec.Struct, **changed: Any) -> SharedBody:
    """The fields that the body of another API has in common with those here, but for what it says otherwise."""
    values = {name: value for name in _shared_names(type(body)) if (value := getattr(body, name)) is not None}
    return SharedBody(**{**values, **changed})


@cache
def _shared_names(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(name for name in kind.__struct_fields__ if name in SharedBody.__struct_fields__)


def check_shared(raw: Mapping[str, Any], body: SharedBody, reading: Reading, *, exempt: Collection[str] = ()) -> None:
    """Checks the shared fields one by one; `shared_request` checks the rest. Raises: InvalidRequest."""
    profile = reading.profile
    for name, reason in REFUSED.items():
        if name in raw:
            raise UnsupportedFeature(f"{name} is not supported: {reason}", param=name)
    if body.model is None:
        profile.check_model(None)
    if body.stream_options is not None and not body.stream:
        message = "stream_options is allowed only with stream: true"
        raise profile.fault("stream_options", "without_stream", message)
    check_bounds(raw, body, profile, exempt)
    if body.ttl is not None:
        keeping.note_ttl(body.ttl, profile)
    if body.top_k == 0 and profile.name == "v3":
        raise profile.fault("top_k", "low", "top_k must be -1 or at least 1, got 0")
    if body.num_assistant_tokens is not None and body.assistant_confidence_threshold is not None:
        message = "num_assistant_tokens and assistant_confidence_threshold cannot be used together: give one of them"
        raise profile.fault("num_assistant_tokens", "conflict", message)


def shared_request(
    body: SharedBody,
    reading: Reading,
    *,
    request_id: str,
    prompt: Prompt,
    logprobs: int | None,
    max_tokens: int | None = None,
    grammar: Grammar | None = None,
    **more: Any,
) -> GenerationRequest:
    """The neutral request for `body`. Raises: InvalidRequest.

    `max_tokens`: the limit where the client set none. `grammar`: of a parameter that only the caller knows.
    """
    profile, speaks_llama = reading.profile, _speaks_llama(body)
    if speaks_llama:
        llama.adopt_aliases(body, reading.model.limits.max_best_of, profile)
    count, most = body.max_tokens, profile.max_ignore_eos_tokens if body.ignore_eos else None
    if count is not None and count > _or(most, count):
        message = f"max_tokens must be at most {most} when ignore_eos is true, got {count}"
        raise profile.fault("max_tokens", "ignore_eos", message, limit=most)
    limit = _or(count, _or(max_tokens, most))
    if body.min_tokens is not None and limit is not None and body.min_tokens > limit:
        message = f"min_tokens must be at most max_tokens ({limit}), got {body.min_tokens}"
        raise profile.fault("min_tokens", "high", message)
    sampling = _sampling_params(body, reading, logprobs, grammar)
    if speaks_llama:
        sampling = llama.without_unlisted(sampling, body, profile, reading.model.lacks)
    keeps = body.prompt_cache_retention is not None or body.prompt_cache_options is not None
    return GenerationRequest(
        request_id=request_id,
        prompt=prompt,
        sampling=sampling,
        max_tokens=limit,
        stop=_stop_strings(body, reading),
        include_stop_in_text=_include_stop(body, profile),
        skip_special_tokens=body.skip_special_tokens is not False,
        spaces_between_special_tokens=body.spaces_between_special_tokens is not False,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
        # A default limit must not make a long prompt fail: only what the client asked for can be too much, but as
        # `n_predict`, which llama.cpp cuts to what there is room for.
        on_overflow="clip" if profile.clips_overflow or count in (None, body.n_predict) else "refuse",
        model=_model(body.model, reading),
        adapter=_adapter(body, reading),
        lines=llama.line_limits(body.n_indent, body.t_max_predict_ms) if speaks_llama else None,
        priority=-_priority(body, reading),
        n_keep=body.n_keep or 0,
        n_discard=body.n_discard or 0,
        cache_salt=request_id if body.cache_prompt is False else _cache_salt(body, profile),
        cache_keep_s=keeping.prompt_keep_s(body, profile, is_kept=reading.model.keeps_prompts) if keeps else None,
        cache_key=body.prompt_cache_key or "",
        **more,
    )


@cache
def _reader_of_llama(kind: type[SharedBody]) -> Callable[[SharedBody], tuple[Any, ...]]:
    return attrgetter(*(name for name in kind.__struct_fields__ if name in llama.EFFECTS))


def _speaks_llama(body: SharedBody) -> bool:
    values = _reader_of_llama(type(body))(body)
    return values.count(None) < len(values)


def _priority(body: SharedBody, reading: Reading) -> int:
    """As vLLM has it: the smallest is served first."""
    least, wanted = reading.model.limits.min_priority, body.priority or 0
    if wanted < least:
        raise reading.profile.fault("priority", "low", f"priority must be at least {least} here, got {wanted}")
    return wanted


def _cache_salt(body: SharedBody, profile: Profile) -> str:
    """As vLLM has it; not even empty, which would look like a salt and be none."""
    if body.cache_salt == "":
        raise profile.fault("cache_salt", "empty", "cache_salt must be a text that is not empty")
    return body.cache_salt or ""


def _adapter(body: SharedBody, reading: Reading) -> str | None:
    if body.lora is None:
        return None
    return llama.applied_adapter("lora", body.lora, tuple(reading.model.adapter_names()), reading.profile)


def _model(named: str | None, reading: Reading) -> str | None:
    """The model that was asked for, or the adapter, if that has a meaning here."""
    if reading.profile.ignores_model and named not in reading.model.adapter_names():
        return None
    return requested_model(named)


def without_effect(
    raw: Mapping[str, Any],
    body: SharedBody,
    request: GenerationRequest,
    reading: Reading,
    kind: type[msgspec.Struct] | None = None,
) -> dict[str, str]:
    """Fields without effect, in the order sent, and why, "" if that is not known.

    `kind`: the Struct that `raw` was read as, if not the body's.
    """
    profile, model = reading.profile, reading.model
    idle = set(unknown_names(raw, kind or type(body)))
    idle -= {name for name, nothing in profile.asks_nothing.items() if raw.get(name) == nothing}
    if profile.ignores_model and not knows_name(model, body.model):
        idle.add("model")
    if needy := [name for name in raw if name in _NEEDY]:
        lacking = lacking_needs(request.sampling, thinks=model.thinks, proposer=model.proposer)
        rows = ((name, _NEEDY[name], PARAMETERS[_NEEDY[name]].needs, getattr(body, name, None)) for name in needy)
        idle.update(idle_parameters(rows, lacking))
    if getattr(body, "return_progress", None) and not tells_progress(body, reading):
        idle.add("return_progress")
    if not (model.shifts_context or llama.OF_SHIFTS.isdisjoint(raw)):
        idle.update(name for name in llama.OF_SHIFTS if raw.get(name))
    uncached: list[str] = []
    if not keeping.CACHING_FIELDS.isdisjoint(raw):
        uncached += keeping.idle_caching_names(raw, body, is_kept=model.keeps_prompts, has_keys=model.has_cache_keys)
    idle.update(uncached)
    if body.ttl is not None and keeping.is_ttl_idle():
        idle.add(keeping.TTL)
    unlisted: dict[str, str] = {}
    if _speaks_llama(body):
        unlisted = llama.unlisted_names(raw, body, profile, model.lacks)
        idle.update(llama.idle_llama_names(raw, body, request.sampling), unlisted)
    names = [name for name in raw if name in idle]
    names += [name for name in uncached if name not in raw]
    if body.reasoning_tokens() is not None and not model.thinks:
        names.append(thinking.REASONING_TOKENS)
    options = raw.get("stream_options")
    if isinstance(options, dict):
        is_continuous = body.stream_options is not None and body.stream_options.is_continuous
        used = ("include_usage", "continuous_usage_stats") if is_continuous else ("include_usage",)
        names += [f"stream_options.{name}" for name in options if name not in used]
    if not names:
        return {}
    reasons = {**_REASONS, **profile.ignored, **unlisted}
    return {name: reasons.get(name, "") for name in names}


def tells_progress(body: SharedBody, reading: Reading) -> bool:
    return bool(body.stream and getattr(body, "return_progress", None) and reading.model.tells_progress)


_SAMPLERS = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    *FURTHER,
)  # fmt: skip
_READ_SAMPLERS = attrgetter(*_SAMPLERS, "nsigma")
_READ_BUDGETS, _NO_BUDGETS = attrgetter(*thinking.BUDGETS), (None,) * len(thinking.BUDGETS)
_OF_DRY = tuple(name for name, parameter in PARAMETERS.items() if parameter.needs is Need.DRY)


def _sampling_fields(body: SharedBody, profile: Profile, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Samplers and penalties from a body, else from `defaults`, without those that are off. Raises: InvalidRequest."""
    *values, nsigma = _READ_SAMPLERS(body)
    if nsigma is None and not defaults and values.count(None) == len(values):
        return {}
    found = {name: value for name, value in zip(_SAMPLERS, values, strict=True) if value is not None}
    if defaults:
        found = {name: defaults[name] for name in _SAMPLERS if defaults.get(name) is not None} | found
    if nsigma is not None:
        found.setdefault("top_n_sigma", nsigma)
    if "top_k" in found:
        found["top_k"] = max(0, found["top_k"])  # -1 and 0 both mean all tokens
    if "top_p" in found:
        found["top_p"] = max(found["top_p"], 1e-9)  # the smallest nucleus has one token
    if "top_n_sigma" in found:
        found["top_n_sigma"] = max(0.0, found["top_n_sigma"])
    if "dry_sequence_breakers" in found:
        texts = found["dry_sequence_breakers"]
        found["dry_sequence_breakers"] = read_texts(
            "dry_sequence_breakers", texts, MAX_BREAKERS, MAX_BREAKER_CHARS, profile
        )
    if not (found.get("dry_multiplier") and found.get("dry_penalty_last_n", -1)):
        for name in _OF_DRY:
            found.pop(name, None)
    if not found.get("xtc_probability"):
        found.pop("xtc_threshold", None)
    return found


def _sampling_params(
    body: SharedBody, reading: Reading, logprobs: int | None, grammar: Grammar | None
) -> SamplingParams:
    profile, model = reading.profile, reading.model
    limits, detection = model.limits, body.repetition_detection
    defaults = model.overriding_defaults if profile.fixes_defaults else model.generation_defaults
    found = {**_sampling_fields(body, profile, {**profile.defaults, **defaults}), **_search_fields(body, reading)}
    if body.top_p == 0 and profile.refuses_zero_top_p and found["num_beams"] == 1 and found.get("temperature") != 0:
        allowed = Bounds(0.0, 1.0, is_low_open=True)
        raise profile.fault("top_p", "zero", f"top_p must be {allowed} when sampling, got 0")
    return SamplingParams(
        **found,
        logit_bias=read_logit_bias("logit_bias", body.logit_bias, limits.max_token_ids, profile),
        bad_words=read_texts("bad_words", body.bad_words, limits.max_bad_words, limits.max_word_chars, profile),
        allowed_token_ids=_allowed_token_ids(body, reading),
        min_tokens=_or(body.min_tokens, 0),
        ignore_eos=bool(body.ignore_eos),
        stop_token_ids=read_token_ids("stop_token_ids", body.stop_token_ids, limits.max_token_ids, profile),
        seed=_seed(body, profile, defaults),
        length_penalty=_or(body.length_penalty, 1.0),
        early_stopping=_or(body.early_stopping, False),
        logprobs=logprobs,
        prompt_logprobs=logprob_count("prompt_logprobs", body.prompt_logprobs, reading),
        grammar=_grammar(body, profile, grammar),
        thinking_token_budget=_thinking_budget(body, profile),
        repetition_detection=None if detection is None else thinking.repetition_detection(detection, profile),
        num_assistant_tokens=body.num_assistant_tokens if model.proposer else None,
        assistant_confidence_threshold=body.assistant_confidence_threshold if model.proposer else None,
        max_ngram_size=body.max_ngram_size if model.proposer == "lookup" else None,
    )


def _grammar(body: SharedBody, profile: Profile, read: Grammar | None) -> Grammar | None:
    guided = (body.guided_json, body.guided_regex, body.guided_grammar, body.guided_choice)
    if (body.response_format, body.structured_outputs, body.grammar, body.json_schema, *guided) == (
        None,
    ) * 8:  # as nearly always
        return read
    found = read_grammar(body, profile)
    return found if read is None else read


def _thinking_budget(body: SharedBody, profile: Profile) -> int | None:
    reasoning_tokens = body.reasoning_tokens()
    if reasoning_tokens is None and _READ_BUDGETS(body) == _NO_BUDGETS:  # as nearly always
        return None
    return thinking.thinking_budget(body, profile, reasoning_tokens)


def _or(value: ValueT | None, default: ValueT) -> ValueT:
    return default if value is None else value


def _seed(body: SharedBody, profile: Profile, operator: Mapping[str, Any]) -> int | None:
    seed = _or(body.seed, operator.get("seed", profile.default_seed))
    # Negative seeds are as good as others; generators want them unsigned.
    return None if seed is None or seed in profile.random_seeds else seed % 2**64


def _search_fields(body: SharedBody, reading: Reading) -> dict[str, Any]:
    """The number of sequences and how they are drawn: `best_of` > n, `num_beams` > 1, or neither."""
    profile, best_of = reading.profile, body.best_of
    n = _count("n", _or(body.n, 1), reading)
    if best_of is not None and n > _count("best_of", best_of, reading):
        raise profile.fault("n", "above_best_of", f"n must be at most best_of ({best_of}), got {n}")
    is_beam_search = _or(body.use_beam_search, profile.is_best_of_beam_width)
    num_beams = _or(best_of, n if body.use_beam_search else 1) if is_beam_search else 1
    if body.stream and (num_beams > 1 or _or(best_of, n) > n):
        # Which sequence wins is known only when all have ended.
        named = "use_beam_search" if best_of is None else "best_of"
        message = f"{named} cannot be used with stream: true unless one sequence is drawn per choice"
        raise profile.fault(named, "stream", message)
    found: dict[str, Any] = {"n": n, "best_of": None if is_beam_search else best_of, "num_beams": num_beams}
    if body.use_beam_search and num_beams == 1:
        found["temperature"] = 0.0
    return {**found, **_beam_groups(body, profile, num_beams)}


def _count(name: str, value: int, reading: Reading) -> int:
    limit = reading.model.limits.max_best_of - (1 if reading.profile.is_best_of_limit_exclusive else 0)
    if value > limit:
        message = f"{name} must be at most {limit}, got {value}"
        raise reading.profile.fault(name, "high", message, limit=reading.model.limits.max_best_of)
    return value


def _beam_groups(body: SharedBody, profile: Profile, num_beams: int) -> dict[str, Any]:
    """Groups and their penalty. A penalty alone asks for beams that differ from each other: every beam is a group."""
    asks_diversity = body.diversity_penalty is not None and body.diversity_penalty != 0.0
    groups = _or(body.num_beam_groups, num_beams if asks_diversity else 1)
    if num_beams > 1 and num_beams % groups:
        message = f"num_beam_groups must divide the beam width ({num_beams}), got {groups}"
        raise profile.fault("num_beam_groups", "value", message)
    if num_beams == 1 or groups == 1:
        return {}
    # 1.0: the documented default once there are groups
    return {"num_beam_groups": groups, "diversity_penalty": _or(body.diversity_penalty, 1.0)}


def _allowed_token_ids(body: SharedBody, reading: Reading) -> tuple[int, ...] | None:
    ids, profile = body.allowed_token_ids, reading.profile
    if ids == []:
        raise profile.fault("allowed_token_ids", "value", "allowed_token_ids must hold at least one id, got []")
    return read_token_ids("allowed_token_ids", ids, reading.model.limits.max_token_ids, profile) or None


def logprob_bounds(reading: Reading) -> Bounds:
    return Bounds(0, reading.model.limits.max_logprobs)


def logprob_count(name: str, value: int | None, reading: Reading) -> int | None:
    """The number of candidates per token asked for; -1 means the whole vocabulary. Raises: InvalidRequest."""
    if value is None:
        return None
    if value == -1 and (vocab_size := reading.model.vocab_size):
        return _whole_vocabulary(name, vocab_size, reading)
    check_number(name, value, logprob_bounds(reading), reading.profile)
    return value


def _whole_vocabulary(name: str, vocab_size: int, reading: Reading) -> int:
    most = reading.model.limits.max_logprobs
    if vocab_size > most:
        message = (
            f"{name} -1 asks for all {vocab_size} tokens of the vocabulary, at most {most} are allowed (--max-logprobs)"
        )
        raise reading.profile.fault(name, "high", message)
    return vocab_size


def _stop_strings(body: SharedBody, reading: Reading) -> tuple[str, ...]:
    most, limits = reading.profile.max_stop_strings, reading.model.limits
    limit = limits.max_stop_strings if most is None else min(most, limits.max_stop_strings)
    return read_texts("stop", body.stop, limit, limits.max_word_chars, reading.profile)


def _include_stop(body: SharedBody, profile: Profile) -> bool:
    if not (profile.shows_stop_in_stream and body.stream):
        return bool(body.include_stop_str_in_output)
    if body.include_stop_str_in_output is False:
        message = "include_stop_str_in_output must be true, or not given, with stream: true"
        raise profile.fault("include_stop_str_in_output", "stream", message)
    return True
