"""The bodies of llama.cpp's API. Used on the event loop. Source: llama.cpp, tools/server/README.md."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.parameters import SamplingFields
from dragoman.server.apis.openai_wire.llamacpp_names import LlamaLora
from dragoman.server.progress import ToldProgress
from dragoman.server.timings import Timings

# --- what clients send ------------------------------------------------------------------------------------------------


class LlamaFile(msgspec.Struct):
    """A piece of other code."""

    text: str
    filename: str = "tmp"


class LlamaSharedBody(SamplingFields, kw_only=True):
    """Fields that `/completion` and `/infill` share and that have an effect; None = not given."""

    model: str | None = None
    stream: bool | None = None
    n_predict: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n_cmpl: int | None = None
    n: int | None = None
    n_keep: int | None = None
    n_discard: int | None = None
    n_indent: int | None = None
    t_max_predict_ms: int | None = None
    cache_prompt: bool | None = None
    return_tokens: bool | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    response_fields: list[str] | None = None
    samplers: str | list[str] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    ignore_eos: bool | None = None
    logit_bias: list[list[int | float | str | bool]] | dict[str, float | bool] | None = None
    n_probs: int | None = None
    post_sampling_probs: bool | None = None
    logprobs: int | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    lora: list[LlamaLora] | None = None


class LlamaCompletionBody(LlamaSharedBody, kw_only=True):
    """The body of POST /completion; `prompt` may be many things."""

    prompt: Any = None


class LlamaInfillBody(LlamaSharedBody, kw_only=True):
    """The body of POST /infill."""

    input_prefix: str
    input_suffix: str
    input_extra: list[LlamaFile] | None = None
    prompt: str | None = None


class LlamaEmbedBody(msgspec.Struct, kw_only=True):
    """The body of POST /embedding."""

    content: Any = None
    input: Any = None
    model: str | None = None
    embd_normalize: int | None = None


# --- what clients are sent --------------------------------------------------------------------------------------------


class LlamaTopToken(msgspec.Struct):
    """One of the most likely tokens: its log-probability, or the probability that it is drawn with."""

    id: int
    token: str
    bytes: list[int]
    logprob: float | UnsetType = UNSET
    prob: float | UnsetType = UNSET


class LlamaToken(msgspec.Struct):
    """A token of the answer, and what was most likely in its place; as above."""

    id: int
    token: str
    bytes: list[int]
    logprob: float | UnsetType = UNSET
    top_logprobs: list[LlamaTopToken] | UnsetType = UNSET
    prob: float | UnsetType = UNSET
    top_probs: list[LlamaTopToken] | UnsetType = UNSET


class LlamaPiece(msgspec.Struct, kw_only=True):
    """A piece of a streamed answer."""

    index: int
    content: str
    tokens: list[int]
    stop: Literal[False] = False
    id_slot: int = -1
    tokens_predicted: int
    tokens_evaluated: int
    timings: Timings | UnsetType = UNSET
    prompt_progress: ToldProgress | UnsetType = UNSET
    completion_probabilities: list[LlamaToken] | UnsetType = UNSET


class LlamaAnswer(msgspec.Struct, kw_only=True):
    """The answer to one prompt, or the end of its stream, which has no `content`. `id_slot`: there are no slots."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int = -1
    stop: Literal[True] = True
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: dict[str, Any]
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: Literal["none", "eos", "limit", "word"]
    stopping_word: str
    tokens_cached: int
    timings: Timings | UnsetType = UNSET
    completion_probabilities: list[LlamaToken] | UnsetType = UNSET


class LlamaEmbedding(msgspec.Struct):
    """The vector of one text: a list of one, as there could be one for each token."""

    index: int
    embedding: list[list[float]]


class LlamaTemplated(msgspec.Struct):
    """A conversation as the model sees it."""

    prompt: str


class LlamaNext(msgspec.Struct):
    """The progress of a slot's answer."""

    has_next_token: bool
    n_remain: int
    n_decoded: int


class LlamaSlot(msgspec.Struct, kw_only=True):
    """Room for one sequence, and the progress of the sequence in it."""

    id: int
    id_task: int = -1
    n_ctx: int
    speculative: bool
    is_processing: bool
    next_token: LlamaNext


class LlamaModalities(msgspec.Struct):
    """The inputs that a model takes besides text."""

    vision: bool
    audio: bool = False


class LlamaDefaults(msgspec.Struct):
    """The defaults of calls."""

    n_ctx: int
    params: dict[str, Any]


class LlamaProps(msgspec.Struct, kw_only=True):
    """The answer of GET /props."""

    default_generation_settings: LlamaDefaults
    total_slots: int
    model_alias: str
    model_path: str
    modalities: LlamaModalities
    chat_template: str
    chat_template_caps: dict[str, bool]
    bos_token: str
    eos_token: str
    build_info: str
    endpoint_slots: bool
    endpoint_props: bool = False
    endpoint_metrics: bool = True
    is_sleeping: bool = False


class LlamaAdapter(msgspec.Struct):
    """An adapter, and how much of it is applied where a call says nothing."""

    id: int
    path: str
    scale: float


class LlamaDone(msgspec.Struct):
    """It was done."""

    success: bool = True
