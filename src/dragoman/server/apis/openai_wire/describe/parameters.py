"""Meaning and default of each parameter of completions and chat: one row each.

Does: hold the words and the defaults that a schema cannot derive from the Structs that parse. Does not: hold types or
ranges (`bodies` takes those from the Structs and the tables that check them).
Used when the document is built. A default stands here only where sending it equals leaving the parameter out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dragoman.server.apis.openai_wire import staying
from dragoman.server.apis.openai_wire.llamacpp_names import EFFECTS as LLAMA_EFFECTS
from dragoman.server.apis.openai_wire.llamacpp_names import OF_SOME
from dragoman.server.apis.openai_wire.thinking import BUDGETS
from dragoman.server.parameters import PARAMETERS, neutral_value
from dragoman.server.samplers import SAMPLER_EFFECTS


class _NoDefault:
    """Marks that there is no value that says the same as leaving the parameter out."""


NO_DEFAULT = _NoDefault()


@dataclass(frozen=True, slots=True)
class Row:
    """One parameter. `v3`: its default on `/v3` where that differs."""

    effect: str
    default: Any = NO_DEFAULT
    v3: Any = None

    def default_on(self, profile: str) -> Any:
        """The default under that profile, NO_DEFAULT if there is none."""
        return self.v3 if profile == "v3" and self.v3 is not None else self.default


def _common(name: str) -> Row:
    """The row of a parameter that OpenAI's document or its extensions have as all APIs do."""
    neutral = neutral_value(name)
    has_default = neutral not in (None, [], {}) and name != "diversity_penalty"  # 0 and absent differ beside groups
    return Row(PARAMETERS[name].effect, neutral if has_default else NO_DEFAULT)


_AS_DECLARED = (
    "num_beam_groups", "diversity_penalty", "length_penalty", "early_stopping", "temperature", "top_p", "min_p", "typical_p",
    "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias", "bad_words", "allowed_token_ids", "stop",
    "stop_token_ids", "skip_special_tokens", "spaces_between_special_tokens", "num_assistant_tokens",
    "assistant_confidence_threshold", "max_ngram_size", "thinking_token_budget",
)  # fmt: skip

SHARED: Mapping[str, Row] = {
    **{name: _common(name) for name in _AS_DECLARED},
    "model": Row("which model answers; placeholders such as `default` or `dummy` mean the default model"),
    "stream": Row("send the answer while it is generated", False),
    "stream_options": Row(
        "only with `stream: true`; `include_usage` adds a last chunk without choices and with usage; with "
        "`continuous_usage_stats` all have it"
    ),
    "max_tokens": Row("most tokens to generate; without it, up to what the context has room for"),
    "min_tokens": Row("no end of sequence before this many tokens; at most `max_tokens`", 0),
    "ignore_eos": Row("do not end at the end-of-sequence token; on `/v3` at most 4000 tokens then", False),
    "n": Row("choices per prompt", 1),
    "best_of": Row(
        "sequences drawn, of which the `n` most likely are returned; the beam width on `/v3` and with "
        "`use_beam_search`; not with `stream` unless it equals `n`"
    ),
    "use_beam_search": Row("search with `best_of` or `n` beams instead of sampling", False, NO_DEFAULT),
    "top_k": Row("only the k most likely tokens; -1 means all, 0 as well (not on `/v3`)", -1),
    "seed": Row("makes sampling repeatable; drawn at random when absent, except on `/v3`", v3=0),
    "include_stop_str_in_output": Row(
        "whether the stop text is part of the answer; on `/v3` always with `stream`", False, NO_DEFAULT
    ),
    "truncate_prompt_tokens": Row(
        "keep only the last tokens of the prompt, which is what `echo` repeats; not with `suffix` or pictures"
    ),
    "prompt_logprobs": Row(
        "lists this many candidates for every token of the prompt; -1: all, if --max-logprobs allows as many"
    ),
    "priority": Row("requests with a smaller one are served before; the operator says how small it may be", 0),
    "cache_salt": Row("the prefix cache is shared with requests of the same salt only; a text that is not empty"),
    staying.NAME: Row(staying.EFFECT),
    "prompt_cache_key": Row("requests of one key go to the same of several engines; without effect where there is one"),
    "prompt_cache_retention": Row(
        "in_memory: nothing of the prompt is written to a disk; 24h: kept so long, where the server has --prefix-store-gb"
    ),
    "prompt_cache_options": Row(
        "`ttl`: how long the prompt is kept at least, where the server has --prefix-store-gb; `mode` has no effect"
    ),
    **dict.fromkeys(BUDGETS[1:], Row("the same as `thinking_token_budget`, in llama.cpp's words")),
    "repetition_detection": Row(
        "an answer whose last tokens are one pattern (of at most `max_pattern_size` tokens, at least `min_pattern_size`) "
        "`min_count` times in a row ends with `repetition`; reasoning that does so is ended, and the answer follows"
    ),
    "response_format": Row("constrains the answer: text, any JSON, JSON of a schema, or a regular expression"),
    "guided_json": Row("the answer is JSON of this schema"),
    "guided_regex": Row("the answer matches this regular expression"),
    "guided_grammar": Row("the answer is a sentence of this Lark grammar"),
    "guided_choice": Row("the answer is one of these texts"),
    "structured_outputs": Row("the `guided_*` parameters in one object"),
    **{name: Row(effect, neutral_value(name)) for name, effect in SAMPLER_EFFECTS.items()},
    **{name: Row(effect) for name, effect in LLAMA_EFFECTS.items() if name not in OF_SOME},
}

