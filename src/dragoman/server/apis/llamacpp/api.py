"""llama.cpp's own API: its operations, embeddings among them. Its OpenAI shapes and `/tokenize` are in `apis.openai`.

On the event loop. Source: llama.cpp, tools/server/README.md; common_embd_normalize.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dragoman.parameters import Bounds
from dragoman.server.api import JSON_MEDIA_TYPE, SSE_MEDIA_TYPE, Dialects, ModelProfile
from dragoman.server.apis.llamacpp.completion import (
    AppliedAdapter,
    CompletionDialect,
    InfillDialect,
    LlamaAnswer,
    LlamaPiece,
)
from dragoman.server.apis.llamacpp.facts import (
    COMPLETION,
    LlamaAdapter,
    LlamaDone,
    LlamaProps,
    LlamaSlot,
    LlamaTemplated,
    adapters,
    apply_template,
    model_meant,
    props,
    set_adapters,
    slots,
)
from dragoman.server.apis.llamacpp.request import (
    ERRORS,
    INT32_MAX,
    WORDS,
    LlamaCompletionBody,
    LlamaError,
    LlamaInfillBody,
    LlamaSharedBody,
)
from dragoman.server.apis.openai_wire.describe import EFFECTS, struct_body
from dragoman.server.apis.openai_wire.fields import check_number, unknown_names
from dragoman.server.apis.openai_wire.llamacpp_names import LlamaLora
from dragoman.server.apis.openai_wire.pooling import (
    MODEL,
    TextsCall,
    TextsDialect,
    TextsOperation,
    encoded_arrays,
    read_texts,
    texts_schema,
)
from dragoman.server.descriptions import (
    GENERATED,
    IGNORED,
    LENIENT_BOOLEAN,
    MESSAGES,
    QUESTION,
    READING,
    REFUSING,
    TEXT,
    Answer,
    Schema,
    an_object,
    any_of,
    array,
    json_answer,
    nullable,
    parameter,
    ref,
    struct_schemas,
    without_null,
)
from dragoman.server.operations import (
    AnswerCall,
    AnswerOperation,
    Api,
    GenerateOperation,
    PoolingOperation,
    not_offered,
)
from dragoman.server.pooling.base import EmbedRequest, embedder
from dragoman.server.security.callers import Scope
from dragoman.types import Limits

# --- embeddings -------------------------------------------------------------------------------------------------------

EUCLIDEAN = 2
NORMS = Bounds(-1, INT32_MAX)


class LlamaEmbedBody(msgspec.Struct, kw_only=True):
    """The body of POST /embedding."""

    content: Any = None
    input: Any = None
    model: str | None = None
    embd_normalize: int | None = None


class LlamaEmbedding(msgspec.Struct):
    """The vector of one text: a list of one, as there could be one for each token."""

    index: int
    embedding: list[list[float]]


async def _embed(call: TextsCall[LlamaEmbedBody]) -> Any:
    body = call.body
    kind = EUCLIDEAN if body.embd_normalize is None else body.embd_normalize
    check_number("embd_normalize", kind, NORMS, WORDS)
    name, value = ("content", body.content) if body.input is None else ("input", body.input)
    if value is None:
        raise WORDS.payload_fault("content", "content is missing: it must be a text or a list of texts", param=name)
    service = embedder(call.profile)
    field, texts = read_texts(name, value, call.limits, WORDS)
    made = await field.asked(service.embed, EmbedRequest(texts=texts, request_id=call.request_id, normalize=False))
    return await encoded_arrays(made.values, partial(_told, kind))


def _idle(call: TextsCall[LlamaEmbedBody]) -> list[str]:
    overridden = [] if call.body.input is None or "content" not in call.raw else ["content"]
    return [*unknown_names(call.raw, LlamaEmbedBody), *overridden]


EMBED = TextsOperation(LlamaEmbedBody, _embed, WORDS, ERRORS, _idle)


def _told(kind: int, index: int, row: npt.NDArray[np.float32]) -> Any:
    return LlamaEmbedding(index, [scaled(row, kind).tolist()])


def scaled(row: npt.NDArray[np.float32], kind: int) -> npt.NDArray[np.float32]:
    """The vector as it is (-1), as fractions of 32,760 of its largest number (0), or of length 1 in the `kind`-norm."""
    if kind == -1:
        return row
    lengths = np.abs(row.astype(np.float64))
    largest = float(lengths.max(initial=0.0))
    if largest == 0.0:
        return row
    size = largest / 32760.0 if kind == 0 else largest * float(np.sum((lengths / largest) ** kind)) ** (1 / kind)
    return (row / size).astype(np.float32)


# --- schemas ----------------------------------------------------------------------------------------------------------

PARAMETERS: Mapping[str, dict[str, Any]] = {
    "llama_slot_path": parameter("path", "id_slot", "a slot", TEXT),
    "llama_model_query": parameter("query", "model", "the model; the default model if absent", TEXT),
    "llama_fail_query": parameter("query", "fail_on_no_slot", "answer 503 if all slots are in use", TEXT),
}

_EFFECTS: Mapping[str, str] = {
    **EFFECTS,
    "prompt": "what to go on with",
    "logit_bias": "pairs of a token id or text and its bias, or an object of them; false: never",
    "timings_per_token": "`timings` in every piece of a stream",
    "response_fields": "the fields of the answer; a slash leads into an object",
}


def schemas(profile: ModelProfile) -> dict[str, Schema]:
    made = struct_schemas((LlamaSharedBody, LlamaInfillBody, LlamaLora))
    # These are read in their own way here.
    own = {name: without_null(made["LlamaSharedBody"]["properties"][name]) for name in ("logit_bias", "stop")}
    body = partial(struct_body, effects=_EFFECTS, profile=WORDS, model=profile, own=own)
    limits = profile.limits
    texts = texts_schema(limits)
    embed = partial(
        struct_body,
        LlamaEmbedBody,
        {"model": "the default model if absent"},
        replace(WORDS, bounds={"embd_normalize": NORMS}, ignored={}),
        profile,
        own={"content": texts, "input": texts},
    )
    return {
        **{name: made[name] for name in ("LlamaLora", "LlamaFile")},
        "LlamaCompletionRequest": body(LlamaCompletionBody, needed={"prompt": _prompts(limits)}),
        "LlamaInfillRequest": body(LlamaInfillBody, needed={"input_prefix": TEXT, "input_suffix": TEXT}),
        "LlamaEmbedRequest": any_of(embed(needed={"content": texts}), embed(needed={"input": texts})),
        "LlamaTemplateRequest": an_object(
            {"messages": array(ref("ChatMessage"), minItems=1, maxItems=limits.max_messages)},
            {
                "tools": nullable(array(ref("Tool"), maxItems=limits.max_tools)),
                "add_generation_prompt": nullable(LENIENT_BOOLEAN),
                "chat_template_kwargs": nullable({"type": "object"}),
                "model": MODEL,
            },
        ),
        "LlamaScales": array(ref("LlamaLora"), maxItems=limits.max_token_ids),
    }


def _prompts(limits: Limits) -> Schema:
    token: Schema = {"type": "integer", "minimum": 0}
    wrapped = an_object({"prompt_string": TEXT})
    parts = array(any_of(token, TEXT), minItems=1, maxItems=limits.max_token_ids)
    return any_of(TEXT, parts, wrapped, array(any_of(TEXT, wrapped, parts), minItems=1, maxItems=limits.max_prompts))


# --- the API ----------------------------------------------------------------------------------------------------------

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
