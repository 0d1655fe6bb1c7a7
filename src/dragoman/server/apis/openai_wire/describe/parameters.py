"""Meanings of the parameters, and defaults where sending them equals leaving the parameter out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.parameters import ALIASES, FURTHER, PARAMETERS, neutral_value
from dragoman.server.apis.openai_wire import staying
from dragoman.server.apis.openai_wire.llamacpp_names import EFFECTS as LLAMA_EFFECTS
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.apis.openai_wire.thinking import BUDGETS

EFFECTS: Mapping[str, str] = {
    **{name: one.effect for name, one in PARAMETERS.items()},
    **{alias: f"another name of `{name}`" for alias, name in ALIASES.items()},
    **LLAMA_EFFECTS,
    **dict.fromkeys(BUDGETS[1:], "the same as `thinking_token_budget`, in llama.cpp's words"),
    "model": "which model answers; placeholders such as `default` or `dummy` mean the default model",
    "stream": "send the answer while it is generated",
    "stream_options": (
        "only with `stream: true`; `include_usage` adds a last chunk without choices and with usage; with "
        "`continuous_usage_stats` all have it"
    ),
    "max_tokens": "maximum number of tokens to generate; without it, up to the context",
    "min_tokens": "no end of sequence before this many tokens; at most `max_tokens`",
    "ignore_eos": "do not end at the end-of-sequence token; on `/v3` at most 4000 tokens then",
    "n": "choices per prompt",
    "best_of": (
        "number of sequences drawn; the `n` most likely are returned; the beam width on `/v3` and with "
        "`use_beam_search`; not with `stream` unless it equals `n`"
    ),
    "use_beam_search": "search with `best_of` or `n` beams instead of sampling",
    "top_k": "only the k most likely tokens; -1 means all, 0 as well (not on `/v3`)",
    "seed": "makes sampling repeatable; drawn at random when absent, except on `/v3`",
    "include_stop_str_in_output": "whether the stop text is part of the answer; on `/v3` always with `stream`",
    "truncate_prompt_tokens": (
        "keep only the last tokens of the prompt, which is what `echo` repeats; not with `suffix` or pictures"
    ),
    "prompt_logprobs": (
        "lists this many candidates for every token of the prompt; -1: all, if --max-logprobs allows as many"
    ),
    "priority": "requests with a smaller one are served before; the operator says how small it may be",
    "cache_salt": "the prefix cache is shared with requests of the same salt only; a text that is not empty",
    staying.NAME: staying.EFFECT,
    "prompt_cache_key": "requests of one key go to the same of several engines; without effect where there is one",
    "prompt_cache_retention": (
        "in_memory: nothing of the prompt is written to a disk; 24h: kept so long, where the server has "
        "--prefix-store-gb"
    ),
    "prompt_cache_options": (
        "`ttl`: how long the prompt is kept at least, where the server has --prefix-store-gb; `mode` has no effect"
    ),
    "repetition_detection": (
        "an answer whose last tokens are one pattern (of at most `max_pattern_size` tokens, at least `min_pattern_size`) "
        "`min_count` times in a row ends with `repetition`; reasoning that does so is ended, and the answer follows"
    ),
    "response_format": "constrains the answer: text, any JSON, JSON of a schema, or a regular expression",
    "guided_json": "the answer is JSON of this schema",
    "guided_regex": "the answer matches this regular expression",
    "guided_grammar": "the answer is a sentence of this Lark grammar",
    "guided_choice": "the answer is one of these texts",
    "structured_outputs": "the `guided_*` parameters in one object",
    "return_progress": "with `stream`: chunks tell how far the prompt is, and who is before it",
    "return_token_ids": "lists the token ids beside the text",
}

COMPLETION_EFFECTS: Mapping[str, str] = {
    **EFFECTS,
    "prompt": "one prompt or several, as text or as token ids; choices are numbered prompt by prompt",
    "max_tokens": "maximum number of tokens to generate; 0 only with `echo`",
    "suffix": "fill in the middle, if the model has the tokens for it",
    "echo": "the prompt is repeated before the completion",
    "logprobs": "the log-probabilities of each token and of this many alternatives",
    "detokenize": "false leaves the text empty and lists token ids instead",
    "return_tokens_as_token_ids": "`logprobs` calls tokens `token_id:N`, so that no two have one name",
    "add_special_tokens": "whether the tokenizer adds its own tokens to a text prompt",
}

CHAT_EFFECTS: Mapping[str, str] = {
    **EFFECTS,
    "messages": "the conversation; roles are the chat template's business",
    "max_completion_tokens": "the newer name of `max_tokens`, which it overrides",
    "logprobs": "log-probabilities of the generated tokens",
    "top_logprobs": (
        "with `logprobs`, this many likeliest tokens at each place; -1: all, if --max-logprobs allows as many"
    ),
    "tools": "the functions that the model may call",
    "tool_choice": "whether it calls: none, auto, required, or one function",
    "functions": "the older form of `tools`; the answer has at most one `function_call`",
    "function_call": "the older form of `tool_choice`: none, auto, or one function",
    "parallel_tool_calls": "false: only the first call is answered",
    "continue_final_message": "the answer continues the last message, which must be the assistant's",
    "add_generation_prompt": "whether the template opens the assistant's turn",
    "chat_template_kwargs": "reaches the model's template",
    "documents": "reaches the model's template",
    "reasoning_effort": "reaches the model's template",
    "reasoning": (
        "`max_tokens` is `thinking_token_budget`, `effort` `reasoning_effort`; `enabled: false` switches thinking off, "
        "`exclude: true` leaves it out of the answer"
    ),
    "echo": "what the assistant said in the last message is repeated before the answer",
    "include_reasoning": "false: reasoning is left out of the answer",
}

_DEFAULTS_AS_DECLARED = (
    "num_beam_groups", "length_penalty", "early_stopping", "temperature", "top_p", "min_p", "typical_p", "min_tokens",
    "repetition_penalty", "frequency_penalty", "presence_penalty", "skip_special_tokens", "ignore_eos", "n",
    "spaces_between_special_tokens", *FURTHER, *ALIASES,
)  # fmt: skip
_DEFAULTS: Mapping[str, Any] = {
    **{name: neutral_value(name) for name in _DEFAULTS_AS_DECLARED},
    **dict.fromkeys(("stream", "use_beam_search", "include_stop_str_in_output", "echo", "return_progress"), False),
    **dict.fromkeys(("return_token_ids", "return_tokens_as_token_ids", "continue_final_message"), False),
    **dict.fromkeys(("detokenize", "add_special_tokens", "parallel_tool_calls", "add_generation_prompt"), True),
    "top_k": -1,
    "priority": 0,
    "top_logprobs": 0,
    "include_reasoning": True,
}


def defaults_of(profile: Profile) -> dict[str, Any]:
    """The values that say the same as leaving a field out; None = there is none."""
    changed = {
        "seed": profile.default_seed,
        "use_beam_search": None if profile.is_best_of_beam_width else False,
        "include_stop_str_in_output": None if profile.shows_stop_in_stream else False,
    }
    return {**_DEFAULTS, **profile.defaults, **changed}
