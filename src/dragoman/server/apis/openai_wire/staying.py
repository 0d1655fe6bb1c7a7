"""`ttl`: how long a model stays after its last call. On the event loop. Source: LM Studio's documentation, idle TTL."""

from __future__ import annotations

from dragoman.server.apis.openai_wire.fields import BOUNDS, check_number
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.observation.record import current_call

NAME = "ttl"
EFFECT = "LM Studio's: seconds that the model stays after this call, where models come and go; 0 unloads it"
NO_EFFECT = "models do not come and go here"


def note_ttl(seconds: float, profile: Profile) -> None:
    check_number(NAME, seconds, BOUNDS[NAME], profile)
    record = current_call()
    if record is not None:
        record.keep_s = seconds


def is_idle() -> bool:
    """True where `ttl` changes nothing."""
    record = current_call()
    return record is None or not record.is_kept
