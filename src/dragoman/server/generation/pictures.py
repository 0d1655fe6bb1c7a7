"""Pictures in prompts: their number, texts and places. `brought` runs on the event loop, the rest on any thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, Protocol

import msgspec

from dragoman.engine.base import PictureRules
from dragoman.errors import InvalidParameter, InvalidRequest
from dragoman.pictures import PictureSource
from dragoman.tokenizer.base import Tokenizer
from dragoman.tokenizer.message_content import PictureMarker, PicturePart, picture_parts
from dragoman.types import ChatPrompt, Picture, PictureLayout, PictureSpan


class Loader(Protocol):
    async def load_all(self, sources: Sequence[PictureSource]) -> Sequence[Picture]:
        """The pictures of one request, in their order. Raises: ServerError. Loads no more once cancelled."""
        ...


class Encoder(Protocol):
    """Makes tokens of a rendered prompt: a tokenizer, or one that keeps control tokens out of clients' texts."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...


class PlacedPicture(NamedTuple):
    part: PicturePart
    picture: Picture
    text: PictureLayout


@dataclass(frozen=True, slots=True)
class PicturePrompts:
    """Makes prompts with pictures for one model. `max_pictures`: of one prompt, None = as many as fit."""

    rules: PictureRules
    loader: Loader
    max_pictures: int | None = None

    @property
    def marker(self) -> str:
        return self.rules.processor.marker

    async def brought(self, prompt: ChatPrompt) -> ChatPrompt:
        """The prompt with its pictures. Raises: InvalidRequest for too many of them, and what the loader raises."""
        parts = picture_parts(prompt.messages)
        if not parts or prompt.pictures:
            return prompt
        if self.max_pictures is not None and len(parts) > self.max_pictures:
            raise InvalidParameter(
                f"messages must hold at most {self.max_pictures} images (option.limit_mm_per_prompt), got {len(parts)}",
                param="messages",
            )
        sources = [PictureSource(part.url, part.address_path) for part in parts]
        return msgspec.structs.replace(prompt, pictures=tuple(await self.loader.load_all(sources)))

    def place(self, part: PicturePart, picture: Picture) -> PlacedPicture:
        """Raises: InvalidRequest if the model cannot take a picture of that size."""
        try:
            text = self.rules.processor.layout(picture.width, picture.height, part.detail)
        except ValueError as error:
            raise InvalidParameter(f"{part.address_path} cannot be used: {error}", param=part.address_path) from error
        return PlacedPicture(part, picture, text)

    def ordered(self, placed: Sequence[PlacedPicture], text: str) -> list[PlacedPicture]:
        """The pictures in the order of their markers in the rendered prompt."""
        return [placed[place] for place in PictureMarker(self.marker).split(text)[1]]

    def pieces(self, text: str, ordered: Sequence[PlacedPicture]) -> list[str]:
        """Texts and pictures in turn: each picture's text replaces its marker."""
        first, *others = PictureMarker(self.marker).split(text)[0]
        pieces = [first]
        for entry, after in zip(ordered, others, strict=True):
            pieces += (entry.text.text, after)
        return pieces

    def encoded(self, pieces: Sequence[str], tokenizer: Encoder) -> tuple[int, ...]:
        if not self.rules.splits_texts:
            return tuple(tokenizer.encode("".join(pieces), add_special_tokens=False))
        each = [tokenizer.encode(piece, add_special_tokens=place % 2 == 0) for place, piece in enumerate(pieces)]
        return tuple(chain.from_iterable(each))

    def spans(
        self, token_ids: Sequence[int], placed: Sequence[PlacedPicture], tokenizer: Tokenizer
    ) -> tuple[PictureSpan, ...]:
        """Each picture has the next placeholders. Raises: InvalidRequest if their number is not that of the pictures."""
        placeholder_id = self.rules.placeholder_id
        places = [i for i, token_id in enumerate(token_ids) if token_id == placeholder_id]
        expected = sum(entry.text.num_embeddings for entry in placed)
        if len(places) != expected:
            name = tokenizer.decode([placeholder_id], skip_special_tokens=False)
            raise InvalidRequest(
                f"messages must make a prompt with {name} {expected} times, only for its images, got {len(places)}",
                param="messages",
            )
        spans, done = [], 0
        for entry in placed:
            begin, done = places[done], done + entry.text.num_embeddings
            spans.append(PictureSpan(entry.picture, begin, places[done - 1] + 1 - begin, entry.part.detail))
        return tuple(spans)
