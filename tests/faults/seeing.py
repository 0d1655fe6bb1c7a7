"""Pictures for a small server: a processor of its own, a tower that a test makes, and calls that have pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from dragoman.engine.base import PictureRules
from dragoman.engine.rolling.pictures.embedder import PictureEmbedder, PictureTower
from dragoman.pictures import PictureLoader
from dragoman.server.generation.pictures import Loader, PicturePrompts
from tests.pictures.drawing import data_url, png
from tests.support.every_api import Calling, name_of_dialect
from tests.support.seeing import PARTS, GridProcessor
from tests.support.small_server import CALLS, LetterRunner, Parts

PLACEHOLDER_ID = 7  # a byte that no prompt has
PICTURES = [
    calling
    for calling in CALLS
    if name_of_dialect(calling).endswith("chat")  # no other dialect takes any
]


def seeing_parts(tower: PictureTower, runner: LetterRunner, loader: Loader | None = None) -> Parts:
    """The parts of a server whose pictures that tower embeds; with the real loader unless another is given."""
    rules = PictureRules(GridProcessor(chr(PLACEHOLDER_ID)), PLACEHOLDER_ID)
    pictures = PicturePrompts(rules, loader or PictureLoader())
    return Parts(runner, template=PARTS, pictures=pictures, embedder=PictureEmbedder(tower))


def with_pictures(widths: Sequence[int]) -> list[Calling]:
    """Every call that may have pictures, with some of these widths and of one line."""
    images = [{"type": "image_url", "image_url": {"url": data_url(png(width, 1))}} for width in widths]
    changed = []
    for calling in PICTURES:
        body = json.loads(calling.http.body)
        body["messages"][0]["content"] = [{"type": "text", "text": "What is it?"}, *images]
        changed.append(replace(calling, http=msgspec.structs.replace(calling.http, body=json.dumps(body).encode())))
    return changed
