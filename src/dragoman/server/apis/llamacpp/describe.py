"""The bodies of llama.cpp's operations as schemas.

Does: describe, with the ranges that are checked. Does not: answer. Used when the document is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.server.api import ModelProfile
from dragoman.server.apis.llamacpp.parameters import INT32_MAX, NEUTRAL, RANGES
from dragoman.server.apis.llamacpp.schema import LlamaCompletionBody, LlamaInfillBody
from dragoman.server.apis.openai_wire.llamacpp_names import LlamaLora
from dragoman.server.apis.openai_wire.pooling.texts import MODEL, texts_schema
from dragoman.server.bounds import Bounds
from dragoman.server.describe.components import parameter
from dragoman.server.describe.json_schema import (
    INTEGER,
    LENIENT_BOOLEAN,
    TEXT,
    Schema,
    an_object,
    any_of,
    array,
    fields_of,
    nullable,
    range_of,
    ref,
    struct_schemas,
)
from dragoman.server.samplers import BREAKERS_SCHEMA, SAMPLER_EFFECTS
from dragoman.types import Limits

PARAMETERS: Mapping[str, dict[str, Any]] = {
    "llama_slot_path": parameter("path", "id_slot", "a slot", TEXT),
    "llama_model_query": parameter("query", "model", "the model; the default model if absent", TEXT),
    "llama_fail_query": parameter("query", "fail_on_no_slot", "answer 503 if all slots are in use", TEXT),
}

_TEXTS: Mapping[str, str] = {
    "prompt": "what to go on with",
    "n_predict": "the most tokens to generate; -1: as many as fit, 0: only compute the prompt",
    "n_cmpl": "answers to each prompt",
    "n_indent": "end before a line that is indented by fewer blanks and tabs",
    "t_max_predict_ms": "end at the first end of a line that comes later after the first token",
    "cache_prompt": "false: neither use nor keep cached parts of the prompt",
    "return_progress": "with stream: tell how far the prompt is, and who is before it",
    "return_tokens": "tell the token ids of the answer",
    "response_fields": "the fields of the answer; a slash leads into an object",
    "samplers": "those that are on",
    "logit_bias": "pairs of a token id or text and its bias, or an object of them; false: never",
    "n_probs": "tell so many of the most likely tokens in the place of each",
    "post_sampling_probs": "these are of what each was drawn from",
    "grammar": "in GBNF, or in Lark after %llguidance",
    "lora": "the adapter of this answer, by its place in the list",
}


def schemas(profile: ModelProfile) -> dict[str, Schema]:
    """The components of its bodies."""
    made = struct_schemas((LlamaCompletionBody, LlamaInfillBody, LlamaLora))
    limits = profile.limits
    return {
        **{name: made[name] for name in ("LlamaLora", "LlamaFile")},
        "LlamaCompletionRequest": _body(made["LlamaCompletionBody"], limits, {"prompt": _prompts(limits)}),
        "LlamaInfillRequest": _body(made["LlamaInfillBody"], limits, {}),
        "LlamaEmbedRequest": an_object(
            {},
            {
                "content": texts_schema(limits),
                "input": nullable(texts_schema(limits)),
                "embd_normalize": nullable(INTEGER | range_of(Bounds(-1, INT32_MAX))),
                "model": MODEL,
            },
        ),
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


def _body(made: Schema, limits: Limits, changed: Mapping[str, Schema]) -> Schema:
    ranges = {
        **RANGES,
        "n_cmpl": Bounds(1, limits.max_best_of),
        "n": Bounds(1, limits.max_best_of),
        "n_probs": Bounds(0, limits.max_logprobs),
        "logprobs": Bounds(0, limits.max_logprobs),
    }
    properties = fields_of(
        made,
        own={"dry_sequence_breakers": dict(BREAKERS_SCHEMA), **changed},
        ranges=ranges,
        words={**SAMPLER_EFFECTS, **_TEXTS},
        required=(*made.get("required", ()), *changed),
    )
    idle = {name: {"description": f"no effect: {reason}"} for name, (_, reason) in NEUTRAL.items()}
    return {**made, "properties": {**properties, **idle}}


def _prompts(limits: Limits) -> Schema:
    token: Schema = {"type": "integer", "minimum": 0}
    wrapped = an_object({"prompt_string": TEXT})
    parts = array(any_of(token, TEXT), minItems=1, maxItems=limits.max_token_ids)
    return any_of(TEXT, parts, wrapped, array(any_of(TEXT, wrapped, parts), minItems=1, maxItems=limits.max_prompts))
