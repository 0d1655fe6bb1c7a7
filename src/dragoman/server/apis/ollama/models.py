"""The served models as Ollama lists and describes them: `/api/tags`, `/api/show`, `/api/ps`, `/api/version`.

Does: put what is known of a model into Ollama's words. Does not: read files (the model's card has what they say).
Called by the operations, on the event loop; never waits.
Source: Ollama API reference (docs/api.md); the keys of `model_info` are those of GGUF's metadata.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import UNSET

from dragoman.errors import NotFound
from dragoman.server.api import HttpCall, ModelCard, ModelProfile, Reply, json_reply
from dragoman.server.apis.ollama.encoder import rfc3339
from dragoman.server.apis.ollama.errors import not_found
from dragoman.server.apis.ollama.names import model_shown, tagged
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
from dragoman.server.generation.text_service import TextService
from dragoman.server.hosting import ModelStatus
from dragoman.server.model_facts import facts_by_name
from dragoman.server.operations import Server, looked_at
from dragoman.server.registry import ServedModel, UnloadedModel
from dragoman.server.responder import note_ignored

VERSION = "0.13.5"  # whose API this is: clients compare the number to know what they may send
NEVER = "9999-12-31T23:59:59Z"  # when a model that stays loaded expires
UNKNOWN = "unknown"
_LAST_S = 253402300799.0  # the same in seconds

_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
_CAPABILITIES = {"tools": "tools", "vision": "vision", "thinking": "thinking", "insert": "insert"}
_PARAMETERS: Mapping[str, str] = {"repetition_penalty": "repeat_penalty"}
"""Names of a model's defaults, where Ollama has others."""

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
"""Keys of GGUF's metadata behind the architecture's name, and what config.json calls them."""


async def tags(http: HttpCall, server: Server) -> OllamaTags:
    """Every name that can be asked for, those of models included that are loaded for it."""
    await looked_at(server)
    served = [_listed(model.profile.card, name, _modified_at(model), _details(model)) for model, name in _named(server)]
    away = [_listed_away(one, tagged(name)) for one in server.models.unloaded for name in one.names]
    return OllamaTags(served + away)


async def running(http: HttpCall, server: Server) -> OllamaRunning:
    """The models that are loaded."""
    statuses = {one.name: one for one in server.hosting.statuses()} if server.hosting is not None else {}
    return OllamaRunning([_loaded(model, name, statuses.get(model.name)) for model, name in _named(server)])


async def version(http: HttpCall, server: Server) -> OllamaVersion:
    """The version of the API."""
    return OllamaVersion(VERSION)


async def show(http: HttpCall, server: Server) -> Reply:
    """One model. Raises: ServerError."""
    raw = decode_object(http, WORDS)
    body = read_struct(raw, OllamaShowBody, WORDS)
    name = named_model(body.model or body.name)
    asked = model_shown(http, server)
    away = None if asked is None else server.models.unloaded_called(asked)
    try:
        made = _shown(server.models.find(asked)) if away is None else _shown_away(away)
    except NotFound as error:  # told by the owner of the path, who has not read the body
        raise type(error)(not_found(name), param="model") from error
    idle = [*unknown_names(raw, OllamaShowBody), *(["verbose"] if body.verbose else [])]
    headers = note_ignored(server.switches.for_call(http.headers), idle)
    return json_reply(200, made, headers)


def _named(server: Server) -> Iterator[tuple[ServedModel, str]]:
    for model in server.models.models:
        for facts in facts_by_name([model]):
            yield model, tagged(facts.name)


def _listed(card: ModelCard, name: str, modified_at: str, details: OllamaDetails) -> OllamaListed:
    return OllamaListed(
        name=name,
        model=name,
        modified_at=modified_at,
        size=card.size_bytes,
        digest=card.digest,
        details=details,
    )


def _listed_away(model: UnloadedModel, name: str) -> OllamaListed:
    return _listed(model.card, name, rfc3339(model.card.modified_s), _details_of(model.card, ""))


def _loaded(model: ServedModel, name: str, status: ModelStatus | None) -> OllamaLoaded:
    card = model.profile.card
    size = card.size_bytes if status is None else status.memory.total or card.size_bytes
    expires_s = None if status is None else status.expires_s
    return OllamaLoaded(
        name=name,
        model=name,
        size=size,
        digest=card.digest,
        details=_details(model),
        expires_at=NEVER if expires_s is None else rfc3339(min(expires_s, _LAST_S)),
        size_vram=0 if model.device.lower() == "cpu" else size,
        context_length=model.engine.capabilities.max_model_len,
    )


