"""The sampling a model's own generation_config.json asks for, used where a client has no way to ask for another.

Does: read the file and check its values. Does not: apply to the dialects whose clients state their sampling.
Called by the composition root, at start-up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.config.kinds import Integer, Kind, Number
from dragoman.config.resolve import ConfigError
from dragoman.types import SamplingParams

FILE_NAME = "generation_config.json"

_GREEDY = SamplingParams(temperature=0.0)

_KINDS: Mapping[str, Kind] = {
    "temperature": Number(0, inclusive=True),
    "top_k": Integer(0),
    "top_p": Number(0, maximum=1),
    "min_p": Number(0, inclusive=True, maximum=1),
    "typical_p": Number(0, maximum=1),
    "repetition_penalty": Number(0),
}


def default_sampling(model_dir: Path) -> SamplingParams:
    """Greedy, unless the model's generation_config.json says `do_sample`: then with the values of that file.

    Raises: ConfigError naming file, key and value that cannot be used.
    Source of the names: Hugging Face's GenerationConfig.
    """
    path = model_dir / FILE_NAME
    raw = _read(path)
    if not raw.get("do_sample"):
        return _GREEDY
    values: dict[str, Any] = {}
    for key, kind in _KINDS.items():
        if raw.get(key) is not None:
            values[key] = _value(path, key, kind, raw[key])
    return SamplingParams(**values)


def _read(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError([f"{path}: cannot be read as JSON: {error}"]) from error
    if not isinstance(raw, dict):
        raise ConfigError([f"{path}: must hold a JSON object, holds a {type(raw).__name__}"])
    return raw


def _value(path: Path, key: str, kind: Kind, given: Any) -> Any:
    try:
        return kind.parse(str(given))
    except ValueError:
        raise ConfigError([f"{key}={given} ({path}): must be {kind.allowed}"]) from None
