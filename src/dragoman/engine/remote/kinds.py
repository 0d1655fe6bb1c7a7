"""The known kinds of servers, as data: their names for our sampling parameters, and their other peculiarities.

Servers ignore parameters that they do not know, so a parameter missing from a row is refused by name. Sources: what the
servers document of `/v1/completions`. Tried: vLLM 0.32, llama.cpp's server of llama-cpp-python 0.3.36's sources
(0c1e570), dragoman (docs/remote.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dragoman.types import FurtherSampling

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