def _shown_away(model: UnloadedModel) -> OllamaShown:
    """The description of a model that is not loaded, from its files."""
    card = model.card
    return OllamaShown(
        modelfile=_modelfile(model.name, {}),
        parameters="",
        template="",
        details=_details_of(card, ""),
        model_info=_info_of(card, model.name, card.config.get("max_position_embeddings")),
        capabilities=["completion"],
        modified_at=rfc3339(card.modified_s),
        license=card.license or UNSET,
    )


def _shown(model: ServedModel) -> OllamaShown:
    profile, service = model.profile, model.service
    template = service.chat_template if isinstance(service, TextService) else None
    source = "" if template is None else template.sources["default"]
    parameters = _parameters(profile)
    return OllamaShown(
        modelfile=_modelfile(model.name, parameters),
        parameters="\n".join(f"{name} {value}" for name, value in parameters.items()),
        template=source,
        details=_details(model),
        model_info=_model_info(model),
        capabilities=_capabilities(model),
        modified_at=_modified_at(model),
        license=profile.card.license or UNSET,
    )


def _modelfile(name: str, parameters: Mapping[str, Any]) -> str:
    lines = ["# What this server says of the model; its template is Jinja and stands beside.", f"FROM {name}"]
    return "\n".join([*lines, *(f"PARAMETER {name} {value}" for name, value in parameters.items()), ""])


def _parameters(profile: ModelProfile) -> dict[str, Any]:
    """The model's own defaults, where they hold."""
    defaults = profile.generation_defaults
    return {_PARAMETERS.get(name, name): value for name, value in defaults.items() if name != "do_sample"}


def _capabilities(model: ServedModel) -> list[str]:
    if model.pooling is not None or model.profile.pooling is not None:
        return ["embedding"]
    able = model.profile.abilities
    return ["completion", *(word for name, word in _CAPABILITIES.items() if name in able)]


def _modified_at(model: ServedModel) -> str:
    return rfc3339(model.profile.card.modified_s or model.created_s)


def _details(model: ServedModel) -> OllamaDetails:
    return _details_of(model.profile.card, model.dtype)


def _details_of(card: ModelCard, dtype: str) -> OllamaDetails:
    family = _family(card)
    return OllamaDetails(
        parent_model="",
        format=card.format,
        family=family,
        families=[family] if family else [],
        parameter_size=_size(card.num_parameters),
        quantization_level=dtype.upper(),
    )


def _family(card: ModelCard) -> str:
    kind = card.config.get("model_type") or next(iter(card.config.get("architectures") or ()), "")
    return kind if isinstance(kind, str) else ""


def _size(num_parameters: int | None) -> str:
    """The number of parameters, in Ollama's way: 494.03M, 8.0B."""
    for unit, letter in _UNITS:
        if num_parameters is not None and num_parameters >= unit:
            digits = 1 if unit >= 1e9 else 2
            return f"{num_parameters / unit:.{digits}f}{letter}"
    return "" if num_parameters is None else str(num_parameters)


def _model_info(model: ServedModel) -> dict[str, Any]:
    card = model.profile.card
    info = _info_of(card, model.name, model.engine.capabilities.max_model_len)
    if model.profile.pooling is not None:
        info[f"{_family(card) or UNKNOWN}.embedding_length"] = model.profile.pooling.facts.dimensions
    service = model.service
    tokenizer = service.tokenizer if isinstance(service, TextService) else None
    for name in ("bos_token_id", "eos_token_id"):
        if (token_id := getattr(tokenizer, name, None)) is not None:
            info[f"tokenizer.ggml.{name}"] = token_id
    return info


def _info_of(card: ModelCard, name: str, context_length: object) -> dict[str, Any]:
    family = _family(card) or UNKNOWN
    text = card.config.get("text_config")  # of models that also see, the part that writes
    config = {**card.config, **text} if isinstance(text, dict) else card.config
    info: dict[str, Any] = {"general.architecture": family, "general.basename": name}
    if card.num_parameters is not None:
        info["general.parameter_count"] = card.num_parameters
    if isinstance(context_length, int):
        info[f"{family}.context_length"] = context_length
    for key, names in _INFO.items():
        value = next((config[name] for name in names if config.get(name) is not None), None)
        if isinstance(value, int | float):
            info[f"{family}.{key}"] = value
    return info
