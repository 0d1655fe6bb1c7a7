"""Pictures for a small server: a processor of its own, a tower that a test makes, and calls that have pictures."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from dragoman.engine.base import PictureRules
from dragoman.engine.rolling.pictures import PictureEmbedder, PictureTower
from dragoman.pictures import PictureLoader
from dragoman.server.generation.pictures import Loader, PicturePrompts
from tests.pictures.drawing import png
from tests.support.every_api import Calling, kind_of
from tests.support.seeing import PARTS, GridProcessor
from tests.support.small_server import CALLS, LetterRunner, Parts

PLACEHOLDER_ID = 7  # a byte that no prompt has


def seeing_parts(tower: PictureTower, runner: LetterRunner, loader: Loader | None = None) -> Parts:
    """The parts of a server whose pictures that tower embeds; with the real loader unless another is given."""
    rules = PictureRules(GridProcessor(chr(PLACEHOLDER_ID)), PLACEHOLDER_ID)
    pictures = PicturePrompts(rules, loader or PictureLoader())
    return Parts(runner, template=PARTS, pictures=pictures, embedder=PictureEmbedder(tower))


def with_pictures(widths: Sequence[int]) -> list[Calling]:
    """Every call that may have pictures, with some of these widths and of one line."""
    data = [base64.b64encode(png(width, 1)).decode() for width in widths]
    changed = []
    for calling in CALLS:
        body = json.loads(calling.http.body)
        if _show(kind_of(calling), body, data):
            changed.append(replace(calling, http=msgspec.structs.replace(calling.http, body=json.dumps(body).encode())))
    return changed


PICTURES_AS = {
    "chat": lambda data: {"type": "image_url", "image_url": {"url": _url(data)}},
    "responses": lambda data: {"type": "input_image", "image_url": _url(data)},
    "anthropic": lambda data: {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": data},
    },
}


def _url(data: str) -> str:
    return f"data:image/png;base64,{data}"


def _show(kind: str, body: Any, data: Sequence[str]) -> bool:
    """Put the pictures where such a body has them; False if it has none."""
    if kind == "ollama":
        body.get("messages", [body])[0]["images"] = list(data)
        return True
    if kind not in PICTURES_AS:
        return False
    text = {"type": "input_text" if kind == "responses" else "text", "text": "What is it?"}
    content = [text, *map(PICTURES_AS[kind], data)]
    if kind == "responses":
        body["input"] = [{"role": "user", "content": content}]
    else:
        body["messages"][0]["content"] = content
    return True
