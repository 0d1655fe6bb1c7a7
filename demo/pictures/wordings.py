"""The wordings of every kind of question about pictures: those of training, and those that only the evaluation asks.

Slots: {s} a shape, {ss} shapes, {c} a color, {i} "red circle" or "circle", {p} a place.
Called by ``questions``.
"""

import json
from pathlib import Path

_DATA: dict[str, dict[str, list[str]]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
TRAINED, HELD_OUT = _DATA["trained"], _DATA["held_out"]

NO_PICTURE = "I do not see a picture in your message. Please send one."
