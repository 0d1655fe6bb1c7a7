"""The served models in Ollama's form. On the event loop; never waits. Source: Ollama API reference (docs/api.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from dragoman.errors import NotFound
from dragoman.server.api import HttpCall, ModelCard, Reply, json_reply
from dragoman.server.apis.ollama.encoder import rfc3339
from dragoman.server.apis.ollama.errors import not_found
from dragoman.server.apis.ollama.names import meant, tagged
from dragoman.server.apis.ollama.options import WORDS
from dragoman.server.apis.ollama.request import named_model
from dragoman.server.apis.ollama.schema import (
    OllamaDetails,
    OllamaListed,
    OllamaLoaded,
    OllamaRunning,
    OllamaShowBody,
    OllamaShown,
    OllamaTags,
    OllamaVersion,
)
from dragoman.server.apis.openai_wire.fields import decode_object, read_struct, unknown_names
from dragoman.server.generation.tokenizing_service import TokenizingService
from dragoman.server.hosting import ModelStatus
from dragoman.server.model_facts import ModelFacts, facts_by_name, facts_of, facts_of_all, facts_of_unloaded
from dragoman.server.operations import Server, looked_at
from dragoman.server.registry import ServedModel
from dragoman.server.responder import note_ignored

VERSION = "0.13.5"  # whose API this is: clients compare the number to know what they may send
NEVER = "9999-12-31T23:59:59Z"  # when a model that stays loaded expires
UNKNOWN = "unknown"
_LAST_S = 253402300799.0  # the same in seconds

_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
_CAPABILITIES = ("tools", "vision", "thinking", "insert")
_PARAMETERS: Mapping[str, str] = {"repetition_penalty": "repeat_penalty"}
_INFO: Mapping[str, tuple[str, ...]] = {
    "embedding_length": ("hidden_size", "n_embd", "d_model"),
    "block_count": ("num_hidden_layers", "n_layer", "num_layers"),
    "feed_forward_length": ("intermediate_size", "n_inner", "ffn_dim"),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "rope.freq_base": ("rope_theta",),
    "vocab_size": ("vocab_size",),
    "expert_count": ("num_local_experts", "num_experts"),
    "expert_used_count": ("num_experts_per_tok",),
}
"""Keys of GGUF's metadata behind the architecture's name, and their names in config.json."""


async def tags(http: HttpCall, server: Server) -> OllamaTags:
    """Every name that calls may use, also of models that are loaded for a call."""
    await looked_at(server)
    return OllamaTags([_listed(facts) for facts in facts_of_all(server.models)])


async def running(http: HttpCall, server: Server) -> OllamaRunning:
    statuses = {one.name: one for one in server.hosting.statuses()} if server.hosting is not None else {}
    models = server.models.models
    return OllamaRunning([_loaded(one, statuses.get(model.name)) for model in models for one in facts_by_name([model])])


async def version(http: HttpCall, server: Server) -> OllamaVersion:
    return OllamaVersion(VERSION)


async def show(http: HttpCall, server: Server) -> Reply:
    raw = decode_object(http, WORDS)
    body = read_struct(raw, OllamaShowBody, WORDS)
    name = named_model(body.model or body.name)
    asked = meant(name, server.models.knows)
    away = server.models.unloaded_called(asked)
    try:
        made = _shown(server.models.find(asked)) if away is None else _described(facts_of_unloaded(away))
    except NotFound as error:  # told by the owner of the path, who has not read the body
        raise type(error)(not_found(name), param="model") from error
    idle = [*unknown_names(raw, OllamaShowBody), *(["verbose"] if body.verbose else [])]
    headers = note_ignored(server.switches.for_call(http.headers), idle)
    return json_reply(200, made, headers)


def _listed(facts: ModelFacts) -> OllamaListed:
    name = tagged(facts.name)
    return OllamaListed(
        name=name,
        model=name,
        modified_at=_modified_at(facts),
        size=facts.card.size_bytes,
        digest=facts.card.digest,
        details=_details(facts),
    )


def _loaded(facts: ModelFacts, status: ModelStatus | None) -> OllamaLoaded:
    name, card = tagged(facts.name), facts.card
    size = card.size_bytes if status is None else status.memory.total or card.size_bytes
    expires_s = None if status is None else status.expires_s
    return OllamaLoaded(
        name=name,
        model=name,
        size=size,
        digest=card.digest,
        details=_details(facts),
        expires_at=NEVER if expires_s is None else rfc3339(min(expires_s, _LAST_S)),
        size_vram=0 if facts.device.lower() == "cpu" else size,
        context_length=facts.max_model_len or 0,
    )


def _described(facts: ModelFacts) -> OllamaShown:
    return OllamaShown(
        modelfile=_modelfile(facts.name, {}),
        parameters="",
        template="",
        details=_details(facts),
        model_info=_info_of(facts),
        capabilities=["completion"],
        modified_at=_modified_at(facts),
        license=facts.card.license or UNSET,
    )


def _shown(model: ServedModel) -> OllamaShown:
    profile, service = model.profile, model.service
    made = _described(facts_of(model))
    parameters = {  # the model's own defaults, where they hold
        _PARAMETERS.get(name, name): value for name, value in profile.generation_defaults.items() if name != "do_sample"
    }
    made.modelfile = _modelfile(model.name, parameters)
    made.parameters = "\n".join(f"{name} {value}" for name, value in parameters.items())
    if isinstance(service, TokenizingService):
        if service.chat_template is not None:
            made.template = service.chat_template.sources["default"]
        for name in ("bos_token_id", "eos_token_id"):
            if (token_id := getattr(service.tokenizer, name, None)) is not None:
                made.model_info[f"tokenizer.ggml.{name}"] = token_id
    if profile.pooling is not None:
        family = made.model_info["general.architecture"]
        made.model_info[f"{family}.embedding_length"] = profile.pooling.facts.dimensions
        made.capabilities = ["embedding"]
    else:
        made.capabilities += [name for name in _CAPABILITIES if name in profile.abilities]
    return made


def _modelfile(name: str, parameters: Mapping[str, Any]) -> str:
    lines = ["# What this server says of the model; its template is Jinja and stands beside.", f"FROM {name}"]
    return "\n".join([*lines, *(f"PARAMETER {name} {value}" for name, value in parameters.items()), ""])


def _modified_at(facts: ModelFacts) -> str:
    return rfc3339(facts.card.modified_s or facts.created_s)


def _details(facts: ModelFacts) -> OllamaDetails:
    family = _family(facts.card)
    return OllamaDetails(
        parent_model="",
        format=facts.card.format,
        family=family,
        families=[family] if family else [],
        parameter_size=_size(facts.card.num_parameters),
        quantization_level=facts.dtype.upper(),
    )


def _family(card: ModelCard) -> str:
    kind = card.config.get("model_type") or next(iter(card.config.get("architectures") or ()), "")
    return kind if isinstance(kind, str) else ""


def _size(num_parameters: int | None) -> str:
    for unit, letter in _UNITS:
        if num_parameters is not None and num_parameters >= unit:
            digits = 1 if unit >= 1e9 else 2
            return f"{num_parameters / unit:.{digits}f}{letter}"
    return "" if num_parameters is None else str(num_parameters)


def _info_of(facts: ModelFacts) -> dict[str, Any]:
    card, family = facts.card, _family(facts.card) or UNKNOWN
    text = card.config.get("text_config")  # of models that also see, the part that writes
    config = {**card.config, **text} if isinstance(text, dict) else card.config
    info: dict[str, Any] = {"general.architecture": family, "general.basename": facts.name}
    if card.num_parameters is not None:
        info["general.parameter_count"] = card.num_parameters
    context_length = facts.max_model_len or card.config.get("max_position_embeddings")
    if isinstance(context_length, int):
        info[f"{family}.context_length"] = context_length
    for key, names in _INFO.items():
        value = next((config[name] for name in names if config.get(name) is not None), None)
        if isinstance(value, int | float):
            info[f"{family}.{key}"] = value
    return info
