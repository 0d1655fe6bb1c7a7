"""The Structs of chat. Sources: OpenAI API reference, chat; LMI 0.30, chat completions API schema; vLLM."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dragoman.server.apis.openai_wire.common import Created, PromptLogprobs, Usage
from dragoman.server.apis.openai_wire.profile import OPENAI_FINISH
from dragoman.server.apis.openai_wire.sampling import SharedBody
from dragoman.server.apis.openai_wire.thinking import ReasoningBody
from dragoman.server.progress import ToldProgress
from dragoman.server.timings import Timings
from dragoman.tokenizer.message_content import DETAILS

# --- request ----------------------------------------------------------------------------------------------------------


ImageDetail = Annotated[str, Meta(extra_json_schema={"enum": list(DETAILS)})]


class ImageUrl(msgspec.Struct, kw_only=True):
    """`image_url` of a content part. `url`: `data:image/...;base64,...`, an http(s) address or bare base64 data."""

    url: str | None = None
    detail: ImageDetail | None = None


class ContentPart(msgspec.Struct, kw_only=True):
    """One part of a message's content: text, a refusal, or an image."""

    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | str | None = None


class MessageFunction(msgspec.Struct, kw_only=True):
    """The function of a tool call in the conversation; `arguments` as JSON text or, from some clients, as an object."""

    name: str
    arguments: str | dict[str, Any] | None = None


class MessageToolCall(msgspec.Struct, kw_only=True):
    """A tool call that the assistant made earlier in the conversation."""

    function: MessageFunction
    id: str | None = None
    type: str | None = None


class ChatMessage(msgspec.Struct, kw_only=True):
    """One message of the conversation. `prefix: true` on the last one asks to continue it.

    `function_call`, and the role `function` for what it gave, are the form that calls had before there were tools.
    """

    role: str | None = None
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    function_call: MessageFunction | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    prefix: bool | None = None


class ToolFunction(msgspec.Struct, kw_only=True):
    """A function the model may call; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    """One entry of `tools`."""

    function: ToolFunction
    type: str | None = None


class NamedFunction(msgspec.Struct, kw_only=True):
    """The function that `tool_choice` or `function_call` names."""

    name: str


class NamedTool(msgspec.Struct, kw_only=True):
    """`tool_choice` as an object: that one function must be called."""

    function: NamedFunction
    type: str | None = None


class ChatBody(SharedBody, kw_only=True):
    return_progress: bool | None = None
    messages: list[ChatMessage] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    n_probs: int | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: str | NamedTool | None = None
    functions: list[ToolFunction] | None = None
    function_call: str | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[Any] | None = None
    reasoning_effort: str | None = None
    reasoning: ReasoningBody | None = None
    include_reasoning: bool | None = None
    echo: bool | None = None
    return_token_ids: bool | None = None
    return_tokens: bool | None = None

    def reasoning_tokens(self) -> int | None:
        return None if self.reasoning is None else self.reasoning.max_tokens


# --- answer -----------------------------------------------------------------------------------------------------------


class TopLogprob(msgspec.Struct):
    """A candidate. `token` is a number only where LMI's slip of the pen is reproduced."""

    token: str | float | None
    logprob: float | None
    bytes: list[int] | None


class TokenLogprob(msgspec.Struct):
    """A generated token; `bytes` are its own, however its character was pieced together."""

    token: str
    logprob: float | None
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """`logprobs` of a choice."""

    content: list[TokenLogprob]


class FunctionCall(msgspec.Struct, omit_defaults=True):
    """A function call, or a piece of one: `name` only in the first piece."""

    name: str | None = None
    arguments: str | UnsetType = UNSET


class ToolCallObject(msgspec.Struct, omit_defaults=True):
    """A tool call of an answer (without `index`) or of a chunk (`id` and `type` only in the first piece)."""

    function: FunctionCall
    index: int | UnsetType = UNSET
    id: str | None = None
    type: str | None = None


class AnswerMessage(msgspec.Struct):
    """The assistant's message; `content` is null beside tool calls that came without text."""

    role: str
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallObject] | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET


class Delta(msgspec.Struct):
    """The part of the message that a chunk adds."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallObject] | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET


_FINISH_WORDS = sorted({*OPENAI_FINISH.values(), "tool_calls", "function_call", "eos_token", "stop_sequence"})
FinishWord = Annotated[str, Meta(extra_json_schema={"enum": _FINISH_WORDS})]  # the last two are LMI's


class ChatChoice(msgspec.Struct):
    """One choice of an answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishWord
    token_ids: list[int] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    """One choice of a chunk. `logprobs` is a list only where LMI's slip of the pen is reproduced."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | list[ChatLogprobs] | None
    finish_reason: FinishWord | None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct):
    """An answer. LMI's shape has no `system_fingerprint`, and says eos_token or stop_sequence where OpenAI's says stop."""

    id: str
    object: Literal["chat.completion"]
    created: Created
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class ChatCompletionChunk(msgspec.Struct):
    """One event or line of a stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: Created
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    prompt_progress: ToldProgress | UnsetType = UNSET
