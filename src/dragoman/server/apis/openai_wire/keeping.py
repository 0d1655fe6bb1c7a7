"""For how long a prompt stays in the cache (OpenAI's fields) and a model in memory (LM Studio's `ttl`). On the event loop.

Sources: OpenAI API reference, chat and responses, and its guide to prompt caching; LM Studio's documentation, idle TTL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from dragoman.server.apis.openai_wire.fields import BOUNDS, check_number, check_word, unknown_names
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.observation.record import current_call

# --- the prompt -------------------------------------------------------------------------------------------------------

RETENTIONS: Mapping[str, float] = {"in_memory": 0.0, "in-memory": 0.0, "24h": 86400.0}
"""`prompt_cache_retention` in seconds; 0 = in memory only, whatever else there is."""

LIFETIMES: Mapping[str, float] = {"30m": 1800.0, "12h": 43200.0}
"""`prompt_cache_options.ttl` in seconds."""

MODES = ("implicit", "explicit")

NOT_KEPT = "prompts are kept in memory only: the server has no --prefix-store-gb"

CACHING_REASONS: Mapping[str, str] = {
    "prompt_cache_key": "one engine has all requests, so that there is none to choose",
    "prompt_cache_retention": NOT_KEPT,
    "prompt_cache_options.ttl": NOT_KEPT,
    "prompt_cache_options.mode": "the beginning of every prompt is cached, with marks or without",
}


Mode = Annotated[str, Meta(extra_json_schema={"enum": list(MODES)})]
Lifetime = Annotated[str, Meta(extra_json_schema={"enum": list(LIFETIMES)})]


class PromptCacheOptions(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`prompt_cache_options`. `ttl`: how long the prompt is kept at least."""

    mode: Mode | None = None
    ttl: Lifetime | None = None


class CachingFields(Protocol):
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    prompt_cache_options: PromptCacheOptions | None


CACHING_FIELDS = frozenset({"prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"})


def prompt_keep_s(body: CachingFields, profile: Profile, *, is_kept: bool) -> float | None:
    """Seconds to keep the prompt, as in `EngineRequest.cache_keep_s`. Raises: InvalidRequest."""
    options = body.prompt_cache_options or PromptCacheOptions()
    retention = _seconds("prompt_cache_retention", body.prompt_cache_retention, RETENTIONS, profile)
    lifetime = _seconds("prompt_cache_options.ttl", options.ttl, LIFETIMES, profile)
    check_word("prompt_cache_options.mode", options.mode, MODES, profile)
    if retention == 0:  # the most that the client allows, while a lifetime is the least that it wishes
        return 0.0
    longest = max((seconds for seconds in (retention, lifetime) if seconds is not None), default=None)
    return longest if is_kept else None


def idle_caching_names(raw: Mapping[str, Any], body: CachingFields, *, is_kept: bool, has_keys: bool) -> Iterator[str]:
    options = body.prompt_cache_options or PromptCacheOptions()
    if body.prompt_cache_key and not has_keys:
        yield "prompt_cache_key"
    if body.prompt_cache_retention is not None and RETENTIONS[body.prompt_cache_retention] and not is_kept:
        yield "prompt_cache_retention"
    if options.ttl is not None and not is_kept:
        yield "prompt_cache_options.ttl"
    if options.mode == "explicit":
        yield "prompt_cache_options.mode"
    nested = raw.get("prompt_cache_options")
    unknown = unknown_names(nested, PromptCacheOptions) if isinstance(nested, dict) else ()
    yield from (f"prompt_cache_options.{name}" for name in unknown)


def _seconds(name: str, word: str | None, words: Mapping[str, float], profile: Profile) -> float | None:
    check_word(name, word, tuple(words), profile)
    return None if word is None else words[word]


# --- the model --------------------------------------------------------------------------------------------------------

TTL = "ttl"
TTL_EFFECT = "LM Studio's: seconds that the model stays after this call, where models come and go; 0 unloads it"
TTL_NO_EFFECT = "models do not come and go here"


def note_ttl(seconds: float, profile: Profile) -> None:
    check_number(TTL, seconds, BOUNDS[TTL], profile)
    record = current_call()
    if record is not None:
        record.keep_s = seconds


def is_ttl_idle() -> bool:
    """True where `ttl` changes nothing."""
    record = current_call()
    return record is None or not record.is_kept
