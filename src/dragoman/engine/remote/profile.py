"""The abilities of an upstream, as data: the known kinds of servers, and the profile that probing finds.

Servers ignore parameters that they do not know, so a parameter missing from a row is refused by name. Sources: what the
servers document of `/v1/completions`. Tried: vLLM 0.32, llama.cpp's server of llama-cpp-python 0.3.36's sources
(0c1e570), dragoman (docs/remote.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from dragoman.engine.base import Capabilities
from dragoman.types import FurtherSampling, SamplingParams

# --- kinds of servers ---

_OPENAI = {
    "temperature": "temperature",
    "top_p": "top_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
}
_VLLM = _OPENAI | {
    name: name
    for name in (
        "top_k", "min_p", "repetition_penalty", "logit_bias", "bad_words", "allowed_token_ids", "min_tokens", "ignore_eos",
        "stop_token_ids",
    )
}  # fmt: skip
_ENDED = {name: name for name in ("thinking_token_budget", "repetition_detection")}

_FURTHER = {name: name for name in FurtherSampling.__struct_fields__}

_STRUCTURED = {
    "json_schema": "structured_outputs.json",
    "json_object": "structured_outputs.json_object",
    "regex": "structured_outputs.regex",
    "choice": "structured_outputs.choice",
}
_GUIDED = {"json_schema": "guided_json", "regex": "guided_regex", "choice": "guided_choice"}

AS_TEXT = "=text"  # after a parameter's name: it takes a JSON schema as text


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of server. `owners`: what its models' `owned_by` begins with, in lower case.

    `names`: field of SamplingParams -> the server's parameter. `grammars`: parameters by kind of grammar, one mapping
    per generation of releases, the newest first. `ids_from_logprobs`: token ids come only with log-probabilities.
    `cache_salt`, `priority`: it has them, and refuses them where they have no effect. `hidden`: changes of
    probabilities that no request can switch off.
    """

    name: str
    owners: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=lambda: _OPENAI)
    grammars: tuple[Mapping[str, str], ...] = ()
    has_n: bool = True
    ids_from_logprobs: bool = False
    prompt_logprobs: bool = False
    cache_salt: bool = False
    priority: bool = False
    max_seed: int = 2**63 - 1
    hidden: str = ""


UNKNOWN = Kind("OpenAI-compatible", names=_OPENAI | {"logit_bias": "logit_bias"})

KINDS: tuple[Kind, ...] = (
    Kind(
        "dragoman",
        ("dragoman",),
        _VLLM | _FURTHER | _ENDED | {"typical_p": "typical_p"},
        (_STRUCTURED | {"lark": "structured_outputs.grammar"},),
        prompt_logprobs=True,
        cache_salt=True,
        priority=True,
        max_seed=2**64 - 1,
    ),
    Kind("vLLM", ("vllm",), _VLLM | _ENDED, (_STRUCTURED, _GUIDED), prompt_logprobs=True, cache_salt=True),
    Kind(
        "SGLang",
        ("sglang",),
        {name: there for name, there in _VLLM.items() if name not in ("bad_words", "allowed_token_ids")},
        ({"json_schema": f"json_schema{AS_TEXT}", "regex": "regex"},),
    ),
    Kind(
        "TensorRT-LLM",
        ("tensorrt_llm",),
        {name: there for name, there in _VLLM.items() if name not in ("bad_words", "allowed_token_ids", "logit_bias")},
    ),
    Kind(
        "llama.cpp",
        ("llamacpp",),
        _OPENAI
        | _FURTHER
        | {
            "top_k": "top_k",
            "min_p": "min_p",
            "typical_p": "typical_p",
            "repetition_penalty": "repeat_penalty",
            "logit_bias": "logit_bias",
            "ignore_eos": "ignore_eos",
        },
        ({"json_schema": "json_schema"},),
        has_n=False,
        ids_from_logprobs=True,
        max_seed=2**32 - 2,  # the largest number means a random seed
    ),
    Kind(
        "OVMS",
        ("ovms",),
        _OPENAI | {"top_k": "top_k", "repetition_penalty": "repetition_penalty", "ignore_eos": "ignore_eos"},
        has_n=False,
        max_seed=2**31 - 1,
    ),
    Kind(
        "Ollama",
        ("library",),
        has_n=False,
        max_seed=2**31 - 1,
        hidden="top_k, min_p and repeat_penalty as the model's Modelfile has them",
    ),
)

TGI = Kind(
    "TGI",
    names={name: there for name, there in _OPENAI.items() if name != "presence_penalty"}
    | {"repetition_penalty": "repetition_penalty"},
    has_n=False,
)


def kind_of(owner: str, model: str) -> Kind:
    """The kind of the server that lists `model` as owned by `owner`. TGI repeats the model's name as its owner."""
    known = owner.lower()
    if owner and owner == model and not any(known in kind.owners for kind in KINDS):
        return TGI
    return next((kind for kind in KINDS if known.startswith(kind.owners)), UNKNOWN)


# --- profiles ---

