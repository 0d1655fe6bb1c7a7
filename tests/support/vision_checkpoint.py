"""Writes the small checkpoints of tests/models/vision: models that see, their pictures and prompts, all of it by rules.

Does: makes the same weights, pictures and prompts for the same case on every machine, with numpy and safetensors alone. Does
not: know any family. Used by the tests of towers and by scripts/record_picture_references.py, which must see identical ones.

A case is tests/models/vision/<case>.json; beside the keys that tests/support/family_checkpoint.py explains it has
    preprocessor   preprocessor_config.json as checkpoints of the family have it
    processor      class of the reference's processor ("class"), what it is made with beside its parts ("arguments"), and
                   what its image processor is beside `preprocessor` ("image_arguments"), or of which class ("image_class")
    tokenizer      what the reference's tokenizer is made with, such as "extra_special_tokens"
    tokens         text -> id of every special text that a picture becomes; ids below num_prompt_ids are words
    marker         the text that stands where a picture goes, with what the chat template writes around it
    pictures       name -> [width, height, kind, number]; kinds: noise, grey (noise without colour), waves (smooth colours)
    prompts        lists of how many words, or which picture, come one after the other
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from dragoman.types import Picture
from tests.support.family_checkpoint import Array, Case, complete_case, write_case

CASES = Path(__file__).parents[1] / "models" / "vision"
NUM_SAMPLES = 2048
"""The numbers that are recorded of a larger array."""


def vision_case_names() -> list[str]:
    """Every recorded case, sorted."""
    return sorted(path.stem for path in CASES.glob("*.json"))


def read_vision_case(name: str) -> Case:
    """What tests/models/vision/<name>.json says."""
    return complete_case(CASES, name)


def write_vision_case(name: str, case: Case, directory: Path) -> Path:
    """Write config.json, preprocessor_config.json and model.safetensors; returns `directory`."""
    write_case(name, case, directory)
    (directory / "preprocessor_config.json").write_text(json.dumps(case["preprocessor"], indent=2), encoding="utf-8")
    return directory


def draw(spec: list[Any]) -> Picture:
    """The picture that a case describes as [width, height, kind, number]."""
    width, height, kind, number = spec
    stream = np.random.RandomState(number)  # this stream is frozen for ever
    if kind == "noise":
        pixels = stream.randint(0, 256, size=(height, width, 3))
    elif kind == "grey":
        pixels = np.repeat(stream.randint(0, 256, size=(height, width, 1)), 3, axis=2)
    elif kind == "waves":
        rows, columns = np.mgrid[0:height, 0:width]
        tilts = stream.randint(1, 20, size=(3, 2)) / 20.0
        pixels = np.stack([127.5 + 127.5 * np.sin(rows * down + columns * right) for down, right in tilts], axis=2)
    else:
        raise ValueError(f"a picture of kind {kind!r}; allowed: noise, grey, waves")
    rgb = np.ascontiguousarray(pixels).astype(np.uint8).tobytes()
    return Picture(width, height, rgb, hashlib.sha256(f"{width}x{height}".encode() + rgb).hexdigest())


def vocabulary(case: Case) -> dict[str, int]:
    """The id of every text that the case's prompts are made of."""
    return {word(token_id): token_id for token_id in range(case["num_prompt_ids"])} | dict(case["tokens"])


def word(token_id: int) -> str:
    """The text of an ordinary token."""
    return f"<w{token_id}>"


def token_ids(case: Case, text: str) -> list[int]:
    """The ids of a text. Raises: ValueError if it is not made of the case's words and special texts alone."""
    table = vocabulary(case)
    pattern = "|".join(re.escape(part) for part in sorted(table, key=len, reverse=True))
    rest = re.sub(pattern, "", text)
    if rest:
        raise ValueError(f"the case's tokens do not say what {rest[:60]!r} is")
    return [table[part] for part in re.findall(pattern, text)]


def prompt_pieces(name: str, case: Case, index: int) -> list[tuple[str, str]]:
    """The pieces of a prompt in their order: ("text", its text) or ("picture", its name)."""
    stream = np.random.RandomState(crc32(f"{case.get('made_of', name)}/prompt {index}".encode()))
    pieces = []
    for item in case["prompts"][index]:
        if isinstance(item, str):
            pieces.append(("picture", item))
        else:
            words = stream.randint(0, case["num_prompt_ids"], size=item)
            pieces.append(("text", "".join(word(int(token_id)) for token_id in words)))
    return pieces


def sampled(values: Array) -> Array:
    """At most `NUM_SAMPLES` of the values, f32, evenly spread."""
    flat = np.asarray(values, dtype=np.float32).reshape(-1)
    step = max(-(-flat.size // NUM_SAMPLES), 1)
    if step > 1 and step % 2 == 0:
        step += 1  # not the same columns of every row
    return flat[::step]


def checksum(values: Array) -> float:
    """The sum of the values with signs drawn for their places: whatever differs anywhere shows in it."""
    flat = np.asarray(values, dtype=np.float64).reshape(-1)
    return float(flat @ (np.random.RandomState(7).randint(0, 2, size=flat.size) * 2 - 1))
