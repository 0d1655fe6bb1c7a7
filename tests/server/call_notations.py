"""Writes tool calls as the models of each format do, by rules of its own: what parsers read and grammars allow."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Call = tuple[str, Mapping[str, Any]]


class Notation(NamedTuple):
    """How one format writes calls. `text_values`: strings are bare text, so values need a schema to be told apart."""

    write: Callable[[Sequence[Call]], str]
    text_values: bool = False
    is_single: bool = False  # an answer has one call at most


def _json(call: Call, key: str = "arguments", name_key: str = "name") -> str:
    return json.dumps({name_key: call[0], key: call[1]})


def _list(mark: str, close: str = "") -> Callable[[Sequence[Call]], str]:
    return lambda calls: f"{mark}[{', '.join(map(_json, calls))}]{close}"


def _hermes(calls: Sequence[Call]) -> str:
    return "\n".join(f"<tool_call>\n{_json(call)}\n</tool_call>" for call in calls)


def _cohere(calls: Sequence[Call]) -> str:
    entries = (
        f'    {{"tool_call_id": "{number}", "tool_name": "{name}", "parameters": {json.dumps(arguments)}}}'
        for number, (name, arguments) in enumerate(calls)
    )
    return "<|START_ACTION|>[\n" + ",\n".join(entries) + "\n]<|END_ACTION|>"


def _mistral_args(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}" for name, arguments in calls)


def _kimi(calls: Sequence[Call]) -> str:
    written = (
        f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{json.dumps(arguments)}<|tool_call_end|>"
        for number, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{''.join(written)}<|tool_calls_section_end|>"


def _deepseek_v3(calls: Sequence[Call]) -> str:
    written = (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json.dumps(arguments)}\n```<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return "<｜tool▁calls▁begin｜>" + "\n".join(written) + "<｜tool▁calls▁end｜>"


def _deepseek_v31(calls: Sequence[Call]) -> str:
    written = (
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json.dumps(arguments)}<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return f"<｜tool▁calls▁begin｜>{''.join(written)}<｜tool▁calls▁end｜>"


def _gemma4(calls: Sequence[Call]) -> str:
    return "".join(f"<|tool_call>call:{name}{_quoted(arguments)}<tool_call|>" for name, arguments in calls)


def _quoted(value: Any) -> str:
    match value:
        case str():
            return f'<|"|>{value}<|"|>'
        case Mapping():
            return f"{{{','.join(f'{key}:{_quoted(inner)}' for key, inner in value.items())}}}"
        case list():
            return f"[{','.join(map(_quoted, value))}]"
    return json.dumps(value)


def _bare(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _coder(calls: Sequence[Call], prefix: str = "", padding: str = "\n") -> str:
    def one(call: Call) -> str:
        arguments = "".join(
            f"<parameter={key}>{padding}{_bare(value)}{padding}</parameter>\n" for key, value in call[1].items()
        )
        return f"<{prefix}tool_call>\n<function={call[0]}>\n{arguments}</function>\n</{prefix}tool_call>"

    return "\n".join(map(one, calls))


def _minimax(calls: Sequence[Call]) -> str:
    def one(call: Call) -> str:
        arguments = "".join(f'<parameter name="{key}">{_bare(value)}</parameter>\n' for key, value in call[1].items())
        return f'<invoke name="{call[0]}">\n{arguments}</invoke>\n'

    return f"<minimax:tool_call>\n{''.join(map(one, calls))}</minimax:tool_call>"


NS = "]<]minimax[>["


def _minimax3(calls: Sequence[Call]) -> str:
    def one(call: Call) -> str:
        arguments = "".join(f"{NS}<{key}>{_bare(value)}{NS}</{key}>" for key, value in call[1].items())
        return f'{NS}<invoke name="{call[0]}">{arguments}{NS}</invoke>\n'

    return f"{NS}<tool_call>\n{''.join(map(one, calls))}{NS}</tool_call>"


def _functionary(calls: Sequence[Call]) -> str:
    return "".join(f"<function={name}>{json.dumps(arguments)}</function>" for name, arguments in calls)


def _gigachat(mark: str) -> Callable[[Sequence[Call]], str]:
    return lambda calls: mark + _json(calls[0])


def _glm(calls: Sequence[Call]) -> str:
    def one(call: Call) -> str:
        pairs = (f"<arg_key>{key}</arg_key>\n<arg_value>{_bare(value)}</arg_value>\n" for key, value in call[1].items())
        return f"<tool_call>{call[0]}\n{''.join(pairs)}</tool_call>"

    return "\n".join(map(one, calls))


def _python(call: Call) -> str:
    literals = ((key, json.dumps(value) if isinstance(value, str) else repr(value)) for key, value in call[1].items())
    return f"{call[0]}({', '.join(f'{key}={literal}' for key, literal in literals)})"


def _pythonic(begin: str, end: str, separator: str = ", ") -> Callable[[Sequence[Call]], str]:
    return lambda calls: begin + separator.join(map(_python, calls)) + end


def _harmony(calls: Sequence[Call]) -> str:
    ((name, arguments),) = calls
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{json.dumps(arguments)}"


NOTATIONS: Mapping[str, Notation] = {
    "hermes": Notation(_hermes),
    "mistral": Notation(_list("[TOOL_CALLS] ")),
    "llama3_json": Notation(lambda calls: "; ".join(_json(call, "parameters") for call in calls)),
    "json": Notation(lambda calls: "; ".join(map(_json, calls))),
    "granite": Notation(_list("<|tool_call|>")),
    "phi4_mini_json": Notation(_list("functools")),
    "hunyuan_a13b": Notation(_list("<tool_calls>", "</tool_calls>")),
    "cohere": Notation(_cohere),
    "mistral_args": Notation(_mistral_args),
    "kimi_k2": Notation(_kimi),
    "deepseek_v3": Notation(_deepseek_v3),
    "deepseek_v31": Notation(_deepseek_v31),
    "qwen3_coder": Notation(_coder, text_values=True),
    "seed_oss": Notation(lambda calls: _coder(calls, "seed:", ""), text_values=True),
    "glm45": Notation(_glm, text_values=True),
    "minimax_m2": Notation(_minimax, text_values=True),
    "minimax_m3": Notation(_minimax3, text_values=True),
    "functionary_v31": Notation(_functionary),
    "gigachat3": Notation(_gigachat("<|message_sep|>\n\nfunction call<|role_sep|>\n"), is_single=True),
    "gigachat31": Notation(_gigachat("<|function_call|>"), is_single=True),
    "nemotron_json": Notation(_list("<TOOLCALL>", "</TOOLCALL>")),
    "pythonic": Notation(_pythonic("[", "]")),
    "llama4_pythonic": Notation(_pythonic("[", "]")),
    "lfm2": Notation(_pythonic("<|tool_call_start|>[", "]<|tool_call_end|>")),
    "olmo3": Notation(_pythonic("<function_calls>\n", "\n</function_calls>", "\n")),
    "gemma4": Notation(_gemma4),
    "gpt_oss": Notation(_harmony, is_single=True),
}

MARKS = (
    "<tool_call>", "</tool_call>", "<tool_", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "<|tool_call|>",
    "functools", "<tool_calls>", "</tool_calls>", "<|START_ACTION|>", "<|END_ACTION|>", "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",
    "function", "```json", "```", "<function=", "<parameter=", "</parameter>", "</function>", "<seed:tool_call>",
    "</seed:tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|python_start|>", "<|python_end|>",
    "<|tool_call_start|>", "<function_calls>", "<minimax:tool_call>", '<invoke name="', '<parameter name="',
    "</invoke>", "</minimax:tool_call>", NS, f"{NS}<tool_call>", "function call<|role_sep|>", "<|function_call|>",
    "</function_calls>", "weather", "weather(", "city=", "'x'", "functions.",
    ":0", "=", ">", "(", ")", "\n", "a=1",
)  # fmt: skip
