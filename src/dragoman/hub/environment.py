"""Reads the settings of the hub from environment variables, as huggingface_hub's page on them says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_YES = ("1", "on", "yes", "true")


@dataclass(frozen=True, slots=True)
class HubEnvironment:
    """Settings of the hub. `endpoint` None = the public hub; `token` None = the library's stored one, if any."""

    cache: Path
    endpoint: str | None = None
    token: str | None = None
    is_offline: bool = False


def hub_environment(environ: Mapping[str, str]) -> HubEnvironment:
    default_home = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    home = environ.get("HF_HOME") or default_home
    cache = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or Path(home) / "hub"
    return HubEnvironment(
        cache=Path(os.path.expanduser(cache)),
        endpoint=environ.get("HF_ENDPOINT", "").rstrip("/") or None,
        token=environ.get("HF_TOKEN", "").strip() or None,
        is_offline=any(environ.get(name, "").lower() in _YES for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")),
    )
