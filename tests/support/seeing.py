"""A model that takes pictures, made of fakes: its tokenizer, the texts of its pictures, what its engine says of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dragoman.engine.base import PictureRules
from dragoman.pictures import PictureLoader, PictureSource
from dragoman.server.generation.extensions import Extensions
from dragoman.server.generation.pictures import Loader, PicturePrompts
from dragoman.server.generation.service import Service
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.types import Detail, EngineRequest, Picture, PictureLayout
from tests.support.byte_tokenizer import VOCAB_SIZE, ByteTokenizer
from tests.support.fake_engine import ABILITIES, FakeEngine

MARKER = "<image>"
PLACEHOLDER = "<|pix|>"
PLACEHOLDER_ID = VOCAB_SIZE
MAX_WIDTH = 100
SEEING = replace(ABILITIES, vocab_size=VOCAB_SIZE + 1, pictures=True)

PARTS = ChatTemplate(
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)
STRINGS = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")


class SeeingTokenizer(ByteTokenizer):
    """Bytes, and one more token: the placeholder, which is recognised wherever its text stands."""

    def __init__(self, *, adds_bos: bool = False) -> None:
        super().__init__(adds_bos=adds_bos)
        self.vocab_size = VOCAB_SIZE + 1
        self.max_token_chars = len(PLACEHOLDER)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """As the byte tokenizer, but for the placeholder."""
        first, *others = text.split(PLACEHOLDER)
        ids = super().encode(first, add_special_tokens=add_special_tokens)
        for other in others:
            ids += [PLACEHOLDER_ID, *super().encode(other, add_special_tokens=False)]
        return ids

    def token_bytes(self, token_id: int, *, at_start: bool = False) -> bytes:
        """The placeholder has its name for bytes."""
        return PLACEHOLDER.encode() if token_id == PLACEHOLDER_ID else super().token_bytes(token_id, at_start=at_start)

    def is_special(self, token_id: int) -> bool:
        """The placeholder is a control token, too."""
        return token_id == PLACEHOLDER_ID or super().is_special(token_id)


@dataclass(frozen=True)
class GridProcessor:
    """A placeholder for each pixel, the rows on lines, in braces; one placeholder for a picture of low detail."""

    placeholder: str = PLACEHOLDER
    marker: str = MARKER

    def layout(self, width: int, height: int, detail: Detail) -> PictureLayout:
        """The rows. Raises: ValueError for one that is too wide."""
        if width > MAX_WIDTH:
            raise ValueError(f"the width must be at most {MAX_WIDTH}, got {width}")
        if detail == "low":
            width = height = 1
        rows = "\n".join([self.placeholder * width] * height)
        return PictureLayout(f"{{{rows}}}", width * height)


class HeldLoader:
    """Brings pictures when it is let, and knows what became of those who asked."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.gate = asyncio.Event()
        self.sources: list[PictureSource] = []
        self.num_given_up = 0

    async def load_all(self, sources: Sequence[PictureSource]) -> tuple[Picture, ...]:
        """One pixel for each."""
        self.sources += sources
        self.begun.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.num_given_up += 1
            raise
        return tuple(Picture(1, 1, b"\0\0\0", source.url) for source in sources)


def what_it_sees(request: EngineRequest, index: int) -> list[int]:
    """Says the size, detail and place of each picture."""
    seen = [
        f"{span.picture.width}x{span.picture.height} {span.detail} at {span.begin}+{span.length}"
        for span in request.pictures
    ]
    return list(("; ".join(seen) or "nothing").encode())


def seeing_service(
    loader: Loader | None = None,
    *,
    max_pictures: int | None = None,
    engine: FakeEngine | None = None,
    rules: PictureRules | None = None,
    **parts: Any,
) -> Service:
    """A service for that model, with the real loader and its usual rules unless others are given."""
    rules = rules or PictureRules(GridProcessor(), PLACEHOLDER_ID)
    return Service(
        engine=engine or FakeEngine(what_it_sees, capabilities=SEEING),
        extensions=Extensions(pictures=PicturePrompts(rules, loader or PictureLoader(), max_pictures)),
        **{"name": "m", "tokenizer": SeeingTokenizer(), "chat_template": PARTS, **parts},
    )
