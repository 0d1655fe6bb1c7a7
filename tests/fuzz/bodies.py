"""Bodies of requests, legal ones and what becomes of them: values swapped, left out, doubled, bytes cut.

Does: mutate JSON values and write them as text, with what JSON libraries never write. Does not: know routes.
"""

from __future__ import annotations

import copy
import json
import random
from typing import Any

NUMBERS = (0, 1, -1, 2, 7, 0.5, -0.5, 1e-9, 1e308, -1e308, 2**31, 2**32, 2**63, 2**64, -(2**63) - 1, 10**30, 1e400)
TEXTS = (
    "", " ", "a", "fake", "é", "🍊", "\u2028", "\x00", "\x1b[31m", "a\r\nx-evil: 1", "\ufeff", "\uffff", "ا" * 9,
    "x" * 10_000, "null", "true", "1", "NaN", "../../etc/passwd", "{{ 7 * 7 }}", "<s>", "</s>", "%s%n",
    "data:image/png;base64,AAAA",
)  # fmt: skip
KEYS = ("stream", "n", "max_tokens", "parameters", "model", "", "__proto__", "a\r\nb", "é", "x" * 300)


def value(dice: random.Random, depth: int = 3) -> Any:
    """Any JSON value."""
    match dice.randrange(9 if depth else 6):
        case 0:
            return None
        case 1:
            return dice.random() < 0.5
        case 2 | 3:
            return dice.choice(NUMBERS)
        case 4 | 5:
            return dice.choice(TEXTS)
        case 6 | 7:
            return [value(dice, depth - 1) for _ in range(dice.randrange(4))]
        case _:
            return {dice.choice(KEYS): value(dice, depth - 1) for _ in range(dice.randrange(4))}


def mutated(dice: random.Random, body: Any, more: dict[str, Any]) -> Any:
    """The body with one to three changes. `more`: schemas of members that it may have, by name."""
    body = copy.deepcopy(body)
    for _ in range(dice.choice((1, 1, 2, 3))):
        places = list(_places(body))
        if isinstance(body, dict) and more and dice.random() < 0.4:
            name = dice.choice(list(more))
            target = body["parameters"] if isinstance(body.get("parameters"), dict) and dice.random() < 0.8 else body
            target[name] = _fitting(dice, more[name])
        elif not places or dice.random() < 0.03:
            body = value(dice)
        else:
            _change(dice, *dice.choice(places))
    return body


