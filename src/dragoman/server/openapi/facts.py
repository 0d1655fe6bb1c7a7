"""What the operator's options change in the description of the API.

Does: hold values. Does not: read configuration (the composition root does). Immutable; used by the other modules here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dragoman.server.apis.lmi.dialect import LmiOptions
from dragoman.server.apis.text.dialect import TextOptions
from dragoman.types import Limits


@dataclass(frozen=True, slots=True)
class ApiFacts:
    """The options of the default model as far as the description depends on them.

    `chat_format` decides the shape of chat on `/v1`. `needs_key`: calls have to carry an API key.
    """

    lmi: LmiOptions = field(default_factory=LmiOptions)
    text: TextOptions = field(default_factory=TextOptions)
    chat_format: Literal["lmi", "openai", "auto"] = "auto"
    lmi_strict: bool = False
    needs_key: bool = False

    @property
    def limits(self) -> Limits:
        """The bounds of requests, which are the same in all dialects."""
        return self.lmi.limits
