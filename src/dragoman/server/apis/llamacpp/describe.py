"""The bodies of llama.cpp's operations as schemas. Used when the document is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dragoman.server.api import ModelProfile
from dragoman.server.apis.llamacpp.embed import NORMS
from dragoman.server.apis.llamacpp.parameters import WORDS
from dragoman.server.apis.llamacpp.schema import LlamaCompletionBody, LlamaEmbedBody, LlamaInfillBody, LlamaSharedBody
from dragoman.server.apis.openai_wire.describe import EFFECTS, struct_body
from dragoman.server.apis.openai_wire.llamacpp_names import LlamaLora
from dragoman.server.apis.openai_wire.pooling import MODEL, texts_schema
from dragoman.server.describe.components import parameter
from dragoman.server.describe.json_schema import (
    LENIENT_BOOLEAN,
    TEXT,
    Schema,
    an_object,
    any_of,
    array,
    nullable,
    ref,
    struct_schemas,
    without_null,
)
from dragoman.types import Limits

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
