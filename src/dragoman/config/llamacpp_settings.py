"""The options of llama.cpp's API, a part of the table in `options`."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.config.kinds import Names, Switch
from dragoman.config.option import option


@dataclass(frozen=True, slots=True)
class LlamaCppSettings:
    """llama.cpp's API"""

    slots: bool = option(
        True,
        Switch(),
        "Answer /slots, which tells how far the running sequences are; without it the path answers 501.",
        open_to="load",
    )
    tags: tuple[str, ...] = option(
        (),
        Names(),
        "Words that lists of models carry beside the model's name, for clients that look for them.",
        unset="none",
    )
