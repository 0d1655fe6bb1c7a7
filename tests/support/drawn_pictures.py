"""Questions about drawn pictures as clients send them: for tests of servers that see."""

from __future__ import annotations

import base64
import io
from typing import Any

from PIL import Image

from demo.evaluate_pictures import Case, messages_of


def image_part(picture: Image.Image, format: str = "PNG", **words: Any) -> dict[str, Any]:
    """A picture as a part of a message, with further words beside its address."""
    file = io.BytesIO()
    picture.convert("RGB").save(file, format)
    data = base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/{format.lower()};base64,{data}", **words}}


def messages(case: Case, format: str = "PNG") -> list[dict[str, Any]]:
    """The conversation that asks a case's question."""
    picture = case.picture()
    part = None if picture is None else image_part(picture, format)
    found: list[dict[str, Any]] = messages_of(case.question, part, case.comes_first)
    return found