COMPLETIONS: Mapping[str, Row] = {
    "prompt": Row("one prompt or several, as text or as token ids; choices are numbered prompt by prompt"),
    "max_tokens": Row("most tokens to generate; 0 only with `echo`", 16, NO_DEFAULT),
    "suffix": Row("fill in the middle, if the model has the tokens for it"),
    "echo": Row("the prompt is repeated before the completion", False),
    "logprobs": Row("the log-probabilities of each token and of this many alternatives"),
    **{name: Row(LLAMA_EFFECTS[name]) for name in OF_SOME},
    "return_progress": Row("with `stream`: chunks tell how far the prompt is, and who is before it", False),
    "detokenize": Row("false leaves the text empty and lists token ids instead", True),
    "return_token_ids": Row("lists the token ids beside the text", False),
    "return_tokens_as_token_ids": Row("`logprobs` calls tokens `token_id:N`, so that no two have one name", False),
    "add_special_tokens": Row("whether the tokenizer adds its own tokens to a text prompt", True),
}

CHAT: Mapping[str, Row] = {
    "messages": Row("the conversation; roles are the chat template's business"),
    "max_completion_tokens": Row("the newer name of `max_tokens`, which it overrides"),
    "logprobs": Row("log-probabilities of the generated tokens", False),
    **{name: Row(LLAMA_EFFECTS[name]) for name in OF_SOME},
    "top_logprobs": Row(
        "with `logprobs`, this many likeliest tokens at each place; -1: all, if --max-logprobs allows as many", 0
    ),
    "tools": Row("the functions that the model may call"),
    "tool_choice": Row("whether it calls: none, auto, required, or one function"),
    "functions": Row("the older form of `tools`; the answer has at most one `function_call`"),
    "function_call": Row("the older form of `tool_choice`: none, auto, or one function"),
    "parallel_tool_calls": Row("false: only the first call is answered", True),
    "continue_final_message": Row("the answer continues the last message, which must be the assistant's", False),
    "add_generation_prompt": Row("whether the template opens the assistant's turn", True),
    "chat_template_kwargs": Row("reaches the model's template"),
    "documents": Row("reaches the model's template"),
    "reasoning_effort": Row("reaches the model's template"),
    "reasoning": Row(
        "`max_tokens` is `thinking_token_budget`, `effort` `reasoning_effort`; `enabled: false` switches thinking off, "
        "`exclude: true` leaves it out of the answer"
    ),
    "echo": Row("what the assistant said in the last message is repeated before the answer", False),
    "return_token_ids": Row("lists the token ids beside the text", False),
    "return_progress": Row("with `stream`: chunks tell how far the prompt is, and who is before it", False),
    "include_reasoning": Row("false: reasoning is left out of the answer", True),
}
