"""Reads the sampling in a model's generation_config.json, at start-up. The names are those of Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.config.kinds import Integer, Kind, Number, parameter_kind
from dragoman.config.resolve import ConfigError
from dragoman.files.model_texts import is_gguf, model_text
from dragoman.types import SamplingParams

FILE_NAME = "generation_config.json"

_KINDS: Mapping[str, Kind] = {
    **{name: parameter_kind(name) for name in ("temperature", "min_p", "typical_p", "repetition_penalty")},
    "top_k": Integer(0),
    "top_p": Number(0, maximum=1),
}


def default_sampling(model_dir: Path, operator: Mapping[str, Any]) -> SamplingParams:
    """Greedy sampling, or with `do_sample` in generation_config.json the values of that file.

    `operator`: the operator's values, which precede the file's; a temperature among them turns sampling on. Raises:
    ConfigError.
    """
    found = generation_defaults(model_dir) if _read(model_dir).get("do_sample") else {"temperature": 0.0}
    return SamplingParams(**{key: value for key, value in {**found, **operator}.items() if key != "do_sample"})


def generation_defaults(model_dir: Path) -> Mapping[str, Any]:
    """The file's values, by the names of `SamplingParams`; only the repetition penalty with `do_sample: false`."""
    path = model_dir / FILE_NAME
    raw = _read(model_dir)
    values = {key: _value(path, key, kind, raw[key]) for key, kind in _KINDS.items() if raw.get(key) is not None}
    if raw.get("do_sample") is False:
        return {key: value for key, value in values.items() if key == "repetition_penalty"}
    asks = bool(raw.get("do_sample")) or values.keys() - {"repetition_penalty"}
    return {**values, "do_sample": True} if asks else values


def _read(model_dir: Path) -> Mapping[str, Any]:
    path = model_dir / FILE_NAME
    try:
        text = model_text(model_dir, FILE_NAME)
        raw = {} if text is None else json.loads(text)
    except (OSError, ValueError) as error:
        named = "" if is_gguf(model_dir) else f"{path}: cannot be read as JSON: "  # a GGUF has no such file
        raise ConfigError([f"{named}{error}"]) from error
    if not isinstance(raw, dict):
        raise ConfigError([f"{path}: must hold a JSON object, but holds a {type(raw).__name__}"])
    return raw


def _value(path: Path, key: str, kind: Kind, value: Any) -> Any:
    try:
        return kind.parse(str(value))
    except ValueError:
        raise ConfigError([f"{key}={value} ({path}): must be {kind.allowed}"]) from None