def _places(body: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value in it."""
    found: list[tuple[Any, Any]] = []
    waiting = [body]
    while waiting:
        part = waiting.pop()
        pairs = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
        for key, child in pairs:
            found.append((part, key))
            waiting.append(child)
    return found


def _change(dice: random.Random, holder: Any, key: Any) -> None:
    old = holder[key]
    match dice.randrange(8):
        case 0 | 1:
            holder[key] = value(dice)
        case 2:
            del holder[key]
        case 3:
            holder[key] = [old]
        case 4:
            holder[key] = {"a": old} if isinstance(old, str) else str(old)
        case 5:
            holder[key] = dice.choice(NUMBERS)
        case 6 if isinstance(old, list):
            holder[key] = old * dice.choice((2, 50))
        case 6 if isinstance(old, str):
            holder[key] = old * dice.choice((2, 50)) + dice.choice(TEXTS)
        case _ if isinstance(holder, dict):
            holder[dice.choice(KEYS)] = value(dice)


def _fitting(dice: random.Random, schema: Any) -> Any:
    """A value for a member, often one that its schema allows."""
    if dice.random() < 0.3:
        return value(dice)
    choices = schema.get("anyOf", [schema])
    choice = dice.choice(choices)
    if "enum" in choice:
        return dice.choice(choice["enum"])
    low, high = choice.get("minimum", 0), choice.get("maximum", 9)
    match choice.get("type"):
        case "integer":
            return dice.choice((low, high, 1, 2, 5, low - 1, high + 1))
        case "number":
            return dice.choice((low, high, 0.5, 1.0, low - 0.1))
        case "boolean":
            return dice.random() < 0.5
        case "string":
            return dice.choice(TEXTS)
        case "array":
            return [_fitting(dice, choice.get("items") or {}) for _ in range(dice.randrange(4))]
        case "object":
            return {dice.choice(KEYS): value(dice) for _ in range(dice.randrange(3))}
    return value(dice)


# --- as bytes ---------------------------------------------------------------------------------------------------------


def text_of(dice: random.Random, body: Any) -> bytes:
    """The body as JSON, now and then as no JSON at all."""
    try:
        content = json.dumps(body, ensure_ascii=dice.random() < 0.5).encode("utf-8", "surrogatepass")
    except RecursionError:
        return b"[" * 50_000
    return content if dice.random() < 0.85 else dice.choice(_SPOILERS)(dice, content)


def _cut(dice: random.Random, content: bytes) -> bytes:
    return content[: dice.randrange(len(content) + 1)]


def _flip(dice: random.Random, content: bytes) -> bytes:
    spoiled = bytearray(content)
    for _ in range(dice.choice((1, 1, 3, 20))):
        if spoiled:
            spoiled[dice.randrange(len(spoiled))] = dice.randrange(256)
    return bytes(spoiled)


def _double(dice: random.Random, content: bytes) -> bytes:
    """Its first members twice, with another value the first time."""
    name = dice.choice((b'"inputs"', b'"prompt"', b'"model"', b'"messages"', b'"stream"', b'"max_tokens"'))
    return b"{" + name + b": " + json.dumps(value(dice)).encode() + b", " + content.lstrip()[1:]


def _strange_number(dice: random.Random, content: bytes) -> bytes:
    """A number replaced by what is none, or a huge one."""
    numbers = (b"NaN", b"Infinity", b"-Infinity", b"1e99999", b"9" * 5000, b"-0", b"01", b"1.", b".5", b"0x10", b"-")
    digits = [index for index, byte in enumerate(content) if 48 <= byte <= 57]
    if not digits:
        return b'{"max_tokens": ' + dice.choice(numbers) + b", " + content.lstrip()[1:]
    place = dice.choice(digits)
    return content[:place] + dice.choice(numbers) + content[place + 1 :]


def _bad_text(dice: random.Random, content: bytes) -> bytes:
    """Bytes or escapes inside a string that are no Unicode."""
    bad = dice.choice(
        (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\\ud800", b"\\udc00\\ud800", b"\x00", b"\n", b"\\x41", b"\\u12")
    )
    quotes = [index for index, byte in enumerate(content) if byte == 34]
    place = dice.choice(quotes) + 1 if quotes else 0
    return content[:place] + bad + content[place:]


def _wrap(dice: random.Random, content: bytes) -> bytes:
    return dice.choice(
        (
            b"\xef\xbb\xbf" + content, content + content, b"[" * 200 + content + b"]" * 200, b"", b" ", content + b"\x00",
            content.decode("utf-8", "replace").encode("utf-16"), b"[" * 50_000, b"{" + b'"a":{' * 5000,
        )
    )  # fmt: skip


_MEMBERS = (
    b"prompt",
    b"messages",
    b"input",
    b"inputs",
    b"parameters",
    b"tools",
    b"stop",
    b"logit_bias",
    b"prompts",
    b"x",
)


def _odd_structure(dice: random.Random, content: bytes) -> bytes:
    """A member that is deep, wide, or many small values, within what is read and beyond it."""
    count, levels = dice.choice((500, 20_000, 120_000)), dice.choice((50, 97, 101))
    inside = dice.choice(
        (
            b"[]," * count, b"{}," * count, b"[1]," * count, b"1," * count, b'"",' * count, b'{"role":"user"},' * count,
            (b"[" * levels + b"]" * levels + b",") * (count // levels), (b'{"a":' * levels + b"1" + b"}" * levels + b","),
            b"[" + b"[1]," * count + b"[]],", b"9" * count + b",",
        )
    )  # fmt: skip
    names = b",".join(b'"%d":1' % number for number in range(count))
    member = dice.choice(
        (b"[" + inside + b"1]", b"[" + inside[:-1] + b"]", b"{" + names + b"}", b'"' + b'[{,\\"' * count + b'"')
    )
    return content.rstrip()[:-1] + b', "' + dice.choice(_MEMBERS) + b'": ' + member + b"}"


_SPOILERS = (_cut, _flip, _double, _strange_number, _bad_text, _wrap, _odd_structure)
