"""The routes between text and tokens.

Does: describe them with their bodies and answers. Does not: answer (`tokens_routes` does). Used when the document is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.server.framing import JSON_MEDIA_TYPE
from dragoman.server.openapi.errors import Answer, Answers, Family, error_answers, merged
from dragoman.server.openapi.json_schema import (
    BOOLEAN,
    INTEGER,
    LENIENT_BOOLEAN,
    TEXT,
    Schema,
    an_object,
    any_of,
    array,
    nullable,
    ref,
)
from dragoman.server.openapi.operations import QUESTION, Key, Operation
from dragoman.types import Limits

LIMITS = Limits()
_ERRORS = (
    "invalid_payload", "invalid_parameter", "invalid_request", "unsupported", "unauthorized", "not_found", "too_large",
    "unavailable", "engine_dead", "server_error",
)  # fmt: skip
_IDS = array({"type": "integer", "minimum": 0})
_MODEL = nullable({**TEXT, "description": "the model to use; the default model if absent"})


def _answers(schema: str, family: Family) -> Answers:
    answer = Answer("the answer", {JSON_MEDIA_TYPE: ref(schema)})
    return merged({200: answer}, error_answers(family, _ERRORS))


def _operation(summary: str, answer: str, body: str, example: Any = None, family: Family = "openai") -> Operation:
    content = {JSON_MEDIA_TYPE: ref(body)} if body else {}
    return Operation("Tokens", summary, _answers(answer, family), body=content, example=example)


TOKENS: Mapping[Key, Operation] = {
    ("POST", "/tokenize"): _operation(
        "The tokens of a prompt or of a conversation, as vLLM tells them",
        "Tokenized",
        "TokenizeRequest",
        {"prompt": QUESTION},
    ),
    ("POST", "/detokenize"): _operation(
        "The text of tokens", "Detokenized", "DetokenizeRequest", {"tokens": [72, 105]}
    ),
    ("GET", "/tokenizer_info"): _operation("The tokenizer's special tokens and chat template", "TokenizerInfo", ""),
    ("POST", "/v3/tokenize"): _operation(
        "The tokens of texts, as OpenVINO Model Server tells them",
        "TokenizedV3",
        "TokenizeRequestV3",
        {"model": "default", "text": QUESTION},
        "ovms",
    ),
}
"""One row per method and path."""


def token_schemas() -> dict[str, Schema]:
    """The components of these bodies and answers."""
    chat = "messages, and what else shapes a conversation: as in ChatRequestV1"
    switch = nullable(LENIENT_BOOLEAN)
    strict = nullable(BOOLEAN)
    names = ("bos_token", "eos_token", "pad_token", "unk_token", "chat_template")
    return {
        "TokenizeRequest": any_of(
            an_object({"prompt": TEXT}, {"model": _MODEL, "add_special_tokens": switch, "return_token_strs": switch}),
            an_object(
                {"messages": array(ref("ChatMessage"), minItems=1, maxItems=LIMITS.max_messages)},
                {
                    "model": _MODEL,
                    "add_generation_prompt": switch,
                    "continue_final_message": switch,
                    "return_token_strs": switch,
                    "tools": nullable(array(ref("Tool"), maxItems=LIMITS.max_tools)),
                    "chat_template_kwargs": nullable({"type": "object"}),
                },
                chat,
            ),
        ),
        "Tokenized": an_object(
            {"count": INTEGER, "max_model_len": INTEGER, "tokens": _IDS, "token_strs": nullable(array(TEXT))}
        ),
        "DetokenizeRequest": an_object({"tokens": {**_IDS, "maxItems": LIMITS.max_token_ids}}, {"model": _MODEL}),
        "Detokenized": an_object({"prompt": TEXT}),
        "TokenizerInfo": an_object(
            {
                "tokenizer_class": TEXT,
                **{name: nullable(TEXT) for name in names},
                "additional_special_tokens": array(TEXT),
                "eos_token_ids": _IDS,
                "vocab_size": INTEGER,
                "model_max_length": INTEGER,
            }
        ),
        "TokenizeRequestV3": an_object(
            {"model": TEXT, "text": any_of(TEXT, array(TEXT, maxItems=LIMITS.max_prompts))},
            {
                "add_special_tokens": strict,
                "max_length": nullable(
                    {
                        "type": "integer",
                        "minimum": 1,
                        "description": "cuts; with `pad_to_max_length` at most the context",
                    }
                ),
                "pad_to_max_length": strict,
                "padding_side": nullable({"enum": ["left", "right"]}),
            },
        ),
        "TokenizedV3": an_object({"tokens": any_of(_IDS, array(_IDS))}),
    }