# Fields that the engine handles itself.
_OURS = frozenset({"n", "best_of", "logprobs", "prompt_logprobs", "grammar", "stop_token_ids"})
# Fields that `Capabilities` describes by attributes of its own, or that have no effect without these.
_ELSEWHERE = frozenset(
    {
        "num_beams", "num_beam_groups", "diversity_penalty", "length_penalty", "early_stopping", "num_assistant_tokens",
        "assistant_confidence_threshold", "max_ngram_size",
    }
)  # fmt: skip
SENT = tuple(field.name for field in msgspec.structs.fields(SamplingParams) if field.name not in _OURS | _ELSEWHERE)
"""The fields of SamplingParams that an upstream has to know."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One upstream. `model`: its name there. `max_model_len` None = unknown.

    `takes_ids`: prompts may be token ids. `gives_ids`: answers have them. `max_logprobs` None = no log-probabilities by
    token. `names`: field of SamplingParams -> the upstream's parameter. `grammars`: kind of grammar -> the parameter.
    `has_usage`: streams end with counts on request. `adapters`: those of the last list; they may come and go.
    """

    model: str
    kind: Kind = UNKNOWN
    max_model_len: int | None = None
    takes_ids: bool = False
    gives_ids: bool = False
    max_logprobs: int | None = None
    prompt_logprobs: bool = False
    has_n: bool = False
    has_usage: bool = False
    cache_salt: bool = False
    priority: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    grammars: Mapping[str, str] = field(default_factory=dict)
    adapters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Common:
    """The abilities that all upstreams of an engine share. Fields: see `Profile`."""

    capabilities: Capabilities
    takes_ids: bool
    gives_ids: bool
    has_n: bool
    loses_ids: bool = False  # some servers leave out token ids within a character of several tokens

    def lacks(self, profile: Profile) -> str:
        """The name of an ability that a later upstream lacks; "" = none."""
        limit = self.capabilities.max_model_len
        if profile.max_model_len is not None and profile.max_model_len < limit:
            return f"{limit} tokens of context"
        able = common((profile,), limit, self.capabilities.vocab_size)
        if able.loses_ids and not self.loses_ids:
            return "the ids of all tokens"
        for name in ("takes_ids", "gives_ids", "has_n"):
            if getattr(self, name) and not getattr(able, name):
                return _WORDS[name]
        return _difference(self.capabilities, able.capabilities)


_WORDS = {
    "takes_ids": "prompts of token ids",
    "gives_ids": "the token ids of answers",
    "has_n": "several sequences at once",
}


def _difference(promised: Capabilities, able: Capabilities) -> str:
    missing = sorted(able.unsupported - promised.unsupported)
    missing += [
        name
        for name in ("prompt_logprobs", "beam_search", "cache_salt", "priority")
        if getattr(promised, name) and not getattr(able, name)
    ]
    if able.max_logprobs < promised.max_logprobs:
        missing.append(f"{promised.max_logprobs} log-probabilities")
    grammars = sorted((promised.grammar_kinds or frozenset()) - (able.grammar_kinds or frozenset()))
    return ", ".join(missing + [f"grammars of kind {kind}" for kind in grammars])


def common(profiles: Sequence[Profile], max_model_len: int, vocab_size: int) -> Common:
    return Common(
        _capabilities(profiles, max_model_len, vocab_size),
        takes_ids=all(profile.takes_ids for profile in profiles),
        gives_ids=all(profile.gives_ids for profile in profiles),
        has_n=all(profile.has_n for profile in profiles),
        loses_ids=any(profile.kind.ids_from_logprobs for profile in profiles),
    )


def _can_search(profile: Profile) -> bool:
    """True if the upstream gives the most likely tokens after any beam: prompts are ids, and no token is hidden."""
    return profile.takes_ids and "ignore_eos" in profile.names and not profile.kind.ids_from_logprobs


def _capabilities(profiles: Sequence[Profile], max_model_len: int, vocab_size: int) -> Capabilities:
    counts = [profile.max_logprobs for profile in profiles]
    known = [count for count in counts if count is not None]
    by_ids = all(profile.gives_ids for profile in profiles)
    has_logprobs = by_ids and len(known) == len(counts)
    unsupported = {name for name in SENT if any(name not in profile.names for profile in profiles)}
    unsupported |= {"post_sampling_probs", "infill"}
    if not by_ids:
        unsupported.add("stop_token_ids")  # their arrival could not be seen
    if not has_logprobs:
        unsupported.add("logprobs")
    grammars = frozenset.intersection(*(frozenset(profile.grammars) for profile in profiles))
    return Capabilities(
        max_model_len,
        vocab_size,
        max_logprobs=min(known) if has_logprobs else 0,
        prompt_logprobs=has_logprobs and all(profile.prompt_logprobs for profile in profiles),
        bounds_answers=True,
        beam_search=has_logprobs and all(map(_can_search, profiles)),
        plain_beams=True,
        best_of=has_logprobs,
        stop_strings=has_logprobs,
        grammar=bool(grammars),
        grammar_kinds=grammars,
        cache_salt=all(profile.cache_salt for profile in profiles),
        priority=all(profile.priority for profile in profiles),
        adapters=tuple(dict.fromkeys(name for profile in profiles for name in profile.adapters)),
        unsupported=frozenset(unsupported),
    )
