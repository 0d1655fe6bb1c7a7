"""llama.cpp's own API: completions, fill in the middle, embeddings, and what its server tells of itself.

What it has in OpenAI's shape is served below `/v1`; `/tokenize` and `/detokenize` answer in its shape, too (`apis.openai`).
"""

from __future__ import annotations

from functools import partial

from dragoman.server.api import JSON_MEDIA_TYPE, SSE_MEDIA_TYPE, Dialects, ModelProfile
from dragoman.server.apis.llamacpp.describe import PARAMETERS, schemas
from dragoman.server.apis.llamacpp.dialect import AppliedAdapter, CompletionDialect, InfillDialect
from dragoman.server.apis.llamacpp.embed import EmbedDialect
from dragoman.server.apis.llamacpp.errors import ERRORS, LlamaError, LlamaErrors
from dragoman.server.apis.llamacpp.facts import (
    COMPLETION,
    adapters,
    apply_template,
    change_slot,
    model_meant,
    props,
    set_adapters,
    set_props,
    slots,
)
from dragoman.server.apis.llamacpp.schema import (
    LlamaAdapter,
    LlamaAnswer,
    LlamaDone,
    LlamaEmbedding,
    LlamaPiece,
    LlamaProps,
    LlamaSlot,
    LlamaTemplated,
)
from dragoman.server.describe.answers import LOADING, Answer, json_answer, merged
from dragoman.server.describe.components import GENERATED, IGNORED, MESSAGES, QUESTION
from dragoman.server.describe.json_schema import ref
from dragoman.server.operations import AnswerOperation, Api, GenerateOperation, PoolingOperation
from dragoman.server.security.scopes import Scope

NAME = "llamacpp"
TAG = "llama.cpp"
INFILL, EMBED = f"{NAME}.infill", f"{NAME}.embed"

_TELLER = LlamaErrors()
_CHOSEN = {"type": "object", "description": "the fields that `response_fields` names"}
_ASKED = ("invalid_payload", "invalid_parameter", "unsupported", "too_large", "unauthorized", "not_found", *LOADING)
_RENDERED = (*_ASKED, "invalid_request", "capacity", "overloaded", "timeout", "server_error")


def set_up(profile: ModelProfile) -> Dialects:
    """Its dialects for a model."""
    applied = AppliedAdapter()
    return {
        COMPLETION: CompletionDialect(profile, applied),
        INFILL: InfillDialect(profile, applied),
        EMBED: EmbedDialect(profile),
    }


_generated = merged(
    {
        200: Answer(
            "the answer, a list of answers, or a stream of pieces",
            {
                JSON_MEDIA_TYPE: (LlamaAnswer, list[LlamaAnswer], _CHOSEN, {"type": "array", "items": _CHOSEN}),
                SSE_MEDIA_TYPE: (LlamaPiece, LlamaAnswer, LlamaError, _CHOSEN),
            },
            GENERATED,
        )
    },
    ERRORS.answers(),
)
_generates = partial(GenerateOperation, tag=TAG, model=model_meant, answers=_generated)
_completes = partial(
    _generates,
    body={JSON_MEDIA_TYPE: ref("LlamaCompletionRequest")},
    example={"prompt": QUESTION, "n_predict": 32, "temperature": 0},
    dialect=COMPLETION,
)
_embeds = partial(
    PoolingOperation,
    tag=TAG,
    summary="Embed texts, in llama.cpp's shape",
    answers=merged({200: json_answer(list[LlamaEmbedding], "the embeddings", *IGNORED)}, ERRORS.answers()),
    body={JSON_MEDIA_TYPE: ref("LlamaEmbedRequest")},
    example={"content": QUESTION},
    dialect=EMBED,
    model=model_meant,
)
_answers = partial(AnswerOperation, tag=TAG, scope=Scope.INFERENCE)
_manages = partial(AnswerOperation, tag=TAG, scope=Scope.MANAGEMENT)

API = Api(
    name=NAME,
    title="llama.cpp",
    owns=tuple(
        f"/{name}"
        for name in (
            "completion",
            "completions",
            "infill",
            "embedding",
            "embeddings",
            "props",
            "slots",
            "lora-adapters",
            "apply-template",
        )
    ),
    set_up=set_up,
    teller=lambda dialects: _TELLER,
    schemas=schemas,
    parameters=PARAMETERS,
    operations=(
        _completes(path="/completion", summary="Go on with a prompt"),
        _completes(path="/completions", summary="The same"),
        _generates(
            path="/infill",
            summary="Fill a gap in code",
            body={JSON_MEDIA_TYPE: ref("LlamaInfillRequest")},
            example={
                "input_prefix": f"# {QUESTION}\ndef answer():\n",
                "input_suffix": "\n\nprint(answer())\n",
                "n_predict": 32,
            },
            dialect=INFILL,
        ),
        _embeds(path="/embedding"),
        _embeds(path="/embeddings"),
        _answers(
            path="/apply-template",
            summary="A conversation as the model sees it",
            answers=merged({200: json_answer(LlamaTemplated, "the prompt", *IGNORED)}, ERRORS.answers(_RENDERED)),
            body={JSON_MEDIA_TYPE: ref("LlamaTemplateRequest")},
            example={"messages": MESSAGES},
            answer=apply_template,
        ),
        _answers(
            method="GET",
            path="/props",
            summary="What the model is, and what holds where calls say nothing",
            parameters=("llama_model_query",),
            answers=merged({200: json_answer(LlamaProps, "the properties")}, ERRORS.answers(_ASKED)),
            answer=props,
        ),
        _answers(
            path="/props",
            summary="Not offered: properties are not changed by calls",
            answers=ERRORS.answers(("unsupported", "unauthorized")),
            answer=set_props,
        ),
        _answers(
            method="GET",
            path="/slots",
            summary="The room for sequences, and how far those are that are computed",
            parameters=("llama_model_query", "llama_fail_query"),
            answers=merged({200: json_answer(list[LlamaSlot], "the slots")}, ERRORS.answers(_ASKED)),
            answer=slots,
        ),
        _answers(
            path="/slots/{id_slot}",
            summary="Not offered: slots are not saved, restored or erased",
            parameters=("llama_slot_path",),
            answers=ERRORS.answers(("unsupported", "unauthorized")),
            answer=change_slot,
        ),
        _manages(
            method="GET",
            path="/lora-adapters",
            summary="The adapters, and which is applied where calls of this API name none",
            parameters=("llama_model_query",),
            answers=merged({200: json_answer(list[LlamaAdapter], "the adapters")}, ERRORS.answers(_ASKED)),
            answer=adapters,
        ),
        _manages(
            path="/lora-adapters",
            summary="Have an adapter applied where calls of this API name none",
            parameters=("llama_model_query",),
            answers=merged({200: json_answer(LlamaDone, "it is applied")}, ERRORS.answers(_ASKED)),
            body={JSON_MEDIA_TYPE: ref("LlamaScales")},
            example=[],
            answer=set_adapters,
        ),
    ),
)
