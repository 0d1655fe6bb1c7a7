"""Prompts of five kinds as text, for the bundled model and for any model directory.

Does: make the prompts of a numbered request, always the same for a number. Does not: run anything. Pure. Used by `__main__`.

The bundled model tells little stories and answers small questions; it cannot edit a file or plan a tool call. A grammar
makes it: an edit may keep or rename each name and nothing else, a tool call and a record have to follow their schema.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from benchmarks.speculation.tasks import AGENT, CHAT, EDIT, JSON, SUMMARY, Task, Turn

NUM_TURNS = 4
_THINGS = ("sea", "moon", "bread", "rain", "bridge", "clock", "forest", "river", "lamp", "garden", "snow", "horse")
_ASKS = (
    "Tell me about the {}.",
    "Write a poem about the {}.",
    "Why do people like the {}?",
    "What can one do with a {}?",
)
_PLACES = ("Rome", "Oslo", "Lima", "Cairo", "Delhi", "Quito", "Turin", "Perth")
_NAMES = ("width", "height", "depth", "radius", "weight", "length", "price", "count", "speed", "total")
_PATHS = ("src/main.py", "src/shapes.py", "src/tools.py", "tests/test_main.py", "docs/start.md", "setup.cfg")
_SENTENCES = (
    "The committee met on Tuesday to discuss the new bridge.",
    "Several members asked how much the steel would cost.",
    "The mayor said that the town had saved enough money.",
    "Our train left the harbour at dawn and followed the coast.",
    "Beyond the lighthouse the track turned inland, past orchards.",
    "To bake the bread, mix the flour with water, salt and yeast.",
    "Let the dough rest for two hours in a warm place.",
    "The gardener planted beans beside the old stone wall.",
    "In winter the lake freezes and children skate on it.",
    "A clock in the tower strikes the hours day and night.",
)

RECORDS = {
    "type": "array",
    "minItems": 4,
    "maxItems": 4,
    "items": {
        "type": "object",
        "properties": {
            "station_name": {"enum": list(_PLACES)},
            "air_pressure": {"type": "integer", "minimum": 900, "maximum": 1100},
            "wind_direction": {"enum": ["north", "east", "south", "west"]},
            "temperature": {"type": "integer", "minimum": -30, "maximum": 45},
            "is_raining": {"type": "boolean"},
        },
        "required": ["station_name", "air_pressure", "wind_direction", "temperature", "is_raining"],
        "additionalProperties": False,
    },
}
CALL = {
    "type": "object",
    "properties": {
        "name": {"const": "read_file"},
        "arguments": {
            "type": "object",
            "properties": {
                "path": {"enum": list(_PATHS)},
                "first_line": {"type": "integer", "minimum": 1, "maximum": 999},
                "last_line": {"type": "integer", "minimum": 1, "maximum": 999},
                "show_numbers": {"type": "boolean"},
            },
            "required": ["path", "first_line", "last_line", "show_numbers"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "arguments"],
    "additionalProperties": False,
}


def text_task(kind: str, number: int) -> Task:
    """Request `number` of a kind."""
    return Task(kind, tuple(_MAKERS[kind](number, random.Random(f"{kind}/{number}"))))


def _asked(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def _chat(number: int, dice: random.Random) -> list[Turn]:
    thing = f"{dice.choice(('old', 'small', 'bright', 'quiet', 'blue', 'good'))} {_THINGS[number % len(_THINGS)]}"
    return [Turn(96, text=_asked(dice.choice(_ASKS).format(thing)))]


def _summary(number: int, dice: random.Random) -> list[Turn]:
    return [Turn(96, text=_asked(f"Summarize: {' '.join(dice.sample(_SENTENCES, 5))}"))]


def _edit(number: int, dice: random.Random) -> list[Turn]:
    names = dice.sample(_NAMES, 4)
    file = "\n\n".join(
        _function(f"{dice.choice('abcdefgh')}_{first}", first, second) for first, second in _pairs(names)
    )
    old, new = names[0], f"new_{names[0]}"
    pattern = re.sub(rf"\b{old}\b", f"({old}|{new})", re.escape(file))
    return [Turn(240, text=_asked(f"Rename {old} to {new}:\n{file}"), grammar={"guided_regex": pattern})]


def _pairs(names: list[str]) -> list[tuple[str, str]]:
    return [(names[0], names[1]), (names[2], names[0]), (names[0], names[3])]


def _function(name: str, first: str, second: str) -> str:
    return (
        f"def {name}({first}, {second}):\n    if {first} < 0 or {second} < 0:\n"
        f"        raise ValueError('below zero')\n    return {first} * {second} + {first}"
    )


def _json(number: int, dice: random.Random) -> list[Turn]:
    example = (
        f'[{{"station_name":"{dice.choice(_PLACES)}","air_pressure":{dice.randint(900, 1100)},"wind_direction":"east",'
        f'"temperature":{dice.randint(-30, 45)},"is_raining":true}}]'
    )
    asked = f"Four reports from {', '.join(dice.sample(_PLACES, 4))}, such as {example}"
    return [Turn(240, text=_asked(asked), grammar={"guided_json": RECORDS})]


def _agent(number: int, dice: random.Random) -> list[Turn]:
    goal = f"Find where {dice.choice(_NAMES)} is computed in {' or '.join(dice.sample(_PATHS, 3))}."
    turns = []
    for turn in range(NUM_TURNS):
        shown = _function(f"f{dice.randint(1, 99)}", *dice.sample(_NAMES, 2))
        text = _asked(goal) if not turn else f"<|im_end|>\n<|im_start|>user\n{shown}<|im_end|>\n<|im_start|>assistant\n"
        turns.append(Turn(96, text=text, grammar={"guided_json": CALL}))
    return turns


_Maker = Callable[[int, random.Random], list[Turn]]
_MAKERS: dict[str, _Maker] = {CHAT: _chat, SUMMARY: _summary, EDIT: _edit, JSON: _json, AGENT: _agent}
