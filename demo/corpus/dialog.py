"""How one training document is written down: raw prompt and answer, plain text, chat, fill-in-the-middle.

A document is a list of segments ``(text, is_answer)``; the trainer tokenizes each segment by itself, so
that the border between prompt and answer falls where it falls at inference time, and gives prompt tokens
a small loss weight. ``render_chat`` writes exactly what ``demo/chat_template.jinja`` writes
(``demo/export.py`` checks that). Called by every generator in this folder; knows nothing of their data.
"""

import json
from dataclasses import dataclass, field
from random import Random
from typing import Any

EOS = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
FIM_PREFIX = "<|fim_prefix|>"
FIM_SUFFIX = "<|fim_suffix|>"
FIM_MIDDLE = "<|fim_middle|>"
SPECIAL = [EOS, IM_START, IM_END, FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE]
MARKUP = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]

Segment = tuple[str, bool]
Document = list[Segment]

TOOLS_HEAD = "# Tools\n\nYou may call these functions:\n<tools>"
TOOLS_TAIL = (
    "\n</tools>\n\nFor each call, return a JSON object with the name and the arguments:\n"
    '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)
RAW_LABELS = [
    ("Q: ", "\nA:"),
    ("Question: ", "\nAnswer:"),
    ("User: ", "\nAssistant:"),
    ("### Question\n", "\n### Answer\n"),
]


@dataclass
class Exchange:
    """A conversation before it is rendered: turns are ``(role, text)`` with roles user, assistant, tool."""

    turns: list[tuple[str, str]]
    system: str | None = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    thinking: str | None = None


def dumps(value: Any) -> str:
    """JSON as the chat template's ``tojson`` writes it."""
    return json.dumps(value, ensure_ascii=False)


def plain(text: str) -> Document:
    """A document without a question: all of it is learned."""
    return [(text + EOS, True)]


def raw_pair(prompt: str, answer: str, rng: Random) -> Document:
    """A raw prompt and its answer: mostly nothing around the prompt, then a blank line and the answer."""
    roll = rng.random()
    if roll < 0.82:
        return [(prompt, False), ("\n\n" + answer + EOS, True)]
    if roll < 0.87:
        return [(prompt + "\n", False), ("\n" + answer + EOS, True)]
    if roll < 0.90:
        return [(prompt + "\n\n", False), (answer + EOS, True)]
    if roll < 0.92:
        return [(prompt + " ", False), ("\n\n" + answer + EOS, True)]
    before, after = rng.choice(RAW_LABELS)
    gap = "" if after.endswith("\n") else " "
    return [(before + prompt + after, False), (gap + answer + EOS, True)]


def continuation(start: str, rest: str) -> Document:
    """A raw prompt that is the beginning of a sentence, and the rest of it."""
    return [(start, False), (rest + EOS, True)]


def system_text(system: str | None, tools: list[dict[str, Any]]) -> str | None:
    """The system turn's text, with the tool section when there are tools."""
    if not tools:
        return system
    head = f"{system}\n\n" if system is not None else ""
    return head + TOOLS_HEAD + "".join("\n" + dumps(tool) for tool in tools) + TOOLS_TAIL


def render_chat(exchange: Exchange) -> Document:
    """The conversation in the chat template's form; the assistant's words are the answer segments."""
    out: Document = []
    system = system_text(exchange.system, exchange.tools)
    if system is not None:
        out.append((f"{IM_START}system\n{system}{IM_END}\n", False))
    turns = exchange.turns
    for index, (role, said) in enumerate(turns):
        text = said
        if role == "assistant":
            head = f"{IM_START}assistant\n"
            if exchange.thinking is not None and index == len(turns) - 1:
                head += "<think>\n"
                text = f"{exchange.thinking}\n</think>\n\n{text}"
            out += [(head, False), (text + IM_END, True), ("\n", False)]
        elif role == "tool":
            first = index == 0 or turns[index - 1][0] != "tool"
            last = index == len(turns) - 1 or turns[index + 1][0] != "tool"
            body = f"\n<tool_response>\n{text}\n</tool_response>"
            out.append(((f"{IM_START}user" if first else "") + body + (f"{IM_END}\n" if last else ""), False))
        else:
            out.append((f"{IM_START}{role}\n{text}{IM_END}\n", False))
    return out


def fill_in_middle(text: str, rng: Random) -> Document:
    """The text cut at two word borders, in prefix-suffix-middle order."""
    cuts = [index for index, char in enumerate(text) if char in " \n"]
    if len(cuts) < 4:
        return plain(text)
    left, right = sorted(rng.sample(cuts, 2))
    if right - left > 120:
        nearer = [cut for cut in cuts if left < cut <= left + 120]
        right = rng.choice(nearer) if nearer else right
    prompt = FIM_PREFIX + text[:left] + FIM_SUFFIX + text[right:] + FIM_MIDDLE
    return [(prompt, False), (text[left:right] + EOS, True)]
