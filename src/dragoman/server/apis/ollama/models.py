"""The served models in Ollama's form: their names, the lists, `/api/show` and `/api/pull`. On the event loop.

Sources: Ollama API reference (docs/api.md); Hugging Face, `hf.co/ORG/NAME:TYPE`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.errors import NotFound, ServerError, UnsupportedFeature
from dragoman.server.api import (
    NDJSON_MEDIA_TYPE,
    Head,
    HttpCall,
    ModelCard,
    ModelProfile,
    Reply,
    StreamedReply,
    json_reply,
    jsonline,
    model_of_body,
)
from dragoman.server.apis.ollama.encoder import Rfc3339, rfc3339
from dragoman.server.apis.ollama.request import WORDS, OllamaError, named_model, not_found
from dragoman.server.apis.openai_wire.fields import decode_object, read_struct, unknown_names
from dragoman.server.generation.tokenizing_service import TokenizingService
from dragoman.server.hosting import ModelStatus, PullStep
from dragoman.server.model_facts import ModelFacts, facts_by_name, facts_of, facts_of_all, facts_of_unloaded
from dragoman.server.operations import Server, looked_at
from dragoman.server.registry import PLACEHOLDER_MODELS, ServedModel
from dragoman.server.responder import note_ignored

# --- bodies and answers -----------------------------------------------------------------------------------------------


class OllamaShowBody(msgspec.Struct, kw_only=True):
    """The body of POST /api/show; `name` is what `model` was called before."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


class OllamaPullBody(msgspec.Struct, kw_only=True):
    """The body of POST /api/pull; `name` is what `model` was called before. `stream` absent = true."""

    model: str | None = None
    name: str | None = None
    stream: bool | None = None
    insecure: bool | None = None


class OllamaDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A model's kind. `parameter_size`: "" if not known; `quantization_level`: the data type it runs in."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model. `size`: bytes of its files. `digest`: of their names, sizes and beginnings."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaListed(OllamaModel, frozen=True, kw_only=True):
    """One model of /api/tags."""

    modified_at: Rfc3339


class OllamaTags(msgspec.Struct, frozen=True):
    """GET /api/tags."""

    models: list[OllamaListed]


class OllamaLoaded(OllamaModel, frozen=True, kw_only=True):
    """One model of /api/ps. `size_vram`: bytes on a GPU."""

    expires_at: Rfc3339
    size_vram: int
    context_length: int


class OllamaRunning(msgspec.Struct, frozen=True):
    """GET /api/ps."""

    models: list[OllamaLoaded]


class OllamaShown(msgspec.Struct, kw_only=True):
    """The answer of /api/show. `template` is Jinja, as the model brings it. `parameters`: what its file says of them."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: Rfc3339
    license: str | UnsetType = UNSET


class OllamaPulled(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /api/pull, or one line of it: the last one is `success`.

    `digest`: the commit of the repository. `total`, `completed`: bytes of all files that are needed, and that are here.
    """

    status: str
    digest: str | UnsetType = UNSET
    total: int | UnsetType = UNSET
    completed: int | UnsetType = UNSET


class OllamaVersion(msgspec.Struct, frozen=True):
    """GET /api/version: of the Ollama whose API this is."""

    version: str


# --- names ------------------------------------------------------------------------------------------------------------

LATEST = ":latest"


def meant(name: str, knows: Callable[[str], bool]) -> str:
    """The served name for `name`, with or without the tag; `name` itself if there is none."""
    if knows(name):
        return name
    other = name.removesuffix(LATEST) if name.endswith(LATEST) else f"{name}{LATEST}"
    return other if other and knows(other) else name


def model_meant(http: HttpCall, server: Server) -> str | None:
    name = model_of_body(http, server)
    return None if name is None else meant(name, server.models.knows)


def served_name(name: str, profile: ModelProfile) -> str:
    known = {profile.name, *profile.aliases, *profile.adapter_names()}
    return meant(name, known.__contains__)


def tagged(name: str) -> str:
    """The name as lists show it: clients take the part behind the colon for the tag."""
    return name if ":" in name.rpartition("/")[2] else f"{name}{LATEST}"


# --- lists and descriptions -------------------------------------------------------------------------------------------

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
    statuses = {status.name: status for status in server.hosting.statuses()} if server.hosting is not None else {}
    models = server.models.models
    return OllamaRunning(
        [_loaded(facts, statuses.get(model.name)) for model in models for facts in facts_by_name([model])]
    )


async def version(http: HttpCall, server: Server) -> OllamaVersion:
    return OllamaVersion(VERSION)


async def show(http: HttpCall, server: Server) -> Reply:
    raw = decode_object(http, WORDS)
    body = read_struct(raw, OllamaShowBody, WORDS)
    name = named_model(body.model or body.name)
    wanted = meant(name, server.models.knows)
    away = server.models.unloaded_called(wanted)
    try:
        made = _shown(server.models.find(wanted)) if away is None else _described(facts_of_unloaded(away))
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


# --- pull -------------------------------------------------------------------------------------------------------------

_HUB = re.compile(r"(?:https?://)?(?:hf\.co|huggingface\.co)/", re.IGNORECASE)
_NOT_ALLOWED = (
    "pull is not offered here: clients may have models downloaded only if the server was started with --allow-pull "
    "(option.allow_pull)"
)
_BEGUN = OllamaPulled(status="pulling manifest")
_DONE = OllamaPulled(status="success")


async def pull(http: HttpCall, server: Server) -> Reply | StreamedReply:
    raw = decode_object(http, WORDS)
    body = read_struct(raw, OllamaPullBody, WORDS)
    name = _HUB.sub("", named_model(body.model or body.name), count=1)
    idle = [*unknown_names(raw, OllamaPullBody), *(["insecure"] if body.insecure else [])]
    headers = note_ignored(server.switches.for_call(http.headers), idle)
    steps = None if _is_served(name, server) else _begun(name, server)
    if body.stream is not False:
        return StreamedReply(Head(NDJSON_MEDIA_TYPE, headers=headers), _lines(steps), _last_line)
    async for _ in _lines(steps):
        pass
    return json_reply(200, _DONE, headers)


def _is_served(name: str, server: Server) -> bool:
    models = server.models
    is_default = name in PLACEHOLDER_MODELS and bool(models.models)
    return is_default or models.knows(meant(name, models.knows))


def _begun(name: str, server: Server) -> AsyncGenerator[PullStep]:
    if server.pulling is None:
        raise UnsupportedFeature(_NOT_ALLOWED)
    return server.pulling.pull(name.removesuffix(LATEST))


async def _lines(steps: AsyncGenerator[PullStep] | None) -> AsyncGenerator[bytes]:
    yield _line(_BEGUN)
    if steps is not None:
        async with aclosing(steps):
            async for step in steps:
                if line := _told_step(step):
                    yield _line(line)
    yield _line(_DONE)


def _told_step(step: PullStep) -> OllamaPulled | None:
    if step.note:
        return OllamaPulled(status=step.note)
    if not step.size:
        return None
    return OllamaPulled(
        status=f"pulling {step.what}", digest=f"sha1:{step.commit}", total=step.size, completed=step.num_bytes
    )


def _line(line: OllamaPulled | OllamaError) -> bytes:
    return jsonline(msgspec.json.encode(line))


def _last_line(error: ServerError) -> bytes:
    return _line(OllamaError(error.message))
