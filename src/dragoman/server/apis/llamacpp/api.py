"""llama.cpp's own API. Its OpenAI shapes, `/tokenize` and `/detokenize` are in `apis.openai`."""

from __future__ import annotations

from functools import partial
from typing import Any

from dragoman.server.api import JSON_MEDIA_TYPE, SSE_MEDIA_TYPE, Dialects, ModelProfile
from dragoman.server.apis.llamacpp.describe import PARAMETERS, schemas
from dragoman.server.apis.llamacpp.dialect import AppliedAdapter, CompletionDialect, InfillDialect
from dragoman.server.apis.llamacpp.embed import EMBED
from dragoman.server.apis.llamacpp.errors import ERRORS, LlamaError
from dragoman.server.apis.llamacpp.facts import (
    COMPLETION,
    adapters,
    apply_template,
    model_meant,
    props,
    set_adapters,
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
from dragoman.server.apis.openai_wire.pooling import TextsDialect
from dragoman.server.describe.answers import READING, REFUSING, Answer, json_answer
from dragoman.server.describe.components import GENERATED, IGNORED, MESSAGES, QUESTION
from dragoman.server.describe.json_schema import ref
from dragoman.server.operations import (
    AnswerCall,
    AnswerOperation,
    Api,
    GenerateOperation,
    PoolingOperation,
    not_offered,
)
from dragoman.server.security.scopes import Scope

NAME = "llamacpp"
TAG = "llama.cpp"
INFILL, EMBEDDING = f"{NAME}.infill", f"{NAME}.embed"

_CHOSEN = {"type": "object", "description": "the fields that `response_fields` names"}
_ASKED = (*READING, "unsupported")
_RENDERED = (*_ASKED, "invalid_request", "capacity", "overloaded", "timeout", "server_error")
_OWNED = (
    "completion", "completions", "infill", "embedding", "embeddings", "props", "slots", "lora-adapters", "apply-template",
)  # fmt: skip


def set_up(profile: ModelProfile) -> Dialects:
    applied = AppliedAdapter()
    return {
        COMPLETION: CompletionDialect(profile, applied),
        INFILL: InfillDialect(profile, applied),
        EMBEDDING: TextsDialect(profile, EMBED),
    }


_generates = partial(
    GenerateOperation,
    tag=TAG,
    model=model_meant,
    answers=ERRORS.beside(
        Answer(
            "the answer, a list of answers, or a stream of pieces",
            {
                JSON_MEDIA_TYPE: (LlamaAnswer, list[LlamaAnswer], _CHOSEN, {"type": "array", "items": _CHOSEN}),
                SSE_MEDIA_TYPE: (LlamaPiece, LlamaAnswer, LlamaError, _CHOSEN),
            },
            GENERATED,
        )
    ),
)
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
    answers=ERRORS.beside(json_answer(list[LlamaEmbedding], "the embeddings", *IGNORED)),
    body={JSON_MEDIA_TYPE: ref("LlamaEmbedRequest")},
    example={"content": QUESTION},
    dialect=EMBEDDING,
    model=model_meant,
)
_answers = partial(AnswerOperation, tag=TAG, scope=Scope.INFERENCE)
_refuses = partial(not_offered, tag=TAG, answers=ERRORS.answers(REFUSING))


def _tells(
    path: str, kind: Any, words: str, answer: AnswerCall, summary: str, *parameters: str, scope: Scope = Scope.INFERENCE
) -> AnswerOperation:
    return AnswerOperation(
        method="GET",
        path=path,
        tag=TAG,
        summary=summary,
        parameters=("llama_model_query", *parameters),
        answers=ERRORS.beside(json_answer(kind, words), _ASKED),
        scope=scope,
        answer=answer,
    )


API = Api(
    name=NAME,
    title="llama.cpp",
    owns=tuple(f"/{name}" for name in _OWNED),
    set_up=set_up,
    teller=lambda dialects: ERRORS,
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
            answers=ERRORS.beside(json_answer(LlamaTemplated, "the prompt", *IGNORED), _RENDERED),
            body={JSON_MEDIA_TYPE: ref("LlamaTemplateRequest")},
            example={"messages": MESSAGES},
            answer=apply_template,
        ),
        _tells(
            "/props", LlamaProps, "the properties", props, "What the model is, and what holds where calls say nothing"
        ),
        _refuses(
            "properties cannot be changed by calls: start the server with other options",
            path="/props",
            summary="Not offered: properties are not changed by calls",
        ),
        _tells(
            "/slots",
            list[LlamaSlot],
            "the slots",
            slots,
            "The room for sequences, and how far those are that are computed",
            "llama_fail_query",
        ),
        _refuses(
            "slots cannot be saved, restored or erased: the prefix cache manages itself",
            path="/slots/{id_slot}",
            summary="Not offered: slots are not saved, restored or erased",
            parameters=("llama_slot_path",),
        ),
        _tells(
            "/lora-adapters",
            list[LlamaAdapter],
            "the adapters",
            adapters,
            "The adapters, and which is applied where calls of this API name none",
            scope=Scope.MANAGEMENT,
        ),
        AnswerOperation(
            path="/lora-adapters",
            tag=TAG,
            summary="Have an adapter applied where calls of this API name none",
            parameters=("llama_model_query",),
            answers=ERRORS.beside(json_answer(LlamaDone, "it is applied"), _ASKED),
            body={JSON_MEDIA_TYPE: ref("LlamaScales")},
            example=[],
            scope=Scope.MANAGEMENT,
            answer=set_adapters,
        ),
    ),
)
