"""Pictures on vLLM: which models take them, and how vLLM's tokens for a picture fit into a finished prompt.

Prompts come with all placeholders of a picture, but vLLM makes these itself. So vLLM prepares each picture alone, and
the result goes where the prompt has the same tokens. If they differ, the request is refused: only the prompt's own
tokens are computed. Does not import vllm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dragoman.engine.base import PictureRules
from dragoman.engine.factory import EngineSetup
from dragoman.errors import UnsupportedFeature
from dragoman.models.config import ModelError
from dragoman.models.families import read_picture_rules
from dragoman.types import EngineRequest, Picture, PictureSpan

_KEYS = "mm_processor_kwargs"


@dataclass(frozen=True, slots=True)
class PicturePlan:
    """The plan for a model's pictures before vLLM runs. `rules` None = pictures are refused because of `why`."""

    rules: PictureRules | None
    why: str = ""


class PreparedPicture(NamedTuple):
    """A picture, prepared by vLLM: tokens from its first embedding to its last; `takes`: True for embeddings.

    `digest`: vLLM's key; `item`: pixels in the form of vLLM's model.
    """

    token_ids: tuple[int, ...]
    takes: tuple[bool, ...]
    digest: str
    item: Any


class PlacedPicture(NamedTuple):
    """A prepared picture, and the place of its first embedding in a prompt."""

    prepared: PreparedPicture
    begin: int


Prepare = Callable[[Picture], Awaitable[PreparedPicture]]


def plan_pictures(setup: EngineSetup) -> PicturePlan:
    """Raises: ModelError if `mm_processor_kwargs` is not understood."""
    if setup.options.get("limit_mm_per_prompt") == 0:
        return PicturePlan(None, "limit_mm_per_prompt is 0")
    changes = setup.options.get(_KEYS)
    try:
        processor, placeholder_id = read_picture_rules(setup.model_dir, changes or "{}")
    except ModelError as error:
        if changes:
            raise ModelError(f"{error} ({_KEYS})") from error
        return PicturePlan(None, str(error))
    return PicturePlan(PictureRules(processor, placeholder_id))


async def placed_pictures(request: EngineRequest, prepare: Prepare) -> tuple[PlacedPicture, ...]:
    """Raises: UnsupportedFeature if vLLM has other tokens for the request's pictures."""
    prepared = await asyncio.gather(*(prepare(span.picture) for span in request.pictures))
    placed = []
    for number, (span, picture) in enumerate(zip(request.pictures, prepared, strict=True), start=1):
        token_ids = request.prompt_ids[span.begin : span.begin + span.length]
        if token_ids != picture.token_ids:
            raise _unlike(number, span, token_ids, picture.token_ids)
        placed.append(PlacedPicture(picture, span.begin))
    return tuple(placed)


def _unlike(number: int, span: PictureSpan, ours: Sequence[int], theirs: Sequence[int]) -> UnsupportedFeature:
    """The error for a picture with other tokens in vLLM; names the first difference."""
    size = f"{span.picture.width} x {span.picture.height} pixels, detail {span.detail}"
    if len(ours) != len(theirs):
        problem = f"vLLM makes {len(theirs)} tokens of it, the model's own rules {len(ours)}"
    else:
        place = next(place for place, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
        problem = f"its token {place} is {theirs[place]} for vLLM, {ours[place]} by the model's own rules"
    allowed = "; detail must be auto or high" if span.detail == "low" else ""
    message = f"picture {number} of the prompt ({size}) is not supported by this engine: {problem}{allowed}"
    return UnsupportedFeature(message, param="messages")
